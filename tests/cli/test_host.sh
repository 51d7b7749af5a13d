#!/usr/bin/env bash
# The host says no: files may grow no longer (I4), shared memory that may not be had (I3), stdout is closed or full and the log's disk is full (I8), no target in a batch (D9),
# memory that is not there (E5): each a clear message or no effect at all.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 6 --learning_rate 1e-2
    --threads 1 --data_proof none --save_steps 0)
expect 0 "$TRIREME" train "${options[@]}" --output clean

# I4: a limit on file size hits the save and the log; training goes on, and the fault is told.
(ulimit -f 60 && "$TRIREME" train "${options[@]}" --save_steps 2 --output limit) >limit.log 2>&1 && fail "a model of 110 KB fits in 60 KB"
grep -q 'fault: .*checkpoint' limit.log || fail "a save that hits the limit is not told: $(cat limit.log)"
[ "$(grep -c '"event":"step"' limit/events.jsonl)" = 6 ] || fail "steps after a failed save: $(cat limit.log)"
[ -z "$(find limit -name '*.tmp-*')" ] || fail "leftovers: $(find limit)"

# I3: refused at the start, with the number needed.
(ulimit -f 4000 && "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output shared) >shared.log 2>&1 && fail "4 MB are enough for two ranks"
grep -qE 'shared segment of [0-9]+ bytes: .*ulimit -f' shared.log || fail "shared memory is not named: $(cat shared.log)"
! grep -q '"event":"step"' shared/events.jsonl 2>/dev/null || fail "it trained without shared memory"

# I8: nobody reads, nobody can read, or nothing can be written: the bits are those of the clean run.
"$TRIREME" train "${options[@]}" --output closed >&- 2>closed.log || fail "stdout closed: $(cat closed.log)"
"$TRIREME" train "${options[@]}" --logging_steps 1 --output gone 2>/dev/null | true
"$TRIREME" train "${options[@]}" --logging_steps 1 --output full >/dev/full 2>full.log || fail "stdout full: $(cat full.log)"
for out in closed gone full; do
    for _ in $(seq 100); do [ -e $out/model.safetensors ] && break || sleep 0.05; done
    same clean/model.safetensors $out/model.safetensors
done

# D9: a batch in which nothing is to be learnt changes nothing but its step's number.
printf '{"prompt": "%s", "completion": "b"}\n' $(seq 1000 1007 | sed 's/.*/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/') >masked.jsonl
"$TRIREME" train "${options[@]}" --data masked.jsonl --long_documents cut --packing none --output masked --weight_decay 0 >masked.log 2>&1 || true
grep -q 'nan\|inf' masked.log && fail "not finite: $(cat masked.log)"

# E5: more memory than allowed is refused with both numbers, before anything is written.
expect 2 "$TRIREME" train "${options[@]}" --output big --memory_budget 4096
grep -qE '[0-9.]+ [KMG]iB' stderr || fail "no numbers: $(cat stderr)"
[ ! -e big ] || fail "a refused run wrote $(ls big)"
