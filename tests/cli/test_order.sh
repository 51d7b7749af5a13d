#!/usr/bin/env bash
# The order of training: sequential rows are the records as they lie in the files, in every epoch, on every layout, after a
# resume too; what would change their order is refused.
. "$(dirname "$0")/common.sh"
. "$source_dir/tests/cli/preference.sh"
preference_model model
python3 - 20 >a.jsonl <<'PY'
import json
for i in range(20):
    print(json.dumps({"prompt": f"<{i}>", "completion": "x" * (1 + i * 7 % 11)}))
PY
python3 - >b.jsonl <<'PY'
import json
for i in range(20, 30):
    print(json.dumps({"prompt": f"<{i}>", "completion": "y" * (1 + i * 5 % 13)}))
PY
options=(--model model --data a.jsonl --data b.jsonl --sequence_length 32 --train_batch_size 4 --num_train_epochs 2 --learning_rate 1e-3 --quiet
    --threads 1 --train_sampling_strategy sequential)
order() { # RUN: the records of all steps
    local step
    for step in $(seq 1 15); do
        "$TRIREME" data show "$1" --step "$step" | grep -o '<[0-9]*>' | tr -d '<>'
    done
}
"$TRIREME" train "${options[@]}" --per_device_train_batch_size 4 --output one >run.log
order one >one.txt
(seq 0 29 && seq 0 29) | cmp - one.txt || fail "the order is not that of the files: $(tr '\n' ' ' <one.txt)"
timeout 120 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero 2 --per_device_train_batch_size 1 --output two >run.log 2>&1 || fail "$(cat run.log)"
order two | cmp - one.txt || fail "the order of two ranks"
TR_FAIL=train.before_step:kill:6 bash -c '"$@"' - "$TRIREME" train "${options[@]}" --per_device_train_batch_size 4 --save_steps 2 --output cut >run.log 2>&1 && fail "not killed"
expect 2 "$TRIREME" train "${options[@]}" --save_steps 2 --output cut --resume auto --train_sampling_strategy random
grep -q 'train_sampling_strategy was' stderr || fail "$(cat stderr)"
"$TRIREME" train "${options[@]}" --per_device_train_batch_size 4 --save_steps 2 --output cut --resume auto >run.log
same one/model.safetensors cut/model.safetensors
"$TRIREME" train "${options[@]}" --train_sampling_strategy random --packing none --per_device_train_batch_size 4 --output random >run.log
order random | cmp -s - one.txt && fail "random is sequential"
order random | sort -n | uniq -c | awk '$1 != 2 { exit 1 }' || fail "random has other records"

refuse() { # TEXT OPTIONS...
    local text=$1
    shift
    expect 2 "$TRIREME" train "${options[@]}" --output no "$@"
    grep -q "$text" stderr || fail "not '$text': $(cat stderr)"
}
refuse 'packing bestfit orders records by their length' --packing bestfit
refuse 'eval_split draws rows at random' --eval_split 0.2
refuse 'streaming true reads files in turns' --streaming true --max_steps 5
