"""paths.py TRIREME [full] - plants links at every name that a verb makes and looks at what lies outside afterwards.

A clean run of each verb gives the names; a run that is killed in a save gives the names that live for a moment. Then each name in
turn is a link to a file, to a directory or to nothing (one of the three, chosen by the name; `full`: all three), and the verb runs
again. Nothing outside may change, whether in content, names or times, and the verb either works or refuses with exit 2 and a line.
"""
import hashlib, os, re, shutil, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

trireme, is_full = sys.argv[1], "full" in sys.argv[2:]
work = os.getcwd()
IN_CHECKPOINT = re.compile(r"out/checkpoint-\d+/.*")
KINDS = ["file", "directory", "nothing"]
base = f"--model {work}/model --data {work}/train.jsonl --sequence_length 32 --train_batch_size 2 --threads 1 --max_steps 2 --save_steps 1 --quiet"
VERBS = {  # what it writes goes into ./out, or stays in .
    "train": f"train {base} --grad_norm_steps 1 --profile 1 --profile_steps 1 --output out",
    "lora": f"train {base} --lora_r 2 --output out",
    "launch": f"launch --nproc-per-node 2 train {base} --output out",
    "init": f"init --config {work}/tiny.json --tokenizer bytes --out out --quiet",
    "eval": f"eval --model {work}/model --data {work}/train.jsonl --sequence_length 32 --threads 1 --quiet",
    "export": f"ckpt export {work}/trained/checkpoint-2 --output out",
    "bnb": f"ckpt export {work}/model --to bnb-4bit --output out",
    "reshard": f"ckpt reshard {work}/trained/checkpoint-2 --output out",
    "peft": f"ckpt export {work}/adapter --to peft --output out",
    "vllm": f"ckpt export {work}/adapter --to vllm --output out",
    "merge": f"ckpt merge {work}/adapter --output out",
    "check": "check --output out",
    "disk": "bench disk --bytes_max 8M --output .",
    "timeline": f"plan --model {work}/model --machine H100 --sequence_length 32 --timeline out.svg",
    "picture": f"plan --model {work}/model --sequence_length 32 --memory_picture out.svg",
    "pickle": f"plan --model {work}/model --sequence_length 32 --memory_picture out.pickle",
    "page": f"watch {work}/trained --html out.html",
    "gguf": f"ckpt export {work}/trained/checkpoint-2 --to gguf:q8_0 --output out",
    "ollama": f"ckpt export {work}/trained/checkpoint-2 --to ollama --output out",
    "dpo": f"train {base.replace('train.jsonl', 'prefs.jsonl')} --task dpo --output out",
    "stream": f"train {base} --streaming true --output out",
    "fetched": f"train {base.replace(f'--data {work}/train.jsonl', '--data file://there/train.jsonl --fetch_command FETCH')} --output out",
    "tracked": f"train {base} --report_to all --metrics_file now.prom --eval_data a={work}/train.jsonl --eval_data b={work}/train.jsonl --eval_steps 1 "
               f"--sample_prompts {work}/asks.jsonl --max_new_tokens 2 --eval_choices {work}/choices.jsonl --load_best_model_at_end --logging_steps 1 --output out",
}
# What lives only while a run does.
PASSING = {"train": ["out/.trireme/control-key", "out/.trireme/request", "out/control.json"], "disk": [".trireme.bench"]}
# A save that is killed before its rename leaves the directory of that moment.
KILLED = {"train": "ckpt.before_rename:kill:1", "lora": "ckpt.before_rename:kill:1", "launch": "ckpt.before_rename:kill:1:0"}


def run(verb, where, env=None):
    words = [f"sh {work}/fetch.sh {{path}} {{url}}" if w == "FETCH" else w for w in VERBS[verb].split()]
    p = subprocess.run([trireme] + words, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                       env={**os.environ, "XDG_CACHE_HOME": where + "/cache", **(env or {})})
    return p.returncode, p.stdout.decode(errors="replace")


def names_below(where):
    found = set()
    for at, dirs, files in os.walk(where):
        found |= {os.path.relpath(os.path.join(at, n), where) for n in dirs + files}
    return found


def tree(where):
    """Names, kinds, times and content of all that is below."""
    h = hashlib.sha256()
    for at, dirs, files in sorted(os.walk(where)):
        for n in sorted(dirs + files):
            p = os.path.join(at, n)
            s = os.lstat(p)
            h.update(f"{p} {s.st_mode} {s.st_size} {s.st_mtime_ns} {s.st_ino} {s.st_nlink}\n".encode())
            if not os.path.isdir(p):
                h.update(open(p, "rb").read())
    return h.hexdigest()


def fresh(*parts):
    where = os.path.join(work, "case", *parts)
    shutil.rmtree(where, ignore_errors=True)
    os.makedirs(where)
    return where


def list_names(verb):
    where = fresh(verb, "clean")
    code, text = run(verb, where)
    assert code == 0, f"{verb}: a clean run exits {code}: {text}"
    names = names_below(where)
    if verb in KILLED:
        where = fresh(verb, "killed")
        run(verb, where, {"TR_FAIL": KILLED[verb]})
        names |= names_below(where)
    names |= set(PASSING.get(verb, []))
    if verb == "check":
        names |= {"out/.trireme-check-0", "out/.trireme-check-0.tmp"}
    chosen = {"out", "cache", "cache/trireme", "cache/huggingface", "cache/huggingface/trackio"}    # by the user: links there are followed
    return sorted(names - chosen)


def one(verb, name, kind):
    where = fresh(verb, f"{kind}-{name.replace('/', '+')}")
    outside = where + ".outside"
    shutil.rmtree(outside, ignore_errors=True)
    os.makedirs(outside + "/directory/trireme")
    for f in ("file", "directory/keep", "directory/lock", "directory/model.safetensors"):
        open(f"{outside}/{f}", "w").write("precious\n")
    at = os.path.join(where, name)
    os.makedirs(os.path.dirname(at), exist_ok=True)
    os.symlink(f"{outside}/{kind}", at)
    before = tree(outside)
    code, text = run(verb, where)
    bad = []
    if tree(outside) != before:
        bad.append(f"what lies outside has changed: {sorted(names_below(outside))}")
    if code not in (0, 2):
        bad.append(f"exit {code}")
    lines = {line.replace("trireme:   | ", "") for line in text.splitlines() if "trireme: " in line and "ended with exit" not in line}
    if code == 2 and len(lines) != 1:
        bad.append("not one line that says why")
    shutil.rmtree(where)
    shutil.rmtree(outside)
    return f"{verb}: {name} -> {kind}: {'; '.join(bad)}: {text.strip()[-400:]}" if bad else None, code


def main():
    n = {0: 0, 2: 0}
    failed = []
    with ThreadPoolExecutor(4) as pool:
        lists = list(pool.map(list_names, VERBS))
        cases = []
        for verb, names in zip(VERBS, lists):
            if not is_full:  # what one run of training showed need not be shown by the others, nor a checkpoint file by file
                names = [x for x in names if (verb not in ("lora", "launch") or x not in lists[0]) and not IN_CHECKPOINT.match(x)]
            for i, name in enumerate(names):
                cases += [(verb, name, k) for k in (KINDS if is_full else [KINDS[i % 3]])]
        for bad, code in pool.map(lambda c: one(*c), cases):
            n[code] = n.get(code, 0) + 1
            failed += [bad] if bad else []
    print(f"{len(cases)} links at {sum(map(len, lists))} names of {len(VERBS)} verbs: {n[0]} runs worked, {n[2]} refused, {len(failed)} wrong")
    for f in failed[:20 if not is_full else None]:
        print("FAIL:", f)
    sys.exit(bool(failed))


main()
