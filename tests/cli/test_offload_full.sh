#!/usr/bin/env bash
# Parameters that learn and their gradients on the host (--offload_optimizer cpu --offload_param cpu --offload_gradients): weights, states and logged
# numbers of the run without, over layouts, optimizers and dtypes, through resumes in both directions and a rank that dies between two copies; and the
# plan, by which all weights of an 8B train on a GPU of 24 GB.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model small
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 4/' tiny.json >deep.json
"$TRIREME" init --config deep.json --tokenizer bytes --seed 7 --out model --quiet
all=(--offload_optimizer cpu --offload_param cpu --offload_gradients)
run() { # run RANKS OUTPUT ARGUMENTS...
    timeout 120 "$TRIREME" launch --nproc-per-node "$1" train --model model --data train.jsonl --sequence_length 32 \
        --per_device_train_batch_size 2 --train_batch_size 8 --max_steps 4 --save_steps 2 --learning_rate 1e-2 --weight_decay 0.1 \
        --threads 1 --quiet --output "$2" "${@:3}" >run.log 2>&1
}
alike() { "$TRIREME" ckpt diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(cat diff.log)"; }
both() { # both RANKS ARGUMENTS...: a run, and the same with all on the host
    rm -rf a b
    run "$1" a "${@:2}" || fail "${*:2}: $(cat run.log)"
    run "$1" b "${@:2}" "${all[@]}" || fail "${*:2}: $(cat run.log)"
    alike a b
    alike a/checkpoint-4 b/checkpoint-4 # moments and master weights too
    step_lines a/events.jsonl >a.lines
    step_lines b/events.jsonl >b.lines
    same a.lines b.lines
}
lean=(--dtype bfloat16 --master_dtype bfloat16 --moment_dtype bfloat16 --grad_dtype bfloat16 --recompute block --offload_activations)
both 1 --eval_data train.jsonl --eval_strategy steps --eval_steps 2
both 1 "${lean[@]}"
both 1 --dtype bfloat16 --offload_share 0.5 --max_grad_norm 0.01
both 1 --dtype float16 --optim adafactor
both 1 --dtype bfloat16 --optim muon --gradient_accumulation_steps 1 --per_device_train_batch_size 8
both 2 --dtype bfloat16 --optim adamw_8bit --pp 2
both 2 --pp 2 --pp_schedule zb --optim lion_8bit
both 2 --pp 2 --pp_schedule interleaved --pp_chunks 2 --dtype bfloat16
both 4 --pp 4
both 2 --dp 2 --reduce_dtype bfloat16 --dtype bfloat16

# The host makes the updates itself.
device=("${all[@]}") all+=(--offload_update cpu)
both 1 --eval_data train.jsonl --eval_strategy steps --eval_steps 2
both 1 "${lean[@]}"
both 1 --dtype bfloat16 --offload_share 0.5 --max_grad_norm 0.01 --optim lion --adam_beta2 0.99
both 1 --optim sgd --momentum 0.9 --frozen '*norm*'
both 2 --dtype bfloat16 --optim adamw_8bit --pp 2 --pp_schedule zb
both 2 --dp 2 --dtype float16 --optim lion_8bit
rm -rf a there
run 1 a "${lean[@]}" && run 1 there "${lean[@]}" "${device[@]}" && rm -rf there/checkpoint-4 there/model*
run 1 there "${lean[@]}" "${all[@]}" --resume_from_checkpoint || fail "$(cat run.log)"
alike a there
rm -rf there
TR_FAIL=step.update_host:kill:9 run 1 there "${lean[@]}" "${all[@]}" && fail "TR_FAIL=step.update_host did nothing"
run 1 there "${lean[@]}" "${all[@]}" --resume_from_checkpoint || fail "$(cat run.log)"
alike a there
all=("${device[@]}")

# A resume goes from the host to the device and back.
rm -rf a b there
run 1 a "${lean[@]}"
run 1 b "${lean[@]}" "${all[@]}"
run 1 there "${lean[@]}" --resume_from_checkpoint b/checkpoint-2 || fail "$(cat run.log)"
alike a there
rm -rf there
run 1 there "${lean[@]}" --resume_from_checkpoint a/checkpoint-2 "${all[@]}" || fail "$(cat run.log)"
alike a there

# A rank dies in front of a copy of the last steps. What it had saved is whole, and the run goes on from there.
for point in grad_in grad_out fetch store bring; do
    rm -rf there
    TR_FAIL=step.$point:kill:19 run 1 there "${lean[@]}" "${all[@]}" && fail "TR_FAIL=step.$point did nothing"
    grep -q SIGKILL run.log || fail "it was not killed: $(cat run.log)"
    run 1 there "${lean[@]}" "${all[@]}" --resume_from_checkpoint || fail "$(cat run.log)"
    alike a there
done

# The plan: an 8B on 24 GB, and what is reserved is what was planned.
bytes() { awk -v a="$1" '$1 == a { print $2 }' "$2"; }
large() {
    "$TRIREME" plan --model llama-3.1-8b --bf16 --machine RTX4090 --sequence_length 2048 --per_device_train_batch_size 8 --gradient_accumulation_steps 4 \
        --grad_dtype bfloat16 --master_dtype bfloat16 --moment_dtype bfloat16 --recompute block --offload_activations "$@"
}
expect 1 large
grep -q '^ *|.*| 1[0-9][0-9] % of 24.0 GiB\|^ *|.*| [2-9][0-9][0-9] % of 24.0 GiB' stdout || fail "it fits without: $(cat stdout)"
large "${all[@]}" >plan.log || fail "it does not fit: $(cat plan.log)"
of_gpu=$(awk '$1 ~ /^(params|grads|optim|acts|work|beside)$/ { s += $2 } END { printf "%.0f", s }' plan.log)
[ "$of_gpu" -lt $((22 << 30)) ] || fail "$of_gpu bytes of the GPU"
large --offload_optimizer cpu --show schedule "${all[@]}" >schedule.log
grep -q 'grad-out .*block.1 .*\[out\]' schedule.log && grep -q 'norm .*block.1' schedule.log || fail "no gradients leave"
large "${all[@]}" --offload_update cpu --reproducible off --show schedule >there.log || fail "$(cat there.log)"
grep -q 'update-host .*block.1' there.log && ! grep -q 'fetch .*block.1' there.log || fail "states travel to an update on the host"
large "${all[@]}" --offload_update cpu --reproducible off >there.log
grep -q '^ *optim ' plan.log && ! grep -q '^ *optim ' there.log || fail "the device keeps room for states: $(cat there.log)"
"$TRIREME" plan --model model --data train.jsonl --sequence_length 32 "${lean[@]}" "${all[@]}" --threads 1 --json >plan.json
"$TRIREME" train --model model --data train.jsonl --sequence_length 32 --max_steps 1 "${lean[@]}" "${all[@]}" --threads 1 --output c --quiet >run.log 2>&1 ||
    fail "$(cat run.log)"
python3 - <<'PY'
import json
plan, held = json.load(open("plan.json")), next(e for e in map(json.loads, open("c/events.jsonl")) if e["event"] == "plan")
assert plan["total_bytes"] == held["total_bytes"] == held["reserved_bytes"], (plan["total_bytes"], held)
assert plan["ranks"][0]["arenas"] == held["arenas"], held
PY

# What it does not do is said.
refused() { # refused TEXT ARGUMENTS...
    expect 2 "$TRIREME" plan --model model --data train.jsonl --sequence_length 32 "${@:2}"
    grep -q "$1" stderr || fail "$(cat stderr)"
}
refused 'offload_gradients needs offload_optimizer cpu' --offload_gradients
refused 'offload_gradients needs zero 0' --dp 2 --zero 2 --offload_gradients --offload_optimizer cpu
refused 'offload_gradients needs tp 1 and cp 1' --tp 2 --offload_gradients --offload_optimizer cpu
refused 'offload_gradients does not go with reproducible layout' --reproducible layout --offload_gradients --offload_optimizer cpu
refused 'offload_update cpu: the host updates what it holds all of; add --offload_optimizer cpu --offload_param cpu --offload_gradients' --offload_update cpu --offload_optimizer cpu
refused 'offload_update cpu: optim muon works on whole matrices' --offload_update cpu "${all[@]}" --optim muon
expect 2 large "${all[@]}" --offload_update cpu
grep -q 'reproducible config does not allow; add --reproducible off' stderr || fail "$(cat stderr)"
