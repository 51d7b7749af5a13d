#!/usr/bin/env python3
"""LoRA training steps on the CPU, Trireme and PEFT in turns: tokens/s of each round and the median of their ratios.

    PYTHON bench/adapter_beside_peft.py --rounds 7 --threads 2

LoRA on every linear, float32, sdpa attention, fused AdamW, gradient norm clipped at 1, the loss read every step. PYTHON has
torch, transformers and peft. PEFT stays open between its turns and sleeps while the other runs. A machine that is shared
slows both alike when they take turns, so the ratio counts. cpu: the processor seconds of a step, of both threads together.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def peft_step(args):
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    config = transformers.AutoConfig.for_model(**json.load(open(args.model, encoding="utf-8")))
    config._attn_implementation = "sdpa"
    config.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    model = get_peft_model(model, LoraConfig(r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0,
                                             target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    tokens = torch.randint(0, config.vocab_size, (args.rows, args.length))

    def step():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def serve(args):
    """The peer: a line on stdin is a turn, and its answer the median step in seconds, of the wall and of the processors."""
    step = peft_step(args)
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        step()  # a turn warms up, as ours does
        wall, cpu = [], time.process_time()
        for _ in range(args.steps):
            start = time.perf_counter()
            step()
            wall.append(time.perf_counter() - start)
        print(json.dumps([statistics.median(wall), (time.process_time() - cpu) / args.steps]), flush=True)


def turn_of_ours(args):
    done = subprocess.run([args.bench, args.model, f"rows={args.rows}", f"length={args.length}", f"lora={args.rank}",
                           f"threads={args.threads}", f"steps={args.steps}"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{args.bench} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default=os.path.join(HERE, "..", "build", "release", "bench_gpu"))
    parser.add_argument("--model", default=os.path.join(HERE, "models", "smollm2-135m.json"))
    for name, value in (("rounds", 7), ("threads", 2), ("steps", 3), ("rows", 4), ("length", 256), ("rank", 16)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return serve(args)
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    peer = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--peer"] + sys.argv[1:], env=environment,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if peer.stdout.readline() != "ready\n":
        sys.exit(f"{sys.executable} cannot run the peer; try {os.path.basename(__file__)} --peer")
    n_tokens, rows = args.rows * args.length, []
    for _ in range(args.rounds):
        ours = turn_of_ours(args)
        peer.stdin.write("\n")
        peer.stdin.flush()
        wall, cpu = json.loads(peer.stdout.readline())
        rows.append((ours["tokens_per_s"], n_tokens / wall, ours["cpu_s"], cpu, ours["of_peak"]))
        print(f"trireme {rows[-1][0]:7.1f} tokens/s, {rows[-1][2]:.3f} cpu s; peft {rows[-1][1]:7.1f}, {rows[-1][3]:.3f}: "
              f"{rows[-1][0] / rows[-1][1]:.2f}x, cpu {rows[-1][3] / rows[-1][2]:.2f}x", flush=True)
    peer.stdin.close()
    peer.wait()
    print(json.dumps({"rounds": args.rounds, "threads": args.threads,
                      "trireme": statistics.median(r[0] for r in rows),
                      "peft": round(statistics.median(r[1] for r in rows), 1),
                      "ratio": round(statistics.median(r[0] / r[1] for r in rows), 3),
                      "cpu_ratio": round(statistics.median(r[3] / r[2] for r in rows), 3),
                      "of_peak": round(statistics.median(r[4] for r in rows), 3)}))


if __name__ == "__main__":
    main()
