#!/usr/bin/env python3
"""Multiple choice against lm-evaluation-harness: each log-likelihood within 1e-4, and the same accuracies.

  check_choices.py TRIREME MODEL [N [SEED]]     compares N made-up items (200), with lm_eval's own loglikelihood code, in float64: of a
                                                 model of 30 layers its own float32 is as far from that as the bound allows
  check_choices.py --record TRIREME MODEL FILE   writes items, lm_eval's log-likelihoods and accuracies for a test without lm_eval
"""
import json, random, subprocess, sys, tempfile

def items(n, seed=7):
    """Contexts and choices of many kinds: blanks at the end, an empty context, long ones, other scripts, equal choices."""
    r = random.Random(seed)
    words = "the oars of a galley row in one stroke while water and wind carry every hull across narrow seas tonight".split()
    text = lambda a, b: " ".join(r.choice(words) for _ in range(r.randint(a, b)))
    out = []
    for i in range(n):
        context = text(1, 30)
        context += ["", " ", "\n", "  ", ":\u00a0"][i % 5]
        context = "" if i % 37 == 36 else context * 12 if i % 41 == 40 else context
        choices = [text(1, 8) for _ in range(2 + i % 4)]
        if i % 11 == 10:
            choices[1] = choices[0]  # a tie: the first counts
        if i % 13 == 12:
            choices[-1] = "Ruderer über die Adria 漕ぎ手"
        item = {"context": context, "choices": choices, "gold": r.randrange(len(choices))}
        if i % 17 == 16:
            item["delimiter"] = "\n"
        out.append(item)
    return out

def ours(trireme, model, path, more=()):
    words = [trireme, "eval", "--model", model, "--choices", path, "--json", "--device", "cpu", *more]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])

def theirs(model, asked, length):
    import numpy as np
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    lm = HFLM(pretrained=model, dtype="float64", device="cpu", batch_size=8, max_length=length)
    requests = [Instance("loglikelihood", {}, (x["context"], x.get("delimiter", " ") + c), 0) for x in asked for c in x["choices"]]
    flat = iter(x[0] for x in lm.loglikelihood(requests, disable_tqdm=True))
    lls = [[next(flat) for _ in x["choices"]] for x in asked]
    share = lambda f: sum(int(np.argmax(np.array(l) / np.array([f(c) for c in x["choices"]]))) == x["gold"] for l, x in zip(lls, asked)) / len(asked)
    return {"log_likelihoods": lls, "acc": share(lambda c: 1.0), "acc_norm": share(lambda c: float(len(c))),
            "acc_bytes": share(lambda c: float(len(c.encode())))}

def compare(got, want, bound=1e-4):
    worst = max(abs(a - b) for x, y in zip(got["log_likelihoods"], want["log_likelihoods"], strict=True) for a, b in zip(x, y, strict=True))
    for name in "acc", "acc_norm", "acc_bytes":
        if abs(got[name] - want[name]) > 1e-12:
            sys.exit(f"{name} is {got[name]}, not {want[name]}")
    if not worst <= bound:
        sys.exit(f"a log-likelihood differs by {worst}")
    return worst

def main():
    if sys.argv[1] == "--check":  # recorded: TRIREME MODEL FILE [options]
        with open(sys.argv[4]) as f:
            recorded = json.load(f)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.writelines(json.dumps(x) + "\n" for x in recorded["items"])
            f.flush()
            words = ["--sequence_length", str(recorded["sequence_length"]), *sys.argv[5:]]
            worst = compare(ours(sys.argv[2], sys.argv[3], f.name, words), recorded)
        print(f"{len(recorded['items'])} items, worst {worst:.1e}")
        return
    is_record = sys.argv[1] == "--record"
    trireme, model = sys.argv[2:4] if is_record else sys.argv[1:3]
    asked = items(24) if is_record else items(*map(int, sys.argv[3:] or ["200"]))
    length = 128 if is_record else 256
    want = theirs(model, asked, length)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps(x) + "\n" for x in asked)
        f.flush()
        got = ours(trireme, model, f.name, ["--sequence_length", str(length)])
    print(f"{len(asked)} items, worst {compare(got, want):.1e}; acc {got['acc']:.4f}, acc_norm {got['acc_norm']:.4f}, acc_bytes {got['acc_bytes']:.4f}")
    if is_record:
        with open(sys.argv[4], "w") as f:
            json.dump({"sequence_length": length, "items": asked, **want}, f, ensure_ascii=True)

main()
