#!/usr/bin/env python3
"""Collectives of Trireme beside MPICH, Open MPI and PyTorch's gloo, on one host, in one run.

usage: peer_comm.py TRIREME [--ranks 2 4] [--repeats 3] [--bytes-max N] [--seconds 0.3] [--only name ...] [--before COMMAND]
       [--lines FILE] [--markdown FILE]
Engines take turns, so that a busy machine slows all alike. Prints every JSON line as it comes, then one line a point
with each engine's median over the repeats, its lowest time (what a busy machine disturbs least), and Trireme's speed
over the best peer's in both. --lines keeps what is measured in a file and counts what earlier runs left there, so that a figure
grows from short slices of a quiet machine; --before puts a command in front of every engine's; --markdown writes the lowest
times as the table of bench/results/comm.md.
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

SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
HERE = os.path.dirname(os.path.abspath(__file__))


def gloo_rank(rank, size, port, bytes_max, budget):
    """The points of comm_points.h, in Python."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")

    def longest(x):
        t = torch.tensor([x], dtype=torch.float64)
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return t.item()

    def one_round(call, given, n):
        longest(0.0)
        total = 0.0
        for _ in range(n):
            given.fill_(1.0)
            start = time.perf_counter()
            call()
            total += time.perf_counter() - start
        return longest(total) / n

    whole_in, whole_out = torch.zeros(bytes_max // 4), torch.zeros(bytes_max // 4)
    for kind in ("all_reduce", "all_gather", "all_gather_in_place", "reduce_scatter"):
        for n_bytes in (s for s in SIZES if s <= bytes_max):
            count = n_bytes // 4
            part, whole, out = whole_in[: count // size], whole_in[:count], whole_out[:count]
            mine = out[rank * (count // size) : (rank + 1) * (count // size)]
            given = {"all_gather": part, "all_gather_in_place": mine}.get(kind, whole)
            call = {"all_reduce": lambda: dist.all_reduce(whole),
                    "all_gather": lambda: dist.all_gather_into_tensor(out, part),
                    "all_gather_in_place": lambda: dist.all_gather_into_tensor(out, mine),
                    "reduce_scatter": lambda: dist.reduce_scatter_tensor(out[: count // size], whole)}[kind]
            try:
                one_round(call, given, 1)
            except RuntimeError as error:
                if rank == 0:
                    print(json.dumps({"engine": "gloo", "kind": kind, "error": str(error)[:100]}), flush=True)
                break
            first = one_round(call, given, 10 if n_bytes < 1 << 20 else 1)
            n = max(1, int(budget / 25 / first))
            times = sorted(one_round(call, given, n) for _ in range(min(25, max(3, int(budget / (first * n))))))
            median = times[len(times) // 2]
            if rank == 0:
                print(json.dumps({"bench": "comm", "engine": "gloo", "kind": kind, "ranks": size, "bytes": n_bytes,
                                  "median_us": round(median * 1e6, 2), "low_us": round(times[0] * 1e6, 2),
                                  "high_us": round(times[-1] * 1e6, 2), "gb_per_s": round(n_bytes / median * 1e-9, 3),
                                  "rounds": len(times)}), flush=True)
    dist.destroy_process_group()


def commands(args, size, folder):
    """Engine name -> argv, for those that are here."""
    more = [str(args.bytes_max), str(args.seconds)]
    own = [args.trireme, "launch", "--nproc-per-node", str(size), "bench", "comm", "--json", "--bytes_max", more[0],
           "--seconds", more[1]]
    found = {"trireme": own, "trireme-plain": [*own, "--heap"]}
    for name, flags in (("mpich", []), ("openmpi", ["--allow-run-as-root", "--oversubscribe"])):
        cc, launch = shutil.which(f"mpicc.{name}"), shutil.which(f"mpirun.{name}")
        program = os.path.join(folder, f"peer_{name}")
        if cc and launch:
            if not os.path.exists(program):
                subprocess.run([cc, "-O2", "-I", os.path.join(HERE, "../src"), "-o", program,
                                os.path.join(HERE, "peer_comm.c")], check=True)
            found[name] = [launch, *flags, "-n", str(size), program, name, *more]
    try:
        import torch.distributed as dist
        if dist.is_gloo_available():
            found["gloo"] = [sys.executable, os.path.abspath(__file__), "--gloo", str(size), *more]
    except ImportError:
        pass
    return {name: argv for name, argv in found.items() if not args.only or name in args.only}


def run(args, argv):
    lines = []
    with subprocess.Popen([*shlex.split(args.before), *argv], stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            if line.startswith("{"):
                print(line, end="", flush=True)
                lines.append(json.loads(line))
    return lines


def speed(us):
    """Trireme's times -> the best peer, and how many times faster than it each is."""
    peers = {name: t for name, t in us.items() if not name.startswith("trireme")}
    if not peers:
        return None, {}
    best = min(peers, key=peers.get)
    return best, {name: round(peers[best] / t, 2) for name, t in us.items() if name not in peers}


def short(n_bytes):
    return f"{n_bytes >> 20} MiB" if n_bytes >= 1 << 20 else f"{n_bytes >> 10} KiB"


def markdown(rows, path):
    names = ["trireme", "trireme-plain", "mpich", "openmpi", "gloo"]
    with open(path, "w") as f:
        f.write("| ranks | collective | bytes | arena | heap | mpich | openmpi | gloo | x | heap x |\n" + "|---" * 10 + "|\n")
        for ranks, kind, n_bytes, low, ratio in rows:
            cells = [f"{low[n]:.1f}" if n in low else "-" for n in names]
            cells += [f"{ratio[n]:.2f}" if n in ratio else "-" for n in names[:2]]
            f.write(f"| {ranks} | {kind} | {short(n_bytes)} | {' | '.join(cells)} |\n")


def summary(lines, table):
    points, rows = {}, []
    for x in lines:
        if "median_us" in x:
            key = (x["ranks"], x["kind"], x["bytes"])
            points.setdefault(key, {}).setdefault(x["engine"], []).append(x)
    for (ranks, kind, n_bytes), engines in sorted(points.items()):
        median = {name: round(statistics.median(x["median_us"] for x in runs), 2) for name, runs in engines.items()}
        low = {name: min(x["low_us"] for x in runs) for name, runs in engines.items()}
        best, ratio = speed(median)
        _, low_ratio = speed(low)
        print(json.dumps({"bench": "comm-summary", "ranks": ranks, "kind": kind, "bytes": n_bytes, "median_us": median,
                          "low_us": low, "best_peer": best, "speed": ratio, "low_speed": low_ratio}), flush=True)
        rows.append((ranks, kind, n_bytes, low, low_ratio))
    if table:
        markdown(rows, table)


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--gloo":
        import torch.multiprocessing as mp
        size, port = int(sys.argv[2]), 20000 + os.getpid() % 20000
        mp.spawn(gloo_rank, args=(size, port, int(sys.argv[3]), float(sys.argv[4])), nprocs=size)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bytes-max", type=int, default=SIZES[-1])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--before", default="")
    parser.add_argument("--lines")
    parser.add_argument("--markdown")
    args = parser.parse_args()
    lines = []
    if args.lines and os.path.exists(args.lines):
        with open(args.lines) as f:
            lines = [json.loads(line) for line in f]
    n_before = len(lines)
    with tempfile.TemporaryDirectory() as folder:
        for size in args.ranks:
            for _ in range(args.repeats):
                for argv in commands(args, size, folder).values():
                    lines += run(args, argv)
    if args.lines:
        with open(args.lines, "a") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines[n_before:])
    summary(lines, args.markdown)


if __name__ == "__main__":
    main()
