#!/usr/bin/env bash
# Preference training from outside: 50 steps follow TRL's curve, every layout gives one rank's numbers, a resume has the
# bits of a run that nobody disturbed and never asks the trained model for its reference, and wrong data is refused.
. "$(dirname "$0")/common.sh"
. "$source_dir/tests/cli/preference.sh"
preference_model model
preference_data pairs.jsonl
head -n 8 pairs.jsonl >held.jsonl

# TRL's curve. Fifty updates of AdamW in float32: each turns the rounding of gradients, 2^-24 of sums over a hundred
# tokens, into as much of a step; 5e-5 is four times what was measured.
preference_run model pairs.jsonl trl >run.log
compare "$source_dir/tests/golden/pairs/trl.json" trl 5e-5
python3 - <<'PY' || fail "the first step of trl/events.jsonl"
import json
first = next(e for e in map(json.loads, open("trl/events.jsonl")) if e["event"] == "step")
assert first["rewards_chosen"] == 0 and first["rewards_rejected"] == 0 and first["rewards_margin"] == 0, first
assert first["pairs"] == 4 and abs(first["loss"] - 0.6931471805599453) < 1e-7, first
PY

# Layouts, with packed pairs, evaluation and a chat template. The bound is that of test_layouts.sh, twice: rewards are
# differences of two sums.
python3 - >chat.jsonl <<'PY'
import json
for i in range(30):
    user, good, bad = f"say {i}", f"it is {i}", f"no, {i * 3} or so"
    prompt = [{"role": "user", "content": user}]
    answers = [[{"role": "assistant", "content": x}] for x in (good, bad)]
    print(json.dumps({"chosen": prompt + answers[0], "rejected": prompt + answers[1]} if i % 2 else
                     {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]}))
PY
options=(--model model --data chat.jsonl --chat_template chatml --eval_data held.jsonl --task dpo --sequence_length 128
    --train_batch_size 4 --max_steps 4 --eval_steps 2 --learning_rate 1e-2 --quiet --threads 1)
"$TRIREME" train "${options[@]}" --per_device_train_batch_size 4 --output one >run.log
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
layout recompute 1 --per_device_train_batch_size 4 --recompute block
layout zero3 2 --zero 3 --per_device_train_batch_size 1
layout tp2 2 --tp 2 --sp
layout cp2 2 --cp 2
layout pp2 2 --pp 2 --per_device_train_batch_size 2 --pp_schedule zb
if [ -z "${TR_SANITIZED:-}" ]; then # slow there
    layout ulysses 2 --cp 2 --cp_mode ulysses
    layout pp2-tp2 4 --pp 2 --tp 2 --per_device_train_batch_size 2
    layout dp2-cp2 4 --cp 2 --zero 1 --per_device_train_batch_size 2
fi

# A resume: the bits of the undisturbed run; also when the cache is gone, and the reference must be asked again.
resume=(--model model --data pairs.jsonl --eval_data held.jsonl --task dpo --sequence_length 128 --train_batch_size 4
    --max_steps 6 --eval_steps 3 --save_steps 2 --learning_rate 1e-2 --quiet)
"$TRIREME" train "${resume[@]}" --output whole >run.log
for keeps_cache in yes no; do
    TR_FAIL=train.before_step:kill:4 bash -c '"$@"' - "$TRIREME" train "${resume[@]}" --output cut-$keeps_cache >run.log 2>&1 && fail "not killed"
    [ $keeps_cache = yes ] || rm -r cut-$keeps_cache/.cache
    "$TRIREME" train "${resume[@]}" --output cut-$keeps_cache --resume auto >run.log
    grep -q "40 pairs $([ $keeps_cache = yes ] && echo 'are in the cache' || echo took)" run.log || {
        cat run.log >&2
        fail "the resume does not say where its reference comes from"
    }
    compare whole cut-$keeps_cache 0
    same whole/model.safetensors cut-$keeps_cache/model.safetensors
done
expect 2 "$TRIREME" train "${resume[@]}" --output whole --resume auto --beta 0.2
grep -q 'beta was' stderr || fail "another beta on resume: $(cat stderr)"

eval_of_pairs dpo whole held.jsonl
expect 0 "$TRIREME" eval --model whole --data held.jsonl --task orpo --sequence_length 128
grep -q 'rewards: accuracy .* over 8 pairs' stdout || fail "$(cat stdout)"

# A reference of its own: with the model itself nothing changes, with another one the first rewards are not 0.
"$TRIREME" train "${resume[@]}" --output own-ref --ref_model model >run.log
compare whole own-ref 0
"$TRIREME" train "${resume[@]}" --output other-ref --ref_model whole >run.log
python3 - <<'PY' || fail "another reference"
import json
first = next(e for e in map(json.loads, open("other-ref/events.jsonl")) if e["event"] == "step")
assert first["rewards_chosen"] < 0 < first["rewards_rejected"] and first["rewards_accuracy"] == 0, first
PY

# Every loss trains: the margin grows, or with sft the chosen answer gains.
for loss in robust hinge ipo sigmoid_norm exo_pair nca_pair bco_pair sppo_hard apo_zero apo_down discopop sft orpo simpo cpo aot aot_unpaired; do
    extra=()
    case $loss in robust | exo_pair) extra=(--label_smoothing 0.1) ;; esac
    "$TRIREME" train --model model --data held.jsonl --task dpo --loss_type $loss --sequence_length 128 --train_batch_size 4 \
        --max_steps 6 --learning_rate 3e-3 --lr_scheduler_type constant --quiet --data_proof none --output "loss-$loss" "${extra[@]}" >run.log
    python3 - $loss <<'PY' || fail "loss_type $loss"
import json, sys
steps = [e for e in map(json.loads, open(f"loss-{sys.argv[1]}/events.jsonl")) if e["event"] == "step"]
a, b = steps[0], steps[-1]
assert b["loss"] < a["loss"], (a["loss"], b["loss"])
if sys.argv[1] == "sft":
    assert b["logps_chosen"] > a["logps_chosen"], (a, b)
elif sys.argv[1] != "discopop": # which falls towards rejected answers near 0
    assert b["logps_chosen"] - b["logps_rejected"] > a["logps_chosen"] - a["logps_rejected"], (a, b)
PY
done

# A sum of losses: rpo_alpha is one more term, and a layout changes nothing.
"$TRIREME" train "${resume[@]}" --output sum-rpo --rpo_alpha 0.3 >run.log
"$TRIREME" train "${resume[@]}" --output sum-sft --loss_type sigmoid,sft:0.3 >run.log
compare sum-rpo sum-sft 0
sum=(--loss_type sigmoid:0.8,bco_pair:0.2,sft)
"$TRIREME" train "${resume[@]}" --output sum-one "${sum[@]}" >run.log
"$TRIREME" launch --nproc-per-node 2 train "${resume[@]}" --output sum-two "${sum[@]}" --zero 3 --per_device_train_batch_size 1 >run.log 2>&1
compare sum-one sum-two 4e-5
python3 - <<'PY' || fail "the first loss of a sum"
import json, math
first = next(e for e in map(json.loads, open("sum-one/events.jsonl")) if e["event"] == "step")
plain = next(e for e in map(json.loads, open("whole/events.jsonl")) if e["event"] == "step")
sft = next(e for e in map(json.loads, open("sum-sft/events.jsonl")) if e["event"] == "step")["loss"] - plain["loss"]  # 0.3 of it
assert abs(first["loss"] - (0.8 + 0.2 * 2) * math.log(2) - sft / 0.3) < 1e-5, (first, sft)
PY
refuse_loss() { # TEXT LOSSES OPTIONS...
    local text=$1
    shift
    expect 2 "$TRIREME" train "${resume[@]}" --output no --loss_type "$@"
    grep -q "$text" stderr || fail "not '$text': $(cat stderr)"
}
refuse_loss 'sigmoid:0: the weight is not a number above 0' sigmoid:0
refuse_loss 'names 5 losses; at most 4' sigmoid,ipo,hinge,sft,nca_pair
refuse_loss '"aot_pair" is none of' sigmoid,aot_pair
refuse_loss 'loss_type kto is of answers with labels' sigmoid,kto
refuse_loss 'loss_type apo_zero has no f_divergence_type' ipo,apo_zero --f_divergence_type js_divergence

# Other divergences: the first step is that of the reverse KL, whose score they have at the reference to first order, the next are their own.
for f in forward_kl js_divergence alpha_divergence; do
    "$TRIREME" train "${resume[@]}" --output div-$f --f_divergence_type $f >run.log
    python3 - whole div-$f $f <<'PY' || fail "f_divergence_type $f"
import json, sys
a, b = ([e for e in map(json.loads, open(run + "/events.jsonl")) if e["event"] == "step"] for run in sys.argv[1:3])
slope = 0.5 if sys.argv[3] == "js_divergence" else 1  # of the score at a ratio of 1
assert abs(b[0]["loss"] - a[0]["loss"]) < 1e-6 and abs(b[0]["grad_norm"] / a[0]["grad_norm"] - slope) < 1e-5, (a[0], b[0])
assert b[-1]["loss"] < b[0]["loss"] and abs(b[-1]["loss"] - a[-1]["loss"]) > 1e-4, (a[-1], b[-1])
PY
done
expect 2 "$TRIREME" train "${resume[@]}" --output no --loss_type apo_zero --f_divergence_type js_divergence
grep -q 'loss_type apo_zero has no f_divergence_type but reverse_kl' stderr || fail "$(cat stderr)"

# 8-bit products: the reference has none, so the first rewards are their rounding, some 2^-4 of an operand averaged over sums.
"$TRIREME" train "${resume[@]}" --output fp8 --fp8 >run.log
python3 - <<'PY' || fail "fp8"
import json
steps = [e for e in map(json.loads, open("fp8/events.jsonl")) if e["event"] == "step"]
assert 0 < abs(steps[0]["rewards_chosen"]) < 0.01 and steps[-1]["rewards_margin"] > 0.1, (steps[0], steps[-1])
PY

# Adapters: the reference is the base, so the first step is that of the model; so does a base in 4 bits. A start that takes
# a part of the base into the adapter leaves the model as it was, and its reference is that model, not the base without the part.
for run in lora qlora pissa olora; do
    case $run in lora) how=() ;; qlora) how=(--load_in_4bit) ;; *) how=(--init_lora_weights $run) ;; esac
    "$TRIREME" train "${resume[@]}" --output $run --finetuning_type lora --lora_r 4 "${how[@]}" >run.log
    python3 - $run <<'PY' || fail "$run"
import json, sys
def steps(run):
    return [e for e in map(json.loads, open(run + "/events.jsonl")) if e["event"] == "step"]
got, plain = steps(sys.argv[1]), steps("lora")
assert got[0]["rewards_margin"] == 0 and got[0]["rewards_chosen"] == 0 and got[-1]["rewards_margin"] > 0, (got[0], got[-1])
if sys.argv[1] != "qlora":  # sums of some ten tokens, each rounded some ten times
    for name in ("logps_chosen", "logps_rejected"):
        assert abs(got[0][name] - plain[0][name]) <= 1e-5 * abs(plain[0][name]), (name, got[0], plain[0])
PY
done

# Sources that are mixed by weight go on with what a pass over all has not read, and a short run asks for its own pairs only: a model that does not learn is its reference
# in every step.
head -n 8 pairs.jsonl >rare.jsonl
"$TRIREME" train --model model --data pairs.jsonl:1 --data rare.jsonl:9 --task dpo --sequence_length 128 --train_batch_size 1 --num_train_epochs 4 \
    --learning_rate 1e-30 --output mixed --quiet >run.log
python3 - <<'PY' || fail "pairs without a reference"
import json
steps = [e for e in map(json.loads, open("mixed/events.jsonl")) if e["event"] == "step"]
assert len(steps) > 40 and all(abs(e["loss"] - 0.6931472) < 1e-5 for e in steps), [e["loss"] for e in steps]
PY
"$TRIREME" train --model model --data pairs.jsonl --task dpo --packing none --sequence_length 128 --train_batch_size 2 --max_steps 3 --output short --quiet >run.log
grep -q 'log-probabilities of 6 pairs took' run.log || fail "a short run asks for all pairs: $(cat run.log)"

# Refusals.
tiny_text text.jsonl
expect 2 "$TRIREME" train --model model --data text.jsonl --task dpo --output no --sequence_length 64
grep -q 'no pairs of answers' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" train --model model --data pairs.jsonl --output no --sequence_length 64
grep -q -- '--task dpo' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" train --model model --data pairs.jsonl --output no --beta 0.2
grep -q 'beta is of preference training' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" train --model model --data pairs.jsonl --task orpo --loss_type hinge --output no
grep -q 'loss_type hinge is not that of task orpo' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" train --model model --data pairs.jsonl --task dpo --packing stream --output no --sequence_length 64
grep -q 'packing stream' stderr || fail "$(cat stderr)"
