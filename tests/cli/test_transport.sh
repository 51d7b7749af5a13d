#!/usr/bin/env bash
# Losses of transport (aot, aot_unpaired) from outside: they sort the log-ratios of all pairs of a step, so every layout
# and every micro-batch gives one rank's numbers; a resume and a replay have the bits of the run; eval sorts all its pairs.
. "$(dirname "$0")/common.sh"
. "$source_dir/tests/cli/preference.sh"
preference_model model
preference_data pairs.jsonl
head -n 10 pairs.jsonl >held.jsonl
options=(--model model --data pairs.jsonl --eval_data held.jsonl --task dpo --sequence_length 128 --train_batch_size 4
    --per_device_eval_batch_size 2 --max_steps 5 --eval_steps 2 --learning_rate 1e-2 --quiet --threads 1)
unpaired=(--loss_type aot_unpaired:0.8,ipo:0.1,sft:0.1 --label_smoothing 0.1 --ld_alpha 0.5)
"$TRIREME" train "${options[@]}" --loss_type aot --output aot >run.log
"$TRIREME" train "${options[@]}" "${unpaired[@]}" --output unpaired >run.log
layout() { # RUN NAME RANKS OPTIONS...
    local run=$1 name=$2 ranks=$3
    shift 3
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${options[@]}" "$@" --output "$name" >run.log 2>&1 || {
        cat run.log >&2
        fail "$name: exit $?"
    }
    compare "$run" "$name" 4e-5
}
layout aot accumulation 1 --loss_type aot --per_device_train_batch_size 1 --per_device_eval_batch_size 1
layout aot zero3 2 --loss_type aot --zero 3 --per_device_train_batch_size 1
layout unpaired dp2 2 "${unpaired[@]}" --per_device_train_batch_size 2
layout unpaired tp2 2 "${unpaired[@]}" --tp 2 --sp
layout unpaired cp2 2 "${unpaired[@]}" --cp 2
layout unpaired pp2 2 "${unpaired[@]}" --pp 2 --per_device_train_batch_size 2
[ -n "${TR_SANITIZED:-}" ] || layout aot pp2-dp2 4 --loss_type aot --pp 2 --per_device_train_batch_size 1

# At the start all log-ratios are 0, and so are what they are compared with; later an order is another loss.
"$TRIREME" train "${options[@]}" --output plain >run.log
python3 - <<'PY' || fail "the order of answers"
import json, math
def steps(run):
    return [e for e in map(json.loads, open(run + "/events.jsonl")) if e["event"] == "step"]
aot, plain = steps("aot"), steps("plain")
assert abs(aot[0]["loss"] - math.log(2)) < 1e-6 and aot[0]["rewards_margin"] == 0, aot[0]
assert abs(aot[-1]["loss"] / plain[-1]["loss"] - 1) > 1e-4 and aot[-1]["rewards_margin"] > 0.1, (aot[-1], plain[-1])
PY

# A resume, a replay, and an evaluation by itself.
TR_FAIL=train.before_step:kill:4 bash -c '"$@"' - "$TRIREME" train "${options[@]}" --loss_type aot --save_steps 2 --output cut >run.log 2>&1 && fail "not killed"
"$TRIREME" train "${options[@]}" --loss_type aot --save_steps 2 --output cut --resume auto >run.log
compare aot cut 0
same aot/model.safetensors cut/model.safetensors
"$TRIREME" replay cut --step 3 >run.log || fail "replay: $(cat run.log)"
"$TRIREME" train "${options[@]}" --loss_type aot --max_steps 4 --output four >run.log
asks=(eval --model four --ref_model model --data held.jsonl --task dpo --loss_type aot --sequence_length 128 --json)
"$TRIREME" "${asks[@]}" >one.json
"$TRIREME" launch --nproc-per-node 2 "${asks[@]}" --per_device_eval_batch_size 1 >two.json
python3 - <<'PY' || fail "eval"
import json
one, two = (json.loads(open(name).readlines()[-1]) for name in ("one.json", "two.json"))
last = [e for e in map(json.loads, open("four/events.jsonl")) if e["event"] == "eval"][-1]
assert abs(one["loss"] - last["loss"]) <= 1e-6 and one["pairs"] == 10, (one, last)
assert abs(two["loss"] - one["loss"]) <= 4e-5 * one["loss"], (one, two)
PY

refuse() { # TEXT OPTIONS...
    local text=$1
    shift
    expect 2 "$TRIREME" train "${options[@]}" --output no "$@"
    grep -q "$text" stderr || fail "not '$text': $(cat stderr)"
}
refuse 'use_weighting weighs a pair, and loss_type aot takes pairs apart' --loss_type aot --use_weighting
refuse 'leave out aot or aot_unpaired' --loss_type aot,aot_unpaired
refuse 'loss_type aot_unpaired has no f_divergence_type but reverse_kl' --loss_type aot_unpaired --f_divergence_type js_divergence
