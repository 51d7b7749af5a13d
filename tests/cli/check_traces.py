#!/usr/bin/env python3
"""check_traces.py PROFILE - runs the analyses of Holistic Trace Analysis (pip install HolisticTraceAnalysis) over the traces of a run, OUTPUT/profile of
`--profile` with four steps or more on two ranks or more, and compares what it finds with the events themselves. Prints a line for each."""
import glob
import json
import logging
import math
import sys

from hta.trace_analysis import TraceAnalysis

logging.disable(logging.WARNING)


def read(path):
    """Device events of the steps that HTA keeps: it leaves out the last one."""
    events = [e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X" and "cat" in e]
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("ProfilerStep"))
    launch = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] == "cuda_runtime"}
    inside = lambda e: steps[0][0] <= launch[e["args"]["correlation"]] <= steps[-2][1]
    return [whole(e) for e in events if e["cat"] in ("kernel", "gpu_memcpy") and inside(e)]


def whole(e):
    """HTA counts whole microseconds, the first rounded up and the last down, also where nothing or less is left."""
    begin, end = math.ceil(e["ts"]), math.floor(e["ts"] + e["dur"])
    return {**e, "ts": begin, "dur": end - begin}


def union(spans):
    """Of every run of spans that touch, the last end less the first begin: a span that was rounded to less than nothing counts so, as in HTA."""
    total, begin, end = 0, None, None
    for a, b in sorted(spans):
        if begin is None or a > end:
            total, begin, end = total + (0 if begin is None else end - begin), a, b
        end = max(end, b)
    return total + (0 if begin is None else end - begin)


def check(name, got, expected, bound):
    ok = abs(got - expected) <= bound * max(1, abs(expected))
    print(f"{name}: HTA {got:.1f}, the events {expected:.1f}{'' if ok else '  DIFFERENT'}")
    return ok


def main():
    files = {json.load(open(f))["distributedInfo"]["rank"]: f for f in sorted(glob.glob(sys.argv[1] + "/rank-*.json"))}
    analysis, good = TraceAnalysis(trace_files=files, trace_dir=""), True
    ranks = {rank: read(f) for rank, f in files.items()}
    times = analysis.get_temporal_breakdown(visualize=False)
    for _, row in times.iterrows():
        events = ranks[row["rank"]]
        busy = union((e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "kernel" and not e["name"].startswith("nccl"))
        good &= check(f"temporal breakdown, rank {row['rank']:.0f}, computing, us", row["compute_time(us)"], busy, 1e-9)
        good &= row["idle_time(us)"] >= 0
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    for _, row in overlap.iterrows():
        print(f"overlap of communication and computation, rank {row['rank']:.0f}: {row['comp_comm_overlap_pctg']:.1f} %")
        good &= 0 <= row["comp_comm_overlap_pctg"] <= 100
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=20)
    print(kinds.to_string(index=False))
    for name in ("linear", "ncclDevKernel_ReduceScatter"):
        got = kernels[(kernels["name"] == name) & (kernels["rank"] == 0)]["sum (us)"].sum()
        good &= check(f"kernel breakdown, {name}, us", got, sum(e["dur"] for e in ranks[0] if e["name"] == name), 1e-9)
    idle, _ = analysis.get_idle_time_breakdown(ranks=list(files), visualize=False)
    print(f"idle time breakdown: {len(idle)} rows")
    good &= len(idle) > 0
    for rank, table in analysis.get_cuda_kernel_launch_stats(ranks=list(files), visualize=False).items():
        print(f"launch statistics, rank {rank}: {len(table)} launches")
        good &= check("  launches", len(table), len(ranks[rank]), 1e-9)
    lengths = analysis.get_queue_length_summary(ranks=list(files))
    print(f"queue length: {len(lengths)} rows")
    bandwidth = analysis.get_memory_bw_summary(ranks=list(files))
    print(f"memory bandwidth: {len(bandwidth) if bandwidth is not None else 0} rows")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
