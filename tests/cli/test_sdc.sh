#!/usr/bin/env bash
# Silent corruption: a bit that flips in a reduction (D5) is found with --sdc_check wherever it flips, and the rank is named; the
# check changes no bit. A rank whose arithmetic differs, or rounds otherwise, is refused before step 0 (D8).
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 12 --per_device_train_batch_size 2 --max_steps 3
    --learning_rate 1e-2 --threads 1 --data_proof none --quiet --save_steps 0)
run3=("$TRIREME" launch --nproc-per-node 3 train "${options[@]}")
for layout in '--zero 0' '--zero 1' '--zero 3' '--zero 0 --grad_dtype bfloat16' '--zero 2 --reduce_dtype bfloat16'; do
    rm -rf plain checked
    expect 0 "${run3[@]}" $layout --output plain
    expect 0 "${run3[@]}" $layout --output checked --sdc_check
    same plain/model.safetensors checked/model.safetensors
done
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --tp 2 --output tp
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --tp 2 --output tp-checked --sdc_check
same tp/model.safetensors tp-checked/model.safetensors

# flipped POINT HIT RANK WORDS OPTIONS...: found at once by the rank that looks, told by all.
flipped() {
    local point=$1 hit=$2 rank=$3 words=$4
    shift 4
    rm -rf flip
    TR_FAIL=comm.flip_$point:error:$hit:$rank expect 75 "${run3[@]}" "$@" --output flip --sdc_check
    cat flip/logs/*.log stderr >all
    grep -q "a bit flipped $words" all || fail "$point on rank $rank, $*: $(cat all)"
}
for hit in 1 3 7; do
    flipped received $hit 1 'on the way from rank 0 of 3, seen by rank 1'
    flipped sum $hit 2 'in the sum of rank 2 of 3, seen by rank 2'
    flipped result $hit 0 'in the result of rank 0 of 3, seen by rank 0'
done
flipped received 2 2 'on the way from rank 0 of 3, seen by rank 2' --zero 2
flipped sum 2 0 'in the sum of rank 0 of 3' --zero 3
flipped sum 2 1 'in the sum of rank 1 of 3' --reduce_dtype bfloat16
flipped received 2 1 'on the way from rank 0 of 3' --zero 2 --reduce_dtype bfloat16
TR_FAIL=train.other_cpu:error:1:1 expect 2 "${run3[@]}" --output other
grep -q 'ranks disagree on arithmetic (self-test)' stderr || fail "not said: $(cat stderr)"
TR_FAIL=train.rounding:error:1:0 expect 2 "$TRIREME" train "${options[@]}" --output refused
grep -q 'does not round to nearest' stderr || fail "not said: $(cat stderr)"
[ ! -e refused ] || fail "a refused run wrote $(ls refused)"
