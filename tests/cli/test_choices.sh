#!/usr/bin/env bash
# Multiple choice: the log-likelihoods and accuracies that lm-evaluation-harness gave for this model (recorded by
# check_choices.py), on any mesh, and while training.
source "$(dirname "$0")/common.sh"
tiny_model model
tiny_text train.jsonl
here=$source_dir/tests/cli
check() { python3 "$here/check_choices.py" --check "$TRIREME" model "$here/choices.json" "$@" >stdout || fail "$*: $(cat stdout)"; }
check --threads 1
check --per_device_eval_batch_size 3 --threads 2

python3 - "$here/choices.json" <<'PY'
import json, sys
with open("items.jsonl", "w") as f:
    f.writelines(json.dumps(x) + "\n" for x in json.load(open(sys.argv[1]))["items"])
PY
ask=(eval --model model --choices items.jsonl --sequence_length 128 --json --threads 1 --device cpu)
"$TRIREME" "${ask[@]}" >one
for mesh in "2 --tp 2" "2 --pp 2" "2 --cp 2" "2 --dp 2 --zero 3" "4 --tp 2 --dp 2"; do
    # shellcheck disable=SC2086
    set -- $mesh
    "$TRIREME" launch --nproc-per-node "$1" "${ask[@]}" "${@:2}" >many 2>log || fail "$mesh: $(cat log)"
    python3 - "$mesh" <<'PY' || fail "$mesh"
import json, sys
one, many = (json.loads(open(name).readlines()[-1]) for name in ("one", "many"))
worst = max(abs(a - b) for x, y in zip(one.pop("log_likelihoods"), many.pop("log_likelihoods"), strict=True) for a, b in zip(x, y, strict=True))
assert worst < 1e-4 and one == many, (worst, one, many)
PY
done

# Of equal choices the first counts, so three of these ten items are right: 0.3, and no sum of tenths.
for i in 1 1 0 1 1 0 1 1 1 0; do echo "{\"context\": \"oars\", \"choices\": [\"row\", \"row\"], \"gold\": $i}"; done >ties.jsonl
"$TRIREME" eval --model model --choices ties.jsonl --sequence_length 128 --json --threads 1 --device cpu |
    python3 -c 'import json, sys; assert json.loads(sys.stdin.readlines()[-1])["acc"] == 0.3' || fail "three of ten items are not 0.3"

# Both at once: the loss of the data is what it is alone, to the bit.
"$TRIREME" "${ask[@]}" --data train.jsonl >both
"$TRIREME" eval --model model --data train.jsonl --sequence_length 128 --json --threads 1 --device cpu >alone
python3 - <<'PY' || fail "data and choices disturb each other"
import json
both, alone, one = (json.loads(open(n).readlines()[-1]) for n in ("both", "alone", "one"))
assert all(both[k] == v for k, v in alone.items()), (both, alone)
assert all(both[k] == v for k, v in one.items() if k != "tokens"), (both, one)
PY

# While training: the steps are the same, and the last event is what eval says of the model that was written.
run=(train --model model --data train.jsonl --sequence_length 128 --per_device_train_batch_size 4 --threads 1 --quiet --device cpu --max_steps 6 --learning_rate 1e-2)
"$TRIREME" "${run[@]}" --output plain >/dev/null
"$TRIREME" "${run[@]}" --output with --eval_steps 3 --eval_choices items.jsonl >/dev/null
"$TRIREME" launch --nproc-per-node 2 "${run[@]}" --output two --eval_steps 3 --eval_choices items.jsonl --eval_data train.jsonl --tp 2 >/dev/null
python3 - "$TRIREME" <<'PY' || fail "events of choices"
import json, subprocess, sys
events = lambda name, kind: [e for e in map(json.loads, open(f"{name}/events.jsonl")) if e["event"] == kind]
assert [e["loss"] for e in events("plain", "step")] == [e["loss"] for e in events("with", "step")]
evals = events("with", "eval")
assert [e["step"] for e in evals] == [3, 6] and "loss" not in evals[0] and evals[0]["choices"] == 24, evals
now = json.loads(subprocess.run([sys.argv[1], "eval", "--model", "with", "--choices", "items.jsonl", "--sequence_length", "128", "--json", "--threads", "1", "--device", "cpu"],
                                capture_output=True, text=True, check=True).stdout.splitlines()[-1])
assert all(evals[-1][k] == now[k] for k in ("acc", "acc_norm", "acc_bytes")), (evals[-1], now)
assert all("loss" in e and e["choices"] == 24 for e in events("two", "eval"))
PY

# Bad files: exit 2 and one line with the place.
for bad in '{"context": "a", "choices": ["b"], "gold": 0}' '{"context": "a", "choices": ["b", "c"], "gold": 2}' \
    '{"context": "a", "choices": ["b", ""], "gold": 0}' '{"choices": ["b", "c"], "gold": 0}' 'not json'; do
    echo "$bad" >bad.jsonl
    expect 2 "$TRIREME" eval --model model --choices bad.jsonl
    grep -q "bad.jsonl:1: " stderr || fail "$bad: $(cat stderr)"
done
