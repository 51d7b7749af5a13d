#!/usr/bin/env bash
# A step of a run is made again to the bit, from the run's own options, wherever it is looked at from; what differs is named. explain finds the
# record behind a loss, and data show takes the run's options too.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
sed -i '17s/.*/{"text": "\\u00e9\\u00ff\\u00fe ~~ {}{} \\u00c0\\u00d7 ^^ @@ \\u00ef\\u00ee ## %% \\u00f1\\u00f2 QQ"}/' train.jsonl
tiny_model model
options=(--model model --data train.jsonl --eval_split 0.1 --eval_steps 4 --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 4
    --max_steps 24 --learning_rate 1e-2 --warmup_steps 3 --save_steps 5 --save_total_limit 3 --quiet)
TR_FAIL=train.before_step:kill:9 "$TRIREME" train "${options[@]}" --output run >run.log 2>&1 && fail "was not killed"
"$TRIREME" train "${options[@]}" --output run --resume auto >run.log
mkdir elsewhere
find run -not -path "*/.cache/*" | sort >before
cd elsewhere # relative paths of the options are those of the run
is() { # EXPRESSION over r, what was printed
    python3 -c "
import json
r = json.loads(open('stdout').read().splitlines()[-1])
assert $1, r" || fail "$1"
}
for step in 3 16 24; do # from the start, from a checkpoint, the last
    expect 0 "$TRIREME" replay ../run --step $step --json
    is "r['is_equal'] and r['loss'] == r['recorded']['loss'] and r['grad_norm'] == r['recorded']['grad_norm'] and r['first_different'] is None"
    is "abs(sum(g['norm'] ** 2 for g in r['gradients']) - r['grad_norm'] ** 2) < 1e-9 and len({g['hash'] for g in r['gradients']}) == 20"
done
cp stdout a.json
is "r['from'] == 20"
expect 0 "$TRIREME" replay ../run --step 24 --against a.json --threads 1
grep -q 'equal to the bit, loss, norm and 20 gradients' stdout || fail "$(cat stdout)"
expect 1 "$TRIREME" replay ../run --step 24 --against a.json --dtype bfloat16
grep -q '20 of 20 gradients have other bits' stdout || fail "$(cat stdout)"
grep -q 'dtype was "float32", is "bfloat16"' stderr || fail "the change is not said: $(cat stderr)"
expect 1 "$TRIREME" launch --nproc-per-node 2 replay ../run --step 24 --dp 2 --zero 2 --against a.json --json
is "not r['is_equal'] and abs(r['loss'] / r['recorded']['loss'] - 1) < 1e-6 and r['against']['worst']['share'] < 1e-3"
expect 2 "$TRIREME" replay ../run --step 30
grep -q 'no step 30; the last one is 24' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" replay ../run --step 12 --against a.json
grep -q 'it is of step 24, and this is step 12' stderr || fail "$(cat stderr)"

# One digit of the log is changed: the step and the first one that differs are named.
cp -r ../run ../other
python3 - <<'PY'
import re
log = open('../other/events.jsonl').read().splitlines(True)
for i, line in enumerate(log):
    if '"event":"step"' in line and '"step":22,' in line:
        log[i] = re.sub(r'("loss":\d\.\d{5})(\d)', lambda m: m[1] + str((int(m[2]) + 1) % 10), line)
open('../other/events.jsonl', 'w').writelines(log)
PY
expect 1 "$TRIREME" replay ../other --step 22 --json
is "not r['is_equal'] and r['first_different'] == 22"
expect 0 "$TRIREME" replay ../other --step 23 --json
is "r['is_equal'] and r['first_different'] == 22"

# A run with the same bits on any layout has the same gradients on any of them.
cd ..
"$TRIREME" train "${options[@]}" --output any --reproducible layout >run.log
expect 0 "$TRIREME" replay any --step 7 --json
cp stdout any.json
expect 0 "$TRIREME" launch --nproc-per-node 2 replay any --step 7 --dp 2 --zero 3 --against any.json
# Rows of a device that followed from those of a step follow again.
"$TRIREME" train --model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 2 --quiet --output follow >run.log
expect 0 "$TRIREME" replay follow --step 2
expect 1 "$TRIREME" launch --nproc-per-node 2 replay follow --step 2 --dp 2 --zero 2 --json
is "abs(r['loss'] / r['recorded']['loss'] - 1) < 1e-6"
cd elsewhere

# The record that is like no other one has the tokens with the largest losses.
step=$(python3 - <<'PY'
import json, subprocess, os
for step in range(24, 8, -1):
    text = subprocess.run([os.environ['TRIREME'], 'data', 'show', '../run', '--step', str(step)], capture_output=True, text=True, check=True).stdout
    if '@@' in text or '~~' in text:
        print(step)
        break
PY
)
expect 0 "$TRIREME" explain ../run --step "$step" --json
is "all(t['path'].endswith('train.jsonl') for t in r['tokens']) and sum(t['line'] == 17 for t in r['tokens']) >= 8"
is "abs(r['token_loss'] - r['recorded']['loss']) < 1e-5 * r['token_loss'] and abs(r['loss'] - r['recorded']['loss']) < 1e-6"
is "r['layers'] and r['steps_around'] >= 3 and all(x['norm'] > 0 and x['usual'] > 0 for x in r['layers'])"
expect 0 "$TRIREME" explain ../run --step "$step"
grep -q 'train.jsonl:17' stdout || fail "$(cat stdout)"
cd ..
diff before <(find run -not -path "*/.cache/*" | sort) >changed || fail "looking at a run has changed it: $(cat changed)"

# What a run had by default asks for nothing: the rows of a device follow from the layout, and no option is said to have no effect.
echo '{"prompt": "2+2=", "chosen": " 4", "rejected": " 5"}' >pairs.jsonl
"$TRIREME" train --model model --data pairs.jsonl --task dpo --output pairs --sequence_length 32 --max_steps 2 --quiet >run.log
expect 0 "$TRIREME" replay pairs --step 2 --json
grep -q 'no effect' stderr && fail "$(cat stderr)"
expect 1 "$TRIREME" launch --nproc-per-node 2 replay pairs --step 2 --dp 2 --zero 2 --json
is "abs(r['loss'] / r['recorded']['loss'] - 1) < 1e-6"

# Large data is streamed without an option that says so; the log does, and the rows of a step are those of the stream.
for streams in true auto; do
    "$TRIREME" train --model model --data train.jsonl --streaming $streams --output stream-$streams --sequence_length 32 --max_steps 2 --quiet >run.log
done
sed -i 's/"is_streamed":false/"is_streamed":true/' stream-auto/events.jsonl
for streams in true auto; do "$TRIREME" data show stream-$streams --step 2 >show-$streams; done
same show-true show-auto
