#!/usr/bin/env bash
# T19: hostile files. Every format that is read, damaged in ways that know the format (wrong types, huge numbers, offsets that overlap,
# keys twice, templates and patterns that cost, bytes that a terminal obeys, bombs, a pipe or /dev/zero in the place of a file), goes
# through the verbs that read it. Exit codes are 0, 1, 2 or 78; memory and work stay within docs/formats/limits.md; no control byte
# reaches the terminal; nothing crashes or hangs. Under sanitizers memory and time are theirs and are not judged.
# usage: t19_files.sh [FILES [SEED [ONE]]]; 300 by default, 10000 for a campaign; ONE makes that file again and keeps it.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
export XDG_CACHE_HOME=$work/cache GOLDEN=$source_dir/tests/golden LIMITS=$source_dir/docs/formats/limits.md PYTHONDONTWRITEBYTECODE=1
tiny_text train.jsonl
tiny_model model
campaign=$source_dir/tests/fault/t19_files.py
if [ "${1:-300}" -lt 1000 ] && [ -z "${TR_SANITIZED:-}" ]; then # planted bugs first: each must be seen
    for bug in code bytes memory work; do
        TR_PLANT=$bug python3 "$campaign" 2 1 >planted.txt 2>&1 && fail "T19 does not see a planted $bug: $(cat planted.txt)"
        grep -q ': 2 finds' planted.txt || fail "T19 failed for another reason: $(cat planted.txt)"
        rm -rf good case-*
    done
fi
default=300
[ -z "${TR_SANITIZED:-}" ] || default=60
[ -z "${3:-}" ] || { trap - EXIT; echo "in $work"; }
python3 "$campaign" "${1:-$default}" "${2:-1}" ${3:+"$3"}
