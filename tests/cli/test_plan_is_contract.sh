#!/usr/bin/env bash
# The plan is a contract: for every model family and every recompute mode, the bytes `plan` says are the bytes `train`
# reserves, to the byte, and every arena agrees.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
head -n 3 train.jsonl >valid.jsonl

# The models of tests/golden with a vocabulary that holds bytes.
configs=()
for file in "$source_dir"/tests/golden/*/config.json; do
    [ -e "$file" ] || continue
    if grep -q vision_config "$file"; then continue; fi # not made by init; its network is that of another golden model
    name=$(basename "$(dirname "$file")")
    sed 's/"vocab_size": *[0-9]\+/"vocab_size": 264/; s/"\(bos\|eos\|pad\)_token_id": *[0-9]\+/"\1_token_id": 256/' "$file" >"$name.json"
    configs+=("$name")
done
tiny_model tiny
cp tiny.json llama_tiny.json
configs+=(llama_tiny)

n=0
for name in "${configs[@]}"; do
    "$TRIREME" init --config "$name.json" --tokenizer bytes --out "$name" --quiet
    modes=(none op block)
    [ -z "${TR_SANITIZED:-}" ] || modes=("${modes[$((n % 3))]}") # slow there: one mode a model, in turn
    for recompute in "${modes[@]}"; do
        run=(--model "$name" --data train.jsonl --eval_data valid.jsonl --sequence_length 24 --per_device_train_batch_size 2
            --per_device_eval_batch_size 3 --gradient_accumulation_steps 2 --max_steps 1 --recompute $recompute --threads 2 --logging_steps 0)
        "$TRIREME" plan "${run[@]}" --json >plan.json
        "$TRIREME" train "${run[@]}" --output out --quiet >/dev/null
        python3 - "$name $recompute" <<'PY' || exit 1
import json, sys
plan = json.load(open("plan.json"))
event = next(e for e in map(json.loads, open("out/events.jsonl")) if e["event"] == "plan")
assert plan["total_bytes"] == event["total_bytes"] == event["reserved_bytes"], (sys.argv[1], plan["total_bytes"], event)
assert plan["ranks"][0]["arenas"] == event["arenas"], (sys.argv[1], plan["ranks"][0]["arenas"], event["arenas"])
assert sum(a["bytes"] for a in event["arenas"]) == event["total_bytes"], sys.argv[1]
PY
        rm -rf out
        n=$((n + 1))
    done
done
# What a training holds in its third step, after two saves, is its plan and what the program needs for itself (texts of
# headers, tokenizer, index of the data, event log: 2.2 MiB).
if [ -z "${TR_SANITIZED:-}" ]; then
    TR_FAIL=train.before_step:stop:3 "$TRIREME" train --model tiny --data train.jsonl --sequence_length 24 --max_steps 4 \
        --save_steps 1 --threads 1 --output held --quiet >/dev/null &
    pid=$!
    until grep -q '^State:.T' /proc/$pid/status; do sleep 0.02; done
    python3 - $pid <<'PY' || { kill -9 $pid; exit 1; }
import json, sys
held = next(int(l.split()[1]) << 10 for l in open(f"/proc/{sys.argv[1]}/smaps_rollup") if l.startswith("Anonymous:"))
plan = next(e for e in map(json.loads, open("held/events.jsonl")) if e["event"] == "plan")["total_bytes"]
print("%.1f MiB beyond the plan of %.1f MiB" % ((held - plan) / 2**20, plan / 2**20))
assert held - plan < 4 << 20, (held, plan)
PY
    kill -CONT $pid
    wait $pid
fi
echo "$n plans kept to the byte"
[ $n -ge 3 ] || fail "no models to plan"
