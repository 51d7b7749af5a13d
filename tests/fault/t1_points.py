"""T1 driver: SOURCES HITS SEED. Failpoints are found in the sources, so that none can be forgotten.

A job is hit many times: each generation has a row of its own in TR_FAIL, and a second row on another rank that dies some steps
later, so that every generation ends and the rank that is blamed tells which of the two fired. What a layout and rank passed
without a hit is not drawn again. Every third job is hit only when it writes the model.
"""
import concurrent.futures, glob, os, random, re, shutil, subprocess, sys, threading, time
sys.path.insert(0, os.path.dirname(__file__))
import campaign as c

sources, n_hits, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
short, planted = os.environ.get("TR_SHORT"), os.environ.get("TR_PLANT") == "1"
STEPS, N_ROWS, N_JOBS = (12, 4, 1) if short else (48, 24, int(os.environ.get("TR_JOBS", "1")))
text = "".join(open(f).read() for f in glob.glob(f"{sources}/**/*.c", recursive=True))
points = sorted(set(re.findall(r'tr_failpoint\("([\w.]+)"\)', text)) | set(re.findall(r'= "(step\.\w+)"', text)))
# Points that make a check lie instead of failing, and those of other verbs.
points = [p for p in points if not re.match(r"check\.|cp\.|tp\.skip|train\.(flip|other_cpu|rounding)|restore\.flip|data\.shard", p)]
AGENT = [p for p in points if p.startswith("launch.")]
END = [p for p in points if re.fullmatch(r"train\.(before|after)_model", p)]
START = [p for p in points if re.match(r"join\.|load\.|ckpt\.load|train\.(start|has_|data)", p)]
lock = threading.Lock()
limit = {}      # (layout, point, rank) -> a hit that never comes
todo = {}       # layout -> (point, rank), shuffled, again and again
fired, backstops, lost, times, per_point, found_at = 0, 0, [], {"shm": [], "mpi": []}, {}, set()


def draw(dice, layout, generation):
    """One generation's row. Every second one gets some steps further: a job that stands still rightly gives up."""
    row = None
    while not row:
        if not todo.setdefault(layout, []):
            todo[layout] += [(p, r) for p in points if p not in AGENT + END for r in range(4)]
            dice.shuffle(todo[layout])
        point, rank = next((x for x in todo[layout] if generation % 2 == 0 or x[0] not in START), todo[layout][0])
        todo[layout].remove((point, rank))
        top = limit.get((layout, point, rank), 1 << 30)
        hit = min(top - 1, dice.choice((3, 6, 12, 40, 150)) if generation % 2 and not point.startswith("ckpt.") else dice.choice((1, 1, 1, 2, 3)))
        if hit > 0:
            row = point, rank, "kill" if dice.random() < 0.8 else "error", hit
    return [row, ("train.after_step", (row[1] + dice.randrange(1, 4)) % 4, "kill", dice.randrange(5, 9))]


def rows_of(dice, layout, is_end):
    if planted:
        return {0: [("train.after_step", dice.randrange(4), "kill", 8)]}
    if is_end:  # at the same step three times over: no more, or it counts as a crash loop
        return {g: [(dice.choice(END), dice.randrange(4), "kill", 1)] for g in range(3)}
    rows = {g: draw(dice, layout, g) for g in range(N_ROWS)}
    if AGENT and dice.random() < 0.3:
        rows[0].append((dice.choice(AGENT), -1, "kill", dice.randrange(1, 12)))
    return rows


def learn(layout, rows, said, ended_well):
    """Which rows of this life of an agent fired: counted, and what was passed is noted."""
    global fired, backstops
    parts = c.RESTART.split(said)[0::5]
    for g, part in enumerate(parts):
        is_cut = g == len(parts) - 1    # finished, or the agent died
        for n, (point, rank, action, hit) in enumerate(r for r in rows.get(g, []) if r[1] >= 0):
            is_hit = f"failpoint {point}:" in part if action == "error" else \
                re.search(rf"rank {rank} \(pid \d+\) was ended by SIGKILL", part) is not None
            if is_hit:
                fired += 1
                per_point[point] = per_point.get(point, 0) + 1
                found_at.add((layout, point, rank))
                backstops += n
            elif not is_cut and n == 0:
                limit[layout, point, rank] = min(limit.get((layout, point, rank), 1 << 30), hit)


def run(i):
    dice = random.Random(seed * 1000003 + i)
    layouts = list(c.LAYOUTS) if not planted else ["zero2"]
    layout, is_end = layouts[i % len(layouts)], i % 3 == 2 and bool(END)
    out, tag, said, n_agents = f"run-{i}", f"t1-{os.getpid()}-{i}", "", 0
    what = f"seed {seed} job {i}: {layout}"
    begin = time.monotonic()
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
                learn(layout, rows, life, job.returncode == 0)
            if job.returncode != -9:
                break
            n_agents += 1   # the agent itself was hit: whoever started it starts it again
            said += c.agent_gone(tag, out)
        assert job.returncode == 0, f"exit {job.returncode}"
        _, gone, took = c.judge(layout, out, tag, said, STEPS)
    except (AssertionError, OSError) as e:
        raise AssertionError(f"{what}: {e}\n{said}") from None
    shutil.rmtree(out)
    return layout, n_agents, gone, took, time.monotonic() - begin


def throw_away(out):
    """The planted bug: when the ranks have died, what they had saved disappears."""
    for _ in range(400):
        time.sleep(0.01)
        if glob.glob(f"{out}/errors/*"):
            break
    for d in glob.glob(f"{out}/checkpoint-*"):
        shutil.rmtree(d, ignore_errors=True)


for layout in (c.LAYOUTS if not planted else ["zero2"]):
    c.reference(layout, STEPS)
start, n_done, n_agents, n_jobs, told = time.monotonic(), 0, 0, 0, 0
with concurrent.futures.ThreadPoolExecutor(N_JOBS) as pool:
    while fired + n_agents < n_hits:
        for layout, agents, gone, took, seconds in pool.map(run, range(n_jobs, n_jobs + N_JOBS)):
            n_agents += agents
            lost += gone
            times["mpi" if layout == "mpi" else "shm"] += took
        n_jobs += N_JOBS
        assert n_jobs < 20 + 4 * n_hits, f"only {fired} hits in {n_jobs} jobs"
        if fired // 100 > told:
            told = fired // 100
            print(f"T1 so far: {fired} hits and {n_agents} agents in {n_jobs} jobs, {len(found_at)} places, recovery p99 "
                  f"{c.quantile(times['shm'], .99):.2f} s shm, {c.quantile(times['mpi'], .99):.2f} s mpi, worst {max(sum(times.values(), [])):.2f} s; "
                  f"{time.monotonic() - start:.0f} s", flush=True)
print(f"T1 seed {seed}: {fired + n_agents} hits on {n_jobs} jobs, {n_agents} of them agents, {backstops} at the end of a step because the "
      f"point drawn was not passed; {len(per_point) + len(AGENT if n_agents else [])} of {len(points)} points, {len(found_at)} places (layout x point x rank); "
      f"all ended with the bits of the clean run, 0 checkpoints lost, 0 left behind")
print(f"T1 steps lost at a restart {c.histogram(lost)} (interval {c.INTERVAL}); {time.monotonic() - start:.0f} s")
never = [p for p in points if p not in per_point and p not in AGENT]
if n_hits >= 1000:
    print(f"T1 points never reached by these layouts: {' '.join(never) if never else 'none'}")
c.tell_times("T1", times, n_hits)
