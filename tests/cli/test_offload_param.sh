#!/usr/bin/env bash
# Frozen parameters on the host (--offload_param cpu): the bits of the run without, packed or not, on every layout that has it, with an
# evaluation between steps, through resumes in both directions and a rank that dies between two copies; and the plan's bytes.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
run() { # run RANKS OUTPUT ARGUMENTS...
    timeout 120 "$TRIREME" launch --nproc-per-node "$1" train --model model --data train.jsonl --sequence_length 32 \
        --per_device_train_batch_size 2 --train_batch_size 8 --max_steps 4 --save_steps 2 --learning_rate 1e-2 \
        --threads 1 --quiet --reproducible layout --output "$2" "${@:3}" >run.log 2>&1
}
alike() { "$TRIREME" ckpt diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(cat diff.log)"; }
stream() { # stream OF RANKS ARGUMENTS...: the same steps with frozen parameters on the host
    rm -rf there
    run "$2" there --offload_param cpu "${@:3}" || fail "${*:3}: $(cat run.log)"
    alike "$1" there
}

lora=(--dtype bfloat16 --finetuning_type lora --lora_r 4)
nf4=("${lora[@]}" --load_in_4bit)
run 1 lora "${lora[@]}" --eval_data train.jsonl --eval_steps 2 || fail "$(cat run.log)"
run 1 nf4 "${nf4[@]}" || fail "$(cat run.log)"
run 1 part --trainable '*.1.*' || fail "$(cat run.log)"
stream lora 1 "${lora[@]}" --eval_data train.jsonl --eval_steps 2
for run in lora there; do step_lines $run/events.jsonl >$run.steps; done
same lora.steps there.steps # losses of the evaluation too
stream lora 2 "${lora[@]}" --pp 2 --offload_share 0.5
stream lora 2 "${lora[@]}" --dp 2 --zero 1 --offload_optimizer cpu
stream nf4 1 "${nf4[@]}" --recompute block
stream nf4 2 "${nf4[@]}" --dp 2 --zero 2
stream part 2 --trainable '*.1.*' --dp 2

# A resume goes from the host to the device and back.
rm -rf there
run 1 there "${nf4[@]}" --resume_from_checkpoint nf4/checkpoint-2 --offload_param cpu || fail "$(cat run.log)"
alike nf4 there
rm -rf host there
run 1 host "${nf4[@]}" --offload_param cpu || fail "$(cat run.log)"
run 1 there "${nf4[@]}" --resume_from_checkpoint host/checkpoint-2 || fail "$(cat run.log)"
alike nf4 there

# A rank dies in front of a copy. What it had saved is whole, and the run goes on from there.
rm -rf there
TR_FAIL=step.bring:kill:160 run 1 there "${nf4[@]}" --offload_param cpu && fail "TR_FAIL=step.bring did nothing"
grep -q SIGKILL run.log && [ ! -e there/checkpoint-4 ] || fail "it was not killed: $(cat run.log)"
run 1 there "${nf4[@]}" --offload_param cpu --resume_from_checkpoint || fail "$(cat run.log)"
alike nf4 there

# The plan: what is frozen moves to the host, and slots for a few segments are left.
bytes() { awk -v a="$1" '$1 == a { print $2 }' "$2"; }
large() { "$TRIREME" plan --model llama-3.1-8b --bf16 --machine H200 --recompute block --sequence_length 4096 --lora_r 16 --load_in_4bit "$@"; }
large >all.log
large --offload_param cpu >host.log
moved=$(bytes host host.log) all=$(bytes params all.log) left=$(bytes params host.log)
[ "$moved" -gt 5000000000 ] && [ "$((all - moved))" -lt "$left" ] && [ "$left" -lt 2500000000 ] || fail "host $moved, device $all, then $left"
large --offload_param cpu --offload_share 0.5 >half.log
[ "$(bytes host half.log)" -lt "$moved" ] && [ "$(bytes host half.log)" -gt "$((moved / 3))" ] || fail "half: $(bytes host half.log) of $moved"
large --offload_param cpu --offload_share auto --memory_budget 100GiB >auto.log
[ -z "$(bytes host auto.log)" ] || fail "auto moved what fits"
large --show schedule --offload_param cpu >schedule.log
grep -q 'bring .*block.1 packed .*\[in\]' schedule.log || fail "no copy in the schedule"

# What it does not do is said.
expect 2 "$TRIREME" plan --model model --data train.jsonl --sequence_length 32 --lora_r 4 --dp 2 --zero 3 --offload_param cpu
grep -q 'offload_param cpu with zero 3: ranks share the parameters already' stderr || fail "$(cat stderr)"
expect 0 "$TRIREME" plan --model model --data train.jsonl --sequence_length 32 --offload_param cpu
grep -q 'offload_param has no effect with finetuning_type full' stderr stdout || fail "$(cat stdout stderr)"
