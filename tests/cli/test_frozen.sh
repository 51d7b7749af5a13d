#!/usr/bin/env bash
# Which parameters learn: --trainable and --frozen. Frozen ones keep their bits, cost no gradient and no state, and the
# plan says so to the byte; a run goes on in another layout, and with another choice.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
what=(--model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 --train_batch_size 8
    --max_steps 6 --learning_rate 1e-2 --threads 1)
options=("${what[@]}" --save_steps 3 --quiet)
run() { # run RANKS ARGUMENTS...
    local ranks=$1
    shift
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${options[@]}" "$@" >run.log 2>&1 || {
        cat run.log
        fail "$*"
    }
}

# changed DIR: names of the weights that differ from the model's, sorted.
changed() { { "$TRIREME" ckpt diff model "$1" || true; } | sed -n 's/^\([^ :]*\): [0-9]* of .*/\1/p' | sort; }
names() { python3 - "$1" <<'PY'
import json, struct, sys
f = open(sys.argv[1], "rb")
print("\n".join(sorted(k for k in json.loads(f.read(struct.unpack("<Q", f.read(8))[0])) if k != "__metadata__")))
PY
}

run 1 --output norms --trainable '*norm*'
changed norms >got
names model/model.safetensors | grep norm >want
same want got
names norms/checkpoint-6/trireme/optim-0000-of-0001.safetensors | sed 's,^[^/]*/[^/]*/,,' | sort -u >got
same want got

# The last pattern wins, whichever option it is of.
run 1 --output last --frozen '*' --trainable 'model.layers.1.*' --frozen '*mlp*'
changed last >got
names model/model.safetensors | grep 'layers\.1\.' | grep -v mlp >want
same want got

# plan = reserved, and less than of a model that learns.
for frozen in 'model.embed*,model.layers.0.*' '*proj*' 'nothing'; do
    choice=(--frozen "$frozen")
    [ "$frozen" != nothing ] || choice=()
    "$TRIREME" plan "${what[@]}" "${choice[@]}" --json >"plan-$frozen.json" || fail "plan $frozen"
    rm -rf out
    run 1 --output out "${choice[@]}"
    python3 - "plan-$frozen.json" <<'PY' || exit 1
import json, sys
plan = json.load(open(sys.argv[1]))
event = next(e for e in map(json.loads, open("out/events.jsonl")) if e["event"] == "plan")
assert plan["total_bytes"] == event["total_bytes"] == event["reserved_bytes"], (plan["total_bytes"], event)
assert plan["ranks"][0]["arenas"] == event["arenas"]
PY
done
python3 - <<'PY' || exit 1
import json
def arenas(name): return {a["name"]: a["bytes"] for a in json.load(open(name))["ranks"][0]["arenas"]}
whole, some = arenas("plan-nothing.json"), arenas("plan-*proj*.json")
for name in ("grads", "optim", "staging"):
    assert some[name] < whole[name], (name, some[name], whole[name])
PY

# Three steps on one layout, three on another: the bits of six on one rank, where the order of sums is the same.
choice=(--frozen 'model.embed*,model.layers.0.*' --reproducible layout)
run 1 --output whole "${choice[@]}"
n=0
for first in "1" "2 --dp 2 --zero 1" "2 --dp 2 --zero 3" "2 --pp 2 --per_device_train_batch_size 2"; do
    for second in "1" "2 --dp 2 --zero 3" "2 --pp 2 --per_device_train_batch_size 2"; do
        rm -rf moved
        # shellcheck disable=SC2086
        run $first "${choice[@]}" --output moved --save_total_limit 0
        rm -rf moved/checkpoint-6 moved/model*.safetensors*
        # shellcheck disable=SC2086
        run $second "${choice[@]}" --output moved --resume auto --verify_restore
        "$TRIREME" ckpt diff whole moved >diff || true
        grep -q "all tensors are the same" diff || fail "$first, then $second: $(cat diff)"
        n=$((n + 1))
    done
done
echo "$n pairs of layouts end with the same bits"

# Another choice on resume: said, and done.
run 1 --output change --frozen 'model.layers.0.*'
rm -rf change/checkpoint-6
"$TRIREME" train "${what[@]}" --save_steps 3 --output change --resume auto --frozen 'model.layers.1.*' >log 2>&1 || {
    cat log
    fail "resume with another choice"
}
grep -q "9 parameters were frozen in the checkpoint and learn now: their optimizer state starts at zero" log || { cat log; fail "no word of new state"; }
grep -q "18 tensors of optimizer state in the checkpoint belong to parameters that are frozen now: they are dropped" log || { cat log; fail "no word of dropped state"; }
{ "$TRIREME" ckpt diff change/checkpoint-3 change/checkpoint-6 || true; } | sed -n 's/^\(model[^ :]*\): [0-9]* of .*/\1/p' | sort >got
names model/model.safetensors | grep -v 'layers\.1\.' >want
same want got

# A checkpoint with frozen parameters is written anew by tools as it is.
"$TRIREME" ckpt reshard norms/checkpoint-6 --output again --quiet >/dev/null
names again/checkpoint-6/trireme/optim-0000-of-0001.safetensors >got
names norms/checkpoint-6/trireme/optim-0000-of-0001.safetensors >want
same want got

expect 2 "$TRIREME" plan "${what[@]}" --frozen '*nrm*'
grep -q 'frozen \*nrm\* matches no parameter; names are like model.layers' stderr || fail "a pattern that matches nothing: $(cat stderr)"
expect 2 "$TRIREME" plan "${what[@]}" --frozen '*'
grep -q 'leave none of the 20 parameters to train' stderr || fail "nothing learns: $(cat stderr)"
expect 2 "$TRIREME" plan "${what[@]}" --frozen '*norm*' --bf16
grep -q 'would lose bits; use --dtype float32' stderr || fail "narrower than the file: $(cat stderr)"
expect 2 "$TRIREME" plan "${what[@]}" --frozen '*norm*' --from_scratch
grep -q 'make one with trireme init' stderr || fail "from scratch: $(cat stderr)"
