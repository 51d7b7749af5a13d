#!/usr/bin/env bash
# Nothing from a file reaches a terminal raw (H14): names of files and directories, text of data, keys and values of configurations,
# names of tensors, pages of a run, all with bytes that a terminal obeys, under every verb that prints, on a pseudo terminal.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
export XDG_CACHE_HOME=$work/cache
python3 - "$TRIREME" <<'PY' || fail "see above"
import json, os, pty, re, select, shutil, struct, subprocess, sys, time

TRIREME = sys.argv[1]
EVIL = "a\x1b]0;title\x07b\x1b[2Jc\u009b31md\x7fe\rf\x08g\x1b[8mh"
OWN = re.compile(rb"\x1b\[(K|H|J|2J|\?1049[hl]|\?25[hl]|\?7[hl]|0m|36m|1;34m|0;32m|0;2m)")     # what our own views draw with
BAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")

tiny = {"model_type": "llama", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
        "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": True, "bos_token_id": 256, "eos_token_id": 256, EVIL: EVIL}
json.dump(tiny, open("tiny.json", "w"))
model, data, out = f"model {EVIL}", f"data {EVIL}.jsonl", f"out {EVIL}"
ignore = ["--ignore_config_keys", EVIL]


def quiet(*words):
    return subprocess.run([TRIREME, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)


def on_terminal(*words, feed=b"", until=b"> ", then=(), seconds=60, term="xterm-256color"):
    """Everything that a terminal would get, and the exit code. `feed` is typed when `until` is there; `then` has more such pairs (keys, until)."""
    keys = [(feed, until), *then]
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"], os.environ["LC_ALL"] = term, "C.UTF-8"
        os.execv(TRIREME, [TRIREME, *words])
    got, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if not select.select([fd], [], [], 0.5)[0]:
            continue
        try:
            piece = os.read(fd, 65536)
        except OSError:
            piece = b""
        if not piece:
            break
        got += piece
        if keys and keys[0][0] and keys[0][1] in OWN.sub(b"", got):
            os.write(fd, keys.pop(0)[0])
    os.close(fd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    plain = OWN.sub(b"", got).replace(b"\r", b"")
    bad = BAD.search(plain)
    if bad:
        sys.exit(f"{words}\n-> {bad.group()!r} in {plain[max(0, bad.start() - 200):bad.end() + 80]!r}")
    return code, plain


def made(*words, code=0, says=None):
    got, text = on_terminal(*words)
    if got != code or (says and says not in text):
        sys.exit(f"{words}\n-> exit {got}, want {code}, says {says!r}:\n{text.decode(errors='replace')}")


if quiet("init", "--config", "tiny.json", "--tokenizer", "bytes", "--seed", "7", "--out", model, "--quiet").returncode != 0:
    del tiny[EVIL]      # a key that nobody knows is refused: by name, and not raw
    made("init", "--config", "tiny.json", "--tokenizer", "bytes", "--out", model, code=2, says=rb"\x1b")
    json.dump(tiny, open("tiny.json", "w"))
    made("init", "--config", "tiny.json", "--tokenizer", "bytes", "--seed", "7", "--out", model)
with open(data, "w") as f:
    for i in range(40):
        f.write(json.dumps({"text": f"Line {i}: three banks of oars. {EVIL} {i * i * 7919}."}) + "\n")
with open("chat.jsonl", "w") as f:
    for i in range(8):
        f.write(json.dumps({"prompt": EVIL, "completion": EVIL, EVIL: EVIL}) + "\n")
base = ["--model", model, "--sequence_length", "32", "--train_batch_size", "2", "--max_steps", "4", "--save_steps", "2", "--threads", "1"]
made("train", *base, "--data", data, "--output", out)
made("train", *base, "--data", data, "--output", out, code=2)
made("train", *base, "--data", f"missing {EVIL}", "--output", "x", code=2, says=rb"\x1b")
made("train", *base, "--data", data, "--output", out, "--resume", "--max_steps", "6", "--allow_change", "schedule_steps")
made("train", *base, "--data", "chat.jsonl", "--output", f"chat {EVIL}", "--data_proof", "full", "--packing", "none")
made("launch", "--nproc-per-node", "2", "train", *base, "--data", data, "--output", f"two {EVIL}", "--dp", "2", "--per_device_train_batch_size", "1")
made("launch", "--nproc-per-node", "2", "train", *base, "--data", f"missing {EVIL}", "--output", f"none {EVIL}", "--dp", "2", code=2)
made("watch", out, "--plain")
for page in "1234567890":   # the whole screen, page by page: the last line names the page in brackets
    name = f"[{page} ".encode()
    code, text = on_terminal("watch", out, feed=page.encode(), until=b"[1 ", then=[(b"q", name)])
    if code != 0 or name not in text:
        sys.exit(f"watch, page {page}: exit {code}, {text!r}")
for name in sorted(os.listdir(f"{out}/.trireme")):      # pages of a rank that says what it wants
    if name.startswith("phase-"):
        page = bytearray(open(f"{out}/.trireme/{name}", "rb").read())
        text = EVIL.encode()
        for at in [m.start() for m in re.finditer(rb"[a-z_.:/ -]{6,}", bytes(page))]:
            page[at:at + min(5, len(text))] = text[:5]
        open(f"{out}/.trireme/{name}", "wb").write(page)
on_terminal("watch", out, "--plain")
on_terminal("watch", out, feed=b"3q", until=b"[1 ")
on_terminal("watch", out, "--json")
os.remove(f"{out}/.trireme/phase-0000")
os.mkfifo(f"{out}/.trireme/phase-0000")  # nobody writes into it: it is no page, and not waited for
made("watch", out, "--plain", code=2)
newest = f"{out}/checkpoint-6"
made("ckpt", "verify", newest)
made("ckpt", "newest", out)
on_terminal("ckpt", "list", out)
on_terminal("ckpt", "show", newest)
# a tensor with such a name
header = json.dumps({EVIL: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {EVIL: EVIL}}).encode()
os.mkdir(f"odd {EVIL}")
open(f"odd {EVIL}/model.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
shutil.copy(f"{model}/config.json", f"odd {EVIL}/config.json")
for other in (newest, f"odd {EVIL}"):
    on_terminal("ckpt", "diff", model, other)
on_terminal("ckpt", "verify", f"odd {EVIL}")
on_terminal("eval", "--model", f"odd {EVIL}", "--data", data)
os.rename(newest, f"{out}/checkpoint-6 {EVIL}")
on_terminal("ckpt", "newest", out)
on_terminal("ckpt", "prune", out, "--save_total_limit", "1")
made("plan", "--model", model)
made("eval", "--model", model, "--data", data, "--sequence_length", "32")
made("data", "check", "--model", model, "--data", data, "--sequence_length", "32")
on_terminal("data", "show", "--model", model, "--data", data, "--sequence_length", "32")
made("generate", "--model", model, "--prompt", EVIL, "--max_new_tokens", "4")
made("launch", "--nproc-per-node", "1", "generate", "--model", model, "--prompt", EVIL, "--max_new_tokens", "4")
for term in ("dumb", "", "vt100"):   # whatever a terminal says of itself, a launcher copies nothing raw to it
    code, text = on_terminal("launch", "--nproc-per-node", "1", "generate", "--model", model, "--prompt", EVIL + "\u2501\u20ac", "--max_new_tokens", "4", term=term)
    if code != 0 or "\u2501\u20ac".encode() not in text:
        sys.exit(f"launch with TERM={term}: exit {code}, {text!r}")
on_terminal("chat", "--model", model, "--max_new_tokens", "4", feed=b"x\n\x04\x04", seconds=10)
open("run.yaml", "w").write(f'model: "{EVIL.encode("unicode_escape").decode()}"\nseed: 3\n')
open("bad.yaml", "w").write(f'"{EVIL.encode("unicode_escape").decode()}": 3\n')
on_terminal("config", "show", "--config", "run.yaml")
on_terminal("config", "show", "--config", "bad.yaml")
on_terminal("train", "--config", "bad.yaml")
open("machine.yaml", "w").write(f"name: {EVIL}\nchip: {EVIL}\n")
on_terminal("plan", "--model", model, "--machine", "machine.yaml")
on_terminal("plan", "--model", model, "--machine", EVIL)
adapter = ["--lora_r", "2", "--output", f"lora {EVIL}"]
made("train", *base, "--data", data, *adapter)
on_terminal("ckpt", "list", f"lora {EVIL}")
on_terminal("ckpt", "merge", f"lora {EVIL}", "--output", f"merged {EVIL}")
config = json.load(open(f"lora {EVIL}/adapter_config.json"))
config["base_model_name_or_path"], config["target_modules"], config[EVIL] = EVIL, [EVIL], EVIL
json.dump(config, open(f"lora {EVIL}/adapter_config.json", "w"))
on_terminal("ckpt", "list", f"lora {EVIL}")
on_terminal("generate", "--model", f"lora {EVIL}", "--prompt", "x")
on_terminal("check", "--output", f"check {EVIL}")
PY
