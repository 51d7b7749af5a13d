#!/usr/bin/env bash
# Every sample of every epoch exactly once, with the bits of the run that nobody disturbed: on 1, 2, 3, 4 and 8 ranks killed
# twice each, and in one run that changes its number of ranks at every restart. The ledger is what the log says of each
# step: its samples, and the loss and gradient norm that they gave.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_model model
for i in $(seq 60); do
    echo "{\"prompt\": \"Oar $i: \", \"completion\": \"$((i * 7919)) strokes.\"}"
done >train.jsonl
# 24 rows a step: any of the world sizes divides them. Three and a half epochs, so the last step is not full.
options=(train --model model --data train.jsonl --sequence_length 24 --packing none --train_batch_size 24 --num_train_epochs 3.5
    --learning_rate 1e-2 --save_steps 3 --resume auto --quiet --threads 1)
launch() { # RANKS OUTPUT RESTARTS
    "$TRIREME" launch --nproc-per-node "$1" --max-restarts "$3" "${options[@]}" --output "$2" \
        --per_device_train_batch_size $((24 / $1)) >"$2.log" 2>&1
}

for n in 1 2 3 4 8; do
    launch $n "whole-$n" 0 || fail "$n ranks: $(cat whole-$n.log)"
    TR_FAIL=train.before_step:kill:5 launch $n "killed-$n" 3 || fail "$n ranks, killed: $(cat killed-$n.log)"
    [ "$(grep -c '"event":"fault"' "killed-$n/events.jsonl")" -ge 2 ] || fail "$n ranks: not killed twice"
    step_lines "whole-$n/events.jsonl" >"whole-$n.steps"
    step_lines "killed-$n/events.jsonl" >"killed-$n.steps"
    same "whole-$n.steps" "killed-$n.steps"
    same "whole-$n/model.safetensors" "killed-$n/model.safetensors"
done

# 8, then 3, then 1: a killed one loses a step, and the next goes on from the last checkpoint.
for n in 8 3; do
    if TR_FAIL=train.before_step:kill:5 launch $n moved 0; then fail "moved: $n ranks were not killed"; fi
done
launch 1 moved 0 || fail "moved: $(cat moved.log)"
step_lines moved/events.jsonl >moved.steps

python3 - <<'PY'
import json, re
def ledger(path):
    seen = []
    for line in open(path):
        for r in json.loads(re.search(r"samples=(.*)", line).group(1)):
            seen += range(r[0], r[1] + 1) if isinstance(r, list) else [r]
    return seen
rows = 60
want = [(g // rows, g) for g in range(210)]
for name in ["moved"] + [f"{how}-{n}" for how in ("whole", "killed") for n in (1, 2, 3, 4, 8)]:
    got = [(g // rows, g) for g in ledger(name + ".steps")]
    assert got == want, (name, len(got), len(want))
def losses(path):
    return [float(x) for x in re.findall(r"loss=(\S+)", open(path).read())]
base = losses("whole-1.steps")
assert len(base) == 9
for name in ("whole-8", "moved"):  # the same samples: the same numbers, to the rounding of sums over other ranks
    assert all(abs(a - b) < 1e-4 * abs(a) for a, b in zip(base, losses(name + ".steps"), strict=True)), name
PY
