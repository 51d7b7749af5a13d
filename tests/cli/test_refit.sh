#!/usr/bin/env bash
# A change of the code's structure changes no behaviour: programs, schedules, planned bytes, weights, optimizer state, losses and
# norms of a few runs are those that tests/refit/recorded.json holds. tests/refit/README.md says how to prove the same of all cases.
. "$(dirname "$0")/common.sh"
refit=$source_dir/tests/refit
"$refit/record.py" --check "$TRIREME" --jobs 2

# The comparison finds a change: one word of a text, one bit of a weight.
mkdir a b
cat >a/case.txt <<'TEXT'
== program
segment home  2 ops
== weights
x F32 [4] 00
TEXT
expect 0 "$refit/record.py" --compare a a
sed 's/home  /bucket /' a/case.txt >b/case.txt
expect 1 "$refit/record.py" --compare a b
grep -q '^case: program differs$' stdout || fail "not listed: $(cat stdout)"
echo 'home bucket' >words
expect 0 "$refit/record.py" --compare a b --map words
sed -i 's/00$/01/' b/case.txt
expect 1 "$refit/record.py" --compare a b --map words
grep -q '^1 cases compared: 1 parts differ, in 1 cases$' stdout || fail "not counted: $(cat stdout)"
