#!/usr/bin/env bash
# Random ranks of a small training are killed or stopped at random times: half of them while they join, load and compile,
# half after the first steps. Every time all other ranks end within 5 s, the job names the one that was hit, and no
# process, segment or temporary file is left. Jobs run side by side: most of their time is waiting.
# usage: kill_campaign.sh [KILLS [SEED]]; 100 kills by default, 1000 for a campaign. A tenth goes over MPI where MPICH is.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
kills=${1:-100} seed=${2:-1} mpi=0
[ ! -e "$(dirname "$TRIREME")/libtrireme_mpich.so" ] || mpi=$((kills / 10))
cat >campaign.py <<'PY'
import concurrent.futures, glob, os, random, re, signal, subprocess, sys, time

trireme, n_kills, seed, comm = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
WITHIN = 5.0     # seconds from the hit to the end of every other rank
BUSY = 1 + 2 * os.getloadavg()[0] / os.cpu_count()  # on a busy machine bounds stretch with the work that waits

def rank_of(pid):
    """RANK of a process that has become a rank, else None."""
    try:
        words = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
        name = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None
    if os.path.realpath(name) != os.path.realpath(trireme):
        return None
    return next((int(w[5:]) for w in words if w.startswith(b"RANK=")), None)

def children(pid):
    try:
        pids = open(f"/proc/{pid}/task/{pid}/children").read().split()
    except OSError:
        return {}
    return {r: int(p) for p in pids for r in [rank_of(p)] if r is not None}

def is_running(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False

def has_steps(events):
    try:
        return '"event":"step"' in open(events).read().replace(" ", "")
    except OSError:
        return False

def one(i):
    dice = random.Random(seed * 1000003 + i)
    size = dice.choice((2, 3, 4))
    sig = signal.SIGSTOP if i % 5 == 4 else signal.SIGKILL
    in_training, after = dice.random() < 0.5, dice.random() ** 2 * 0.4
    out = f"run-{i}"
    events = f"{out}/events.jsonl"
    command = [trireme, "launch", "--nproc-per-node", str(size), "train", "--model", "model", "--data", "train.jsonl",
               "--sequence_length", "32", "--per_device_train_batch_size", "1", "--max_steps", "1000000", "--save_steps", "0",
               "--zero", str(dice.choice((0, 2, 3))), "--threads", "1", "--comm", comm, "--ddp_timeout", dice.choice((f"{2 * BUSY:.1f}", "300")), "--quiet",
               "--output", out]
    with open(f"log-{i}", "wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log)
        start, ranks = time.monotonic(), {}
        while len(ranks) < size and time.monotonic() - start < 20 * BUSY:
            ranks = children(job.pid)
            time.sleep(0.002)
        assert len(ranks) == size, f"{ranks} of {size} ranks started"
        while in_training and not has_steps(events) and job.poll() is None and time.monotonic() - start < 20 * BUSY:
            time.sleep(0.005)
        time.sleep(after / 4 if in_training else after)
        in_training = has_steps(events)
        victim = dice.randrange(size)
        assert job.poll() is None, f"seed {seed} kill {i}: ended by itself\n" + open(f"log-{i}").read()
        os.kill(ranks[victim], sig)
        hit = time.monotonic()
        others = [p for r, p in ranks.items() if r != victim]
        while any(map(is_running, others)) and time.monotonic() - hit < WITHIN * BUSY:
            time.sleep(0.005)
        took = time.monotonic() - hit
        slow = [r for r, p in ranks.items() if r != victim and is_running(p)]
        try:
            code = job.wait(20)
        except subprocess.TimeoutExpired:
            code = None
            job.kill()
    said = open(f"log-{i}", errors="replace").read()
    for f in sorted(glob.glob(out + "/logs/*")):
        said += f"--- {f}\n" + open(f, errors="replace").read()
    what = f"seed {seed} kill {i}: {sig.name} of rank {victim} of {size} {'in training' if in_training else 'while it starts'}"
    assert not slow, f"{what}: ranks {slow} still run after {took:.1f} s\n{said}"
    assert code in (70, 75), f"{what}: the job ended with {code}\n{said}"
    assert re.search(rf"rank {victim}\b", said), f"{what}: nobody names it\n{said}"
    left = [p for p in ranks.values() if is_running(p)]
    left += [p for p in glob.glob("/dev/shm/trireme*") if not os.path.isdir(p)] + glob.glob(f"{out}/**/*.tmp*", recursive=True)
    assert not left, f"{what}: left behind: {left}"
    subprocess.run(["rm", "-rf", out, f"log-{i}"], check=True)
    return sig, took, in_training

hits = {}
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for sig, took, in_training in pool.map(one, range(n_kills)):
        hits.setdefault(sig, []).append((took, in_training))
for sig, all_of in sorted(hits.items()):
    times = sorted(took for took, _ in all_of)
    print(f"{comm} {sig.name}: {len(times)} times, {sum(t for _, t in all_of)} of them in training, "
          f"all others ended after {times[len(times) // 2]:.2f} s, at worst {times[-1]:.2f} s")
PY
python3 campaign.py "$TRIREME" $((kills - mpi)) "$seed" shm
[ $mpi = 0 ] || python3 campaign.py "$TRIREME" $mpi "$seed" mpi
