#!/usr/bin/env bash
# Answers with labels (KTO) from outside: 50 steps follow TRL's curve, every layout gives one rank's numbers, a resume has
# the bits of a run that nobody disturbed, all shapes of records are one, and wrong data is refused.
. "$(dirname "$0")/common.sh"
. "$source_dir/tests/cli/preference.sh"
preference_model model
preference_answers answers.jsonl

# TRL's curve, with the bound of test_preference.sh.
kto_run model answers.jsonl trl >run.log
compare "$source_dir/tests/golden/pairs/trl_kto.json" trl 5e-5
python3 - <<'PY' || fail "the first step of trl/events.jsonl"
import json
first = next(e for e in map(json.loads, open("trl/events.jsonl")) if e["event"] == "step")
assert first["rewards_chosen"] == 0 and first["rewards_rejected"] == 0 and first["kl"] == 0, first
assert first["answers"] == 12 and first["desirable"] == 8 and abs(first["loss"] - (8 * 0.5 + 4 * 0.75) / 12) < 1e-7, first
PY

# Layouts, with packed answers, evaluation and a chat template. Four rows a step, so that a micro-batch never has all of
# the distance from the reference.
python3 - >chat.jsonl <<'PY'
import json
for i in range(60):
    user, answer = f"say {i}", f"it is {i}" if i % 3 else f"no, {i * 3} or so" * (1 + i % 2)
    prompt, said = [{"role": "user", "content": user}], [{"role": "assistant", "content": answer}]
    print(json.dumps([{"prompt": prompt, "completion": said, "label": i % 3 != 0},
                      {"instruction": user, "output": answer, "kto_tag": i % 3 != 0},
                      {"conversations": [{"from": "human", "value": user}, {"from": "gpt", "value": answer}], "kto_tag": i % 3 != 0},
                      {"question": user, "completion": answer, "label": int(i % 3 != 0)}][i // 3 % 4]))
PY
head -n 9 chat.jsonl >held.jsonl
options=(--model model --data chat.jsonl --chat_template chatml --eval_data held.jsonl --task kto --sequence_length 256
    --train_batch_size 4 --per_device_eval_batch_size 1 --max_steps 4 --eval_steps 2 --learning_rate 1e-3 --quiet --threads 1)
"$TRIREME" train "${options[@]}" --per_device_train_batch_size 4 --output one >run.log
python3 - <<'PY' || fail "the run on one rank"
import json
steps = [e for e in map(json.loads, open("one/events.jsonl")) if e["event"] == "step"]
evals = [e for e in map(json.loads, open("one/events.jsonl")) if e["event"] == "eval"]
assert all(e["kl"] > 0 for e in steps[1:] + evals) and evals[-1]["answers"] == 9 and evals[-1]["desirable"] == 6, (steps, evals)
assert steps[-1]["rewards_margin"] > 0 and "rewards_accuracy" not in steps[-1], steps[-1]
PY
layout() { # NAME RANKS OPTIONS...
    local name=$1 ranks=$2
    shift 2
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${options[@]}" "$@" --output "$name" >run.log 2>&1 || {
        cat run.log >&2
        fail "$name: exit $?"
    }
    compare one "$name" 4e-5
}
layout accumulation 1 --per_device_train_batch_size 1
layout zero3 2 --zero 3 --per_device_train_batch_size 1
layout tp2 2 --tp 2 --sp
layout cp2 2 --cp 2
layout pp2 2 --pp 2 --per_device_train_batch_size 2
if [ -z "${TR_SANITIZED:-}" ]; then # slow there
    layout pp2-tp2 4 --pp 2 --tp 2 --per_device_train_batch_size 2
    layout dp2-cp2 4 --cp 2 --zero 1 --per_device_train_batch_size 2
fi

# The same bits on any layout, the distance from the reference included.
bits=(--per_device_train_batch_size 1 --reproducible layout)
"$TRIREME" train "${options[@]}" "${bits[@]}" --output bits-one >run.log
"$TRIREME" launch --nproc-per-node 2 train "${options[@]}" "${bits[@]}" --zero 2 --output bits-two >run.log
compare bits-one bits-two 0
same bits-one/model.safetensors bits-two/model.safetensors

# A resume, also when the cache is gone and the reference must be asked again.
resume=(--model model --data answers.jsonl --eval_data answers.jsonl --task kto --sequence_length 128 --train_batch_size 2
    --max_steps 6 --eval_steps 3 --save_steps 2 --learning_rate 1e-2 --quiet)
"$TRIREME" train "${resume[@]}" --output whole >run.log
for keeps_cache in yes no; do
    TR_FAIL=train.before_step:kill:4 bash -c '"$@"' - "$TRIREME" train "${resume[@]}" --output cut-$keeps_cache >run.log 2>&1 && fail "not killed"
    [ $keeps_cache = yes ] || rm -r cut-$keeps_cache/.cache
    "$TRIREME" train "${resume[@]}" --output cut-$keeps_cache --resume auto >run.log
    grep -q "12 answers $([ $keeps_cache = yes ] && echo 'are in the cache' || echo took)" run.log || fail "$(cat run.log)"
    compare whole cut-$keeps_cache 0
    same whole/model.safetensors cut-$keeps_cache/model.safetensors
done
expect 2 "$TRIREME" train "${resume[@]}" --output whole --resume auto --undesirable_weight 2
grep -q 'undesirable_weight was' stderr || fail "another weight on resume: $(cat stderr)"

# Adapters and a base in 4 bits start at their reference; the loss without a distance learns too.
for run in lora qlora apo; do
    case $run in
    lora) how=(--finetuning_type lora --lora_r 4) ;;
    qlora) how=(--finetuning_type lora --lora_r 4 --load_in_4bit) ;;
    apo) how=(--loss_type apo_zero_unpaired) ;;
    esac
    "$TRIREME" train "${resume[@]}" --output $run "${how[@]}" >run.log
    python3 - $run <<'PY' || fail "$run"
import json, sys
steps = [e for e in map(json.loads, open(sys.argv[1] + "/events.jsonl")) if e["event"] == "step"]
assert steps[0]["rewards_chosen"] == 0 and steps[0]["kl"] == 0 and steps[-1]["rewards_margin"] > 0, (steps[0], steps[-1])
assert (steps[-1]["kl"] == 0) == (sys.argv[1] == "apo"), steps[-1]
PY
done

eval_of_pairs kto lora answers.jsonl

# Refusals.
preference_data pairs.jsonl
tiny_text text.jsonl
refuse() { # TEXT ARGUMENTS...
    local text=$1
    shift
    expect 2 "$TRIREME" train --model model --output no --sequence_length 64 "$@"
    grep -q -- "$text" stderr || fail "not '$text': $(cat stderr)"
}
refuse 'pair of answers, from which task dpo learns' --data pairs.jsonl --task kto --max_skipped 0
refuse '"label" is missing' --data text.jsonl --task kto --max_skipped 0
refuse 'no pairs of answers' --data answers.jsonl --task dpo
refuse 'loss_type hinge is of pairs' --data answers.jsonl --task kto --loss_type hinge
refuse 'loss_type kto is of answers with labels' --data pairs.jsonl --task dpo --loss_type kto
refuse 'packing stream' --data answers.jsonl --task kto --packing stream
head -n 1 answers.jsonl >alone.jsonl
refuse 'a file of one record' --data alone.jsonl --task kto
