#!/usr/bin/env bash
# Weights of tokens (ld_alpha) and of pairs (use_weighting) from outside: 50 steps follow TRL's curve, every layout gives
# one rank's numbers, a resume, a replay and eval have the bits of the run, and the reference is asked anew for another alpha.
. "$(dirname "$0")/common.sh"
. "$source_dir/tests/cli/preference.sh"
preference_model model
preference_data pairs.jsonl
head -n 8 pairs.jsonl >held.jsonl
weights=(--ld_alpha 0.4 --use_weighting)

# The bound is that of test_preference.sh.
preference_run model pairs.jsonl trl "${weights[@]}" >run.log
compare "$source_dir/tests/golden/pairs/trl_weighed.json" trl 5e-5

options=(--model model --data pairs.jsonl --eval_data held.jsonl --task dpo --sequence_length 128 --train_batch_size 4 --max_steps 4
    --eval_steps 2 --learning_rate 1e-2 --quiet --threads 1)
sum=("${weights[@]}" --loss_type sigmoid,ipo:0.5,sft:0.3)
"$TRIREME" train "${options[@]}" "${sum[@]}" --output one >run.log
layout() { # NAME RANKS OPTIONS...
    local name=$1 ranks=$2
    shift 2
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${options[@]}" "${sum[@]}" "$@" --output "$name" >run.log 2>&1 || {
        cat run.log >&2
        fail "$name: exit $?"
    }
    compare one "$name" 4e-5
}
layout accumulation 1 --per_device_train_batch_size 1
layout zero3 2 --zero 3 --per_device_train_batch_size 1
layout tp2 2 --tp 2 --sp
layout cp2 2 --cp 2
layout pp2 2 --pp 2 --per_device_train_batch_size 2 --pp_schedule zb
[ -n "${TR_SANITIZED:-}" ] || layout pp2-tp2 4 --pp 2 --tp 2 --per_device_train_batch_size 2
"$TRIREME" train "${options[@]}" "${weights[@]}" --output lora --finetuning_type lora --lora_r 4 >run.log

# An alpha of 1 is none, and weights are other numbers.
"$TRIREME" train "${options[@]}" --output plain >run.log
"$TRIREME" train "${options[@]}" --ld_alpha 1 --output alpha-1 >run.log
compare plain alpha-1 0
"$TRIREME" train "${options[@]}" --ld_alpha 0 --output alpha-0 >run.log
"$TRIREME" train "${options[@]}" --use_weighting --output wpo >run.log
python3 - <<'PY' || fail "weights"
import json
def steps(run):
    return [e for e in map(json.loads, open(run + "/events.jsonl")) if e["event"] == "step"]
plain, none, wpo, lora = (steps(run) for run in ("plain", "alpha-0", "wpo", "lora"))
# the log-probability of the shorter answer is whole, that of the longer one is not; the reference loses as much
assert plain[0]["logps_chosen"] == none[0]["logps_chosen"] and plain[0]["logps_rejected"] < none[0]["logps_rejected"], (plain[0], none[0])
assert none[0]["rewards_chosen"] == none[0]["rewards_rejected"] == 0 and abs(none[0]["loss"] - plain[0]["loss"]) < 1e-7, none[0]
# all weights of a model that knows nothing are near 1, and follow it later
assert 0 < abs(wpo[0]["loss"] / plain[0]["loss"] - 1) < 0.2 and abs(wpo[-1]["loss"] / plain[-1]["loss"] - 1) > 1e-3, (wpo, plain)
assert lora[0]["rewards_margin"] == 0 and lora[-1]["rewards_margin"] > 0, lora
PY

# A resume, a replay and an evaluation.
TR_FAIL=train.before_step:kill:4 bash -c '"$@"' - "$TRIREME" train "${options[@]}" "${sum[@]}" --save_steps 2 --output cut >run.log 2>&1 && fail "not killed"
expect 2 "$TRIREME" train "${options[@]}" "${sum[@]}" --save_steps 2 --output cut --resume auto --ld_alpha 0.5
grep -q 'ld_alpha was' stderr || fail "another alpha on resume: $(cat stderr)"
"$TRIREME" train "${options[@]}" "${sum[@]}" --save_steps 2 --output cut --resume auto >run.log
grep -q 'are in the cache' run.log || fail "the resume asks its reference again: $(cat run.log)"
compare one cut 0
same one/model.safetensors cut/model.safetensors
"$TRIREME" replay cut --step 3 >run.log || fail "replay: $(cat run.log)"
asks=(eval --model one --ref_model model --data held.jsonl --task dpo --sequence_length 128 --json)
for alpha in 0.4 0.9; do
    "$TRIREME" "${asks[@]}" --ld_alpha $alpha >kept-$alpha.json # the second finds what the first has left
done
rm -r one/.cache
"$TRIREME" "${asks[@]}" --ld_alpha 0.9 >fresh.json
"$TRIREME" "${asks[@]}" "${sum[@]}" >one.json
python3 - <<'PY' || fail "eval"
import json
kept, fresh, whole = (json.loads(open(name).readlines()[-1]) for name in ("kept-0.9.json", "fresh.json", "one.json"))
last = [e for e in map(json.loads, open("one/events.jsonl")) if e["event"] == "eval"][-1]
assert kept["rewards_margin"] == fresh["rewards_margin"] and kept["loss"] == fresh["loss"], (kept, fresh)
assert whole["loss"] == last["loss"] and whole["rewards_margin"] == last["rewards_margin"], (whole, last)
PY

# Refusals.
refuse() { # TEXT OPTIONS...
    local text=$1
    shift
    expect 2 "$TRIREME" train "${options[@]}" --output no "$@"
    grep -q "$text" stderr || fail "not '$text': $(cat stderr)"
}
refuse 'ld_alpha weighs tokens of a pair that is compared with a reference; leave it out with loss_type simpo' --task simpo --ld_alpha 0.5
refuse 'leave it out with --task kto' --task kto --ld_alpha 0.5
refuse 'use_weighting weighs pairs of answers; leave it out with --task kto' --task kto --use_weighting
refuse 'ld_alpha is of preference training' --task sft --ld_alpha 0.5
refuse 'ld_alpha' --ld_alpha 1.5
