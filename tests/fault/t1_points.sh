#!/usr/bin/env bash
# T1: a rank, or the agent, is killed, or a call fails, at every failpoint x rank x hit of a small training; the job heals
# itself and ends with the bits of the undisturbed run. usage: t1_points.sh [HITS [SEED]]; 4 by default, 2000 for a
# campaign. TR_PLANT=1 plants a bug (checkpoints are thrown away at a restart) and expects the oracle to see it.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
if [ "${1:-4}" -lt 100 ]; then
    export TR_SHORT=1 # a planted bug first: an oracle that cannot turn red proves nothing
    TR_PLANT=1 python3 "$source_dir/tests/fault/t1_points.py" "$source_dir/src" 12 7 >planted.txt 2>&1 &&
        fail "T1 does not see that checkpoints are lost: $(cat planted.txt)"
    grep -q 'lost' planted.txt || fail "T1 failed for another reason: $(cat planted.txt)"
    rm -rf run-*
fi
python3 "$source_dir/tests/fault/t1_points.py" "$source_dir/src" "${1:-4}" "${2:-1}"
