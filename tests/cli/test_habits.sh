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
