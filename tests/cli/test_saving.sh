#!/usr/bin/env bash
# A disk that is full, slow or hangs costs checkpoints, never the training (C1, C2, C4, C5), and every save leaves a line.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 --max_steps 12 --save_steps 3
    --learning_rate 1e-2 --quiet)
run() { "$TRIREME" train "${options[@]}" "$@" >run.log 2>run.err; }
events() { # DIR EXPRESSION over e, the list of events
    python3 -c "import json,sys; e=[json.loads(l) for l in open('$1/events.jsonl')]; assert $2, [x for x in e if x['event'] not in ('step','plan')]" ||
        fail "$1: $2"
}
run --output whole
events whole "[x['step'] for x in e if x['event']=='checkpoint'] == [3,6,9,12] and all(x['verified'] and x['bytes']>0 and x['write_s']>0 and x['stall_s']>=0 for x in e if x['event']=='checkpoint')"

# Staged or straight, restored and compared: the same bytes.
run --output straight --async_save off
run --output restored --verify_restore
for name in straight restored; do
    same whole/model.safetensors $name/model.safetensors
    for file in model.safetensors trireme/optim-0000-of-0001.safetensors; do
        same whole/checkpoint-12/$file $name/checkpoint-12/$file
    done
done

TR_FAIL=restore.flip:error:5 run --output flipped --verify_restore && fail "a changed bit was restored"
grep -q 'is not what was saved' run.err || fail "$(cat run.err)"

# C4: a save that takes longer than the interval; the next ones are skipped and counted, the last is waited for.
TR_FAIL=ckpt.before_fsync:delay1500:1 run --output slow --save_wait 0 --async_save on
events slow "any(x['event']=='checkpoint_skipped' for x in e) and [x['step'] for x in e if x['event']=='checkpoint'][-1] == 12"
same whole/checkpoint-12/model.safetensors slow/checkpoint-12/model.safetensors

# C2: a file that fails once is written again. C1: one that fails for good costs that checkpoint and nothing else.
TR_FAIL=ckpt.before_fsync:error:2 run --output once
events once "[x['step'] for x in e if x['event']=='checkpoint'] == [3,6,9,12]"
TR_FAIL=ckpt.before_manifest:error:2 run --output twice
events twice "[x['step'] for x in e if x['event']=='checkpoint'] == [3,9,12] and [x['phase'] for x in e if x['event']=='fault'] == ['checkpoint']"
same whole/checkpoint-12/model.safetensors twice/checkpoint-12/model.safetensors
[ -z "$(find twice -name '*.tmp-*')" ] || fail "leftovers: $(find twice -name '*.tmp-*')"

# A removal of an old checkpoint that fails costs nothing: it is tried again at the next save, and at the end of the run.
for hit in 1 2; do
    TR_FAIL=ckpt.prune:error:$hit run --output prune$hit --save_total_limit 2
    events prune$hit "[x['step'] for x in e if x['event']=='checkpoint'] == [3,6,9,12] and [x['phase'] for x in e if x['event']=='fault'] == ['checkpoint']"
done
[ -z "$(find prune1 prune2 -name '*.tmp-*')" ] || fail "leftovers: $(find prune1 prune2 -name '*.tmp-*')"

# C5: a disk that hangs is reported while steps go on; at the end it is given up.
rc=0
TR_FAIL=ckpt.shard_header:delay4000:1 run --output hangs --async_save on --save_wait 0 --save_timeout 0.2 || rc=$?
[ $rc = 75 ] || fail "a disk that hangs: exit $rc"
events hangs "any(x['event']=='fault' and 'does not answer' in x['cause'] for x in e) and [x for x in e if x['event']=='end'][0]['steps'] == 12"
# The disk answers when the run has given up and closed: what the save uses is still there, so it is not freed.
rc=0
ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 TR_FAIL=ckpt.shard_header:delay1500:1,train.closed:delay2500 run --output late --async_save on --save_wait 0 --save_timeout 0.2 || rc=$?
[ $rc = 75 ] || fail "a disk that hangs until the run has closed: exit $rc: $(cat run.err)"

# Too many in a row: stop, and say so.
fails=$(for _ in 1 2 3; do printf 'ckpt.before_manifest:error,'; done)
rc=0
TR_FAIL=${fails%,} run --output stop --max_save_failures 2 || rc=$?
[ $rc = 70 ] && grep -q '2 saves in a row have failed' run.err || fail "exit $rc: $(cat run.err)"

# C1 for real: a disk without room for all checkpoints is refused at the start, with changes that fit; one that fills up
# later costs checkpoints, and not the model, whose room is taken at the start. (Not everybody may mount one.)
if mkdir full && mount -t tmpfs -o size=1200k tmpfs full 2>/dev/null; then
    trap 'umount -l "$work/full"; rm -rf "$work"' EXIT
    rc=0
    run --output full/out || rc=$?
    [ $rc = 2 ] && [ ! -e full/out ] && grep -q 'does not fit: .* free where output full/out is, and 4 checkpoints' run.err ||
        fail "no room for 4 checkpoints: exit $rc: $(cat run.err)"
    mapfile -t advice < <(grep '^  --' run.err)
    [ ${#advice[@]} = 3 ] || fail "advice: $(cat run.err)"
    for line in "${advice[@]}"; do # each of them is true
        rm -rf full/out
        # shellcheck disable=SC2086
        run --output full/out $line || fail "$line: $(cat run.err)"
        ! grep -q '"event":"fault"' full/out/events.jsonl || fail "$line does not fit: $(grep fault full/out/events.jsonl)"
    done
    rm -rf full/out
    TR_FAIL=train.before_step:delay2000:8 run --output full/out --save_total_limit 1 &
    for _ in $(seq 400); do [ -e full/out/latest ] && break || sleep 0.02; done
    cat /dev/zero >full/filler 2>/dev/null || true
    rc=0
    wait $! || rc=$?
    grep -q 'No space left' full/out/events.jsonl run.err run.log || fail "a full disk went unnoticed (exit $rc)"
    [ $rc = 70 ] && grep -q 'the model is written, but' run.err || fail "a disk that fills up: exit $rc: $(cat run.err)"
    same whole/model.safetensors full/out/model.safetensors
    rm -rf full/out # a killed run leaves nothing of its reserve
    room=$(stat -f -c %a full)
    rm full/filler
    empty=$(stat -f -c %a full)
    [ "$room" -lt "$empty" ] || fail "the disk was not full"
    TR_FAIL=train.before_step:kill:2 run --output full/out --save_total_limit 1 || true
    rm -rf full/out
    [ "$(stat -f -c %a full)" = "$empty" ] || fail "a killed run still holds room"
    umount -l full
    trap 'rm -rf "$work"' EXIT
fi
