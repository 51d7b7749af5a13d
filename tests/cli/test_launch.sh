#!/usr/bin/env bash
# trireme launch: flags and the verb's options are checked before anything starts, a crash is healed by a restart without
# a trace in the bits, and stopping the launcher in any way stops the ranks.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 --max_steps 10
    --learning_rate 1e-2 --save_steps 3 --quiet)

expect 0 "$TRIREME" launch --help
grep -q -- '--nproc-per-node' stdout || fail "the help does not know --nproc-per-node"
expect 2 "$TRIREME" launch
expect 2 "$TRIREME" launch --nproc-per-node 2 trian
expect 2 "$TRIREME" launch --nnodes 2 train "${options[@]}" --output none
grep -q -- '--nnodes' stderr || fail "the refusal does not name --nnodes: $(cat stderr)"
expect 2 "$TRIREME" launch --nproc-per-node 4 train "${options[@]}" --output none --max_stepz 3
[ "$(grep -c max_stepz stderr)" = 1 ] || fail "a misspelt option is not refused once: $(cat stderr)"
expect 2 "$TRIREME" launch --nproc-per-node 1 train "${options[@]}" --model nothing --output none
[ ! -e none ] || fail "a refused run wrote $(find none)"
expect 0 "$TRIREME" launch train --help

# One rank is shown, byte for byte; of several still one.
expect 0 "$TRIREME" plan --model model --threads 1 --json
mv stdout plan.json
expect 0 "$TRIREME" launch --nproc-per-node 1 plan --model model --threads 1 --json
same plan.json stdout
expect 0 "$TRIREME" launch --nproc-per-node 2 plan --model model --threads 1 --json
[ "$(wc -l <stdout)" = 1 ] || fail "two ranks spoke: $(cat stdout)"

# A launched run is the run.
"$TRIREME" train "${options[@]}" --output whole >/dev/null
expect 0 "$TRIREME" launch --standalone --nproc-per-node 1 train "${options[@]}" --output launched
same whole/model.safetensors launched/model.safetensors
grep -q '^== rank 0 of 1, pid ' launched/logs/rank-0000.log || fail "no log of rank 0"

# Killed twice, restarted twice: the bits of a run that nobody disturbed. --resume was given under another name.
export TR_FAIL=train.before_step:kill:5
expect 0 "$TRIREME" launch --nproc-per-node 1 --max-restarts 3 train "${options[@]}" --output healed --resume auto
unset TR_FAIL
same whole/model.safetensors healed/model.safetensors
[ "$(grep '"event":"fault"' healed/events.jsonl | grep -vc '"goes on"')" = 2 ] || fail "two kills left $(grep -c fault healed/events.jsonl) faults"
grep -q '"signal": "SIGKILL"' healed/errors/rank-0000.json || fail "no record: $(ls healed)"
step_lines whole/events.jsonl >whole.steps
step_lines healed/events.jsonl >healed.steps
same whole.steps healed.steps

await_step() { # DIR: until the first step is logged
    for _ in $(seq 200); do
        grep -qs '"event":"step"' "$1/events.jsonl" && return
        sleep 0.05
    done
    fail "$1: no step"
}

# SIGTERM: saved, exit 75, no restart.
TR_FAIL=train.before_step:delay1500:3 "$TRIREME" launch --max-restarts 3 train "${options[@]}" --output term >run.log 2>&1 &
pid=$!
await_step term
kill -TERM $pid
rc=0
wait $pid || rc=$?
[ $rc = 75 ] || fail "SIGTERM: exit $rc, want 75: $(cat run.log)"
[ -n "$(ls -d term/checkpoint-* 2>/dev/null)" ] || fail "SIGTERM: nothing was saved"

# SIGKILL to the launcher: its rank is gone within a second.
TR_FAIL=train.before_step:delay9000:3 "$TRIREME" launch train "${options[@]}" --output orphan >run.log 2>&1 &
pid=$!
await_step orphan
rank=$(sed -nE 's/^== rank 0 of 1, pid ([0-9]+),.*/\1/p' orphan/logs/rank-0000.log)
[ -e "/proc/$rank" ] || fail "rank 0 does not run as pid $rank"
kill -KILL $pid
wait $pid 2>/dev/null || true
for _ in $(seq 20); do
    sleep 0.05
    state=$(sed -nE 's/^State:\t(.).*/\1/p' "/proc/$rank/status" 2>/dev/null || true)
    case $state in "" | Z) break ;; esac
done
case $state in "" | Z) ;; *) fail "rank 0 outlived its launcher" ;; esac

# A rank that is stopped before it has a page to say where it is (A17) is named too.
TR_FAIL=train.start:stop:1:1 expect 75 timeout 60 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output stopped
grep -qE 'rank 1 .* hangs: stopped by a signal for .* before its first phase' stderr || fail "$(cat stderr)"

# A rank that gives back what it holds for longer than the others is no failure.
TR_FAIL=train.before_close:delay7000:1:0 expect 0 timeout 60 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output slow-end
[ ! -s stderr ] || fail "a slow end: $(cat stderr)"

# A rank killed in a save leaves half a checkpoint; when the job is over it is gone (T1's oracle: nothing is left).
TR_FAIL=ckpt.before_fsync:kill:1:0 expect 70 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output torn
grep -q 'rank 0 .*SIGKILL' stderr || fail "not killed in the save: $(cat stderr)"
[ -z "$(ls -d torn/*.tmp* 2>/dev/null)" ] || fail "left behind: $(ls -d torn/*.tmp*)"

# On a terminal rank 0 draws its progress line through the launcher; the log has the lines, not the drawing.
if command -v script >/dev/null; then
    TERM=xterm COLUMNS=70 script -qec "'$TRIREME' launch --nproc-per-node 2 train --model model --data train.jsonl --sequence_length 32 \
        --per_device_train_batch_size 2 --max_steps 300 --output live" /dev/null </dev/null >live.txt
    [ "$(grep -c $'\r[0-9]' live.txt)" -ge 1 ] || fail "no progress line on the terminal: $(head -c 600 live.txt)"
    grep -q 'done: 300 steps' live/logs/rank-0000.log || fail "the log misses the end: $(tail -3 live/logs/rank-0000.log)"
    [ "$(grep -c $'\r' live/logs/rank-0000.log)" = 0 ] || fail "the log has the drawing"
fi
