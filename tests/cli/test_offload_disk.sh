#!/usr/bin/env bash
# Optimizer state and frozen parameters in a file (--offload_optimizer nvme:DIR, --offload_param nvme:DIR): the bits of the run without, through
# resumes, kills, disks that are slow, full, fail or return other bytes; and the plan's bytes.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
mkdir disk
run() { # run RANKS OUTPUT ARGUMENTS...
    timeout 120 "$TRIREME" launch --nproc-per-node "$1" train --model model --data train.jsonl --sequence_length 32 \
        --per_device_train_batch_size 2 --train_batch_size 8 --max_steps 4 --save_steps 2 --learning_rate 1e-2 --weight_decay 0.1 \
        --threads 1 --quiet --reproducible layout --output "$2" "${@:3}" >run.log 2>&1
}
alike() { "$TRIREME" ckpt diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(cat diff.log)"; }
offload() { # offload OF RANKS ARGUMENTS...: the same steps with states in a file
    rm -rf there
    run "$2" there --offload_optimizer "nvme:$PWD/disk" "${@:3}" || fail "${*:3}: $(cat run.log)"
    alike "$1" there
    [ "$2" != 1 ] || alike "$1/checkpoint-4" there/checkpoint-4 # moments and master weights too
    [ -z "$(ls disk)" ] || fail "a file is left: $(ls disk)"
}
run 1 f32
run 1 bf16 --dtype bfloat16
run 1 b8 --dtype bfloat16 --optim adamw_8bit --moment_dtype bfloat16
run 1 f16 --dtype float16
offload f32 1 --recompute block
offload bf16 1 --dtype bfloat16 --offload_share 0.4
offload bf16 2 --dtype bfloat16 --dp 2 --zero 1
offload bf16 2 --dtype bfloat16 --dp 2 --zero 3
offload b8 2 --dtype bfloat16 --optim adamw_8bit --moment_dtype bfloat16 --pp 2
offload f16 2 --dtype float16 --dp 2 --zero 2
TR_FAIL=offload.ring:error:1,offload.ring:error:2 offload bf16 1 --dtype bfloat16 # without io_uring
TR_FAIL=offload.read:delay30:9,offload.write:delay60:5 offload bf16 1 --dtype bfloat16

# A resume goes from the disk to the device and back.
rm -rf there
run 2 host --dtype bfloat16 --offload_optimizer "nvme:$PWD/disk" --dp 2 --zero 1 || fail "$(cat run.log)"
run 1 there --dtype bfloat16 --resume_from_checkpoint host/checkpoint-2 || fail "$(cat run.log)"
alike bf16 there
offload bf16 1 --dtype bfloat16 --resume_from_checkpoint bf16/checkpoint-2
offload bf16 2 --dtype bfloat16 --resume_from_checkpoint bf16/checkpoint-2 --pp 2

# A rank dies, or its disk fails, between two jobs of step 4. What it had saved is whole, and the run goes on from there.
for point in read:kill write:kill read:error write:error; do
    rm -rf there
    TR_FAIL=offload.$point:14 run 1 there --dtype bfloat16 --offload_optimizer "nvme:$PWD/disk" && fail "TR_FAIL=offload.$point did nothing"
    grep -qE 'SIGKILL|failpoint offload' run.log || fail "$point: $(cat run.log)"
    [ -z "$(ls disk)" ] || fail "a file is left: $(ls disk)"
    run 1 there --dtype bfloat16 --offload_optimizer "nvme:$PWD/disk" --resume_from_checkpoint || fail "$(cat run.log)"
    alike bf16 there
done
# One that fails while a checkpoint waits for the updates behind it: they are half done, so the run ends there too, and writes no model of them.
for hit in 4 7 8 9; do
    rm -rf there
    TR_FAIL=offload.write:error:$hit run 1 there --dtype bfloat16 --offload_optimizer "nvme:$PWD/disk" && fail "a write that failed ($hit) changed nothing"
    grep -q 'bug at' run.log && fail "hit $hit: $(cat run.log)"
    grep -q 'failpoint offload.write' run.log && [ ! -e there/model.safetensors ] || fail "hit $hit: $(ls there) $(cat run.log)"
    run 1 there --dtype bfloat16 --offload_optimizer "nvme:$PWD/disk" --resume auto || fail "$(cat run.log)"
    alike bf16 there
done
# And no other rank waits for it in a gather of what the update made.
rm -rf there
TR_FAIL=step.store:error:6:0 run 2 there --dtype bfloat16 --dp 2 --zero 1 --offload_optimizer "nvme:$PWD/disk" && fail "a store that failed changed nothing"
grep -q 'failpoint step.store' run.log && ! grep -q 'in checkpoint' run.log || fail "$(cat run.log)"
rm -rf there
TR_FAIL=offload.open:error run 1 there --offload_optimizer "nvme:$PWD/disk" && fail "a full disk was not refused"
grep -q 'does not fit: a rank needs .* in .*/disk, where .* are free' run.log || fail "a full disk: $(cat run.log)"
run 1 there --offload_optimizer "nvme:$PWD/nowhere" && fail "a directory that is not there was not refused"
grep -q 'nowhere: No such file or directory; it must be a directory of a local disk' run.log || fail "no directory: $(cat run.log)"
TR_FAIL=offload.rot:error:9 run 1 there --offload_optimizer "nvme:$PWD/disk" && fail "other bytes were not seen"
grep -q 'the disk returns other bytes than were written' run.log || fail "other bytes: $(cat run.log)"

mkdir other
run 1 there --lora_r 4 --offload_optimizer "nvme:$PWD/disk" --offload_param "nvme:$PWD/other" && fail "two directories were taken"
grep -q 'a rank has one file; name one directory' run.log || fail "two directories: $(cat run.log)"

# Frozen parameters: an adapter, its base in 16 bits and packed.
lora() { run 1 "$1" --dtype bfloat16 --lora_r 4 --lora_target_modules all-linear "${@:2}" || fail "$*: $(cat run.log)"; }
lora lora
lora lora-disk --offload_param "nvme:$PWD/disk" --offload_optimizer "nvme:$PWD/disk" --eval_data train.jsonl --eval_steps 2 --eval_strategy steps
"$TRIREME" ckpt diff lora lora-disk >diff.log || fail "lora: $(cat diff.log)"
lora packed --load_in_4bit
lora packed-disk --load_in_4bit --offload_param "nvme:$PWD/disk" --offload_share 0.6
"$TRIREME" ckpt diff packed packed-disk >diff.log || fail "packed: $(cat diff.log)"

# Parameters that learn never live in a file: with their states on the host they stay on the device.
rm -rf there
run 1 there --dtype bfloat16 --offload_optimizer cpu --offload_param "nvme:$PWD/disk" || fail "$(cat run.log)"
alike bf16 there

# The plan counts the file as disk, and not as memory.
plan() { "$TRIREME" plan --model model --data train.jsonl --sequence_length 32 --dtype bfloat16 "$@"; }
bytes() { awk -v a="$1" '$1 == a { print $2 }' "$2"; }
plan >all.log
plan --offload_optimizer "nvme:$PWD/disk" >plan.log
[ "$(bytes disk plan.log)" -ge "$(bytes optim all.log)" ] || fail "$(bytes disk plan.log) bytes on the disk, $(bytes optim all.log) without"
sum() { awk '$1 ~ /^(params|grads|optim|acts|work|cache|data|save|staging|host)$/ { s += $2 } END { print s }' "$1"; }
[ "$(bytes total plan.log)" = "$(sum plan.log)" ] || fail "total $(bytes total plan.log), memory $(sum plan.log)"
