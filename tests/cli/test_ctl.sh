#!/usr/bin/env bash
# Requests to a running training: obeyed by all ranks between two steps, logged, refused from strangers; a value that was
# set holds at the same steps after a kill and a resume, to the bit.
source "$(dirname "$0")/common.sh"
tiny_model model
tiny_text train.jsonl
common=(--model model --data train.jsonl --eval_data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 --save_steps 1000 --quiet --threads 1)
wait_for_step() { # OUTPUT STEP
    for _ in $(seq 400); do
        grep -q "\"event\":\"step\".*\"step\":$2," "$1/events.jsonl" 2>/dev/null && return
        sleep 0.05
    done
    fail "$1 did not reach step $2"
}
start() { # OUTPUT ranks options: in the background
    local out=$1 ranks=$2
    shift 2
    if [ "$ranks" = 1 ]; then
        "$TRIREME" train "${common[@]}" --output "$out" "$@" >"$out.log" 2>&1 &
    else
        "$TRIREME" launch --nproc-per-node "$ranks" train "${common[@]}" --output "$out" "$@" >"$out.log" 2>&1 &
    fi
    pid=$!
}
json() { python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]])' "$1"; }

# Four ranks: a save within one step, an evaluation, pause and resume, a stop that is no failure to start again.
late() { # TIME STEP: how many steps up to STEP have ended since TIME
    python3 -c 'import json, sys
events = [json.loads(l) for l in open("four/events.jsonl") if l.endswith("}\n")]
print(sum(e["event"] == "step" and e["time"] > float(sys.argv[1]) and e["step"] <= int(sys.argv[2]) for e in events))' "$@"
}
start four 4 --max_steps 1000000 --sequence_length 128 --per_device_train_batch_size 8 --gradient_accumulation_steps 4 # a step takes some 100 ms
wait_for_step four 3
for _ in $(seq 10); do # the step in progress ends first; the request itself may have come late
    asked=$(date +%s.%N)
    expect 0 "$TRIREME" ctl four save --json
    step=$(json step <stdout)
    n_late=$(late "$asked" "$step")
    [ "$n_late" -gt 1 ] || break
done
[ "$n_late" -le 1 ] || fail "a save came $n_late steps after its request"
[ -d "four/checkpoint-$step" ] || fail "no checkpoint of step $step: $(cat stdout)"
expect 0 "$TRIREME" ckpt verify "four/checkpoint-$step"
expect 0 "$TRIREME" ctl four eval
expect 0 "$TRIREME" ctl four pause
at=$(grep -c '"event":"step"' four/events.jsonl)
sleep 0.5
[ "$(grep -c '"event":"step"' four/events.jsonl)" -le $((at + 1)) ] || fail "a paused run makes steps"
state() { "$TRIREME" watch four --html page.html >/dev/null && python3 -c 'import json, re; print(json.loads(re.search("<script[^>]*id=.?data[^>]*>(.*?)</script>", open("page.html").read(), re.S).group(1))["/api/run?run=0"]["state"])'; }
[ "$(state)" = paused ] || fail "watch says of a paused run: $(state)"
for _ in 1 2; do # the second time the checkpoint is there already
    asked=$(date +%s)
    expect 0 "$TRIREME" ctl four save
    [ $(($(date +%s) - asked)) -lt 15 ] || fail "a save of a step that is saved waits for nothing"
done
expect 0 "$TRIREME" ctl four set learning_rate=1e-3
expect 0 "$TRIREME" ctl four resume
expect 0 "$TRIREME" ctl four sample --prompt Line --max_new_tokens 3

# Strangers: a request that is not signed, one that others may write, a link, one of another key.
put() { printf '%s' "$1" >four/.trireme/request.tmp && chmod "$2" four/.trireme/request.tmp && mv four/.trireme/request.tmp four/.trireme/request; }
refused() { # what the event says
    for _ in $(seq 200); do
        grep -q "\"event\":\"control\".*$1" four/events.jsonl && return
        sleep 0.05
    done
    fail "the request was not refused with: $1"
}
put '{"id": "00", "action": "stop", "signature": "00"}' 600
refused 'its signature is not that of this start'
put '{"id": "00", "action": "stop", "signature": "00"}' 666
refused 'lets other users write it'
if [ "$(id -u)" = 0 ]; then # one of another user, who can write the directory
    printf '{"id": "00", "action": "stop", "signature": "00"}' >four/.trireme/request.tmp
    chmod 600 four/.trireme/request.tmp && chown 65534 four/.trireme/request.tmp && mv four/.trireme/request.tmp four/.trireme/request
    refused 'it belongs to user 65534'
fi
put "$(head -c 5000 /dev/zero | tr '\0' x)" 600
refused 'at most 4096'
ln -s /etc/passwd four/.trireme/request
refused 'it is a link'
ln -s nowhere four/.trireme/request # dangling
for _ in $(seq 200); do [ -L four/.trireme/request ] || break; sleep 0.05; done
[ ! -L four/.trireme/request ] || fail 'a dangling link stays where requests go'
# What the run cannot remove is refused once, not at every step, and who asks is told.
mkdir four/.trireme/request
refused 'no regular file'
expect 2 "$TRIREME" ctl four save --wait 1
grep -q 'stands where requests go, and is no file: remove it' stderr || fail "$(cat stderr)"
[ "$(grep -c 'no regular file' four/events.jsonl)" = 1 ] || fail "refused $(grep -c 'no regular file' four/events.jsonl) times"
rmdir four/.trireme/request
[ "$(stat -c %a four/.trireme/control-key)" = 600 ] || fail "others can read the key"
expect 2 "$TRIREME" ctl four set weight_decay=1
expect 2 "$TRIREME" ctl four set learning_rate=-1
expect 2 "$TRIREME" ctl four dance
if [ "$(id -u)" = 0 ]; then # another user cannot even read the key
    chmod 755 . four
    cp "$TRIREME" ./trireme-of-all && chmod 755 ./trireme-of-all
    expect 2 setpriv --reuid 65534 --regid 65534 --clear-groups ./trireme-of-all ctl four save
    grep -q 'belongs to another user' stderr || fail "another user: $(cat stderr)"
fi
expect 0 "$TRIREME" ctl four stop
code=0
wait "$pid" || code=$?
[ "$code" = 78 ] || fail "a stop by request ends with $code, want 78: $(cat four.log)"
[ "$(state)" = stopped ] || fail "watch says of a stopped run: $(state)"
grep '"event":"fault".*"action":"launch"' four/events.jsonl && fail "a stop by request is a fault"
[ ! -e four/errors ] || fail "a stop by request leaves $(ls four/errors)"
! grep 'exit code 78' four.log || fail "a stop by request is reported as a failure"
"$TRIREME" watch four --json | python3 -c 'import json, sys; assert [r["state"] for r in json.load(sys.stdin)["ranks"]] == ["done"] * 4' || fail "$("$TRIREME" watch four --plain)"
expect 2 "$TRIREME" ctl four save
grep -q 'no run takes requests' stderr || fail "a run that has ended: $(cat stderr)"
[ "$(grep -c '"event":"control".*"accepted":true' four/events.jsonl)" -ge 6 ] || fail "requests are not in the log"

# A learning rate that was set: killed after it and resumed from a checkpoint before it, the steps are those of a run that
# was not disturbed; a checkpoint alone carries it too.
rows=(--sequence_length 128 --per_device_train_batch_size 8 --max_steps 60 --save_steps 8) # a step takes some 10 ms
start set 1 "${rows[@]}"
wait_for_step set 9
expect 0 "$TRIREME" ctl set set learning_rate=2e-4 --json
at=$(json step <stdout)
wait "$pid" || fail "it did not end: $(cat set.log)"
step_lines set/events.jsonl >whole.txt
mkdir again && cp set/control.json again/
[ "$at" -lt 48 ] || fail "the request came too late for this test"
TR_FAIL=train.after_step:kill:$((at + 3)) "$TRIREME" train "${common[@]}" --output again "${rows[@]}" --resume_from_checkpoint auto >log 2>&1 && fail "it was not killed"
expect 2 "$TRIREME" ctl again save
grep -q 'it was killed' stderr || fail "a run that was killed: $(cat stderr)"
rm -rf "again/checkpoint-$((at / 8 * 8 + 8))"
expect 0 "$TRIREME" train "${common[@]}" --output again "${rows[@]}" --resume_from_checkpoint auto
step_lines again/events.jsonl >resumed.txt
same whole.txt resumed.txt
same set/model.safetensors again/model.safetensors
mkdir moved && cp -r set/checkpoint-56 moved/
expect 0 "$TRIREME" train "${common[@]}" --output moved "${rows[@]}" --resume_from_checkpoint auto
same set/model.safetensors moved/model.safetensors

# A value that is set ahead of one that a later part of the run had set, before it was killed: it holds from its step on, and a replay makes the same steps.
mkdir later
echo '{"schema": 1, "overrides": [{"step": 50, "key": "learning_rate", "value": 1e-5}]}' >later/control.json
start later 1 "${rows[@]}" --resume_from_checkpoint auto
wait_for_step later 3
expect 0 "$TRIREME" ctl later set learning_rate=3e-2 --json
at=$(json step <stdout)
wait "$pid" || fail "it did not end: $(cat later.log)"
[ "$at" -lt 45 ] || fail "the request came too late for this test"
grep "\"event\":\"step\".*\"step\":$((at + 1))," later/events.jsonl | python3 -c 'import json, sys; assert json.loads(sys.stdin.readline())["lr"] > 3e-3' || fail "the value does not hold"
expect 0 "$TRIREME" replay later --step $((at + 2)) --quiet
echo ok
