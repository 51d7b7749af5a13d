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
echo "$n plans kept to the byte"
[ $n -ge 3 ] || fail "no models to plan"
