#!/usr/bin/env bash
# T2: SIGKILL, SIGSTOP and SIGTERM to random processes of a training, agent included, at exponential gaps; the job heals
# itself, is started again where the agent was hit, and ends with the bits of the undisturbed run.
# usage: t2_kills.sh [KILLS [SEED]]; 5 by default, 3000 for a campaign. TR_LAYOUTS=lora,qlora,lora_pp2 hits adapters alone.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
if [ "${1:-5}" -lt 100 ]; then
    export TR_SHORT=1 # a planted bug first: one bit of the final weights
    TR_PLANT=1 python3 "$source_dir/tests/fault/t2_kills.py" 2 7 >planted.txt 2>&1 &&
        fail "T2 does not see a changed bit: $(cat planted.txt)"
    grep -q 'bits differ' planted.txt || fail "T2 failed for another reason: $(cat planted.txt)"
    rm -rf run-*
fi
python3 "$source_dir/tests/fault/t2_kills.py" "${1:-5}" "${2:-1}"
