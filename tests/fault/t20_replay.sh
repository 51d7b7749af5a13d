#!/usr/bin/env bash
# T20: a run that is killed at random, and whose learning rate is set on the way, is replayed at random steps: loss and norm of each are those of the log, to the bit.
# usage: t20_replay.sh [KILLS [STEPS [SEED]]]; 2 kills and 4 steps by default, 20 and 20 for a campaign.
. "$(dirname "$0")/../cli/common.sh"
. "$source_dir/tests/cli/preference.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
preference_data pairs.jsonl
preference_answers answers.jsonl
tiny_model model
[ "${1:-2}" -ge 20 ] || export TR_SHORT=1
python3 "$source_dir/tests/fault/t20_replay.py" "${1:-2}" "${2:-4}" "${3:-1}"
