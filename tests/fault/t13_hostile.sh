#!/usr/bin/env bash
# T13: strangers at the control port of a job of two nodes: noise, wrong keys, replays, frames out of bounds, slow senders, idle
# crowds, other protocols. Nothing changes: no new generation, the same bits, memory and descriptors back to where they were.
# usage: t13_hostile.sh [SECONDS [SEED]]; 2 by default, 3600 for a campaign.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
[ -e "$(dirname "$TRIREME")/libtrireme_mpich.so" ] || { echo "skipped: no MPICH"; exit 77; }
tiny_text train.jsonl
tiny_model model
python3 "$source_dir/tests/fault/t13_hostile.py" "${1:-2}" "${2:-1}"
