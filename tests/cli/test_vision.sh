#!/usr/bin/env bash
# Models of text and images: the text part is trained in place, every other tensor and every name is carried over, on any
# layout, and an adapter is of the text part alone.
. "$(dirname "$0")/common.sh"
python3 - <<'PY'
import json, random
random.seed(1)
with open("ids.jsonl", "w") as f:
    for i in range(48):
        f.write(json.dumps({"input_ids": [random.randrange(3, 48) for _ in range(20)]}) + "\n")
PY
cat >compare.py <<'PY'
# compare.py SOURCE OUTPUT: the same names; tensors of the text part differ, all others have the same bytes.
import glob, json, struct, sys
def tensors(directory):
    out = {}
    for name in glob.glob(directory + "/model*.safetensors"):
        data = open(name, "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for key, t in json.loads(data[8 : 8 + n]).items():
            if key != "__metadata__":
                out[key] = (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]])
    return out
a, b = tensors(sys.argv[1]), tensors(sys.argv[2])
assert set(a) == set(b), set(a) ^ set(b)
text = [k for k in a if "vis" not in k and "projector" not in k]
assert text and all(a[k] != b[k] for k in text), [k for k in text if a[k] == b[k]]
assert all(a[k] == b[k] for k in a if k not in text)
index = json.load(open(sys.argv[2] + "/model.safetensors.index.json"))
assert set(index["weight_map"]) == set(b)
PY
run=(--data ids.jsonl --sequence_length 20 --per_device_train_batch_size 2 --learning_rate 1e-2 --threads 1 --quiet --data_proof none)
for family in gemma3_vision mistral3 qwen2_5_vl; do
    expect 0 "$TRIREME" train --model "$source_dir/tests/golden/$family" "${run[@]}" --output "one-$family" --max_steps 2
    python3 compare.py "$source_dir/tests/golden/$family" "one-$family" || fail "$family: what is carried over"
done
grep -q '"architectures":.*Gemma3ForConditionalGeneration' one-gemma3_vision/config.json || fail "another class"

# Two ranks with sharded weights; a resume ends with the same bytes; the output is a model like its source.
expect 0 "$TRIREME" launch --nproc-per-node 2 train --model "$source_dir/tests/golden/gemma3_vision" "${run[@]}" --zero 3 --output two --max_steps 4 --save_steps 2
python3 compare.py "$source_dir/tests/golden/gemma3_vision" two || fail "two ranks: what is carried over"
cp -r two again
rm -r again/checkpoint-4 again/model*
expect 0 "$TRIREME" launch --nproc-per-node 2 train --model "$source_dir/tests/golden/gemma3_vision" "${run[@]}" --zero 3 --output again --max_steps 4 --save_steps 2 --resume_from_checkpoint auto
for file in two/model*; do same "$file" "again/${file#two/}"; done
expect 0 "$TRIREME" ckpt verify two/checkpoint-4
expect 0 "$TRIREME" train --model two "${run[@]}" --output next --max_steps 1

# An adapter names modules of the text part only, and merges into a whole model.
expect 0 "$TRIREME" train --model "$source_dir/tests/golden/mistral3" "${run[@]}" --output lora --max_steps 2 --lora_r 2 --lora_target_modules q_proj,v_proj
grep -qF '"target_modules": "(model\\.language_model\\.(.*\\.)?)?(q_proj|v_proj)"' lora/adapter_config.json || fail "targets: $(grep -A3 target_modules lora/adapter_config.json)"
expect 0 "$TRIREME" train --model "$source_dir/tests/golden/mistral3" "${run[@]}" --output layer --max_steps 1 --lora_r 2 --lora_target_modules q_proj --layers_to_transform 1
expect 0 "$TRIREME" train --model "$source_dir/tests/golden/mistral3" "${run[@]}" --output regex --max_steps 1 --lora_r 2 --lora_target_modules '.*1\..*q_proj'
python3 - <<'PY' || fail "targets of one layer: $(grep -A3 target_modules layer/adapter_config.json)"
import json
for run in "layer", "regex":
    assert json.load(open(run + "/adapter_config.json"))["target_modules"] == ["model.language_model.layers.1.self_attn.q_proj"]
PY
expect 0 "$TRIREME" train --model layer "${run[@]}" --output layer2 --max_steps 1
cp -r "$source_dir/tests/golden/mistral3" base # with a tokenizer of the adapter's own, the rest still comes from the base
echo '{"image_processor_type": "PixtralImageProcessor"}' >base/preprocessor_config.json
echo '{"temperature": 0.5}' >base/generation_config.json
cp "$source_dir/tests/golden/tokenizers/gpt2/tokenizer.json" lora/
expect 0 "$TRIREME" ckpt merge lora --model_base base --output merged
for file in merged/tokenizer.json merged/preprocessor_config.json merged/generation_config.json; do
    [ -e "$file" ] || fail "a merge loses $file"
done
[ "$(grep -c vision_tower merged/model.safetensors.index.json)" = "$(python3 -c "
import json, struct
d = open('$source_dir/tests/golden/mistral3/model.safetensors', 'rb').read()
print(sum('vision_tower' in k for k in json.loads(d[8 : 8 + struct.unpack('<Q', d[:8])[0]])))")" ] || fail "a merge loses the part that sees"

# Nothing to carry over from: refused by name.
expect 2 "$TRIREME" init --config "$source_dir/tests/golden/gemma3_vision/config.json" --out new
grep -q 'model_type gemma3: a model of text and images is not made anew' stderr || fail "no reason: $(cat stderr)"
