"""T8 driver: TRIREME RUNS STEPS SEED."""
import concurrent.futures, json, os, random, re, shutil, signal, subprocess, sys, time

trireme, n_runs, n_steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
LOOK = 0.1              # seconds between looks: each is a process, and eight runs share the cores
BOUND = 5.0             # seconds; no phase of this model has a p99 over 1.6 s
PATIENCE = 1.0          # looks, log lines
# failpoint -> phase; where each is passed many times before the hit, so that its p99 is known
POINTS = {"step.forward": "forward", "step.backward": "backward", "step.reduce": "reduce", "step.gather": "gather",
          "step.clip": "clip", "step.update": "update", "train.before_step": "between steps"}
LAYOUTS = {2: ["--zero", "0"], 3: ["--zero", "2"], 4: ["--zero", "3"]}


def start(out, size, env=(), steps=1000000, extra=()):
    command = [trireme, "launch", "--nproc-per-node", str(size), "train", "--model", "model", "--data", "train.jsonl",
               "--sequence_length", "32", "--per_device_train_batch_size", "1", "--max_steps", str(steps), "--save_steps", "0",
               "--threads", "1", "--data_proof", "none", "--quiet", "--output", out, *LAYOUTS[size], *extra]
    log = open(out + ".log", "wb")
    return subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ, **dict(env)))


def said(out):
    return open(out + ".log", errors="replace").read()


def page(out, rank):
    """What trireme watch says of a rank, or None."""
    try:
        words = subprocess.run([trireme, "watch", out, "--json"], capture_output=True, check=True).stdout
        row = json.loads(words)["ranks"][rank]
    except (subprocess.CalledProcessError, IndexError, ValueError):
        return None
    return dict(row["at"], state=row["state"], seconds=row["seconds"])


def wait_for_step(out, rank, step, job, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end and job.poll() is None:
        at = page(out, rank)
        if at and at["step"] >= step:
            return at
        time.sleep(LOOK)
    raise AssertionError(f"rank {rank} does not reach step {step}\n{said(out)}")


def finish(out, job, seconds):
    try:
        return job.wait(seconds)
    except subprocess.TimeoutExpired:
        job.kill()
        raise AssertionError(f"still runs after {seconds:.1f} s\n{said(out)}")


class Queue:
    """Seconds in which the launcher, the rank or this thread were ready to run and had no core: the machine's, not ours."""
    def __init__(self, launcher):
        self.paths, self.last, self.trace = [f"/proc/{launcher}/schedstat", "/proc/thread-self/schedstat"], {}, []

    def look(self, rank_pid=None):
        if rank_pid and f"/proc/{rank_pid}/schedstat" not in self.paths:
            self.paths.append(f"/proc/{rank_pid}/schedstat")
        for path in self.paths:
            try:
                now = int(open(path).read().split()[1]) * 1e-9
            except OSError:     # it has ended
                continue
            first, _ = self.last.get(path, (now, now))
            self.last[path] = first, now
        self.trace.append((time.monotonic(), sum(now - first for first, now in self.last.values())))

    def since(self, when):
        before = [waited for at, waited in self.trace if at <= when] or [self.trace[0][1]]
        return self.trace[-1][1] - before[-1]


def hang(dice, out, kind, size, rank, planted):
    """Stopped for ever by us at a random moment, stopped or looping at a point of a step. Planted: another rank than we think."""
    point = dice.choice([p for p in POINTS if p != "step.gather" or size == 4])
    env, phase = {}, POINTS[point]
    if kind != "stop":
        hit = dice.randrange(20, 50) if point in ("step.clip", "train.before_step") else dice.randrange(80, 200)
        env["TR_FAIL"] = f"{point}:{'stop' if kind == 'stop at' else 'spin'}:{hit}:{rank}"
    if planted:
        env["TR_FAIL"] = f"{point}:stop:{hit}:{(rank + 1) % size}"
    job = start(out, size, env.items())
    wait_for_step(out, rank, 8, job)
    queue = Queue(job.pid)
    queue.look()
    if kind == "stop":
        pid = page(out, rank)["pid"]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        phase = page(out, rank)["phase"]
        began = time.monotonic()
    else:
        began, end, before = time.monotonic() if planted else None, time.monotonic() + 300, time.monotonic()
        while time.monotonic() < end and "hangs" not in said(out):   # until it has not moved for so long
            now = time.monotonic()
            at = page(out, rank)
            queue.look(at and at["pid"])
            is_there = at and (at["state"] == "stopped" if kind == "stop at" else at["state"] == "runs" and at["seconds"] > 2)
            if not is_there and "hangs" in said(out):   # named and woken meanwhile
                break
            if not is_there:
                began = began if planted else None
            elif kind == "loop at":
                began = now - at["seconds"]
            elif began is None:     # since the last look at the earliest
                began = before
            before = now
            time.sleep(LOOK)
        assert began, f"{env['TR_FAIL']} is not reached\n{said(out)}"
    queue.look()
    while "hangs" not in said(out) and time.monotonic() - began < BOUND + PATIENCE + 3 + queue.since(began):
        time.sleep(0.02)
        queue.look()
    took, text = time.monotonic() - began, said(out)
    waited = queue.since(began)
    code = finish(out, job, 60)
    found = re.search(r"rank (\d+) \(pid \d+\) hangs: .* in ([a-z ]+?)( of [a-z0-9 ]+)?, step", text)
    assert found, f"nobody is named\n{said(out)}"
    assert int(found[1]) == rank, f"rank {found[1]} is named\n{said(out)}"
    assert found[2] == phase, f"phase {found[2]} is named, it is {phase}\n{said(out)}"
    assert took - waited <= BOUND + PATIENCE, f"named after {took:.1f} s, {waited:.1f} s of them without a core\n{said(out)}"
    assert code == 75, f"exit {code}"
    record = json.load(open(f"{out}/errors/rank-{rank:04d}.json"))
    assert record["phase"].startswith(phase) and "hangs" in record["cause"], record
    flight = [json.loads(line) for line in open(f"{out}/errors/flight.jsonl")]
    assert sorted(f["rank"] for f in flight) == list(range(size)) and len(flight[rank]["actions"]) > 20, "flight record"
    stack = open(f"{out}/errors/rank-{rank:04d}.stack").read()
    assert "tr_train" in stack, f"stack: {stack}"
    return took


def pause(dice, out, size, rank):
    """Stopped for 0.1 to 4 s, then continued: the run goes on."""
    job = start(out, size)
    at = wait_for_step(out, rank, 20, job)
    seconds = 0.1 + 3.85 * dice.random()
    os.kill(at["pid"], signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(seconds)
    os.kill(at["pid"], signal.SIGCONT)
    really = time.monotonic() - began
    if really > 4.0:    # the machine was busy: no promise covers this
        job.kill()
        job.wait()
        return None
    step = (page(out, rank) or at)["step"]
    wait_for_step(out, rank, step + 20, job)
    time.sleep(0.3)
    job.send_signal(signal.SIGTERM)
    code = finish(out, job, 120)
    text = said(out)
    assert code == 75 and "hangs" not in text, f"exit {code} after a stop of {really:.2f} s\n{text}"
    if seconds >= 0.3:
        events = [json.loads(line) for line in open(f"{out}/events.jsonl")]
        told = [e for e in events if e["event"] == "fault" and e["rank"] == rank and e["action"] == "goes on"]
        assert told, f"a stop of {really:.2f} s is not told\n{text}"
    return None


def one(i, planted=False):
    dice = random.Random(seed * 1000003 + i)
    size = dice.choice((2, 3, 4))
    rank = dice.randrange(size)
    kind = dice.choice(("stop", "stop at", "loop at", "pause")) if not planted else "stop at"
    out = f"run-{i}"
    try:
        took = pause(dice, out, size, rank) if kind == "pause" else hang(dice, out, kind, size, rank, planted)
    except (AssertionError, OSError, KeyError, TypeError) as e:
        raise AssertionError(f"T8 seed {seed} run {i} ({kind}, rank {rank} of {size}): {e}") from None
    left = subprocess.run(["pgrep", "-f", f"--output {out} "], capture_output=True, text=True).stdout.split()
    assert not left, f"T8 seed {seed} run {i}: left behind {left}"
    shutil.rmtree(out)
    os.unlink(out + ".log")
    return kind, took


def clean():
    """Steps beside hogs: four busy threads a core."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * os.cpu_count() - 4)]
    try:
        job = start("clean", 4, steps=n_steps, extra=["--eval_data", "train.jsonl", "--eval_steps", str(max(20, n_steps // 20))])
        code = job.wait()
    finally:
        for h in hogs:
            h.kill()
            h.wait()
    text = said("clean")
    assert code == 0 and "hangs" not in text, f"T8 clean steps: exit {code}\n{text}"
    return len(re.findall("is slow", text))


start_time = time.monotonic()
times = {}
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    wrong = pool.submit(one, n_runs, True) if 0 < n_runs < 100 else None   # an oracle that cannot turn red proves nothing
    for n, (kind, took) in enumerate(pool.map(one, range(n_runs)), 1):
        times.setdefault(kind, []).append(took)
        if n_runs >= 100 and n % 50 == 0:
            print(f"T8 so far: {n} runs, worst {max(t for k in times.values() for t in k if t):.2f} s; {time.monotonic() - start_time:.0f} s", flush=True)
    assert not wrong or re.search(r"rank \d is named", str(wrong.exception())), f"T8 does not see that the wrong rank is named: {wrong.exception()}"
for kind, took in sorted(times.items()):
    took = sorted(t for t in took if t is not None)
    how = f"named after {took[len(took) // 2]:.2f} s, at worst {took[-1]:.2f} s" if took else "all went on"
    print(f"T8 {kind}: {len(times[kind])} runs, {how}")
n_slow = clean() if n_steps else 0
print(f"T8 seed {seed}: {n_runs} runs, right rank and phase in all, within {BOUND} s and {PATIENCE:.1f} s to say so, without time in a queue for a core; {n_steps} clean steps "
      f"at 4x oversubscription, 0 killed, {n_slow} times slow; {time.monotonic() - start_time:.0f} s")
