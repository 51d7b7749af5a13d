#!/usr/bin/env bash
# I2: one allocation after the other fails in a training, from its start to its end, a save and a resume included. No crash, no
# hang, no leftovers: an error that says something, or the run goes on to the same bits.
# usage: i2_memory.sh [TRIES [SEED]]; 12 by default, spread over the whole run; 0 fails every one. A planted bug (the checks of the
# answer look at a run that was killed) must turn it red.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
[ -z "${TR_SANITIZED:-}" ] || exit 77 # sanitizers bring their own malloc
"${CC:-cc}" -O1 -shared -fPIC -o nomem.so "$source_dir/tests/fault/nomem.c" || { echo "skipped: no compiler"; exit 77; }
tiny_text train.jsonl
tiny_model model
cat >driver.py <<'PY'
import collections, concurrent.futures, glob, os, random, shutil, subprocess, sys
trireme, n_tries, seed = os.environ["TRIREME"], int(sys.argv[1]), int(sys.argv[2])
MARK = "[no memory]\n"

def train(out, at):
    command = [trireme, "train", "--model", "model", "--data", "train.jsonl", "--eval_data", "train.jsonl", "--sequence_length", "32", "--train_batch_size",
               "2", "--max_steps", "4", "--save_steps", "2", "--learning_rate", "1e-2", "--threads", "1", "--resume", "auto", "--output", out]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60,
                          env=dict(os.environ, LD_PRELOAD=os.path.abspath("nomem.so"), TR_NOMEM_AT=str(at)))

def half_done(out):
    shutil.copytree("half", out)
    return out

def model(out):
    return open(out + "/model.safetensors", "rb").read()

def judge(at, out, p):
    """Raises when a promise is broken; else how the run ended."""
    said = (p.stdout + p.stderr).replace(MARK, "")
    what = f"seed {seed}, allocation {at}: exit {p.returncode}"
    assert p.returncode in (0, 70, 75), f"{what}\n{said}"
    assert p.returncode == 0 or "trireme" in p.stderr.replace(MARK, "") or "error" in said, f"{what} without a word\n{said}"
    assert not glob.glob(out + "/**/*.tmp*", recursive=True) or p.returncode, f"{what} leaves {os.listdir(out)}"
    if p.returncode:    # the next start goes on from what is there
        again = train(out, 0)
        assert again.returncode == 0, f"{what}, and the next start ends with {again.returncode}\n{said}\n{again.stderr}"
    assert model(out) == want, f"{what}: other bits"
    return p.returncode

def one(at):
    out = half_done(f"run-{at}")
    p = train(out, at)
    is_hit = MARK in p.stderr
    try:
        code = judge(at, out, p)
    except AssertionError as e:
        code = str(e)
    shutil.rmtree(out)
    return is_hit, code

clean = train("clean", 0)
assert clean.returncode == 0, clean.stderr
want = model("clean")
shutil.copytree("clean", "half")
shutil.rmtree("half/checkpoint-4")
for f in glob.glob("half/model*") + glob.glob("half/.trireme/latest*"):
    os.remove(f)
top = 1
while one(top)[0]:
    top *= 2
low, high = top // 2, top   # the last allocation of a run is between them
while high - low > 50:
    middle = (low + high) // 2
    low, high = (middle, high) if one(middle)[0] else (low, middle)
dice = random.Random(seed)
places = range(1, low + 1) if n_tries == 0 else [dice.randrange(k * low // n_tries, (k + 1) * low // n_tries) + 1 for k in range(n_tries)]
ends, broken = collections.Counter(), []
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for n, (is_hit, code) in enumerate(pool.map(one, places), 1):
        if isinstance(code, str):
            broken.append(code)
        ends[code] += is_hit
        if n % 500 == 0:
            print(f"I2 so far: {n} of {len(places)}, ends {dict(ends)}", flush=True)
if broken:
    sys.exit("\n".join(broken))
killed = subprocess.CompletedProcess([], -11, "", "")
try:
    judge(0, "clean", killed)
    sys.exit("I2 does not see a crash")
except AssertionError:
    pass
print(f"I2 seed {seed}: {sum(ends.values())} of about {low} allocations of a resumed training failed one by one; {ends[0]} runs went on, {ends[70] + ends[75]} ended "
      f"with an error and were resumed; 0 crashes, 0 hangs, all with the bits of the clean run")
PY
python3 driver.py "${1:-12}" "${2:-1}"
