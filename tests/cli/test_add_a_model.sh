#!/usr/bin/env bash
# docs/guide/add-a-model.md is complete: OPT is taken out of a copy of the sources, and what the page says puts it back. The
# page shows the code of src/model/opt.c, and the program that it makes plans and trains OPT as this one does.
. "$(dirname "$0")/common.sh"
build=$(dirname "$TRIREME")
[ -f "$build/build.ninja" ] && [ -f "$build/compile_commands.json" ] || exit 77
mkdir tree
cp -r "$source_dir/src" tree/
rm tree/src/model/opt.c
sed -i 's/&tr_arch_opt, *//' tree/src/model/models.c
sed -i 's/tr_arch_opt, *//' tree/src/model/model_impl.h
if grep -rn tr_arch_opt tree/src; then fail "OPT is still in the copy"; fi
python3 "$source_dir/tests/cli/follow.py" "$source_dir/docs/guide/add-a-model.md" tree "$build" followed || fail "the page"
same tree/src/model/opt.c "$source_dir/src/model/opt.c"

cat >opt.json <<'JSON'
{ "model_type": "opt", "vocab_size": 264, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "max_position_embeddings": 64, "word_embed_proj_dim": 32, "dropout": 0.0, "bos_token_id": 256, "eos_token_id": 256 }
JSON
tiny_text data.jsonl
for binary in "$TRIREME" ./followed; do
    name=$(basename "$binary")
    "$binary" plan --model opt.json --sequence_length 32 --tp 2 --show program >"$name.program"
    "$binary" init --config opt.json --tokenizer bytes --seed 3 --out "$name.model" --quiet
    "$binary" launch --nproc-per-node 2 train --model "$name.model" --data data.jsonl --output "$name.out" --sequence_length 32 \
        --max_steps 3 --tp 2 --quiet >log 2>&1 || { cat log; fail "train with $name"; }
done
same trireme.program followed.program
same trireme.out/model.safetensors followed.out/model.safetensors
