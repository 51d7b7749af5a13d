#!/usr/bin/env bash
# Exit codes and promises in the corners: options without effect, machine-readable answers, damaged data, numbers without meaning,
# names from files on a terminal, and directories that are not ours to write.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
export XDG_CACHE_HOME=$work/cache
tiny_text train.jsonl
tiny_model model
base=(--model model --sequence_length 32 --train_batch_size 2 --max_steps 2 --threads 1)
options=("${base[@]}" --data train.jsonl)
said() { grep -q -- "$1" stdout stderr || fail "no \"$1\" in: $(cat stdout stderr)"; }
is_json() { python3 -c 'import json, sys; json.loads(open("stdout").read(), parse_constant=lambda c: sys.exit(f"{c} is no JSON"))' ||
    fail "not JSON: $* printed $(head -c 300 stdout)"; }

# --json prints JSON, whatever else is asked.
for words in '--machine list' '--legal' '--legal --model model' '--model model' '--model model --show memory' \
    '--model model --machine H100' '--model model --machine H100 --search --gpus 8 --train_batch_size 8'; do
    expect 0 "$TRIREME" plan $words --json
    is_json plan $words
done
expect 2 "$TRIREME" plan --model model --show program --json

# Options without effect are said, wrong values are refused, both on one rank too.
expect 0 "$TRIREME" train "${options[@]}" --zero 2 --sp --sync last --cp_mode ulysses --pp_schedule gpipe --momentum 0.5 \
    --allow_change seed --output effects
for name in zero sp sync cp_mode pp_schedule momentum allow_change; do said "^.*$name has no effect with"; done
expect 2 "$TRIREME" train "${options[@]}" --pp_schedule nonsense --output no
said 'pp_schedule "nonsense" is not gpipe'
expect 2 "$TRIREME" train "${options[@]}" --allow_change foo --output no
said 'allow_change: foo is not an input of a run; the inputs are '
echo 'plain text' >plain.txt
expect 2 "$TRIREME" train "${base[@]}" --data plain.txt --data_format messages --output no
said 'plain.txt: data_format messages is of records'
# ... of records too, where the data has none that they are for.
for verb in train 'data check'; do
    expect 0 "$TRIREME" $verb --model model --data train.jsonl --sequence_length 32 --train_on last --chat_template chatml --chat_template_kwargs '{"a": 1}' --chat_date 2026-01-01 \
        --packing stream --long_documents cut $([ "$verb" = train ] && echo --max_steps 1 --output records)
    for name in 'train_on last' chat_template_kwargs chat_date 'long_documents cut'; do said "^.*$name has no effect"; done
done
expect 0 "$TRIREME" data check --model model --data train.jsonl --sequence_length 32
! grep -q 'has no effect' stdout || fail "$(cat stdout)"
expect 2 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --pp 2 --pp_schedule interleaved --pp_chunks 2 --gradient_accumulation_steps 1 --output no
said 'try --gradient_accumulation_steps 2 or --pp_chunks 1'
[ ! -e no ] || fail "a refused run left $(ls -A no)"

# Exit 1 is "no": checkpoints differ, a plan does not fit.
expect 0 "$TRIREME" train "${options[@]}" --save_steps 1 --output run
expect 1 "$TRIREME" ckpt diff run/checkpoint-1 run/checkpoint-2
expect 0 "$TRIREME" ckpt diff run/checkpoint-2 run/checkpoint-2
sed 's/"hidden_size": 32/"hidden_size": 16384/; s/"head_dim": 8/"head_dim": 1024/; s/"num_hidden_layers": 2/"num_hidden_layers": 80/' tiny.json >large.json
expect 1 "$TRIREME" plan --model large.json --machine H100 --sequence_length 128
said 'does not fit'
expect 1 "$TRIREME" plan --model large.json --machine H100 --sequence_length 128 --json
is_json plan

# A measurement of the disk that is killed leaves no file.
mkdir disk
"$TRIREME" bench disk --bytes_max 2G --output disk >/dev/null 2>&1 &
pid=$!
for _ in $(seq 500); do [ -z "$(find /proc/$pid/fd -lname '*trireme.bench*' 2>/dev/null)" ] || break; sleep 0.01; done
kill -9 $pid
wait $pid || true
[ -z "$(ls -A disk)" ] || fail "left in the directory: $(ls -A disk)"

# A last checkpoint that cannot be written is no success, though the model is there.
TR_FAIL=ckpt.before_manifest:error:2 expect 70 "$TRIREME" train "${options[@]}" --save_steps 1 --output unsaved
said 'the model is written, but the checkpoint of the last step 2 is not'
[ -e unsaved/model.safetensors ] || fail "no model: $(ls unsaved)"

# The trainer's state: two epochs are two, whatever the last batch holds.
expect 0 "$TRIREME" train --model model --data train.jsonl --sequence_length 32 --packing none --train_batch_size 7 --num_train_epochs 2 \
    --threads 1 --save_steps 0 --output epochs
python3 - <<'PY' || fail "trainer_state.json: $(head -5 epochs/checkpoint-*/trainer_state.json)"
import glob, json
s = json.load(open(glob.glob("epochs/checkpoint-*/trainer_state.json")[0]))
assert s["epoch"] == 2, s["epoch"]
PY

# Damaged data is bad input: 2, with file and place, and no restart.
gzip -k train.jsonl
head -c 200 train.jsonl.gz >short.jsonl.gz
expect 2 "$TRIREME" launch --max-restarts 3 train "${base[@]}" --data short.jsonl.gz --output gz
said 'short.jsonl.gz: byte 200: the file ends inside a compressed block, after [0-9]* bytes'
grep -q 'restart 1' stderr && fail "damaged data was tried again"
expect 0 "$TRIREME" data check --model model --data train.jsonl --sequence_length 32
find "$XDG_CACHE_HOME" -name '*.trtok' | head -n 1 | xargs head -c 500 >short.trtok
expect 2 "$TRIREME" launch --max-restarts 3 train "${base[@]}" --data short.trtok --output trtok
said 'short.trtok: byte 500: the file ends here'
grep -q 'restart 1' stderr && fail "a damaged shard was tried again"
shard=$(find "$XDG_CACHE_HOME" -name '*.trtok' | head -n 1)
mv "$shard" whole.trtok && mkdir "$shard"
expect 2 "$TRIREME" data check --model model --data train.jsonl --sequence_length 32
said 'is a directory, where a shard of tokens belongs; remove it'
rmdir "$shard" && mv whole.trtok "$shard"

# Numbers without meaning in config.json.
for edit in 's/"rope_theta": 10000.0/"rope_theta": 0/' 's/"rope_theta": 10000.0/"rope_theta": -5/' 's/"rms_norm_eps": 1e-05/"rms_norm_eps": -1/' \
    's/"initializer_range": 0.02/"initializer_range": -1/'; do
    sed "$edit" tiny.json >odd.json
    expect 2 "$TRIREME" init --config odd.json --tokenizer bytes --seed 7 --out odd
    said 'config.json: '
done

# Weights that overflow: eval says so in JSON, train names the layer.
cp -r model huge
python3 - <<'PY'
import json, struct
path = "huge/model.safetensors"
b = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", b[:8])[0]
h = json.loads(b[8:8 + n])
for part in ("gate_proj", "up_proj"):
    t = h[f"model.layers.1.mlp.{part}.weight"]
    begin, end = t["data_offsets"]
    size = {"F32": 4, "BF16": 2, "F16": 2}[t["dtype"]]
    for i in range(8 + n + begin, 8 + n + end, size):
        b[i:i + size] = struct.pack("<f", 3e38)[-size:]
open(path, "wb").write(b)
PY
expect 78 "$TRIREME" eval --model huge --data train.jsonl --sequence_length 32 --threads 1 --json
is_json eval
python3 -c 'import json; d = json.load(open("stdout")); assert d["loss"] is None and d["finite"] is False, d' || fail "$(cat stdout)"
expect 78 "$TRIREME" train "${options[@]}" --model huge --output overflow --max_steps 5
said 'first in the output of layer 1'
grep -q 'changed the loss of its neighbour' stdout stderr && fail "the proof blames the data: $(cat stderr)"
expect 0 "$TRIREME" train "${options[@]}" --fp8 --output eight
said 'isolation: not tested, because the scales of 8-bit products span documents'

# A gradient that is always 0 is mentioned: no token has a loss behind a weight of zeros.
cp -r model zeros
python3 - <<'PY'
import json, struct
path = "zeros/model.safetensors"
b = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", b[:8])[0]
b[8 + n:] = bytes(len(b) - 8 - n)
open(path, "wb").write(b)
PY
expect 0 "$TRIREME" train "${options[@]}" --model zeros --max_steps 12 --output still
said 'the gradient norm has been exactly 0 for 10 steps'

# Ids that the tokenizer lacks: the file and the line.
printf '{"input_ids": [1, 2, 3]}\n{"input_ids": [4, 261, 5]}\n' >ids.jsonl
expect 2 "$TRIREME" train "${base[@]}" --data ids.jsonl --output ids
said 'ids.jsonl:2: token id 261'

# Reading verbs leave the model's directory alone.
before=$(find model | sort)
expect 0 "$TRIREME" eval --model model --data train.jsonl --sequence_length 32 --threads 1
expect 0 "$TRIREME" data check --model model --data train.jsonl --sequence_length 32 --threads 1
[ "$before" = "$(find model | sort)" ] || fail "the model's directory has changed: $(find model)"

# Nor does merge; a .cache that another program has made there stays its own, and a directory that cannot be written is no obstacle.
expect 0 "$TRIREME" train "${options[@]}" --lora_r 2 --output lora
rm -rf lora/.cache && cp -r lora read && mkdir -p read/.cache/huggingface && chmod -R a-w read
before=$(find read | sort)
expect 0 "$TRIREME" ckpt merge read --data train.jsonl --rows 2 --output merged
expect 0 "$TRIREME" eval --model read --data train.jsonl --sequence_length 32 --threads 1
[ "$before" = "$(find read | sort)" ] || fail "the adapter's directory has changed: $(find read)"
chmod -R u+w read

# A prompt, or as many new tokens as were asked for, beyond the model's positions: refused with both numbers before any weight is read.
expect 2 "$TRIREME" generate --model model --prompt "$(printf '%0200d')"
said 'the prompt has 200 tokens, and the model has 128 positions'
expect 2 "$TRIREME" generate --model model --prompt abc --max_new_tokens 126
said 'try --max_new_tokens 125'
expect 0 "$TRIREME" generate --model model --prompt abc --max_new_tokens 125 --threads 1
expect 0 "$TRIREME" generate --model model --prompt "$(printf '%0100d')" --threads 1
expect 2 "$TRIREME" chat --model model --chat_template chatml --quiet <<<"$(printf '%0200d')"
said '0 of 128 positions are taken'

# chat asks for no more positions than the model has.
expect 0 "$TRIREME" chat --model model --chat_template chatml --max_new_tokens 2 --quiet <<<'hello'

# An output that is a file; a model's positions.
expect 2 "$TRIREME" train "${options[@]}" --output plain.txt
said 'output plain.txt is a file'
expect 0 "$TRIREME" train "${options[@]}" --sequence_length 256 --output long
said 'sequence_length 256 is beyond the 128 positions'
for words in 'plan --model model' 'eval --model model --data train.jsonl --threads 1' 'eval --model model --choices choices.jsonl --threads 1' \
    'data check --model model --data train.jsonl --threads 1'; do
    echo '{"context": "oars", "choices": ["170", "7"], "gold": 0}' >choices.jsonl
    expect 0 "$TRIREME" $words --sequence_length 256
    said 'sequence_length 256 is beyond the 128 positions'
    expect 0 "$TRIREME" $words --sequence_length 128
    ! grep -q 'is beyond' stdout stderr || fail "$words: $(cat stdout stderr)"
done

# Nothing from a file reaches a terminal raw.
name=$(printf 'evil\033]0;owned\007.json')
echo '[]' >"$name"
expect 2 "$TRIREME" train "${base[@]}" --data "$name" --output raw
python3 - <<'PY' || fail "control bytes in an error line"
text = open("stderr", "rb").read()
assert not any(c < 32 and c != 10 for c in text), text
PY
: >"it's.json"
expect 2 "$TRIREME" train "${base[@]}" --data "it's.json" --output raw
said "it's.json: this file has no document"
python3 - "$TRIREME" <<'PY' || fail "a model's escape bytes reach a terminal"
import os, pty, sys
prompt = "a\x1b[2Jb\x07"
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], ["trireme", "generate", "--model", "model", "--prompt", prompt, "--max_new_tokens", "1", "--threads", "1", "--quiet"])
out = b""
while True:
    try:
        piece = os.read(fd, 4096)
    except OSError:
        break
    if not piece:
        break
    out += piece
os.waitpid(pid, 0)
assert b"\x1b[2J" not in out and b"\x07" not in out and b"\\x1b[2J" in out, out
PY

# A checkpoint that is torn after it was verified: the next start takes the one before.
expect 0 "$TRIREME" train "${options[@]}" --save_steps 1 --output torn
TR_FAIL=resume.verified:stop:1:0:0 "$TRIREME" launch --max-restarts 3 train "${options[@]}" --max_steps 3 --allow_change schedule_steps \
    --save_steps 1 --output torn --resume >torn.log 2>&1 &
torn=$!
rank=
for _ in $(seq 1500); do # it stops itself between the two
    rank=$(cat /proc/$torn/task/$torn/children) || true
    [ -z "$rank" ] || ! grep -qs '^State:.T' /proc/${rank% }/status || break
    sleep 0.02
done
truncate -s 100 torn/checkpoint-2/model.safetensors
kill -CONT $rank
rc=0
wait $torn || rc=$?
[ $rc = 0 ] || fail "torn after it was verified: exit $rc: $(cat torn.log)"
grep -q 'resuming after step 1' torn.log || fail "it does not go on from the checkpoint before: $(cat torn.log)"

# A run that was killed lets go of its directory a moment later: a start right after it waits for that.
mkdir held
python3 -c 'import fcntl, time
f = open("held/.trireme.lock", "w")
fcntl.flock(f, fcntl.LOCK_EX)
open("is_held", "w")
time.sleep(0.6)' &
while [ ! -e is_held ]; do sleep 0.01; done
expect 0 "$TRIREME" train "${options[@]}" --output held

# A second launch into a live run is refused and leaves no trace there.
TR_FAIL=train.before_step:delay60000:2 "$TRIREME" launch train "${options[@]}" --max_steps 4 --quiet --output live >live.log 2>&1 &
live=$!
for _ in $(seq 1500); do
    ! grep -qs '"event":"step"' live/events.jsonl || break
    sleep 0.02
done
find live -type f ! -name 'phase-*' -exec sha256sum {} + | sort >before.txt
expect 2 "$TRIREME" launch train "${options[@]}" --max_steps 4 --resume --output live
said 'is being written by another run'
find live -type f ! -name 'phase-*' -exec sha256sum {} + | sort >after.txt
same before.txt after.txt
kill -9 $live # its rank ends with it
wait $live || true
