#!/usr/bin/env bash
# trireme check: all well on a healthy machine, over every axis of the mesh; a broken link, collective or disk is found and
# named, on every rank. trireme bench comm measures, alone and launched.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
expect 0 "$TRIREME" launch --nproc-per-node 4 check --zero 1 --hybrid_shard 2 --output out
for part in 'links, each pair' 'collectives, all ranks' 'collectives, dp' 'collectives, shard' 'output file system'; do
    grep -q "^$part *ok " stdout || fail "no \"$part ok\" in: $(cat stdout)"
done
grep -q '^kernels cpu  *device cpu  *present$' stdout || fail "no column cpu in: $(cat stdout)"
grep -Eq '^linear +F32 BF16 F16 +F32 BF16 F16 +F32 BF16 F16' stdout || fail "no table of ops in: $(cat stdout)"
[ -z "$(find . -name '.trireme-check*')" ] || fail "left behind: $(find . -name '.trireme-check*')"
expect 0 "$TRIREME" check --json
# Which kernel columns are here and what they refuse: the same table in both forms.
python3 - <<'PY' || fail "$(cat stdout)"
import json
columns = {c["name"]: c for c in json.load(open("stdout"))["columns"]}
assert set(columns) == {"cuda", "cpu", "reference"}, columns.keys()
assert columns["cpu"]["state"] == "present" and not columns["cpu"]["fuses"] and columns["cuda"]["fuses"]
for c in columns.values():
    assert c["ops"]["linear"] == ["F32", "BF16", "F16"], c["ops"]["linear"]
    assert c["ops"]["matmul8"] == ["F8_E4M3", "F8_E5M2"], c["ops"]["matmul8"]
    assert c["ops"]["adamw"] == ["F32", "BF16"], c["ops"]["adamw"]
PY
python3 -c 'import json, sys; r = json.load(open("stdout")); sys.exit(not (r["is_ok"] and r["ranks"] == 1))' || fail "$(cat stdout)"

# What is not well is JSON too, whatever the name of the directory; what takes no microsecond has a rate that is a number.
touch 'a"file'
for i in 1 2 3 4 5 6; do
    expect 70 "$TRIREME" check --output 'a"file' --json
    python3 - <<'PY' || fail "$(head -c 900 stdout)"
import json
def refuse(word):
    raise ValueError(word)
parts = json.load(open("stdout"), parse_constant=refuse)["parts"]
assert parts[2]["part"] == "output file system" and 'a"file' in parts[2]["cause"], parts[2]
PY
done

bad() { # FAILPOINT TEXT
    TR_FAIL=$1 expect 70 "$TRIREME" launch --nproc-per-node 3 check
    grep -q "BAD.*$2" stdout || fail "the table does not say \"$2\": $(cat stdout)"
    [ "$(grep -c "check: $2" stderr)" -ge 1 ] || fail "no rank says \"$2\": $(cat stderr)"
}
bad check.link:error:1:2 'link of rank 2 and rank 1: what arrives is not what was sent'
bad check.collective:error:3:1 'reduce_scatter of 17 on 3 ranks: rank 1 of the group got a wrong answer'
bad check.file:error:1:0 'rank 0: write of ./.trireme-check-0 fails'
expect 2 "$TRIREME" launch --nproc-per-node 2 check --dp 3
grep -q '3 ranks, but 2 were started' stderr || fail "$(cat stderr)"

expect 0 "$TRIREME" bench comm --bytes_max 4KiB --seconds 0.01
[ "$(grep -c '^all_reduce\|^all_gather\|^reduce_scatter' stdout)" = 16 ] || fail "$(cat stdout)"
expect 0 "$TRIREME" launch --nproc-per-node 2 bench comm --bytes_max 4KiB --seconds 0.01 --json --heap
[ "$(grep -c '"engine":"trireme-plain"' stdout)" = 8 ] || fail "$(cat stdout)"
expect 2 "$TRIREME" bench chairs
