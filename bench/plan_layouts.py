#!/usr/bin/env python3
"""Predicted beside measured step time for layouts on this host's CPU.

    bench/plan_layouts.py TRIREME DIR [--rounds 3] [--seconds 2] [--only N:M]   # one JSON line a layout, then a summary

A round goes through all layouts, in an order of its own, and trains each on random text for about --seconds, three steps
after the first at least; their median is its time. A shared host has other speeds from minute to minute, so it is measured
(bench machine, one short pass) before every layout, and a layout is forecast by the median of each number over the three
measurements before it and the three after: both sides see the same moments. A layout's error is the median over rounds.
All is kept in DIR: later calls add to it (--rounds 0 only reports, by the planner of that day); a call with --only is a round
of those. A round takes six minutes on two cores that are otherwise idle. Models and text are made under DIR.
"""
import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import time

MODELS = {
    "s": dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4),
    "m": dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2),
    "l": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4),
}
TWO = ["--dp 2", "--dp 2 --zero 1", "--dp 2 --zero 2", "--dp 2 --zero 3", "--tp 2", "--tp 2 --sp", "--cp 2",
       "--cp 2 --cp_mode ulysses", "--pp 2 --pp_schedule gpipe", "--pp 2", "--pp 2 --pp_schedule zb",
       "--pp 2 --pp_schedule interleaved --pp_chunks 2"]


def layouts():
    for model in MODELS:
        for rows, length in ((4, 128), (2, 256)):
            for recompute in ("none", "block"):
                yield model, rows, length, 2, 1, f"--recompute {recompute}"
    for model in MODELS:
        for flags in TWO:
            yield model, 2, 256, 1 if model == "l" and "pp" not in flags else 4, 2, flags
    yield "m", 4, 256, 1, 1, ""
    yield "l", 4, 256, 1, 1, ""


def make(trireme, where):
    text = os.path.join(where, "text.jsonl")
    with open(text, "w") as f:
        for i in range(4000):
            f.write(json.dumps({"text": " ".join(str((i * 7919 + k * k) % 10007) for k in range(200))}) + "\n")
    for name, shape in MODELS.items():
        config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=4096, rms_norm_eps=1e-5,
                      max_position_embeddings=1024, rope_theta=10000.0, tie_word_embeddings=False, hidden_act="silu", **shape)
        path = os.path.join(where, f"{name}.json")
        json.dump(config, open(path, "w"))
        out = os.path.join(where, name)
        if not os.path.isdir(out):
            subprocess.run([trireme, "init", "--config", path, "--tokenizer", "bytes", "--out", out, "--quiet"], check=True)


def options(where, model, rows, length, micro, ranks, flags):
    threads = max(1, (os.cpu_count() or 1) // ranks)
    return ["--model", os.path.join(where, model), "--sequence_length", str(length), "--per_device_train_batch_size",
            str(rows), "--gradient_accumulation_steps", str(micro), "--threads", str(threads)] + flags.split()


def predict(trireme, host, common):
    plan = subprocess.run([trireme, "plan", "--machine", host, "--json", "--device", "cpu"] + common, capture_output=True,
                          text=True, check=True)
    return json.loads(plan.stdout.strip().split("\n")[-1])["forecast"]["step_s"]


def measure(trireme, where, common, ranks, n_steps):
    out = os.path.join(where, "out")
    shutil.rmtree(out, ignore_errors=True)
    launch = ["launch", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    subprocess.run([trireme] + launch + ["train", "--data", os.path.join(where, "text.jsonl"), "--output", out, "--max_steps",
                   str(n_steps), "--logging_steps", "1", "--save_steps", "0", "--quiet", "--device", "cpu", "--data_proof",
                   "none"] + common, stdout=subprocess.DEVNULL, check=True)
    steps = [json.loads(x) for x in open(os.path.join(out, "events.jsonl"))]
    return statistics.median(x["tokens"] / x["tokens_per_s"] for x in [x for x in steps if x["event"] == "step"][1:])


BESIDE = 3  # measurements of the host on each side of a layout


def host_file(where, number, k):
    return os.path.join(where, f"host-{number}-{k}.yaml")


def measure_host(a, number, k):
    with open(host_file(a.dir, number, k), "w") as f:
        subprocess.run([a.trireme, "bench", "machine", "--seconds", "0.003"], stdout=f, check=True)


def middle_host(where, number, first):
    """The median of each number over the measurements beside a layout, as such a file."""
    texts = [open(host_file(where, number, first + k)).read().splitlines() for k in range(2 * BESIDE)]
    path = os.path.join(where, "host.yaml")
    with open(path, "w") as f:
        for lines in zip(*texts):
            key, colon, value = lines[0].partition(": ")
            if re.fullmatch(r"[][\d.e+, -]+", value):
                each = [[float(x) for x in line.partition(": ")[2].strip("[]").split(",")] for line in lines]
                middle = ", ".join(f"{statistics.median(x):.6g}" for x in zip(*each))
                value = f"[{middle}]" if "[" in value else middle
            f.write(f"{key}{colon}{value}\n")
    return path


def one_round(a, number, chosen):
    random.Random(number).shuffle(chosen)
    for k in range(BESIDE - 1):
        measure_host(a, number, k)
    for k, (i, layout) in enumerate(chosen):
        last = k + BESIDE - 1
        measure_host(a, number, last)
        common = options(a.dir, *layout)
        n_steps = max(4, min(30, 1 + int(a.seconds / predict(a.trireme, host_file(a.dir, number, last), common))))
        row = dict(layout=i, round=number, first_host=k, step_s=measure(a.trireme, a.dir, common, layout[4], n_steps))
        with open(os.path.join(a.dir, "measured.jsonl"), "a") as f:
            f.write(json.dumps(row) + "\n")
    for k in range(BESIDE):
        measure_host(a, number, len(chosen) + BESIDE - 1 + k)


def report(a, chosen):
    errors = []
    rows = [json.loads(x) for x in open(os.path.join(a.dir, "measured.jsonl"))]
    for i, (model, rows_, length, micro, ranks, flags) in chosen:
        mine = [r for r in rows if r["layout"] == i]
        if not mine:
            continue
        for r in mine:
            host = middle_host(a.dir, r["round"], r["first_host"])
            r["predicted_s"] = predict(a.trireme, host, options(a.dir, model, rows_, length, micro, ranks, flags))
        each = sorted(100 * (r["predicted_s"] / r["step_s"] - 1) for r in mine)
        errors.append(abs(statistics.median(each)))
        print(json.dumps(dict(layout=i, model=model, rows=rows_, length=length, micro=micro, ranks=ranks, flags=flags,
                              predicted_s=round(statistics.median(r["predicted_s"] for r in mine), 5),
                              measured_s=round(statistics.median(r["step_s"] for r in mine), 5),
                              error_pct=round(statistics.median(each), 2), rounds=[round(e, 1) for e in each])), flush=True)
    errors.sort()
    print(json.dumps(dict(layouts=len(errors), mean_abs_error_pct=round(sum(errors) / len(errors), 2),
                          worst=round(errors[-1], 2), within_15=sum(e <= 15 for e in errors))))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("trireme")
    p.add_argument("dir")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", default="0:1000")
    p.add_argument("--seconds", type=float, default=2)
    a = p.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    make(a.trireme, a.dir)
    first, last = (int(x) for x in a.only.split(":"))
    chosen = [(i, layout) for i, layout in enumerate(layouts()) if first <= i < last]
    for _ in range(a.rounds):
        one_round(a, int(time.time()), list(chosen))
    report(a, chosen)


main()
