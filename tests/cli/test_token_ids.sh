#!/usr/bin/env bash
# A model directory without a tokenizer learns from token ids, and data of an address is fetched by the command that the user names.
. "$(dirname "$0")/common.sh"
tiny_model model
rm -f model/tokenizer* model/vocab* model/merges*
for i in $(seq 20); do
    echo "{\"input_ids\": [$i, 7, 8, 9, 10, 11], \"labels\": [-100, -100, 8, 9, 10, 11], \"attention_mask\": [1, 1, 1, 1, 1, 1]}"
done >ids.jsonl
expect 0 "$TRIREME" train --model model --data ids.jsonl --output out --max_steps 2 --sequence_length 16 --quiet --threads 1
[ -s out/model.safetensors ] || fail "no model"
expect 0 "$TRIREME" eval --model out --data ids.jsonl --sequence_length 16 --json --threads 1
grep -q '"tokens": 80,' stdout || fail "20 records with 4 targets each"
echo '{"text": "words"}' >text.jsonl
expect 2 "$TRIREME" train --model model --data text.jsonl --output never --max_steps 1
grep -q 'text.jsonl is text, and the model has no tokenizer' stderr || fail "a text without a tokenizer"

expect 0 "$TRIREME" train --model model --data s3://bucket/ids.jsonl --fetch_command "sh -c 'cp ids.jsonl \"\$1\"' {url} {path}" --output fetched \
    --max_steps 2 --sequence_length 16 --quiet --threads 1
step_lines out/events.jsonl >a
step_lines fetched/events.jsonl >b
same a b
expect 2 "$TRIREME" train --model model --data s3://bucket/ids.jsonl --output never --max_steps 1
grep -q "data s3://bucket/ids.jsonl: name the program that fetches it: --fetch_command" stderr || fail "no way to get it"
