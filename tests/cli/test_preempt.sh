#!/usr/bin/env bash
# Preemption (A22, A23): a signal with a grace lets the step end, saves when the last save says that it fits, and exits with 75 on
# all ranks at the same step; the second signal and the deadline end the run at once; no checkpoint is ever torn, and a resume
# ends with the bits of a run that nobody disturbed.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 2 --max_steps 8
    --learning_rate 1e-2 --threads 1 --data_proof none --quiet --save_steps 4)
started() { # DIR STEP: the run has logged that step
    for _ in $(seq 400); do
        [ "$(grep -c '"event":"step"' "$1/events.jsonl" 2>/dev/null || true)" -ge "$2" ] && return
        sleep 0.02
    done
    fail "$1 does not reach step $2: $(cat "$1.log")"
}
verified() { # DIR: every checkpoint that is there is whole
    local c
    for c in "$1"/checkpoint-?; do "$TRIREME" ckpt verify "$c" >/dev/null || fail "$c is torn"; done
}
# hit SIGNALS DIR GRACE FAIL COMMAND...: the run waits ${wait_ms:-500} before step 6; there it gets the signals.
hit() {
    local signals=$1 dir=$2 grace=$3 points=$4 rc=0 begin pid
    shift 4
    touch "$dir.begin"
    TR_FAIL=train.before_step:delay${wait_ms:-500}:6$points "$@" "${options[@]}" --output "$dir" --preempt_grace "$grace" >"$dir.log" 2>&1 &
    pid=$!
    started "$dir" 5
    sleep 0.1 # in front of step 6
    begin=$(date +%s%N)
    for s in $signals; do
        kill -"$s" $pid
        sleep 0.05
    done
    wait $pid || rc=$?
    took_ms=$((($(date +%s%N) - begin) / 1000000))
    [ $rc = 75 ] || fail "$signals to $*: exit $rc, want 75: $(cat "$dir.log")"
    verified "$dir"
}
resumed() { # DIR COMMAND...
    local dir=$1
    shift
    expect 0 "$@" "${options[@]}" --output "$dir" --resume
    same "whole/model.safetensors" "$dir/model.safetensors"
}

all() { # RANKS: every case with so many ranks
    local n=$1 s
    run=("$TRIREME" train)
    [ $n = 1 ] || run=("$TRIREME" launch --nproc-per-node $n train)
    mkdir ranks-$n
    cd ranks-$n
    ln -s ../model ../train.jsonl .
    expect 0 "${run[@]}" "${options[@]}" --output whole
    for s in TERM HUP INT; do
        [ $n = 1 ] || [ $s = TERM ] || continue
        hit $s $s 30 '' "${run[@]}"
        [ -d $s/checkpoint-$((n == 1 ? 5 : 6)) ] || # alone it does not even begin the step
            fail "$s: the step it came in is not saved: $(ls $s)"
    done
    resumed TERM "${run[@]}"
    # The rest of the grace is shorter than the last save: none is begun, and step 4 is there to resume from.
    hit USR1 short 1.1 ,ckpt.before_manifest:delay800:1 "${run[@]}"
    [ ! -e short/checkpoint-5 ] && [ ! -e short/checkpoint-6 ] && [ -d short/checkpoint-4 ] || fail "a save that does not fit: $(ls short)"
    grep -q 'does not fit the rest of preempt_grace 1.1 s: step 4 is the last saved' short.log || fail "$(cat short.log)"
    resumed short "${run[@]}"
    # The deadline comes in the middle of a step, the second signal at once.
    wait_ms=6000 hit TERM late 0.3 '' "${run[@]}"
    [ $took_ms -lt 4000 ] || fail "a grace of 0.3 s ended after $took_ms ms"
    wait_ms=6000 hit 'INT TERM' twice 0 '' "${run[@]}"
    [ $took_ms -lt 4000 ] || fail "the second signal ended it after $took_ms ms"
    resumed twice "${run[@]}"
}
(all 1) &
alone=$!
(all 4)
wait $alone
