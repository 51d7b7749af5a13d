#!/usr/bin/env bash
# A base in 4 bits: what load_in_4bit packs, a directory that bitsandbytes could have written holds already, and what that
# directory decodes to are one model, bit for bit in float32; the plan knows the bytes, and says which splits are legal.
. "$(dirname "$0")/common.sh"
tiny_text text.jsonl
tiny_model model
options=(--data text.jsonl --sequence_length 32 --threads 1 --json)
loss() { # loss MODEL ARGUMENTS...
    "$TRIREME" eval --model "$1" "${options[@]}" "${@:2}" >eval.json 2>eval.err || {
        cat eval.json eval.err
        fail "eval $*"
    }
    python3 -c 'import json; print(json.loads(open("eval.json").read().splitlines()[-1])["loss"])'
}

wide=$(loss model)
for form in bnb-4bit bnb-4bit:double bnb-4bit:fp4 bnb-4bit:fp4:double; do
    choice=(--load_in_4bit)
    case $form in *fp4*) choice+=(--bnb_4bit_quant_type fp4) ;; esac
    case $form in *double) choice+=(--bnb_4bit_use_double_quant) ;; esac
    "$TRIREME" ckpt export model --to "$form" --output "$form" --quiet >export.log 2>&1 || fail "export $form: $(cat export.log)"
    here=$(loss model "${choice[@]}")
    there=$(loss "$form")
    [ "$here" = "$there" ] || fail "$form: packed here $here, taken from files $there"
    [ "$here" != "$wide" ] || fail "$form: nothing was packed"
    # The same file decoded: every parameter learns, so none is held packed.
    "$TRIREME" ckpt export "$form" --to hf --output "$form-wide" --quiet >export.log 2>&1 || fail "decode $form: $(cat export.log)"
    [ "$here" = "$(loss "$form-wide")" ] || fail "$form: packed $here, decoded $(loss "$form-wide")"
done

# Eight bits: nearer to the wide model than four, and no second type beside the first.
eight=$(loss model --base_dtype fp8)
python3 -c "w, e, f = $wide, $eight, $(loss model --load_in_4bit); assert e != w and abs(e - w) < abs(f - w), (w, e, f)" ||
    fail "fp8 is not between"
expect 2 "$TRIREME" eval --model model "${options[@]}" --load_in_4bit --base_dtype fp8
grep -q 'two types of one base' stderr || fail "two types: $(cat stderr)"

# generate reads a packed base as it reads any.
"$TRIREME" generate --model bnb-4bit --prompt "Line 1" --max_new_tokens 8 --quiet >one.txt || fail "generate from files"
"$TRIREME" generate --model model --load_in_4bit --prompt "Line 1" --max_new_tokens 8 --quiet >two.txt || fail "generate"
same one.txt two.txt

# An adapter on a packed base: ZeRO 3 gathers grains and ends in the losses of one rank; a resumed run ends in its bits.
train=(--model model --data text.jsonl --sequence_length 32 --per_device_train_batch_size 2 --train_batch_size 8
    --max_steps 4 --save_steps 2 --learning_rate 1e-2 --threads 1 --finetuning_type lora --lora_r 4 --load_in_4bit --quiet)
run() { # run RANKS OUTPUT ARGUMENTS...
    timeout 120 "$TRIREME" launch --nproc-per-node "$1" train "${train[@]}" --output "$2" "${@:3}" >run.log 2>&1 || {
        cat run.log
        fail "train $*"
    }
}
losses() { step_lines "$1/events.jsonl" | sed -n 's/.*loss=\([0-9.]*\) .*/\1/p'; }
run 1 one
run 2 two --dp 2 --zero 3
run 2 pipe --pp 2
for other in two pipe; do
    paste <(losses one) <(losses $other) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-6 * $1 || NF != 2) exit 1 }' ||
        fail "$other: $(losses one) and $(losses $other)"
done
cp -r one again
rm -rf again/checkpoint-4 again/events.jsonl
run 1 again --resume_from_checkpoint again/checkpoint-2
same one/adapter_model.safetensors again/adapter_model.safetensors

# A split that cuts a block is refused with the numbers.
expect 2 "$TRIREME" plan "${train[@]}" --tp 2
grep -q 'packed base: block .* x tp divides num_attention_heads x head_dim, which is 32' stderr || fail "a cut block: $(cat stderr)"

# Llama 70B in 4 bits on two GPUs: 0.5625 bytes a weight of a layer, 2 a weight of embedding and head, half on each.
"$TRIREME" plan --model "$source_dir/bench/models/llama-70b.json" --load_in_4bit --finetuning_type lora --tp 2 --bf16 \
    --sequence_length 512 --per_device_train_batch_size 1 --recompute block --device cuda >plan.txt || fail "plan of 70B"
python3 - <<'PY' || fail "the plan of 70B: $(cat plan.txt)"
import re
text = open("plan.txt").read()
params = int(re.search(r"^  params +(\d+)", text, re.M).group(1))
total = sum(int(re.search(rf"^  {a} +(\d+)", text, re.M).group(1)) for a in ("params", "grads", "optim", "acts", "work"))
layers = 80 * (8192 * 8192 * 2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
want = layers * 36 / 64 / 2 + 2 * 128256 * 8192 * 2 / 2
assert 0 <= params - want < 0.02 * want, (params, want)
assert total < 26e9, total
PY

# Llama 8B in 4 bits, 4 rows of 2048 tokens with recompute: 10 GiB of GPU memory. Most of it is weights and what blocks keep.
"$TRIREME" plan --model "$source_dir/bench/models/llama-8b.json" --load_in_4bit --lora_r 16 --bf16 --sequence_length 2048 \
    --per_device_train_batch_size 4 --recompute block --device cuda >plan.txt || fail "plan of 8B"
python3 - <<'PY' || fail "the plan of 8B: $(cat plan.txt)"
import re
text = open("plan.txt").read()
total = sum(int(re.search(rf"^  {a} +(\d+)", text, re.M).group(1)) for a in ("params", "grads", "optim", "acts", "work"))
assert total <= 10 << 30, total
PY

# A run without an adapter is refused with the way out.
expect 2 "$TRIREME" train --model model --data text.jsonl --output out --load_in_4bit --trainable '*norm*'
grep -q 'add --finetuning_type lora' stderr || fail "no way out: $(cat stderr)"

# GPT-2 has matrices (in, out), which bitsandbytes packs transposed: a run on them is the merged model, whose weights are packed on
# another way. They are not split.
cat >gpt2.json <<'JSON'
{ "model_type": "gpt2", "vocab_size": 264, "n_embd": 128, "n_layer": 1, "n_head": 2, "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0 }
JSON
"$TRIREME" init --config gpt2.json --tokenizer bytes --out conv --quiet
conv=(--model conv --data text.jsonl --sequence_length 32 --train_batch_size 4 --max_steps 2 --learning_rate 1e-2 --threads 1 --quiet
    --lora_r 4 --use_dora --load_in_4bit --bnb_4bit_use_double_quant)
[ "$(loss conv)" != "$(loss conv --load_in_4bit)" ] || fail "nothing of gpt2 is packed"
"$TRIREME" train "${conv[@]}" --output conv-one >run.log
timeout 120 "$TRIREME" launch --nproc-per-node 2 train "${conv[@]}" --zero 3 --output conv-two >run.log 2>&1 || fail "$(cat run.log)"
paste <(losses conv-one) <(losses conv-two) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-6 * $1 || NF != 2) exit 1 }' || fail "zero 3 of gpt2"
expect 0 "$TRIREME" ckpt merge conv-one --onto dequantized --rows 2 --out conv-merged --json
python3 -c 'import json; d = json.load(open("stdout"))["max_logit_diff"]; assert d["dequantized"] < 1e-5 < 1e-3 < d["original"], d' || fail "merge of gpt2"
expect 2 "$TRIREME" plan "${conv[@]}" --tp 2
grep -q '(in, out).*not split; use --tp 1' stderr stdout || fail "tp of gpt2: $(cat stderr stdout)"
echo "a packed base is one model, whoever packed it"
