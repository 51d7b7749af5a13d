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
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --pp 2 --per_device_train_batch_size 1 --output stages --profile 2 --profile_steps 2
# with a machine the table has what it should take; the optimizer's part is one number times the parameters
printf 'tflops: 0.1\nmemory_gib: 8\nmemory_gbps: 20\nranks_share_a_chip: true\nupdate_ns: 1000\n' >host.yaml
expect 0 "$TRIREME" train "${options[@]}" --output one --profile 4 --profile_steps 3 --machine host.yaml # the last step ends it
cp stdout planned.txt
"$TRIREME" watch one --html one.html >/dev/null
"$TRIREME" plan "${options[@]:0:2}" --sequence_length 32 --json >plan.json
python3 - <<'PY'
import json, re
def events(path):
    whole = json.load(open(path))
    all = whole["traceEvents"]
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in all if e["name"] == "thread_name"}
    out = {"file": whole, "launches": {e["args"]["correlation"]: e for e in all if e.get("cat") == "cuda_runtime"},
           "steps": [e for e in all if e["name"].startswith("ProfilerStep#")], "planned": [e for e in all if e["ph"] == "X" and "cat" not in e]}
    for e in all:
        if e["ph"] == "X":
            assert e["dur"] >= 0 and e["ts"] > 0
        if e["ph"] == "X" and e["pid"] < 1000000:
            out.setdefault(tracks[e["pid"], e["tid"]].split(" of ")[0], []).append(e)
    return out
for rank in (0, 1):
    t = events(f"seen/profile/rank-{rank:04d}.json")
    assert all(e["pid"] == rank for track in ("actions", "compute", "communication", "waiting") for e in t[track])
    assert {e["name"] for e in t["actions"]} >= {"forward", "backward", "gather", "reduce", "update"}, t["actions"]
    for e in t["compute"]:
        if e["args"].get("action") in ("forward", "backward"):
            assert any(a["ts"] <= e["ts"] and e["ts"] + e["dur"] <= a["ts"] + a["dur"] + 0.01 for a in t["actions"]), e
    sites = {e["args"].get("site") for e in t["communication"]}
    assert {"gather parameters", "reduce gradients", "losses"} <= sites, sites
    assert len(t["waiting"]) > 0
    # What PyTorch's readers look for: the rank, the steps, communication by its name, and a launch before whatever runs on a device.
    assert t["file"]["distributedInfo"] == {"backend": "shm", "rank": rank, "world_size": 2}, t["file"]["distributedInfo"]
    assert [e["name"] for e in t["steps"]] == ["ProfilerStep#2", "ProfilerStep#3"] and not t["planned"]
    assert t["steps"][0]["ts"] + t["steps"][0]["dur"] <= t["steps"][1]["ts"]
    assert {e["name"] for e in t["communication"]} >= {"ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter"}
    for e in t["compute"] + t["communication"]:
        assert e["cat"] == "kernel" and t["launches"][e["args"]["correlation"]]["ts"] <= e["ts"], e
        assert any(s["ts"] <= t["launches"][e["args"]["correlation"]]["ts"] <= s["ts"] + s["dur"] for s in t["steps"]), e
    # Two steps of one schedule: everything happens twice.
    assert all(n % 2 == 0 for n in [len(t["actions"]), sum(e["name"] == "linear" for e in t["compute"])])
# Messages of both directions are under way at once. On one line of the timeline events lie in each other or behind each other: Perfetto drops the rest.
for rank in (0, 1):
    lines = {}
    for e in json.load(open(f"stages/profile/rank-{rank:04d}.json"))["traceEvents"]:
        if e["ph"] == "X":
            lines.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"], e["name"]))
    assert any(n.startswith("ncclDevKernel_Send") for all in lines.values() for _, _, n in all)
    for line in lines.values():
        inside = []
        for begin, end, name in sorted(line, key=lambda x: (x[0], -x[1])):
            while inside and inside[-1][1] <= begin:
                inside.pop()
            assert not inside or end <= inside[-1][1] + 1e-6, (name, begin, end, inside[-1])
            inside.append((begin, end, name))
table = open("table.txt").read()
assert re.search(r"^linear +\d+ +[\d.]+", table, re.M), table
whole, busy, held, idle = map(float, re.search(
    r"of ([\d.]+) ms a step: ([\d.]+) computing, ([\d.]+) held up by communication, ([\d.]+) idle", table).groups())
assert busy > 0 and held > 0 and (idle == 0 or abs(busy + held + idle - whole) < 0.01), table
planned = float(re.search(r"^adamw +\d+ +[\d.]+ +([\d.]+) ", open("planned.txt").read(), re.M).group(1))
assert abs(planned - json.load(open("plan.json"))["parameters"] * 1e-3) < 0.01, planned
one = events("one/profile/rank-0000.json")
assert len(one["actions"]) > 0
# One rank has nobody to talk to: HTA fails over kernels of communication that are shorter than a microsecond.
assert not [e for e in json.load(open("one/profile/rank-0000.json"))["traceEvents"] if e["name"].startswith("nccl")]
# The plan of a step stands beside what was measured, from the same instant on.
page = json.loads(re.search(r'id="data">(.*?)</script>', open("one.html").read(), re.S).group(1))
shown = [x for x in page["/api/timeline?run=0"]["measured"] if x[3] in ("forward", "backward")]
first = [e for e in one["actions"] if e["name"] in ("forward", "backward") and e["ts"] < one["steps"][0]["ts"] + one["steps"][0]["dur"]]
assert [x[3] for x in shown] == [e["name"] for e in first] and abs(shown[0][2] * 1e6 - first[0]["dur"]) < 0.01, (shown[:3], first[:3])
assert {e["name"] for e in one["planned"]} >= {"forward", "backward", "update"} and one["planned"][0]["ts"] == one["steps"][0]["ts"], one["planned"][:3]
PY
# The memory of a step that has not run: what the plan says, value by value.
for layout in "--dp 2 --zero 3 --recompute block" "--pp 2 --pp_schedule zb --dp 2 --zero 1" "--tp 2 --sp --zero 2 --dp 2"; do
    # shellcheck disable=SC2086
    expect 0 "$TRIREME" plan --model model --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 1 $layout --json \
        --memory_picture step.pickle
    python3 "$source_dir/tests/cli/snapshot.py" step.pickle stdout || fail "snapshot of $layout"
done
expect 2 "$TRIREME" plan --model model --sequence_length 32 --memory_picture step.png
