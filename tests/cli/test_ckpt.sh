#!/usr/bin/env bash
# The verbs of `ckpt`, and what a resume refuses: changed inputs by name (C14), a newer format (C15), an older step named by
# hand sets the newer ones aside.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --max_steps 8 --save_steps 2 --learning_rate 1e-2 --train_batch_size 4
    --quiet)
"$TRIREME" train "${options[@]}" --output one >run.log
"$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero 1 --output two >run.log

[ "$("$TRIREME" ckpt list one | wc -l)" = 5 ] || fail "$("$TRIREME" ckpt list one)"
"$TRIREME" ckpt list one --json | python3 -c 'import json,sys; r=[json.loads(l) for l in sys.stdin]; assert [x["step"] for x in r]==[8,6,4,2]'
"$TRIREME" ckpt show two/checkpoint-8 >show.txt
for want in 'launch --nproc-per-node 2' 'data_hash' 'tokenizer_hash' 'learning_rate' 'build' 'git_commit' 'step  *8'; do
    grep -q -- "$want" show.txt || fail "show lacks $want: $(cat show.txt)"
done
# A checkpoint of two ranks as one rank writes it: two files of optimizer state become one, the tensors stay.
"$TRIREME" ckpt reshard two/checkpoint-8 --output re >stdout
"$TRIREME" ckpt verify re/checkpoint-8 >stdout
[ -e two/checkpoint-8/trireme/optim-0001-of-0002.safetensors ] && [ -e re/checkpoint-8/trireme/optim-0000-of-0001.safetensors ] ||
    fail "reshard: $(ls re/checkpoint-8/trireme)"
# Where a run is at work nothing else writes.
python3 - "$TRIREME" <<'PY' || fail "a reshard into a live run"
import fcntl, os, subprocess, sys
os.mkdir("live")
with open("live/.trireme.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    p = subprocess.run([sys.argv[1], "ckpt", "reshard", "two/checkpoint-8", "--output", "live"], capture_output=True)
    assert p.returncode == 2 and b"is being written by another run" in p.stderr and os.listdir("live") == [".trireme.lock"], (p, os.listdir("live"))
PY
"$TRIREME" ckpt diff re/checkpoint-8 re/checkpoint-8 | grep -q 'bit for bit' || fail "a checkpoint differs from itself"
{ "$TRIREME" ckpt diff one/checkpoint-6 one/checkpoint-8 || true; } | grep -q 'tensors differ' || fail "two steps are the same"
"$TRIREME" ckpt export two/checkpoint-8 --output exported >stdout
"$TRIREME" ckpt export re/checkpoint-8 --output again >stdout
same exported/model.safetensors again/model.safetensors
same two/model.safetensors exported/model.safetensors
# In 4 bits and back: the second way loses nothing more; what is quantised already is refused, and nothing is written.
"$TRIREME" ckpt export two/checkpoint-8 --to bnb-4bit:double --output nf4 >stdout
"$TRIREME" ckpt export nf4 --to hf --output plain >stdout
"$TRIREME" ckpt diff nf4 plain | grep -q 'bit for bit' || fail "a quantised directory differs from its export"
grep -q quantization_config nf4/config.json && ! grep -q quantization_config plain/config.json || fail "configs of nf4 and plain"
"$TRIREME" eval --model nf4 --data train.jsonl --sequence_length 32 --json >nf4.json
"$TRIREME" eval --model plain --data train.jsonl --sequence_length 32 --json >plain.json
same nf4.json plain.json
expect 2 "$TRIREME" ckpt export nf4 --to bnb-4bit --output twice
[ ! -e twice ] || fail "a refused export wrote $(ls twice)"
expect 2 "$TRIREME" ckpt prune one
expect 0 "$TRIREME" ckpt prune one --save_total_limit 1 --save_keep_every 4 # 4 and 8 by the rule, 6 by the limit
[ "$(cd one && echo checkpoint-*)" = 'checkpoint-4 checkpoint-6 checkpoint-8' ] || fail "prune left $(cd one && echo checkpoint-*)"

# The best evaluation stays too, as it does beside training: a rate that is too high makes it an early one.
"$TRIREME" train "${options[@]}" --output best --eval_data train.jsonl --eval_steps 2 --learning_rate 1 --lr_scheduler_type constant >stdout
best=$("$TRIREME" ckpt show best/checkpoint-8 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["best"]["step"])')
[ "$best" -lt 8 ] || fail "the best evaluation is the last one: this test shows nothing"
expect 0 "$TRIREME" ckpt prune best --save_total_limit 1
[ "$(cd best && echo checkpoint-*)" = "checkpoint-$best checkpoint-8" ] || fail "prune of $best left $(cd best && echo checkpoint-*)"

# C14.
resume() { "$TRIREME" train "${options[@]}" --output two-b --resume auto "$@"; }
cp -r two two-b
expect 2 resume --learning_rate 2e-2
grep -q 'learning_rate was 0.01, is 0.02' stderr && grep -q 'allow_change learning_rate' stderr || fail "$(cat stderr)"
expect 2 resume --max_steps 10
grep -q 'schedule_steps was 8, is 10' stderr || fail "$(cat stderr)"
expect 0 resume --max_steps 10 --allow_change schedule_steps
expect 2 resume --max_steps 10 --allow_change rainbow
# C15.
cp -r two two-c
sed -i 's/"schema": 1/"schema": 9/' two-c/checkpoint-8/trireme/state.json
expect 70 "$TRIREME" ckpt verify two-c/checkpoint-8 # the hash comes first

# An older step by hand: what is newer there is no longer the newest.
"$TRIREME" train "${options[@]}" --output two --resume two/checkpoint-4 >run.log 2>run.err
[ -d two/checkpoint-8.aside-1 ] && [ -d two/checkpoint-6.aside-1 ] || fail "not set aside: $(ls two)"
"$TRIREME" ckpt diff two/checkpoint-8 two/checkpoint-8.aside-1 >diff.txt || true
