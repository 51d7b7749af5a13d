#!/usr/bin/env bash
# Activations on the host (--offload_activations): the bits of the run without, on several layouts and after a kill between two copies;
# and the plan, whose activations no longer grow with the number of layers.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 8/' tiny.json >deep.json
"$TRIREME" init --config deep.json --tokenizer bytes --seed 7 --out deep --quiet
run() { # run RANKS OUTPUT ARGUMENTS...
    timeout 120 "$TRIREME" launch --nproc-per-node "$1" train --model deep --data train.jsonl --sequence_length 32 --recompute block \
        --per_device_train_batch_size 2 --train_batch_size 8 --max_steps 4 --save_steps 2 --learning_rate 1e-2 \
        --threads 1 --quiet --reproducible layout --output "$2" "${@:3}" >run.log 2>&1
}
alike() { "$TRIREME" ckpt diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(cat diff.log)"; }
stow() { # stow OF RANKS ARGUMENTS...: the same steps with activations on the host
    rm -rf there
    run "$2" there --offload_activations "${@:3}" || fail "${*:3}: $(cat run.log)"
    alike "$1" there
}
run 1 f32 || fail "$(cat run.log)"
run 1 bf16 --dtype bfloat16 || fail "$(cat run.log)"
stow f32 1
stow f32 2 --dp 2 --zero 3
stow f32 2 --pp 2
stow bf16 2 --dtype bfloat16 --dp 2 --zero 2 --offload_optimizer cpu

# A rank dies in front of a copy; the run goes on from what it had saved.
for point in stow unstow; do
    rm -rf there
    TR_FAIL=step.$point:kill:50 run 1 there --offload_activations && fail "TR_FAIL=step.$point did nothing"
    grep -q SIGKILL run.log || fail "it was not killed: $(cat run.log)"
    run 1 there --offload_activations --resume_from_checkpoint || fail "$(cat run.log)"
    alike f32 there
done

# Of 64k tokens an 8B keeps 512 MiB a layer for the backward; with them on the host the device holds a few.
bytes() { awk -v a="$1" '$1 == a { print $2 }' "$2"; }
long() { "$TRIREME" plan --model llama-3.1-8b --bf16 --machine H200 --recompute block --sequence_length 65536 --per_device_train_batch_size 1 --lora_r 16 --load_in_4bit "$@"; }
long >all.log
long --offload_activations >host.log
gib=$((1 << 30))
[ "$(bytes acts all.log)" -gt $((16 * gib)) ] && [ "$(bytes acts host.log)" -lt $((4 * gib)) ] || fail "activations: $(bytes acts all.log), then $(bytes acts host.log)"
[ "$(bytes host host.log)" -gt $((13 * gib)) ] && [ "$(bytes host host.log)" -lt $((17 * gib)) ] || fail "host: $(bytes host host.log)"

# With all that may live on the host there, planned bytes are reserved bytes, arena by arena.
all=(--model deep --data train.jsonl --sequence_length 32 --max_steps 1 --threads 1 --dtype bfloat16 --lora_r 4 --load_in_4bit --recompute block
    --offload_activations --offload_param cpu --offload_optimizer cpu)
"$TRIREME" plan "${all[@]}" --json >plan.json
"$TRIREME" train "${all[@]}" --output all --quiet >run.log 2>&1 || fail "$(cat run.log)"
python3 - <<'PY'
import json
plan, held = json.load(open("plan.json")), next(e for e in map(json.loads, open("all/events.jsonl")) if e["event"] == "plan")
assert plan["total_bytes"] == held["total_bytes"] == held["reserved_bytes"], (plan["total_bytes"], held)
assert plan["ranks"][0]["arenas"] == held["arenas"] and any(a["name"] == "host" for a in held["arenas"]), held
PY
