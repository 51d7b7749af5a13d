#!/usr/bin/env bash
# A checkpoint that changes between its verification and its load: no such byte is used, all ranks go to the next older one, and the
# run ends with the bits of one that was resumed there. Ranks stop themselves in the window (TR_FAIL) while the files change.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 2 --threads 1 --max_steps 3 --quiet)
"$TRIREME" train "${options[@]}" --save_steps 1 --output whole >run.log
rm -r whole/checkpoint-3
flip() { python3 -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(-9, 2); b = f.read(1); f.seek(-9, 2); f.write(bytes([b[0] ^ 1]))' "$1"; }

stopped() { # a process of this job that has stopped itself
    local p
    for _ in $(seq 500); do
        for p in $(cat /proc/"$1"/task/"$1"/children) "$1"; do
            if [ "$(sed 's/.*) //; s/ .*//' /proc/"$p"/stat 2>/dev/null)" = T ]; then echo "$p" && return; fi
        done
        sleep 0.02
    done
    fail "no rank stopped: $(cat stderr)"
}

# again CODE POINT COMMAND [WORDS before the verb]: resumes, and COMMAND changes ./run while a rank stands at POINT.
again() {
    local want=$1 point=$2 command=$3 got=0 job rank
    shift 3
    rm -rf run && cp -r whole run
    TR_FAIL=$point "$TRIREME" "$@" train "${options[@]}" --resume auto --output run >stdout 2>stderr &
    job=$!
    rank=$(stopped "$job")
    (cd run && eval "$command")
    kill -CONT "$rank"
    wait "$job" || got=$?
    [ "$got" = "$want" ] || fail "$command at $point: exit $got, want $want: $(cat stdout stderr)"
}
older() { # WHO saw it
    grep -qs "$1 cannot use checkpoint-2, an older one is tried: " stdout stderr run/logs/rank-0000.log || fail "no line about it: $(cat stdout stderr)"
    grep -qs 'resuming after step 1' stdout stderr run/logs/rank-0000.log || fail "$(cat stdout stderr)"
    same run/model.safetensors "${2:-whole}/model.safetensors"
}

again 0 resume.verified:stop 'flip checkpoint-2/model.safetensors'
older 'rank 0'
if [ -z "${TR_SANITIZED:-}" ]; then # slow there
    again 0 ckpt.load_weights:stop 'flip checkpoint-2/model.safetensors'
    older 'rank 0'
    again 0 resume.verified:stop 'flip checkpoint-2/trireme/optim-0000-of-0001.safetensors'
    older 'rank 0'
    again 0 resume.verified:stop 'rm checkpoint-2/model.safetensors'
    older 'rank 0'
fi
again 0 resume.verified:stop 'sed -i s/1/2/ checkpoint-2/trireme/state.json'
older 'rank 0'
again 0 ckpt.load_optim:stop 'truncate -s -8 checkpoint-2/trireme/optim-0000-of-0001.safetensors'
older 'rank 0'
cp -r whole two && rm -r two/checkpoint-2
"$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --resume auto --output two >run.log 2>&1
again 0 load.optim:stop:2:1 'flip checkpoint-2/trireme/optim-0000-of-0001.safetensors' launch --nproc-per-node 2 # one rank sees it, both go back
older 'rank 1' two

# None left: an error that names them, and the log and the checkpoints are as they were.
again 70 resume.verified:stop 'flip checkpoint-2/model.safetensors; flip checkpoint-1/model.safetensors'
grep -q 'none of 2 checkpoints is good' stderr || fail "$(cat stderr)"
same run/events.jsonl whole/events.jsonl

# A load that fails for another reason leaves a good checkpoint to the next start.
rm -rf run && cp -r whole run
TR_FAIL=ckpt.load_optim:error expect 70 "$TRIREME" train "${options[@]}" --resume auto --output run
! grep -q 'an older one' stdout stderr || fail "a good checkpoint is passed over: $(cat stdout stderr)"
expect 0 "$TRIREME" train "${options[@]}" --resume auto --output run
grep -q 'resuming after step 2' stdout stderr || fail "$(cat stdout stderr)"
