#!/usr/bin/env bash
# plan --search: every layout it returns is one that `plan` takes with the same bytes, the winner of a CPU cluster trains,
# objectives mean what they say, what-if tables add up, and clusters that cannot be are refused in one line.
. "$(dirname "$0")/common.sh"
models=$source_dir/bench/models
tiny_text train.jsonl
tiny_model model

# All ten layouts of a search, on two shapes of cluster, through the trainer's own setup.
accepted() { # MODEL ROWS LENGTH GPUS
    "$TRIREME" plan --search --model "$1" --machine H100 --gpus "$4" --train_batch_size "$2" --sequence_length "$3" --bf16 \
        --json >search.json
    python3 - "$1" "$3" >commands <<'PY'
import json, sys
s = json.load(open("search.json"))
assert s["layouts"], "nothing found"
assert s["exact_bytes"] > 0
times = [x["forecast"]["step_s"] for x in s["layouts"]]
assert times == sorted(times), "not ranked"
for x in s["layouts"]:
    assert x["dp"] * x["tp"] * x["pp"] * x["cp"] == s["gpus"]
    print(f"--model {sys.argv[1]} --sequence_length {sys.argv[2]} --bf16{x['options']}")
PY
    while read -r line; do
        # shellcheck disable=SC2086
        "$TRIREME" plan $line --legal >legal || fail "refused: $line"
        ! grep -q illegal legal || fail "illegal: $line: $(grep illegal legal)"
    done <commands
    # shellcheck disable=SC2046
    "$TRIREME" plan $(head -n 1 commands) --device cuda --json >plan.json
    python3 - <<'PY'
import json
s, p = json.load(open("search.json")), json.load(open("plan.json"))
chip = max(sum(a["bytes"] for a in r["arenas"] if a["name"] not in ("data", "save", "staging")) for r in p["ranks"])
assert chip == s["exact_bytes"], (chip, s["exact_bytes"]) # the rest is the host's
PY
}
accepted model/config.json 16 64 4
accepted "$models/llama-8b.json" 96 4096 24

# What fits no budget at all is offered no way with the host's memory.
expect 2 "$TRIREME" plan --search --model llama-3.2-1b --bf16 --machine H100 --gpus 1 --sequence_length 1024 --train_batch_size 8 --memory_budget 300MiB
grep -q 'does not fit' stdout stderr && ! grep -q 'it fits' stdout stderr || fail "$(cat stdout stderr)"

# No layout cuts a matrix inside a block of 8-bit moments: two tensor ranks of GPT-2 would.
gpt2=(--model gpt2 --optim adamw_8bit --sequence_length 1024)
"$TRIREME" plan --search "${gpt2[@]}" --machine RTX4090 --gpus 8 --train_batch_size 8 --json >search.json
python3 -c 'import json; print(*(x["options"] for x in json.load(open("search.json"))["layouts"]), sep="\n")' >commands
while read -r line; do
    # shellcheck disable=SC2086
    "$TRIREME" plan "${gpt2[@]}" $line --device cuda --quiet >/dev/null || fail "refused: $line"
done <commands
expect 2 "$TRIREME" plan --search "${gpt2[@]}" --machine RTX4090 --gpus 8 --train_batch_size 8 --tp 2
grep -q 'optim adamw_8bit: tp 2 cuts transformer.h.0.attn.c_attn.weight' stderr || fail "$(cat stderr)"

# The quick forecast that prunes and the compile agree on bytes to 12 %, so that the search drops no layout that fits by
# more than that. Seeded layouts, most with a pipeline, all pinned.
cat >bytes.py <<'PY'
import json, random, subprocess, sys
trireme, models = sys.argv[1:]
random.seed(7)
n = 0
while n < 24:
    model, length = random.choice([("llama-8b", 4096), ("qwen-0.5b", 1024), ("llama-1b", 2048), ("gpt2-xl", 1024)])
    tp, pp, dp, cp, rows = (random.choice(x) for x in ((1, 2), (1, 2, 4, 8), (1, 4), (1, 2), (1, 2)))
    order = random.choice(("1f1b", "zb", "zb", "interleaved", "gpipe")) if pp > 1 else "1f1b"
    line = (f"--model {models}/{model}.json --sequence_length {length} --bf16 --machine B300 --gpus {tp * pp * dp * cp} --json --dp {dp} --tp {tp} "
            f"--pp {pp} --cp {cp} --zero {random.choice((0, 1, 2, 3)) if dp > 1 else 0} --recompute {random.choice(('none', 'op', 'block'))} "
            f"--per_device_train_batch_size {rows} --train_batch_size {rows * dp * random.choice((1, 2, 4)) * pp} --sync {random.choice(('each', 'last'))} --sp off")
    line += f" --pp_schedule {order}" * (pp > 1) + " --pp_chunks 2" * (order == "interleaved")
    out = subprocess.run([trireme, "plan", "--search"] + line.split(), capture_output=True, text=True)
    if out.returncode:
        continue # heads that tp does not divide, and the like
    n += 1
    s = json.loads(out.stdout)
    ratio = sum(v for k, v in s["layouts"][0]["forecast"]["bytes"].items() if k != "library") / s["exact_bytes"]
    assert 0.88 < ratio < 1.12, f"{ratio:.3f} of the compiled bytes: {line}"
PY
python3 bytes.py "$TRIREME" "$models" || fail "quick bytes are not the compiled ones"
# Of adapters the quick bytes have gradients and states too, which are a fifth of what a packed base holds.
for words in "70b --lora_r 64 --load_in_4bit" "8b --lora_r 64" "8b --lora_r 8 --load_in_4bit"; do
    # shellcheck disable=SC2086
    expect 0 "$TRIREME" plan --search --model "$models"/llama-${words%% *}.json ${words#* } --bf16 --machine H100 --gpus 8 --train_batch_size 16 --sequence_length 1024 --json
    python3 -c 'import json
s = json.load(open("stdout"))
ratio = sum(v for k, v in s["layouts"][0]["forecast"]["bytes"].items() if k != "library") / s["exact_bytes"]
assert 0.95 < ratio < 1.1, ratio' || fail "quick bytes of adapters are not the compiled ones: $words"
done

# A search takes seconds of one core even on the largest cluster. Counted in CPU seconds of the program, so that other load on
# the host hardly matters; the bounds are at least twice what it takes on a busy one.
cat >seconds.py <<'PY'
import resource, subprocess, sys
trireme, model, gpus, rows, most = sys.argv[1:]
subprocess.run([trireme, "plan", "--search", "--model", model, "--bf16", "--machine", "H100", "--gpus", gpus, "--train_batch_size", rows,
                "--sequence_length", "8192", "--json"], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = used.ru_utime + used.ru_stime
assert seconds < float(most), f"{model} on {gpus} gpus: {seconds:.2f} CPU seconds, at most {most}"
PY
if [ -z "${TR_SANITIZED:-}" ]; then
    python3 seconds.py "$TRIREME" "$models/llama-70b.json" 1024 1024 1.5 || fail "the search of 70B is slow"
    python3 seconds.py "$TRIREME" "$models/llama-405b.json" 16384 2048 3 || fail "the search of 405B is slow"
fi

# What is given stays.
expect 0 "$TRIREME" plan --search --model "$models/llama-8b.json" --machine H100 --gpus 16 --train_batch_size 64 \
    --sequence_length 4096 --bf16 --tp 2 --zero 1 --json
python3 - <<'PY'
import json
for x in json.load(open("stdout"))["layouts"]:
    assert x["tp"] == 2 and x["zero"] == 1, x
PY

# What the search does not choose stays too: the winner is compiled with it, and its command has it, in words of a shell.
kept=(--bf16 --optim sgd --momentum 0.9 --async_save off --learning_rate 1e-3 --fp8 --fp8_scaling delayed)
python3 -c 'import json, sys; json.dump({**json.load(open(sys.argv[1])), "torch_dtype": "bfloat16"}, open("qwen.json", "w"))' "$models/qwen-0.5b.json"
search=(plan --search --model qwen.json --machine H100 --gpus 2 --train_batch_size 4 --sequence_length 1024 --json)
expect 0 "$TRIREME" "${search[@]}" "${kept[@]}" --data "a b.txt:2" --data "it's.txt" --frozen '*' --trainable '*norm*' \
    --frozen 'model.norm.weight' --output there
cp stdout search.json
python3 - >arguments <<'PY'
import json, shlex
words = shlex.split(json.load(open("search.json"))["command"])
words = words[words.index("train") + 1:]
for want in (["--optim", "sgd"], ["--momentum", "0.9"], ["--async_save", "off"], ["--learning_rate", "0.001"], ["--fp8"], ["--dtype", "bfloat16"],
             ["--fp8_scaling", "delayed"], ["--data", "a b.txt:2"], ["--data", "it's.txt"], ["--output", "there"], ["--model", "qwen.json"],
             ["--frozen", "*", "--trainable", "*norm*", "--frozen", "model.norm.weight"]):
    assert any(words[i:i + len(want)] == want for i in range(len(words))), (want, words)
for dropped in ("--machine", "--json", "--search", "DATA", "OUT"):
    assert dropped not in words, (dropped, words)
print("\n".join(words))
PY
mapfile -t arguments <arguments
"$TRIREME" plan "${arguments[@]}" --json >plan.json || fail "plan refuses the winner of --search"
"$TRIREME" "${search[@]}" --bf16 >plain.json
python3 - <<'PY'
import json
s, p, plain = (json.load(open(f)) for f in ("search.json", "plan.json", "plain.json"))
chip = max(sum(a["bytes"] for a in r["arenas"] if a["name"] not in ("data", "save", "staging")) for r in p["ranks"])
assert chip == s["exact_bytes"], (chip, s["exact_bytes"])
assert s["exact_bytes"] < plain["exact_bytes"], "the moments of frozen parameters were counted"
PY

# The command of the winner runs: as many ranks as it says.
expect 0 "$TRIREME" plan --search --model model --machine H100 --gpus 2 --train_batch_size 4 --sequence_length 32 --json
cmd=$(python3 -c 'import json; print(json.load(open("stdout"))["command"])')
cmd=${cmd/DATA/train.jsonl}
cmd=${cmd/--device cuda/--device cpu}
# shellcheck disable=SC2086
expect 0 "$TRIREME" ${cmd#trireme } --max_steps 4 --save_steps 0 --logging_steps 1 --machine H100
grep -q '^plan: .*a step on H100' stdout || fail "no plan at the start: $(cat stdout)"
grep -q '"event": *"layout"' OUT/events.jsonl || fail "no layout event"
expect 0 "$TRIREME" plan --compare OUT --json
python3 -c 'import json; c = json.load(open("stdout")); assert c["steps"] == 3 and c["measured"]["step_s"] > 0 and c["why"], c'
expect 0 "$TRIREME" plan --compare OUT --machine A100
grep -q 'predicted *measured' stdout || fail "no table"

# Pictures are well formed, and a trace, which is of the quick forecast, ends where that does; the play of a GPU's own
# program, which plan prints beside it, ends within a tenth of that.
layout=(--model "$models/llama-8b.json" --sequence_length 4096 --bf16 --tp 2 --sp --pp 4 --dp 2 --zero 1 --train_batch_size 32
    --per_device_train_batch_size 1 --machine H100)
for schedule in zb "interleaved --pp_chunks 2"; do
    # shellcheck disable=SC2086
    expect 0 "$TRIREME" plan "${layout[@]}" --pp_schedule $schedule --timeline t.svg --memory_picture m.svg
    # shellcheck disable=SC2086
    expect 0 "$TRIREME" plan "${layout[@]}" --pp_schedule $schedule --json
    cp stdout compiled.json
    # shellcheck disable=SC2086
    expect 0 "$TRIREME" plan "${layout[@]}" --pp_schedule $schedule --device cpu --timeline t.json --json
    python3 - <<'PY'
import json, xml.etree.ElementTree as xml
for name in ("t.svg", "m.svg"):
    assert len(xml.parse(name).getroot()) > 10, name
f = json.loads(open("stdout").read().splitlines()[-1])["forecast"]
spans = [e for e in json.load(open("t.json"))["traceEvents"] if e["ph"] == "X"]
end = max(e["ts"] + e["dur"] for e in spans) * 1e-6
played = json.loads(open("compiled.json").read().splitlines()[-1])["forecast"]["step_s"]
assert 0.9 < f["step_s"] / played < 1.1, (f["step_s"], played)
assert abs(end + f["fixed_s"] - f["step_s"]) < 1e-3 * f["step_s"], (end, f["step_s"]) # 16 micro-batches: all are played
lanes = {}
for e in sorted(spans, key=lambda e: e["ts"]):
    if e["tid"] == 0:
        assert e["ts"] >= lanes.get(e["pid"], 0) - 0.01, "turns overlap" # a trace has three digits of a microsecond
        lanes[e["pid"]] = e["ts"] + e["dur"]
PY
done
expect 2 "$TRIREME" plan "${layout[@]}" --timeline t.png
expect 1 "$TRIREME" plan --model "$models/llama-8b.json" --sequence_length 4096 --bf16 --dp 8 --machine H100 \
    --per_device_train_batch_size 2
grep -q 'does not fit' stdout && grep -q -- '--zero' stdout || fail "no way to make it fit: $(tail -n 8 stdout)"

# fewest is the smallest power of two that fits; cheapest is no dearer than all of them.
for objective in fastest fewest cheapest; do
    expect 0 "$TRIREME" plan --search --objective $objective --model "$models/llama-8b.json" --machine H100 --gpus 16 \
        --train_batch_size 64 --sequence_length 4096 --bf16 --tokens 1T --json
    cp stdout $objective.json
done
python3 - <<'PY'
import json
f, n, c = (json.load(open(x + ".json")) for x in ("fastest", "fewest", "cheapest"))
assert f["gpus"] == 16 and n["gpus"] < 16, (f["gpus"], n["gpus"])
assert c["budget"]["dollars"] <= min(f["budget"]["dollars"], n["budget"]["dollars"]) * 1.001
b = f["budget"]
tokens_per_s = f["layouts"][0]["forecast"]["tokens_per_s"]
assert abs(b["days"] * 86400 * tokens_per_s / 1e12 - 1) < 1e-4 # six digits are printed
assert abs(b["dollars"] / (b["days"] * 24 * 16 * b["price"]) - 1) < 1e-4
assert b["days_with_failures"] > b["days"]
PY

expect 0 "$TRIREME" plan --scale 1,8,64 --model "$models/llama-8b.json" --machine H100 --train_batch_size 64 \
    --sequence_length 4096 --bf16 --tokens 1T --json
python3 - <<'PY'
import json
p = json.load(open("stdout"))["scale"]
assert [x["gpus"] for x in p] == [1, 8, 64]
assert "forecast" not in p[0], "8 B with Adam in one chip"
assert p[2]["forecast"]["tokens_per_s"] > p[1]["forecast"]["tokens_per_s"]
PY

refused() { # WORDS ARGUMENT...: exit 2 and one line
    local words=$1
    shift
    expect 2 "$TRIREME" plan "$@"
    [ "$(wc -l <stderr)" = 1 ] || fail "$*: $(cat stderr)"
    [ ! -s stdout ] || fail "$*: wrote to stdout"
    grep -q -- "$words" stderr || fail "$*: no \"$words\" in: $(cat stderr)"
}
small=(--search --model "$models/llama-8b.json" --train_batch_size 64 --sequence_length 4096 --bf16)
refused '1 to 1000000' "${small[@]}" --machine H100 --gpus 0
refused '1 to 1000000' "${small[@]}" --machine H100 --gpus 1000000000
refused 'try --gpus 36 or 38' "${small[@]}" --machine H100 --gpus 37
refused 'did you mean H100' "${small[@]}" --machine H10 --gpus 8
refused 'does not fit' "${small[@]}" --machine H100 --gpus 1
refused 'tp 3' "${small[@]}" --machine H100 --gpus 6 --tp 3
refused 'needs --train_batch_size' --search --model "$models/llama-8b.json" --machine H100 --gpus 8
refused 'like 15T' "${small[@]}" --machine H100 --gpus 16 --tokens lots
refused 'number of gpus' --scale 8,none "${small[@]:1}" --machine H100
refused 'days' "${small[@]}" --machine H100 --gpus 16 --tokens 1000T --days 1 --objective cheapest
expect 0 "$TRIREME" plan "${small[@]}" --machine H100 --gpus 7 # nodes of 8 need not be full

# Optimizer state on the host: offered where it is faster than the best layout without, with the bytes that `plan` prints of the command; where
# nothing else fits, what does; and not where it only costs.
search8() { "$TRIREME" plan --search --gpus 1 --model llama-3.1-8b --bf16 --grad_dtype bfloat16 "$@"; }
expect 0 search8 --machine H200 --sequence_length 4096 --train_batch_size 64 --json
python3 - <<'PY'
import json
found = json.load(open("stdout"))
offer = found["offload"]
assert offer and offer["step_s"] < 0.9 * found["layouts"][0]["forecast"]["step_s"] and offer["host_bytes"] > 90e9 and offer["device_bytes"] < 141e9, offer
assert "--offload_optimizer cpu" in offer["command"], offer
open("offer.txt", "w").write(offer["command"].replace("trireme train --data DATA --output OUT", "plan --machine H200 --json"))
PY
# shellcheck disable=SC2046
expect 0 "$TRIREME" $(cat offer.txt)
python3 -c '
import json
plan = json.load(open("stdout"))
assert any(a["name"] == "host" and a["bytes"] > 90e9 for a in plan["ranks"][0]["arenas"]), plan'
expect 2 search8 --machine RTX4090 --sequence_length 2048 --train_batch_size 32 --master_dtype bfloat16 --moment_dtype bfloat16
grep -q 'each chip.s host it fits: .*--offload_optimizer cpu --offload_param cpu --offload_gradients' stderr || fail "$(cat stderr)"
expect 0 search8 --machine H200 --sequence_length 1024 --train_batch_size 2
! grep -q 'state on the host' stdout || fail "offered where it costs: $(cat stdout)"
