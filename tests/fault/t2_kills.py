"""T2 driver: KILLS SEED."""
import glob, os, random, shutil, signal, subprocess, sys, tempfile, time
sys.path.insert(0, os.path.dirname(__file__))
import campaign as c

n_kills, seed = int(sys.argv[1]), int(sys.argv[2])
planted = os.environ.get("TR_PLANT") == "1"
STEPS = 60 if os.environ.get("TR_SHORT") else 150
dice = random.Random(seed)
counts, lost, times, goodput, n_done, n_jobs, n_agents = {}, [], {"shm": [], "mpi": []}, [], 0, 0, 0
# weight, what is hit, with which signal; a stopped process goes on after a while, or never
MENU = [(70, "rank", signal.SIGKILL), (8, "rank", signal.SIGTERM), (8, "rank", signal.SIGSTOP), (2, "rank for ever", signal.SIGSTOP),
        (7, "agent", signal.SIGKILL), (3, "agent", signal.SIGTERM), (2, "agent", signal.SIGSTOP)]


def newest(out):
    steps = [d.rsplit("-", 1)[1] for d in glob.glob(f"{out}/checkpoint-*") if "." not in d]
    return max(map(int, steps), default=0)


class Job:
    def __init__(self, i):
        self.layout, self.out, self.tag = dice.choices(list(c.LAYOUTS), [1 if k == "mpi" else 3 for k in c.LAYOUTS])[0], f"run-{i}", f"t2-{os.getpid()}-{i}"
        self.log, self.due, self.conts = tempfile.TemporaryFile(), 0, []
        self.mtbf = 0.3 if os.environ.get("TR_SHORT") else 0.7 * (5 / 0.7) ** dice.random()
        self.hits = []
        self.start()

    def start(self):
        self.process = subprocess.Popen(c.command(self.layout, self.out, STEPS), stdout=self.log, stderr=self.log,
                                        env=dict(os.environ, TR_CAMPAIGN=self.tag))
        self.due = time.monotonic() + dice.expovariate(1 / self.mtbf)

    def hit(self):
        global n_done
        _, what, sig = dice.choices(MENU, [w for w, *_ in MENU])[0]
        try:
            children = open(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read().split()
        except OSError:
            return
        pid = self.process.pid if what == "agent" else int(dice.choice(children)) if children else None
        self.due = time.monotonic() + dice.expovariate(1 / self.mtbf)
        if pid is None:
            return
        try:
            os.kill(pid, sig)
        except OSError:
            return
        if sig == signal.SIGSTOP and what != "rank for ever":
            self.conts.append((time.monotonic() + dice.uniform(0.1, 4), pid))
        n_done += 1
        name = f"{sig.name} {what}"
        counts[name] = counts.get(name, 0) + 1
        self.hits.append(f"{time.monotonic() - self.begin:.2f} s {name}")

    def again(self):
        """The agent is gone: within a second so is all of the job. Whoever started it starts it again."""
        global n_agents
        n_agents += 1
        until = time.monotonic() + 3
        while c.of_run(self.tag) and time.monotonic() < until:
            time.sleep(0.02)
        assert not c.of_run(self.tag), "ranks outlive their agent"
        self.log.write(f"restart 0 of at most 0, 0 s after the failure; step 0, checkpoint {newest(self.out)}\n".encode())
        self.log.flush()
        self.start()

    def run(self):
        self.begin = time.monotonic()
        while time.monotonic() - self.begin < 240:
            time.sleep(0.005)
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
                assert code in (-9, 75), f"exit {code}"
                self.again()
            elif time.monotonic() >= self.due and n_done < n_kills:
                self.hit()
        raise AssertionError("hangs")

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")


clean_seconds = {}
for layout in c.LAYOUTS:
    c.reference(layout, STEPS)
    clean_seconds[layout] = float(open(f"clean-{layout}-{STEPS}/seconds").read())
begin = time.monotonic()
while n_done < n_kills:
    job = Job(n_jobs)
    try:
        seconds = job.run()
        if planted:
            with open(f"{job.out}/model.safetensors" if job.layout != "pp2" else glob.glob(f"{job.out}/model-*.safetensors")[0], "r+b") as f:
                f.seek(-9, 2)
                byte = f.read(1)
                f.seek(-9, 2)
                f.write(bytes([byte[0] ^ 1]))
        _, gone, took = c.judge(job.layout, job.out, job.tag, job.said(), STEPS)
    except (AssertionError, OSError) as e:
        for pid in c.of_run(job.tag):
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"seed {seed} job {n_jobs} {job.layout} mtbf {job.mtbf:.2f}: {e}\n{job.hits}\n{job.said()}") from None
    if job.hits:
        goodput.append(clean_seconds[job.layout] / seconds)
    n_jobs += 1
    lost += gone
    times["mpi" if job.layout == "mpi" else "shm"] += took
    shutil.rmtree(job.out)
    if n_kills >= 1000 and n_jobs % 20 == 0:
        print(f"T2 so far: {n_done} hits, {n_jobs} jobs, p99 recovery {c.quantile(times['shm'], .99):.2f} s", flush=True)
print(f"T2 seed {seed}: {n_done} hits on {n_jobs} jobs ({', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}), {n_agents} agents "
      f"started again; all ended with the bits of the clean run, 0 checkpoints lost, 0 left behind")
for comm, took in times.items():
    if took:
        print(f"T2 recovery, {comm}: median {c.quantile(took, .5):.2f} s, p99 {c.quantile(took, .99):.2f} s, worst {max(took):.2f} s of {len(took)}")
print(f"T2 steps lost at a restart {c.histogram(lost)} (interval {c.INTERVAL}); time of a clean run over time with faults: median "
      f"{c.quantile(goodput, .5):.2f}; {time.monotonic() - begin:.0f} s")
