#!/usr/bin/env bash
# A bug in what ranks say to each other turns the matrix of layouts red: each is planted by name, and the layout that saw it shown.
# usage: TRIREME=build/release/trireme planted_bugs.sh
. "$(dirname "$0")/../cli/common.sh"
matrix=$(dirname "$TRIREME")/train_matrix
[ -z "${TR_SANITIZED:-}" ] || exit 77 # release shows it
[ -x "$matrix" ] || { echo "no $matrix"; exit 77; }
for bug in no_reduce wrong_group no_scale no_gather no_tie no_fold early_recv; do
    ! TR_PLANT=$bug timeout 120 "$matrix" >"$bug.log" 2>&1 || fail "$bug: the matrix stays green"
    seen=$(grep -m 1 -oE 'not the model of one rank: .*' "$bug.log") || fail "$bug: red, but not for the numbers: $(tail -n 5 "$bug.log")"
    echo "$bug: ${seen#*: }"
done
