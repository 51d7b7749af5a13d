#!/usr/bin/env bash
# With --packing none a row is one document, and what is left of it is not computed with (docs/adr/0022-dense-batches.md): losses are those of rows that are computed
# in full, on every layout, and longer rows change no bit.
. "$(dirname "$0")/common.sh"
tiny_model model
python3 - <<'PY'
import json
for name, most in (("train", 90), ("short", 12)):
    with open(name + ".jsonl", "w") as f:
        for i in range(48):
            f.write(json.dumps({"text": ("the river is cold and " * 5)[i % 7:][:5 + i * 11 % most]}) + "\n")
PY

run() { # NAME RANKS OPTIONS...
    local name=$1 ranks=$2
    shift 2
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train --model "${MODEL:-model}" --packing none --max_steps 4 --learning_rate 1e-2 --quiet --data_proof none \
        --output "$name" "$@" >run.log 2>&1 || {
        cat run.log >&2
        fail "$name: exit $?"
    }
}
alike() { # A B TOLERANCE: losses and norms of the steps
    python3 - "$@" <<'PY'
import json, sys
a, b = ([(e["loss"], e["grad_norm"]) for e in map(json.loads, open(d + "/events.jsonl")) if e["event"] == "step"] for d in sys.argv[1:3])
worst = max(abs(x - y) / x for p, q in zip(a, b) for x, y in zip(p, q))
assert len(a) == len(b) > 0 and worst <= float(sys.argv[3]), f"{sys.argv[2]}: {worst:.2e} from {sys.argv[1]}"
PY
}

# Context parallel splits rows, so its rows are computed in full. 512 tokens: 512 x 2^-24 = 3.1e-5 is the most that the order of a sum can change.
options=(--data train.jsonl --sequence_length 128 --train_batch_size 4)
run dense 1 "${options[@]}" --per_device_train_batch_size 4
run rows 2 "${options[@]}" --per_device_train_batch_size 4 --cp 2
alike dense rows 3.1e-5
run tp 2 "${options[@]}" --per_device_train_batch_size 4 --tp 2
alike dense tp 3.1e-5
run pp 2 "${options[@]}" --per_device_train_batch_size 2 --pp 2 --zero 1
alike dense pp 3.1e-5

# Longer rows: more padding, and the same tokens in the same places.
run longer 1 --data train.jsonl --sequence_length 256 --train_batch_size 4 --per_device_train_batch_size 4
alike dense longer 0

# Sums in a fixed order: two data ranks and two micro-batches have the same bits. 16 tokens a row: most of a micro-batch is used.
run one 1 --data short.jsonl --sequence_length 16 --train_batch_size 16 --per_device_train_batch_size 8 --reproducible layout
run two 2 --data short.jsonl --sequence_length 16 --train_batch_size 16 --per_device_train_batch_size 8 --reproducible layout
alike one two 0

# Of every kind of model: the rows that no op should read are NaN in one run and full rows are computed with in another. Rows of 40 tokens, of which few are used,
# so that the batch ends inside a row of padding.
python3 - <<'PY'
import json
with open("few.jsonl", "w") as f:
    for i in range(32):
        f.write(json.dumps({"text": "cold river"[:1 + i * 5 % 4]}) + "\n")
PY
for family in smollm3 olmo3 gpt2_tied gemma3 qwen3 falcon stablelm; do
    python3 - "$source_dir/tests/golden/$family/config.json" <<'PY'
import json, sys
c = json.load(open(sys.argv[1]))
c.update(vocab_size=288, bos_token_id=256, eos_token_id=256)
c.pop("pad_token_id", None)
c.update({k: 64 for k in ("n_positions", "max_position_embeddings") if k in c})
json.dump(c, open("family.json", "w"))
PY
    "$TRIREME" init --config family.json --tokenizer bytes --seed 7 --out "m-$family" --quiet
    for options in "--dtype float32" "--dtype bfloat16 --lora_r 4 --recompute block"; do
        few=(--data few.jsonl --sequence_length 40 --train_batch_size 3 --per_device_train_batch_size 3 --threads 2)
        # shellcheck disable=SC2086
        MODEL=m-$family TR_FAIL=exec.poison_padding:error run poisoned 1 "${few[@]}" $options
        # shellcheck disable=SC2086
        MODEL=m-$family TR_FAIL=data.full_rows:error run full 1 "${few[@]}" $options
        case $options in # 8 bits of a sum of a few tokens in another order
        *bfloat16*) alike full poisoned 0.01 ;;
        *) alike full poisoned 3.1e-5 ;;
        esac
        rm -r poisoned full
    done
done

# A step again: the same batch, the same bits.
"$TRIREME" replay dense --step 3 >replay.log 2>&1 || fail "replay: $(tail -n 3 replay.log)"
