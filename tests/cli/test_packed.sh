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

# generate reads a packed base as it reads any.
"$TRIREME" generate --model bnb-4bit --prompt "Line 1" --max_new_tokens 8 --quiet >one.txt || fail "generate from files"
"$TRIREME" generate --model model --load_in_4bit --prompt "Line 1" --max_new_tokens 8 --quiet >two.txt || fail "generate"
same one.txt two.txt

# A run without an adapter is refused with the way out, and so is a matrix that bitsandbytes packs the other way round.
expect 2 "$TRIREME" train --model model --data text.jsonl --output out --load_in_4bit --trainable '*norm*'
grep -q 'add --finetuning_type lora' stderr || fail "no way out: $(cat stderr)"
cat >gpt2.json <<'JSON'
{ "model_type": "gpt2", "vocab_size": 264, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64 }
JSON
"$TRIREME" init --config gpt2.json --tokenizer bytes --out conv --quiet
expect 2 "$TRIREME" eval --model conv "${options[@]}" --load_in_4bit
grep -q 'gpt2 has no matrix (out, in)' stderr stdout || fail "gpt2: $(cat stderr stdout)"
echo "a packed base is one model, whoever packed it"
