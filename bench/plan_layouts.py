#!/usr/bin/env python3
"""Predicted beside measured step time for layouts on this host's CPU.

    trireme bench machine > host.yaml
    bench/plan_layouts.py TRIREME host.yaml DIR [--only N:M] [--seconds 4]   # one JSON line a layout, then a summary

A layout is trained on random text for about --seconds, four steps at least; its time is the median step after the first.
50 layouts take about six minutes on an idle machine. Models and text are made under DIR.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess

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


def main():
    p = argparse.ArgumentParser()
    p.add_argument("trireme")
    p.add_argument("machine")
    p.add_argument("dir")
    p.add_argument("--only", default="0:1000")
    p.add_argument("--seconds", type=float, default=4)
    a = p.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    make(a.trireme, a.dir)
    first, last = (int(x) for x in a.only.split(":"))
    errors = []
    for i, (model, rows, length, micro, ranks, flags) in enumerate(layouts()):
        if not first <= i < last:
            continue
        threads = max(1, (os.cpu_count() or 1) // ranks)
        common = ["--model", os.path.join(a.dir, model), "--sequence_length", str(length), "--per_device_train_batch_size",
                  str(rows), "--gradient_accumulation_steps", str(micro), "--threads", str(threads)] + flags.split()
        plan = subprocess.run([a.trireme, "plan", "--machine", a.machine, "--json", "--device", "cpu"] + common,
                              capture_output=True, text=True)
        if plan.returncode != 0:
            print(json.dumps(dict(layout=i, model=model, flags=flags, error=plan.stderr.strip())), flush=True)
            continue
        predicted = json.loads(plan.stdout.strip().split("\n")[-1])["forecast"]["step_s"]
        n_steps = max(4, min(20, 1 + int(a.seconds / predicted)))
        out = os.path.join(a.dir, "out")
        shutil.rmtree(out, ignore_errors=True)
        train = [a.trireme]
        if ranks > 1:
            train += ["launch", "--nproc-per-node", str(ranks)]
        train += ["train", "--data", os.path.join(a.dir, "text.jsonl"), "--output", out, "--max_steps", str(n_steps),
                  "--logging_steps", "1", "--save_steps", "0", "--quiet", "--device", "cpu", "--data_proof", "none"] + common
        run = subprocess.run(train, capture_output=True, text=True)
        if run.returncode != 0:
            print(json.dumps(dict(layout=i, model=model, flags=flags, error=run.stderr.strip()[-300:])), flush=True)
            continue
        steps = [json.loads(x) for x in open(os.path.join(out, "events.jsonl"))]
        steps = [x for x in steps if x["event"] == "step"]
        measured = statistics.median(x["tokens"] / x["tokens_per_s"] for x in steps[1:])
        error = 100 * (predicted - measured) / measured
        errors.append(abs(error))
        print(json.dumps(dict(layout=i, model=model, rows=rows, length=length, flags=flags, ranks=ranks,
                              predicted_s=round(predicted, 5), measured_s=round(measured, 5), error_pct=round(error, 2))), flush=True)
    if errors:
        errors.sort()
        print(json.dumps(dict(layouts=len(errors), mean_abs_error_pct=round(sum(errors) / len(errors), 2),
                              worst=errors[-1], within_15=sum(e <= 15 for e in errors))))


main()
