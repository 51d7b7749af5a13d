#!/usr/bin/env bash
# ckpt export for other runtimes. The files of all golden models are those that llama.cpp and PyPI's gguf were shown
# (tests/golden/check_gguf.py); tests/golden/gguf.txt has their hashes, and UPDATE=1 writes it again.
. "$(dirname "$0")/common.sh"
golden=$source_dir/tests/golden

# ---- every family, and every type of one model that is wide enough for blocks of 256 ----
hash_of() { # MODEL TO: its line of the list
    rm -rf out
    if "$TRIREME" ckpt export "$1" --to "$2" --output out --rows 1 --quiet >stdout 2>stderr; then
        echo "$(basename "$1") $2 $(cat out/*.gguf | sha256sum | cut -c1-16)"
    else
        echo "$(basename "$1") $2 refused: $(sed -n 's/.*computes no [^ ]* with \(.*\), which this model has.*/\1/p; s/.*has no architecture for.*/no architecture/p' stderr)"
    fi
}
cat >wide.json <<'JSON'
{ "model_type": "llama", "vocab_size": 264, "hidden_size": 256, "intermediate_size": 352, "num_hidden_layers": 8,
  "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-05,
  "max_position_embeddings": 128, "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": true,
  "bos_token_id": 256, "eos_token_id": 256 }
JSON
"$TRIREME" init --config wide.json --tokenizer bytes --seed 7 --out wide --quiet
{
    for dir in "$golden"/*/model.safetensors; do hash_of "$(dirname "$dir")" gguf:f16; done
    for to in f16 bf16 q8_0 q4_0 q4_k_m q6_k; do hash_of wide "gguf:$to"; done
} >list
if [ "${UPDATE:-}" = 1 ]; then cp list "$golden/gguf.txt"; fi
diff "$golden/gguf.txt" list >&2 || fail "files differ from those that were compared with llama.cpp"

cat >gguf_head.py <<'PY'
"""head(FILE): keys, and of each tensor its data from its first byte on."""
import struct

def head(path):
    b = open(path, "rb").read()
    at = 0
    def take(f):
        nonlocal at
        v, = struct.unpack_from("<" + f, b, at)
        at += struct.calcsize("<" + f)
        return v
    def text():
        nonlocal at
        n = take("Q")
        at += n
        return b[at - n:at].decode()
    def value(t):
        if t == 8:
            return text()
        if t == 9:
            e, n = take("I"), take("Q")
            return [value(e) for _ in range(n)]
        return take({4: "I", 5: "i", 6: "f", 7: "?"}[t])
    assert take("I") == 0x46554747 and take("I") == 3
    n_tensors, n_keys = take("Q"), take("Q")
    keys = {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    where = {}
    for _ in range(n_tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        take("I")
        where[name] = take("Q"), dims
    start = (at + 31) // 32 * 32
    return keys, {name: (b[start + o:], dims) for name, (o, dims) in where.items()}
PY

# ---- longrope: llama.cpp's context has always room for more tokens than a tiny one was asked for; a model that never needs the long factors has none ----
expect 0 "$TRIREME" ckpt export "$golden/phi3_old" --to gguf:f16 --output phi-long --rows 1
grep -q 'longrope: .* room for more than 40 tokens.* -c 40' stdout || fail "the context is not spoken of: $(cat stdout)"
cp -r "$golden/phi3_old" phi && sed -i 's/"max_position_embeddings": 64/"max_position_embeddings": 40/' phi/config.json
expect 0 "$TRIREME" ckpt export phi --to gguf:f16 --output phi-short --rows 1
! grep -q longrope stdout || fail "no text is so long: $(cat stdout)"
PYTHONPATH=. python3 - phi-long/*.gguf phi-short/*.gguf <<'PY' || fail "factors of longrope"
import sys
from gguf_head import head
for path, is_same in (sys.argv[1], False), (sys.argv[2], True):
    t = head(path)[1]
    long, short = (data[:4 * dims[0]] for data, dims in (t["rope_factors_long.weight"], t["rope_factors_short.weight"]))
    assert (long == short) == is_same, path
PY

# ---- windows: in cohere2 they decide which layers rotate; gemma2 has them unless the file says better ----
full_everywhere() { # MODEL MORE
    rm -rf full
    cp -r "$golden/$1" full
    python3 -c 'import json, sys
c = json.load(open("full/config.json"))
c.update(json.loads(sys.argv[1]), layer_types=["full_attention"] * c["num_hidden_layers"])
json.dump(c, open("full/config.json", "w"))' "${2:-{\}}"
}
full_everywhere cohere2
expect 2 "$TRIREME" ckpt export full --to gguf:f16 --output bad
grep -q 'computes no cohere2 with full attention in every layer' stderr || fail "$(cat stderr)"
full_everywhere gemma2 '{"query_pre_attn_scalar": 8}'
expect 0 "$TRIREME" ckpt export full --to gguf:f16 --output gemma2 --rows 1
PYTHONPATH=. python3 - gemma2/*.gguf <<'PY' || fail "windows of gemma2"
import sys
from gguf_head import head
k = head(sys.argv[1])[0]
assert all(k["gemma2.attention.sliding_window_pattern"]) and k["gemma2.attention.sliding_window"] == k["gemma2.context_length"], k
PY

# ---- what is printed and written beside the weights ----
expect 0 "$TRIREME" ckpt export wide --to ollama --output big --json
python3 - <<'PY' || fail "json: $(cat stdout)"
import json, os
j = json.loads(open("stdout").read().splitlines()[-1])
assert j["to"] == "ollama" and j["out"] == "big" and j["bytes"] == os.path.getsize("big/model-Q4_K_M.gguf"), j
assert 0 < j["kl"] < 0.01 and 0 < j["max_logit_diff"] < 1, j
assert "ollama create big -f Modelfile" in j["next"] and "hf upload ORG/big big ." in j["next"], j
PY
grep -qx 'FROM ./model-Q4_K_M.gguf' big/Modelfile || fail "Modelfile: $(cat big/Modelfile)"
grep -qx 'PARAMETER stop "<|endoftext|>"' big/Modelfile || fail "Modelfile: $(cat big/Modelfile)"
head -3 big/README.md | grep -qx 'library_name: gguf' || fail "card: $(cat big/README.md)"
grep -q '^\*.gguf filter=lfs' big/.gitattributes || fail "no .gitattributes"
PYTHONPATH=. python3 - big/model-Q4_K_M.gguf <<'PY' || fail "keys"
import sys
from gguf_head import head
k = head(sys.argv[1])[0]
assert k["general.architecture"] == "llama" and k["general.file_type"] == 15 and k["general.quantization_version"] == 2, k
assert k["llama.attention.head_count_kv"] == 2 and k["llama.context_length"] == 128 and k["llama.rope.dimension_count"] == 64, k
assert len(k["tokenizer.ggml.tokens"]) == 264 and k["tokenizer.ggml.tokens"][256] == "<|endoftext|>", k
assert k["tokenizer.ggml.token_type"][256] == 3 and k["tokenizer.ggml.token_type"][260] == 5, k
assert k["tokenizer.ggml.eos_token_id"] == 256 and k["tokenizer.ggml.model"] == "gpt2" and not k["tokenizer.ggml.add_bos_token"], k
PY
expect 2 "$TRIREME" ckpt export wide --to gguf:f16 --output big # it is there
grep -q 'is no empty directory' stderr || fail "$(cat stderr)"
expect 0 "$TRIREME" ckpt export wide --to vllm --output served
grep -q '^vllm serve served$' stdout || fail "no line to serve it: $(cat stdout)"
grep -q 'mean KL divergence 0, largest difference of a logit 0$' stdout || fail "a copy differs: $(cat stdout)"
grep -qx 'library_name: transformers' served/README.md || fail "card: $(cat served/README.md)"
expect 0 "$TRIREME" ckpt export wide --to gguf:q8_0 --rows 0 --output quick
grep -q 'not compared' stdout || fail "$(cat stdout)"

# ---- what is in the way is said before the work, and nothing there changes ----
tiny_text train.jsonl
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 16/' wide.json >deep.json
"$TRIREME" init --config deep.json --tokenizer bytes --out deep --quiet
"$TRIREME" train --model deep --data train.jsonl --lora_r 2 --sequence_length 32 --train_batch_size 1 --max_steps 1 --output lora --quiet >run.log
cp wide/model.safetensors weights
for verb in 'ckpt merge lora' 'ckpt export wide --to bnb-4bit' 'ckpt export wide --to hf' 'init --config deep.json'; do
    expect 2 "$TRIREME" $verb --output wide
    grep -qE 'is no empty directory|already holds' stderr || fail "$verb: $(cat stderr)"
    same wide/model.safetensors weights
done
mkdir mounted
if mount -t tmpfs -o size=64m tmpfs mounted 2>/dev/null; then
    trap 'umount "$work/mounted"; rm -rf "$work"' EXIT
    expect 2 "$TRIREME" ckpt export wide --to hf --output mounted/
    grep -q 'mounted/ is a mount point.*mounted/model$' stderr || fail "$(cat stderr)"
    expect 0 "$TRIREME" init --config wide.json --tokenizer bytes --out mounted --quiet
    [ -e mounted/config.json ] || fail "no model in what is mounted"
fi

cp -r lora torn && rm torn/adapter_config.json
expect 2 "$TRIREME" ckpt export torn --to vllm --output left
grep -q 'torn is neither a checkpoint, .* nor an adapter' stderr || fail "$(cat stderr)"

# ---- Ctrl-C, and what a scheduler sends: the program ends by the signal, and no half of a directory stays ----
python3 - "$TRIREME" <<'PY' || fail "an export that is stopped"
import glob, os, signal, subprocess, sys, time
verbs = ["ckpt export wide --to gguf:q8_0 --rows 400", "ckpt export wide --to hf --rows 400", "ckpt export deep --to bnb-4bit",
         "ckpt merge lora --rows 1", "init --config deep.json --tokenizer bytes"]
for sig in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1:
    for verb in verbs if sig in (signal.SIGINT, signal.SIGUSR1) else verbs[:2]:
        p = subprocess.Popen([sys.argv[1], *verb.split(), "--output", "stopped"], stdout=subprocess.DEVNULL)
        while not glob.glob("stopped*/*") and p.poll() is None:
            time.sleep(0.001)
        p.send_signal(sig)
        assert p.wait() == -sig, (sig, verb, p.returncode)
        assert not glob.glob("stopped*"), (sig, verb, glob.glob("stopped*"))
p = subprocess.run(["sh", "-c", "trap '' INT; kill -INT $$; exec \"$0\" ckpt export wide --to hf --output ignored --rows 1 --quiet", sys.argv[1]], stdout=subprocess.DEVNULL)
assert p.returncode == 0 and os.path.isdir("ignored"), "a signal that is ignored was taken"
PY

# ---- the card of a checkpoint, and the template of its training ----
cat >chat.jsonl <<'JSON'
{"messages": [{"role": "user", "content": "How many banks of oars?"}, {"role": "assistant", "content": "Three."}]}
{"messages": [{"role": "user", "content": "How many rowers?"}, {"role": "assistant", "content": "One hundred and seventy."}]}
JSON
python3 - <<'PY' # a tokenizer with the tokens of ChatML
import json, shutil
shutil.copytree("wide", "base")
t = json.load(open("base/tokenizer.json"))
for i, s in enumerate(("<|im_start|>", "<|im_end|>")):
    t["added_tokens"].append({**t["added_tokens"][-1], "id": 257 + i, "content": s})
json.dump(t, open("base/tokenizer.json", "w"))
PY
"$TRIREME" train --model base --data chat.jsonl --eval_data chat.jsonl --eval_steps 1 --chat_template chatml --sequence_length 64 --train_batch_size 1 --max_steps 2 --save_steps 2 \
    --output run --quiet >/dev/null
expect 0 "$TRIREME" ckpt export run/checkpoint-2 --to gguf:q8_0 --output talk
grep -q 'type: perplexity' talk/README.md || fail "no result: $(cat talk/README.md)"
grep -q 'trireme train --model base' talk/README.md || fail "no command: $(cat talk/README.md)"
grep -q '^| learning_rate | 5e-05 |$' talk/README.md && ! grep -q simpo_gamma talk/README.md || fail "not what a reader wants: $(cat talk/README.md)"
# The output of the run has the facts of its newest checkpoint, as long as the weights are the same.
expect 0 "$TRIREME" ckpt export run --to hf --output whole
grep -q 'type: perplexity' whole/README.md && grep -q 'trireme train --model base' whole/README.md || fail "the card of an output: $(cat whole/README.md)"
cp -r run another && cp base/model.safetensors another/
expect 0 "$TRIREME" ckpt export another --to hf --output other
! grep -q 'To train it again' other/README.md || fail "the card of other weights: $(cat other/README.md)"
# Named sets of evaluation data are results of their own.
"$TRIREME" train --model base --data chat.jsonl --eval_data one=chat.jsonl --eval_data two=chat.jsonl --eval_steps 1 --chat_template chatml --sequence_length 64 --train_batch_size 1 \
    --max_steps 2 --output named --quiet >/dev/null
expect 0 "$TRIREME" ckpt export named --to hf --output sets
[ "$(grep -cE '^      name: "(one|two)"$' sets/README.md)" = 2 ] || fail "results: $(cat sets/README.md)"
cp -r run/checkpoint-2 changed
rm -r changed/trireme
python3 - <<'PY'
import json
g = json.load(open("changed/generation_config.json"))
assert 258 in g["eos_token_id"], g
g["eos_token_id"] = [256]
json.dump(g, open("changed/generation_config.json", "w"))
PY
for to in hf gguf:f16 ollama; do
    expect 2 "$TRIREME" ckpt export changed --to "$to" --output bad
    grep -q 'ends a turn with <|im_end|> (id 258)' stderr || fail "$(cat stderr)"
done
echo '{"eos_token_id": 5}' >changed/generation_config.json
expect 2 "$TRIREME" ckpt export changed --to gguf:f16 --output bad
grep -q "eos_token <|endoftext|> is id 256" stderr || fail "$(cat stderr)"
cp -r run/checkpoint-2 changed2
printf '{{ messages[0].content }}' >changed2/chat_template.jinja # not the template of the training
! "$TRIREME" ckpt export changed2 --to gguf:f16 --output bad >stdout 2>stderr || fail "another template was exported"
grep -q 'chat_template.jinja: .*the manifest says' stderr || fail "$(cat stderr)"
[ -z "$(ls -d bad* 2>/dev/null)" ] || fail "left behind: $(ls -d bad*)"
