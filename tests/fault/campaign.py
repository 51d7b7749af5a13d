"""What the kill campaigns T1 and T2 share: a small training of four ranks, its undisturbed result, and the oracle.

Every run must end with the bits of the undisturbed one (weights, optimizer state, loss log), resume from the newest
checkpoint that was committed, and leave no process, segment, socket or temporary file behind.
"""
import bisect, glob, hashlib, json, os, re, subprocess, threading, time

TRIREME = os.environ["TRIREME"]
STEPS, INTERVAL = 12, 3
BOUND = 3.0     # seconds from a fault to the next step, of 99 in 100
RESTART = re.compile(r"restart (\d+) of at most \d+, ([\d.]+) s after the failure; step (\d+), checkpoint (\d+)")
LAYOUTS = {
    "zero2": ["--zero", "2"],
    "zero3": ["--zero", "3", "--reproducible", "layout"],
    "pp2": ["--pp", "2", "--zero", "1"],
    "zb": ["--pp", "2", "--pp_schedule", "zb", "--zero", "1"],
    "tp2": ["--tp", "2", "--sp"],
    "lora": ["--zero", "2", "--lora_r", "4", "--lora_dropout", "0.1"],
    "qlora": ["--zero", "3", "--lora_r", "4", "--load_in_4bit", "--bnb_4bit_use_double_quant"],
    "lora_pp2": ["--pp", "2", "--zero", "1", "--lora_r", "4", "--lora_modules_to_save", "model.norm"],
    "nvme": ["--zero", "1", "--offload_optimizer", "nvme:.", "--offload_activations", "--recompute", "block"],
    "grads": ["--offload_optimizer", "cpu", "--offload_gradients"],
    "fp8": ["--zero", "1", "--fp8", "--fp8_scaling", "delayed"],
    "base_nvme": ["--zero", "2", "--lora_r", "4", "--load_in_4bit", "--offload_param", "nvme:.", "--offload_optimizer", "nvme:."],
    "stream": ["--zero", "1", "--streaming", "true"],
    "dpo": ["--zero", "2", "--task", "dpo", "--data", "prefs.jsonl", "--eval_data", "prefs.jsonl"],
    "best": ["--eval_data", "a=train.jsonl", "--eval_data", "b=plain.txt", "--eval_choices", "choices.jsonl", "--eval_steps", "INTERVAL", "--load_best_model_at_end",
             "--early_stopping_patience", "100"],
}
if os.path.exists(os.path.join(os.path.dirname(TRIREME), "libtrireme_mpich.so")):
    LAYOUTS["mpi"] = ["--zero", "2", "--comm", "mpi"]
CHOSEN = os.environ.get("TR_LAYOUTS")   # TR_LAYOUTS=lora,qlora: these alone
if os.environ.get("TR_SHORT"):          # what ctest has time for
    CHOSEN = CHOSEN or "zero2,pp2,lora_pp2,qlora"
if CHOSEN:
    LAYOUTS = {k: LAYOUTS[k] for k in CHOSEN.split(",")}


def command(layout, out, steps=STEPS, restarts=1000):
    make_data()
    usual = {"--data": "train.jsonl", "--eval_data": "train.jsonl", "--eval_steps": "6", "--sequence_length": "32", "--train_batch_size": "8",
             "--per_device_train_batch_size": "1", "--max_steps": str(steps), "--save_steps": str(INTERVAL), "--save_total_limit": "2",
             "--learning_rate": "1e-2", "--threads": "1", "--ddp_timeout": "20", "--resume": "auto"}
    own = [w.replace("INTERVAL", str(INTERVAL)) for w in LAYOUTS[layout]]
    return [TRIREME, "launch", "--nproc-per-node", "4", "--max-restarts", str(restarts), "train", "--model", "model",
            *[word for option in usual.items() if option[0] not in own for word in option], *own, "--output", out]


def make_data():
    """What some layouts read besides train.jsonl."""
    if os.path.exists("choices.jsonl"):
        return
    write = lambda name, records: open(name, "w").write("".join(json.dumps(r) + "\n" for r in records))
    write("prefs.jsonl", [{"prompt": f"oars {i}?", "chosen": f"170 {i}.", "rejected": f"7 {i}."} for i in range(40)])
    open("plain.txt", "w").write("three banks of oars, one stroke. " * 40)
    write("choices.jsonl", [{"context": f"oars {i}", "choices": ["170", "7"], "gold": i % 2} for i in range(6)])


def bits(out, steps=STEPS):
    """name -> hash of everything that must not change: weights, optimizer shards, the loss log."""
    files = sorted(glob.glob(f"{out}/*.safetensors") + glob.glob(f"{out}/checkpoint-{steps}/**/*.safetensors", recursive=True))
    assert files, f"no model in {out}"
    found = {os.path.relpath(f, out): hashlib.sha256(open(f, "rb").read()).hexdigest() for f in files}
    log = []
    for line in open(f"{out}/events.jsonl"):
        e = json.loads(line)
        if e["event"] in ("step", "eval"):
            log.append([e.get(k) for k in ("event", "step", "loss", "grad_norm", "lr", "tokens", "samples")])
    found["log"] = hashlib.sha256(json.dumps(log).encode()).hexdigest()
    return found


def reference(layout, steps=STEPS, fail=""):
    """The undisturbed run; it is made once."""
    out = f"clean-{layout}-{steps}"
    if not os.path.exists(out):
        subprocess.run(command(layout, out, steps), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env=dict(os.environ, TR_FAIL=fail))
    return bits(out, steps)


def step_seconds(layout, steps=STEPS):
    """Of the undisturbed run: the median, so that other work beside it does not count."""
    at = [e["time"] for e in map(json.loads, open(f"clean-{layout}-{steps}/events.jsonl")) if e["event"] == "step"]
    return quantile([b - a for a, b in zip(at, at[1:])], .5)


def of_run(tag):
    """Live processes of the run that has this tag in its environment."""
    found, want = [], f"TR_CAMPAIGN={tag}".encode()
    for d in glob.glob("/proc/[0-9]*"):
        try:
            if want in open(d + "/environ", "rb").read().split(b"\0") and \
               open(d + "/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX":
                found.append(int(d[6:]))
        except OSError:
            pass
    return found


def agent_gone(tag, out):
    """The agent is gone: within a second so is all of its job. The line that a restart by whoever started it adds to the log."""
    until = time.monotonic() + 3
    while of_run(tag) and time.monotonic() < until:
        time.sleep(0.02)
    assert not of_run(tag), "ranks outlive their agent"
    newest = max((int(d.rsplit("-", 1)[1]) for d in glob.glob(f"{out}/checkpoint-*") if "." not in d), default=0)
    return f"restart 0 of at most 0, 0 s after the failure; step 0, checkpoint {newest}\n"


def leftovers(tag, out):
    left = [f"process {p}" for p in of_run(tag)]
    if left:  # the parent-death signal is on its way
        time.sleep(1)
        left = [f"process {p}" for p in of_run(tag)]
    jobs = set(re.findall(r"job ([0-9a-f]{32})", " ".join(open(f).read() for f in glob.glob(f"{out}/logs/*"))))
    left += [f for f in glob.glob("/dev/shm/trireme*") if any(j in f for j in jobs)]
    return left + glob.glob(f"{out}/**/*.tmp*", recursive=True)


def judge(layout, out, tag, said, steps=STEPS):
    """Raises with the reason when a finished run breaks a promise; else (restarts, lost steps, recovery times)."""
    want, got = reference(layout, steps), bits(out, steps)
    if "in checkpoint: failpoint" in RESTART.split(said)[-1] and not os.path.exists(f"{out}/checkpoint-{steps}"):
        want = {k: v for k, v in want.items() if not k.startswith("checkpoint-")}  # the last save was made to fail, and was told
    wrong = [k for k in want if got.get(k) != want[k]]
    assert not wrong, f"bits differ in {wrong}"
    left = leftovers(tag, out)
    assert not left, f"left behind: {left}"
    parts = RESTART.split(said)  # before the first restart, then for each: number, seconds, step, checkpoint, what followed
    restarts = [parts[i:i + 4] for i in range(1, len(parts), 5) if parts[i] != "0"]
    for i in range(1, len(parts), 5):
        committed, after, is_last = int(parts[i + 3]), parts[i + 4], i + 5 >= len(parts)
        resumed = [int(n) for n in re.findall(r"resuming after step (\d+)", after)]
        assert all(r >= committed for r in resumed) and (resumed or not committed or not is_last), \
            f"a committed checkpoint was lost: {committed} was there, resumed from {resumed}"
    lost = [max(0, int(s) - int(c)) for _, _, s, c in restarts]
    # A save that failed, and was told, costs an interval more; who dies before it resumes leaves the log of the one before.
    most, allowed = [], 0
    for i in range(1, len(parts), 5):
        own = INTERVAL * (1 + parts[i - 1].count(" in checkpoint: "))
        allowed = own if "resuming after" in parts[i - 1] else max(own, allowed)
        most += [allowed] if parts[i] != "0" else []
    assert all(n <= m for n, m in zip(lost, most)), f"steps lost at the restarts: {lost}, {most} at most"
    return len(restarts), lost, recovery_times(out, restarts)


halts, n_halted = [], 0     # when a core had not woken a thread that only sleeps for 0.1 s: somebody with a higher priority has it


def pulse(core):
    os.sched_setaffinity(0, {core})
    last = time.time()
    while True:
        time.sleep(0.02)
        now = time.time()
        if now - last > 0.1:
            bisect.insort(halts, now)
        last = now


for core in os.sched_getaffinity(0):
    threading.Thread(target=pulse, args=(core,), daemon=True).start()


def recovery_times(out, restarts):
    """From the failure to the first step after it, for faults that a step follows; what happened in one over the bound is shown."""
    global n_halted
    times, fault, k, seen = [], None, 0, []
    for line in open(f"{out}/events.jsonl"):
        e = json.loads(line)
        if e["event"] == "fault" and e.get("action") == "launch" and k < len(restarts):
            fault, k, seen = e["time"] - float(restarts[k][1]), k + 1, []
        if fault:
            seen.append(f"{e['time'] - fault:.2f} s {e['event']}")
        if e["event"] in ("step", "eval", "checkpoint") and fault:
            took, halted = e["time"] - fault, bisect.bisect(halts, e["time"] + 0.1) > bisect.bisect(halts, fault)
            n_halted += halted
            times += [] if halted else [took]
            if took > BOUND:
                print(f"{out}: {took:.2f} s after restart {k}, load {os.getloadavg()[0]:.0f}{', halted' if halted else ''}: {', '.join(seen)}", flush=True)
            fault = None
    return times


def quantile(xs, q):
    xs = sorted(xs)
    return xs[min(len(xs) - 1, int(q * len(xs)))] if xs else 0.0


def tell_times(name, times, n_wanted):
    """Prints the recovery times of each engine; a campaign fails when they are over the bound."""
    for comm, took in times.items():
        if took:
            print(f"{name} recovery, {comm}: median {quantile(took, .5):.2f} s, p99 {quantile(took, .99):.2f} s, worst {max(took):.2f} s of {len(took)}")
    if n_halted:
        print(f"{name}: {n_halted} more are not counted: a core was somebody else's alone meanwhile")
    everything = sum(times.values(), [])
    assert n_wanted < 1000 or quantile(everything, .99) <= BOUND, f"{name}: p99 recovery is over {BOUND} s"


def histogram(xs):
    return " ".join(f"{v}:{xs.count(v)}" for v in sorted(set(xs)))
