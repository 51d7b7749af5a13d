#!/usr/bin/env bash
# Any layout trains the same model, from outside (tests/train/test_matrix.c has all of them): data parallel with every ZeRO stage, hybrid sharding, tensor, sequence and context parallel, accumulation
# and pipelines give the losses of one rank, hold what the plan says, and resume into each other.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
head -n 7 train.jsonl >valid.jsonl
tiny_model model
options=(--model model --data train.jsonl --eval_data valid.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 8 --learning_rate 1e-2
    --weight_decay 0.1 --save_steps 4 --quiet)
"$TRIREME" train "${options[@]}" --per_device_train_batch_size 8 --output one >run.log

# alike DIR: every loss and gradient norm within 2e-5 of one rank's. Sums over ranks are other sums over the same 256 tokens:
# 256 x 2^-24 = 1.5e-5 is the most that their order can change. The final weights are compared through their loss.
alike() { # DIR [REFERENCE]
    python3 - "${2:-one}" "$1" <<'PY'
import json, sys
def steps(d):
    events = [e for e in map(json.loads, open(d + "/events.jsonl")) if e["event"] in ("step", "eval")]
    return [(e["step"], e["loss"], e.get("grad_norm", 1)) for e in events]
a, b = steps(sys.argv[1]), steps(sys.argv[2])
assert [x[0] for x in a] == [x[0] for x in b], f"steps {[x[0] for x in b]}"
worst = max(abs(x[i] - y[i]) / x[i] for x, y in zip(a, b) for i in (1, 2))
assert worst < 2e-5, f"{sys.argv[2]}: losses or norms differ by {worst:.2e}"
plans = [e for e in map(json.loads, open(sys.argv[2] + "/events.jsonl")) if e["event"] == "plan"]
for plan in plans:
    assert plan["total_bytes"] == plan["reserved_bytes"], plan
print(f"{sys.argv[2]}: within {worst:.1e}, {', '.join(str(p['total_bytes']) for p in plans)} bytes")
PY
}

layouts=0
layout() { # NAME RANKS OPTIONS...
    local name=$1 ranks=$2
    case ${TR_SANITIZED:+$name} in # slow there: layouts whose code others run too
    *-acc | pp2-gpipe) return ;;
    esac
    shift 2
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${options[@]}" "$@" --output "$name" >run.log 2>&1 || {
        cat run.log >&2
        fail "$name: exit $?"
    }
    alike "$name"
    layouts=$((layouts + 1))
}
for zero in 0 1 2 3; do
    layout "dp2-zero$zero" 2 --zero $zero --per_device_train_batch_size 4
done
layout dp2-zero2-acc 2 --zero 2 --per_device_train_batch_size 2
layout dp4-zero3 4 --zero 3 --per_device_train_batch_size 1
layout dp4-hybrid2 4 --zero 3 --hybrid_shard 2 --per_device_train_batch_size 2

# Pipelines: every schedule, alone and with what the stages' ranks share.
for schedule in gpipe 1f1b zb; do
    layout "pp2-$schedule" 2 --pp 2 --pp_schedule $schedule --per_device_train_batch_size 2
done
layout pp4-zb 4 --pp 4 --pp_schedule zb --per_device_train_batch_size 1
layout pp2-interleaved 2 --pp 2 --pp_schedule interleaved --pp_chunks 2 --per_device_train_batch_size 2
for zero in 2 3; do
    layout "pp2-dp2-zero$zero" 4 --pp 2 --zero $zero --per_device_train_batch_size 2
done
"$TRIREME" plan "${options[@]}" --pp 2 --pp_schedule zb --per_device_train_batch_size 2 --show schedule >zb.txt
grep -E '^(#|rank)' zb.txt | sort -u >order.txt
layout pp2-file 2 --pp 2 --pp_schedule order.txt --per_device_train_batch_size 2
for file in $(cd pp2-zb && ls model*); do same "pp2-zb/$file" "pp2-file/$file"; done

# The plan of every pipeline rank is what it reserved.
"$TRIREME" plan "${options[@]}" --pp 2 --dp 2 --zero 3 --per_device_train_batch_size 2 --json --threads 1 >plan.json
python3 - <<'PY'
import json
plan = {r["rank"]: r["total_bytes"] for r in json.load(open("plan.json"))["ranks"]}
run = {e["rank"]: e["reserved_bytes"] for e in map(json.loads, open("pp2-dp2-zero3/events.jsonl")) if e["event"] == "plan"}
assert len(run) == 4 and run == plan, (run, plan)
PY

# What stages write is one model: each tensor in one file, each file from one stage, and its loss is the run's.
python3 - <<'PY'
import json, struct
index = json.load(open("pp2-1f1b/model.safetensors.index.json"))["weight_map"]
assert len(set(index.values())) == 2
found = {}
for name in set(index.values()):
    f = open("pp2-1f1b/" + name, "rb")
    for t in json.loads(f.read(struct.unpack("<Q", f.read(8))[0])):
        assert t == "__metadata__" or found.setdefault(t, name) == name == index[t]
assert set(found) - {"__metadata__"} == set(index)
PY
want=$(python3 -c 'import json; print([e["loss"] for e in map(json.loads, open("pp2-1f1b/events.jsonl")) if e["event"] == "eval"][-1])')
got=$("$TRIREME" eval --model pp2-1f1b --data valid.jsonl --sequence_length 32 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])')
python3 -c "assert abs($want - $got) < 2e-5 * $want, ($want, $got)"

# Tensor and sequence parallel, alone and with the rest.
layout tp2 2 --tp 2 --per_device_train_batch_size 8
layout tp4-sp 4 --tp 4 --sp --per_device_train_batch_size 4 --recompute op
layout tp2-sp-zero3 4 --tp 2 --sp --zero 3 --per_device_train_batch_size 2
layout tp2-zero1 4 --tp 2 --zero 1 --per_device_train_batch_size 4

layout pp2-tp2 4 --pp 2 --tp 2 --per_device_train_batch_size 2

# Context parallel, alone and with the rest; the rows hold packed documents.
layout cp2-ulysses 2 --cp 2 --cp_mode ulysses --per_device_train_batch_size 4
layout cp2-ulysses-zero3 4 --cp 2 --cp_mode ulysses --zero 3 --per_device_train_batch_size 2
layout cp2-ring 2 --cp 2 --per_device_train_batch_size 4
layout cp4-ring 4 --cp 4 --cp_mode ring --per_device_train_batch_size 8 --recompute op
layout cp2-ring-zero3 4 --cp 2 --zero 3 --per_device_train_batch_size 2 --recompute block

# What was written is the whole model again: evaluated by one rank it has the loss of one rank's.
loss_of() { "$TRIREME" eval --model "$1" --data valid.jsonl --sequence_length 32 --json | python3 -c \
    "import json, sys; print(json.load(sys.stdin)['loss'])"; }
for name in tp2 tp4-sp tp2-sp-zero3 pp2-tp2 cp2-ulysses cp2-ulysses-zero3 cp4-ring cp2-ring-zero3; do
    python3 -c "a, b = $(loss_of one), $(loss_of $name); assert abs(a - b) < 2e-5 * a, (a, b)" || fail "$name: its model has another loss"
done

# GPT-2 keeps q, k and v in one matrix and its vocabulary is odd: parts of unequal height.
cat >odd.json <<'JSON'
{ "model_type": "gpt2", "vocab_size": 267, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 64,
  "embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1, "bos_token_id": 256, "eos_token_id": 256 }
JSON
"$TRIREME" init --config odd.json --tokenizer bytes --seed 7 --out odd --quiet
odd=("${options[@]}" --model odd --max_steps 4)
"$TRIREME" train "${odd[@]}" --per_device_train_batch_size 8 --output odd-one >run.log
for tp in "2" "4 --sp"; do
    rm -rf odd-tp
    # shellcheck disable=SC2086
    timeout 120 "$TRIREME" launch --nproc-per-node "${tp%% *}" train "${odd[@]}" --tp $tp --per_device_train_batch_size 8 \
        --output odd-tp >run.log 2>&1 || { cat run.log >&2; fail "gpt2 with tp $tp"; }
    alike odd-tp odd-one
    layouts=$((layouts + 1))
done
for cp in "4 --cp 4 --cp_mode ulysses" "4 --tp 2 --sp --cp 2"; do
    rm -rf odd-cp
    # shellcheck disable=SC2086
    timeout 120 "$TRIREME" launch --nproc-per-node "${cp%% *}" train "${odd[@]}" ${cp#* } \
        --per_device_train_batch_size 8 --output odd-cp >run.log 2>&1 || { cat run.log >&2; fail "gpt2 with $cp"; }
    alike odd-cp odd-one
    layouts=$((layouts + 1))
done
"$TRIREME" plan "${odd[@]}" --tp 4 --sp --dp 1 --per_device_train_batch_size 8 --json --threads 1 >plan.json
python3 - <<'PY'
import json
plan = {r["rank"]: r["total_bytes"] for r in json.load(open("plan.json"))["ranks"]}
run = {e["rank"]: e["reserved_bytes"] for e in map(json.loads, open("odd-tp/events.jsonl")) if e["event"] == "plan"}
assert len(run) == 4 and run == plan, (run, plan)
PY

# An evaluation batch whose tokens sequence parallel cannot split is refused, and not met in the tensor pass.
odd_rows=(--model model --data train.jsonl --eval_data valid.jsonl --sequence_length 31 --tp 2 --sp --per_device_train_batch_size 2 --quiet)
expect 0 "$TRIREME" plan "${odd_rows[@]}" --per_device_eval_batch_size 4
expect 2 "$TRIREME" plan "${odd_rows[@]}" --per_device_eval_batch_size 3
grep -q 'per_device_eval_batch_size 3: tp 2: with sp, tp divides the tokens of a micro-batch / cp, which is 93' stderr || fail "$(cat stderr)"

# What is sharded shrinks: optimizer state with zero 1, gradients with 2, parameters with 3.
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 24/' tiny.json >deep.json
bytes() { "$TRIREME" plan --model deep.json --sequence_length 32 --dp 8 --zero "$@" --json | python3 -c \
    "import json, sys; print(*[a['bytes'] for a in json.load(sys.stdin)['ranks'][5]['arenas'] if a['name'] in ('params', 'grads', 'optim')])"; }
[ "$(bytes 1 | cut -d' ' -f3)" -le $(($(bytes 0 | cut -d' ' -f3) / 7)) ] || fail "zero 1 does not shard the optimizer"
[ "$(bytes 2 | cut -d' ' -f2)" -lt "$(bytes 1 | cut -d' ' -f2)" ] || fail "zero 2 does not shard gradients"
[ "$(bytes 2 --sync last | cut -d' ' -f2)" = "$(bytes 1 | cut -d' ' -f2)" ] || fail "sync last does not hold gradients whole"
[ "$(bytes 3 | cut -d' ' -f1)" -lt "$(bytes 2 | cut -d' ' -f1)" ] || fail "zero 3 does not shard parameters"

# reproducible layout: the same bits in weights, optimizer state, losses and norms, whatever the layout.
ordered=("${options[@]}" --reproducible layout --per_device_train_batch_size 1)
"$TRIREME" train "${ordered[@]}" --output o-one >run.log
bits() { # DIR: tensors of the model and of the optimizer by name, and the log, as one hash
    { step_lines "$1/events.jsonl"; python3 - "$1" <<'PY'; } | sha256sum
import glob, hashlib, json, struct, sys
parts = {}
for path in glob.glob(sys.argv[1] + "/model*.safetensors") + glob.glob(sys.argv[1] + "/checkpoint-8/trireme/optim-*"):
    f = open(path, "rb")
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    base = f.tell()
    for name, t in head.items():
        if name != "__metadata__":
            state, first, tensor = name.split("/") if "optim-" in path else ("w", "0", name)
            f.seek(base + t["data_offsets"][0])
            parts[(state, tensor, int(first))] = f.read(t["data_offsets"][1] - t["data_offsets"][0])
whole = {}
for key in sorted(parts):
    whole[key[:2]] = whole.get(key[:2], b"") + parts[key]
for key in sorted(whole):
    print(*key, hashlib.sha256(whole[key]).hexdigest())
PY
}
want=$(bits o-one)
[ "$want" != "$(bits one)" ] || fail "bits are not compared"
ordered_layout() { # NAME RANKS OPTIONS...
    local name=$1 ranks=$2
    shift 2
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${ordered[@]}" "$@" --output "$name" >run.log 2>&1 ||
        { cat run.log >&2; fail "$name"; }
    [ "$(bits "$name")" = "$want" ] || { diff <(step_lines o-one/events.jsonl) <(step_lines "$name/events.jsonl"); fail "$name: other bits than one rank"; }
    layouts=$((layouts + 1))
}
ordered_layout o-dp2 2
ordered_layout o-dp4-zero3 4 --zero 3
ordered_layout o-dp4-hybrid 4 --zero 2 --hybrid_shard 2
ordered_layout o-pp2 2 --pp 2
ordered_layout o-pp2-dp2-zero1 4 --pp 2 --zero 1 --pp_schedule zb

# Ranks with different options: the first that differs is named.
for rank in 0 1; do
    schedules=(1f1b gpipe)
    RANK=$rank WORLD_SIZE=2 TR_JOB=differ-$$ timeout 60 "$TRIREME" train "${options[@]}" --pp 2 --pp_schedule "${schedules[$rank]}" \
        --per_device_train_batch_size 2 --output differ >"differ-$rank.log" 2>&1 &
done
wait
grep -q "ranks disagree on pp_schedule" differ-0.log || fail "nobody names pp_schedule: $(cat differ-0.log)"

# A checkpoint of any layout resumes in any other.
move() { # FROM RANKS OPTIONS...
    local from=$1 ranks=$2
    shift 2
    rm -rf moved && cp -r "$from" moved && rm -rf moved/checkpoint-8 moved/model*
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${options[@]}" "$@" --resume --output moved >run.log 2>&1 ||
        { cat run.log >&2; fail "resume of $from on $ranks ranks"; }
    grep -q "resuming after step 4" run.log || fail "did not resume: $(cat run.log)"
    alike moved
}
move dp2-zero0 2 --zero 0 --per_device_train_batch_size 4
move dp4-hybrid2 1 --per_device_train_batch_size 8
move dp4-zero3 1 --per_device_train_batch_size 8
move one 2 --zero 3 --per_device_train_batch_size 4
move dp2-zero1 4 --zero 2 --per_device_train_batch_size 2
move tp2 1 --per_device_train_batch_size 8
move one 4 --tp 4 --sp --per_device_train_batch_size 8
move tp2-sp-zero3 2 --zero 1 --per_device_train_batch_size 4
move tp4-sp 4 --tp 2 --zero 2 --per_device_train_batch_size 4
move dp4-zero3 2 --tp 2 --per_device_train_batch_size 8
move pp2-tp2 2 --tp 2 --sp --per_device_train_batch_size 8
move cp2-ring-zero3 2 --cp 2 --cp_mode ulysses --per_device_train_batch_size 8
move cp2-ulysses-zero3 1 --per_device_train_batch_size 8
move tp2 4 --cp 2 --cp_mode ulysses --zero 2 --per_device_train_batch_size 4
move tp2-zero1 4 --pp 2 --tp 2 --per_device_train_batch_size 2
move pp2-dp2-zero2 1 --per_device_train_batch_size 8
move dp4-zero3 2 --pp 2 --per_device_train_batch_size 2
move pp4-zb 4 --pp 2 --zero 3 --pp_schedule interleaved --pp_chunks 2 --per_device_train_batch_size 2

# A rank that dies ends the job, which names it; the next start goes on.
code=0
TR_FAIL=train.before_step:kill:6:1 timeout 60 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero 2 \
    --per_device_train_batch_size 4 --output dead >run.log 2>&1 || code=$?
[ "$code" != 0 ] && [ "$code" != 124 ] || fail "exit $code after a rank was killed"
grep -q "rank 1" run.log || fail "the dead rank is not named: $(cat run.log)"
TR_FAIL='' timeout 60 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero 2 --per_device_train_batch_size 4 \
    --resume --output dead >run.log 2>&1 || fail "did not resume: $(cat run.log)"
same dp2-zero2/model.safetensors dead/model.safetensors
code=0
TR_FAIL=train.before_step:kill:6:1 timeout 60 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --pp 2 \
    --per_device_train_batch_size 2 --output dead-pp >run.log 2>&1 || code=$?
[ "$code" != 0 ] && [ "$code" != 124 ] || fail "exit $code after a stage was killed"
TR_FAIL='' timeout 60 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --pp 2 --per_device_train_batch_size 2 \
    --resume --output dead-pp >run.log 2>&1 || fail "did not resume: $(cat run.log)"
for file in $(cd pp2-1f1b && ls model*); do same "pp2-1f1b/$file" "dead-pp/$file"; done
[ -z "$(ls -p /dev/shm | grep -v /$ | grep trireme || true)" ] || fail "left in /dev/shm: $(ls /dev/shm)"
echo "$layouts layouts agree with one rank"
