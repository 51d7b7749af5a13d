#!/usr/bin/env bash
# The Trainer's habits: evaluations and checkpoints by steps, shares of the run and epochs, the best model at the end, and early stopping.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --eval_split 0.2 --sequence_length 32 --train_batch_size 4 --learning_rate 1e-2 --quiet)
run() { "$TRIREME" train "${options[@]}" "$@" >run.log 2>run.err || fail "$(cat run.err)"; }
events() { # DIR EXPRESSION over e, the list of events; saves and evals are the steps of theirs, rows those of an epoch
    python3 -c "
import json, math
e = [json.loads(l) for l in open('$1/events.jsonl')]
saves = [x['step'] for x in e if x['event'] == 'checkpoint']
evals = [x['step'] for x in e if x['event'] == 'eval']
assert $2, (saves, evals, [x for x in e if x['event'] not in ('step', 'plan')])" || fail "$1: $2"
}

# An epoch ends in the step that reads its last row.
run --output epochs --num_train_epochs 3 --save_strategy epoch --eval_strategy epoch --eval_on_start --eval_delay 2
steps=$(python3 -c "import json; print([json.loads(l) for l in open('epochs/events.jsonl')][-1]['steps'])")
events epochs "len(saves) == 3 and saves[-1] == $steps and evals[0] == 0 and evals[1:] == saves[1:]"

# A number below 1 is a share of the run, rounded up.
run --output shares --max_steps 10 --save_steps 0.25 --eval_steps 0.5
events shares "saves == [3, 6, 9, 10] and evals == [5, 10]"
run --output never --max_steps 4 --save_strategy no --eval_strategy no
events never "saves == [4] and evals == []"

# A rate that is far too high from some step on: the best evaluation is not the last, and its checkpoint becomes the model.
spoil=(--max_steps 12 --eval_steps 1 --lr_scheduler_type constant_with_warmup --warmup_steps 1000 --learning_rate 60)
run --output best "${spoil[@]}" --save_strategy best --save_total_limit 2 --load_best_model_at_end
best=$(python3 -c "
import json
e = [json.loads(l) for l in open('best/events.jsonl')]
loss = {x['step']: x['loss'] for x in e if x['event'] == 'eval'}
print(min(loss, key=loss.get))")
[ "$best" -lt 12 ] || fail "the last evaluation is the best: this run tests nothing"
same best/model.safetensors "best/checkpoint-$best/model.safetensors"
cmp -s best/model.safetensors best/checkpoint-12/model.safetensors && fail "the best model is the last one"

# Early stopping ends after two evaluations that are no better; a run that is killed and resumed ends at the same step, with the same bits.
run --output early "${spoil[@]}" --save_steps 2 --early_stopping_patience 2
events early "evals[-1] == $best + 2 and [x['step'] for x in e if x['event'] == 'early_stop'] == [$best + 2] and [x['status'] for x in e if x['event'] == 'end'] == ['done']"
TR_FAIL=train.before_step:kill:$((best + 2)) "$TRIREME" train "${options[@]}" "${spoil[@]}" --save_steps 2 --early_stopping_patience 2 --output again \
    >/dev/null 2>&1 && fail "was not killed"
run --output again "${spoil[@]}" --save_steps 2 --early_stopping_patience 2 --resume
same early/model.safetensors again/model.safetensors
run --output again "${spoil[@]}" --save_steps 2 --early_stopping_patience 2 --resume # an early end is an end
same early/model.safetensors again/model.safetensors

# Requests that cannot be met are refused before anything is written.
refused() { # TEXT OPTION...
    local text=$1
    shift
    expect 2 "$TRIREME" train --model model --data train.jsonl --sequence_length 32 --max_steps 4 --output none "$@"
    grep -q "$text" stderr || fail "$* said: $(cat stderr)"
}
refused 'early_stopping_patience needs eval_data or eval_split' --early_stopping_patience 2
refused 'load_best_model_at_end needs checkpoints that are evaluated' --eval_split 0.2 --load_best_model_at_end --eval_steps 3 --save_steps 4
refused 'eval_steps 2.5 is neither' --eval_split 0.2 --eval_steps 2.5
[ ! -e none ] || fail "a refused run wrote something"

# A run becomes longer: said where the steps that were made keep their rates, refused where they would have had others. The bits are those of a run that was so long from the start.
wsd=(--lr_scheduler_type wsd --warmup_steps 2 --decay_steps 3 --save_steps 4)
run --output long "${wsd[@]}" --max_steps 16
run --output grown "${wsd[@]}" --max_steps 12
rm -rf grown/checkpoint-12
"$TRIREME" train "${options[@]}" "${wsd[@]}" --output grown --max_steps 16 --resume >run.log 2>run.err || fail "$(cat run.err)"
grep -q 'the run was to have 12 steps and has 16 now; the learning rates so far are the same' run.log run.err || fail "$(cat run.log run.err)"
same long/model.safetensors grown/model.safetensors
run --output linear --max_steps 12 --save_steps 4
expect 2 "$TRIREME" train "${options[@]}" --output linear --max_steps 16 --save_steps 4 --resume
grep -q 'schedule_steps was 12, is 16' stderr || fail "$(cat stderr)"
run --output linear --max_steps 16 --save_steps 4 --resume --allow_change schedule_steps

# Checkpoints of the model alone: no optimizer state, the same weights, the best of them at the end, and no resume.
run --output whole --max_steps 6 --save_steps 2 --eval_steps 2 --load_best_model_at_end
run --output alone --max_steps 6 --save_steps 2 --eval_steps 2 --load_best_model_at_end --save_only_model
[ -e whole/checkpoint-4/trireme/optim-0000-of-0001.safetensors ] || fail "no optimizer state: this tests nothing"
[ -z "$(find alone -name 'optim-*')" ] || fail "save_only_model saved the optimizer: $(find alone -name 'optim-*')"
same whole/checkpoint-4/model.safetensors alone/checkpoint-4/model.safetensors
same whole/model.safetensors alone/model.safetensors
"$TRIREME" ckpt verify alone/checkpoint-4 >/dev/null || fail "the checkpoint does not verify"
expect 2 "$TRIREME" train "${options[@]}" --output alone --max_steps 8 --resume
grep -q 'was saved with save_only_model' stderr || fail "$(cat stderr)"

# The first records of each source, of training and of evaluation.
run --output few --max_steps 2 --max_samples 7 --eval_data train.jsonl --max_eval_samples 3 --eval_split 0
"$TRIREME" data check --model model --data train.jsonl --max_samples 7 --json >few.json
python3 -c "import json; d = json.load(open('few.json')); assert d['documents'] == 7, d" || fail "$(cat few.json)"
python3 - <<'PY' || fail "max_eval_samples"
import json
tokens = sum(len(json.loads(l)["text"]) for l in list(open("train.jsonl"))[:3])
e = [json.loads(l) for l in open("few/events.jsonl")]
assert [x["tokens"] for x in e if x["event"] == "eval"] == [tokens], tokens
PY
for slice in 7 9; do
    "$TRIREME" data check --model model --data "train.jsonl#[:$slice]" --max_samples $((16 - slice)) --json >few.json
    python3 -c "import json; d = json.load(open('few.json')); assert d['documents'] == 7, d" || fail "$(cat few.json)"
done
refused 'train.jsonl#\[9:\] has a slice already' --data 'train.jsonl#[9:]' --max_samples 3

# Named sets: each has the loss that it has alone; the one that is named chooses the best step.
head -20 train.jsonl >first.jsonl
tail -20 train.jsonl | tr a-y b-z | sed 's/"ufyu"/"text"/' >other.jsonl
sets=(--max_steps 6 --eval_steps 2 --eval_split 0 --save_steps 2)
run --output sets "${sets[@]}" --eval_data first=first.jsonl --eval_data '{"path": "other.jsonl", "name": "other"}' --metric_for_best_model eval_other_loss --load_best_model_at_end
for set in first other; do run --output "alone-$set" "${sets[@]}" --eval_data $set.jsonl; done
run --output joined "${sets[@]}" --eval_data both=first.jsonl --eval_data both=other.jsonl
cp -r sets mixed
rm -rf mixed/checkpoint-4 mixed/checkpoint-6
run --output mixed "${sets[@]}" --eval_data first=first.jsonl --eval_data other=other.jsonl --metric_for_best_model other_loss --resume
python3 - <<'PY' || fail "named sets"
import json
def evals(dir, name=None):
    e = [json.loads(l) for l in open(dir + "/events.jsonl")]
    return {x["step"]: x["loss"] for x in e if x["event"] == "eval" and x.get("set") == name}
first, other = evals("sets", "first"), evals("sets", "other")
assert first == evals("alone-first") and other == evals("alone-other") and sorted(first) == [2, 4, 6] and first != other, (first, other)
assert not evals("sets") and sorted(evals("joined", "both")) == [2, 4, 6]
assert evals("mixed", "first") == first and evals("mixed", "other") == other
state = json.load(open("sets/checkpoint-6/trainer_state.json"))
names = {k for x in state["log_history"] for k in x if k.startswith("eval_")}
assert names == {"eval_first_loss", "eval_other_loss"}, names
best = [x for x in map(json.loads, open("sets/events.jsonl")) if x["event"] == "eval" and x["best_of"]]
assert {x["set"] for x in best} == {"other"}
kept = json.load(open("sets/checkpoint-6/trireme/state.json"))["best"]
assert kept["loss"] in other.values() and kept["loss"] not in first.values() and kept["step"] in other, (kept, other)
PY
refused 'first.jsonl has a name and other.jsonl has none' --eval_data first=first.jsonl --eval_data other.jsonl
refused 'metric_for_best_model eval_third_loss: there is no such metric' --eval_data first=first.jsonl --metric_for_best_model eval_third_loss
refused 'is not of letters' --eval_data '{"path": "first.jsonl", "name": "a b"}'

# Lines of the log as a share; trainer_state.json says which checkpoint is the best, and by what.
run --output lines --max_steps 9 --logging_steps 0.25 --eval_steps 3 --save_steps 3
python3 - <<'PY' || fail "trainer_state.json"
import json
state = json.load(open("lines/checkpoint-9/trainer_state.json"))
assert state["logging_steps"] == 3 and [x["step"] for x in state["log_history"] if "loss" in x] == [3, 6, 9], state
evals = {x["step"]: x["eval_loss"] for x in state["log_history"] if "eval_loss" in x}
best = min(evals, key=evals.get)
assert state["best_global_step"] == best and abs(state["best_metric"] - evals[best]) < 1e-8, state
assert state["best_model_checkpoint"].endswith(f"lines/checkpoint-{best}"), state
PY
refused 'logging_steps 2.5 is neither' --logging_steps 2.5

# The best by a metric of which the largest is the best: choices, also without a loss, and rewards. The first of equal ones stays.
echo '{"context": "Line", "choices": ["7: three banks", "zzzzzzzzzzzzzzz"], "gold": 0}' >items.jsonl
echo '{"context": "Line", "choices": ["q", "7: three banks of oars"], "gold": 1}' >>items.jsonl
run --output acc --eval_split 0 --eval_choices items.jsonl --metric_for_best_model acc --load_best_model_at_end --max_steps 8 --eval_steps 2 --save_steps 2 --early_stopping_patience 3
for i in 1 2 3 4 5 6 7 8; do echo "{\"prompt\": \"$i is\", \"chosen\": \" small\", \"rejected\": \" large, very $i\"}"; done >pairs.jsonl
"$TRIREME" train --model model --data pairs.jsonl --eval_data pairs.jsonl --output margin --task dpo --sequence_length 64 --train_batch_size 4 --max_steps 8 --eval_steps 2 --save_steps 2 \
    --learning_rate 1e-2 --lr_scheduler_type constant --metric_for_best_model eval_rewards/margins --load_best_model_at_end --quiet >run.log 2>&1 || fail "$(cat run.log)"
python3 - <<'PY' || fail "metrics of which the largest is the best"
import json
def of(dir, value):
    e = [json.loads(l) for l in open(dir + "/events.jsonl")]
    seen = {x["step"]: value(x) for x in e if x["event"] == "eval"}
    state = json.load(open(f"{dir}/checkpoint-{max(seen)}/trainer_state.json"))
    best = max(seen, key=seen.get)  # the first of equal ones
    assert state["best_global_step"] == best and abs(state["best_metric"] - seen[best]) < 1e-7, (seen, state["best_metric"], state["best_global_step"])
    return seen, best
seen, best = of("acc", lambda x: x["acc"])
assert max(seen) == best + 6 or max(seen) == 8, seen
seen, best = of("margin", lambda x: x["rewards_margin"])
assert seen[best] > seen[2], seen
PY
refused 'this run does not measure it' --eval_split 0.2 --metric_for_best_model eval_acc --load_best_model_at_end --eval_steps 2 --save_steps 2
refused 'this run does not measure it' --eval_split 0.2 --metric_for_best_model eval_rewards/margins

# grad_norms.jsonl of a run that was killed and resumed has each step once.
TR_FAIL=train.before_step:kill:6 "$TRIREME" train "${options[@]}" --output norms --max_steps 8 --save_steps 3 --grad_norm_steps 1 >/dev/null 2>&1 && fail "was not killed"
printf '{"step":6,"no' >>norms/grad_norms.jsonl
run --output norms --max_steps 8 --save_steps 3 --grad_norm_steps 1 --resume
[ "$(sed 's/.*"step":\([0-9]*\).*/\1/' norms/grad_norms.jsonl | tr '\n' ' ')" = "1 2 3 4 5 6 7 8 " ] || fail "$(cut -c1-20 norms/grad_norms.jsonl)"

# It takes no memory of its size: half a gigabyte without an end of line.
cp norms/grad_norms.jsonl norms.jsonl
truncate -s 512M norms/grad_norms.jsonl
python3 - "$TRIREME" train "${options[@]}" --output norms --max_steps 8 --save_steps 3 --grad_norm_steps 1 --resume <<'PY' || fail "memory of a grad_norms.jsonl"
import resource, subprocess, sys
assert subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode == 0
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
assert most < 256 << 10, f"{most} KiB"
PY
same norms.jsonl norms/grad_norms.jsonl

# The loader alone.
expect 0 "$TRIREME" bench data --model model --data train.jsonl --sequence_length 32 --seconds 0.1 --output bench --json
python3 -c "import json; b = json.load(open('stdout')); assert b['rows'] > 90 and b['steps'] > 1 and abs(b['tokens_per_s'] / b['rows_per_s'] - 32) < 0.1, b" ||
    fail "$(cat stdout)"
expect 2 "$TRIREME" bench data --model model
grep -q 'bench data needs --model DIR' stderr || fail "$(cat stderr)"
