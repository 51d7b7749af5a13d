#!/usr/bin/env bash
# Tokens a second of DPO beside those of SFT on the same texts, in turns: dpo_beside_sft.sh TRIREME CONFIG.json [options of both runs].
# Steps after the fifth count; the reference of DPO is computed before step 0. The last line is DPO / SFT.
set -euo pipefail
trireme=$(realpath "$1") config=$(realpath "$2")
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 - <<'PY'
import json, random
r = random.Random(3)
words = ["oar", "galley", "stroke", "rower", "narrow", "harbour", "wind", "bank", "hull", "bronze"]
text = lambda n: " ".join(r.choice(words) for _ in range(n))
with open("pairs.jsonl", "w") as pairs, open("sft.jsonl", "w") as sft:
    for _ in range(1200):
        p, a, b = text(r.randint(10, 60)), text(r.randint(10, 120)), text(r.randint(10, 120))
        pairs.write(json.dumps({"prompt": p + " ", "chosen": a, "rejected": b}) + "\n")
        for c in (a, b):
            sft.write(json.dumps({"prompt": p + " ", "completion": c}) + "\n")
PY
"$trireme" init --config "$config" --tokenizer bytes --seed 1 --out model --quiet
run() { # NAME DATA options
    local name=$1 data=$2
    shift 2
    rm -rf "$name"
    "$trireme" train --model model --data "$data" --output "$name" --max_steps "${STEPS:-25}" --save_strategy no --save_only_model --learning_rate 1e-6 \
        --data_proof none --quiet "$@"
    python3 - "$name" <<'PY'
import json, sys
s = [e for e in map(json.loads, open(sys.argv[1] + "/events.jsonl")) if e["event"] == "step"]
n = sum(e["tokens"] for e in s[5:])
print(f"{sys.argv[1]}: {n / (s[-1]['time'] - s[4]['time']):.0f} tok/s, {n} tokens of steps 6 to {s[-1]['step']}", flush=True)
open(sys.argv[1] + ".rate", "a").write(f"{n / (s[-1]['time'] - s[4]['time'])}\n")
PY
}
for _ in 1 2 3; do
    run sft sft.jsonl "$@"
    run dpo pairs.jsonl --task dpo --beta 0.1 "$@"
done
python3 - <<'PY'
m = {n: sorted(map(float, open(n + ".rate")))[1] for n in ("sft", "dpo")}
print(f"medians: sft {m['sft']:.0f}, dpo {m['dpo']:.0f} tok/s; dpo / sft = {m['dpo'] / m['sft']:.3f}")
PY
