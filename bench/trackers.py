#!/usr/bin/env python3
"""trackers.py TRIREME [--pairs N] [--steps N] [--length N] [--batch N] [--threads N] [--calls] - what trackers cost a step.

Runs with and without `--report_to all --metrics_file` alternate. Of every one:
- wall: from the first step of its log to the last, per step. The honest number, on a machine that does nothing else.
and from the kernel (/proc/PID/task/*/schedstat, nanoseconds on a core):
- step: CPU time of the thread that makes the steps, per step. Other programs on the machine disturb it less than wall time; pairs and a
  bootstrap of their ratios say how much they do.
- trackers: CPU time of the trackers' thread (the one of nice 10), per step. Where every core is taken it is what the steps may lose, so
  trackers / step is an upper bound that does not depend on the noise of the pairs.
With --calls, instead of pairs: system calls of the thread that makes the steps, per step, by name, of one run without and one with trackers (Debian's strace).
They are the same on a busy machine as on a quiet one, but for `futex`, the calls with which it waits.
Prints one JSON object; bounds are those of 95 % of the bootstrap."""
import argparse
import collections
import glob
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

p = argparse.ArgumentParser()
p.add_argument("trireme", type=os.path.abspath)
p.add_argument("--pairs", type=int, default=30)
p.add_argument("--steps", type=int, default=60)
p.add_argument("--length", type=int, default=256)
p.add_argument("--batch", type=int, default=4)
p.add_argument("--threads", type=int, default=1)
p.add_argument("--calls", action="store_true")
args = p.parse_args()
source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def threads(pid):
    """{tid: (nanoseconds on a core, nice)} of a process that lives."""
    out = {}
    for task in glob.glob(f"/proc/{pid}/task/*"):
        try:
            stat = open(task + "/stat").read().rsplit(")", 1)[1].split()
            out[int(task.rsplit("/", 1)[1])] = (int(open(task + "/schedstat").read().split()[0]), int(stat[16]))
        except (OSError, IndexError):
            pass
    return out


def start(steps, more, before=()):
    shutil.rmtree("out", ignore_errors=True)
    return subprocess.Popen([*before, args.trireme, "train", "--model", "model", "--data", "text.txt", "--output", "out", "--sequence_length", str(args.length),
                             "--per_device_train_batch_size", str(args.batch), "--max_steps", str(steps), "--save_steps", "0", "--threads", str(args.threads),
                             "--quiet", *more],
                            stdout=subprocess.DEVNULL)


def calls(*more):
    """{system call: how often a step} of the first thread, without those of the start and the end: of two runs, one with twice the steps."""
    counts = []
    for steps in (args.steps, 2 * args.steps):
        assert start(steps, more, ["strace", "-ff", "-o", "calls"]).wait() == 0
        files = sorted(glob.glob("calls.*"), key=lambda f: int(f.split(".")[1]))
        counts.append(collections.Counter(re.match(r"\w*", line)[0] for line in open(files[0])))
        for f in files:
            os.unlink(f)
    return {name: round((n - counts[0][name]) / args.steps, 3) for name, n in counts[1].most_common() if n - counts[0][name] > args.steps / 50}


def train(*more):
    """Microseconds a step: by the clock, of the step's thread, of the trackers' thread."""
    run = start(args.steps, more)
    seen = {}
    while run.poll() is None:
        seen.update(threads(run.pid))
        time.sleep(0.01)
    assert run.returncode == 0
    base = os.nice(0)
    trackers = sum(ns for ns, nice in seen.values() if nice > base)
    times = [e["time"] for e in map(json.loads, open("out/events.jsonl")) if e["event"] == "step"]
    return (times[-1] - times[0]) / (len(times) - 1) * 1e6, seen[run.pid][0] / args.steps / 1e3, trackers / args.steps / 1e3


def bounds(x):
    rng = random.Random(1)
    all = sorted(statistics.median(rng.choices(x, k=len(x))) for _ in range(2000))
    return [all[50], all[-51]]


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    os.environ["TRACKIO_DIR"] = work + "/trackio"
    subprocess.run([args.trireme, "init", "--config", f"{source}/examples/quickstart/config.json", "--tokenizer", "bytes", "--out", "model", "--quiet"], check=True)
    shutil.copy("/usr/share/common-licenses/GPL-3", "text.txt")
    trackers = ["--report_to", "all", "--metrics_file", "out/metrics.prom"]
    if args.calls:
        print(json.dumps({"steps": args.steps, "without": calls(), "with": calls(*trackers)}))
        os.chdir(source)
        sys.exit()
    runs = {True: [], False: []}
    train()
    for i in range(args.pairs):
        for is_on in (i % 2 == 0, i % 2 == 1):  # neither is always the first
            runs[is_on].append(train(*(trackers if is_on else [])))
    out = {"pairs": args.pairs, "steps": args.steps, "tokens": args.length * args.batch, "threads": args.threads}
    for which, name in enumerate(("wall", "step")):
        on, off = ([r[which] for r in runs[x]] for x in (True, False))
        ratio = [100 * (a / b - 1) for a, b in zip(on, off)]
        out[name] = {"us": round(statistics.median(off), 1), "with_trackers_us": round(statistics.median(on), 1), "difference_percent": round(statistics.median(ratio), 3),
                     "bounds_percent": [round(x, 3) for x in bounds(ratio)]}
    side = statistics.median(r[2] for r in runs[True])
    print(json.dumps({**out, "trackers_us": round(side, 1), "trackers_of_a_step_percent": round(100 * side / out["step"]["us"], 3)}))
    os.chdir(source)
