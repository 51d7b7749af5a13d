#!/usr/bin/env bash
# gpu.sh [PART...] - everything about the CUDA column that needs a GPU. Without a PART: `speed`, then `checks`. On a machine that is lent
# for minutes, one call each:
#
#     bench/gpu_pack.sh build/cuda                       here, after cmake --preset cuda && cmake --build build/cuda
#     bench/gpu.sh speed                                 there, with build/gpu-pack carried along; at most 9 minutes
#     bench/gpu.sh checks                                the same
#
# What is timed runs alone, one after the other; checks that nobody times run side by side; the sanitizers, whose kernels hold the GPU for
# long, run alone again. Seconds expected on one H200 with 16 cores, and where a part is ended (`limit` below). A call ends after
# TR_SECONDS (560): what does not fit is said and left out. What a part finds goes to $OUT/PART.txt (default build/gpu-out), its lines for
# bench/results/h200.md to stdout and $OUT/results.txt.
#
#   part         expected  limit   what
#   speed             510
#     start            40     50   from the start of `train` to the end of step 1, Llama-1B shape, weights on disk
#     limit            20     80   the composite limit of this board, today (limit.py)
#     steps           270    280   tokens/s of every row, with a table of ops
#     torch           180    200   the peer's rows (torch_train.py)
#   families         3600    560   in calls of about eight rows, by TR_CASES: published shapes of every family, beside torch.compile (peer_family.py; TR_PEER=0: alone)
#   attention          40    200   attention alone: rows, documents, dropout, heads of 64 to 256, the library and our own
#   lean              500    560   adapters on a base in bf16 and in 4 bits, and the peer's rows (torch_lean.py; PEERS: where bitsandbytes and liger are)
#   offload           900    560   in two calls or more, by TR_CASES: optimizer state, a streamed base, weights and gradients and activations on the host, beside the
#                                  same without; 8-bit moments; rows of 128k tokens. `not hidden s`, a step less one without copies of the same process, belongs beside
#                                  the planned seconds after it (15 %). First TR_CASES='8b-(66|16|33)', then '14b|24g|70b|adamw|128k'; `ready after s` holds the pinning
#   checks            400          down to curves side by side
#     ops              30    200   the op case table against the CPU reference, twice for the same bits; attention blocks
#     golden           60    250   golden models on the GPU, with adapters and with bases in 4 bits too
#     strategies      220    420   every layout of 2 and 4 NCCL ranks that share the GPU against one rank: fp32, bf16, fp16
#     pipelines        90    300   `launch` of two ranks that share the GPU, every pipeline schedule with one micro-batch and with two, dense, LoRA, QLoRA: one rank's losses
#     bits             60    300   20 runs of 8 steps: weights, loss and norm the same
#     gradients        60    300   per tensor against float32, GPT-2 124M and Llama-1B shapes, bf16, fp16 and fp8; beside PyTorch's
#     curves          150    420   200 steps on the same data and weights: bf16, fp16, fp8, fp32, PyTorch bf16, CPU fp32
#     memcheck        100    200   compute-sanitizer over the op tests
#     racecheck       100    200   the same for races, without attention, whose kernels are cuDNN's
#
# TR_CASES picks rows of `steps`, `families` and `torch` by a pattern, TR_OPS the ops of the sanitizers ("layernorm* head_*").
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD pack=build/gpu-pack out=${OUT:-build/gpu-out} bad=0
bin=${TR_BIN:-build/cuda}
mkdir -p "$out"
began=$SECONDS end=0 # end: of the part at hand
IFS=' ' read -r -a only <<<"${TR_OPS:-}"
declare -A limit=([ops]=200 [golden]=250 [strategies]=420 [pipelines]=300 [bits]=300 [gradients]=300 [curves]=420 [limit]=80 [steps]=280 [torch]=200 [start]=50 [lean]=560 [families]=560 [attention]=200 [offload]=560
    [memcheck]=200 [racecheck]=200)
# within SECONDS COMMAND...: at most that long, and no longer than the part may take.
within() {
    local left=$((end - SECONDS))
    [ $left -gt 0 ] || return 124
    timeout -k 5 $((left < $1 ? left : $1)) "${@:2}"
}

# ---- a bare machine: unpack, and find the libraries and the Python that PyTorch came with ----
if [ -e "$pack/bin.tar.xz" ]; then
    bin=$pack/bin
    [ -d "$bin" ] || python3 -W ignore -m tarfile -e "$pack/bin.tar.xz" "$pack" || exit 1
    chmod +x "$bin"/*
    source=$(cat "$pack/source")
    [ -e "$source" ] || { mkdir -p "$(dirname "$source")" && ln -sfn "$root" "$source"; }
fi
[ -x "$bin/bench_gpu" ] || { echo "gpu.sh: no $bin/bench_gpu; cmake --preset cuda && cmake --build build/cuda, or carry build/gpu-pack"; exit 1; }
python=
for p in ${PYTHON:-} python3 /opt/*/.venv/bin/python /opt/*/bin/python; do
    "$p" -c 'import torch, transformers' 2>/dev/null && python=$p && break
done
libraries=$root/$pack/lib
if [ -n "$python" ]; then # cuDNN, cuBLAS and NCCL as PyTorch brings them
    for d in "$("$python" -c 'import os, torch; print(os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia"))')"/*/lib; do
        [ ! -d "$d" ] || libraries=$libraries:$d
    done
fi
for d in /usr/local/cuda/lib64 /usr/local/cuda-13.0/targets/x86_64-linux/lib; do [ ! -d "$d" ] || libraries=$libraries:$d; done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)

say() { echo "$*" | tee -a "$out/results.txt"; }
# test_of NAME COMMAND...: a cmocka program; one line, and what failed.
test_of() {
    local name=$1 start=$SECONDS
    within 999 "${@:2}" >"$out/$name.txt" 2>&1
    local rc=$?
    say "- $name: $([ $rc = 0 ] && echo passed || echo "FAILED ($rc)"), $(grep -cE '\[ +OK' "$out/$name.txt") tests, $((SECONDS - start)) s"
    grep -E '^ERROR|\[  FAILED|layouts of' "$out/$name.txt" | sort -u | head -n 20
    [ $rc = 0 ] || bad=1
}
# value FIELD FILE: of the last JSON line.
value() { grep '^{' "$2" | tail -n 1 | sed -nE "s/.*\"$1\":\"?([^,\"}]*).*/\1/p"; }

work=${TMPDIR:-/tmp}/trireme-gpu gpt2=${TMPDIR:-/tmp}/trireme-gpu/gpt2.json
gpt2_config() { # the shape that bench_gpu calls gpt2
    mkdir -p "$work"
    echo '{"model_type":"gpt2","vocab_size":50304,"n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,"resid_pdrop":0,"embd_pdrop":0,"attn_pdrop":0}' >"$gpt2.new.$BASHPID"
    mv "$gpt2.new.$BASHPID" "$gpt2"
}

# ---- checks ----
part_ops() {
    test_of ops "$bin/ops_cuda"
    test_of blocks env TR_TEST_DEVICE=cuda "$bin/ops_attention_blocks"
}
part_golden() {
    local what
    for what in golden adapters packed; do test_of $what env TR_TEST_DEVICE=cuda "$bin/train_$what"; done
}
part_strategies() { # all at once: they wait more than they compute
    local what
    for what in "2" "4 0" "4 1"; do
        # shellcheck disable=SC2086
        { test_of "strategies-${what/ /-}" env TR_TEST_DEVICE=cuda "$bin/train_strategies" $what; exit $bad; } &
    done
    wait -n || bad=1
    wait -n || bad=1
    wait -n || bad=1
}
# Each run is a new process, so that it loads its kernels while messages are under way.
part_pipelines() {
    local w=$work/pipelines kind schedule n micro want got ok=0 all=0
    local -A of=([dense]="" [lora]="--lora_r 4 --lora_target_modules all-linear" [qlora]="--lora_r 4 --lora_target_modules all-linear --load_in_4bit --bf16")
    rm -rf "$w" && mkdir -p "$w"
    echo '{"model_type":"llama","vocab_size":320,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":64}' >"$w/config.json"
    python3 -c 'for i in range(400): print(" ".join(str(i * k % 97) for k in range(40)))' >"$w/text.txt"
    "$bin/trireme" init --config "$w/config.json" --tokenizer bytes --seed 1 --out "$w/model" >"$out/pipelines.txt" 2>&1 || { bad=1; return; }
    train_pipeline() { # NAME OPTIONS...: the losses of four steps of eight rows
        local name=$1
        shift
        within 40 "$@" --device cuda --model "$w/model" --data "$w/text.txt" --sequence_length 64 --max_steps 4 --save_steps 0 --logging_steps 1 --output "$w/$name" >>"$out/pipelines.txt" 2>&1 || return 1
        sed -nE 's/.*"event":"step".*"loss":([0-9.eE+-]+).*/\1/p' "$w/$name/events.jsonl" | tr '\n' ' '
    }
    for kind in dense lora qlora; do
        # shellcheck disable=SC2086
        want=$(train_pipeline "$kind" "$bin/trireme" train --per_device_train_batch_size 8 ${of[$kind]})
        for n in 1 2 4; do
            for schedule in 1f1b gpipe zb "interleaved --pp_chunks 2"; do
                [ $n != 1 ] || [[ $schedule != interleaved* ]] || continue # needs as many micro-batches as ranks
                [ $n = 1 ] || [ "$kind" = dense ] || [ "$schedule" = 1f1b ] || continue
                micro="--per_device_train_batch_size $((8 / n)) --gradient_accumulation_steps $n"
                # shellcheck disable=SC2086
                got=$(train_pipeline "$kind-$n-${schedule%% *}" "$bin/trireme" launch --nproc-per-node 2 train --pp 2 --pp_schedule $schedule $micro ${of[$kind]})
                all=$((all + 1))
                if awk -v a="$want" -v b="$got" 'BEGIN { n = split(a, x, " "); m = split(b, y, " "); if (n != 4 || m != 4) exit 1
                    for (i = 1; i <= n; i++) { d = x[i] - y[i]; if (d < 0) d = -d; if (d > 2e-3 * x[i]) exit 1 } }'; then
                    ok=$((ok + 1))
                else
                    say "- pipelines: $kind, $schedule, $n micro-batches: losses \"$got\" for \"$want\""
                    bad=1
                fi
            done
        done
    done
    say "- pipelines: $ok of $all runs have the losses of one rank"
    rm -rf "$w"
}
part_bits() {
    local i n=0
    : >"$out/bits.txt"
    for i in $(seq 20); do
        within 30 "$bin/bench_gpu" gpt2 rows=8 length=1024 steps=5 hash=1 device=cuda dtype=bfloat16 threads=4 >"$out/bit.txt" 2>&1 || break
        echo "$(value hash "$out/bit.txt") $(value loss "$out/bit.txt") $(value grad_norm "$out/bit.txt")" >>"$out/bits.txt"
        n=$i
    done
    local kinds
    kinds=$(sort -u "$out/bits.txt" | wc -l)
    say "- bits: $n runs of 8 steps, GPT-2 124M B8 T1024: $kinds set(s) of weights, loss and norm ($(head -n 1 "$out/bits.txt"))"
    [ "$n" = 20 ] && [ "$kinds" = 1 ] || bad=1
}
part_gradients() {
    local shape args
    : >"$out/gradients.txt"
    for shape in "gpt2 rows=4 length=512" "bench/models/llama-1b.json rows=1 length=512"; do
        for args in dtype=bfloat16 dtype=float16 "dtype=bfloat16 fp8=1"; do
            # shellcheck disable=SC2086
            within 60 "$bin/bench_gradients" $shape $args device=cuda threads=4 >"$out/gradient.txt" 2>&1 || bad=1
            { echo "== $shape $args"; cat "$out/gradient.txt"; } >>"$out/gradients.txt"
            say "- gradients, $shape $args: median $(value median "$out/gradient.txt"), worst $(value worst "$out/gradient.txt") of $(value tensors "$out/gradient.txt") tensors, $(value over_1e-2 "$out/gradient.txt") over 1e-2"
        done
    done
    [ -n "$python" ] || return
    gpt2_config
    within 60 "$python" bench/gradients_torch.py "$gpt2" 4 512 >"$out/gradients-torch.txt" 2>&1
    within 60 "$python" bench/gradients_torch.py bench/models/llama-1b.json 1 512 >>"$out/gradients-torch.txt" 2>&1
    grep '^PyTorch' "$out/gradients-torch.txt" | sed 's/^/- gradients, /' | tee -a "$out/results.txt"
}
sanitize() { # TOOL OPS...
    local tool=$1 start=$SECONDS
    [ -n "$sanitizer" ] || { say "- $tool: no compute-sanitizer here"; return; }
    within 999 "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 "$bin/ops_cuda" "${@:2}" >"$out/$tool.txt" 2>&1
    local rc=$?
    say "- $tool: exit $rc, $(grep -cE '\[ +OK' "$out/$tool.txt") ops, $((SECONDS - start)) s: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.txt" | tail -n 1)"
    [ $rc = 0 ] || bad=1
}
part_memcheck() { sanitize memcheck "${only[@]}"; }
part_racecheck() {
    local own=(embed\* layernorm\* rmsnorm\* head_\* sum\* quant linear_dw adamw glu\* rope attention_cached)
    [ ${#only[@]} = 0 ] || own=("${only[@]}")
    sanitize racecheck "${own[@]}"
}

# ---- speed ----
# name, the peer's arguments (- : none), then bench_gpu's. Compute is bf16 unless said; state = master weights and moments.
rows='
gpt2-124m       gpt2,64,1024,compile      gpt2 rows=64 length=1024
gpt2-124m-fp16  -                         gpt2 rows=64 length=1024 dtype=float16
gpt2-124m-any   -                         gpt2 rows=64 length=1024 any_order=1
gpt2-1.5b       -                         bench/models/gpt2-xl.json rows=16 length=1024
gpt2-1.5b-g16   -                         bench/models/gpt2-xl.json rows=16 length=1024 grad=bfloat16
qwen-0.5b       qwen-0.5b,32,1024,compile bench/models/qwen-0.5b.json rows=32 length=1024
qwen-0.5b-bf16  -                         bench/models/qwen-0.5b.json rows=32 length=1024 micro=4 grad=bfloat16 state=bfloat16
qwen-1.5b-bf16  -                         bench/models/qwen-1.5b.json rows=32 length=1024 micro=2 grad=bfloat16 state=bfloat16
llama-1b        llama-1b,8,2048,compile   bench/models/llama-1b.json rows=8 length=2048
llama-1b-fp16   -                         bench/models/llama-1b.json rows=8 length=2048 dtype=float16
qwen-7b-bf16    -                         bench/models/qwen-7b.json rows=8 length=1024 micro=4 grad=bfloat16 state=bfloat16
llama-8b-bf16   -                         bench/models/llama-8b.json rows=2 length=4096 grad=bfloat16 state=bfloat16
qwen-7b-fp8     -                         bench/models/qwen-7b.json rows=8 length=1024 micro=4 grad=bfloat16 state=bfloat16 fp8=1
llama-8b-fp8    -                         bench/models/llama-8b.json rows=2 length=4096 grad=bfloat16 state=bfloat16 fp8=1
llama-8b-delay  -                         bench/models/llama-8b.json rows=2 length=4096 grad=bfloat16 state=bfloat16 fp8=1 delayed=1
llama-8b-e5m2   -                         bench/models/llama-8b.json rows=2 length=4096 grad=bfloat16 state=bfloat16 fp8=1 e5m2=1
'
part_limit() {
    [ -n "$python" ] && [ -e "$pack/limit.py" ] || { say "- limit: no PyTorch or no limit.py here"; return; }
    within 90 "$python" "$pack/limit.py" >"$out/limit.txt" 2>&1
    grep LIMIT "$out/limit.txt" | sed -E 's/LIMIT ([^:]*):.*-> (.*)/- limit \1: \2/' | tee -a "$out/results.txt"
}
steps_begin() {
    : >"$out/steps.txt"
    say "| case | arguments | tok/s | s a step | planned | not hidden s | planned | MFU | GPU bytes planned | used beside them | ready after s | first step after s | loss | skipped | weights |"
    say "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
}
v() { value "$1" "$out/step.txt"; }
step_row() { # NAME ARGUMENTS...
    local name=$1 args="${*:2}"
    [[ $args == *dtype=* ]] || args="$args dtype=bfloat16"
    # shellcheck disable=SC2086
    within "${TR_LIMIT:-60}" "$bin/bench_gpu" $args device=cuda threads="$(nproc)" profile="${TR_PROFILE:-1}" steps="${TR_STEPS:-8}" \
        >"$out/step.txt" 2>&1 || { say "| $name | \`$args\` | FAILED: $(tail -n 1 "$out/step.txt") |"; bad=1; return 1; }
    { echo "== $name: $args"; cat "$out/step.txt"; } >>"$out/steps.txt"
    say "| $name | \`$args\` | $(v tokens_per_s) | $(v median_s) | $(v planned_s) | $(v exposed_s) | $(v planned_exposed_s) | $(v of_peak) | $(v on_gpu) | $(v beside) | $(v ready_s) | $(v first_step_s) | $(v loss) | $(v skipped) | $(v hash) |"
}
part_steps() {
    local name peer args
    steps_begin
    while read -r name peer args; do
        [ -n "$name" ] && [[ $name =~ ${TR_CASES:-.} ]] || continue
        # shellcheck disable=SC2086
        step_row "$name" $args
    done <<<"$rows"
}
# NAME, beside the peer (+) or alone (-), a name of tests/model/published.jsonl or a file, arguments of bench_gpu and peer_family.py. 16 bits is
# grad=bfloat16 state=bfloat16: what does not fit in float32.
families='
gpt2-124m-dropout    + openai-community/gpt2 rows=16 length=1024 dropout=published
llama-1b-8k-docs512  + meta-llama/Llama-3.2-1B rows=2 length=8192 pack=512
gemma-3-1b           + google/gemma-3-1b-it rows=4 length=2048
qwen3-0.6b           + Qwen/Qwen3-0.6B rows=8 length=2048
opt-1.3b-dropout     + facebook/opt-1.3b rows=8 length=2048 dropout=published
gemma-2-2b           + google/gemma-2-2b rows=2 length=2048
mistral-7b-8k-b16    + mistralai/Mistral-7B-v0.1 rows=1 length=8192 grad=bfloat16 state=bfloat16
llama-1b-32k         + meta-llama/Llama-3.2-1B rows=1 length=32768
phi-3-mini           + microsoft/Phi-3-mini-4k-instruct rows=2 length=2048
qwen3-4b             + Qwen/Qwen3-4B rows=2 length=2048
olmo-2-1b            + allenai/OLMo-2-0425-1B rows=8 length=2048
pythia-1.4b          + EleutherAI/pythia-1.4b rows=8 length=2048
starcoder2-3b        + bigcode/starcoder2-3b rows=2 length=2048
stablelm-2-1.6b      + stabilityai/stablelm-2-1_6b rows=4 length=2048
granite-3-2b         + ibm-granite/granite-3.0-2b-base rows=4 length=2048
smollm3-3b           + HuggingFaceTB/SmolLM3-3B rows=2 length=4096
gemma-3-4b           + bench/models/gemma-3-4b.json rows=2 length=2048
falcon-7b-b16        + tiiuae/falcon-7b rows=2 length=2048 grad=bfloat16 state=bfloat16
glm-4-9b-b16         + THUDM/GLM-4-9B-0414 rows=1 length=2048 grad=bfloat16 state=bfloat16
llama-8b-b16         + meta-llama/Llama-3.1-8B-Instruct rows=2 length=4096 grad=bfloat16 state=bfloat16
qwen2.5-1.5b         + Qwen/Qwen2.5-1.5B-Instruct rows=8 length=2048
smollm2-135m         + HuggingFaceTB/SmolLM2-135M rows=32 length=1024
gemma-2b             + google/gemma-2b rows=2 length=2048
cohere-7b-b16        + CohereForAI/c4ai-command-r7b-12-2024 rows=1 length=4096 grad=bfloat16 state=bfloat16
olmo-3-7b-b16        + allenai/Olmo-3-1025-7B rows=1 length=8192 grad=bfloat16 state=bfloat16
mistral-1b-16k       + bench/models/mistral-1b.json rows=1 length=16384
llama-1b-512         + meta-llama/Llama-3.2-1B rows=32 length=512
llama-1b-docs256     + meta-llama/Llama-3.2-1B rows=8 length=2048 pack=256
llama-1b-32k-docs1k  - meta-llama/Llama-3.2-1B rows=1 length=32768 pack=1024
gpt2-124m-docs       - openai-community/gpt2 rows=16 length=1024 dropout=published pack=256
gpt2-124m-none       - openai-community/gpt2 rows=16 length=1024
gpt2-124m-50304      - gpt2 rows=16 length=1024
'
published() { # NAME|FILE: a file with the config
    local file=$work/published/${1//\//_}.json
    [[ $1 == */* && ! -e $1 ]] || { echo "$1"; return; }
    mkdir -p "$work/published"
    python3 -c 'import json, sys
for line in open("tests/model/published.jsonl"):
    row = json.loads(line)
    if row["name"] == sys.argv[1]: json.dump(row["config"], open(sys.argv[2], "w"))' "$1" "$file" && [ -e "$file" ] && echo "$file"
}
part_families() {
    local name peer model args config got
    steps_begin
    while read -r name peer model args; do
        [ -n "$name" ] && [[ $name =~ ${TR_CASES:-.} ]] || continue
        config=$(published "$model") || { say "| $name | no $model among the published configs |"; bad=1; continue; }
        # shellcheck disable=SC2086
        step_row "$name" "$config" $args || continue
        [ "$peer" = + ] && [ -n "$python" ] && [ "${TR_PEER:-1}" = 1 ] || continue
        # shellcheck disable=SC2086
        within "${TR_PEER_LIMIT:-150}" "$python" bench/peer_family.py "$config" $args >"$out/peer.txt" 2>&1 ||
            { say "- peer $name: failed or over its time: $(tail -n 1 "$out/peer.txt" | cut -c 1-200)"; continue; }
        cat "$out/peer.txt" >>"$out/peers.txt"
        got=$(sed -nE 's/^PEER .*"tokens_per_s": ([0-9.]+).*"warm_s": ([0-9.]+).*"loss": ([0-9.e-]+).*"peak_GiB": ([0-9.]+).*/\1 tok\/s, loss \3, \4 GiB, ready after \2 s/p' "$out/peer.txt")
        say "- peer $name: $got, ratio $(awk -v a="$(v tokens_per_s)" -v b="${got%% *}" 'BEGIN { printf "%.2f", b > 0 ? a / b : 0 }')"
    done <<<"$families"
}
part_attention() {
    within 200 "$bin/bench_attention" ${TR_CASES:+cases="$TR_CASES"} >"$out/attention.txt" 2>&1 || { say "- attention: $(tail -n 1 "$out/attention.txt")"; bad=1; }
    say "$(grep '^|' "$out/attention.txt")"
    [ -n "$python" ] && [ "${TR_PEER:-1}" = 1 ] || return
    within 100 "$python" bench/attention_torch.py >"$out/attention-torch.txt" 2>&1 || say "- attention_torch.py: failed or over its time: $(tail -n 1 "$out/attention-torch.txt")"
    say "$(grep -E '^[|-]' "$out/attention-torch.txt")"
}
lean='
llama-8b-lora      lora,llama-8b,4,2048,liger       lora=16
llama-8b-qlora     qlora,llama-8b,4,2048,liger      lora=16 base=2
llama-8b-lora-re   lora,llama-8b,4,2048,liger,ckpt  lora=16 recompute=2
llama-8b-qlora-re  qlora,llama-8b,4,2048,liger,ckpt lora=16 base=2 recompute=2
llama-8b-lora-fp8  -                                lora=16 fp8=1
llama-8b-lora-drop -                                lora=16 lora_dropout=5
'
part_lean() {
    rows=$(sed 's, lora=, bench/models/llama-8b.json rows=4 length=2048 lora=,' <<<"$lean") part_steps
    local name peer args
    [ -n "$python" ] && [ -e "$pack/torch_lean.py" ] || { say "- torch: no PyTorch or no torch_lean.py here"; return; }
    while read -r name peer args; do
        [ "${peer:--}" != - ] && [[ $name =~ ${TR_CASES:-.} ]] || continue
        # shellcheck disable=SC2086
        within 100 "$python" "$pack/torch_lean.py" ${peer//,/ } >>"$out/lean.txt" 2>&1 || say "- torch $peer: failed or over its time"
    done <<<"$lean"
    grep PEER "$out/lean.txt" | sed 's/^/- /' | tee -a "$out/results.txt"
}
offload='
llama-8b-66k         - bench/models/llama-8b.json rows=4 micro=4 length=4096 grad=bfloat16 recompute=2 warm=2
llama-8b-66k-host    - bench/models/llama-8b.json rows=16 length=4096 grad=bfloat16 recompute=2 offload=100 warm=2
llama-8b-16k-host    - bench/models/llama-8b.json rows=4 length=4096 grad=bfloat16 recompute=2 offload=100 warm=2
qwen-14b-33k-b16-h   - bench/models/qwen-14b.json rows=8 length=4096 grad=bfloat16 state=bfloat16 recompute=2 offload=100 warm=2
llama-8b-33k-b16-h   - bench/models/llama-8b.json rows=8 length=4096 grad=bfloat16 state=bfloat16 recompute=2 offload=100 warm=2
llama-8b-24g         - bench/models/llama-8b.json rows=8 micro=4 length=2048 grad=bfloat16 state=bfloat16 recompute=2 offload=100 offload_param=100 offload_grad=1 stow=1 warm=2
llama-70b-quarter    - CUT rows=2 length=4096 lora=16 base=2 recompute=2 warm=2
llama-70b-quarter-h  - CUT rows=2 length=4096 lora=16 base=2 recompute=2 offload_param=100 stow=1 warm=2
llama-1b-adamw       - bench/models/llama-1b.json rows=8 length=2048 profile=1 warm=2
llama-1b-adamw8      - bench/models/llama-1b.json rows=8 length=2048 optim8=1 profile=1 warm=2
llama-8b-128k-host   - bench/models/llama-8b.json rows=1 length=131072 grad=bfloat16 state=bfloat16 recompute=2 stow=1 offload=100 warm=0 steps=1 bare=0
llama-8b-128k-qlora  - bench/models/llama-8b.json rows=1 length=131072 lora=16 base=2 recompute=2 stow=1 warm=0 steps=1
llama-8b-16k         - bench/models/llama-8b.json rows=4 length=4096 grad=bfloat16 recompute=2 warm=2
llama-8b-33k-b16     - bench/models/llama-8b.json rows=8 length=4096 grad=bfloat16 state=bfloat16 recompute=2 warm=2
'
# A quarter of the layers of a 70B: what a layer costs, and whether its copy hides, does not depend on how many there are.
part_offload() {
    mkdir -p "$work"
    sed 's/"num_hidden_layers":80/"num_hidden_layers":20/' bench/models/llama-70b.json >"$work/llama-70b-20.json"
    TR_PROFILE=${TR_PROFILE:-0} TR_STEPS=${TR_STEPS:-3} TR_LIMIT=${TR_LIMIT:-170} rows=${offload//CUT/$work/llama-70b-20.json} part_steps
    grep -E '^(==|  adamw)' "$out/steps.txt" | grep -B 1 '  adamw'
}
part_torch() {
    local name peer args
    [ -n "$python" ] && [ -e "$pack/torch_train.py" ] || { say "- torch: no PyTorch or no torch_train.py here"; return; }
    : >"$out/torch.txt"
    while read -r name peer args; do
        [ "${peer:--}" != - ] && [[ $name =~ ${TR_CASES:-.} ]] || continue
        # shellcheck disable=SC2086
        within 100 "$python" "$pack/torch_train.py" ${peer//,/ } >>"$out/torch.txt" 2>&1 || say "- torch $peer: failed or over its time"
    done <<<"$rows"
    grep PEER "$out/torch.txt" | sed 's/^/- /' | tee -a "$out/results.txt"
}
hf_model() { # CONFIG DIR: random weights of seed 1, as bench_gpu has them
    [ -e "$2/model.safetensors" ] || [ -e "$2/model.safetensors.index.json" ] ||
        "$bin/trireme" init --config "$1" --tokenizer bytes --seed 1 --out "$2" >"$out/init.txt" 2>&1
}
part_start() {
    local w=$work i
    mkdir -p "$w"
    [ -e "$w/text.jsonl" ] || python3 -c 'import json
for i in range(4000): print(json.dumps({"text": " ".join(str(i * k % 9973) for k in range(400))}))' >"$w/text.jsonl"
    hf_model bench/models/llama-1b.json "$w/llama-1b" || { say "- start: no model: $(tail -n 1 "$out/init.txt")"; bad=1; return; }
    say "- start: the first reads weights from the disk, at $(dd if="$w/llama-1b/model.safetensors" of=/dev/null bs=8M count=128 iflag=direct 2>&1 | tail -n 1 | sed 's/.*, //')"
    for i in 1 2 3; do
        rm -rf "$w/out"
        local a b job
        a=$(date +%s.%N) b=
        within 30 "$bin/trireme" train --device cuda --bf16 --model "$w/llama-1b" --data "$w/text.jsonl" --sequence_length 2048 \
            --per_device_train_batch_size 8 --max_steps 200 --save_steps 0 --data_proof none --output "$w/out" >"$out/start.txt" 2>&1 &
        job=$!
        while [ -z "$b" ] && kill -0 "$job" 2>/dev/null; do
            sleep 0.1
            b=$(sed -nE 's/.*"event":"step","time":([0-9.]+).*/\1/p' "$w/out/events.jsonl" 2>/dev/null | head -n 1)
        done
        pkill -KILL -f "$w/out" # the program; `within`, its parent, ends with it
        wait "$job" 2>/dev/null
        say "- start $i: Llama-1B shape, B8 T2048: end of step 1 after $(awk "BEGIN { printf \"%.2f\", ${b:-0} - $a }") s; $(grep -h '"event":"start"' "$w/out/events.jsonl" | cut -c 1-400)"
    done
}
losses() { [ ! -e "$1" ] || sed -nE 's/^step ([0-9]+): .*loss ([0-9.eE+-]+).*/\1 \2/p' "$1" | sort -k 1,1; }
apart() { # NAME A B: largest and mean distance of two curves over the steps they share
    say "- curve $1: $(join <(losses "$out/curve-$2.txt") <(losses "$out/curve-$3.txt") | awk '{ d = $2 > $3 ? $2 - $3 : $3 - $2; s += d
        if (d > m) { m = d; at = $1 } n++ } END { if (n) printf "%d steps, at most %.4f apart (step %d), mean %.5f", n, m, at, s / n; else print "nothing to compare" }')"
}
curve() { # NAME LIMIT ARGS...
    within "$2" "$bin/bench_gpu" "${@:3}" curve=1 >"$out/curve-$1.txt" 2>&1 || true # the CPU's may end early: what it has counts
}
cpu_job=
cpu_curves() { # 200 steps take minutes: from the beginning, on half of the cores, but not beside `start`, which reads weights with all of them
    [[ $parts == *curves* ]] && [ -z "$cpu_job" ] || return 0
    (end=$last && curve llama-cpu 999 bench/models/llama-1b.json rows=1 length=128 steps=197 device=cpu threads=$(($(nproc) / 2))) &
    (end=$last && curve gpt2-cpu 999 gpt2 rows=2 length=256 steps=197 device=cpu threads=2) &
    cpu_job=started
}
part_curves() {
    local name model rows length w=$work
    gpt2_config
    for name in gpt2 llama; do
        model=$gpt2 rows=2 length=256
        [ $name = gpt2 ] || model=bench/models/llama-1b.json rows=1 length=128
        # shellcheck disable=SC2086
        for args in dtype=float32 dtype=bfloat16 dtype=float16 "dtype=bfloat16 fp8=1"; do
            curve "$name-${args//[^a-z0-9]/}" 40 "$model" rows=$rows length=$length steps=197 device=cuda threads=8 $args
        done
        if [ -n "$python" ] && hf_model "$model" "$w/$(basename "$model" .json)"; then
            within 60 "$python" bench/curve_torch.py "$w/$(basename "$model" .json)" $rows $length 200 >"$out/curve-$name-torch.txt" 2>&1
        fi
        apart "$name: GPU bf16 and GPU fp32" $name-dtypebfloat16 $name-dtypefloat32
        apart "$name: GPU fp16 and GPU fp32" $name-dtypefloat16 $name-dtypefloat32
        apart "$name: GPU fp8 and GPU bf16" $name-dtypebfloat16fp81 $name-dtypebfloat16
        apart "$name: PyTorch bf16 and GPU fp32" $name-torch $name-dtypefloat32
        apart "$name: GPU bf16 and PyTorch bf16" $name-dtypebfloat16 $name-torch
    done
}
cpu_apart() {
    local name
    for name in gpt2 llama; do
        apart "$name: GPU fp32 and CPU fp32" $name-dtypefloat32 $name-cpu
        apart "$name: GPU bf16 and CPU fp32" $name-dtypebfloat16 $name-cpu
        apart "$name: PyTorch bf16 and CPU fp32" $name-torch $name-cpu
    done
}

# ---- what was asked for ----
speed="start limit steps torch" checks="ops golden strategies pipelines bits gradients curves memcheck racecheck"
parts=
for p in "${@:-speed checks}"; do
    case $p in
    checks) parts="$parts $checks" ;;
    speed) parts="$parts $speed" ;;
    "speed checks") parts="$speed $checks" ;;
    *) declare -F "part_$p" >/dev/null || { echo "gpu.sh: no part $p; there are: $speed $checks"; exit 2; } && parts="$parts $p" ;;
    esac
done
say "## $(date -u +%Y-%m-%d), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || echo no GPU), $(nproc) cores:$parts"
last=$((began + ${TR_SECONDS:-560}))
run() { # PART
    local start=$SECONDS
    end=$((SECONDS + limit[$1] < last ? SECONDS + limit[$1] : last))
    if [ $((end - start)) -lt 10 ]; then
        say "- $1: left out, no time"
        return
    fi
    "part_$1"
    echo "  ($1: $((SECONDS - start)) s, $((SECONDS - began)) s in all)"
}
jobs=
join_jobs() {
    local j
    for j in $jobs; do wait "$j" || bad=1; done
    jobs=
}
for p in $parts; do
    [ "$p" = start ] || cpu_curves
    case $p in
    ops | golden | strategies | pipelines | bits | gradients | curves)
        { run "$p"; exit $bad; } &
        jobs="$jobs $!"
        ;;
    *)
        join_jobs
        run "$p"
        ;;
    esac
done
join_jobs
if [ -n "$cpu_job" ]; then
    wait
    cpu_apart
fi
exit $bad
