#!/usr/bin/env bash
# A tokenizer with more tokens than the model has rows: the tables grow, new rows are the mean of the others, on every layout, and the output says so.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
sed -i '3s/one stroke/<|oar|> stroke/' train.jsonl
grow() { # MODEL: thirteen tokens more than its tokenizer has
    python3 - "$1" <<'PY'
import json, sys
path = sys.argv[1] + "/tokenizer.json"
t = json.load(open(path))
for i in range(13):
    t["added_tokens"].append({"id": 257 + i, "content": "<|oar|>" if i == 12 else f"<|new{i}|>", "single_word": False,
                              "lstrip": False, "rstrip": False, "normalized": False, "special": True})
json.dump(t, open(path, "w"))
PY
}
check() { # BEFORE AFTER NAME...: the old rows are as they were, the new ones their mean
    python3 - "$@" <<'PY'
import array, json, struct, sys
def table(directory, name):
    data = open(directory + "/model.safetensors", "rb").read()
    n, = struct.unpack("<Q", data[:8])
    x = json.loads(data[8:8 + n])[name]
    assert x["dtype"] == "F32", x
    a = array.array("f", data[8 + n + x["data_offsets"][0]:8 + n + x["data_offsets"][1]])
    return x["shape"], a
assert json.load(open(sys.argv[2] + "/config.json"))["vocab_size"] == 270
for name in sys.argv[3:]:
    (rows, cols), old = table(sys.argv[1], name)
    shape, new = table(sys.argv[2], name)
    assert shape == [270, cols] and rows == 264 and new[:rows * cols] == old, (name, shape)
    for c in range(cols):
        mean = sum(old[r * cols + c] for r in range(rows)) / rows
        for r in range(rows, 270):
            assert abs(new[r * cols + c] - mean) <= 1e-7 * abs(mean) + 1e-12, (name, r, c)
PY
}
options=(--data train.jsonl --sequence_length 32 --train_batch_size 4 --quiet)
tiny_model tied
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' tiny.json >untied.json
"$TRIREME" init --config untied.json --tokenizer bytes --seed 7 --out untied --quiet
for model in tied untied; do
    grow $model
    expect 2 "$TRIREME" train --model $model --output refused "${options[@]}" --max_steps 1
    grep -q 'resize_vocab' stderr || fail "$(cat stderr)"
    tables=(model.embed_tokens.weight)
    [ $model = tied ] || tables+=(lm_head.weight)
    expect 0 "$TRIREME" train --model $model --output $model-grown "${options[@]}" --max_steps 1 --learning_rate 1e-30 --weight_decay 0 --resize_vocab
    check $model $model-grown "${tables[@]}"
    expect 0 "$TRIREME" eval --model $model-grown --data train.jsonl --sequence_length 32
    expect 0 "$TRIREME" train --model $model --output $model-one "${options[@]}" --max_steps 3 --resize_vocab
    step_lines $model-one/events.jsonl >one
    for layout in "--zero 3" "--tp 2" "--pp 2 --gradient_accumulation_steps 2"; do
        # shellcheck disable=SC2086
        expect 0 "$TRIREME" launch --nproc-per-node 2 train --model $model --output "$model$layout" "${options[@]}" --max_steps 3 --resize_vocab $layout
        python3 - $model-one/events.jsonl "$model$layout/events.jsonl" <<'PY' || fail "$model $layout"
import json, sys
a, b = ([e["loss"] for e in map(json.loads, open(p)) if e["event"] == "step"] for p in sys.argv[1:])
assert len(a) == len(b) == 3 and all(abs(x - y) < 1e-5 for x, y in zip(a, b)), (a, b)
PY
    done
    # the checkpoint has the grown tables; the run goes on from it
    expect 0 "$TRIREME" train --model $model --output $model-one "${options[@]}" --max_steps 4 --resize_vocab --lr_scheduler_type linear --allow_change schedule_steps --resume auto
done

# An adapter: its file has the grown tables, as PEFT's has, because the base on the disk does not. They stay what they began as, or are trained whole.
loss() { "$TRIREME" eval --data train.jsonl --sequence_length 32 --json "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])'; }
tables() { # ADAPTER NAME...: these and no others, with 270 rows
    python3 - "$@" <<'PY'
import json, struct, sys
f = open(sys.argv[1] + "/adapter_model.safetensors", "rb")
head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
found = {k: v["shape"][0] for k, v in head.items() if k != "__metadata__" and ".lora_" not in k}
assert found == {"base_model.model." + k: 270 for k in sys.argv[2:]}, found
PY
}
lora=("${options[@]}" --max_steps 3 --learning_rate 1e-2 --resize_vocab --lora_r 4)
for model in tied untied; do
    names=(model.embed_tokens.weight)
    [ $model = tied ] || names+=(lm_head.weight)
    expect 0 "$TRIREME" train --model $model --output $model-lora "${lora[@]}"
    tables $model-lora "${names[@]}"
    grep -q 'resize_token_embeddings(270)' $model-lora/README.md || fail "$(cat $model-lora/README.md)"
    for layout in "--zero 3" "--tp 2" "--pp 2 --gradient_accumulation_steps 2"; do
        # shellcheck disable=SC2086
        expect 0 "$TRIREME" launch --nproc-per-node 2 train --model $model --output "$model-lora$layout" "${lora[@]}" $layout
        python3 - $model-lora/events.jsonl "$model-lora$layout/events.jsonl" <<'PY' || fail "$model $layout"
import json, sys
a, b = ([e["loss"] for e in map(json.loads, open(p)) if e["event"] == "step"] for p in sys.argv[1:])
assert len(a) == len(b) == 3 and all(abs(x - y) < 1e-5 for x, y in zip(a, b)), (a, b)
PY
        tables "$model-lora$layout" "${names[@]}"
    done
    live=$(loss --model $model-lora)
    rm -r $model-lora/trireme # as another tool writes it
    [ "$(loss --model $model-lora)" = "$live" ] || fail "$live, and without our files $(loss --model $model-lora)"
    expect 0 "$TRIREME" train --model $model-lora --output $model-more "${options[@]}" --max_steps 1
    tables $model-more "${names[@]}"
    expect 0 "$TRIREME" ckpt merge $model-lora --out $model-merged
    python3 - "$live" "$(loss --model $model-merged)" <<'PY' || fail "merged"
import sys
a, b = map(float, sys.argv[1:])
assert abs(a - b) <= 1e-5 * a, (a, b)
PY
    expect 2 "$TRIREME" ckpt export $model-lora --to vllm --output bad
    grep -q 'a grown vocabulary' stderr || fail "$(cat stderr)"
done
expect 0 "$TRIREME" train --model untied --output saved "${lora[@]}" --lora_modules_to_save embed_tokens,lm_head --load_in_4bit
tables saved model.embed_tokens.weight lm_head.weight
expect 0 "$TRIREME" eval --model saved --data train.jsonl --sequence_length 32
expect 2 "$TRIREME" train --model tied --output refused "${lora[@]}" --trainable_token_indices 3
grep -q 'lora_modules_to_save' stderr || fail "$(cat stderr)"
