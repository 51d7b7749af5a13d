#!/usr/bin/env bash
# Weights of tokens (--loss_weights): from token lists, masks, messages, segments and records; the loss is the sum of weighed losses over the sum of weights on
# every layout, scaling all weights changes no bit, and what cannot be a weight is refused by name.
. "$(dirname "$0")/common.sh"
tiny_model model
cat >chat.jinja <<'TEXT'
{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}
TEXT
printf %s "$(cat chat.jinja)" >chat.jinja # no end of line
python3 - <<'PY'
import json
def put(name, records):
    with open(name, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in records)
turns = [("user", "how deep is it", None), ("assistant", "nine fathoms", 0.5), ("user", "and now", None), ("assistant", "four", 3), ("user", "still", None),
         ("assistant", "land", None), ("user", "stop", None), ("assistant", "aye", 0)]
chat, ids, weights = [], [], []
for role, text, weight in turns:
    chat.append({"role": role, "content": text} | ({} if weight is None else {"weight": weight}))
    said = list(text.encode()) + ([256] if role == "assistant" else [])
    ids += list((role[0] + ":").encode()) + said
    weights += [0, 0] + [(1 if weight is None else weight) if role == "assistant" else 0] * len(said)
put("chat.jsonl", [{"messages": chat, "loss_weight": 0.75}])
put("ids.jsonl", [{"input_ids": ids, "loss_weights": [0.75 * w for w in weights]}])
segments, at = [], 0
while at < len(ids):
    end = at
    while end < len(ids) and weights[end] == weights[at]:
        end += 1
    segments.append({"label": weights[at] * 0.75, "text": "".join("<|endoftext|>" if i == 256 else chr(i) for i in ids[at:end])})
    at = end
put("segments.jsonl", [{"segments": segments}])
put("twice.jsonl", [{"input_ids": ids, "loss_mask": [1.5 * w for w in weights]}])
one, other = [{"input_ids": list(text.encode())} for text in ("three banks of oars, one stroke. ", "a trireme has one hundred seventy")]
assert len(one["input_ids"]) == len(other["input_ids"])
put("one.jsonl", [one]), put("other.jsonl", [other])
put("both.jsonl", [one | {"loss_weight": 0.25}, other | {"loss_weight": 0.75}])
words = "wind water wave oar hull mast rope sail keel stern bow deck".split()
many = [{"input_ids": list(" ".join(words[(i * k) % 12] for k in range(2 + i % 5)).encode())} for i in range(40)]
put("many.jsonl", [r | {"loss_weights": [(i * 7 + k) % 5 * 0.3 for k in range(len(r["input_ids"]))]} for i, r in enumerate(many)])
PY
options=(--model model --sequence_length 96 --max_steps 1 --train_batch_size 1 --per_device_train_batch_size 1 --threads 1 --quiet --save_steps 0 --loss_weights)
loss_of() { step_lines "$1/events.jsonl" | sed 's/.* loss=//; s/ lr=.*//'; } # with the norm
run() { # NAME DATA options
    local name=$1 data=$2
    shift 2
    "$TRIREME" train "${options[@]}" --data "$data" --output "$name" "$@" >run.log 2>&1 || fail "$name: $(cat run.log)"
}

# The same weights in five places: the same bits.
run ids ids.jsonl
run chat chat.jsonl --chat_template chat.jinja
run segments segments.jsonl
run twice twice.jsonl # all weights doubled
for name in chat segments twice; do
    [ "$(loss_of "$name")" = "$(loss_of ids)" ] || fail "$name: $(loss_of "$name"), and ids: $(loss_of ids)"
done

# The weighed mean of two records, and a validation loss that knows no weights.
run both both.jsonl --train_batch_size 2 --packing none --eval_data both.jsonl --eval_strategy steps --eval_steps 1 --learning_rate 1e-30 --weight_decay 0
for name in one other; do run $name $name.jsonl --packing none; done
python3 - <<'PY'
import json
def of(name, kind):
    return [e for e in map(json.loads, open(f"{name}/events.jsonl")) if e["event"] == kind][0]["loss"]
one, other, both, plain = of("one", "step"), of("other", "step"), of("both", "step"), of("both", "eval")
assert abs(both - (0.25 * one + 0.75 * other)) < 1e-6, (both, one, other)
assert abs(plain - (one + other) / 2) < 1e-6 and abs(plain - both) > 1e-4, (plain, one, other)
PY

# Layouts, a kill and a resume.
base=(--max_steps 6 --train_batch_size 4 --learning_rate 1e-2 --save_steps 2 --per_device_train_batch_size 2)
run whole many.jsonl "${base[@]}"
for layout in "tp --tp 2 --sp" "zero --zero 3 --per_device_train_batch_size 1" "pp --pp 2" "cp --cp 2 --cp_mode ring" "smooth --zero 1 --label_smoothing_factor 0.1 --z_loss 1e-3 --per_device_train_batch_size 1"; do
    read -r name more <<<"$layout"
    [ $name != smooth ] || run plain-smooth many.jsonl "${base[@]}" --label_smoothing_factor 0.1 --z_loss 1e-3
    # shellcheck disable=SC2086
    "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --data many.jsonl "${base[@]}" --output "$name" $more >run.log 2>&1 || fail "$name: $(cat run.log)"
    python3 - "$name" <<'PY' || fail "$name"
import json, sys
def steps(name):
    return [(e["loss"], e["grad_norm"]) for e in map(json.loads, open(f"{name}/events.jsonl")) if e["event"] == "step"]
a, b = steps("plain-smooth" if sys.argv[1] == "smooth" else "whole"), steps(sys.argv[1])
worst = max(abs(x - y) / max(1, abs(x)) for p, q in zip(a, b, strict=True) for x, y in zip(p, q))
assert worst < 2e-5, worst
PY
done
(TR_FAIL=train.after_step:kill:5 run cut many.jsonl "${base[@]}") >/dev/null 2>&1 && fail "not killed"
run cut many.jsonl "${base[@]}" --resume auto
[ "$(loss_of cut | tail -1)" = "$(loss_of whole | tail -1)" ] || fail "other bits after a kill"
expect 2 "$TRIREME" train --model model --data many.jsonl --sequence_length 96 "${base[@]}" --threads 1 --quiet --output cut --resume auto
expect 0 "$TRIREME" replay cut --step 5 --quiet

# Refusals: without the option, and what is no weight.
refuse() { # RECORD WORDS options
    local record=$1 words=$2
    shift 2
    echo "$record" >bad.jsonl
    expect 2 "$TRIREME" data check --model model --data bad.jsonl --sequence_length 96 "$@"
    grep -q "$words" stdout stderr || fail "not said: $words: $(cat stdout stderr)"
}
refuse '{"input_ids": [1, 2], "loss_weights": [1, 0.5]}' 'loss_weights\\\?" at 1 is neither 0 nor 1; with --loss_weights'
refuse '{"input_ids": [1, 2], "loss_weight": 2}' 'counts with --loss_weights only'
refuse '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0.5}]}' 'neither 0 nor 1; with --loss_weights' --chat_template chat.jinja
refuse '{"input_ids": [1, 2], "loss_weights": [1, -0.5]}' 'at 1 is no weight from 0 to 255' --loss_weights
refuse '{"input_ids": [1, 2], "loss_weights": [1, 256]}' 'no weight from 0 to 255' --loss_weights
refuse '{"input_ids": [1, 2], "loss_weights": [1, 100], "loss_weight": 100}' 'together, above 255' --loss_weights
refuse '{"input_ids": [1, 2], "loss_weights": [1, 0]}' 'no token of the record has a loss' --loss_weights
refuse '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0.5}]}' 'need --train_on assistant' --chat_template chat.jinja --loss_weights --train_on all
expect 2 "$TRIREME" train "${options[@]}" --data ids.jsonl --task dpo --output no
grep -q 'loss_weights is of the loss of tokens' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" train "${options[@]}" --data ids.jsonl --use_dft_loss --output no
grep -q 'both weigh the loss' stderr || fail "$(cat stderr)"
shard=$(ls ids/.cache/*.trtok)
expect 2 "$TRIREME" data check --model model --data "$shard" --sequence_length 96
grep -q 'the shard has weights of tokens; give --loss_weights' stdout stderr || fail "$(cat stdout stderr)"
run shard "$shard"
[ "$(loss_of shard)" = "$(loss_of ids)" ] || fail "shard: $(loss_of shard)"
echo ok
