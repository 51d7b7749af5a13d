#!/usr/bin/env python3
"""snapshot.py FILE.pickle PLAN.json - a planned memory snapshot holds together: allocations lie in their segments and never on one another, what is
freed was allocated, blocks fill their segments, and segments are the plan's arenas. With torch.cuda._memory_viz (PyTorch) beside it:
`python -m torch.cuda._memory_viz trace_plot FILE.pickle -o page.html` makes the page that pytorch.org/memory_viz shows."""
import json
import pickle
import pickletools
import sys

# the page reads pickles itself: these opcodes, and of each event a category only where one of them is "unknown"
known = {"PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "SETITEMS", "APPENDS", "BINUNICODE", "LONG1", "BININT", "BININT1", "BININT2"}
opcodes = {op.name for op, _, _ in pickletools.genops(open(sys.argv[1], "rb").read())}
assert opcodes <= known, opcodes - known
snapshot, plan = pickle.load(open(sys.argv[1], "rb")), json.load(open(sys.argv[2]))
for device, trace in enumerate(snapshot["device_traces"]):
    segments = [s for s in snapshot["segments"] if s["device"] == device]
    live, now, peak = {}, 0, 0
    for event in trace:
        first, size = event["addr"], event["size"]
        assert "category" not in event, event
        assert any(s["address"] <= first and first + size <= s["address"] + s["total_size"] for s in segments), event
        if event["action"] == "alloc":
            for other, (n, what) in live.items():
                assert first + size <= other or other + n <= first, ("on one another", event, what)
            live[first] = size, event
            now, peak = now + size, max(peak, now + size)
        elif event["action"] == "free_completed":
            assert live.pop(first)[0] == size, event
            now -= size
    total = 0
    for s in segments:
        at = s["address"]
        for block in s["blocks"]:
            assert block["address"] == at, (s, block)
            at += block["size"]
        assert at == s["address"] + s["total_size"], s
        total += s["total_size"]
    static = sum(b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated")
    assert now == static < peak <= total, (device, now, static, peak, total)
    assert total == plan["ranks"][device * len(plan["ranks"]) // len(snapshot["device_traces"])]["total_bytes"], total
