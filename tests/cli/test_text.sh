#!/usr/bin/env bash
# Evaluation and text on any mesh are those of one rank; prompts that are continued together give the texts that each of
# them gives alone; a training writes samples and is the same training.
source "$(dirname "$0")/common.sh"
tiny_model model
tiny_text train.jsonl
base=(--data train.jsonl --sequence_length 64 --per_device_train_batch_size 4 --threads 1 --quiet --device cpu)
"$TRIREME" train --model model "${base[@]}" --output out --max_steps 30 --learning_rate 1e-2 >/dev/null
"$TRIREME" train --model out "${base[@]}" --output lora --max_steps 6 --learning_rate 1e-2 --lora_r 4 >/dev/null
# 1, 2 and 100 tokens, an empty line, and lengths on both sides of a chunk
python3 - <<'PY'
with open("prompts.txt", "w") as f:
    f.write("L\nLi\n\n" + "Line 7: three banks of oars, one" * 3 + "\nrowers, one hundred and\n" + "x" * 64 + "\nseventy\n")
PY
cat >texts.py <<'PY'
import json, subprocess, sys
def texts(*words):
    done = subprocess.run([*words, "--max_new_tokens", "17", "--json", "--threads", "1", "--device", "cpu"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr}\n{words}")
    return json.loads(done.stdout.splitlines()[-1])
trireme = sys.argv[1]
ranks = lambda n: [trireme, "launch", "--nproc-per-node", str(n)]
many = ["generate", "--model", "out", "--prompts", "prompts.txt", "--per_device_eval_batch_size", "2"]
n_kinds = set()
for how in [], ["--temperature", "1.5", "--top_p", "0.95", "--repetition_penalty", "1.2", "--seed", "3"]:
    together = texts(trireme, *many, *how)["texts"]
    if len(together) != 6:
        sys.exit(f"6 prompts, not {len(together)}")
    n_kinds |= {t["text"] for t in together}
    for t in together:
        alone = texts(trireme, "generate", "--model", "out", "--prompt", t["prompt"], *how)
        if alone["ids"] != t["ids"] or alone["text"] != t["text"]:
            sys.exit(f"{t['prompt']!r} alone gives {alone}, together {t}")
    for n, mesh in (2, "--tp 2"), (2, "--pp 2"), (3, "--dp 3"), (2, "--dp 2 --zero 3"), (4, "--tp 2 --pp 2"), (4, "--tp 2 --dp 2 --zero 3"):
        got = texts(*ranks(n), *many, *mesh.split(), *how)["texts"]
        if got != together:
            sys.exit(f"{mesh}: {got}, one rank: {together}")
if len(n_kinds) < 6:
    sys.exit(f"the texts hardly differ: {n_kinds}")
# an adapter, and a base in four bits
for model, more in ("lora", []), ("out", ["--load_in_4bit"]):
    words = ["generate", "--model", model, "--prompts", "prompts.txt", *more]
    one = texts(trireme, *words)
    for n, mesh in ((2, "--tp 2"), (2, "--dp 2 --zero 3")) if model == "lora" else ((2, "--pp 2"), (2, "--dp 2 --zero 3")):
        if texts(*ranks(n), *words, *mesh.split()) != one:
            sys.exit(f"{model} {more} {mesh} is not one rank's")
    ask = ["eval", "--model", model, "--data", "train.jsonl", "--sequence_length", "64", "--json", "--threads", "1", "--device", "cpu", *more]
    loss = lambda words: json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    one = loss([trireme, *ask])
    for n, mesh in (2, "--dp 2 --zero 3"), (2, "--pp 2"), (4, "--cp 2 --pp 2"):
        got = loss([*ranks(n), *ask, *mesh.split()])
        if got["tokens"] != one["tokens"] or abs(got["loss"] - one["loss"]) > 1e-6 * one["loss"]:
            sys.exit(f"eval {model} {more} {mesh}: {got}, one rank {one}")
PY
python3 texts.py "$TRIREME" || fail "texts differ"

# Only the first rank writes: one line.
expect 0 "$TRIREME" launch --nproc-per-node 2 eval --model out --data train.jsonl --sequence_length 64 --tp 2 --sp --json
[ "$(wc -l <stdout)" = 1 ] || fail "more than one line: $(cat stdout)"

# Records, conversations and refusals: exit 2, one line.
echo '{"prompt": "Line"}' >p.jsonl
expect 0 "$TRIREME" generate --model out --prompts p.jsonl --max_new_tokens 2 --json
echo '{"messages": [{"role": "user", "content": "hi"}]}' >p.jsonl
expect 2 "$TRIREME" generate --model out --prompts p.jsonl --max_new_tokens 2
grep -q "p.jsonl:1: .*template" stderr || fail "no template is not named: $(cat stderr)"
echo '{"text": "Line"}' >p.jsonl
expect 2 "$TRIREME" generate --model out --prompts p.jsonl
grep -q 'p.jsonl:1: .*"prompt"' stderr || fail "a wrong record is not named: $(cat stderr)"
: >none.txt
expect 2 "$TRIREME" generate --model out --prompts none.txt
expect 2 "$TRIREME" launch --nproc-per-node 2 generate --model out --prompt x --tp 4

# A training with samples is the training without; any mesh writes the same samples; the plan has their bytes.
run=(train --model out "${base[@]}" --max_steps 6 --eval_steps 2 --max_new_tokens 9)
"$TRIREME" "${run[@]}" --output plain --eval_data train.jsonl >/dev/null
"$TRIREME" "${run[@]}" --output s1 --eval_data train.jsonl --sample_prompts prompts.txt >/dev/null
step_lines plain/events.jsonl >a
step_lines s1/events.jsonl >b
same a b
samples() {
    python3 -c '
import json, sys
for line in open(sys.argv[1]):
    e = json.loads(line)
    if e["event"] == "sample":
        print(e["step"], e["index"], e["n"], repr(e["prompt"]), repr(e["text"]))' "$1/events.jsonl"
}
samples s1 >one
[ "$(wc -l <one)" = 18 ] || fail "6 prompts at 3 evaluations: $(cat one)"
for mesh in "2 --tp 2 --sp" "2 --pp 2 --gradient_accumulation_steps 2 --per_device_train_batch_size 2" "2 --cp 2" "4 --dp 2 --zero 3 --tp 2 --per_device_train_batch_size 2"; do
    rm -rf s2
    # shellcheck disable=SC2086
    set -- $mesh
    "$TRIREME" launch --nproc-per-node "$1" "${run[@]}" --output s2 --sample_prompts prompts.txt "${@:2}" >/dev/null 2>log || fail "$mesh: $(cat log)"
    samples s2 >two
    same one two
done
"$TRIREME" plan --model out "${base[@]}" --eval_data train.jsonl --sample_prompts prompts.txt --max_new_tokens 9 --json | python3 -c '
import json, sys
plan = json.loads(sys.stdin.readlines()[-1])
run = next(e for e in map(json.loads, open("s1/events.jsonl")) if e["event"] == "plan")
assert plan["total_bytes"] == run["reserved_bytes"], (plan["total_bytes"], run["reserved_bytes"])' || fail "the plan is not the run"

# A resume from an earlier step drops later samples and makes them again.
"$TRIREME" "${run[@]}" --output s3 --sample_prompts prompts.txt --save_steps 3 >/dev/null
"$TRIREME" "${run[@]}" --output s3 --sample_prompts prompts.txt --save_steps 3 --resume s3/checkpoint-3 >/dev/null
samples s3 >two
same one two

# A request makes samples between evaluations.
"$TRIREME" train --model out "${base[@]}" --output live --max_steps 1000000 --sample_prompts prompts.txt --max_new_tokens 4 >/dev/null 2>&1 &
pid=$!
for _ in $(seq 200); do grep -q '"event":"step"' live/events.jsonl 2>/dev/null && break || sleep 0.05; done
expect 0 "$TRIREME" ctl live sample --json
python3 -c 'import json; t = json.load(open("stdout"))["texts"]; assert len(t) == 6 and t[0]["prompt"] == "L", t' || fail "no texts: $(cat stdout)"
expect 0 "$TRIREME" ctl live stop
wait "$pid" || true
