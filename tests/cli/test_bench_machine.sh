#!/usr/bin/env bash
# bench machine: its file has every number, all of them possible, and plan reads it.
. "$(dirname "$0")/common.sh"
tiny_model model

expect 0 "$TRIREME" bench machine --seconds 0.001 --threads 2
cp stdout host.yaml
python3 - <<'EOF' || fail "a number is missing or impossible"
values = dict(line.strip().split(": ") for line in open("host.yaml") if not line.startswith("#"))
may_be_zero = {"fp8_tflops", "fp4_tflops", "generation", "launch_us", "price", "fast_ramp_us", "slow_ramp_us"}
may_be_zero |= {"meet_share", "meet_far_share", "attention_row_ns", "attention_row_bwd_ns", "one_attention_row_ns", "one_attention_row_bwd_ns"}
for key, value in values.items():
    if key in ("name", "ranks_share_a_chip"):
        continue
    numbers = [float(x) for x in value.strip("[]").split(",")]
    assert all(0 <= x < 1e15 if key in may_be_zero else 0 < x < 1e15 for x in numbers), (key, value)
for key in ("gemm_gflops", "one_gemm_gflops", "glu_ns", "one_loss_ns", "one_attention_bwd_ns", "fast_gbps", "meet_share"):
    assert key in values, key
assert values["units"] == "2" and len(values["gemm_flop"].split(",")) == len(values["gemm_gflops"].split(","))
EOF
expect 0 "$TRIREME" bench machine --seconds 0.001 --threads 2 --json
python3 - <<'PY' || fail "--json: $(head -c 300 stdout)"
import json
lines = dict(line.strip().split(": ") for line in open("host.yaml") if not line.startswith("#"))
found = json.load(open("stdout"))
assert found.keys() == lines.keys() and found["name"] == "this host" and found["units"] == 2 and isinstance(found["gemm_flop"], list), found
PY
for layout in "--threads 2" "--threads 1 --dp 2" "--threads 1 --tp 2"; do
    # shellcheck disable=SC2086
    expect 0 "$TRIREME" plan --model model --sequence_length 32 --device cpu --machine host.yaml --json $layout
    python3 -c 'import json; assert 0 < json.load(open("stdout"))["forecast"]["step_s"] < 10' || fail "no forecast by the host for $layout"
done
