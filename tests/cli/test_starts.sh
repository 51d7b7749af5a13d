#!/usr/bin/env bash
# PiSSA and OLoRA from outside: the first step sees the base; layouts train the same adapter; a resume ends in the same bits;
# what is saved is an ordinary adapter of the base as it is, that evaluates, merges and goes on.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--data train.jsonl --sequence_length 32 --per_device_train_batch_size 1 --train_batch_size 4 --max_steps 6 --learning_rate 1e-2
    --threads 1 --quiet --save_steps 3 --save_total_limit 0 --reproducible layout)
launch() { timeout 120 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" "$@" >run.log 2>&1 || { cat run.log; fail "$*"; }; }
loss() { "$TRIREME" eval --data train.jsonl --sequence_length 32 --json "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])'; }
close_to() { python3 -c 'import sys; a, b, e = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= e * a)' "$@"; }
first_loss() { python3 -c 'import json, sys; print(next(json.loads(l)["loss"] for l in open(sys.argv[1] + "/events.jsonl") if json.loads(l)["event"] == "step"))' "$1"; }

"$TRIREME" train "${options[@]}" --model model --lora_r 4 --output plain >run.log
for start in pissa olora; do
    lora=(--model model --lora_r 4 --lora_alpha 6 --init_lora_weights $start --lora_target_modules q_proj,v_proj,o_proj,down_proj)
    "$TRIREME" train "${options[@]}" "${lora[@]}" --output $start --verify_restore >run.log
    [ "$(first_loss $start)" = "$(first_loss plain)" ] || fail "$start: the first step does not see the base"
    cmp -s $start/adapter_model.safetensors $start/checkpoint-3/adapter_model.safetensors && fail "$start learns nothing"
    python3 - $start <<'PY' || fail "$start: the directory is not that of an ordinary adapter"
import json, struct, sys
config = json.load(open(sys.argv[1] + "/adapter_config.json"))
assert (config["r"], config["lora_alpha"], config["init_lora_weights"]) == (8, 12, True), config
with open(sys.argv[1] + "/adapter_model.safetensors", "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
shapes = {k.split(".q_proj.")[-1]: v["shape"] for k, v in header.items() if "layers.0.self_attn.q_proj" in k}
assert shapes == {"lora_A.weight": [8, 32], "lora_B.weight": [32, 8]}, shapes
PY
    # other layouts: the same bits where only rows and shards are split, the same numbers elsewhere
    launch "${lora[@]}" --dp 2 --zero 3 --output $start-zero
    same $start/adapter_model.safetensors $start-zero/adapter_model.safetensors
    launch "${lora[@]}" --tp 2 --reproducible config --output $start-tp
    close_to "$(loss --model $start)" "$(loss --model $start-tp)" 1e-5 || fail "$start: tp 2 trains another adapter"
    # a resume, on another layout too
    mkdir -p half && cp -r $start/checkpoint-3 half/
    "$TRIREME" ckpt reshard half/checkpoint-3 --output half2 >run.log
    launch "${lora[@]}" --pp 2 --output half --resume
    "$TRIREME" train "${options[@]}" "${lora[@]}" --output half2 --resume >run.log
    same $start/adapter_model.safetensors half/adapter_model.safetensors
    same $start/adapter_model.safetensors half2/adapter_model.safetensors
    rm -rf half half2
    # it merges, and goes on as any adapter
    "$TRIREME" ckpt merge $start --onto original --out $start-merged >run.log
    close_to "$(loss --model $start)" "$(loss --model $start-merged)" 1e-5 || fail "$start: merged it is another model"
    "$TRIREME" train "${options[@]}" --model $start --output $start-more >run.log
done
# With magnitudes, of a head with a matrix of its own, and on a base in four bits (OLoRA, as in PEFT): the first step sees the base, layouts
# and a resume end in the same bits, and the file is an ordinary adapter.
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' tiny.json >untied.json
"$TRIREME" init --config untied.json --tokenizer bytes --seed 7 --out untied --quiet
"$TRIREME" train "${options[@]}" --model untied --lora_r 4 --max_steps 1 --output plain-untied >run.log
"$TRIREME" train "${options[@]}" --model model --lora_r 4 --load_in_4bit --max_steps 1 --output plain-packed >run.log
special() { # NAME PLAIN OPTIONS...
    local name=$1 plain=$2
    shift 2
    "$TRIREME" train "${options[@]}" "$@" --output "$name" >run.log
    close_to "$(first_loss "$name")" "$(first_loss "$plain")" 1e-6 || fail "$name: the first step does not see the base: $(first_loss "$name")"
    launch "$@" --dp 2 --zero 3 --output "$name-zero"
    same "$name/adapter_model.safetensors" "$name-zero/adapter_model.safetensors"
    mkdir half && cp -r "$name/checkpoint-3" half/
    launch "$@" --pp 2 --output half --resume
    same "$name/adapter_model.safetensors" half/adapter_model.safetensors
    rm -rf half
    "$TRIREME" ckpt merge "$name" --out "$name-merged" --json >merge.json 2>run.log
}
special dora plain --model model --lora_r 4 --use_dora --init_lora_weights pissa
special head plain-untied --model untied --lora_r 4 --init_lora_weights pissa --lora_target_modules q_proj,lm_head
close_to "$(loss --model head)" "$(loss --model head-merged)" 1e-5 || fail "a merged head is another model"
special packed plain-packed --model model --lora_r 4 --init_lora_weights olora --load_in_4bit
"$TRIREME" plan --model model --lora_r 4 --init_lora_weights pissa --sequence_length 32 | grep -q 'its start takes .* of host memory' || fail "the plan does not say what a start takes"
# bfloat16: A0 is rounded as A is, so that nothing is learnt by rounding
"$TRIREME" train "${options[@]}" --model model --lora_r 4 --init_lora_weights pissa --dtype bfloat16 --learning_rate 0 --max_steps 1 --output zero >run.log
close_to "$(loss --model model)" "$(loss --model zero)" 1e-7 || fail "a start in bfloat16 changes the model"
echo "PiSSA and OLoRA start from the base, train alike on every layout and are saved for the base as it is"
