#!/usr/bin/env bash
# Trackers hold the values of events.jsonl exactly: of a run, of a killed run, of files that are cut at any byte, of a run
# that is resumed. A tracker that cannot be written costs itself, with one warning, and not the training.
source "$(dirname "$0")/common.sh"
read_back() { python3 "$source_dir/tests/trackers/read_back.py" --plain "$@" >read.log 2>&1 || { cat read.log >&2; fail "read_back $*"; }; }
tiny_model model
tiny_text train.jsonl
export WANDB_PROJECT=oars WANDB_TAGS=a,b
unset WANDB_MODE WANDB_DIR WANDB_RUN_ID WANDB_NAME WANDB_DISABLED TRACKIO_PROJECT

train() { # OUTPUT options
    TRACKIO_DIR=$PWD/$1/trackio "$TRIREME" train --model model --data train.jsonl --eval_data train.jsonl --output "$1" --sequence_length 32 \
        --per_device_train_batch_size 2 --eval_steps 7 --save_steps 10 --grad_norm_steps 5 --threads 1 \
        --report_to tensorboard,wandb,trackio --metrics_file "$1/metrics.prom" --run_name "bank of oars" "${@:2}"
}

# A whole run.
expect 0 train whole --max_steps 40
read_back whole
grep -q 'wandb sync' stdout || fail "no line says how the W&B run is uploaded"
grep -aq 'bank of oars' whole/wandb/offline-run-*/run-*.wandb || fail "run_name is not in the W&B file"
grep -aq oars whole/wandb/offline-run-*/run-*.wandb || fail "WANDB_PROJECT is not in the W&B file"
ls "whole/runs/bank of oars" >/dev/null || fail "no directory of the run name"

# Killed in the middle: readable; resumed: the values of the log, each once.
TR_FAIL=train.after_step:kill:33 train killed --max_steps 40 >stdout 2>stderr && fail "it was not killed"
read_back killed --torn
cp -r killed cut
expect 0 train killed --max_steps 40 --resume_from_checkpoint auto
read_back killed
[ "$(ls killed/wandb | wc -l)" = 1 ] || fail "a resumed W&B run has two directories"

# Torn at any byte: readable, and a resume makes them whole again.
for seed in $(seq 1 6); do
    rm -rf torn && cp -r cut torn
    python3 - torn "$seed" <<'PY'
import glob, os, random, sys
rng = random.Random(int(sys.argv[2]))
for f in glob.glob(f"{sys.argv[1]}/runs/*/*") + glob.glob(f"{sys.argv[1]}/wandb/*/*.wandb"):
    os.truncate(f, rng.randrange(os.path.getsize(f) + 1))
PY
    read_back torn --torn
    [ "$seed" -gt 2 ] && continue
    expect 0 train torn --max_steps 40 --resume_from_checkpoint auto
    read_back torn
done

# A checkpoint that is reported after later steps, the first of them the step that the run is resumed from: each value once.
TR_FAIL=ckpt.before_verify:delay300:1,train.after_step:delay1500:28,train.after_step:kill:29 train slow --async_save on --max_steps 40 >stdout 2>stderr && fail "it was not killed"
python3 - <<'PY' || fail "no checkpoint was late: $(cut -c 1-120 slow/events.jsonl)"
import json
kinds = [(e["event"], e.get("step")) for e in map(json.loads, open("slow/events.jsonl"))]
assert kinds.index(("checkpoint", 10)) > kinds.index(("step", 20)) and ("checkpoint", 20) in kinds
PY
expect 0 train slow --async_save on --max_steps 40 --resume_from_checkpoint auto
read_back slow

# Killed at random bytes, resumed, killed again: tests/trackers/read_back.py with 200 kills and the packages themselves, in short.
if [ -z "${TR_SANITIZED:-}" ]; then # sanitizers want to be the first library
    mkdir kills
    WANDB_PROJECT=huggingface read_back kills --kill 8 --trireme "$TRIREME" --model model --data train.jsonl
fi

# Switched on at the resume: the whole history is there.
"$TRIREME" train --model model --data train.jsonl --output late --sequence_length 32 --per_device_train_batch_size 2 --max_steps 12 --save_steps 5 --quiet --threads 1
rm -r late/checkpoint-12
expect 0 train late --max_steps 12 --resume_from_checkpoint auto --eval_steps 0
read_back late

# A wall clock that is set back stops no tracker: what the metrics file has moves on with the run. (Not under sanitizers, which come first.)
if [ -z "${TR_SANITIZED:-}" ] && "${CC:-cc}" -O1 -shared -fPIC -o wall_clock.so "$source_dir/tests/cli/wall_clock.c" 2>/dev/null; then
    TR_FAIL=train.before_step:delay4000:4 LD_PRELOAD=$PWD/wall_clock.so "$TRIREME" train --model model --data train.jsonl --output back --sequence_length 32 \
        --per_device_train_batch_size 2 --max_steps 4 --threads 1 --quiet --metrics_file back.prom >back.log 2>&1 &
    for _ in $(seq 100); do grep -qs '^trireme_step 3$' back.prom && break || sleep 0.05; done
    grep -q '^trireme_step 3$' back.prom || fail "a clock that was set back stops the metrics file: $(cat back.prom)"
    wait $! || fail "$(cat back.log)"
fi

# Trackers that cannot be written.
: >file
expect 0 env WANDB_DIR="$PWD/file" TRACKIO_DIR="$PWD/file" "$TRIREME" train --model model --data train.jsonl --output lost --sequence_length 32 \
    --per_device_train_batch_size 2 --max_steps 3 --threads 1 --report_to wandb,trackio --metrics_file "$PWD/absent/x.prom"
[ "$(grep -c 'this tracker is off from here on, training goes on' stdout)" = 3 ] || { cat stdout; fail "three trackers were lost, and not each is named once"; }
expect 0 env -u TRACKIO_DIR -u HF_HOME -u XDG_CACHE_HOME HOME= "$TRIREME" train --model model --data train.jsonl --output homeless --sequence_length 32 \
    --per_device_train_batch_size 2 --max_steps 2 --threads 1 --report_to trackio
grep -q 'trackio: no HOME to keep its file in; set TRACKIO_DIR' stdout || fail "HOME is empty, and trackio's file is in /.cache: $(cat stdout)"
for name in .. "$(printf 'a\033b.prom')"; do
    expect 0 "$TRIREME" train --model model --data train.jsonl --output odd --sequence_length 32 --per_device_train_batch_size 2 --max_steps 2 --threads 1 --metrics_file "$name"
    grep -q 'is no name for a file' stdout || fail "metrics_file $name: $(cat stdout stderr)"
    rm -rf odd
done
WANDB_MODE=disabled expect 0 train off --max_steps 2
[ ! -e off/wandb ] || fail "WANDB_MODE=disabled was not obeyed"

WANDB_DIR=$PWD/not/yet/there expect 0 train elsewhere --max_steps 2 # is made, as W&B's own client makes it
ls not/yet/there/wandb/offline-run-*/run-*.wandb >/dev/null || fail "WANDB_DIR was not made"

# Refusals before anything is written.
expect 2 train never --max_steps 2 --report_to mlflow
grep -q 'none of none, all, tensorboard, wandb, trackio' stderr || fail "no list of trackers: $(cat stderr)"
WANDB_MODE=sometimes expect 2 train never --max_steps 2
expect 2 train never --max_steps 2 --run_name a/b
[ ! -e never ] || fail "a refused run has written something"

# Sets of evaluation data, by their names, also where these look like units or differ only in letters that a metric's name cannot have.
expect 0 env TRACKIO_DIR="$PWD/sets/trackio" "$TRIREME" train --model model --data train.jsonl --eval_data h=train.jsonl --eval_data a-b=train.jsonl --eval_data a_b=train.jsonl \
    --output sets --sequence_length 32 --per_device_train_batch_size 2 --max_steps 4 --eval_steps 2 --threads 1 --report_to all --metrics_file sets/metrics.prom
read_back sets
[ "$(grep -c '^trireme_eval_loss{set=' sets/metrics.prom)" = 3 ] || fail "not a loss a set: $(grep eval_ sets/metrics.prom)"

# All ranks of a launch: one writes.
expect 0 env TRACKIO_DIR="$PWD/two/trackio" "$TRIREME" launch --nproc-per-node 2 train --model model --data train.jsonl --eval_data train.jsonl \
    --output two --sequence_length 32 --per_device_train_batch_size 2 --max_steps 6 --threads 1 --report_to all --metrics_file two/metrics.prom
read_back two
echo ok
