#!/usr/bin/env bash
# A processor without AVX2 (qemu's Nehalem): the program starts, says that it is slow there, trains, and has the losses of this processor.
# packaging/processors runs the whole table of ops, and arm64.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TR_SANITIZED:-}" ] || skip "sanitizers and qemu both want the address space"
[ "$(uname -m)" = x86_64 ] || skip "this is no x86-64"
qemu=$(command -v qemu-x86_64-static || command -v qemu-x86_64) || skip "no qemu-x86_64 (apt install qemu-user-static)"
tiny_text train.jsonl
tiny_model model
options=(train --model model --data train.jsonl --sequence_length 32 --train_batch_size 4 --max_steps 4 --threads 1 --quiet)
for dtype in float32 bfloat16; do
    expect 0 "$TRIREME" "${options[@]}" --dtype $dtype --output here
    expect 0 "$qemu" -cpu Nehalem "$TRIREME" "${options[@]}" --dtype $dtype --output old
    python3 - $dtype <<'PY' || fail "losses differ ($dtype)"
import json, sys
loss = [[e["loss"] for e in map(json.loads, open(f"{d}/events.jsonl")) if e["event"] == "step"] for d in ("here", "old")]
assert len(loss[0]) == len(loss[1]) == 4, loss
apart = max(abs(a - b) / a for a, b in zip(*loss))
print(sys.argv[1], "losses apart by", apart)
assert apart < {"float32": 1e-5, "bfloat16": 2e-3}[sys.argv[1]], loss # of sums in another order: 2^-23 and 2^-8 a rounding, averaged over 124 tokens
PY
    rm -rf here old
done
expect 0 "$qemu" -cpu Nehalem "$TRIREME" doctor
grep -q 'no AVX2 and FMA: only the slow kernels run' stdout || fail "doctor does not say it: $(cat stdout)"
