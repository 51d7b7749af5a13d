#!/usr/bin/env bash
# T18: every process of a training (alone, under a launcher, on two nodes) gets every combination of two stop signals at random
# instants, with signals that mean nothing in between. Exit 75 is true: a checkpoint holds every step that was made. A stop
# that comes in the training always saves; one that comes earlier may also end with another code. Jobs tokenise while they train, ask a
# reference, evaluate several sets, offload to disk, or save all the time. Nothing is left behind.
# usage: t18_stops.sh [JOBS [SEED]]; 8 by default, 500 for a campaign. Two nodes are left out where MPICH is not.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
mkdir disk
tiny_text part1.jsonl
tiny_text part2.jsonl
python3 - <<'PY'
import json
write = lambda name, records: open(name, "w").write("".join(json.dumps(r) + "\n" for r in records))
write("prefs.jsonl", [{"prompt": f"oars {i}?", "chosen": "170.", "rejected": "7."} for i in range(300)])
write("choices.jsonl", [{"context": "oars", "choices": ["170", "7"], "gold": 0}] * 4)
write("asks.jsonl", [{"prompt": "oars"}, {"prompt": "rowers and"}])
PY
export UCX_TLS=tcp,self UCX_NET_DEVICES=lo
campaign=$source_dir/tests/fault/t18_stops.py
if [ "${1:-8}" -lt 100 ]; then # a planted bug first: the checkpoint of the stop is removed
    TR_PLANT=1 python3 "$campaign" 1 3 >planted.txt 2>&1 && fail "T18 does not see a lie: $(cat planted.txt)"
    grep -q 'says 75, but' planted.txt || fail "T18 failed for another reason: $(cat planted.txt)"
    rm -rf run-*
fi
python3 "$campaign" "${1:-8}" "${2:-1}"
