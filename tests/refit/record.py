#!/usr/bin/env python3
"""record.py - proves that a change of the code changes no behaviour: record one binary, record the other, compare.

  record.py TRIREME OUTDIR [--only REGEX] [--quick] [--jobs N]   run the cases and write OUTDIR/CASE.txt and OUTDIR/index.json
  record.py --compare DIR_A DIR_B [--map FILE] [--only REGEX] [--parts REGEX]
                                                                 list every difference; exit 1 when there is one
  record.py --check TRIREME                                      run the quick cases against recorded.json; exit 1 on a difference
  record.py --update TRIREME                                     write the hashes of the quick cases into recorded.json
  record.py --list                                               the names of all cases

A recording holds nothing that varies from run to run: no times, paths, versions or ids. README.md says how to use it.
"""
import argparse
import concurrent.futures
import copy
import difflib
import hashlib
import json
import os
import pathlib
import platform
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # no __pycache__ in the source tree
import cases

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
RECORDED = HERE / "recorded.json"
STEPS = 10
TIMEOUT_S = 120
DIFF_LINES = 20

# Texts and counts of bytes are the same on every machine, bits where the instruction set and libm are.
TEXTS = ("program", "schedule", "bytes", "slices", "refused")
LATER_ARENAS = ("host", "disk")  # came after the first recordings: listed where they hold something
# Keys of state.json that name this run or repeat its options.
STATE_VARIES = ("schema", "run", "generation", "inputs", "origin", "config")


# ---- models and data ----------------------------------------------------------------------------------------------------------

def golden_models():
    return sorted(p.parent.name for p in GOLDEN.glob("*/config.json") if (p.parent / "model.safetensors").exists())


def read_tensors(path):
    """Yields (name, description without offsets, bytes) of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, t in sorted(json.loads(data[8 : 8 + size]).items()):
        if name != "__metadata__":
            first, end = t["data_offsets"]
            yield name, {"dtype": t["dtype"], "shape": t["shape"]}, data[8 + size + first : 8 + size + end]


def write_tensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, about, data in tensors:
        header[name] = dict(about, data_offsets=[at, at + len(data)])
        blobs.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_tokenizer(path, vocab_size):
    """The golden models have no tokenizer. This one has a word for each id: w0, w1, ..."""
    model = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocab_size)}, "unk_token": "w1"}
    text = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model}
    path.write_text(json.dumps(text))


def write_wide(out):
    """Weights of WIDE_CONFIG, drawn with a seed."""
    c, draw, tensors = cases.WIDE_CONFIG, random.Random(7), []

    def add(name, *shape):
        values = [1.0] * shape[0] if len(shape) == 1 else [draw.uniform(-0.2, 0.2) for _ in range(shape[0] * shape[1])]
        tensors.append((name, {"dtype": "F32", "shape": list(shape)}, struct.pack(f"<{len(values)}f", *values)))

    d, ffn, q, kv = c["hidden_size"], c["intermediate_size"], *(c[k] * c["head_dim"] for k in ("num_attention_heads", "num_key_value_heads"))
    add("model.embed_tokens.weight", c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        for name, *shape in (("input_layernorm", d), ("self_attn.q_proj", q, d), ("self_attn.k_proj", kv, d), ("self_attn.v_proj", kv, d),
                             ("self_attn.o_proj", d, q), ("post_attention_layernorm", d), ("mlp.gate_proj", ffn, d), ("mlp.up_proj", ffn, d),
                             ("mlp.down_proj", d, ffn)):
            add(f"model.layers.{i}.{name}.weight", *shape)
    add("model.norm.weight", d)
    add("lm_head.weight", c["vocab_size"], d)
    (out / "config.json").write_text(json.dumps(c))
    write_tensors(out / "model.safetensors", tensors)


def text_config(config):
    """The part that describes the text model: the file itself, or a part of it in a model of text and images."""
    return config.get("text_config", config)


def write_deeper(source, config, out):
    """The model with DEEP_LAYERS layers: layer i has the weights of layer i modulo the layers that there are."""
    config = copy.deepcopy(config)
    text = text_config(config)
    key = "n_layer" if "n_layer" in text else "num_hidden_layers"
    n, text[key] = text[key], cases.DEEP_LAYERS
    if "layer_types" in text:
        text["layer_types"] = [text["layer_types"][i % n] for i in range(cases.DEEP_LAYERS)]
    tensors = []
    for name, about, data in read_tensors(source / "model.safetensors"):
        layer = re.search(r"(?<=[.])\d+(?=[.])", name)
        if not layer or re.search("visual|vision", name):  # layers that see are no layers of the text model
            tensors.append((name, about, data))
            continue
        for i in range(int(layer[0]), cases.DEEP_LAYERS, n):
            tensors.append((name[: layer.start()] + str(i) + name[layer.end() :], about, data))
    (out / "config.json").write_text(json.dumps(config))
    write_tensors(out / "model.safetensors", tensors)


def write_inputs(root, models):
    draw = random.Random(20)
    for name, n in (("train", 120), ("valid", 12)):
        lines = (" ".join(f"w{draw.randrange(3, 48)}" for _ in range(draw.randrange(4, 24))) for _ in range(n))
        (root / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    for model in models:
        whole, deep = root / model, root / f"{model}.deep"
        if model == cases.WIDE:
            whole.mkdir()
            write_wide(whole)
        else:
            shutil.copytree(GOLDEN / model, whole)
        config = json.loads((whole / "config.json").read_text())
        deep.mkdir()
        write_deeper(whole, config, deep)
        for out in (whole, deep):
            write_tokenizer(out / "tokenizer.json", text_config(config)["vocab_size"])


# ---- one case -----------------------------------------------------------------------------------------------------------------

def clean_env(home, extra):
    """No option comes from the environment, no cache from the user, no rank from a launcher around this one."""
    mine = re.compile(r"TRIREME_|TR_|RANK$|LOCAL_RANK$|WORLD_SIZE$|MASTER_|TORCHELASTIC|SLURM_|OMPI_|PMI|OMP_")
    env = {k: v for k, v in os.environ.items() if not mine.match(k)}
    env["TR_FAIL"] = "gemm.same_on_all:error"  # AVX512-BF16 has other last bits than other AVX-512
    env.update(HOME=str(home), XDG_CACHE_HOME=str(home), **extra)
    return env


def run(command, cwd, env):
    """Returns (stdout, None), or (None, why it failed) without anything that names this machine or this moment."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, f"no end within {TIMEOUT_S} s"
    if done.returncode == 0:
        return done.stdout, None
    lines = [re.sub(r"^.*?trireme: ", "", s) for s in done.stderr.splitlines() if "trireme: " in s]
    first = lines[0] if lines else (done.stderr.splitlines() or [""])[0]
    return None, f"exit {done.returncode}: {first.replace(str(cwd), 'CASE').replace(str(cwd.parent), 'INPUTS')}"


def options_of(case, root):
    model = root / (case.model + (".deep" if case.layout.is_deep else ""))
    config = json.loads((model / "config.json").read_text())
    limit = min(config.get(k) or 16 for k in ("max_position_embeddings", "n_positions"))
    length = min(16, limit) // 4 * 4  # a multiple of every cp
    batch = [] if "--train_batch_size" in case.layout.options else ["--train_batch_size", str(cases.TRAIN_BATCH)]
    return ["--model", f"../{model.name}", "--data", "../train.jsonl", "--eval_data", "../valid.jsonl", "--sequence_length", str(length),
            *batch, "--per_device_train_batch_size", str(case.layout.rows),
            "--max_steps", str(STEPS), "--learning_rate", "1e-2", "--weight_decay", "0.1", "--recompute", case.recompute,
            "--threads", "1", "--gemm", "builtin", "--device", "cpu", *case.layout.options]


def data_parallel(l):
    """plan is told dp; ranks that are launched find it themselves."""
    n = l.ranks
    for axis in ("--tp", "--pp", "--cp"):
        n //= int(l.options[l.options.index(axis) + 1]) if axis in l.options else 1
    return ["--dp", str(n)]


LATER = ("parameters_trained",)  # keys of plan --json that older builds have not


def record_plan(trireme, case, options, cwd, env):
    plan = [trireme, "plan", *options, *data_parallel(case.layout)]
    parts = {}
    for show in ("program", "schedule"):
        out, why = run([*plan, "--show", show], cwd, env)
        parts[show] = out if why is None else why + "\n"
    out, why = run([*plan, "--show", "memory", "--json"], cwd, env)
    if why is not None:
        return {"refused": why + "\n"}
    found = json.loads(out.splitlines()[-1])
    lines = [f"{k} {json.dumps(v)}" for k, v in found.items() if k not in ("ranks", *LATER)]
    slices = []
    for r in found["ranks"]:
        lines.append(f"rank {r['rank']} total {r['total_bytes']}")
        for a in r["arenas"]:
            if a["name"] in LATER_ARENAS and a["bytes"] == 0:
                continue
            lines.append(f"rank {r['rank']} {a['name']} {a['bytes']}")
            slices += [f"rank {r['rank']} {a['name']} {s['offset']:>9} {s['bytes']:>8} {s['name']}" for s in a.get("slices", [])]
    parts["bytes"] = "\n".join(lines) + "\n"
    parts["slices"] = "\n".join(slices) + "\n"
    return parts


def exact(value):
    return value.hex() if isinstance(value, float) else json.dumps(value)


def record_events(path):
    losses, norms = [], []
    for event in map(json.loads, path.read_text().splitlines()):
        kind = event["event"]
        if kind in ("step", "eval"):
            keys = [k for k in ("loss", "tokens", "samples", "loss_scale", "skipped") if k in event]
            losses.append(f"{kind} {event['step']} " + " ".join(f"{k} {exact(event[k])}" for k in keys))
        if kind == "step":
            norms.append(f"step {event['step']} norm {exact(event['grad_norm'])} lr {exact(event['lr'])}")
        if kind == "fault" and event.get("action") != "goes on":  # a slow rank on a busy machine
            losses.append("fault " + " ".join(str(event.get(k)) for k in ("step", "kind", "action")))
    return losses, norms


def tensor_lines(paths):
    for path in sorted(paths):
        for name, about, data in read_tensors(path):
            yield f"{path.name} {name} {about['dtype']} {about['shape']} {hashlib.sha256(data).hexdigest()[:32]}"


def record_run(trireme, case, options, cwd, env):
    launch = ["launch", "--nproc-per-node", str(case.layout.ranks)] if case.layout.ranks > 1 else []
    train = [trireme, *launch, "train", *options, "--logging_steps", "1", "--save_steps", "0", "--data_proof", "none", "--quiet",
             "--output", "out"]
    _, why = run(train, cwd, dict(env, **case.layout.env))
    if why is not None:
        return {"losses": why + "\n"}
    out = cwd / "out"
    saved = out / f"checkpoint-{STEPS}" / "trireme"
    losses, norms = record_events(out / "events.jsonl")
    if (out / "grad_norms.jsonl").exists():
        for line in (out / "grad_norms.jsonl").read_text().splitlines():
            norms += [f"{k} {exact(v)}" for k, v in flat_items(json.loads(line)) if k not in ("time", "run", "schema")]
    state = json.loads((saved / "state.json").read_text())
    lines = {
        "losses": losses,
        "norms": norms,
        "weights": tensor_lines(out.glob("model*.safetensors")),
        "optim": tensor_lines(saved.glob("optim-*.safetensors")),
        "state": (f"{k} {exact(v)}" for k, v in flat_items({k: v for k, v in state.items() if k not in STATE_VARIES})),
    }
    return {part: "\n".join(text) + "\n" for part, text in lines.items()}


def flat_items(value, name=""):
    """Numbers of a JSON value with the path to each."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from flat_items(v, f"{name}.{k}" if name else k)
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from flat_items(v, f"{name}[{i}]")
    else:
        yield name, value


def record_generate(trireme, cwd, env):
    """What the trained model says: greedy, and drawn with a seed."""
    common = [trireme, "generate", "--model", "out", "--prompt", "w4 w5 w6", "--max_new_tokens", "6", "--threads", "1", "--gemm", "builtin",
              "--device", "cpu", "--quiet"]
    text = ""
    for more in ([], ["--temperature", "0.8", "--top_k", "20", "--seed", "3"]):
        out, why = run([*common, *more], cwd, env)
        text += (out if why is None else why) + "\n"
    return {"generate": text}


def record_case(trireme, case, root):
    cwd = pathlib.Path(tempfile.mkdtemp(prefix="case-", dir=root))
    try:
        env = clean_env(cwd, {})
        options = options_of(case, root)
        parts = record_plan(trireme, case, options, cwd, env)
        if "refused" not in parts:
            parts.update(record_run(trireme, case, options, cwd, env))
            if case.layout.name == "single" and (cwd / "out").exists():
                parts.update(record_generate(trireme, cwd, env))
        return parts
    finally:
        shutil.rmtree(cwd, ignore_errors=True)


# ---- recordings ---------------------------------------------------------------------------------------------------------------

def record(trireme, chosen, jobs):
    """Yields (case, parts) in the order of the cases."""
    trireme = str(pathlib.Path(trireme).resolve(strict=True))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # every save calls fsync
    with tempfile.TemporaryDirectory(prefix="refit-", dir=memory) as root, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        root = pathlib.Path(root)
        write_inputs(root, {c.model for c in chosen})
        yield from zip(chosen, pool.map(lambda c: record_case(trireme, c, root), chosen))


def hashes(parts):
    return {k: hashlib.sha256(v.encode()).hexdigest()[:32] for k, v in parts.items()}


def write_recording(trireme, out, chosen, jobs):
    out.mkdir(parents=True, exist_ok=True)
    began, index, n_refused, n_failed = time.monotonic(), {}, 0, 0
    for case, parts in record(trireme, chosen, jobs):
        (out / f"{case.name}.txt").write_text("".join(f"== {k}\n{v}" for k, v in parts.items()))
        index[case.name] = hashes(parts)
        n_refused += "refused" in parts
        if "refused" not in parts and "weights" not in parts:
            n_failed += 1
            print(f"{case.name}: {parts['losses'].strip()}", file=sys.stderr)
    (out / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
    print(f"{len(index)} cases, {n_refused} of them refused by plan, {n_failed} failed, {time.monotonic() - began:.0f} s")


def read_recording(path):
    parts, name = {}, None
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("== "):
            name = line[3:].strip()
            parts[name] = ""
        else:
            parts[name] += line
    return parts


def read_map(path):
    """Lines `old new`; # starts a comment. Returns two functions, for the texts of A and of B: in A each old word that stands alone
    becomes the new one, and in both the blanks that align columns become one, because words of other lengths move the columns."""
    words = {}
    for line in path.read_text().splitlines():
        fields = line.split("#")[0].split()
        if len(fields) == 2:
            words[fields[0]] = fields[1]
        elif fields:
            sys.exit(f"{path}: \"{line}\" is not two words, the old and the new")
    any_word = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, sorted(words, key=len, reverse=True))) + r")(?!\w)")

    def squeeze(text):
        return re.sub(r"(?<=\S) +", " ", text)

    return lambda text: squeeze(any_word.sub(lambda m: words[m[0]], text) if words else text), squeeze


def compare(dirs, changes, only, parts_wanted):
    names = [{p.stem for p in d.glob("*.txt") if re.search(only, p.stem)} for d in dirs]
    if not names[0] & names[1]:
        sys.exit(f"{dirs[0]} and {dirs[1]} have no case in common")
    n_bad, bad_cases = 0, set()
    for name in sorted(names[0] ^ names[1]):
        print(f"{name}: only in {dirs[0] if name in names[0] else dirs[1]}")
        bad_cases.add(name)
    for name in sorted(names[0] & names[1]):
        texts = [read_recording(d / f"{name}.txt") for d in dirs]
        for part in (p for p in dict.fromkeys([*texts[0], *texts[1]]) if re.search(parts_wanted, p)):
            a, b = (change(t.get(part, "")).splitlines() for change, t in zip(changes, texts))
            if a == b:
                continue
            print(f"{name}: {part} differs")
            diff = [line for line in difflib.unified_diff(a, b, lineterm="", n=1)][2:]
            print("".join(f"    {line}\n" for line in diff[:DIFF_LINES]) + ("    ...\n" if len(diff) > DIFF_LINES else ""), end="")
            n_bad += 1
            bad_cases.add(name)
    print(f"{len(names[0] | names[1])} cases compared: {n_bad} parts differ, in {len(bad_cases)} cases")
    return 1 if bad_cases else 0


# ---- the recorded hashes of the tree ------------------------------------------------------------------------------------------

def bits_key():
    """What the bits of a run depend on beside the source: the instruction set and libm. No compiler contracts or reorders sums."""
    info = pathlib.Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", info.read_text(), re.M) if info.exists() else None
    flags = set(flags[1].split()) if flags else set()
    isa = "base"  # the same questions as the kernels ask (src/ops/cpu)
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        isa = "avx512"
    elif {"avx2", "f16c"} <= flags:
        isa = "avx2-fma" if "fma" in flags else "avx2"
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION").replace(" ", "-")
    except (AttributeError, ValueError, OSError):
        libc = "libc-unknown"
    return f"{platform.machine()} {isa} {libc}"


def texts_key(trireme):
    """The compiler: C leaves the order of evaluation of arguments open, so texts are compared with the same compiler only."""
    return "clang" if b"clang version" in pathlib.Path(trireme).read_bytes() else "gcc"


def known_hashes(trireme):
    """Of recorded.json: everything, and for texts and bits the key and what stands there."""
    known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return known, [(kind, key, known.setdefault(kind, {}).get(key)) for kind, key in (("texts", texts_key(trireme)), ("bits", bits_key()))]


def hashes_by_kind(parts):
    h = hashes(parts)
    return {"texts": {k: v for k, v in h.items() if k in TEXTS}, "bits": {k: v for k, v in h.items() if k not in TEXTS}}


def update(trireme, jobs):
    known, kinds = known_hashes(trireme)
    found = {case.name: hashes_by_kind(parts) for case, parts in record(trireme, quick_cases(), jobs)}
    for kind, key, _ in kinds:
        known[kind][key] = {name: h[kind] for name, h in found.items()}
    RECORDED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print(f"{RECORDED.name}: {len(found)} cases for " + ", ".join(key for _, key, _ in kinds))


def check(trireme, jobs):
    known, kinds = known_hashes(trireme)
    for kind, key, want in kinds:
        if want is None:
            print(f"{kind} are not compared: {RECORDED.name} has none for \"{key}\", only for {list(known[kind])}")
    n_bad = 0
    for case, parts in record(trireme, quick_cases(), jobs):
        found = hashes_by_kind(parts)
        for kind, _, want in kinds:
            if want is None:
                continue
            was, now = want.get(case.name, {}), found[kind]
            differ = sorted(p for p in was.keys() | now.keys() if was.get(p) != now.get(p))
            if differ:
                print(f"{case.name}: not as recorded: {', '.join(differ)}")
            n_bad += len(differ)
    if n_bad:
        print("to see what differs, record the binary before the change and this one, and compare them (tests/refit/README.md)")
    else:
        print(f"{len(cases.QUICK)} cases: {' and '.join(kind for kind, _, want in kinds if want is not None) or 'nothing'} as recorded")
    return 1 if n_bad else 0


def quick_cases():
    chosen = cases.select(cases.all_cases(golden_models()), None, True)
    assert len(chosen) == len(cases.QUICK), "cases.py: a quick case is not in the list of all cases"
    return chosen


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("paths", nargs="*", metavar="PATH", help="TRIREME OUTDIR; with --compare: DIR_A DIR_B")
    p.add_argument("--only", metavar="REGEX", help="cases whose name matches")
    p.add_argument("--quick", action="store_true", help="the cases that ctest runs")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time [1]")
    p.add_argument("--map", type=pathlib.Path, metavar="FILE", help="with --compare: words that were renamed, `old new` a line")
    p.add_argument("--parts", default="", metavar="REGEX", help="with --compare: only these parts")
    for mode in ("compare", "check", "update", "list"):
        p.add_argument(f"--{mode}", action="store_true")
    o = p.parse_args()
    want = 1 if o.check or o.update else 0 if o.list else 2
    if len(o.paths) != want:
        p.error(f"{want} paths are needed, {len(o.paths)} are given")
    paths = [pathlib.Path(s) for s in o.paths]
    if o.compare:
        return compare(paths, read_map(o.map) if o.map else (str, str), o.only or "", o.parts)
    if o.check:
        return check(paths[0], o.jobs)
    if o.update:
        return update(paths[0], o.jobs)
    chosen = cases.select(cases.all_cases(golden_models()), o.only, o.quick)
    if not chosen:
        p.error("no case has such a name; --list prints all")
    if o.list:
        print(*(c.name for c in chosen), sep="\n")
        return 0
    return write_recording(*paths, chosen, o.jobs)


if __name__ == "__main__":
    sys.exit(main())
