#!/usr/bin/env bash
# `watch` on a whole terminal: the numbers of the run, pages by keys, a new size, a run that goes on; the terminal is as it was after q and
# after every signal that ends it. Elsewhere, and with --plain, it prints once.
. "$(dirname "$0")/common.sh"
python3 - "$TRIREME" <<'PY' || fail "see above"
import fcntl, json, os, pty, re, select, signal, struct, sys, termios, time

TRIREME = sys.argv[1]


def event(kind, **more):
    return json.dumps({"event": kind, "time": 1.0, "run": "x", "schema": 1, **more}, separators=(",", ":")) + "\n"


os.makedirs("run/logs")
with open("run/events.jsonl", "w") as f:
    f.write(event("plan", rank=0, total_bytes=3 << 20, reserved_bytes=3 << 20, arenas=[{"name": "params", "bytes": 3 << 20}]))
    f.write(event("config", total_steps=40, options={"seed": {"value": 7, "origin": "command line --seed"}}))
    for i in range(1, 21):
        f.write(event("step", step=i, loss=5 - i / 10, lr=0.1, grad_norm=1.5, tokens=8, tokens_per_s=1234))
    f.write(event("checkpoint", step=20, path="run/checkpoint-20") + event("fault", rank=3, cause="loss is not finite"))
    f.write(event("sample", step=20, prompt="Once", text=" upon\x1b[2J a \u202etime <b>" + "x" * 150 + "end of it"))
    f.write(event("data", rows=9, trained=0.5, rows_without_target=0, sources=[{"path": "a\x1b[2J.jsonl", "format": "text", "tokens": 35150, "documents": 7, "skipped": 1}],
                  sample={"id": 7, "tokens": 3, "trained": 2, "pieces": [[0, "masked "], [1, "trained\x1b[2J"], [3, "next" + "y" * 200 + "last"], [1e300, "x"], 5, [1]]}))
    f.write(event("system", cpu=0.5, process_memory_bytes=3 << 20, gpus=[{"gpu": 0, "utilization": 0.97, "memory_used_bytes": 1 << 30, "power_w": 691}, 5]))
    f.write(event("experts", step=20, layers=[{"layer": 1, "load": [0.6, 0.3, 0.1, 0]}, 5, {"load": "x"}]))
    f.write(event("fault", rank=1, cause="gather took 2 s", action="goes on"))
with open("run/grad_norms.jsonl", "w") as f:
    for i in range(1, 21):
        f.write(json.dumps({"step": i, "norms": {f"model.layers.{k}.w": (1 + k) / i for k in range(3)}}) + "\n")
open("run/logs/rank-0000.log", "w").write("the last line\n")


class Terminal:
    def __init__(self, columns, rows):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            time.sleep(0.2)     # until the size is set
            os.environ["TERM"], os.environ["LC_ALL"] = "xterm-256color", "C.UTF-8"
            os.execv(TRIREME, [TRIREME, "watch", "run"])
        self.size(columns, rows)
        self.before = termios.tcgetattr(self.fd)
        self.got = b""

    def size(self, columns, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, until, seconds=15):
        """What is on the screen since the last look, once `until` is."""
        end, self.got = time.monotonic() + seconds, b""
        while until not in self.got:
            if time.monotonic() > end:
                sys.exit(f"{until!r} does not come: {self.got[-3000:]!r}")
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.got += os.read(self.fd, 65536)
                except OSError:
                    break
        return self.got

    def has_ended(self):
        rest = b""
        try:
            while piece := os.read(self.fd, 65536):
                rest += piece
        except OSError:
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return code, self.got + rest


def frame(data):
    """The lines of the last frame, without colours."""
    return [re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", l).decode().strip("\r") for l in data.split(b"\x1b[H")[-1].split(b"\r\n")]


t = Terminal(120, 30)
first = t.read(b"q quits")
if not first.startswith(b"\x1b[?1049h"):
    sys.exit(f"no alternate screen: {first[:80]!r}")
raw = termios.tcgetattr(t.fd)
lines = frame(first)
text = "\n".join(lines)
for want in ("step 20/40 (50.0 %)", "loss 3", "grad_norm 1.5", "1.2 K tokens/s", "3.00 MiB", "checkpoint at step 20", "fault: rank 3: loss is not finite", "the last line", "no pages of ranks"):
    if want not in text:
        sys.exit(f"no {want!r} in\n{text}")
if len(lines) != 30 or max(map(len, lines)) > 120:
    sys.exit(f"{len(lines)} lines, the longest {max(map(len, lines))}")
for key, want in ((b"2", "gradient norm"), (b"6", "command line --seed"), (b"5", "the last line"), (b"4", "checkpoint at step 20"), (b"\t", "log of rank 0"), (b"7", "end of it")):
    os.write(t.fd, key)
    t.read(want.encode())
text = "\n".join(frame(t.got))
if "step 20: Once" not in text or "\\x1b[2J" not in text or "\u202e" in text or b"\x1b[2J" in t.got:
    sys.exit(f"a generated text is not shown as text:\n{text}")
for key, wants in ((b"8", ("35150", "a\\x1b[2J.jsonl", "50.0 % of the tokens", "sample 7", "masked trained\\x1b[2J|next", "yyylast")), (b"9", ("memory", "of", "free", "GPU 0  busy 97 %", "691 W", "3.00 MiB", "50.0 %")),
                   (b"0", ("layer 2", "steps 1 to 20", "from 0.05", "\u2588", "fair share", "largest 2.4 x")), (b"4", ("slow: rank 1: gather took 2 s",))):
    os.write(t.fd, key)
    t.read(f"[{key.decode()} ".encode())
    text = "\n".join(frame(t.got))
    if any(want not in text for want in wants) or b"\x1b[2J" in t.got:
        sys.exit(f"page {key} lacks one of {wants}:\n{text}")
os.write(t.fd, b"1")
t.size(70, 20)          # SIGWINCH
os.kill(t.pid, signal.SIGWINCH)
for _ in range(10):
    lines = frame(t.read(b"q quits"))
    if len(lines) == 20:
        break
if "q quits" not in lines[-1] or "[1 overview]" not in lines[-1] or "tokens/s" not in "".join(lines[:4]):
    sys.exit("a narrow terminal hides how to leave, or the speed:\n" + "\n".join(lines))
if len(lines) != 20 or max(map(len, lines)) > 70:
    sys.exit(f"after the new size: {len(lines)} lines, the longest {max(map(len, lines))}")
open("run/events.jsonl", "a").write(event("step", step=21, loss=2.5))
t.read(b"step 21/40")
os.rename("run/logs", "run/no-logs")
os.write(t.fd, b"5")
t.read(b"no logs: a launcher writes them")
os.write(t.fd, b"q")
code, rest = t.has_ended()
if code != 0 or not rest.endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l"):
    sys.exit(f"after q: exit {code}, {rest[-80:]!r}")
for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV, signal.SIGABRT):
    t = Terminal(80, 24)
    t.read(b"q quits")
    if termios.tcgetattr(t.fd)[3] & termios.ICANON:
        sys.exit("keys wait for a line end")
    os.kill(t.pid, sig)
    end = time.monotonic() + 10
    while not termios.tcgetattr(t.fd)[3] & termios.ICANON and time.monotonic() < end:
        select.select([], [], [], 0.02)
    if not termios.tcgetattr(t.fd)[3] & termios.ICANON or not termios.tcgetattr(t.fd)[3] & termios.ECHO:
        sys.exit(f"{sig}: the terminal is left without echo")
    code, rest = t.has_ended()
    if b"\x1b[?1049l" not in rest:
        sys.exit(f"{sig}: the screen is not restored: {rest[-80:]!r}")
PY
expect 2 "$TRIREME" watch run # no pages of ranks, and no terminal
