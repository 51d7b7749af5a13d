#!/usr/bin/env bash
# Kinds of adapters, from outside: DoRA, LoRA+ and adapted embeddings train to the same adapter on one rank and on several, go
# on from a directory, and merge; what is not built is refused before anything is written.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--data train.jsonl --sequence_length 32 --per_device_train_batch_size 1 --train_batch_size 4 --max_steps 6 --learning_rate 1e-2
    --threads 1 --quiet)
dora=(--model model --lora_r 4 --use_dora --lora_target_modules q_proj,k_proj,o_proj,down_proj --loraplus_lr_ratio 8)
embedding=(--model model --lora_r 4 --lora_target_modules embed_tokens,v_proj)
losses() { python3 - "$@" <<'PY'
import json, sys
def read(d):
    return [json.loads(l)["loss"] for l in open(d + "/events.jsonl") if json.loads(l)["event"] == "step"]
a, b = read(sys.argv[1]), read(sys.argv[2])
assert len(a) == len(b) == 6 and all(abs(x - y) <= 1e-5 * x for x, y in zip(a, b)), (a, b)
assert a[-1] < a[0], a
PY
}
launch() { timeout 120 "$TRIREME" launch --nproc-per-node "$1" train "${options[@]}" "${@:2}" >run.log 2>&1 || { cat run.log; fail "$*"; }; }
loss() { "$TRIREME" eval --data train.jsonl --sequence_length 32 --json "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])'; }

# One rank, the tensor axis, and the same bits on another layout.
"$TRIREME" train "${options[@]}" "${dora[@]}" --reproducible layout --output one >run.log
launch 2 "${dora[@]}" --tp 2 --sp --output tp
losses one tp || fail "tp 2 trains another adapter"
launch 2 "${dora[@]}" --reproducible layout --dp 2 --zero 3 --output zero
same one/adapter_model.safetensors zero/adapter_model.safetensors
"$TRIREME" train "${options[@]}" "${embedding[@]}" --output emb >run.log
launch 2 "${embedding[@]}" --tp 2 --output embtp
losses emb embtp || fail "tp 2 trains another embedding"
"$TRIREME" train "${options[@]}" "${embedding[@]}" --use_dora --output emd >run.log
launch 2 "${embedding[@]}" --use_dora --tp 2 --sp --output emdtp
losses emd emdtp || fail "tp 2 trains other magnitudes of the embedding"

# The head, which is the embedding's matrix here: one rank and a split vocabulary; merged it needs a matrix of its own.
head=(--model model --lora_r 4 --lora_target_modules v_proj,lm_head)
"$TRIREME" train "${options[@]}" "${head[@]}" --output head >run.log
launch 2 "${head[@]}" --tp 2 --sp --output headtp
losses head headtp || fail "tp 2 trains another head"
expect 2 "$TRIREME" ckpt merge head --onto original --out headmerged
"$TRIREME" ckpt merge head --onto original --untie --out headmerged >run.log
python3 -c 'import sys; a, b = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= 1e-5 * a)' "$(loss --model head)" "$(loss --model headmerged)" ||
    fail "merged: $(loss --model headmerged), live: $(loss --model head)"
"$TRIREME" ckpt export head --to vllm --output headvllm >run.log

# The first step sees the base: its loss is that of a run without any adapter.
"$TRIREME" train "${options[@]}" --model model --max_steps 6 --output full >run.log
python3 - <<'PY' || fail "a new adapter changes the model"
import json
first = [next(json.loads(l)["loss"] for l in open(d + "/events.jsonl") if json.loads(l)["event"] == "step") for d in ("full", "one", "emb", "emd", "head")]
assert max(first) - min(first) <= 1e-6 * first[0], first
PY

# It goes on from its directory, and merged it is the same model.
"$TRIREME" train "${options[@]}" --model one --output more >run.log
"$TRIREME" ckpt merge one --onto original --out merged >run.log
python3 -c 'import sys; a, b = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= 1e-5 * a)' "$(loss --model one)" "$(loss --model merged)" ||
    fail "merged: $(loss --model merged), live: $(loss --model one)"

refuse() { # TEXT OPTIONS...
    expect 2 "$TRIREME" train "${options[@]}" --model model --lora_r 4 "${@:2}" --output refused
    grep -q -- "$1" stderr || fail "$(cat stderr)"
    [ ! -e refused ] || fail "refused, and something was written"
}
refuse "needs a base in float32, float16 or bfloat16 (PEFT's rule)" --init_lora_weights pissa --load_in_4bit
refuse 'needs an alpha above 0' --init_lora_weights pissa --alpha_pattern q_proj=0
refuse 'use_dora takes no head' --use_dora --lora_target_modules q_proj,lm_head
refuse 'takes no head' --init_lora_weights pissa --lora_target_modules q_proj,lm_head
refuse 'pissa takes no embedding' --init_lora_weights pissa --lora_target_modules q_proj,embed_tokens
refuse 'takes no head' --lora_b_bias --lora_target_modules q_proj,lm_head
refuse 'drop ensure_weight_tying' --ensure_weight_tying --lora_target_modules q_proj,lm_head
refuse 'must begin as the base' --use_dora --lora_target_modules embed_tokens --init_lora_weights false
echo "DoRA, LoRA+ and embeddings train, go on and merge"
