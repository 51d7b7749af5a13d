#!/usr/bin/env bash
# Several nodes: one launcher each, on this host. The run has the bits of the same ranks under one launcher, whatever is
# killed on the way: a rank, the agent that coordinates, a node for good; and nodes may come later.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
[ -e "$(dirname "$TRIREME")/libtrireme_mpich.so" ] || { echo "skipped: no MPICH"; exit 77; }
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 1
    --max_steps 12 --save_steps 3 --learning_rate 1e-2 --threads 1 --ddp_timeout 60 --reproducible layout --quiet)
export UCX_TLS=tcp,self UCX_NET_DEVICES=lo # between hosts there is no shared memory
port=$((20000 + $$ % 20000))
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output clean

node() { # RANK NNODES OUTPUT [TR_FAIL]: in the background, log in OUTPUT-RANK.log, pid in $!
    TR_FAIL=${4:-} "$TRIREME" launch --nnodes "$2" --node-rank "$1" --rdzv 127.0.0.1:$port --max-restarts 5 \
        --rdzv-conf join_timeout=60 train "${options[@]}" --output "$3" >>"$3-$1.log" 2>&1 &
}
ends() { # CODE PID NAME
    local rc=0
    wait "$2" || rc=$?
    [ $rc = "$1" ] || fail "$3: exit $rc, want $1: $(cat "$3"*.log)"
}
same_bits() { # OUTPUT
    same clean/model.safetensors "$1/model.safetensors"
    step_lines clean/events.jsonl >clean.steps
    step_lines "$1/events.jsonl" >"$1.steps"
    same clean.steps "$1.steps"
    port=$((port + 1))
}
await_step() { # OUTPUT
    for _ in $(seq 400); do
        grep -qs '"event":"step"' "$1/events.jsonl" && return
        sleep 0.05
    done
    fail "$1: no step: $(cat "$1"-*.log)"
}

# A rank of the second node is killed: all start again, from the newest checkpoint (A14).
node 0 2 two
a=$!
node 1 2 two train.after_step:kill:5:1:1
b=$!
ends 0 $a two
ends 0 $b two
grep -q 'rank 1 .* was ended by SIGKILL' two-0.log || fail "node 0 does not name rank 1: $(cat two-0.log)"
grep -q 'generation [2-9]: 2 nodes, 2 ranks' two-0.log || fail "no second generation: $(cat two-0.log)"
same_bits two
echo "two nodes, a rank killed: the bits of one node"

# The agent that coordinates is killed: its ranks go at once, the other node takes over and goes on alone (A15, B7, M8).
node 0 1:2 lost train.after_step:delay500:6
a=$!
node 1 1:2 lost train.after_step:delay500:6
b=$!
await_step lost
kill -9 $a
wait $a 2>/dev/null || true
ends 0 $b lost
grep -q 'this node coordinates, generation [2-9]' lost-1.log || fail "node 1 did not take over: $(cat lost-1.log)"
grep -q 'generation [2-9]: 1 nodes, 1 ranks' lost-1.log || fail "node 1 did not go on: $(cat lost-1.log)"
same_bits lost
echo "the coordinator killed: the other node goes on alone, the same bits"

# The same with two nodes required: it waits until the node is back, which joins whoever coordinates now.
node 0 2 back train.after_step:delay500:6
a=$!
node 1 2 back train.after_step:delay500:6
b=$!
await_step back
kill -9 $a
wait $a 2>/dev/null || true
node 0 2 back
a=$!
ends 0 $a back
ends 0 $b back
grep -q 'generation [2-9]: 2 nodes, 2 ranks' back-1.log back-0.log || fail "no second generation: $(cat back-*.log)"
same_bits back
echo "the coordinator killed and started again: the same bits"
