"""T6 driver: SCENARIOS SEED."""
import os, random, re, shutil, subprocess, sys, time
sys.path.insert(0, os.path.dirname(__file__))
import campaign as c

n_runs, seed = int(sys.argv[1]), int(sys.argv[2])
A, B = os.environ["A"], os.environ["B"]
short = n_runs < 8  # what ctest has time for
STEPS, BOUND = (9, 120) if short else (30, 300)
KINDS = {  # loss and the like in 10,000 packets; times in ms. Faults end, so that the job can.
    "loss": lambda d: dict(loss=d.choice((100, 500, 1000)), until=15000),
    "delay": lambda d: dict(delay=d.choice((2, 10, 30)), jitter=d.choice((0, 5, 20)), until=15000),
    "reorder": lambda d: dict(reorder=d.choice((200, 1000)), dup=d.choice((0, 500)), until=15000),
    "short cut": lambda d: dict(cut=d.randrange(500, 2000 if short else 6000), cut_ms=500, way=3),
    "long cut": lambda d: dict(cut=d.randrange(500, 6000), cut_ms=d.randrange(5000, 12000), way=3),
    "one-way cut": lambda d: dict(cut=d.randrange(500, 6000), cut_ms=d.randrange(1000, 12000), way=d.choice((1, 2))),
    "reset": lambda d: dict(reset=d.choice((20, 100)), **{"from": d.randrange(500, 3000)}, until=9000),
    "mixture": lambda d: dict(loss=100, dup=200, reorder=300, reset=5, delay=2, jitter=3, until=12000, cut=d.randrange(1000, 5000),
                              cut_ms=d.randrange(200, 6000), way=d.choice((1, 2, 3))),
}


def training(out):
    return ["train", "--model", "model", "--data", "train.jsonl", "--sequence_length", "32", "--train_batch_size", "8",
            "--per_device_train_batch_size", "1", "--max_steps", str(STEPS), "--save_steps", "3", "--learning_rate", "1e-2", "--threads", "1",
            "--ddp_timeout", "15", "--reproducible", "layout", "--quiet", "--output", out]


def node(ns, rank, out, tag):
    env = dict(os.environ, UCX_TLS="tcp,self", UCX_NET_DEVICES="tun0", TR_CAMPAIGN=tag)
    return subprocess.Popen(["ip", "netns", "exec", ns, c.TRIREME, "launch", "--nnodes", "2", "--node-rank", str(rank), "--rdzv", "10.66.0.1:29500",
                             "--max-restarts", "50", *training(out)], env=env, stdout=open(f"{out}-{rank}.log", "wb"), stderr=subprocess.STDOUT)


def wire(run_seed, spec):
    p = subprocess.Popen(["./wire", A, B, str(run_seed), ",".join(f"{k}={v}" for k, v in spec.items())], stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n", "no wire"
    for ns, k in ((A, 1), (B, 2)):
        subprocess.run(["ip", "-n", ns, "addr", "add", f"10.66.0.{k}/24", "dev", "tun0"], check=True)
        subprocess.run(["ip", "-n", ns, "link", "set", "tun0", "up"], check=True)
    return p


def run(i, planted=False):
    dice = random.Random(seed * 1000003 + i)
    kind = "short cut" if short else list(KINDS)[i % len(KINDS)]
    spec = KINDS[kind](dice) if not planted else dict(cut=500, cut_ms=10**7, way=3)
    out, tag, bound = f"run-{i}", f"t6-{os.getpid()}-{i}", BOUND if not planted else 6
    what = f"seed {seed} scenario {i} ({kind} {spec})"
    cable = wire(dice.getrandbits(32), spec)
    start = time.monotonic()
    nodes = [node(A, 0, out, tag), node(B, 1, out, tag)]
    try:
        codes = [p.wait(max(1, bound - (time.monotonic() - start))) for p in nodes]
        said = open(f"{out}-0.log").read() + open(f"{out}-1.log").read()
        assert codes == [0, 0], f"{what}: exit {codes}\n{said}"
        wrong = [k for k, v in want.items() if c.bits(out, STEPS).get(k) != v]
        assert not wrong, f"{what}: bits differ in {wrong}\n{said}"
        manifests = [d for d in os.listdir(out) if re.fullmatch(r"checkpoint-\d+", d)]
        assert len(manifests) == STEPS // 3, f"{what}: checkpoints {manifests}"
    except subprocess.TimeoutExpired:
        said = open(f"{out}-0.log").read() + open(f"{out}-1.log").read()
        raise AssertionError(f"{what}: hangs\n{said}") from None
    finally:
        for pid in c.of_run(tag):
            os.kill(pid, 9)
        for p in nodes:
            p.wait()
        cable.kill()
        cable.wait()
    generations = max(map(int, re.findall(r"generation (\d+):", said)), default=1)
    shutil.rmtree(out)
    return kind, generations - 1, time.monotonic() - start


subprocess.run([c.TRIREME, "launch", "--nproc-per-node", "2", *training("clean")], check=True, stdout=subprocess.DEVNULL)
want = c.bits("clean", STEPS)
if short:
    try:
        run(9999, planted=True)
        sys.exit("T6 does not see a wire that stays cut")
    except AssertionError as e:
        assert "hangs" in str(e), e
    shutil.rmtree("run-9999", ignore_errors=True)
found, begin = {}, time.monotonic()
for i in range(n_runs):
    kind, resumed, took = run(i)
    found.setdefault(kind, []).append((resumed, took))
    if n_runs >= 20:
        print(f"T6 so far: {i + 1} scenarios; {kind}: {resumed} restarts, {took:.1f} s", flush=True)
for kind, rows in found.items():
    print(f"T6 {kind}: {len(rows)} scenarios, {sum(r for r, _ in rows)} restarts, median {c.quantile([t for _, t in rows], .5):.1f} s, "
          f"worst {max(t for _, t in rows):.1f} s")
print(f"T6 seed {seed}: {n_runs} scenarios, all ended with the bits of the clean run, one commit a step, 0 hangs; {time.monotonic() - begin:.0f} s")
