#!/usr/bin/env bash
# The example of examples/qlora runs on a small model with random weights, and its merged model is that of its adapter.
. "$(dirname "$0")/common.sh"
tiny_model model
STEPS=4 LENGTH=128 LORA_R=4 "$source_dir/examples/qlora/run" model work >log 2>&1 || { tail -n 20 log; fail "examples/qlora/run"; }
for file in adapter/adapter_config.json adapter/adapter_model.safetensors merged/config.json merged/model.safetensors; do
    [ -e "work/$file" ] || fail "the example wrote no $file"
done
[ ! -e work/adapter/model.safetensors ] || fail "the adapter's directory holds weights of the base"
