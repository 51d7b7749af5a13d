#!/usr/bin/env bash
# Crashes leave no trace: a run that was stopped or killed and resumed ends with the bytes of a run nobody disturbed.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --eval_data train.jsonl --eval_steps 4 --sequence_length 32
    --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_steps 10 --learning_rate 1e-2
    --lr_scheduler_type cosine --warmup_steps 3 --weight_decay 0.1 --save_steps 3 --logging_steps 1 --quiet)
run() { "$TRIREME" train "${options[@]}" "$@" >run.log; }
run --output whole
step_lines whole/events.jsonl >whole.steps
[ "$(grep -c '^event="step"' whole.steps)" = 10 ] || fail "the undisturbed run logged $(wc -l <whole.steps) lines"

# like_whole DIR: weights, optimizer state and log, byte for byte.
like_whole() {
    same whole/model.safetensors "$1/model.safetensors"
    same whole/checkpoint-10/model.safetensors "$1/checkpoint-10/model.safetensors"
    sed "s,\"$1/checkpoint-,\"whole/checkpoint-," "$1/checkpoint-10/trainer_state.json" >"$1.state" # the best one is named with its output
    same whole/checkpoint-10/trainer_state.json "$1.state"
    local shard
    for shard in whole/checkpoint-10/trireme/optim-*.safetensors; do
        same "$shard" "$1/checkpoint-10/trireme/${shard##*/}"
    done
    step_lines "$1/events.jsonl" >"$1.steps"
    same whole.steps "$1.steps"
    [ -z "$(find "$1" -name '*.tmp-*')" ] || fail "$1: leftovers: $(find "$1" -name '*.tmp-*')"
}

# Any number of threads: the same bits.
for n in 1 3; do
    run --output threads-$n --threads $n
    like_whole threads-$n
done

# SIGTERM: what was done is saved, and exit 75 says "retry me".
TR_FAIL=train.before_step:delay1500:5 "$TRIREME" train "${options[@]}" --output term >run.log &
pid=$!
for _ in $(seq 300); do
    [ "$(grep -c '"event":"step"' term/events.jsonl 2>/dev/null || true)" = 4 ] && break
    sleep 0.05
done
kill -TERM $pid
rc=0
wait $pid || rc=$?
[ $rc = 75 ] || fail "SIGTERM: exit $rc, want 75"
[ -e term/checkpoint-4 ] || [ -e term/checkpoint-5 ] || fail "SIGTERM after step 4: only $(cd term; echo checkpoint-*) was saved"
run --output term --resume_from_checkpoint auto
like_whole term

# SIGKILL before every step; the first resumes from nothing, the last from step 9.
for n in $(seq 10); do
    TR_FAIL=train.before_step:kill:$n run --output kill-$n 2>/dev/null && fail "kill before step $n did not kill"
    run --output kill-$n --resume auto
    like_whole kill-$n
done

# SIGKILL at every point of a save, in the first and in the second save.
points=$(sed -n 's/^ *X("\(ckpt\.[a-z_]*\)").*/\1/p' "$source_dir/src/ckpt/commit.h")
[ "$(wc -w <<<"$points")" -ge 10 ] || fail "found no failpoints in commit.h"
saves="1 2"
[ -z "${TR_SANITIZED:-}" ] || saves=2 # slow there
for point in $points; do
    for n in $saves; do
        dir=$point-$n
        if TR_FAIL=$point:kill:$n run --output "$dir" --save_total_limit 2 2>/dev/null; then
            fail "$point:$n did not kill"
        fi
        run --output "$dir" --save_total_limit 2 --resume auto
        like_whole "$dir"
        rm -rf "$dir"
    done
done

# A finished run resumed does nothing; a run of other inputs is refused.
run --output term --resume auto
like_whole term
expect 2 "$TRIREME" train "${options[@]}" --output term --resume auto --seed 43
grep -q 'seed was 42, is 43' stderr || fail "the refusal does not name the change: $(cat stderr)"
like_whole term
