#!/usr/bin/env bash
# T6: two nodes in network namespaces, agents and MPI ranks over a cable that loses, delays, reorders, doubles, cuts one way or
# both, and resets connections, by a seed. Each run ends with the bits of the undisturbed one, in bounded time.
# usage: t6_wire.sh [SCENARIOS [SEED]]; 1 by default, 300 for a campaign. A planted bug (the wire stays cut) must turn it red.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
skip() { echo "skipped: $*"; exit 77; }
[ -e "$(dirname "$TRIREME")/libtrireme_mpich.so" ] || skip "no MPICH"
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
[ -c /dev/net/tun ] || skip "no /dev/net/tun"
command -v ip >/dev/null || skip "no ip (iproute2)"
"${CC:-cc}" -O2 -o wire "$source_dir/tests/fault/wire.c" || skip "no compiler"
export A=tr-a-$$ B=tr-b-$$
trap 'for n in $A $B; do for p in $(ip netns pids $n 2>/dev/null); do kill -9 "$p" 2>/dev/null; done; ip netns del $n 2>/dev/null; done; rm -rf "$work"' EXIT
ip netns add "$A" 2>stderr || skip "network namespaces are not allowed: $(cat stderr)"
ip netns add "$B"
ip -n "$A" link set lo up
ip -n "$B" link set lo up
tiny_text train.jsonl
tiny_model model
python3 "$source_dir/tests/fault/t6_wire.py" "${1:-1}" "${2:-1}"
