#!/usr/bin/env bash
# gpu.sh [BUILD] - everything about the CUDA column that needs a GPU, in one go: parity of the ops, the golden models, then
# optimizer steps of the shapes in bench/models. BUILD (default build/cuda) is made with `cmake --preset cuda` when it is
# not there. TR_GPU_CASES picks rows of the table below by a pattern; logs go to $OUT (default BUILD/gpu).
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
out=${OUT:-$build/gpu}
mkdir -p "$out"
[ -x "$build/bench_gpu" ] || { cmake --preset cuda -B "$build" && cmake --build "$build" -j; } >"$out/build.log" 2>&1 || exit 1
bad=0

check() { # NAME COMMAND...
    "${@:2}" >"$out/$1.txt" 2>&1
    local rc=$?
    echo "$1: $([ $rc = 0 ] && echo passed || echo "FAILED ($rc)"), $(grep -cE '\[ +OK' "$out/$1.txt") tests"
    grep -E '^ERROR|\[  FAILED' "$out/$1.txt" | sort -u | head -n 20
    [ $rc = 0 ] || bad=1
}
check ops timeout 120 "$build/ops_cuda"
check blocks env TR_TEST_DEVICE=cuda timeout 120 "$build/ops_attention_blocks"
check golden env TR_TEST_DEVICE=cuda timeout 120 "$build/train_golden"
# Real ranks by NCCL, all on this GPU: every strategy against one rank.
check strategies env TR_TEST_DEVICE=cuda timeout 400 "$build/train_strategies"
grep "layouts of" "$out/strategies.txt"

# name, then bench_gpu's arguments. bf16 compute throughout; state = master weights and moments.
cases='
gpt2-124m       gpt2 rows=64 length=1024
gpt2-124m-fast  gpt2 rows=64 length=1024 any_order=1
gpt2-124m-docs  gpt2 rows=64 length=1024 pack=300
gpt2-1.5b       bench/models/gpt2-xl.json rows=16 length=1024
qwen-0.5b       bench/models/qwen-0.5b.json rows=32 length=1024
qwen-0.5b-bf16  bench/models/qwen-0.5b.json rows=32 length=1024 micro=4 grad=bfloat16 state=bfloat16
qwen-1.5b-bf16  bench/models/qwen-1.5b.json rows=32 length=1024 micro=2 grad=bfloat16 state=bfloat16
llama-1b        bench/models/llama-1b.json rows=8 length=2048
qwen-7b-bf16    bench/models/qwen-7b.json rows=8 length=1024 micro=4 grad=bfloat16 state=bfloat16
llama-8b-bf16   bench/models/llama-8b.json rows=2 length=4096 grad=bfloat16 state=bfloat16
qwen-7b-fp8     bench/models/qwen-7b.json rows=8 length=1024 micro=4 grad=bfloat16 state=bfloat16 fp8=1
llama-8b-fp8    bench/models/llama-8b.json rows=2 length=4096 grad=bfloat16 state=bfloat16 fp8=1
'
: >"$out/steps.txt"
while read -r name args; do
    [ -n "$name" ] && [[ $name =~ ${TR_GPU_CASES:-.} ]] || continue
    echo "== $name: bench_gpu $args device=cuda dtype=bfloat16" >>"$out/steps.txt"
    # shellcheck disable=SC2086
    timeout "${TR_GPU_SECONDS:-120}" "$build/bench_gpu" $args device=cuda dtype=bfloat16 threads="$(nproc)" \
        profile="${TR_GPU_PROFILE:-1}" steps="${TR_GPU_STEPS:-8}" >>"$out/steps.txt" 2>&1 || bad=1
    tail -n 1 "$out/steps.txt" | sed -nE "s/.*\"median_s\":([^,]*).*\"tokens_per_s\":([^,]*).*\"of_peak\":([^,]*),\"bytes\":([^,]*).*\"first_step_s\":([^,]*).*\"loss\":([^}]*).*/$name: \2 tok\/s, \1 s a step, mfu \3, \4 bytes, first step after \5 s, loss \6/p" |
        grep . || { echo "$name: FAILED"; tail -n 2 "$out/steps.txt"; }
done <<<"$cases"
exit $bad
