#!/usr/bin/env bash
# per_device_train_batch_size auto: the most rows that fit into the budget, of the rows of a step; the losses are those of any other division.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 12 --max_steps 2 --quiet)
expect 2 "$TRIREME" train "${options[@]:0:6}" --output no --max_steps 1 --per_device_train_batch_size auto
grep -q 'give train_batch_size' stderr || fail "$(cat stderr)"
rows() { # DIR: rows and accumulation that the run had
    python3 -c "
import json
c = [e for e in map(json.loads, open('$1/events.jsonl')) if e['event'] == 'config'][-1]['options']
print(c['per_device_train_batch_size']['value'], c['gradient_accumulation_steps']['value'])"
}
need() { # ROWS: bytes of a rank
    "$TRIREME" plan "${options[@]}" --output out --per_device_train_batch_size "$1" --json | python3 -c 'import json, sys; print(json.loads(sys.stdin.readlines()[-1])["total_bytes"])'
}
expect 0 "$TRIREME" train "${options[@]}" --output all --per_device_train_batch_size auto
[ "$(rows all)" = "12 1" ] || fail "all: $(rows all)"
expect 0 "$TRIREME" train "${options[@]}" --output some --per_device_train_batch_size auto --memory_budget "$(need 4)"
[ "$(rows some)" = "4 3" ] || fail "some: $(rows some)"
expect 0 "$TRIREME" train "${options[@]}" --output less --per_device_train_batch_size auto --memory_budget "$(($(need 4) - 1))"
[ "$(rows less)" = "3 4" ] || fail "less: $(rows less)"
expect 2 "$TRIREME" train "${options[@]}" --output none --per_device_train_batch_size auto --memory_budget "$(($(need 1) - 1))"
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output two --per_device_train_batch_size auto
[ "$(rows two)" = "6 1" ] || fail "two: $(rows two)"
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output pipe --per_device_train_batch_size auto --pp 2
[ "$(rows pipe)" = "2 6" ] || fail "pipe: $(rows pipe)" # two stages want eight micro-batches, of 12 rows
python3 - all some less two pipe <<'PY' || fail "losses"
import json, sys
runs = [[e["loss"] for e in map(json.loads, open(d + "/events.jsonl")) if e["event"] == "step"] for d in sys.argv[1:]]
assert all(len(r) == 2 and all(abs(a - b) < 1e-5 for a, b in zip(r, runs[0])) for r in runs), runs
PY
