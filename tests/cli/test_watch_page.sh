#!/usr/bin/env bash
# The page of `watch --http` and `--html` in Debian's Chromium: what the panels say of a finished run, a live one, one with faults, a
# million steps, 64 ranks and hostile names; no error of the page, no request that leaves its server.
. "$(dirname "$0")/common.sh"
command -v chromium >/dev/null && ldconfig -p | grep 'libmicrohttpd.so.12' >/dev/null || exit 77
steps=1000000
[ -z "${TR_SANITIZED:-}" ] || steps=20000
tiny_model model
tiny_text train.jsonl
python3 - "$TRIREME" "$source_dir/tests/cli" $steps <<'PY' || fail "see above"
import json, math, os, signal, struct, subprocess, sys, time

sys.path.insert(0, sys.argv[2])
from browser import Browser

TRIREME, N = sys.argv[1], int(sys.argv[3])
EVIL = "<img src=x onerror=alert(1)>\x1b]0;t\x07\u202egnp.exe</script><script>alert(2)</script>"


def event(kind, **more):
    return json.dumps({"event": kind, "time": 1794961785.0, "run": "x", "schema": 1, **more}) + "\n"


def step(i, n, time_s=1794961785):
    loss = 2 + 3 * math.exp(-8 * i / n) + 0.1 * (i * 7919 % 100) / 100
    return ('{"event":"step","time":%.6f,"run":"x","schema":1,"step":%d,"loss":%.17g,"grad_norm":%.17g,"lr":%.17g,"tokens":1024,"tokens_per_s":%.9g,'
            '"mfu":0.4,"data_wait_s":1.4e-05,"comm_exposed_s":0.03,"samples":[[%d,%d]]}\n'
            % (time_s + 0.25 * i, i, 9 if i == n // 2 else loss, 1 + i % 7 / 10, 1e-3 * (1 - i / n), 4000 + i % 100, 16 * i - 16, 16 * i - 1))


PLAN = [event("plan", rank=r, total_bytes=3 << 20, reserved_bytes=3 << 20, arenas=[{"name": "params", "bytes": 1 << 20}, {"name": "acts", "bytes": 2 << 20}]) for r in (0, 1)]
OPTIONS = {"learning_rate": {"value": 0.001, "origin": "command line --learning_rate"}, "seed": {"value": 42, "origin": "default"}, "model": {"value": EVIL, "origin": EVIL}}


def page_of_rank(path, rank, world, busy_us, kind=2):
    """base/phase.h, as far as it is shown; pid 0: a rank that has died."""
    import socket, struct
    page = bytearray(13664)
    struct.pack_into("<IIiiii", page, 0, 0x54525048, 2, rank, world, 0, 0)
    struct.pack_into("<qd64s", page, 24, 3, 0.0, socket.gethostname().encode())
    struct.pack_into("<QQiiii", page, 104, 2, 5, kind, 1, 0, 0)
    struct.pack_into("<qqqqQ48sqqd", page, 136, 7, 0, 0, 0, 3, b"x", 0, 0, busy_us)
    open(f"{path}/.trireme/phase-{rank:04d}", "wb").write(page)


os.makedirs("done/logs")
with open("done/events.jsonl", "w") as f:
    f.write(event("data", sources=[{"path": "a.jsonl", "format": "text", "tokens": 5, "documents": 1, "skipped": 0}], rows=9, trained=0.5, rows_without_target=0, isolated=True,
                  sample={"id": 7, "epoch": 0, "tokens": 3, "documents": 2, "trained": 2, "pieces": [[0, "masked "], [1, "trained"], [3, "next"]]}))
    f.writelines(PLAN)
    f.write(event("layout", dp=2, tp=1, pp=1, cp=1, ep=1, zero=1, machine="", step_s=0.3) + event("config", total_steps=60, options=OPTIONS))
    f.writelines(step(i, 60) for i in range(1, 61))
    f.write(event("eval", step=30, loss=2.75) + event("eval", step=60, loss=2.5) + event("eval", step=60, set="code", best_of=False, loss=3.25) + event("checkpoint", step=60, path="done/checkpoint-60", bytes=19499648, stall_s=0.004, write_s=0.1, verified=True)
            + event("experts", step=30, layers=[{"layer": 0, "load": [0.25] * 4, "entropy": 1.386, "rounds": 1}])
            + event("experts", step=60, layers=[{"layer": k, "load": [0.6, 0.3, 0.08, 0.02], "entropy": 0.93, "rounds": 2 + k} for k in range(3)])
            + "".join(event("sample", step=i, prompt=p, text=f" {p}, step {i}") for i in (30, 60) for p in ("Once", "Twice"))
            + event("end", status="done", steps=60, tokens=61440, seconds=21.4))
with open("done/grad_norms.jsonl", "w") as f:
    for i in range(2, 61, 2):
        f.write(json.dumps({"step": i, "norms": {"model.embed_tokens.weight": 0, **{f"model.layers.{k}.w": (1 + k) / i for k in range(4)}}}) + "\n")
open("done/logs/rank-0000.log", "w").write("the last line of rank 0\n" + EVIL + "\n")
evil = "evil " + EVIL.replace("/", "")
os.makedirs(f"{evil}/errors")
with open(f"{evil}/events.jsonl", "w") as f:
    f.write(event("config", total_steps=5, options={EVIL: {"value": EVIL, "origin": EVIL}}) + event("data", sources=[{"path": EVIL, "format": EVIL, "tokens": 1, "documents": 1, "skipped": 0}],
            sample={"id": 0, "epoch": 0, "tokens": 1, "documents": 1, "trained": 1, "pieces": [[1, EVIL]]}) + step(1, 5) + step(2, 5))
    f.write(event("start") + event("fault", rank=1, host="h", phase="gather", action="goes on", cause="step 1: gather took 2 s") + event("start") + event("control", action="set", key="learning_rate", value=0.5, step=2, accepted=True)
            + event("control", action="eval", step=2, accepted=False, why=EVIL) + event("step", step=3, loss=1, rewards_margin=0.125, rewards_accuracy=0.75) + event("eval", step=3, loss=1, acc=0.25, acc_norm=0.5)
            + event("system", cpu=0.5, disk_free_bytes=3 << 20, strange=7, gpus=[{"gpu": 0, "utilization": 0.97, "memory_used_bytes": 1 << 30, "memory_total_bytes": 2 << 30, "power_w": 691, "temperature_c": 63, "clock_mhz": 1755}]))
    f.write(event("fault", rank=3, host="h", phase="step", action="skipped", cause=f"step 2 of samples 1..2: loss is not finite {EVIL}") + event("sample", step=2, prompt=EVIL, text=EVIL) + event("experts", step=2, layers=[{"layer": EVIL, "load": [EVIL, 1], "entropy": EVIL}]) + event(EVIL, x=1)
            + event("end", status=EVIL))
open(f"{evil}/errors/{EVIL.replace('/', '')[:200]}", "w").write(EVIL)
# members of other kinds than a trainer writes them, and lines that are no events
os.makedirs("odd")
with open("odd/events.jsonl", "w") as f:
    f.write(event("config", total_steps="many", options={"a": None, "b": 5, EVIL: {"value": {"x": [EVIL]}, "origin": 3}}) + event("layout", dp=-1, machine=EVIL, step_s="slow"))
    f.write(event("plan", rank=5000000, total_bytes=1e300, arenas=[{"name": 5, "bytes": "x"}, 7, None]) + event("plan", rank=-1, arenas="none"))
    f.write(event("data", sources=[{"path": 5}, 7, None, [EVIL]], sample={"pieces": [[1], [EVIL, EVIL], 5, None, [1, "shown all the same"]]}))
    f.write('{"event":"step","step":1,"loss":5,"time":1e300}\n{"event":"step","step":2,"loss":1e999,"lr":null}\n[1]\n"x"\nnull\n{\n\0\n{"event":5}\n{"event":"step","a":' + "[" * 5000 + "\n")
    f.write(event("system", cpu=[1], gpus=[5, None, {"gpu": EVIL, "power_w": "x"}]) + event("experts", step=1, layers=[None, 5, {"load": [0] * 300}]) + event("sample", step=1, prompt=None, text=5))
    f.write(event("control", action=EVIL, step=EVIL, why=3) + event("fault", cause={"a": 1}) + event("checkpoint", step="x", bytes=-1) + step(3, 9) + event("end", status=[1], seconds=-1))
open("odd/grad_norms.jsonl", "w").write('{"step":"x","norms":[1]}\n{"step":1,"norms":{"model.layers.999999999.w":1,"model.layers.-1.w":"x"}}\n')
os.makedirs("many/.trireme")
with open("many/events.jsonl", "w") as f:
    f.write(event("config", total_steps=9, options={}) + step(1, 9))
for r in range(64):
    page_of_rank("many", r, 64, 3e5 if r == 17 else 1e5)
os.symlink("many", "a-run-with-a-name-that-is-far-longer-than-the-screen-of-any-phone-is-wide")
os.makedirs("pipe")
with open("pipe/events.jsonl", "w") as f:
    f.write(event("layout", tp=1, pp=2, chunks=1, cp=1, dp=1, ep=1, zero=0, shard=0, seq=64, micro=2, **{"global": 8}, param_bytes=4, grad_bytes=4, state_bytes=8, gather_bytes=4, layers=4, hidden=32, heads=4,
                  kv_heads=4, head_dim=8, ffn=64, vocab=264, gated=True, tied=False, sp=False, sync_last=False, number=0, keep=0, schedule="1f1b", machine="H100", step_s=0.002) + step(1, 9))
os.makedirs("million")
with open("million/events.jsonl", "w") as f:
    f.write(event("config", total_steps=N, options={}))
    f.writelines(step(i, N) for i in range(1, N + 1))

browser, servers = Browser(), []


def serve(*runs):
    p = subprocess.Popen([TRIREME, "watch", *runs, "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    servers.append(p)
    return p.stdout.readline().strip()


def on_core(process):
    return int(open(f"/proc/{process.pid}/schedstat").read().split()[0]) / 1e9


def has(selector, *texts):
    text = browser.text(selector)
    for t in texts:
        if t not in text:
            sys.exit(f"{selector} lacks {t!r}:\n{text}")


def well(url):
    own = url.split("/?")[0]
    strangers = [u for u in browser.urls if not u.startswith((own, "data:", "about:"))]
    if browser.errors or strangers:
        sys.exit(f"{url}: {browser.errors} {strangers}")
    browser.call("Page.navigate", url="about:blank")     # what is under way belongs to that page
    browser.wait("location.href === 'about:blank'")
    browser.urls.clear()


try:
    # a finished run, beside another in one page
    browser.size(1280, 900)
    url = serve("done", evil)
    browser.open(url)
    has("#head", "60 / 60", "2.5", "4.06 K", "40 %", "61.4 K", "21.4 s", "dp 2")
    has("#state", "done")
    has("#panel-loss", "done", "eval", "2.5", "eval code", "3.25")
    has("#panel-speed", "3.41 K")                 # planned: 1024 tokens in 0.3 s
    has("#panel-memory", "3.00 MiB", "params", "2.00 MiB")
    has("#panel-heat", "embed_tokens", "layer 0", "layer 3", "no gradient")
    has("#panel-checkpoints", "60", "18.60 MiB", "100 ms", "verified")
    has("#panel-faults", "no faults")
    has("#panel-logs", "the last line of rank 0", "\\x1b]0;t\\x07\\u202egnp.exe</script>")
    has("#panel-config", "learning_rate", "0.001", "command line", "What differs")
    has("#panel-data", "a.jsonl", "sample 7", "masked ", "trained")
    if browser.run("document.querySelectorAll('#panel-data .tokens .on').length") != 2:
        sys.exit("masks are not coloured")
    has("#panel-samples", "Once Once, step 60", "Twice Twice, step 60", "1 earlier text of this prompt")
    if browser.run("document.querySelectorAll('#panel-samples > div > pre').length") != 2:
        sys.exit("a prompt is not shown once, with its newest text")
    has("#panel-experts", "step 60", "3 layers", "2.4 \u00d7", "0.93")
    if browser.run("[...document.querySelectorAll('#panel-experts .load')].map(e => e.children.length).join()") != "4,4,4":
        sys.exit("not a bar an expert")
    # what scrolls can be scrolled with keys
    if browser.run("[...document.querySelectorAll('.scroll, pre.log')].some(e => e.scrollHeight > e.clientHeight && e.tabIndex < 0)"):
        sys.exit("a list that no key scrolls")
    # zoom with the keyboard, and what a point says
    browser.run("document.querySelector('#panel-loss svg').focus()")
    for key in ("ArrowLeft", "+"):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
    browser.wait("document.getElementById('range').textContent.startsWith('steps ')")
    browser.run("T.zoom(null, null)")
    browser.wait("document.getElementById('range').textContent === ''")
    # hostile names and texts are text
    browser.run("document.getElementById('run').value = '1'; document.getElementById('run').dispatchEvent(new Event('change'))")
    browser.wait("document.getElementById('body-faults').innerText.includes('not finite')")
    has("#panel-faults", "1 fault, 1 restart, 1 slow action", "goes on after step 1")
    has("#panel-requests", "set learning_rate=0.5", "done", "refused: <img src=x")
    has("#panel-margin", "0.125")
    has("#panel-accuracy", "75 %")
    has("#panel-choices", "accuracy", "25 %", "by length", "50 %")
    has("#panel-machine", "691 W", "63 \u00b0C", "1755 MHz", "97 %", "1.00 GiB of 2.00 GiB", "processors busy", "3.00 MiB", "strange")
    for panel in ("faults", "samples", "experts", "data", "config", "logs"):
        has("#panel-" + panel, "<img src=x onerror=alert(1)>", "\\u202e")
    if browser.run("document.querySelectorAll('img, script:not([src])').length") or "\u202e" in browser.run("document.body.innerText"):
        sys.exit("a text of a run became part of the page")
    well(url)
    # the same as one file, without a server
    subprocess.run([TRIREME, "watch", "done", evil, "--html", "page.html"], check=True, stdout=subprocess.DEVNULL)
    browser.open("file://" + os.path.abspath("page.html"))
    has("#head", "60 / 60", "61.4 K")
    has("#panel-config", "What differs", "<img src=x")
    browser.urls = [u for u in browser.urls if not u.endswith("page.html")]
    well("file:///?")
    # a log that says what no log says; a panel that fails leaves a line, and the rest of the page
    url = serve("odd")
    browser.open(url)
    has("#panel-data", "shown all the same")
    has("#panel-config", "<img src=x")
    has("#panel-machine", "load", "<img src=x")
    browser.run("T.panels[0].draw = () => { throw Error('no oars'); }; document.getElementById('smooth').dispatchEvent(new Event('input'))")
    has("#panel-loss", "cannot be drawn here: no oars")
    has("#panel-machine", "load")
    browser.errors = [e for e in browser.errors if "no oars" not in e]
    well(url)
    # runs of one name in two places are told apart, and so are the sets of evaluation data of each
    os.mkdir("again")
    os.symlink("../done", "again/done")
    url = serve("done", "again/done")
    browser.open(url)
    for panel in ("#runs", "#panel-loss", "#panel-lr"):
        has(panel, "again/done")
    drawn = browser.run("[...document.querySelectorAll('#panel-loss svg.curve path[stroke-dasharray]')].map(e => e.getAttribute('stroke') + ' ' + e.getAttribute('stroke-dasharray'))")
    if len(drawn) != 4 or len(set(drawn)) != 4:
        sys.exit(f"two sets of evaluation data of two runs are drawn as {drawn}")
    # labels of an axis have one notation
    for all, want in (([0, 0.001, 0.002, 0.003], ["0", "0.001", "0.002", "0.003"]), ([0, 2e-5, 4e-5, 6e-5], ["0", "2e-5", "4e-5", "6e-5"]), ([0.00100001, 0.00100002], ["0.00100001", "0.00100002"])):
        if (labels := browser.run(f"T.tenths({all})")) != want:
            sys.exit(str(labels))
    for call, want in (("[1000000, 1000020, 1000040], T.count", ["1 M", "1.00002 M", "1.00004 M"]), ("[0.008191, 0.008192], T.seconds", ["8.191 ms", "8.192 ms"]), ("[0.4, 0.4001], T.percent", ["40 %", "40.01 %"]),
                       ("[1, 2], T.count", ["1", "2"])):
        if (labels := browser.run(f"T.labels({call})")) != want:
            sys.exit(str(labels))
    for all, want in (([50000, 100000, 150000], ["50 K", "100 K", "150 K"]), ([0, 5000], ["0", "5,000"]), ([1000100, 1000200], ["1.0001 M", "1.0002 M"])):
        if (labels := browser.run(f"T.steps({all})")) != want:
            sys.exit(str(labels))
    well(url)
    # a step that was predicted: its two stages, and what it takes beside their actions
    url = serve("pipe")
    browser.open(url)
    has("#panel-timeline", "predicted, a row a stage, ", " of a step of ", "forward", "backward", "not measured")
    if browser.run("document.querySelectorAll('#panel-timeline svg rect').length") < 16:
        sys.exit("not every micro-batch of both stages is drawn")
    well(url)
    # 64 ranks, one of them slow
    url = serve("many")
    browser.open(url)
    has("#panel-ranks", "64 ranks", "stragglers: 17", "rank 0 holds up", "generation 3")
    if browser.run("document.querySelectorAll('#panel-ranks tbody tr').length") != 64:
        sys.exit("not every rank has a row")
    well(url)
    # a million steps
    begin = time.monotonic()
    url = serve("million")
    read, work = time.monotonic() - begin, on_core(servers[-1])
    browser.call("Performance.enable", timeDomain="threadTicks")
    drawn = browser.open(url)
    work += sum(m["value"] for m in browser.call("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")
    browser.call("Performance.disable")
    has("#head", f"{N:,} / {N:,}")
    seen = browser.run("T.series[0].loss.max.reduce((a, b) => Math.max(a, b))")
    frame = browser.run("(async () => { const t = performance.now(); for (let i = 0; i < 20; i++) { scrollTo(0, 50 * i); await new Promise(requestAnimationFrame); } return (performance.now() - t) / 20; })()")
    if seen != 9:
        sys.exit(f"the one spike is lost: {seen}")
    if work > 1 and N == 1000000:   # seconds of a core: those of the clock depend on what else runs here
        sys.exit(f"to open {N} steps takes {work:.2f} s")
    print(f"{N} steps: {work:.2f} s of a core, read in {read:.2f} s, drawn in {drawn:.2f} s, {frame:.1f} ms a frame when scrolled")
    well(url)
    # a live run: what it writes appears
    os.mkdir("live")
    open("live/events.jsonl", "w").write(event("config", total_steps=9, options={}) + step(1, 9))
    url = serve("live")
    browser.open(url)
    has("#head", "1 / 9")
    open("live/events.jsonl", "a").write(step(2, 9) + step(3, 9)[:40])
    browser.wait("document.getElementById('head').innerText.includes('2 / 9')", 10)
    open("live/events.jsonl", "a").write(step(3, 9)[40:] + event("fault", rank=1, host="h", phase="save", action="continue", cause="no space"))
    browser.wait("document.getElementById('panel-faults').innerText.includes('no space')", 10)
    has("#head", "3 / 9")
    well(url)
    # a run of the trainer itself: while it trains, when a rank is killed, when it is over; what is shown is what the log says
    group = subprocess.Popen([TRIREME, "launch", "--nproc-per-node", "2", "--max-restarts", "2", "train", "--model", "model", "--data", "train.jsonl", "--output", "real", "--sequence_length", "32",
                              "--train_batch_size", "8", "--max_steps", "1000000", "--save_steps", "50", "--threads", "1", "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    servers.append(group)
    log = lambda: [json.loads(line) for line in open("real/events.jsonl") if line.endswith("}\n")]
    until = time.monotonic() + 30
    while not os.path.exists("real/latest"):
        time.sleep(0.1)
        if group.poll() is not None or time.monotonic() > until:
            sys.exit(f"the run ended with {group.poll()}")
    url = serve("real")
    browser.open(url)
    has("#panel-ranks", "2 ranks")
    for e in [e for e in log() if e["event"] == "plan"]:
        has("#panel-memory", "%.2f MiB" % (e["total_bytes"] / 2**20))
    browser.wait(f"T.details[0].step > {browser.run('T.details[0].step')}", 20)
    ranks = json.loads(subprocess.run([TRIREME, "watch", "real", "--json"], stdout=subprocess.PIPE, check=True).stdout)["ranks"]
    os.kill(ranks[1]["at"]["pid"], signal.SIGKILL)
    browser.wait("document.getElementById('panel-faults').innerText.includes('SIGKILL')", 30)
    at = browser.run("T.details[0].step")
    browser.wait(f"T.details[0].step > {at}", 30)
    subprocess.run([TRIREME, "ctl", "real", "stop"], check=True, stdout=subprocess.DEVNULL)
    group.wait(30)
    losses = {e["step"]: e["loss"] for e in log() if e["event"] == "step"}
    browser.wait(f"T.details[0].step === {max(losses)} && !document.getElementById('state').innerText.includes('running')", 20)
    shown = browser.run("(c => [Math.min(...(c.min || c.mean)), Math.max(...(c.max || c.mean))])(T.series[0].loss)")
    as_drawn = lambda x: float("%.7g" % struct.unpack("f", struct.pack("f", x)))   # curves are float32, sent with seven digits
    if shown != [as_drawn(x) for x in (min(losses.values()), max(losses.values()))]:
        sys.exit(f"losses of the run are {min(losses.values())} to {max(losses.values())}, shown are {shown}")
    browser.wait(f"document.getElementById('head').innerText.includes('{max(losses):,} / 1,000,000')", 20)   # drawn after it was read
    well(url)
    # a phone in the dark: nothing is wider than the screen, and letters stand out from the page
    browser.size(390, 844, dark=True)
    browser.open(serve("done", "a-run-with-a-name-that-is-far-longer-than-the-screen-of-any-phone-is-wide"))
    if browser.run("document.documentElement.scrollWidth") > 390:
        sys.exit("wider than a phone")
    cut = browser.run("['memory', 'machine', 'data'].filter(id => [...document.querySelectorAll('#panel-' + id + ' .scroll')].some(e => e.scrollWidth > e.clientWidth)).join()")
    if cut:
        sys.exit(f"a phone cuts the table of {cut}")
    if browser.run("getComputedStyle(document.body).backgroundColor") != "rgb(17, 21, 27)":
        sys.exit("not dark")
    if browser.errors:
        sys.exit(str(browser.errors))
finally:
    browser.close()
    for p in servers:
        p.send_signal(signal.SIGTERM)
        p.wait(10)
PY
