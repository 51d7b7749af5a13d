#!/usr/bin/env bash
# T8: a rank of a small training is stopped for ever, stopped for a while, or loops in a phase of a step. The launcher names the
# right rank and phase within max(5 s, 3 x p99), keeps a stack and a flight record, and ends the group; who was stopped for a
# while goes on and is told. Then clean steps at 4x oversubscription: nothing is killed.
# usage: t8_hangs.sh [RUNS [STEPS [SEED]]]; 500 runs and 5000 steps for a campaign; a short run also plants a bug.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
expect 2 "$TRIREME" watch nowhere
python3 "$source_dir/tests/fault/t8_hangs.py" "$TRIREME" "${1:-6}" "${2:-40}" "${3:-1}"
