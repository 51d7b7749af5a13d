#!/usr/bin/env bash
# Optimizer state on the host (--offload_optimizer cpu): the bits of the run without, on every layout, through resumes in both directions,
# skipped steps and a rank that dies between a fetch and a store; and the plan's bytes.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
run() { # run RANKS OUTPUT ARGUMENTS...
    timeout 120 "$TRIREME" launch --nproc-per-node "$1" train --model model --data train.jsonl --sequence_length 32 \
        --per_device_train_batch_size 2 --train_batch_size 8 --max_steps 4 --save_steps 2 --learning_rate 1e-2 --weight_decay 0.1 \
        --threads 1 --quiet --reproducible layout --output "$2" "${@:3}" >run.log 2>&1
}
alike() { "$TRIREME" ckpt diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(cat diff.log)"; }
offload() { # offload OF RANKS ARGUMENTS...: the same steps with states on the host
    rm -rf there
    run "$2" there --offload_optimizer cpu "${@:3}" || fail "${*:3}: $(cat run.log)"
    alike "$1" there
    [ "$2" != 1 ] || alike "$1/checkpoint-4" there/checkpoint-4 # moments and master weights too
}

run 1 f32
run 1 bf16 --dtype bfloat16
run 1 b8 --dtype bfloat16 --optim adamw_8bit --moment_dtype bfloat16
run 1 f16 --dtype float16
offload f32 1 --recompute block
offload bf16 1 --dtype bfloat16 --offload_share 0.4
offload bf16 2 --dtype bfloat16 --dp 2 --zero 1
offload bf16 2 --dtype bfloat16 --dp 2 --zero 3 --offload_share 0.7
offload b8 2 --dtype bfloat16 --optim adamw_8bit --moment_dtype bfloat16 --pp 2
offload f16 2 --dtype float16 --dp 2 --zero 2

# A resume goes from the host to the device and back, in another layout.
rm -rf there
run 2 host --dtype bfloat16 --offload_optimizer cpu --dp 2 --zero 1 || fail "$(cat run.log)"
run 1 there --dtype bfloat16 --resume_from_checkpoint host/checkpoint-2 || fail "$(cat run.log)"
alike bf16 there
rm -rf there
run 2 there --dtype bfloat16 --resume_from_checkpoint bf16/checkpoint-2 --offload_optimizer cpu --pp 2 || fail "$(cat run.log)"
alike bf16 there

# A rank dies between two copies of step 4. What it had saved is whole, and the run goes on from there.
for point in fetch store; do
    rm -rf there
    TR_FAIL=step.$point:kill:14 run 1 there --dtype bfloat16 --offload_optimizer cpu && fail "TR_FAIL=step.$point did nothing"
    grep -q SIGKILL run.log || fail "it was not killed: $(cat run.log)"
    run 1 there --dtype bfloat16 --offload_optimizer cpu --resume_from_checkpoint || fail "$(cat run.log)"
    alike bf16 there
done

# Updates wait for the next step while a thread writes the checkpoint of this one.
rm -rf there
timeout 120 "$TRIREME" train --model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 --max_steps 40 --save_steps 1 \
    --save_total_limit 1 --threads 1 --quiet --dtype bfloat16 --offload_optimizer cpu --output there >run.log 2>&1 || fail "saves beside steps: $(cat run.log)"

# The plan: what moved to the host is 12 bytes a parameter; what is left on the device is room for three buckets. As little as fits
# moves when the share is auto.
plan() { "$TRIREME" plan --model model --data train.jsonl --sequence_length 32 --dtype bfloat16 "$@"; }
plan --offload_optimizer cpu >plan.log
plan --show schedule --offload_optimizer cpu | grep -q 'fetch .*block.1 .*\[in\]' || fail "no fetch in the schedule"
bytes() { awk -v a="$1" '$1 == a { print $2 }' "$2"; }
plan >all.log
[ "$(bytes host plan.log)" = "$(bytes optim all.log)" ] || fail "$(bytes host plan.log) bytes on the host, $(bytes optim all.log) without offload"
plan --offload_optimizer cpu --offload_share 0.5 >half.log
[ "$(bytes host half.log)" -lt "$(bytes host plan.log)" ] && [ "$(bytes host half.log)" -gt 0 ] || fail "half: $(cat half.log)"
plan --offload_optimizer cpu --offload_share auto --memory_budget 1G >auto.log
[ -z "$(bytes host auto.log)" ] || fail "auto moved what fits: $(cat auto.log)"
large() { "$TRIREME" plan --model llama-3.1-8b --bf16 --device cuda --grad_dtype bfloat16 --recompute block --sequence_length 2048 --per_device_train_batch_size 1 "$@"; }
large --offload_optimizer cpu --offload_share auto --memory_budget 100GiB >auto.log || fail "auto does not fit"
[ "$(bytes host auto.log)" -gt 20000000000 ] && [ "$(bytes host auto.log)" -lt 60000000000 ] || fail "auto: $(cat auto.log)"
expect 2 large --memory_budget 100GiB
grep -q '^  --offload_optimizer cpu: .* of the device and .* of the host' stderr || fail "offload is no remedy: $(cat stderr)"

# Pinned memory that the host refuses: one line with the arena, its bytes and what to do; nothing was trained.
for hit in 1 2 3; do # batches, write buffers, what is offloaded
    rm -rf there
    TR_FAIL=device.pin:error:$hit run 1 there --dtype bfloat16 --offload_optimizer cpu && fail "pinned memory was not refused"
    grep -q 'arena .*: the host (pinned memory) refused .*; offload less (--offload_share), or raise the limit of locked memory' run.log || fail "$(cat run.log)"
    [ -z "$(find there -name '*.safetensors')" ] || fail "weights were written"
done
expect 0 "$TRIREME" plan --model model --data train.jsonl --sequence_length 32 --offload_share 0.5
grep -q 'offload_share has no effect with offload_optimizer none' stderr stdout || fail "$(cat stdout stderr)"
