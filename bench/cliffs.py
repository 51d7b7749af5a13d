#!/usr/bin/env python3
"""Paths beside the benchmark shapes, each as a ratio of two runs that take turns: how the next cliff is found.

    PYTHON bench/cliffs.py --bin build/release/trireme --rounds 3 [--only prefill,decode] [--length 8000]

PYTHON may have torch and transformers; without them the rows that compare with transformers are left out. A ratio is the
time of the first over the time of the second; `limit` is the most that it may be. Times are of the processor (user and
system, of all threads), because a shared machine changes the time on the clock of whoever is slower to ask for a core.
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    torch = None

SMOLLM2 = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=49152, hidden_size=576,
               intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
               max_position_embeddings=16384, tie_word_embeddings=True, rope_theta=1e5, rms_norm_eps=1e-5,
               hidden_act="silu", initializer_range=0.02, bos_token_id=0, eos_token_id=0)
SMALL = dict(SMOLLM2, vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
             num_attention_heads=16, num_key_value_heads=4, head_dim=16)


def model_dir(path, config):
    """A config.json and a tokenizer of single bytes; the weights are made by `trireme init`."""
    os.makedirs(path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)
    letters = [chr(c) for c in range(33, 127)] + [chr(c) for c in range(161, 173)] + [chr(c) for c in range(174, 256)]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                   "use_regex": True},
                 "post_processor": None,
                 "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": {c: i for i, c in enumerate(letters)}, "merges": []}}
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)


def spent(command, cwd=None, user_only=False):
    """Processor seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])}: {done.stderr.strip()[-300:]}")
    system = 0 if user_only else after.ru_stime - before.ru_stime
    return after.ru_utime - before.ru_utime + system


class Cliffs:
    def __init__(self, args, work):
        self.bin, self.rounds, self.threads, self.work, self.length = (os.path.abspath(args.bin), args.rounds,
                                                                       args.threads, work, args.length)
        self.rows = []

    def path(self, name):
        return os.path.join(self.work, name)

    def init(self, name, config):
        if not os.path.exists(self.path(name)):
            model_dir(self.path(name + "-shape"), config)
            spent([self.bin, "init", "--config", os.path.join(self.path(name + "-shape"), "config.json"), "--output",
                   self.path(name)])
            shutil.copy(os.path.join(self.path(name + "-shape"), "tokenizer.json"), self.path(name))
        return self.path(name)

    def compare(self, name, limit, first, second):
        """Both in turns; the ratio of the medians."""
        a, b = [], []
        for _ in range(self.rounds):
            a.append(first())
            b.append(second())
        ratio = statistics.median(a) / max(statistics.median(b), 1e-9)
        self.rows.append(dict(name=name, ratio=round(ratio, 3), limit=limit, first_s=round(statistics.median(a), 4),
                              second_s=round(statistics.median(b), 4)))
        print(f"{name:58} {ratio:7.2f}  (limit {limit:g}){'' if ratio <= limit else '  <-- cliff'}", flush=True)

    def generate(self, n_prompt, n_new, dtype="float32"):
        prompt = ("abcd" * (n_prompt // 4 + 1))[:n_prompt]
        return spent([self.bin, "generate", "--model", self.init("smollm2", SMOLLM2), "--prompt", prompt, "--dtype", dtype,
                      "--max_new_tokens", str(n_new), "--temperature", "0", "--threads", str(self.threads), "--json"])

    def train(self, model, data, output, *options, ranks=1, threads=0, is_new=True, proof="none", user_only=False):
        if is_new:
            shutil.rmtree(self.path(output), ignore_errors=True)
        launch = ["launch", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        return spent([self.bin, *launch, "train", "--model", model, "--data", data, "--output", self.path(output),
                      "--threads", str(threads or self.threads), "--data_proof", proof, "--lr_scheduler_type", "constant",
                      "--quiet", *options], user_only=user_only)


def peer(c):
    """Seconds of transformers: prefill of n tokens, and a new token after them."""
    config = LlamaConfig(**{k: v for k, v in SMOLLM2.items() if k not in ("model_type", "architectures")})
    torch.set_num_threads(c.threads)
    model = LlamaForCausalLM(config).eval()

    def run(n, dtype):
        m = model.to(dtype)
        ids = torch.tensor([[65 + i % 4 for i in range(n)]])
        with torch.no_grad():
            start = time.process_time()
            out = m(ids, use_cache=True, logits_to_keep=1)
            prefill = time.process_time() - start
            past, n_new = out.past_key_values, 32
            start = time.process_time()
            for _ in range(n_new):
                out = m(out.logits[:, -1:].argmax(-1), past_key_values=past, use_cache=True)
                past = out.past_key_values
        return prefill, (time.process_time() - start) / n_new
    return run


def prefill(c):
    if torch is None:
        return
    run = peer(c)
    base = c.generate(4, 1)
    for n in (c.length // 4, c.length):
        c.compare(f"prompt of {n} tokens / transformers", 1.0, lambda: c.generate(n, 1) - base,
                  lambda: run(n, torch.float32)[0])


def new_token(c, n, dtype):
    return (c.generate(n, 129, dtype) - c.generate(n, 1, dtype)) / 128


def decode(c):
    c.compare("new token in bfloat16 / float32", 1.0, lambda: new_token(c, 100, "bfloat16"),
              lambda: new_token(c, 100, "float32"))
    if torch is None:
        return
    run = peer(c)
    for n in (100, c.length // 4, c.length):
        c.compare(f"new token after {n} / transformers", 1 / 1.2, lambda: new_token(c, n, "float32"),
                  lambda: run(n, torch.float32)[1])


def files(c):
    os.makedirs(c.path("texts"), exist_ok=True)
    line = "the quick brown fox jumps over the lazy dog " * 6
    for i in range(20000):
        with open(os.path.join(c.path("texts"), f"{i:05d}.txt"), "w") as f:
            f.write(f"{i} {line}"[:256])
    with open(c.path("many.jsonl"), "w") as f:
        for i in range(200000):
            f.write(json.dumps({"text": f"{i} {line}"[:256]}) + "\n")
    model = c.init("small", SMALL)

    with open(c.path("few.jsonl"), "w") as f:
        f.write(json.dumps({"text": line}) + "\n")

    def tokens(data):
        start = time.time()  # the wait for the disk counts too
        c.train(model, data, "texts-run", "--sequence_length", "64", "--max_steps", "1")
        return time.time() - start
    base = tokens(c.path("few.jsonl"))
    c.compare("20,000 files of 256 bytes / JSONL, a byte", 3.0, lambda: tokens(c.path("texts")) - base,
              lambda: (tokens(c.path("many.jsonl")) - base) / 10)


def saves(c):
    model, data = c.init("small", SMALL), c.path("text.jsonl")
    with open(data, "w") as f:
        f.write('{"text": "' + "abcdefgh " * 400 + '"}\n')
    run = ["--sequence_length", "64", "--per_device_train_batch_size", "1", "--save_steps", "2"]
    c.train(model, data, "run", *run, "--max_steps", "4")

    def resume(n_lines):
        shutil.rmtree(c.path("again"), ignore_errors=True)
        shutil.copytree(c.path("run"), c.path("again"))
        log = os.path.join(c.path("again"), "events.jsonl")
        lines = open(log).read().splitlines(True)
        step = next(x for x in lines if '"event":"step"' in x)
        with open(log, "w") as f:
            f.writelines([step] * n_lines)
            f.writelines(lines)
        return c.train(model, data, "again", *run, "--max_steps", "8", "--resume_from_checkpoint", "auto", is_new=False)
    c.compare("resume and saves after 1,000,000 logged steps / 10", 1.3, lambda: resume(1000000), lambda: resume(10))


def events(c, output, kind):
    with open(os.path.join(c.path(output), "events.jsonl")) as f:
        return [e for e in map(json.loads, f) if e["event"] == kind]


def disk_rate(c, n_bytes):
    """Bytes a second that one process writes and syncs where the runs are."""
    block, path, begin = os.urandom(1 << 22), c.path("disk"), time.time()
    with open(path, "wb") as f:
        for _ in range(n_bytes >> 22):
            f.write(block)
        f.flush()
        os.fsync(f.fileno())
    rate = (n_bytes >> 22 << 22) / (time.time() - begin)
    os.remove(path)
    return rate


def disk(c):
    """By the clock: how long after its step the event of a save of 1.6 GB comes."""
    model, data = c.init("smollm2", SMOLLM2), c.path("disk.jsonl")
    with open(data, "w") as f:
        f.write('{"text": "' + "abcdefgh " * 400 + '"}\n')
    size = int(1.6e9)

    def waits():
        c.train(model, data, "saved", "--sequence_length", "16", "--per_device_train_batch_size", "1", "--max_steps", "8",
                "--save_steps", "4")
        steps = {e["step"]: e["time"] for e in events(c, "saved", "step")}
        return statistics.mean(e["time"] - steps[e["step"]] for e in events(c, "saved", "checkpoint"))
    c.compare("the event of a save / bytes over the disk's speed", 1.3, waits, lambda: size / disk_rate(c, size))


def preference(c):
    model, data = c.init("small", SMALL), c.path("pairs.jsonl")
    pairs = [json.dumps({"prompt": "abcdefgh " * 5, "chosen": " yes" * (1 + i % 9), "rejected": " no" * (1 + i % 7)}) + "\n"
             for i in range(4000)]
    for name, n in ((data, 4000), (c.path("few-pairs.jsonl"), 40)):
        with open(name, "w") as f:
            f.writelines(pairs[:n])
    options = ["--task", "dpo", "--sequence_length", "256", "--max_steps", "4", "--per_device_train_batch_size", "2"]
    c.compare("4 steps of DPO with 4,000 pairs / with 40", 1.5, lambda: c.train(model, data, "dpo", *options),
              lambda: c.train(model, c.path("few-pairs.jsonl"), "dpo-few", *options))


def bfloat16(c):
    """Below 1 where the processor has AVX512-BF16."""
    model, data = c.init("middle", dict(SMOLLM2, num_hidden_layers=6, vocab_size=4096)), c.path("bf16.jsonl")
    with open(data, "w") as f:
        f.write('{"text": "' + "abcdefgh " * 4000 + '"}\n')

    def step(dtype):
        options = ["--sequence_length", "512", "--per_device_train_batch_size", "2", "--dtype", dtype]
        return (c.train(model, data, "bf16-run", *options, "--max_steps", "7")
                - c.train(model, data, "bf16-run", *options, "--max_steps", "2")) / 5
    c.compare("a step in bfloat16 / float32", 1.2, lambda: step("bfloat16"), lambda: step("float32"))


def attention(c):
    text = c.path("long.jsonl")
    with open(text, "w") as f:
        for _ in range(8):
            f.write('{"text": "' + "abcdefgh " * 2000 + '"}\n')
    one, four = c.init("mqa", dict(SMALL, num_key_value_heads=1)), c.init("small", SMALL)
    options = ["--sequence_length", "16384", "--max_steps", "1", "--per_device_train_batch_size", "1"]
    c.compare("one key head / four, rows of 16384", 1.0, lambda: c.train(one, text, "mqa-run", *options),
              lambda: c.train(four, text, "gqa-run", *options))
    short = c.path("short.jsonl")
    with open(short, "w") as f:
        for _ in range(400):
            f.write('{"text": "' + "abcdefgh " * 56 + '"}\n')
    c.compare("documents of 512 in rows of 16384 / one document", 0.6, lambda: c.train(four, short, "packed", *options),
              lambda: c.train(four, text, "whole", *options))
    eight = c.init("eight", dict(SMALL, num_attention_heads=8, num_key_value_heads=8))

    def hundred(mode):  # user time of 100 steps, without the start: 8 ranks on few cores mostly switch between them
        def steps(n):
            return c.train(eight, text, mode, "--sequence_length", "128", "--max_steps", str(n), "--cp", "8",
                           "--per_device_train_batch_size", "1", "--cp_mode", mode, ranks=8, threads=1, user_only=True)
        return steps(120) - steps(20)
    c.compare("ring / ulysses, 8 ranks, rows of 128, user time", 1.15, lambda: hundred("ring"), lambda: hundred("ulysses"))


def padding(c):
    model, data = c.init("small", SMALL), c.path("mixed.jsonl")
    with open(data, "w") as f:
        for i in range(512):
            f.write(json.dumps({"text": "abcdefgh " * (3 + (i * 7) % 60)}) + "\n")
    options = ["--sequence_length", "512", "--num_train_epochs", "1", "--per_device_train_batch_size", "4"]
    c.compare("an epoch without packing / packed", 1.5, lambda: c.train(model, data, "none", *options, "--packing", "none"),
              lambda: c.train(model, data, "packed-mixed", *options))


def start(c):
    model, data = c.init("small", SMALL), c.path("start.jsonl")
    with open(data, "w") as f:
        for _ in range(64):
            f.write('{"text": "' + "abcdefgh " * 20 + '"}\n')
    options = ["--sequence_length", "64", "--max_steps", "1", "--per_device_train_batch_size", "1"]
    c.compare("start of 16 ranks a core with the data proof / without", 1.2,
              lambda: c.train(model, data, "proven", *options, ranks=16 * c.threads, threads=1, proof="auto"),
              lambda: c.train(model, data, "unproven", *options, ranks=16 * c.threads, threads=1))


GROUPS = dict(prefill=prefill, decode=decode, files=files, saves=saves, disk=disk, attention=attention, padding=padding,
              preference=preference, bfloat16=bfloat16, start=start)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(here, "..", "build", "release", "trireme"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=8000, help="tokens of the longest prompt")
    parser.add_argument("--only", default=",".join(GROUPS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        c = Cliffs(args, work)
        for name in args.only.split(","):
            try:
                GROUPS[name](c)
            except RuntimeError as e:
                print(f"{name}: {e}", file=sys.stderr)
                c.rows.append(dict(name=name, error=str(e)))
    print(json.dumps(c.rows))
    sys.exit(any(r.get("error") or r["ratio"] > r["limit"] for r in c.rows))


if __name__ == "__main__":
    main()
