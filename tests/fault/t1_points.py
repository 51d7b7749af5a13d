"""T1 driver: SOURCES RUNS SEED. Failpoints are found in the sources, so that none can be forgotten."""
import glob, os, random, re, shutil, subprocess, sys, time
sys.path.insert(0, os.path.dirname(__file__))
import campaign as c

sources, n_runs, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
short = os.environ.get("TR_SHORT")
planted = os.environ.get("TR_PLANT") == "1"
text = "".join(open(f).read() for f in glob.glob(f"{sources}/**/*.c", recursive=True))
points = sorted(set(re.findall(r'tr_failpoint\("([\w.]+)"\)', text)) | set(re.findall(r'= "(step\.\w+)"', text)))
# Points that make a check lie instead of failing, and those of other verbs.
points = [p for p in points if not re.match(r"check\.|cp\.|tp\.skip|train\.flip|data\.shard", p)]
dice = random.Random(seed)
limit = {}      # (layout, point, rank) -> a hit that never comes
fired, idle, lost, times, per_point = 0, 0, [], {"shm": [], "mpi": []}, {}


def draw(i):
    point, layout, rank, top = dice.choice(points) if short else points[i % len(points)], "zero2", 0, 1
    for _ in range(40):  # a place that is known not to be passed is not drawn again
        layout = dice.choice(list(c.LAYOUTS))
        rank = -1 if point.startswith("launch.") else dice.randrange(4)
        top = limit.get((layout, point, rank), 1 << 30)
        if top > 1:
            break
    action = "kill" if dice.random() < 0.8 or rank < 0 else "error"
    hit = dice.randrange(1, max(2, min(top, dice.choice((2, 2, 3, 6, 12, 40, 150)))))
    if planted:
        point, layout, rank, action, hit = "train.after_step", "zero2", dice.randrange(4), "kill", 8
    return layout, point, rank, action, hit


def run(i):
    layout, point, rank, action, hit = draw(i)
    out, tag = f"run-{i}", f"t1-{os.getpid()}-{i}"
    what = f"seed {seed} run {i}: {layout} TR_FAIL={point}:{action}:{hit}:{rank}:0"
    said, n_agents = "", 0
    env = dict(os.environ, TR_CAMPAIGN=tag, TR_FAIL=f"{point}:{action}:{hit}:{rank}:0")
    if planted:
        env["TR_FAIL"] += ",launch.after_end:delay600:1:-1"
    while True:
        job = subprocess.Popen(c.command(layout, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        if planted:
            throw_away(out)
        try:
            said += job.communicate(timeout=60)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            job.kill()
            raise AssertionError(f"{what}: hangs\n{said}")
        if job.returncode != -9 or n_agents == 3:
            break
        n_agents += 1   # the agent itself was hit: whoever started it starts it again
        env.pop("TR_FAIL")
    try:
        assert job.returncode == 0, f"exit {job.returncode}"
        restarts, gone, took = c.judge(layout, out, tag, said)
    except (AssertionError, OSError) as e:
        raise AssertionError(f"{what}: {e}\n{said}") from None
    shutil.rmtree(out)
    return layout, point, rank, hit, action, restarts + n_agents, gone, took, said


def throw_away(out):
    """The planted bug: when the ranks have died, what they had saved disappears."""
    for _ in range(400):
        time.sleep(0.01)
        if glob.glob(f"{out}/errors/*"):
            break
    for d in glob.glob(f"{out}/checkpoint-*"):
        shutil.rmtree(d, ignore_errors=True)


for layout in (c.LAYOUTS if not planted else ["zero2"]):
    c.reference(layout)
start = time.monotonic()
for i in range(n_runs):
    layout, point, rank, hit, action, n, gone, took, said = run(i)
    if n == 0 and "failpoint" not in said:
        idle += 1
        limit[layout, point, rank] = min(limit.get((layout, point, rank), 1 << 30), hit)
        continue
    fired += 1
    per_point[point] = per_point.get(point, 0) + 1
    lost += gone
    times["mpi" if layout == "mpi" else "shm"] += took
    if n_runs >= 1000 and fired % 100 == 0:
        print(f"T1 so far: {fired} of {i + 1} runs were hit, p99 recovery {c.quantile(times['shm'], .99):.2f} s", flush=True)
print(f"T1 seed {seed}: {n_runs} runs, {fired} were hit at {len(per_point)} of {len(points)} points, {idle} passed their point; "
      f"all ended with the bits of the clean run, 0 checkpoints lost, 0 left behind")
for comm, took in times.items():
    if took:
        print(f"T1 recovery, {comm}: median {c.quantile(took, .5):.2f} s, p99 {c.quantile(took, .99):.2f} s, worst {max(took):.2f} s of {len(took)}")
print(f"T1 steps lost at a restart {c.histogram(lost)} (interval {c.INTERVAL}); {time.monotonic() - start:.0f} s")
never = [p for p in points if p not in per_point]
if n_runs >= 1000:
    print(f"T1 points never reached by these layouts: {' '.join(never) if never else 'none'}")
assert planted or short or fired >= n_runs // 4, f"only {fired} of {n_runs} runs were hit"
