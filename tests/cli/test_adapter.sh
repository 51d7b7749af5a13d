#!/usr/bin/env bash
# Directories of adapters: what a run writes, that a killed one ends in the same bits, who reads it (eval, generate, another
# run, the verbs of ckpt), on which base, and what is refused before anything is written.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 1 --train_batch_size 4
    --max_steps 8 --save_steps 3 --learning_rate 1e-2 --weight_decay 0.1 --threads 1 --quiet)
lora=(--lora_r 4 --lora_alpha 6 --lora_dropout 0.1 --lora_modules_to_save model.norm --trainable_token_indices 101,32)
run() { "$TRIREME" train "${options[@]}" "${lora[@]}" "$@" >run.log; }
loss() { "$TRIREME" eval --data train.jsonl --sequence_length 32 --json "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])'; }
# close A B BOUND
close() { python3 -c 'import sys; a, b, c = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= c)' "$@" || fail "$1 is not $2 within $3"; }
names() { python3 - "$1" <<'PY'
import json, struct, sys
f = open(sys.argv[1], "rb")
head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
assert head.pop("__metadata__") == {"format": "pt"}
print("\n".join(sorted(head)))
PY
}

# What is there, and what is not: no weights of the base, no config.json.
run --output whole --verify_restore
[ "$(cd whole && echo *)" = 'README.md adapter_config.json adapter_model.safetensors checkpoint-3 checkpoint-6 checkpoint-8 events.jsonl latest logs special_tokens_map.json tokenizer.json tokenizer_config.json trireme' ] ||
    [ "$(cd whole && echo *.json *.safetensors)" = 'adapter_config.json special_tokens_map.json tokenizer.json tokenizer_config.json adapter_model.safetensors' ] || fail "$(ls whole)"
[ ! -e whole/checkpoint-8/config.json ] && [ ! -e whole/checkpoint-8/model.safetensors ] || fail "$(ls whole/checkpoint-8)"
for f in README.md adapter_config.json adapter_model.safetensors tokenizer.json trainer_state.json trireme/base.json trireme/state.json trireme/optim-0000-of-0001.safetensors; do
    [ -e "whole/checkpoint-8/$f" ] || fail "a checkpoint lacks $f"
done
names whole/adapter_model.safetensors >got
grep -qx 'base_model.model.model.layers.1.mlp.down_proj.lora_B.weight' got || fail "$(cat got)"
grep -qx 'base_model.model.model.norm.weight' got || fail "modules_to_save is not there: $(cat got)"
grep -qx 'base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta' got || fail "trained tokens are not there: $(cat got)"
[ "$(wc -l <got)" = 30 ] || fail "14 linears have two matrices each, one norm, and rows of two tokens: $(cat got)"
names whole/checkpoint-8/trireme/optim-0000-of-0001.safetensors | sed 's,^[^/]*/[^/]*/,,' | sort -u | sed 's/^/base_model.model./' >state
same got state
same whole/adapter_model.safetensors whole/checkpoint-8/adapter_model.safetensors

# Killed at every point of a save, and resumed: the same bits.
like_whole() {
    same whole/adapter_model.safetensors "$1/adapter_model.safetensors"
    same whole/checkpoint-8/trireme/optim-0000-of-0001.safetensors "$1/checkpoint-8/trireme/optim-0000-of-0001.safetensors"
    step_lines whole/events.jsonl >whole.steps
    step_lines "$1/events.jsonl" >"$1.steps"
    same whole.steps "$1.steps"
}
points=$(sed -n 's/^ *X("\(ckpt\.[a-z_]*\)").*/\1/p' "$source_dir/src/ckpt/commit.h")
for point in $points train.before_step ckpt.load_weights; do
    if TR_FAIL=$point:kill:2 run --output "$point" --save_total_limit 2 2>/dev/null; then
        [ "$point" = ckpt.load_weights ] || [ "$point" = ckpt.prune ] || fail "$point did not kill"
    fi
    run --output "$point" --save_total_limit 2 --resume auto
    like_whole "$point"
    rm -rf "$point"
done

# Ranks of any layout write the same files, and go on from each other's.
launch() { timeout 120 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" "${lora[@]}" --reproducible layout "$@" >run.log 2>&1 || { cat run.log; fail "$*"; }; }
"$TRIREME" train "${options[@]}" "${lora[@]}" --reproducible layout --output one >run.log
launch --output zero3 --zero 3
same one/adapter_model.safetensors zero3/adapter_model.safetensors
launch --output pipe --pp 2
same one/adapter_model.safetensors pipe/adapter_model.safetensors
names pipe/checkpoint-8/adapter_model.safetensors | cmp - got || fail "a pipeline saves other tensors"
launch --output tensor --tp 2
names tensor/checkpoint-8/adapter_model.safetensors | cmp - got || fail "tensor ranks save other tensors"
mkdir moved && cp -r pipe/checkpoint-3 moved/checkpoint-3
"$TRIREME" train "${options[@]}" "${lora[@]}" --reproducible layout --output moved --resume auto >run.log
same one/adapter_model.safetensors moved/adapter_model.safetensors

# Who reads it.
base=$(loss --model model) tuned=$(loss --model whole)
python3 -c "import sys; sys.exit(not $tuned < $base - 0.05)" || fail "the adapter does nothing: $base $tuned"
[ "$(loss --model whole/checkpoint-8)" = "$tuned" ] || fail "a checkpoint is another model than the output"
[ "$("$TRIREME" generate --model whole --prompt Line --max_new_tokens 8 --temperature 0)" = "$("$TRIREME" generate --model whole/checkpoint-8 --prompt Line --max_new_tokens 8 --temperature 0)" ] || fail generate
cp -r whole elsewhere && rm -r elsewhere/trireme elsewhere/tokenizer.json # as another tool writes it
sed -i 's,"base_model_name_or_path": "model","base_model_name_or_path": "../model",' elsewhere/adapter_config.json
[ "$(loss --model elsewhere)" = "$tuned" ] || fail "the base is not found beside the adapter"
sed -i 's,"base_model_name_or_path": "../model","base_model_name_or_path": "some/hub-name",' elsewhere/adapter_config.json
expect 2 "$TRIREME" eval --model elsewhere --data train.jsonl
grep -q 'some/hub-name.*--model_base DIR' stderr || fail "$(cat stderr)"
[ "$(loss --model elsewhere --model_base model)" = "$tuned" ] || fail "--model_base"
"$TRIREME" train --model whole --data train.jsonl --sequence_length 32 --train_batch_size 4 --max_steps 4 --learning_rate 1e-2 --quiet --output more >run.log
python3 -c "import sys; sys.exit(not $(loss --model more) < $tuned)" || fail "an adapter that is continued does not learn"
"$TRIREME" ckpt verify whole/checkpoint-8 >stdout
"$TRIREME" ckpt show whole/checkpoint-8 | grep -q lora || fail show
{ "$TRIREME" ckpt diff whole/checkpoint-6 whole/checkpoint-8 || true; } | grep -q 'tensors differ' || fail diff
"$TRIREME" ckpt reshard zero3/checkpoint-8 --output re >stdout
"$TRIREME" ckpt verify re/checkpoint-8 >stdout
same re/checkpoint-8/adapter_model.safetensors zero3/adapter_model.safetensors
expect 0 "$TRIREME" ckpt prune one --save_total_limit 1

# A search plans on the base, with what the adapter trains, and names the adapter in its command.
expect 0 "$TRIREME" plan --search --model whole --machine H100 --gpus 2 --train_batch_size 4 --sequence_length 32 --json
python3 - <<'PY'
import json
x = json.load(open("stdout"))
assert "--model whole" in x["command"], x["command"]
b = x["layouts"][0]["forecast"]["bytes"]
assert 0 < b["state"] < b["params"] / 4 and 0 < b["grads"] < b["params"] / 4, b # of the adapter alone
PY

# Another base, other tensors, several adapters: one line, nothing written.
"$TRIREME" init --config tiny.json --tokenizer bytes --seed 8 --out other --quiet
expect 2 "$TRIREME" train "${options[@]}" "${lora[@]}" --model other --output whole --resume auto
grep -q 'base was' stderr || fail "$(cat stderr)"
refuse() { # refuse TEXT ARGUMENTS...
    local text=$1
    shift
    expect 2 "$TRIREME" train --data train.jsonl --sequence_length 32 --max_steps 2 --output nothing --quiet "$@"
    grep -q -- "$text" stderr || fail "\"$text\" is not said: $(cat stderr)"
    [ ! -e nothing ] || fail "something was written"
}
refuse 'trained on another base.*(other weights)' --model whole --model_base other
sed 's/"r": 4/"r": 5/' -i elsewhere/adapter_config.json
refuse '28 of wrong shape' --model elsewhere --model_base model
sed 's/"r": 5/"r": 4/; s/"model.norm"/"q_proj"/' -i elsewhere/adapter_config.json
refuse 'missing:.*q_proj.weight' --model elsewhere --model_base model
mv elsewhere/adapter_model.safetensors elsewhere/adapter_model.bin
refuse 'save_pretrained' --model elsewhere --model_base model
mkdir tree && cp -r whole tree/a && cp -r more tree/b
refuse 'holds 2 adapters' --model tree
"$TRIREME" ckpt list tree --json | grep -c '"r": 4' | grep -qx 2 || fail "$("$TRIREME" ckpt list tree)"
refuse 'leave it out' --model whole --lora_r 8
expect 2 "$TRIREME" train "${options[@]}" "${lora[@]}" --output model
expect 2 "$TRIREME" train "${options[@]}" --output whole
grep -q 'an earlier run\|holds an adapter' stderr || fail "$(cat stderr)"

# Out again.
"$TRIREME" ckpt export whole --output exported >stdout
same exported/adapter_model.safetensors whole/adapter_model.safetensors
[ ! -e exported/trireme ] || fail "ours is exported"
expect 2 "$TRIREME" ckpt export whole --to hf --output bad
grep -q 'ckpt merge' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" ckpt export whole --to vllm --output bad
grep -q 'modules_to_save.*ckpt merge' stderr || fail "$(cat stderr)"
"$TRIREME" train "${options[@]}" --lora_r 4 --use_rslora --rank_pattern q_proj=2 --alpha_pattern down_proj=32 --output pattern >run.log
"$TRIREME" ckpt export pattern --to vllm --output vllm >stdout
python3 - <<'PY' || exit 1
import json, struct
c = json.load(open("vllm/adapter_config.json"))
assert (c["r"], c["lora_alpha"], c["rank_pattern"], c["alpha_pattern"], c["use_rslora"]) == (4, 4, {}, {}, False), c
f = open("vllm/adapter_model.safetensors", "rb")
head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
assert head["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]["shape"] == [4, 32], head
PY
close "$(loss --model pattern)" "$(loss --model vllm)" 1e-6

# Merge: the distance is that of rounding, and the merged model is a plain one.
expect 0 "$TRIREME" ckpt merge whole --onto original --out merged --rows 3 --data train.jsonl --json
python3 - <<'PY' || exit 1
import json
r = json.load(open("stdout"))
assert r["onto"] == "original" and r["rows"] == 3 and r["out"] == "merged", r
assert 0 <= r["max_logit_diff"]["original"] < 1e-5 and 0 <= r["kl"]["original"] < 1e-9, r
assert r["max_logit_diff"]["dequantized"] is None and r["kl"]["dequantized"] is None, r
PY
close "$(loss --model merged)" "$tuned" 1e-5
[ -e merged/config.json ] && [ -e merged/tokenizer.json ] && [ ! -e merged/adapter_config.json ] || fail "$(ls merged)"
expect 2 "$TRIREME" ckpt merge whole --onto dequantized --out bad
grep -q 'not quantised' stderr || fail "$(cat stderr)"

# Of a base in 4 bits: the merge onto the decoded weights is what the adapter was trained on; both distances are told.
for packing in '' --bnb_4bit_use_double_quant; do
    rm -rf packed original decoded
    "$TRIREME" train "${options[@]}" --lora_r 4 --load_in_4bit $packing --output packed >run.log
    expect 0 "$TRIREME" ckpt merge packed --onto dequantized --out decoded --json
    python3 - <<'PY' || exit 1
import json
d = json.load(open("stdout"))["max_logit_diff"]
assert d["dequantized"] < 1e-5 < 1e-3 < d["original"], d
PY
    # Who reads the adapter holds the base as the run did, without being told.
    live=$(loss --model packed 2>stderr)
    [ ! -s stderr ] || fail "the default says something: $(cat stderr)"
    [ "$live" = "$(loss --model packed --load_in_4bit $packing)" ] || fail "$live is not the loss on the packed base"
    close "$(loss --model decoded)" "$live" 1e-5
    expect 0 "$TRIREME" ckpt merge packed --out original
done
[ "$(loss --model packed --load_in_4bit false 2>stderr)" != "$live" ] || fail "an option does not win"
grep -q 'trained on a base in nf4:double; here the base is held in float32' stderr || fail "$(cat stderr)"
[ "$(loss --model packed --bnb_4bit_use_double_quant false 2>stderr)" != "$live" ] || fail "an option does not win"
grep -q 'held in nf4, as the options say' stderr || fail "$(cat stderr)"
expect 0 "$TRIREME" ckpt merge packed --load_in_4bit false --rows 1 --out wide
grep -q 'held in float32' stderr || fail "$(cat stderr)"
"$TRIREME" generate --model packed --prompt Line --max_new_tokens 8 --temperature 0 >one.txt
"$TRIREME" generate --model packed --load_in_4bit --bnb_4bit_use_double_quant --prompt Line --max_new_tokens 8 --temperature 0 >two.txt
same one.txt two.txt
"$TRIREME" train --model packed --data train.jsonl --sequence_length 32 --train_batch_size 4 --max_steps 1 --quiet --output packed-more >run.log
grep -q '"quant": "nf4:double"' packed-more/trireme/base.json || fail "a continued run holds the base otherwise: $(cat packed-more/trireme/base.json)"
"$TRIREME" train "${options[@]}" --lora_r 4 --base_dtype fp8 --output eight >run.log
[ "$(loss --model eight)" = "$(loss --model eight --base_dtype fp8)" ] || fail "fp8 is not taken from the record"
sed -i 's/"nf4:double"/"nf5:double"/' packed/trireme/base.json
expect 2 "$TRIREME" eval --model packed --data train.jsonl
grep -q '"nf5:double" is no way to hold a base' stderr || fail "$(cat stderr)"
"$TRIREME" ckpt export model --to bnb-4bit --output codes >stdout

# DoRA begins with the norms of the weights that it reads, decoded ones, as PEFT does.
"$TRIREME" ckpt export model --to bnb-4bit:double --output codes-double >stdout
"$TRIREME" ckpt export codes-double --to hf --output seen >stdout
"$TRIREME" train "${options[@]}" --max_steps 1 --learning_rate 1e-30 --lora_r 4 --use_dora --load_in_4bit --bnb_4bit_use_double_quant --output dora >run.log
python3 - <<'PY' || exit 1
import array, json, math, struct
def tensors(path):
    f = open(path, "rb")
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
    head.pop("__metadata__", None)
    assert all(t["dtype"] == "F32" for t in head.values())
    return {k: (t["shape"], array.array("f", data[slice(*t["data_offsets"])])) for k, t in head.items()}
def norm(w, row):
    (rows, cols), x = w
    return math.sqrt(sum(v * v for v in x[row * cols:(row + 1) * cols]))
got, seen, wide = (tensors(d + "/" + f) for d, f in (("dora", "adapter_model.safetensors"), ("seen", "model.safetensors"), ("model", "model.safetensors")))
n = far = 0
for key, (shape, m) in got.items():
    if key.endswith(".lora_magnitude_vector"):
        name = key[len("base_model.model."):-len(".lora_magnitude_vector")] + ".weight"
        for i, x in enumerate(m):
            assert abs(x - norm(seen[name], i)) <= 1e-6 * x, (name, i, x, norm(seen[name], i))
            far += abs(x - norm(wide[name], i)) > 1e-4 * x
            n += 1
assert n > 100 and far > n / 2, (n, far)
PY
"$TRIREME" train "${options[@]}" --model codes --lora_r 4 --output on-codes >run.log
expect 2 "$TRIREME" ckpt merge on-codes --out bad
grep -q 'merge onto dequantized' stderr || fail "$(cat stderr)"
expect 0 "$TRIREME" ckpt merge on-codes --onto dequantized --out decoded-codes
close "$(loss --model decoded-codes)" "$(loss --model on-codes)" 1e-5
"$TRIREME" train "${options[@]}" --lora_r 4 --lora_target_modules q_proj,embed_tokens --output embed >run.log
names embed/adapter_model.safetensors >got
grep -qx 'base_model.model.model.embed_tokens.base_layer.weight' got || fail "the matrix under an adapted embedding is not saved"
expect 2 "$TRIREME" ckpt merge embed --out bad
grep -q 'would untie.*--untie' stderr || fail "$(cat stderr)"
[ ! -e bad ] || fail "a refused merge wrote something"
"$TRIREME" ckpt merge embed --untie --out untied >stdout
close "$(loss --model untied)" "$(loss --model embed)" 1e-5

# A tied table that is trained whole stays tied, and is saved under both names, as PEFT does.
expect 2 "$TRIREME" train "${options[@]}" --lora_r 4 --lora_modules_to_save embed_tokens --output bad
grep -q 'one matrix.*--ensure_weight_tying.*--untie' stderr || fail "$(cat stderr)"
tied=(--lora_r 4 --lora_modules_to_save embed_tokens --ensure_weight_tying)
"$TRIREME" train "${options[@]}" "${tied[@]}" --output tied >run.log
names tied/adapter_model.safetensors >got
grep -qx base_model.model.lm_head.weight got && grep -qx base_model.model.model.embed_tokens.weight got || fail "$(cat got)"
python3 - <<'PY' || exit 1
import json, struct
def tensor(path, name):
    f = open(path, "rb")
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    at = f.tell()
    begin, end = head[name]["data_offsets"]
    f.seek(at + begin)
    return f.read(end - begin)
both = [tensor("tied/adapter_model.safetensors", "base_model.model." + n) for n in ("lm_head.weight", "model.embed_tokens.weight")]
assert both[0] == both[1] != tensor("model/model.safetensors", "model.embed_tokens.weight")
assert json.load(open("tied/adapter_config.json"))["ensure_weight_tying"] is True
PY
mkdir tied-again && cp -r tied/checkpoint-3 tied-again
"$TRIREME" train "${options[@]}" "${tied[@]}" --output tied-again --resume auto >run.log
same tied/adapter_model.safetensors tied-again/adapter_model.safetensors
"$TRIREME" launch --nproc-per-node 2 train "${options[@]}" "${tied[@]}" --pp 2 --output tied-pipe >run.log 2>&1 || fail "$(cat run.log)"
close "$(loss --model tied)" "$(loss --model tied-pipe)" 1e-4
expect 0 "$TRIREME" ckpt merge tied --rows 1 --out tied-merged
close "$(loss --model tied)" "$(loss --model tied-merged)" 1e-5
"$TRIREME" train --model tied --data train.jsonl --sequence_length 32 --train_batch_size 4 --max_steps 1 --quiet --output tied-more >run.log
names tied-more/adapter_model.safetensors | cmp - got || fail "a continued run saves other tensors"

# With --untie both are trained apart, as PEFT does: on any layout the same model, which merges into two matrices; a directory of this kind needs no option.
apart=(--lora_r 4 --lora_modules_to_save embed_tokens,lm_head --untie)
"$TRIREME" train "${options[@]}" "${apart[@]}" --output apart >run.log
python3 - <<'PY' || exit 1
import json, struct
def tensor(path, name):
    f = open(path, "rb")
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    at = f.tell()
    begin, end = head[name]["data_offsets"]
    f.seek(at + begin)
    return f.read(end - begin)
three = {tensor("apart/adapter_model.safetensors", "base_model.model." + n) for n in ("lm_head.weight", "model.embed_tokens.weight")}
three.add(tensor("model/model.safetensors", "model.embed_tokens.weight"))
assert len(three) == 3 and json.load(open("apart/adapter_config.json"))["ensure_weight_tying"] is False
PY
"$TRIREME" launch --nproc-per-node 4 train "${options[@]}" "${apart[@]}" --pp 2 --tp 2 --output apart-pipe >run.log 2>&1 || fail "$(cat run.log)"
close "$(loss --model apart)" "$(loss --model apart-pipe)" 1e-4
mkdir apart-again && cp -r apart/checkpoint-3 apart-again
"$TRIREME" train "${options[@]}" "${apart[@]}" --output apart-again --resume auto >run.log
same apart/adapter_model.safetensors apart-again/adapter_model.safetensors
expect 2 "$TRIREME" ckpt merge apart --out bad
grep -q 'would untie.*--untie' stderr || fail "$(cat stderr)"
expect 0 "$TRIREME" ckpt merge apart --untie --rows 1 --out apart-merged
close "$(loss --model apart)" "$(loss --model apart-merged)" 1e-5
"$TRIREME" train "${options[@]}" --lora_r 4 --lora_modules_to_save lm_head --untie --output apart-head >run.log
names apart-head/adapter_model.safetensors | grep -q embed_tokens && fail "an embedding that does not learn is saved"
"$TRIREME" train --model apart-head --data train.jsonl --sequence_length 32 --train_batch_size 4 --max_steps 1 --quiet --output apart-more >run.log
expect 2 "$TRIREME" train "${options[@]}" --model apart-head --untie --output bad
grep -q 'untie: the adapter in apart-head is continued as its adapter_config.json says' stderr || fail "$(cat stderr)"
[ ! -e bad ] || fail "a refused run wrote something"

# Positions are no part of what is tied.
cat >positions.json <<'END'
{"model_type": "gpt2", "vocab_size": 257, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32, "bos_token_id": 256, "eos_token_id": 256}
END
"$TRIREME" init --config positions.json --tokenizer bytes --out positions --quiet
"$TRIREME" train "${options[@]}" --model positions --lora_r 2 --lora_modules_to_save wpe --output wpe >run.log
expect 0 "$TRIREME" ckpt merge wpe --rows 1 --out wpe-merged
close "$(loss --model wpe)" "$(loss --model wpe-merged)" 1e-5
