#!/usr/bin/env bash
# The data proof of a run: before step 0 it says what was read, skipped (file:line and why), packed and masked, shows a
# sample, and proves isolation; the same is an event. It can be turned off, and it changes no bit of the run.
. "$(dirname "$0")/common.sh"
tiny_model model
for i in $(seq 30); do
    echo "{\"prompt\": \"Stroke $i: \", \"completion\": \"row $((i * i)).\"}"
    if [ "$i" = 7 ]; then echo '{"prompt": "torn'; fi
done >train.jsonl
options=(--model model --data train.jsonl --sequence_length 64 --per_device_train_batch_size 2 --gradient_accumulation_steps 2
    --max_steps 4 --learning_rate 1e-2 --threads 1)

expect 0 "$TRIREME" train "${options[@]}" --output out
for words in 'train.jsonl: completion records, bestfit packing, .* in 30 documents, 1 skipped' \
    'skipped train.jsonl:8: ' 'rows of 64 tokens, 9.* % filled' 'of the tokens in the first .* rows have a loss; 0 rows' \
    '^sample 0 (epoch 0): .*trained' 'Stroke .*: \[row .*\.<|endoftext|>\]|Stroke' \
    'documents beside changed neighbours, no loss moved by a bit' 'of it waiting for data'; do
    grep -q -- "$words" stdout || fail "no \"$words\" in: $(cat stdout)"
done
python3 - <<'PY'
import json
events = [json.loads(line) for line in open("out/events.jsonl")]
data = [e for e in events if e["event"] == "data"]
assert len(data) == 1 and events.index(data[0]) < [e["event"] for e in events].index("step"), data
d = data[0]
assert d["documents"] == 30 and d["skipped"] == 1 and d["skips"][0]["line"] == 8 and d["skips"][0]["path"] == "train.jsonl", d
assert d["isolated"] is True and d["pairs"] > 0 and d["split_error"] < 1e-12, d
assert 0.3 < d["trained"] < 0.8 and d["rows_without_target"] == 0, d
assert d["sources"][0]["format"] == "completion" and d["sources"][0]["packing"] == "bestfit", d
end = events[-1]
assert end["event"] == "end" and 0 <= end["data_wait"] < 1, end
PY

expect 0 "$TRIREME" train "${options[@]}" --output silent --data_proof none
grep -q 'Stroke\|isolation' stdout && fail "--data_proof none still shows it"
grep -q '"event":"data"' silent/events.jsonl && fail "--data_proof none still logs it"
same out/model.safetensors silent/model.safetensors

# The proof runs in the layout of the run.
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --gradient_accumulation_steps 1 --zero 3 --output two
[ "$(grep -c '"event":"data".*"isolated":true' two/events.jsonl)" = 1 ] || fail "two ranks: $(head -c 2000 two/events.jsonl)"

# A row that holds nothing but a prompt teaches nothing, and is counted.
echo "{\"prompt\": \"$(printf 'x%.0s' $(seq 70))\", \"completion\": \"y\"}" >idle.jsonl
expect 0 "$TRIREME" train "${options[@]}" --data idle.jsonl --output idle
grep -q '1 documents continue in further rows' stdout || fail "a split document is not counted: $(cat stdout)"
grep -q ' 1 rows have none' stdout || fail "an idle row is not counted: $(cat stdout)"
