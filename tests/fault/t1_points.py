"""T1 driver: SOURCES HITS SEED. Failpoints are found in the sources, so that none can be forgotten.

A clean run of each layout tells how often each rank passes each point. These places (layout x point x rank) are hit in turn, each
as often as the others. A job is hit many times: each generation has a row of its own in TR_FAIL, every second one some steps
further, since a job that stands still rightly gives up. Every fourth round hits jobs only when they write the model.
"""
import collections, concurrent.futures, glob, os, random, re, shutil, subprocess, sys, threading, time
sys.path.insert(0, os.path.dirname(__file__))
import campaign as c

sources, n_hits, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
short, planted = os.environ.get("TR_SHORT"), os.environ.get("TR_PLANT") == "1"
STEPS, N_ROWS, N_JOBS = (12, 4, 1) if short else (48, 24, int(os.environ.get("TR_JOBS", "1")))
text = "".join(open(f).read() for f in glob.glob(f"{sources}/**/*.[ch]", recursive=True))
points = sorted(set(re.findall(r'tr_failpoint\("([\w.]+)"\)', text)) | set(re.findall(r', "(step\.\w+)"', text)))
assert sum(p.startswith("step.") for p in points) > 15, "the points of a step's actions are not found"
points += ["offload.read", "offload.write"]   # one call, two names
# Points that make a check lie instead of failing, those of other verbs, and what only devices with memory of their own do.
points = [p for p in points if not re.match(r"check\.|cp\.|tp\.skip|train\.(flip|other_cpu|rounding)|restore\.flip|data\.(shard|full_rows)|exec\.poison|gemm\.|offload\.rot|step\.(stow|unstow|update_host)", p)]
IS_NO_FAULT = {"offload.open", "offload.ring", "train.closed"}    # an error there is refused (a small disk), done without, or nothing
AGENT = [p for p in points if p.startswith("launch.")]
END = [p for p in points if re.fullmatch(r"train\.(before_model|after_model|before_close|closed)", p)]
lock = threading.Lock()
passes = {}     # (layout, point, rank) -> how often in a start, and how often between two saves
todo = {}       # (layout, is_end) -> [(point, rank)], shuffled, again and again
fired, missed, lost, times = collections.Counter(), 0, [], {"shm": [], "mpi": []}


def passed(out):
    """(point, rank) -> how often a run that tells has passed it."""
    counts = collections.Counter()
    for rank in range(4):
        counts.update((p, rank) for p in re.findall(r"passed ([\w.]+)$", open(f"{out}/logs/rank-{rank:04}.log").read(), re.M))
    return counts


def look(layout):
    """A whole run, and one that only resumes: what is passed, and how often."""
    c.reference(layout, STEPS, fail="*:tell")
    whole, start = passed(f"clean-{layout}-{STEPS}"), collections.Counter()
    if not short:
        out = shutil.copytree(f"clean-{layout}-{STEPS}", f"again-{layout}")
        for log in glob.glob(f"{out}/logs/*"):
            os.remove(log)
        subprocess.run(c.command(layout, out, STEPS), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env=dict(os.environ, TR_FAIL="*:tell"))
        start = passed(out)
        shutil.rmtree(out)
    for place in {*whole, *start}:
        each = max(0, whole[place] - start[place]) * c.INTERVAL // STEPS
        if place[0] in points and (each > 0 or not short):
            passes[layout, *place] = start[place], each if start[place] else max(1, each)   # 1: the first checkpoints remove none


def next_place(dice, layout, is_end, may_start):
    """The next (point, rank) that is due."""
    due = todo.setdefault((layout, is_end), [])
    while True:
        for place in due:
            if may_start or is_end or passes[layout, *place][1]:
                due.remove(place)
                return place
        more = [(p, r) for l, p, r in passes if l == layout and (p in END) == is_end]
        dice.shuffle(more)
        due += more


def draw(dice, layout, generation):
    """One generation's rows: a fault that only a save sees has a second one behind it, so that every generation ends."""
    rows = []
    while len(rows) < 2:
        is_far = generation % 2 == 1 or bool(rows)
        point, rank = next_place(dice, layout, False, generation > 0 and not is_far)
        start, each = passes[layout, point, rank]
        hit = start + each + dice.randint(1, each) if is_far else dice.randint(1, start + each)
        action = "kill" if rows or dice.random() < 0.8 or point in IS_NO_FAULT else "error"
        rows.append((point, rank, action, hit))
        if action == "kill" or not re.match(r"ckpt\.|file\.", point):
            break
    return rows


def rows_of(dice, layout, is_end):
    if planted:
        return {0: [("train.after_step", dice.randrange(4), "kill", 8)]}
    if is_end:  # at the same step three times over: no more, or it counts as a crash loop
        return {g: [(*next_place(dice, layout, True, False), "kill", 1)] for g in range(3)}
    rows = {g: draw(dice, layout, g) for g in range(N_ROWS)}
    if AGENT and dice.random() < 0.3:
        rows[0].append((dice.choice(AGENT), -1, "kill", dice.randrange(1, 12)))
    return rows


def learn(layout, rows, said, is_end):
    """Which rows of this life of an agent fired; those of generations that did not come are due again."""
    global missed
    parts = c.RESTART.split(said)[0::5]
    for g, row in rows.items():
        for point, rank, action, hit in (r for r in row if r[1] >= 0):
            part = parts[g] if g < len(parts) else ""
            if f"failpoint {point}:" in part if action == "error" else re.search(rf"rank {rank} \(pid \d+\) was ended by SIGKILL", part):
                fired[layout, point, rank] += 1
            elif g < len(parts) - 1:
                missed += 1
            elif not planted:
                todo[layout, is_end].insert(0, (point, rank))


def run(i):
    dice = random.Random(seed * 1000003 + i)
    layouts = list(c.LAYOUTS) if not planted else ["zero2"]
    layout, is_end = layouts[i % len(layouts)], i // len(layouts) % 4 == 3
    out, tag, said, n_agents = f"run-{i}", f"t1-{os.getpid()}-{i}", "", 0
    what = f"seed {seed} job {i}: {layout}"
    try:
        while True:
            with lock:
                rows = rows_of(dice, layout, is_end) if n_agents < 4 else {}
            spec = ",".join(f"{p}:{a}:{h}:{r}:{g}" for g, row in rows.items() for p, r, a, h in row)
            spec += ",launch.after_end:delay600:1:-1" if planted else ""
            what += f" TR_FAIL={spec}"
            job = subprocess.Popen(c.command(layout, out, STEPS), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env=dict(os.environ, TR_CAMPAIGN=tag, TR_FAIL=spec))
            if planted:
                throw_away(out)
            try:
                life = job.communicate(timeout=240)[0].decode(errors="replace")
            except subprocess.TimeoutExpired:
                job.kill()
                raise AssertionError("hangs") from None
            said += life
            with lock:
                learn(layout, rows, life, is_end)
                if job.returncode == -9:
                    fired["agent", rows[0][-1][0], -1] += 1
            if job.returncode != -9:
                break
            n_agents += 1   # the agent itself was hit: whoever started it starts it again
            said += c.agent_gone(tag, out)
        assert job.returncode == 0, f"exit {job.returncode}"
        _, gone, took = c.judge(layout, out, tag, said, STEPS)
    except (AssertionError, OSError) as e:
        raise AssertionError(f"{what}: {e}\n{said}") from None
    shutil.rmtree(out)
    return layout, gone, took


def throw_away(out):
    """The planted bug: when the ranks have died, what they had saved disappears."""
    for _ in range(400):
        time.sleep(0.01)
        if glob.glob(f"{out}/errors/*"):
            break
    for d in glob.glob(f"{out}/checkpoint-*"):
        shutil.rmtree(d, ignore_errors=True)


for layout in (c.LAYOUTS if not planted else ["zero2"]):
    look(layout)
start, n_jobs, told = time.monotonic(), 0, 0
with concurrent.futures.ThreadPoolExecutor(N_JOBS) as pool:
    while fired.total() < n_hits:
        for layout, gone, took in pool.map(run, range(n_jobs, n_jobs + N_JOBS)):
            lost += gone
            times["mpi" if layout == "mpi" else "shm"] += took
        n_jobs += N_JOBS
        assert n_jobs < 20 + 4 * n_hits, f"only {fired.total()} hits in {n_jobs} jobs"
        if fired.total() // 100 > told:
            told = fired.total() // 100
            print(f"T1 so far: {fired.total()} hits in {n_jobs} jobs, {len(fired)} places, {missed} missed, recovery p99 "
                  f"{c.quantile(times['shm'], .99):.2f} s shm, {c.quantile(times['mpi'], .99):.2f} s mpi, worst {max(sum(times.values(), [])):.2f} s; "
                  f"{time.monotonic() - start:.0f} s", flush=True)
never = sorted(set(points) - {point for _, point, _ in fired})
spread = sorted(fired[p] for p in passes)
print(f"T1 seed {seed}: {fired.total()} hits on {n_jobs} jobs, {sum(n for (l, *_), n in fired.items() if l == 'agent')} of them agents; "
      f"{len(points) - len(never)} of {len(points)} points; {sum(n > 0 for n in spread)} of {len(passes)} places (layout x point x rank), each hit "
      f"{c.quantile(spread, .05)} to {c.quantile(spread, .95)} times (5 and 95 %), {max(spread)} at most; {missed} rows were not passed; "
      f"all ended with the bits of the clean run, 0 checkpoints lost, 0 left behind")
print(f"T1 steps lost at a restart {c.histogram(lost)} (interval {c.INTERVAL}); {time.monotonic() - start:.0f} s")
assert n_hits < 1000 or not never, f"T1: points never reached by these layouts: {' '.join(never)}"
c.tell_times("T1", times, n_hits)
