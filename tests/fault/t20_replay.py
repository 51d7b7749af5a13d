"""T20 driver: KILLS STEPS SEED, for each kind of run. A kill is a SIGKILL at a random place of a random step, of a random rank; the run
is started again until it is done. Then steps are replayed, and everything that a replay prints is compared with events.jsonl as it stands."""
import json, os, random, subprocess, sys, time

TRIREME = os.environ["TRIREME"]
n_kills, n_steps, seed = map(int, sys.argv[1:4])
dice = random.Random(seed)
SHORT = bool(os.environ.get("TR_SHORT"))
TOTAL = 40 if SHORT else 200
TEXT = ["--data", "train.jsonl", "--eval_split", "0.1", "--eval_steps", "9", "--sequence_length", "32"]
PAIRS = ["--data", "pairs.jsonl", "--eval_split", "0.1", "--eval_steps", "9", "--sequence_length", "128"]
KINDS = {  # ranks, options
    "plain": (1, [*TEXT, "--dropout", "0.1"]),
    "lora": (1, [*TEXT, "--lora_r", "4", "--lora_dropout", "0.1"]),
    "fp16": (1, [*TEXT, "--fp16"]),
    "zero2": (2, [*TEXT, "--zero", "2"]),
    "pp2": (2, [*TEXT, "--pp", "2"]),
    "dpo": (1, [*PAIRS, "--task", "dpo", "--loss_type", "ipo", "--lora_r", "4", "--init_lora_weights", "pissa"]),
    "kto": (2, ["--data", "answers.jsonl", "--eval_data", "answers.jsonl", "--eval_steps", "9", "--sequence_length", "64", "--task", "kto", "--zero", "1"]),
    "stream": (2, ["--data", "train.jsonl", "--sequence_length", "32", "--streaming", "true", "--zero", "3"]),
    "offload": (1, [*PAIRS, "--task", "simpo", "--offload_optimizer", "cpu", "--offload_param", "cpu", "--offload_activations"]),
}
if SHORT:
    KINDS = {k: KINDS[k] for k in ("lora", "zero2")}


def launched(ranks):
    return [TRIREME] + (["launch", "--nproc-per-node", str(ranks)] if ranks > 1 else [])


def steps_of(out):
    try:
        return [e for e in map(json.loads, open(f"{out}/events.jsonl")) if e["event"] == "step"]
    except (OSError, ValueError):  # not there yet, or its last line is being written
        return []


def train(kind, ranks, options, out):
    kills = n_set = 0
    command = launched(ranks) + ["train", "--model", "model", "--train_batch_size", "4", "--per_device_train_batch_size", "1", "--max_steps", str(TOTAL), "--save_steps", "7",
                                 "--save_total_limit", "9", "--learning_rate", "1e-2", "--threads", "1", "--quiet", "--resume", "auto", *options,
                                 "--output", out]
    while True:
        hit = dice.randrange(1, TOTAL // n_kills // 2 + 3)  # so that the run is long enough for all of them
        sets = kills < n_kills and kills % 3 == 1
        point = dice.choice(["train.data", "train.before_step", "train.after_step", "step.forward", "step.backward", "step.update"])
        rank = dice.randrange(ranks)
        fail = "" if kills >= n_kills else f"train.before_step:delay700:{hit}:0,train.before_step:delay9000:{hit + 5}:0" if sets else f"{point}:kill:{hit}:{rank}"
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ, TR_FAIL=fail), start_new_session=True)
        if sets:  # a rate is set while the run waits, and it is killed at some instant after that
            at, begin = len(steps_of(out)), time.monotonic()
            while p.poll() is None and len(steps_of(out)) + 1 < at + hit and time.monotonic() - begin < 20:
                time.sleep(0.02)
            rate = f"learning_rate={dice.choice([3e-3, 2e-2, 1e-3])}"
            n_set += subprocess.run([TRIREME, "ctl", out, "set", rate, "--wait", "5"], capture_output=True).returncode == 0
            time.sleep(dice.random() * 0.1)
            if p.poll() is None:
                os.killpg(p.pid, 9)
        err = p.communicate()[1].decode()
        if p.returncode == 0:
            return kills, n_set
        if "is being written by another run" in err:  # ranks whose launcher was killed end by themselves
            time.sleep(0.2)
            continue
        kills += 1
        assert p.returncode in (-9, 70, 75, 137), f"{kind}: exit {p.returncode}: {err}"


n_equal = 0
for kind, (ranks, options) in KINDS.items():
    out = f"run-{kind}"
    kills, n_set = train(kind, ranks, options, out)
    assert kills == n_kills or SHORT, f"{kind}: {kills} kills"
    log = {e["step"]: e for e in steps_of(out)}
    assert sorted(log) == list(range(1, TOTAL + 1)), f"{kind}: the log has steps {sorted(log)}"
    for step in sorted(dice.sample(range(1, TOTAL + 1), n_steps)):
        r = subprocess.run(launched(ranks) + ["replay", out, "--step", str(step), "--json", "--quiet", "--threads", "1"], capture_output=True, text=True)
        assert r.returncode == 0, f"{kind} step {step}: exit {r.returncode}: {r.stdout} {r.stderr}"
        got = json.loads(r.stdout.splitlines()[-1])
        assert got["is_equal"] and got["first_different"] is None, (kind, step, got["first_different"])
        assert (got["loss"], got["grad_norm"]) == (log[step]["loss"], log[step]["grad_norm"]), (kind, step)
        n_equal += 1
    print(f"{kind}: {kills} kills, {n_set} rates set, {n_steps} steps of {TOTAL} replayed to the bit", flush=True)
print(f"{n_equal} steps equal")
