#!/usr/bin/env python3
"""Predicted beside measured step time for layouts on this host's CPU.

    bench/plan_layouts.py TRIREME DIR [--rounds 3] [--seconds 2] [--only N:M]   # one JSON line a layout, then a summary

A round goes through all layouts: before every tenth it measures the host (bench machine), and then, for each, makes the
forecast and trains on random text for about --seconds, three steps at least. A layout's time in a round is the median
step after the first, its error the median over the rounds, which are spread over time because a shared host is faster at
times. They are kept in DIR: later calls add to them (--rounds 0 only reports). A round takes five minutes on two cores
that are otherwise idle. Models and text are made under DIR.
"""
import argparse
import glob
import json
import os
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


def one_round(a, number, chosen):
    for k, (i, layout) in enumerate(chosen):
        if k % a.host_every == 0:
            host = os.path.join(a.dir, f"host-{number}-{i}.yaml")
            with open(host, "w") as f:
                subprocess.run([a.trireme, "bench", "machine", "--seconds", "0.1"], stdout=f, check=True)
        common = options(a.dir, *layout)
        predicted = predict(a.trireme, host, common)
        n_steps = max(3, min(20, 1 + int(a.seconds / predicted)))
        step_s = measure(a.trireme, a.dir, common, layout[4], n_steps)
        row = dict(layout=i, round=number, predicted_s=predicted, step_s=step_s)
        with open(os.path.join(a.dir, "measured.jsonl"), "a") as f:
            f.write(json.dumps(row) + "\n")


def report(a, chosen):
    errors = []
    rows = [json.loads(x) for x in open(os.path.join(a.dir, "measured.jsonl"))]
    for i, (model, rows_, length, micro, ranks, flags) in chosen:
        mine = [r for r in rows if r["layout"] == i]
        if not mine:
            continue
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
    p.add_argument("--host_every", type=int, default=10)
    p.add_argument("--only", default="0:1000")
    p.add_argument("--seconds", type=float, default=2)
    a = p.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    make(a.trireme, a.dir)
    first, last = (int(x) for x in a.only.split(":"))
    chosen = [(i, layout) for i, layout in enumerate(layouts()) if first <= i < last]
    for _ in range(a.rounds):
        one_round(a, int(time.time()), chosen)
    report(a, chosen)


main()
