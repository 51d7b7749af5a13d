#!/usr/bin/env python3
"""take.py TRIREME OUTDIR - pictures of every panel of `watch --http` for docs/guide/watch.md, taken in Chromium.

A small model trains on two ranks with a profile; one rank is killed on the way and the group starts again. Texts that the
run does not generate itself and loads of experts, which no model of ours has yet, are written into the log by hand."""
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.abspath(__file__ + "/../../../..")
sys.path.insert(0, f"{SOURCE}/tests/cli")
from browser import Browser  # noqa: E402

TRIREME, OUT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
STEPS = 150


def run(*args):
    subprocess.run([TRIREME, *args], check=True, stdout=subprocess.DEVNULL)


def steps(out):
    try:
        return sum('"event":"step"' in line for line in open(f"{out}/events.jsonl"))
    except FileNotFoundError:
        return 0


def train():
    run("init", "--config", f"{SOURCE}/examples/quickstart/config.json", "--tokenizer", "bytes", "--out", "model", "--quiet")
    subprocess.run(["cp", "/usr/share/common-licenses/GPL-3", "text.txt"], check=True)
    with open("chat.jsonl", "w") as f:
        for i in range(400):
            f.write(json.dumps({"messages": [{"role": "user", "content": f"What is {i} and {i + 1}?"}, {"role": "assistant", "content": f"It is {2 * i + 1}."}]}) + "\n")
    common = ["--model", "model", "--sequence_length", "64", "--threads", "1"]
    run("train", *common, "--quiet", "--data", "text.txt", "--output", "first", "--max_steps", str(STEPS), "--learning_rate", "3e-4")
    group = subprocess.Popen([TRIREME, "launch", "--nproc-per-node", "2", "--max-restarts", "3", "train", *common, "--data", "text.txt", "--data", "chat.jsonl", "--chat_template", "chatml", "--eval_data", "text.txt",
                              "--output", "oars", "--pp", "2", "--train_batch_size", "4", "--per_device_train_batch_size", "1", "--max_steps", str(STEPS), "--save_steps", "25",
                              "--eval_steps", "25", "--grad_norm_steps", "2", "--profile", "110", "--machine", "H100", "--learning_rate", "1e-3"], stdout=subprocess.DEVNULL)
    while steps("oars") < 60 and group.poll() is None:
        time.sleep(0.05)
    run("ctl", "oars", "save")
    run("ctl", "oars", "set", "learning_rate=8e-4")
    ranks = json.loads(subprocess.run([TRIREME, "watch", "oars", "--json"], stdout=subprocess.PIPE, check=True).stdout)["ranks"]
    os.kill(ranks[1]["at"]["pid"], signal.SIGKILL)
    if group.wait() != 0:
        sys.exit(f"the run ended with {group.returncode}")
    lines = open("oars/events.jsonl").read()
    with open("oars/events.jsonl", "a") as f:
        def event(kind, **more):
            f.write(json.dumps({"event": kind, "time": time.time(), "run": "x", "schema": 1, **more}) + "\n")
        if '"event":"sample"' not in lines:
            event("sample", step=75, prompt="This program is", text=" the the of program and, the")
            event("sample", step=STEPS, prompt="This program is", text=" free software: you can redistribute it")
            event("sample", step=STEPS, prompt="What is 3 and 4?", text=" It is 7.")
        event("experts", step=STEPS, layers=[{"layer": i, "load": load, "entropy": h, "rounds": n} for i, (load, h, n) in enumerate((
            ([0.13, 0.12, 0.12, 0.13, 0.125, 0.125, 0.13, 0.12], 2.08, 1), ([0.3, 0.2, 0.1, 0.15, 0.1, 0.1, 0.03, 0.02], 1.83, 3),
            ([0.16, 0.1, 0.14, 0.11, 0.12, 0.13, 0.11, 0.13], 2.06, 2)))])


def photograph():
    browser = Browser()
    server = subprocess.Popen([TRIREME, "watch", "oars", "first", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    url = server.stdout.readline().strip()
    try:
        browser.size(1180, 900)
        browser.open(url)
        browser.run("document.querySelectorAll('.panel details').forEach(e => e.open = false)")
        browser.shot(f"{OUT}/watch-page.png")
        for panel in browser.run("T.panels.map(p => p.id).filter(id => !document.getElementById('panel-' + id).hidden)"):
            browser.shot(f"{OUT}/watch-{panel}.png", f"#panel-{panel}")
        browser.size(390, 844, dark=True)
        browser.open(url)
        browser.shot(f"{OUT}/watch-phone.png")
    finally:
        browser.close()
        server.terminate()
        server.wait()


os.makedirs(OUT, exist_ok=True)
with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    train()
    photograph()
    os.chdir(SOURCE)
for f in sorted(glob.glob(f"{OUT}/watch-*.png")):
    try:  # a third of the bytes, where Pillow is there
        from PIL import Image
        Image.open(f).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(f, optimize=True)
    except ImportError:
        pass
    print(os.path.getsize(f), f)
