#!/usr/bin/env bash
# The Python package runs the real binary: verbs, events as they come, errors, a stop, records of Python, a notebook.
. "$(dirname "$0")/common.sh"
export PYTHONPATH=$source_dir/python TRIREME PYTHONDONTWRITEBYTECODE=1
tiny_model model
tiny_text train.jsonl
python3 -W error - <<'PY' || fail "the package"
import json, os, signal, threading, time, trireme

def refused(code, part, make):
    try:
        make()
    except trireme.TriremeError as e:
        assert e.code == code and part in e.text, (e.code, e.text)
    else:
        raise AssertionError("was not refused: " + part)

assert trireme.version()[0].isdigit(), trireme.version()
options = dict(model="model", data="train.jsonl", sequence_length=32, train_batch_size=4, threads=1)
plan = trireme.plan(**options)
assert plan["total_bytes"] == plan["ranks"][0]["total_bytes"] > 0

# events come while it runs, and are those of the log
run = trireme.train(**options, max_steps=5, learning_rate=1e-3, save_steps=5, output="out")
first = next(e for e in run if e["event"] == "step")
assert first["step"] == 1 and run.metrics()[0] == first
second = next(e for e in run if e["event"] == "step")  # the loop above was left, this one goes on
assert second["step"] == 2, second
end = run.wait()
assert end["event"] == "end" and end["steps"] == 5 and run.returncode == 0, end
with open("out/events.jsonl") as f:
    log = [json.loads(l) for l in f]
assert [e for e in log if e["event"] == "step"] == run.metrics()
assert list(trireme.watch("out", timeout_s=5)) == log
assert "polyline" in run._repr_html_()

loss = trireme.eval(model="out", data="train.jsonl", sequence_length=32)
assert 0 < loss["loss"] < 6 and loss["tokens"] > 0, loss
g = trireme.generate("out", "Line 1", max_new_tokens=4)
assert len(g.ids) == 4 and str(g) == g.text
e = trireme.ckpt_export("out", "gguf:q8_0", "gguf")
assert e["kl"] < 1 and e["out"] == "gguf", e

# records instead of files; flags, lists and dicts as values
rows = [{"text": f"row {i} of a list, long enough to train on"} for i in range(20)]
with trireme.train(model="model", data=rows, sequence_length=32, train_batch_size=2, max_steps=2, output="listed", bf16=True) as run:
    assert run.wait()["status"] == "done"

# a run that is stopped has saved, and is no failure
run = trireme.train(**options, max_steps=100000, output="stopped")
steps = (e for e in run if e["event"] == "step")
next(steps)
run.stop()
assert run.wait() and run.returncode == 75, run.returncode
assert any(e["event"] == "checkpoint" for e in run.history), run.history[-3:]

# nobody reads while it runs, and nothing is lost: the program writes more than a pipe holds
run = trireme.train(**options, max_steps=400, logging_steps=1, output="unread")
while run.returncode is None:
    time.sleep(0.05)
assert run.wait()["event"] == "end" and len(run.metrics()) == 400, (run.history[-1], len(run.metrics()))

# Ctrl-C: an exception here, and the program, which a terminal sends it too, saves and ends
run = trireme.train(**options, max_steps=100000, output="interrupted")
def interrupt():
    run._process.send_signal(signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
try:
    for event in run:
        if event["event"] == "step" and event["step"] == 3:
            threading.Timer(0.1, interrupt).start()
    raise AssertionError("the loop went on")
except KeyboardInterrupt:
    pass
assert run.wait() and run.returncode == 75, run.returncode
with open("interrupted/events.jsonl") as f:
    assert run.history == [json.loads(l) for l in f], "events were lost"

refused(2, "nowhere", lambda: trireme.eval(model="nowhere", data="train.jsonl"))
refused(2, "learning_rat", lambda: trireme.train(**options, learning_rat=1, output="bad").wait())
refused(2, "no run writes there", lambda: next(trireme.watch("nowhere", timeout_s=0)))
PY
# the example and the cells of the notebook, in order
cp "$source_dir"/examples/python/* .
python3 -W error train.py >stdout || fail "examples/python/train.py: $(cat stdout)"
rm -rf small trained
python3 -W error - <<'PY' || fail "the notebook"
import json
with open("notebook.ipynb") as f:
    cells = json.load(f)["cells"]
for cell in cells:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), globals())
PY
python3 -m trireme --version | grep -q '^trireme ' || fail "python3 -m trireme"
