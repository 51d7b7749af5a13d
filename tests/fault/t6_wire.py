"""T6 driver: SCENARIOS SEED."""
import os, random, re, shutil, subprocess, sys, time
sys.path.insert(0, os.path.dirname(__file__))
import campaign as c

n_runs, seed = int(sys.argv[1]), int(sys.argv[2])
A, B = os.environ["A"], os.environ["B"]
short = n_runs < 8  # what ctest has time for
STEPS, EVERY, N_FAULTS, BOUND = (9, 3, 1, 120) if short else (400, 20, 25, 480)
KINDS = {  # loss and the like in 10,000 packets; times in ms. Faults end, so that the job can.
    "loss": lambda d: {"loss": d.choice((100, 500, 2000)), "until": 3000, "for": 4000},
    "delay": lambda d: {"delay": d.choice((2, 10, 100)), "jitter": d.choice((0, 5, 20)), "until": 3000, "for": 4000},
    "reorder": lambda d: {"reorder": d.choice((200, 1000)), "dup": d.choice((0, 500)), "until": 3000, "for": 4000},
    "slow": lambda d: {"kbps": d.choice((1000, 3000)), "until": 3000, "for": 4000},
    "short cut": lambda d: {"cut": d.randrange(*((50, 250) if short else (500, 2000))), "cut_ms": 500, "way": 3, "for": 3500},
    "long cut": lambda d: {"cut": d.randrange(0, 2000), "cut_ms": d.randrange(5000, 8000), "way": 3, "for": 13000},
    "one-way cut": lambda d: {"cut": d.randrange(0, 2000), "cut_ms": d.randrange(1000, 8000), "way": d.choice((1, 2)), "for": 13000},
    "reset": lambda d: {"reset": d.choice((20, 100)), "until": 2000, "for": 5000},
    "mixture": lambda d: {"loss": 100, "dup": 200, "reorder": 300, "reset": 5, "delay": 2, "jitter": 3, "until": 4000,
                          "cut": d.randrange(0, 2000), "cut_ms": d.randrange(200, 5000), "way": d.choice((1, 2, 3)), "for": 10000},
}


def training(out):
    return ["train", "--model", "model", "--data", "train.jsonl", "--sequence_length", "32", "--train_batch_size", "8",
            "--per_device_train_batch_size", "1", "--max_steps", str(STEPS), "--save_steps", str(EVERY), "--learning_rate", "1e-2", "--threads", "1",
            "--ddp_timeout", "15", "--reproducible", "layout", "--quiet", "--output", out]


def node(ns, rank, out, tag):
    env = dict(os.environ, UCX_TLS="tcp,self", UCX_NET_DEVICES="tun0", TR_CAMPAIGN=tag)
    return subprocess.Popen(["ip", "netns", "exec", ns, c.TRIREME, "launch", "--nnodes", "2", "--node-rank", str(rank), "--rdzv", "10.66.0.1:29500",
                             "--max-restarts", "50", *training(out)], env=env, stdout=open(f"{out}-{rank}.log", "wb"), stderr=subprocess.STDOUT)


def wire(run_seed, specs):
    text = ";".join(",".join(f"{k}={v}" for k, v in spec.items()) for spec in specs)
    p = subprocess.Popen(["./wire", A, B, str(run_seed), text], stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n", "no wire"
    for ns, k in ((A, 1), (B, 2)):
        subprocess.run(["ip", "-n", ns, "addr", "add", f"10.66.0.{k}/24", "dev", "tun0"], check=True)
        subprocess.run(["ip", "-n", ns, "link", "set", "tun0", "up"], check=True)
    return p


def run(i, planted=False):
    """One job and the faults that it met before it was done: [kinds], restarts, seconds."""
    dice = random.Random(seed * 1000003 + i)
    kinds = ["short cut"] if short else [list(KINDS)[(i + k) % len(KINDS)] for k in range(N_FAULTS)]
    specs = [KINDS[k](dice) for k in kinds] if not planted else [dict(cut=0, cut_ms=10**7, way=3)]
    out, tag, bound = f"run-{i}", f"t6-{os.getpid()}-{i}", BOUND if not planted else 6
    what = f"seed {seed} job {i} ({kinds} {specs})"
    cable = wire(dice.getrandbits(32), specs)
    start = time.monotonic()
    nodes = [node(A, 0, out, tag), node(B, 1, out, tag)]
    try:
        codes = [p.wait(max(1, bound - (time.monotonic() - start))) for p in nodes]
        took, said = time.monotonic() - start, open(f"{out}-0.log").read() + open(f"{out}-1.log").read()
        assert codes == [0, 0], f"{what}: exit {codes}\n{said}"
        wrong = [k for k, v in want.items() if c.bits(out, STEPS).get(k) != v]
        assert not wrong, f"{what}: bits differ in {wrong}\n{said}"
        manifests = [d for d in os.listdir(out) if re.fullmatch(r"checkpoint-\d+", d)]
        assert len(manifests) == STEPS // EVERY, f"{what}: checkpoints {manifests}"
    except subprocess.TimeoutExpired:
        said = open(f"{out}-0.log").read() + open(f"{out}-1.log").read()
        raise AssertionError(f"{what}: hangs\n{said}") from None
    finally:
        for pid in c.of_run(tag):
            os.kill(pid, 9)
        for p in nodes:
            p.wait()
        cable.kill()
        n_over = len(cable.stdout.read().split()) if not short else 1
        cable.wait()
    assert not short or took > 0.5, f"{what}: done after {took:.2f} s, before the cut was over"
    generations = max(map(int, re.findall(r"generation (\d+):", said)), default=1)
    shutil.rmtree(out)
    return kinds[:n_over], generations - 1, took


subprocess.run([c.TRIREME, "launch", "--nproc-per-node", "2", *training("clean")], check=True, stdout=subprocess.DEVNULL)
want = c.bits("clean", STEPS)
if short:
    try:
        run(9999, planted=True)
        sys.exit("T6 does not see a wire that stays cut")
    except AssertionError as e:
        assert "hangs" in str(e), e
    shutil.rmtree("run-9999", ignore_errors=True)
met, n_jobs, n_restarts, worst, begin = [], 0, 0, 0.0, time.monotonic()
while len(met) < n_runs:
    kinds, restarts, took = run(n_jobs)
    met, n_jobs, n_restarts, worst = met + kinds, n_jobs + 1, n_restarts + restarts, max(worst, took)
    if not short:
        print(f"T6 so far: {len(met)} scenarios, {n_jobs} jobs; the last met {len(kinds)}, {restarts} restarts, {took:.1f} s", flush=True)
print(f"T6 seed {seed}: {len(met)} scenarios ({', '.join(f'{met.count(k)} {k}' for k in KINDS if k in met)}) on {n_jobs} jobs, {n_restarts} restarts, "
      f"slowest job {worst:.0f} s; all ended with the bits of the clean run, one commit a step, 0 hangs; {time.monotonic() - begin:.0f} s")
