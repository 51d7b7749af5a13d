#!/usr/bin/env bash
# A stop while a run evaluates, between two steps: alone and on two ranks it ends at the next batch, with a checkpoint; what a resume makes then is what
# nobody disturbed makes, the choice of the best checkpoint included, also when it is killed once more before its next save.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
python3 -c 'print("\n".join("{\"text\": \"%s\"}" % ("three banks of oars " * 20) for _ in range(500)))' >long.jsonl
python3 -c 'print("\n".join("{\"context\": \"%s\", \"choices\": [\"170 oars\", \"7\"], \"gold\": 0}" % ("oars " * 12) for _ in range(2000)))' >choices.jsonl
options=(--model model --data train.jsonl --sequence_length 128 --train_batch_size 2 --max_steps 4 --lr_scheduler_type constant --learning_rate 1.5
    --eval_steps 2 --save_steps 2 --threads 1 --data_proof none --quiet)
logged() { # DIR EVENT: how often
    [ -e "$1/events.jsonl" ] && grep -c "\"event\":\"$2\"" "$1/events.jsonl" || [ -e "$1/events.jsonl" ] || echo 0
}
until_logged() { # DIR EVENT N
    for _ in $(seq 3000); do
        [ "$(logged "$1" "$2")" -lt "$3" ] || return 0
        sleep 0.02
    done
    fail "$1 has no $3 $2 events: $(cat "$1.log")"
}
# cut DIR COMMAND...: a run that gets SIGTERM in the evaluation after step 2, and resumes
cut() {
    local dir=$1 rc=0 pid begin
    shift
    "$@" "${options[@]}" --output "$dir" >"$dir.log" 2>&1 &
    pid=$!
    until_logged "$dir" step 2
    sleep 0.05
    begin=$(date +%s%N)
    kill -TERM $pid
    wait $pid || rc=$?
    [ $rc = 75 ] || fail "$*: exit $rc: $(cat "$dir.log")"
    [ "$(logged "$dir" eval)" = 0 ] || fail "$*: the evaluation was not cut short, after $((($(date +%s%N) - begin) / 1000000)) ms"
    [ -d "$dir/checkpoint-2" ] || fail "$*: exit 75 without a checkpoint: $(ls "$dir")"
}
for kind in alone ranks choices; do
    run=("$TRIREME" train)
    [ $kind = alone ] || run=("$TRIREME" launch --nproc-per-node 2 train)
    [ $kind = choices ] && run+=(--eval_choices choices.jsonl) || run+=(--eval_data long.jsonl --load_best_model_at_end)
    cut $kind "${run[@]}"
    if [ $kind != choices ]; then
        TR_FAIL=train.before_step:kill "${run[@]}" "${options[@]}" --output $kind --resume >$kind.log 2>&1 && fail "it was not killed"
        [ "$(logged $kind eval)" = 1 ] || fail "the evaluation was not made up for: $(cat $kind.log)"
    fi
    expect 0 "${run[@]}" "${options[@]}" --output $kind --resume
    expect 0 "${run[@]}" "${options[@]}" --output $kind-whole
    same $kind-whole/model.safetensors $kind/model.safetensors
    cmp <(step_lines $kind-whole/events.jsonl) <(step_lines $kind/events.jsonl) || fail "$kind: the log differs"
done
grep -q '"event":"best_model".*"step":2' alone-whole/events.jsonl || fail "the best step is not the one that was cut short: $(tail -3 alone-whole/events.jsonl)"

# So it is with an evaluation that a request asks for.
"$TRIREME" train "${options[@]}" --max_steps 100000 --eval_steps 0 --save_steps 0 --learning_rate 1e-3 --eval_data long.jsonl --output asked >asked.log 2>&1 &
pid=$!
until_logged asked step 1
expect 0 "$TRIREME" ctl asked pause
step=$(grep -o '"action":"pause","step":[0-9]*' asked/events.jsonl | grep -o '[0-9]*$')
"$TRIREME" ctl asked eval --wait 0 >/dev/null
until_logged asked control 2
kill -TERM $pid
rc=0
wait $pid || rc=$?
[ $rc = 75 ] && [ -d "asked/checkpoint-$step" ] && [ "$(logged asked eval)" = 0 ] || fail "exit $rc in step $step: $(cat asked.log; ls asked)"
