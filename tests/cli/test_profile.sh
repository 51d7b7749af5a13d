#!/usr/bin/env bash
# --profile: every rank writes a timeline that tools read, in which kernels lie inside their actions and collectives are those of the
# schedule; rank 0 prints a table whose parts add up; the bits of the run stay the same.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 4 --learning_rate 1e-2 --data_proof none
    --threads 1)
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero 3 --output plain
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero 3 --output seen --profile 2 --profile_steps 2
same plain/model.safetensors seen/model.safetensors
[ ! -e plain/profile ] || fail "a profile nobody asked for"
cp stdout table.txt
# with a machine the table has what it should take; the optimizer's part is one number times the parameters
printf 'tflops: 0.1\nmemory_gib: 8\nmemory_gbps: 20\nranks_share_a_chip: true\nupdate_ns: 1000\n' >host.yaml
expect 0 "$TRIREME" train "${options[@]}" --output one --profile 4 --profile_steps 3 --machine host.yaml # the last step ends it
cp stdout planned.txt
"$TRIREME" plan "${options[@]:0:2}" --sequence_length 32 --json >plan.json
python3 - <<'PY'
import json, re
def events(path):
    all = json.load(open(path))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in all if e["name"] == "thread_name"}
    out = {}
    for e in all:
        if e["ph"] == "X":
            assert e["dur"] >= 0 and e["ts"] > 0
            out.setdefault(tracks[e["tid"]], []).append(e)
    return out
for rank in (0, 1):
    t = events(f"seen/profile/rank-{rank:04d}.json")
    assert all(e["pid"] == rank for track in t.values() for e in track)
    assert {e["name"] for e in t["actions"]} >= {"forward", "backward", "gather", "reduce", "update"}, t["actions"]
    for e in t["compute"]:
        if e["args"].get("action") in ("forward", "backward"):
            assert any(a["ts"] <= e["ts"] and e["ts"] + e["dur"] <= a["ts"] + a["dur"] + 0.01 for a in t["actions"]), e
    sites = {e["args"].get("site") for e in t["communication"]}
    assert {"gather parameters", "reduce gradients", "losses"} <= sites, sites
    assert len(t["waiting"]) > 0
    # Two steps of one schedule: everything happens twice.
    assert all(n % 2 == 0 for n in [len(t["actions"]), sum(e["name"] == "linear" for e in t["compute"])])
table = open("table.txt").read()
assert re.search(r"^linear +\d+ +[\d.]+", table, re.M), table
whole, busy, held, idle = map(float, re.search(
    r"of ([\d.]+) ms a step: ([\d.]+) computing, ([\d.]+) held up by communication, ([\d.]+) idle", table).groups())
assert busy > 0 and held > 0 and (idle == 0 or abs(busy + held + idle - whole) < 0.01), table
planned = float(re.search(r"^adamw +\d+ +[\d.]+ +([\d.]+) ", open("planned.txt").read(), re.M).group(1))
assert abs(planned - json.load(open("plan.json"))["parameters"] * 1e-3) < 0.01, planned
assert len(events("one/profile/rank-0000.json")["actions"]) > 0
PY
