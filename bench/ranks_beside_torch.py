#!/usr/bin/env python3
"""GPT-2 124M on one rank and on two, each of one thread, Trireme and PyTorch in turns.

    bench/ranks_beside_torch.py --trireme build/release/trireme --rounds 3

Jobs: one rank; two ranks with DDP (zero 0) and with ZeRO-3; PyTorch DDP and FSDP (fully_shard, a group a block) over gloo.
Every rank trains 4 rows of 256 tokens a step in float32: AdamW, gradient norm clipped at 1, no dropout. Tokens/s are of the
best step after the first, which other work on the machine disturbs least, and of the median step; ratios are of jobs of
one round. --before puts a command in front of every job.
"""
import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROWS, LENGTH, VOCAB = 4, 256, 50257
CONFIG = {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
          "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 256, "eos_token_id": 256}


def torch_rank(rank, size, mode, port, steps):
    """The job of one rank, in PyTorch."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    import torch
    import torch.distributed as dist
    import transformers
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = transformers.GPT2Config(**{k: v for k, v in CONFIG.items() if k != "model_type"}, use_cache=False)
    config._attn_implementation = "sdpa"
    model = run = transformers.AutoModelForCausalLM.from_config(config).train()
    if mode == "ddp":
        run = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        from torch.distributed.fsdp import fully_shard
        mesh = dist.init_device_mesh("cpu", (size,))
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=3e-4, fused=True)
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(rank))
    times = []
    for _ in range(steps):
        dist.barrier()
        start = time.perf_counter()
        loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        times.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps([size * ROWS * LENGTH / t for t in times[1:]]), flush=True)
    dist.destroy_process_group()


def output_of(args, command):
    done = subprocess.run([*shlex.split(args.before), *command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout


def trireme(args, folder, ranks, zero):
    """Tokens/s of each step, and the share of its time in which rank 0 waited for the other."""
    out = os.path.join(folder, f"out-{ranks}-{zero}")
    command = [args.trireme, "train"] if ranks == 1 else [args.trireme, "launch", "--nproc-per-node", str(ranks), "train"]
    output_of(args, [*command, "--model", os.path.join(folder, "model"), "--data", args.data, "--output", out, "--sequence_length", str(LENGTH), "--max_steps", str(args.steps),
                     "--per_device_train_batch_size", str(ROWS), "--gradient_accumulation_steps", "1",
                     "--threads", "1", "--zero", str(zero), "--learning_rate", "3e-4", "--weight_decay", "0.1", "--quiet"])
    with open(os.path.join(out, "events.jsonl")) as f:
        steps = [e for e in map(json.loads, f) if e["event"] == "step"][1:]
    shutil.rmtree(out)
    waits = statistics.median(e["comm_exposed_s"] * e["tokens_per_s"] / e["tokens"] for e in steps)
    return [e["tokens_per_s"] for e in steps], waits


def peer(args, mode):
    out = output_of(args, [sys.executable, os.path.abspath(__file__), "--torch", mode, "--steps", str(args.steps)])
    return json.loads(out.strip().splitlines()[-1])


def one_round(args, folder):
    rates, waits = {}, {}
    rates["one"], _ = trireme(args, folder, 1, 0)
    for name, zero in (("ddp", 0), ("zero3", 3)):
        rates[name], waits[name + "_wait"] = trireme(args, folder, 2, zero)
    for name in () if args.alone else ("ddp", "fsdp"):
        rates["torch_" + name] = peer(args, name)
    row = {}
    for suffix, pick in (("", max), ("_median", statistics.median)):
        rate = {name: pick(r) for name, r in rates.items()}
        pairs = [("ddp", "one"), ("zero3", "one")] + ([] if args.alone else [("ddp", "torch_ddp"), ("zero3", "torch_fsdp")])
        row |= {name + suffix: round(r, 1) for name, r in rate.items()}
        row |= {f"{a}/{b}{suffix}": round(rate[a] / rate[b], 3) for a, b in pairs}
    row |= {name: round(w, 4) for name, w in waits.items()}
    print(json.dumps(row), flush=True)
    return row


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trireme", default=os.path.join(here, "..", "build", "release", "trireme"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--data", help="text to train on; the project's own pages unless given")
    parser.add_argument("--before", default="", help="put in front of every job, e.g. 'chrt -f 1'")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    parser.add_argument("--torch", choices=("ddp", "fsdp"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch:
        import torch.multiprocessing as mp
        mp.spawn(torch_rank, args=(2, args.torch, 20000 + os.getpid() % 20000, args.steps), nprocs=2)
        return
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(CONFIG, f)
        subprocess.run([args.trireme, "init", "--config", f.name, "--tokenizer", "bytes", "--out",
                        os.path.join(folder, "model"), "--quiet"], check=True)
        if not args.data:
            args.data = os.path.join(folder, "pages.txt")
            shutil.copyfile(os.path.join(here, "..", "README.md"), args.data)
        rows = [one_round(args, folder) for _ in range(args.rounds)]
    print(json.dumps({"median": {k: round(statistics.median(r[k] for r in rows), 3) for k in rows[0]}}))


if __name__ == "__main__":
    main()
