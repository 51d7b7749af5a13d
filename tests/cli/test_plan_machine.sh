#!/usr/bin/env bash
# plan --machine: a forecast for chips nobody has here; names that do not exist are answered in one line with the nearest.
. "$(dirname "$0")/common.sh"

cat >config.json <<'EOF'
{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":512,"intermediate_size":1408,"num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":8,"vocab_size":1024,"max_position_embeddings":512,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false,"hidden_act":"silu"}
EOF
plan=("$TRIREME" plan --model config.json --sequence_length 256 --per_device_train_batch_size 2 --threads 1 --device cpu --bf16)

expect 0 "${plan[@]}" --dp 8 --zero 1 --machine H100-80GB@nv-ndr
grep -q 's a step' stdout || fail "plan --machine has no step time"
expect 0 "${plan[@]}" --pp 2 --gradient_accumulation_steps 4 --machine A100 --json
python3 - <<'EOF' || fail "the forecast is not in the JSON object"
import json
f = json.load(open("stdout"))["forecast"]
assert 0 < f["step_s"] < 10 and f["chips"] == 2 and f["bubble_s"] > 0, f
EOF
expect 2 "${plan[@]}" --machine H100-80GB@nv-ndx
grep -q 'nv-ndr' stderr && [ "$(wc -l <stderr)" = 1 ] || fail "a misspelt cluster is not answered with the nearest"
for pair in H900:H100-80GB B20:B200 MI300:MI300X H100SXM5:H100 TPUv5:V100; do
    expect 2 "${plan[@]}" --machine "${pair%:*}"
    grep -q "${pair#*:}" stderr && [ "$(wc -l <stderr)" = 1 ] || fail "no chip ${pair%:*} is answered without a legal one: $(cat stderr)"
done
# Beside a GPU's memory stands what must fit there; a checkpoint waits in the host's.
expect 0 "${plan[@]}" --device cuda --machine H200
grep -q '  w work  . free$' stdout || fail "the bar counts more than the GPU's memory: $(cat stdout)"
# Without --device the program is that of the machine's chips, not of this host's.
expect 0 "$TRIREME" plan --model config.json --sequence_length 256 --bf16 --machine H100
grep -q '^  beside ' stdout || fail "a plan for GPUs is not of a GPU's program: $(cat stdout)"
# Gathers and reductions of GPUs run behind kernels, as far as there are kernels to run behind.
printf 'base: H100-80GB@nv-ndr\nfast_gbps: 10\n' >slow.yaml
for machine in H100-80GB@nv-ndr slow.yaml; do
    expect 0 "$TRIREME" plan --model "$source_dir/bench/models/llama-8b.json" --sequence_length 4096 --per_device_train_batch_size 1 \
        --bf16 --dp 8 --zero 3 --machine $machine --json
    mv stdout "$(basename $machine .yaml).json"
done
python3 - <<'END' || fail "sharded weights do not travel behind kernels"
import json
fast, slow = (json.load(open(f))["forecast"] for f in ("H100-80GB@nv-ndr.json", "slow.json"))
assert 0 < fast["exposed_s"]["dp"] < 0.2 * fast["compute_s"], fast
assert slow["exposed_s"]["dp"] > slow["compute_s"] and slow["step_s"] > fast["step_s"], slow
END
expect 0 "$TRIREME" plan --machine list
grep -q 'GB200' stdout || fail "plan --machine list shows no chips"
grep -q 'H100-80GB .* NVIDIA H100 SXM5' stdout || fail "plan --machine list does not say what a chip is"
expect 0 "$TRIREME" plan --machine list --json
python3 - "$source_dir/share/machines" <<'END' || fail "plan --machine list --json is not the files of share/machines"
import json, os, sys
machines = json.load(open("stdout"))
for kind in ("chips", "clusters"):
    files = sorted(f[: -len(".yaml")] for f in os.listdir(os.path.join(sys.argv[1], kind)))
    assert [x["name"] for x in machines[kind]] == files, kind
h100 = next(x for x in machines["chips"] if x["name"] == "H100-80GB")
assert (h100["memory_gib"], h100["tflops"], h100["chips_per_link"], h100["fast_gbps"], h100["slow_gbps"]) == (80, 989.4, 8, 450, 50), h100
END
# The files are in the binary: carried alone, it knows them.
cp "$TRIREME" ./carried
expect 0 ./carried plan --machine list

expect 0 "${plan[@]}" --dp 4 --zero 2 --conventions zero
grep -q '> stage 2' stdout || fail "conventions do not mark the stage"
expect 0 "${plan[@]}" --tp 4 --sp --conventions korthikanti
grep -q 'selective' stdout || fail "korthikanti's table is missing"

# two ranks on two cores go by what one core does beside another; one rank with both cores does not
host() {
    cat <<END
tflops: 0.2
fp32_tflops: 0.2
memory_gib: 8
memory_gbps: 40
units: 2
chips_per_link: 2
chips_per_host: 2
ranks_share_a_chip: true
gemm_flop: [1e6, 1e9]
gemm_gflops: [100, 200]
one_gemm_flop: [1e6, 1e9]
one_gemm_gflops: [$1, $1]
END
}
seconds() { "$TRIREME" plan --model config.json --sequence_length 256 --per_device_train_batch_size 2 --device cpu --json "$@" |
    python3 -c 'import json, sys; print(json.loads(sys.stdin.read())["forecast"]["step_s"])'; }
host 90 >fast.yaml
host 45 >slow.yaml
[ "$(seconds --threads 2 --machine fast.yaml)" = "$(seconds --threads 2 --machine slow.yaml)" ] || fail "a rank with both cores goes by one core"
python3 -c "import sys; a, b = map(float, sys.argv[1:]); sys.exit(not 1.7 < b / a < 2.01)" \
    "$(seconds --threads 1 --dp 2 --machine fast.yaml)" "$(seconds --threads 1 --dp 2 --machine slow.yaml)" ||
    fail "two ranks on two cores do not go by the curve of one"
