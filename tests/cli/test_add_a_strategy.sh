#!/usr/bin/env bash
# docs/guide/add-a-strategy.md is complete: what it says is done in a copy of the sources. The new pass must show in the
# schedule, in the planned bytes, and in no bit of the weights.
. "$(dirname "$0")/common.sh"
build=$(dirname "$TRIREME")
[ -f "$build/build.ninja" ] && [ -f "$build/compile_commands.json" ] || exit 77
page=$source_dir/docs/guide/add-a-strategy.md
mkdir tree
cp -r "$source_dir/src" tree/
python3 "$source_dir/tests/cli/follow.py" "$page" tree "$build" late || fail "$page"

# The new program reduces after the last backward, and only then.
actions() { "$1" plan --model tiny.json --sequence_length 32 --dp 2 --zero "$2" --gradient_accumulation_steps 2 --show schedule | awk '{ print $2 }'; }
bytes() { "$1" plan --model tiny.json --sequence_length 32 --dp 2 --zero "$2" --gradient_accumulation_steps 2 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["total_bytes"])'; }
tiny_model model
for zero in 0 1 2 3; do
    actions "$TRIREME" $zero >before
    actions ./late $zero >after
    [ "$(grep -c reduce before)" -gt 0 ] || fail "zero $zero: nothing is reduced"
    [ "$(grep -nE '^backward' after | tail -n 1 | cut -d: -f1)" -lt "$(grep -n '^reduce' after | head -n 1 | cut -d: -f1)" ] ||
        fail "zero $zero: a reduction stands before the last backward"
    cmp -s <(sort before | uniq -c) <(sort after | uniq -c) || fail "zero $zero: actions were lost or added"
done
(($(bytes ./late 2) > $(bytes "$TRIREME" 2))) || fail "zero 2: gradients that wait take no memory"
(($(bytes ./late 0) == $(bytes "$TRIREME" 0))) || fail "zero 0: gradients that are whole anyway take memory"

tiny_text data.jsonl
train() { # BINARY ZERO OUTPUT
    "$1" launch --nproc-per-node 2 train --model model --data data.jsonl --output "$3" --sequence_length 32 --max_steps 4 \
        --gradient_accumulation_steps 2 --zero "$2" --quiet >log 2>&1 || { cat log; fail "train with zero $2 of $1"; }
}
for zero in 1 2; do
    train "$TRIREME" $zero "before-$zero"
    train ./late $zero "after-$zero"
    same "before-$zero/model.safetensors" "after-$zero/model.safetensors"
    step_lines "before-$zero/events.jsonl" >before.steps
    step_lines "after-$zero/events.jsonl" >after.steps
    same before.steps after.steps
done
