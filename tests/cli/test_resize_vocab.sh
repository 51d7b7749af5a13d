#!/usr/bin/env bash
# A tokenizer with more tokens than the model has rows: the tables grow, new rows are the mean of the others, on every layout, and the output says so.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
sed -i '3s/one stroke/<|oar|> stroke/' train.jsonl
grow() { # MODEL: thirteen tokens more than its tokenizer has
    python3 - "$1" <<'PY'
import json, sys
path = sys.argv[1] + "/tokenizer.json"
t = json.load(open(path))
for i in range(13):
    t["added_tokens"].append({"id": 257 + i, "content": "<|oar|>" if i == 12 else f"<|new{i}|>", "single_word": False,
                              "lstrip": False, "rstrip": False, "normalized": False, "special": True})
json.dump(t, open(path, "w"))
PY
}
check() { # BEFORE AFTER NAME...: the old rows are as they were, the new ones their mean
    python3 - "$@" <<'PY'
import array, json, struct, sys
def table(directory, name):
    data = open(directory + "/model.safetensors", "rb").read()
    n, = struct.unpack("<Q", data[:8])
    x = json.loads(data[8:8 + n])[name]
    assert x["dtype"] == "F32", x
    a = array.array("f", data[8 + n + x["data_offsets"][0]:8 + n + x["data_offsets"][1]])
    return x["shape"], a
assert json.load(open(sys.argv[2] + "/config.json"))["vocab_size"] == 270
for name in sys.argv[3:]:
    (rows, cols), old = table(sys.argv[1], name)
    shape, new = table(sys.argv[2], name)
    assert shape == [270, cols] and rows == 264 and new[:rows * cols] == old, (name, shape)
    for c in range(cols):
        mean = sum(old[r * cols + c] for r in range(rows)) / rows
        for r in range(rows, 270):
            assert abs(new[r * cols + c] - mean) <= 1e-7 * abs(mean) + 1e-12, (name, r, c)
PY
}
options=(--data train.jsonl --sequence_length 32 --train_batch_size 4 --quiet)
tiny_model tied
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' tiny.json >untied.json
"$TRIREME" init --config untied.json --tokenizer bytes --seed 7 --out untied --quiet
for model in tied untied; do
    grow $model
    expect 2 "$TRIREME" train --model $model --output refused "${options[@]}" --max_steps 1
    grep -q 'resize_vocab' stderr || fail "$(cat stderr)"
    tables=(model.embed_tokens.weight)
    [ $model = tied ] || tables+=(lm_head.weight)
    expect 0 "$TRIREME" train --model $model --output $model-grown "${options[@]}" --max_steps 1 --learning_rate 1e-30 --weight_decay 0 --resize_vocab
    check $model $model-grown "${tables[@]}"
    expect 0 "$TRIREME" eval --model $model-grown --data train.jsonl --sequence_length 32
    expect 0 "$TRIREME" train --model $model --output $model-one "${options[@]}" --max_steps 3 --resize_vocab
    step_lines $model-one/events.jsonl >one
    for layout in "--zero 3" "--tp 2" "--pp 2 --gradient_accumulation_steps 2"; do
        # shellcheck disable=SC2086
        expect 0 "$TRIREME" launch --nproc-per-node 2 train --model $model --output "$model$layout" "${options[@]}" --max_steps 3 --resize_vocab $layout
        python3 - $model-one/events.jsonl "$model$layout/events.jsonl" <<'PY' || fail "$model $layout"
import json, sys
a, b = ([e["loss"] for e in map(json.loads, open(p)) if e["event"] == "step"] for p in sys.argv[1:])
assert len(a) == len(b) == 3 and all(abs(x - y) < 1e-5 for x, y in zip(a, b)), (a, b)
PY
    done
    # the checkpoint has the grown tables; the run goes on from it
    expect 0 "$TRIREME" train --model $model --output $model-one "${options[@]}" --max_steps 4 --resize_vocab --lr_scheduler_type linear --allow_change schedule_steps --resume auto
done
expect 2 "$TRIREME" train --model tied --output adapter "${options[@]}" --max_steps 1 --resize_vocab --lora_r 4
