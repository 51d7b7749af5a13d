"""T2 driver: KILLS SEED. TR_JOBS jobs run at a time; each has its own dice, and is hit until it is done."""
import concurrent.futures, glob, os, random, shutil, signal, subprocess, sys, tempfile, threading, time
sys.path.insert(0, os.path.dirname(__file__))
import campaign as c

n_kills, seed = int(sys.argv[1]), int(sys.argv[2])
short, planted = os.environ.get("TR_SHORT"), os.environ.get("TR_PLANT") == "1"
STEPS, N_JOBS = (60, 1) if short else (600, int(os.environ.get("TR_JOBS", "2")))
c.INTERVAL = 3 if short else 20
lock = threading.Lock()
counts, lost, times, n_done, n_agents = {}, [], {"shm": [], "mpi": []}, 0, 0
spent = [0.0, 0.0]      # seconds: what the steps of the clean run take, what the same steps took
# weight, what is hit, with which signal; a stopped process goes on after a while, or never
MENU = [(70, "rank", signal.SIGKILL), (8, "rank", signal.SIGTERM), (8, "rank", signal.SIGSTOP), (2, "rank for ever", signal.SIGSTOP),
        (7, "agent", signal.SIGKILL), (3, "agent", signal.SIGTERM), (2, "agent", signal.SIGSTOP)]


class Job:
    def __init__(self, i):
        self.dice = random.Random(seed * 1000003 + i)
        self.layout = self.dice.choices(list(c.LAYOUTS), [1 if k == "mpi" else 3 for k in c.LAYOUTS])[0]
        self.out, self.tag, self.i = f"run-{i}", f"t2-{os.getpid()}-{i}", i
        self.log, self.due, self.conts, self.hits = tempfile.TemporaryFile(), 0, [], []
        self.mtbf = 0.3 if short else 0.5 * (3 / 0.5) ** self.dice.random()
        self.start()

    def start(self):
        self.process = subprocess.Popen(c.command(self.layout, self.out, STEPS), stdout=self.log, stderr=self.log,
                                        env=dict(os.environ, TR_CAMPAIGN=self.tag))
        self.due = time.monotonic() + self.dice.expovariate(1 / self.mtbf)

    def hit(self):
        global n_done
        _, what, sig = self.dice.choices(MENU, [w for w, *_ in MENU])[0]
        try:
            children = open(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read().split()
        except OSError:
            return
        pid = self.process.pid if what == "agent" else int(self.dice.choice(children)) if children else None
        self.due = time.monotonic() + self.dice.expovariate(1 / self.mtbf)
        if pid is None:
            return
        try:
            os.kill(pid, sig)
        except OSError:
            return
        if sig == signal.SIGSTOP and what != "rank for ever":
            self.conts.append((time.monotonic() + self.dice.uniform(0.1, 4), pid))
        name = f"{sig.name} {what}"
        with lock:
            n_done += 1
            counts[name] = counts.get(name, 0) + 1
        self.hits.append(f"{time.monotonic() - self.begin:.2f} s {name}")

    def again(self):
        """Whoever started the agent starts it again."""
        global n_agents
        n_agents += 1
        self.log.write(c.agent_gone(self.tag, self.out).encode())
        self.log.flush()
        self.start()

    def run(self):
        self.begin = time.monotonic()
        while time.monotonic() - self.begin < 600:
            time.sleep(0.01)
            for at, pid in [x for x in self.conts if time.monotonic() >= x[0]]:
                self.conts.remove((at, pid))
                try:
                    os.kill(pid, signal.SIGCONT)
                except OSError:
                    pass
            code = self.process.poll()
            if code == 0:
                return time.monotonic() - self.begin
            if code is not None:
                # Ten kills in a row that let it come nowhere: it gives up (A21), and somebody starts it again.
                # A SIGTERM whose ranks are killed before they have saved: 143, and the job starts from an older checkpoint.
                # One that comes before the agent handles signals ends it by the signal itself.
                is_unsaved = code in (143, -15) and "SIGTERM agent" in " ".join(self.hits)
                assert code in (-9, 75) or is_unsaved or (code == 78 and "10 restarts without progress" in self.said()), f"exit {code}"
                self.again()
            elif time.monotonic() >= self.due and n_done < n_kills and time.monotonic() - self.begin < 300:    # then it may end
                self.hit()
        raise AssertionError("hangs")

    def said(self):
        return os.pread(self.log.fileno(), 1 << 26, 0).decode(errors="replace")


def one(i):
    job = Job(i)
    try:
        seconds = job.run()
        if planted:
            with open(glob.glob(f"{job.out}/*.safetensors")[0], "r+b") as f:
                f.seek(-9, 2)
                byte = f.read(1)
                f.seek(-9, 2)
                f.write(bytes([byte[0] ^ 1]))
        _, gone, took = c.judge(job.layout, job.out, job.tag, job.said(), STEPS)
    except (AssertionError, OSError) as e:
        for pid in c.of_run(job.tag):
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"seed {seed} job {i} {job.layout} mtbf {job.mtbf:.2f}: {e}\n{job.hits}\n{job.said()}") from None
    shutil.rmtree(job.out)
    with lock:
        spent[0] += STEPS * c.step_seconds(job.layout, STEPS) if job.hits else 0
        spent[1] += seconds if job.hits else 0
        lost.extend(gone)
    times["mpi" if job.layout == "mpi" else "shm"] += took


def tell_goodput():
    """Steps that counted of steps that were made, and their time undisturbed of the time it took."""
    kept = STEPS * n_jobs
    return (f"goodput {100 * kept / (kept + sum(lost)):.1f} % of the steps (a restart loses {sum(lost) / max(1, len(lost)):.1f}), "
            f"{100 * spent[0] / max(1e-9, spent[1]):.0f} % of the time at a fault every {spent[1] / max(1, n_done):.1f} s")


for layout in c.LAYOUTS:
    c.reference(layout, STEPS)
print("T2 step of a clean run: " + ", ".join(f"{layout} {c.step_seconds(layout, STEPS) * 1e3:.1f} ms" for layout in c.LAYOUTS), flush=True)
begin, n_jobs = time.monotonic(), 0
with concurrent.futures.ThreadPoolExecutor(N_JOBS) as pool:
    while n_done < n_kills:
        list(pool.map(one, range(n_jobs, n_jobs + 2 * N_JOBS if not short else n_jobs + 1)))
        n_jobs += 2 * N_JOBS if not short else 1
        if n_kills >= 1000:
            print(f"T2 so far: {n_done} hits, {n_jobs} jobs, {n_agents} agents, {tell_goodput()}; recovery p99 {c.quantile(times['shm'], .99):.2f} s shm, "
                  f"{c.quantile(times['mpi'], .99):.2f} s mpi, worst {max(sum(times.values(), [0])):.2f} s; {time.monotonic() - begin:.0f} s", flush=True)
print(f"T2 seed {seed}: {n_done} hits on {n_jobs} jobs ({', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}), {n_agents} agents "
      f"started again; all ended with the bits of the clean run, 0 checkpoints lost, 0 left behind")
print(f"T2 steps lost at a restart {c.histogram(lost)} (interval {c.INTERVAL}); {tell_goodput()}; {time.monotonic() - begin:.0f} s")
c.tell_times("T2", times, n_kills)
