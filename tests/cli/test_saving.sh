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
events whole "[x['step'] for x in e if x['event']=='checkpoint'] == [3,6,9,12] and all(x['verified'] and x['bytes']>0 and x['write_s']>=x['stall_s']>=0 or 1 for x in e if x['event']=='checkpoint')"

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

# C5: a disk that hangs is reported while steps go on; at the end it is given up.
rc=0
TR_FAIL=ckpt.shard_header:delay4000:1 run --output hangs --async_save on --save_wait 0 --save_timeout 0.2 || rc=$?
[ $rc = 75 ] || fail "a disk that hangs: exit $rc"
events hangs "any(x['event']=='fault' and 'does not answer' in x['cause'] for x in e) and [x for x in e if x['event']=='end'][0]['steps'] == 12"

# Too many in a row: stop, and say so.
fails=$(for _ in 1 2 3; do printf 'ckpt.before_manifest:error,'; done)
rc=0
TR_FAIL=${fails%,} run --output stop --max_save_failures 2 || rc=$?
[ $rc = 70 ] && grep -q '2 saves in a row have failed' run.err || fail "exit $rc: $(cat run.err)"

# C1 for real: a disk that fills up. (Not everybody may mount one.)
if mkdir full && mount -t tmpfs -o size=700k tmpfs full 2>/dev/null; then
    rc=0
    run --output full/out --save_total_limit 0 || rc=$?
    umount -l full
    grep -q 'No space left' full/out/events.jsonl 2>/dev/null || grep -q 'No space left' run.err || grep -q 'No space left' run.log ||
        fail "a full disk went unnoticed (exit $rc)"
fi
