#!/usr/bin/env bash
# T12, the losses: with --reproducible layout a run saved in one layout and resumed in another has the next 20 losses and norms of
# the undisturbed run, in hex. usage: t12_losses.sh [full]; the short version resumes each layout in the next one of the list,
# full in every other. A planted bug (another seed after the resume) must turn it red.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 1 --max_steps 22
    --learning_rate 1e-2 --weight_decay 0.1 --save_steps 2 --save_total_limit 0 --threads 1 --data_proof none --reproducible layout --quiet)
names=(one dp2 dp2-zero3 dp4-hybrid dp4-zero1 pp2 pp2-dp2)
ranks=(1 2 2 4 4 2 4)
flags=("" "--zero 0" "--zero 3" "--zero 2 --hybrid_shard 2" "--zero 1" "--pp 2" "--pp 2 --zero 1 --pp_schedule zb")

train() { # LAYOUT OUTPUT OPTIONS...
    local i=$1 out=$2
    shift 2
    # shellcheck disable=SC2086
    timeout 120 "$TRIREME" launch --nproc-per-node "${ranks[$i]}" train "${options[@]}" ${flags[$i]} "$@" --output "$out" >run.log 2>&1 ||
        { cat run.log >&2; fail "${names[$i]}: exit $?"; }
}

hex_of() { # OUTPUT: the losses and norms of the last 20 steps
    python3 - "$1" <<'PY'
import json, sys
for e in map(json.loads, open(sys.argv[1] + "/events.jsonl")):
    if e["event"] == "step" and e["step"] > 2:
        print(e["step"], e["loss"].hex(), e["grad_norm"].hex())
PY
}

train 0 o-one
hex_of o-one >want
[ "$(wc -l <want)" = 20 ] || fail "$(wc -l <want) losses to compare"
n_pairs=0
for from in "${!names[@]}"; do
    # shellcheck disable=SC2086
    if [ "$from" != 0 ]; then # saved at 2, then cut off
        ! TR_FAIL=train.before_step:kill:5:0 "$TRIREME" launch --nproc-per-node "${ranks[$from]}" train "${options[@]}" ${flags[$from]} \
            --output "o-${names[$from]}" >run.log 2>&1 || fail "${names[$from]}: was not cut off"
    fi
    [ -d "o-${names[$from]}/checkpoint-2" ] || fail "${names[$from]}: nothing to resume from: $(cat run.log)"
    for to in "${!names[@]}"; do
        [ "${1:-}" = full ] && [ "$to" != "$from" ] || [ "$to" = $(((from + 1) % ${#names[@]})) ] || continue
        rm -rf moved && cp -r "o-${names[$from]}" moved
        for step in $(seq 4 2 22); do rm -rf "moved/checkpoint-$step"; done
        train "$to" moved --resume
        grep -q "resuming after step 2" run.log || fail "did not resume: $(cat run.log)"
        hex_of moved >got
        same want got
        n_pairs=$((n_pairs + 1))
    done
done
rm -rf moved && cp -r o-dp2 moved
train 0 moved --resume --seed 43 --allow_change seed,data_seed,data_hash
hex_of moved >got
! cmp -s want got || fail "T12 does not see another seed"
echo "T12 losses: $n_pairs pairs of ${#names[@]} layouts, the next 20 losses and norms equal in hex"
