"""T13 driver: SECONDS SEED. Afterwards a rank is killed on purpose: an oracle that misses that new generation proves nothing."""
import hashlib, hmac, os, random, re, signal, socket, struct, subprocess, sys, time

seconds, seed = float(sys.argv[1]), int(sys.argv[2])
dice = random.Random(seed)
trireme = os.environ["TRIREME"]
port = 21000 + os.getpid() % 20000
counts, open_ones = {}, []
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
                             "train", "--model", "model", "--data", "train.jsonl", "--sequence_length", "32", "--train_batch_size", "2",
                             "--max_steps", "1000000", "--save_steps", "500", "--threads", "1", "--quiet", "--output", out],
                            stdout=open(f"{out}-{rank}.log", "wb"), stderr=subprocess.STDOUT, env=dict(os.environ, UCX_TLS="tcp,self", UCX_NET_DEVICES="lo"))


def steps(out):
    try:
        return sum(1 for line in open(f"{out}/events.jsonl") if '"event":"step"' in line)
    except OSError:
        return 0


def said():
    return open("job-0.log").read() + open("job-1.log").read()


nodes = [node(0, "job"), node(1, "job")]
try:
    until = time.monotonic() + 60
    while steps("job") < 5:
        assert time.monotonic() < until, "the job does not start: " + said()
        time.sleep(0.05)
    base = status(nodes[0].pid)
    n, t = steps("job"), time.monotonic()
    time.sleep(min(seconds / 2, 20))
    quiet = (steps("job") - n) / (time.monotonic() - t)
    n, begin, peak = steps("job"), time.monotonic(), base
    while time.monotonic() - begin < seconds:
        act = dice.choice((noise, other_protocols, wrong_key, wrong_key, slow, crowd))
        try:
            act()
        except OSError:
            pass
        counts[act.__name__] = counts.get(act.__name__, 0) + 1
        for item in [x for x in open_ones if time.monotonic() - x[0] > 3]:  # dropped by the other side long ago
            item[1].close()
            open_ones.remove(item)
        peak = tuple(map(max, zip(peak, status(nodes[0].pid))))
        time.sleep(0.005)
    busy = (steps("job") - n) / (time.monotonic() - begin)
    for _, s in open_ones:
        s.close()
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
          f"{quiet:.0f} steps/s before, {busy:.0f} during; agent {base[0]} KiB and {base[1]} descriptors before, {peak[0]} and {peak[1]} at most, {after[1]} after")
finally:
    for p in nodes:
        p.kill()
        p.wait()
