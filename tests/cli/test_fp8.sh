#!/usr/bin/env bash
# --fp8_scaling delayed: what the last steps found is in the checkpoint, so that a run that was cut goes on with the same bits, and
# it does not depend on the layout. The options are refused without --fp8.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 4 --per_device_train_batch_size 2 --max_steps 4
    --learning_rate 1e-2 --threads 1 --data_proof none --quiet --reproducible layout --fp8_gradient e5m2 --fp8_scaling delayed)
expect 0 "$TRIREME" train "${options[@]}" --fp8 --save_steps 2 --output whole
expect 0 "$TRIREME" train "${options[@]}" --fp8 --output cut --resume_from_checkpoint whole/checkpoint-2
same whole/model.safetensors cut/model.safetensors
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --fp8 --output two
same whole/model.safetensors two/model.safetensors
python3 -c 'import json
p = json.load(open("whole/checkpoint-2/trireme/state.json"))["fp8_past"]
assert p["steps"] == 2 and len(p["largest"]) % 16 == 0 and max(p["largest"]) > 0, p' || fail "no past in the checkpoint"
expect 2 "$TRIREME" train "${options[@]}" --fp8 --fp8_scaling current --output no --resume_from_checkpoint whole/checkpoint-2
grep -q 'fp8_scaling was "delayed", is "current"' stderr || fail "not said: $(cat stderr)"
expect 2 "$TRIREME" train "${options[@]}" --output no
grep -q 'fp8_gradient and fp8_scaling are for --fp8' stderr || fail "not said: $(cat stderr)"
