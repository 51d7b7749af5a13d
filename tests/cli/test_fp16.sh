#!/usr/bin/env bash
# --fp16: the loss scale is in every step's event and in the checkpoint; an overflow leaves out one update on all ranks, is no
# fault and costs no budget; a run that was cut goes on with the same bits.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 2
    --max_steps 6 --learning_rate 1e-2 --threads 1 --data_proof none --fp16 --nonfinite stop)
scales() { python3 -c 'import json, sys
e = [json.loads(l) for l in open(sys.argv[1] + "/events.jsonl")]
print(*("%d" % x["loss_scale"] for x in e if x["event"] == "step"), sum(x["event"] == "fault" and x["action"] != "goes on" for x in e))' "$1"; }

# A rank runs four segments back for each of two micro-batches: hit 18 is step 3. The gradient of rank 1 is lost there.
lost=exec.lose_gradient:error:18:1
TR_FAIL=$lost expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output lost --replica_check_steps 1
[ "$(scales lost)" = "65536 65536 65536 32768 32768 32768 0" ] || fail "scales and faults: $(scales lost)"
grep -q 'step 3: gradients overflow float16: no update, loss scale now 32768' stdout || fail "not said: $(cat stdout)"

# Cut after the overflow and gone on with: the same scale, the same bits.
one=(--per_device_train_batch_size 4 --save_steps 2 --quiet)
TR_FAIL=exec.lose_gradient:error:10 expect 0 "$TRIREME" train "${options[@]}" "${one[@]}" --output whole
[ "$(scales whole)" = "65536 65536 32768 32768 32768 32768 0" ] || fail "scales and faults: $(scales whole)"
expect 0 "$TRIREME" ckpt show whole/checkpoint-2
grep -q 'loss_scale  *{"scale":32768,"good_steps":0,"skipped":1}' stdout || fail "no scaler: $(cat stdout)"
expect 0 "$TRIREME" train "${options[@]}" "${one[@]}" --output cut --resume_from_checkpoint whole/checkpoint-2
same whole/model.safetensors cut/model.safetensors
[ "$(scales cut)" = "32768 32768 32768 32768 0" ] || fail "scales and faults: $(scales cut)"

# What float16 cannot hold is refused.
expect 2 "$TRIREME" train "${options[@]}" --output no --moment_dtype bfloat16
grep -q 'dtype float16 keeps master_dtype, grad_dtype and moment_dtype in float32' stderr || fail "not said: $(cat stderr)"
expect 0 "$TRIREME" eval --model whole --data train.jsonl --sequence_length 32 --fp16 --json
