"""T13 driver: SECONDS SEED. Afterwards a rank is killed on purpose: an oracle that misses that new generation proves nothing."""
import hashlib, hmac, json, os, random, re, signal, socket, statistics, struct, subprocess, sys, time

seconds, seed = float(sys.argv[1]), int(sys.argv[2])
dice = random.Random(seed)
trireme = os.environ["TRIREME"]
port = 21000 + os.getpid() % 20000
counts, open_ones = {}, []
IS_LONG = seconds >= 30     # else too few steps for a comparison of their times
QUIET_S, HOSTILE_S = 5, 10  # in turn: what else this machine does is in both
MAGIC = b"TRIREME\0"


def hello(nonce=b"\0" * 16, proof=b"\0" * 32, version=1, magic=MAGIC):
    return magic + nonce + proof + struct.pack("<HHI", version, 0x0102, 0)


def connect():
    s = socket.create_connection(("127.0.0.1", port), 2)
    s.settimeout(0.2)
    return s


def answer(s, n):
    try:
        data = s.recv(n)
    except OSError:
        return b""
    return data


def noise():
    s = connect()
    s.sendall(dice.randbytes(dice.randrange(1, 4000)))
    assert not (answer(s, 65) and answer(s, 1)), "noise was answered twice"
    s.close()


def other_protocols():
    s = connect()
    s.sendall(dice.choice((b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 80,
                           b"SSH-2.0-x\r\n" * 9, hello(version=2), hello(magic=b"TRIREMF\0"))))
    assert answer(s, 64) == b"", "another protocol was answered"
    s.close()


def wrong_key():
    s = connect()
    nonce = dice.randbytes(16)
    s.sendall(hello(nonce))
    reply = answer(s, 64)
    if len(reply) == 64:  # the answer's own proof reflected, a guess, or a truncated proof
        s.sendall(dice.choice((hello(proof=reply[24:56]), hello(proof=dice.randbytes(32)), hello(proof=b"")[:40],
                               hello(proof=hmac.new(b"guess", b"client\0" + nonce + reply[8:24], hashlib.sha256).digest()))))
        s.sendall(struct.pack("<IHHqQ", dice.choice((0, 472, 1 << 14, 2**32 - 1)), dice.randrange(8), 0, 99, 0) + dice.randbytes(600))
        assert answer(s, 1) == b"", "a stranger was heard"
    s.close()


def slow():
    s = connect()
    s.sendall(hello()[:dice.randrange(1, 63)])
    open_ones.append((time.monotonic(), s))


def crowd():
    for _ in range(40):
        try:
            open_ones.append((time.monotonic(), connect()))
        except OSError:
            return


def status(pid):
    rss = int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1])
    return rss, len(os.listdir(f"/proc/{pid}/fd"))


def node(rank, out):
    return subprocess.Popen([trireme, "launch", "--nnodes", "2", "--node-rank", str(rank), "--rdzv", f"127.0.0.1:{port}", "--max-restarts", "3",
                             "train", "--model", "model", "--data", "train.jsonl", "--sequence_length", "128", "--train_batch_size", "16",
                             "--max_steps", "1000000", "--save_steps", "5000", "--threads", "1", "--quiet", "--output", out],
                            stdout=open(f"{out}-{rank}.log", "wb"), stderr=subprocess.STDOUT, env=dict(os.environ, UCX_TLS="tcp,self", UCX_NET_DEVICES="lo"))


class Steps:
    """The step lines of a run, read on from where the last look ended."""
    def __init__(self, out):
        self.path, self.at, self.rest = f"{out}/events.jsonl", 0, b""

    def times(self):
        try:
            with open(self.path, "rb") as f:
                f.seek(self.at)
                news = f.read()
        except OSError:
            return []
        self.at += len(news)
        lines = (self.rest + news).split(b"\n")
        self.rest = lines.pop()
        return [e["time"] for e in map(json.loads, lines) if e["event"] == "step"]


def visit():
    act = dice.choice((noise, other_protocols, wrong_key, wrong_key, slow, crowd))
    try:
        act()
    except OSError:
        pass
    counts[act.__name__] = counts.get(act.__name__, 0) + 1
    for item in [x for x in open_ones if time.monotonic() - x[0] > 3]:  # dropped by the other side long ago
        item[1].close()
        open_ones.remove(item)
    time.sleep(0.005)


def step_time(log, length, act):
    """Median seconds of a step while `act` is repeated for so long."""
    log.times()
    until = time.monotonic() + length
    while time.monotonic() < until:
        act()
    at = log.times()
    return statistics.median(b - a for a, b in zip(at, at[1:])) if len(at) > 2 else None


def said():
    return open("job-0.log").read() + open("job-1.log").read()


nodes, log = [node(0, "job"), node(1, "job")], Steps("job")
try:
    until, n_steps = time.monotonic() + 60, 0
    while n_steps < 5:
        assert time.monotonic() < until, "the job does not start: " + said()
        n_steps += len(log.times())
        time.sleep(0.05)
    for p in nodes if seconds > 600 else []:    # for so long the ranks give way to others; the agents are what is tested
        for child in open(f"/proc/{p.pid}/task/{p.pid}/children").read().split():
            os.setpriority(os.PRIO_PROCESS, int(child), 19)
    base = peak = status(nodes[0].pid)
    begin, pairs = time.monotonic(), []
    while time.monotonic() - begin < seconds:
        quiet = step_time(log, QUIET_S, lambda: time.sleep(0.2)) if IS_LONG else None
        hostile = step_time(log, HOSTILE_S if IS_LONG else seconds, visit)
        if quiet and hostile:
            pairs.append(hostile / quiet)
        peak = tuple(map(max, zip(peak, status(nodes[0].pid))))
        assert all(p.poll() is None for p in nodes), "an agent left: " + said()
        while open_ones:
            open_ones.pop()[1].close()
    time.sleep(3)
    after = status(nodes[0].pid)
    assert all(p.poll() is None for p in nodes), "an agent left: " + said()
    assert "generation 2" not in said() and "is lost" not in said(), "state changed: " + said()
    assert peak[0] - base[0] < 32 << 10, f"memory grew from {base[0]} to {peak[0]} KiB"
    assert after[1] <= base[1] + 2, f"descriptors: {base[1]} before, {after[1]} after"
    assert "refused" in said(), "nobody says that strangers came"
    ranks = [int(p) for a in nodes for p in open(f"/proc/{a.pid}/task/{a.pid}/children").read().split()]
    os.kill(ranks[-1], signal.SIGKILL)
    until = time.monotonic() + 30
    while "generation 2" not in said():
        assert time.monotonic() < until, "the oracle does not see a new generation: " + said()
        time.sleep(0.05)
    print(f"T13 seed {seed}: {sum(counts.values())} visits in {seconds:.0f} s ({', '.join(f'{v} {k}' for k, v in sorted(counts.items()))}); no state changed; "
          f"agent {base[0]} KiB and {base[1]} descriptors before, {peak[0]} and {peak[1]} at most, {after[1]} after")
    if len(pairs) > 1:
        q = statistics.quantiles(pairs, n=4)
        print(f"T13 step time with strangers over without, {len(pairs)} pairs of {HOSTILE_S} s and {QUIET_S} s: median {statistics.median(pairs):.3f}, "
              f"quarters {q[0]:.3f} and {q[2]:.3f}")
        assert len(pairs) < 20 or statistics.median(pairs) < 1.05, "strangers slow the steps"
finally:
    for p in nodes:
        p.kill()
        p.wait()
