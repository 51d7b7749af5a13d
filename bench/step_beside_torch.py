#!/usr/bin/env python3
"""GPT-2 124M training steps, Trireme and PyTorch in turns: tokens/s of each round and the median of their ratios.

    bench/step_beside_torch.py --bench build/release/bench_step --rounds 5 --threads 2

A machine that is shared slows both alike when they take turns; a figure of one of them alone says little there.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default=os.path.join(here, "..", "build", "release", "bench_step"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for _ in range(args.rounds):
        ours = last_json([args.bench, "gpt2", "4", "256", str(args.threads), str(args.steps)])
        peer = last_json([sys.executable, os.path.join(here, "peer_torch.py"), "--threads", str(args.threads),
                          "--steps", str(args.steps)])
        rows.append((ours["tokens_per_s"], peer["tokens_per_s"], ours["of_peak"]))
        print(f"trireme {rows[-1][0]:7.1f} tokens/s, torch {rows[-1][1]:7.1f}: {rows[-1][0] / rows[-1][1]:.2f}x; "
              f"{rows[-1][2]:.3f} of the product's rate", flush=True)
    print(json.dumps({"rounds": args.rounds, "threads": args.threads,
                      "trireme": statistics.median(r[0] for r in rows),
                      "torch": statistics.median(r[1] for r in rows),
                      "ratio": round(statistics.median(r[0] / r[1] for r in rows), 3),
                      "of_peak": round(statistics.median(r[2] for r in rows), 3)}))


if __name__ == "__main__":
    main()
