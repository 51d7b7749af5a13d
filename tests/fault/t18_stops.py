"""T18, see t18_stops.sh: two stop signals to every process of a job, and whether exit 75 is true."""
import glob, json, os, random, shutil, signal, subprocess, sys, tempfile, time

TRIREME, n_jobs, seed, planted = os.environ["TRIREME"], int(sys.argv[1]), int(sys.argv[2]), "TR_PLANT" in os.environ
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
UNUSED = [signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGXCPU, signal.SIGRTMIN, signal.SIGRTMAX]
KINDS = ["alone", "one node", "two nodes"]
if not os.path.exists(os.path.join(os.path.dirname(TRIREME), "libtrireme_mpich.so")):
    KINDS.remove("two nodes")
# What a job does beside plain steps. Where a step is rare the stop mostly comes in something else.
WORK = {"plain": ["--data", "train.jsonl", "--data_proof", "none"],
        "proof": ["--data", "train.jsonl", "--data_proof", "full"],
        "stream": ["--data", "part1.jsonl", "--data", "part2.jsonl", "--streaming", "true", "--data_proof", "none"],
        "evaluation": ["--data", "train.jsonl", "--data_proof", "none", "--eval_data", "a=part1.jsonl", "--eval_data", "b=part2.jsonl", "--eval_choices", "choices.jsonl",
                       "--sample_prompts", "asks.jsonl", "--max_new_tokens", "24", "--eval_steps", "2", "--save_strategy", "best", "--load_best_model_at_end"],
        "reference": ["--data", "prefs.jsonl", "--task", "dpo", "--per_device_eval_batch_size", "1", "--data_proof", "none"],
        "disk": ["--data", "train.jsonl", "--offload_optimizer", "nvme:disk", "--data_proof", "none"],
        "slow saves": ["--data", "train.jsonl", "--data_proof", "none", "--async_save", "on", "--verify_restore", "--report_to", "tensorboard,wandb", "--grad_norm_steps", "1"]}
for stop in STOPS:  # a shell that runs us in the background ignores SIGINT, and nohup SIGHUP, which our jobs would inherit
    if signal.getsignal(stop) == signal.SIG_IGN:
        signal.signal(stop, signal.default_int_handler)
BOUND = 240     # seconds: only a hang takes longer


def children(pid):
    try:
        return [int(p) for p in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        return []


def made(out):
    """The last step that the log has; 0: none."""
    try:
        lines = open(f"{out}/events.jsonl").read().split("\n")[:-1]
    except OSError:
        return 0
    steps = [e["step"] for e in map(json.loads, lines) if e["event"] == "step"]
    return steps[-1] if steps else 0


def saved(out):
    """The newest checkpoint that verifies; 0: none."""
    whole = [d for d in glob.glob(f"{out}/checkpoint-*") if d.rsplit("-", 1)[1].isdigit() and
             subprocess.run([TRIREME, "ckpt", "verify", d], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0]
    return max((int(d.rsplit("-", 1)[1]) for d in whole), default=0)


def send(pid, sig):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def until(what, is_true):
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() - start < BOUND, what
        time.sleep(0.002)


class Job:
    def __init__(self, i):
        self.dice, self.out = random.Random(seed * 1000003 + i), f"run-{i}"
        self.kind, self.log = KINDS[i % len(KINDS)], tempfile.TemporaryFile()
        self.signals = STOPS[i // len(KINDS) % 4], STOPS[i // len(KINDS) // 4 % 4] if n_jobs >= 48 else self.dice.choice(STOPS)
        self.work = "plain" if planted else self.dice.choice(list(WORK))
        train = ["train", "--model", "model", "--sequence_length", "32", "--per_device_train_batch_size", "1", "--max_steps", "1000000",
                 "--save_steps", "7", "--save_total_limit", "2", "--threads", "1", "--quiet", "--output", self.out, *WORK[self.work]]
        port = 20000 + (os.getpid() * 7 + i) % 20000
        node = lambda r: [TRIREME, "launch", "--nnodes", "2", "--node-rank", str(r), "--rdzv", f"127.0.0.1:{port}", *train]
        self.commands = {"alone": [[TRIREME, *train]], "one node": [[TRIREME, "launch", "--nproc-per-node", "2", *train]],
                         "two nodes": [node(0), node(1)]}[self.kind]
        self.tops = [subprocess.Popen(c, stdout=self.log, stderr=self.log) for c in self.commands]
        self.ranks = []

    def strike(self):
        """Signals one process, or all of them at once as a scheduler does."""
        n_ranks = 0 if self.kind == "alone" else 2
        until("ranks do not start", lambda: len([p for t in self.tops for p in children(t.pid)]) >= n_ranks or self.has_ended())
        self.ranks = [p for t in self.tops for p in children(t.pid)] if n_ranks else []
        if planted or self.dice.random() < 0.7:
            until("no step is made", lambda: made(self.out) > 0 or self.has_ended())
        time.sleep(self.dice.random() ** 2 * 0.4)
        everyone = [t.pid for t in self.tops] + self.ranks
        target = [self.tops[0].pid] if planted else self.dice.choice([[p] for p in everyone] + [everyone] * 2)
        is_training = made(self.out) > 0
        self.what = f"seed {seed}, job {self.out}, {self.kind}, {self.work}, {self.signals[0].name} then {self.signals[1].name} to {len(target)} of {len(everyone)} processes"
        if is_training and self.dice.random() < 0.3:
            for p in target:
                send(p, self.dice.choice(UNUSED))
        for sig in self.signals:
            for p in target:
                send(p, sig)
            time.sleep(self.dice.choice((0, 0.001, 0.05, 0.2)) * self.dice.random())
        return is_training

    def has_ended(self):
        return any(t.poll() is not None for t in self.tops)

    def judge(self, is_training):
        codes = []
        left = list(self.tops)
        while left:     # the node that is left waits for the other one; its scheduler stops it too
            until("the job does not end", lambda: any(t.poll() is not None for t in left))
            ended = [t for t in left if t.poll() is not None]
            if planted:
                for d in glob.glob(f"{self.out}/checkpoint-*"):
                    shutil.rmtree(d)
            codes += [t.poll() for t in ended]
            left = [t for t in left if t not in ended]
            for code in [t.poll() for t in ended]:
                assert code != 75 or saved(self.out) == made(self.out), f"says 75, but {saved(self.out)} of {made(self.out)} steps are saved"
                assert code == 75 or not is_training, f"a stop in the training ended with {code}"
                assert code in (70, 75, 143, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGUSR1), f"exit {code}"
            for t in left:
                time.sleep(0.5)
                send(t.pid, signal.SIGTERM)
        left_over = glob.glob("disk/*") + [n for n in glob.glob(f"{self.out}/**", recursive=True, include_hidden=True) if ".tmp-" in n and "/.cache/" not in n]
        assert not left_over, f"left behind: {left_over}"
        alive = [p for p in self.ranks if os.path.exists(f"/proc/{p}")]
        assert not alive, f"left behind: {alive}"
        return codes

    def run(self):
        try:
            is_training = self.strike()
            return is_training, self.judge(is_training)
        except AssertionError as e:
            for p in self.tops:
                p.kill()
            self.log.seek(0)
            raise AssertionError(f"{getattr(self, 'what', self.kind)}: {e}\n{self.log.read().decode(errors='replace')}") from None


counts, n_training = {}, 0
for i in range(n_jobs):
    job = Job(i)
    is_training, codes = job.run()
    n_training += is_training
    for code in codes:
        counts[code] = counts.get(code, 0) + 1
    shutil.rmtree(job.out, ignore_errors=True)
print(f"T18 seed {seed}: {n_jobs} jobs of {len(WORK)} kinds of work, {n_training} stopped in the training, exit codes "
      f"{', '.join(f'{c}: {n}' for c, n in sorted(counts.items()))}; 0 lies")
