#!/usr/bin/env bash
# Preemption (A22, A23): a signal with a grace lets the step end, saves when the last save says that it fits, and exits with 75 on
# all ranks at the same step. Further signals change nothing. The deadline and Ctrl-C twice at a terminal end the run at once, and
# then, as after a save that failed, the exit code is 143. No checkpoint is ever torn, and a resume ends with the bits of a run that
# nobody disturbed.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 2 --max_steps 8
    --learning_rate 1e-2 --threads 1 --data_proof none --quiet --save_steps 4)
started() { # DIR STEP: the run has logged that step
    for _ in $(seq 3000); do
        [ "$(grep -c '"event":"step"' "$1/events.jsonl" 2>/dev/null || echo 0)" -ge "$2" ] 2>/dev/null && return
        sleep 0.02
    done
    fail "$1 does not reach step $2: $(cat "$1.log")"
}
verified() { # DIR: every checkpoint that is there is whole
    local c
    for c in "$1"/checkpoint-?; do "$TRIREME" ckpt verify "$c" >/dev/null || fail "$c is torn"; done
}
# hit SIGNALS DIR GRACE FAIL COMMAND...: the run waits ${wait_ms:-500} before step 6; there it gets the signals; exit ${want:-75}.
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
        kill -"$s" $pid 2>/dev/null || true # the last ones may come after the end
        sleep 0.05
    done
    wait $pid || rc=$?
    took_ms=$((($(date +%s%N) - begin) / 1000000))
    [ $rc = ${want:-75} ] || fail "$signals to $*: exit $rc, want ${want:-75}: $(cat "$dir.log")"
    verified "$dir"
}
resumed() { # DIR COMMAND...
    local dir=$1
    shift
    expect 0 "$@" "${options[@]}" --output "$dir" --resume
    same "whole/model.safetensors" "$dir/model.safetensors"
}

# A stop that comes before a program has its handler ends it: no stop signal is ignored, by a verb or by what it starts.
"$TRIREME" data check --model model --data s3://bucket/train.jsonl --sequence_length 32 --output early --quiet \
    --fetch_command "sh -c 'grep SigIgn /proc/self/status >ignored; cp train.jsonl \"\$0\"' {path} {url}" >early.log || fail "$(cat early.log)"
python3 - <<'PY' || fail "stop signals are ignored: $(cat ignored)"
import signal
ignored = int(open("ignored").read().split()[1], 16)
assert not [s for s in (signal.SIGTERM, signal.SIGUSR1) if ignored >> (s - 1) & 1]
PY

all() { # RANKS: every case with so many ranks
    local n=$1 s
    run=("$TRIREME" train)
    [ $n = 1 ] || run=("$TRIREME" launch --nproc-per-node $n train)
    mkdir ranks-$n
    cd ranks-$n
    ln -s ../model ../train.jsonl .
    expect 0 "${run[@]}" "${options[@]}" --output whole
    for s in TERM HUP INT 'TERM TERM' 'INT INT TERM HUP USR1 INT' 'USR2 ALRM RTMIN PROF TERM ALRM'; do
        [ $n = 1 ] || [[ $s = *TERM* ]] || continue
        dir=${s// /-}
        wait_ms=$([[ $s = *' '* ]] && echo 2500 || echo 500) # time for all signals
        hit "$s" $dir 30 '' "${run[@]}"
        [ -d $dir/checkpoint-5 ] && [ $n = 1 ] || [ -d $dir/checkpoint-6 ] || # alone it may not even begin the step
            fail "$s: the step it came in is not saved: $(ls $dir)"
    done
    wait_ms=500
    resumed TERM-TERM "${run[@]}"
    # The save of the stop fails: the exit code says so.
    want=143 hit TERM failed 0 ,ckpt.before_manifest:error:2 "${run[@]}"
    [ ! -e failed/checkpoint-5 ] && [ ! -e failed/checkpoint-6 ] || fail "the failpoint does not stop the save: $(ls failed)"
    resumed failed "${run[@]}"
    # The rest of the grace is shorter than the last save: none is begun, and step 4 is there to resume from.
    want=143 hit USR1 short 1.1 ,ckpt.before_manifest:delay800:1 "${run[@]}"
    [ ! -e short/checkpoint-5 ] && [ ! -e short/checkpoint-6 ] && [ -d short/checkpoint-4 ] || fail "a save that does not fit: $(ls short)"
    grep -q 'does not fit the rest of preempt_grace 1.1 s: step 4 is the last saved' short.log || fail "$(cat short.log)"
    resumed short "${run[@]}"
    # The deadline comes in the middle of a step; Ctrl-C twice ends it too, and steps are lost.
    want=143 wait_ms=6000 hit TERM late 0.3 '' "${run[@]}"
    [ $took_ms -lt 4000 ] || fail "a grace of 0.3 s ended after $took_ms ms"
    resumed late "${run[@]}"
    python3 - twice "${run[@]}" "${options[@]}" --output twice <<'PY' || fail "Ctrl-C twice at a terminal"
import os, pty, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.environ["TR_FAIL"] = "train.before_step:delay60000:6"
    os.execv(sys.argv[2], sys.argv[2:])
steps = lambda: open(sys.argv[1] + "/events.jsonl").read().count('"event":"step"') if os.path.exists(sys.argv[1] + "/events.jsonl") else 0
end = time.time() + 50
while steps() < 5 and time.time() < end:
    time.sleep(0.02)
time.sleep(0.5) # step 5 is logged; in front of step 6
for _ in range(2):
    os.write(fd, b"\x03")
    time.sleep(0.3)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert code == 143, f"exit {code}, want 143"
assert time.time() < end, "the second Ctrl-C does not end it"
PY
    resumed twice "${run[@]}"
}
# Verbs that save nothing answer a stop within two seconds, in the middle of a long prompt too, and say that they did not finish.
cat >long.json <<'JSON'
{ "model_type": "llama", "vocab_size": 264, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu", "rms_norm_eps": 1e-05, "max_position_embeddings": 65536,
  "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": true, "bos_token_id": 256, "eos_token_id": 256 }
JSON
expect 0 "$TRIREME" init --config long.json --tokenizer bytes --seed 7 --out long --quiet
prompt=$(printf '%060000d')
for words in "generate --prompt $prompt" 'chat --chat_template chatml --quiet' 'eval --data long.txt --sequence_length 65536'; do
    echo "$prompt" >long.txt
    for s in TERM INT; do
        python3 - "$s" "$TRIREME" $words --model long --threads 1 <<'PY' || fail "${words:0:20} and SIG$s"
import os, signal, subprocess, sys, time
sig = getattr(signal, "SIG" + sys.argv[1])
p = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
if "chat" in sys.argv:
    p.stdin.write(b"0" * 4000 + b"\n")
    p.stdin.flush()
def has_handler():
    mask = [line for line in open(f"/proc/{p.pid}/status") if line.startswith("SigCgt")]
    return bool(int(mask[0].split()[1], 16) >> (sig - 1) & 1)
end = time.time() + 30
while not has_handler() and time.time() < end:
    time.sleep(0.01)
time.sleep(0.2)
assert p.poll() is None, f"ended early: {p.returncode} {p.stderr.read()}"
start = time.time()
p.send_signal(sig)
try:
    code = p.wait(20)
except subprocess.TimeoutExpired:
    p.kill()
    sys.exit("it does not stop")
assert time.time() - start < 2, f"took {time.time() - start:.1f} s"
assert code == 75 or (code == 0 and "chat" in sys.argv), f"exit {code}: {p.stderr.read()}"  # a chat may be waiting for its user
PY
    done
done

(all 1) &
alone=$!
(all 4)
wait $alone
