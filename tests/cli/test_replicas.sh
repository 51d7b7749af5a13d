#!/usr/bin/env bash
# Debug tools of a training over ranks: replicas that hold the same bits pass the check in every layout and the check changes
# nothing; one flipped bit is found at the next check, with tensor and rank; gradient norms by parameter are those of one rank.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 4 --learning_rate 1e-2
    --threads 1 --quiet)
for zero in 0 1 2 3; do
    expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero $zero --output plain-$zero
    expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero $zero --output checked-$zero --replica_check_steps 1
    same plain-$zero/model.safetensors checked-$zero/model.safetensors
done
expect 0 "$TRIREME" launch --nproc-per-node 4 train "${options[@]}" --zero 3 --hybrid_shard 2 --output hybrid --replica_check_steps 2
expect 0 "$TRIREME" launch --nproc-per-node 4 train "${options[@]}" --tp 2 --sp --zero 1 --output split --replica_check_steps 1
# A gradient that tensor ranks forget to sum makes their copies of a norm part (the first hits are the data proof's).
TR_FAIL=tp.skip_reduce:error:14 expect 75 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --tp 2 --sp --output parted \
    --replica_check_steps 1
grep -q "replica check after step [1-4]: .*norm.weight on rank 1" parted/logs/rank-0001.log || fail "not seen: $(cat stdout stderr)"

found() { # RANK OPTIONS...: the flip at the second check is found there, by every rank
    local rank=$1
    shift
    TR_FAIL=train.flip:error:2:$rank expect 75 "$TRIREME" launch --nproc-per-node 4 train "${options[@]}" "$@" \
        --replica_check_steps 1 --output flipped
    for log in flipped/logs/rank-*.log; do
        grep -q "replica check after step 2: weights of model.[0-9a-z_.]* on rank $rank differ from those of its" "$log" ||
            fail "$*: $log does not name rank $rank: $(cat "$log")"
    done
    rm -rf flipped
}
found 2
found 0 --zero 1
found 3 --zero 3 --hybrid_shard 2

expect 0 "$TRIREME" train "${options[@]}" --per_device_train_batch_size 8 --output one --grad_norm_steps 2
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero 2 --output two --grad_norm_steps 2
expect 0 "$TRIREME" train "${options[@]}" --per_device_train_batch_size 8 --output tree --grad_norm_steps 2 --reproducible layout
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --tp 2 --sp --output trees --grad_norm_steps 2 --reproducible layout
python3 - <<'PY'
import json, math
lines = lambda path: [json.loads(l) for l in open(path)]
a = lines("one/grad_norms.jsonl")
for d in ("two", "tree", "trees"):
    b = lines(d + "/grad_norms.jsonl")
    assert [x["step"] for x in a] == [x["step"] for x in b] == [2, 4], (a, b)
    for x, y in zip(a, b):
        assert x["norms"].keys() == y["norms"].keys() and len(x["norms"]) > 10
        for name in x["norms"]:  # other sums over the same 256 tokens: 256 x 2^-24 = 1.5e-5 of the largest terms
            assert abs(x["norms"][name] - y["norms"][name]) < 2e-4 * x["norms"][name], (d, name, x["norms"][name], y["norms"][name])
    whole = {e["step"]: e["grad_norm"] for e in lines(d + "/events.jsonl") if e["event"] == "step"}
    for y in b:  # printed with 9 digits
        assert math.isclose(math.sqrt(sum(n * n for n in y["norms"].values())), whole[y["step"]], rel_tol=1e-6), (d, y, whole)
PY
