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

# I4: a limit on file size that no checkpoint fits is refused at the start; one that comes later hits the save and the log, and
# training goes on.
(ulimit -f 60 && "$TRIREME" train "${options[@]}" --save_steps 2 --output limit) >limit.log 2>&1 && fail "a model of 110 KB fits in 60 KB"
grep -q 'ulimit -f allows files of 60.00 KiB' limit.log && [ ! -e limit ] || fail "a limit on files: $(cat limit.log)"
TR_FAIL=train.before_step:delay2000:2 "$TRIREME" train "${options[@]}" --save_steps 2 --output limit >limit.log 2>&1 &
for _ in $(seq 400); do grep -qs '"event":"step"' limit/events.jsonl && break || sleep 0.02; done
python3 -c "import resource; resource.prlimit($!, resource.RLIMIT_FSIZE, (61440, 61440))"
wait $! && fail "a model of 110 KB fits in 60 KB"
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
python3 - "$TRIREME" train "${options[@]}" --max_steps 100000 --save_steps 2 --output shut <<'PY' || fail "a standard descriptor that was closed is a file of the run"
import os, signal, subprocess, sys, time
p = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', *sys.argv]) # $0 is "-"
end = time.time() + 60
while not os.path.exists("shut/checkpoint-2") and p.poll() is None and time.time() < end:
    time.sleep(0.01)
fds = [os.readlink(f"/proc/{p.pid}/fd/{fd}") for fd in range(3)]
p.send_signal(signal.SIGTERM)
assert fds == ["/dev/null"] * 3 and p.wait() == 75, (fds, p.returncode)
PY
# A diagnostic that cannot be written costs its lines, not the run.
TR_FAIL=train.before_step:delay1500:3 "$TRIREME" train "${options[@]}" --grad_norm_steps 1 --output norms >norms.log 2>&1 &
for _ in $(seq 400); do [ "$(grep -c norms norms/grad_norms.jsonl 2>/dev/null)" = 2 ] && break || sleep 0.02; done
echo mine >mine && ln -sf ../mine norms/grad_norms.jsonl
wait $! || fail "a link in the place of grad_norms.jsonl ends the run: $(cat norms.log)"
[ "$(grep -c 'fault: .*grad_norms.jsonl' norms.log)" = 1 ] && [ "$(cat mine)" = mine ] || fail "$(cat mine norms.log)"
same clean/model.safetensors norms/model.safetensors
# What another verb prints is its result: a disk that is full is an error, a reader that has gone is not.
for verb in 'plan --model model --json' 'ckpt list closed' 'generate --model model --prompt oars --max_new_tokens 2' 'config show'; do
    rc=0
    "$TRIREME" $verb >/dev/full 2>stderr || rc=$?
    [ $rc = 70 ] && grep -q 'standard output did not take' stderr || fail "$verb to a full disk: exit $rc, $(cat stderr)"
    "$TRIREME" $verb >&- 2>stderr || fail "$verb without stdout: $(cat stderr)"
done
rc=0
"$TRIREME" launch --nproc-per-node 2 eval --model model --data train.jsonl --sequence_length 32 --json >/dev/full 2>stderr || rc=$?
[ $rc = 70 ] && grep -q 'standard output did not take' stderr || fail "two ranks and a full disk: exit $rc, $(cat stderr)"
"$TRIREME" generate --model model --prompt oars --max_new_tokens 64 2>stderr | true
[ ! -s stderr ] || fail "a reader that has gone: $(cat stderr)"
"$TRIREME" train "${options[@]}" --logging_steps 1 --output full >/dev/full 2>full.log || fail "stdout full: $(cat full.log)"
for out in closed gone full; do
    for _ in $(seq 100); do [ -e $out/model.safetensors ] && break || sleep 0.05; done
    same clean/model.safetensors $out/model.safetensors
done

# D9: a batch in which nothing is to be learnt is refused, before step 0 where the rows tell it.
printf '{"prompt": "%s", "completion": "b"}\n' $(seq 1000 1007 | sed 's/.*/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/') >masked.jsonl
expect 2 "$TRIREME" train --model model --data masked.jsonl --sequence_length 32 --long_documents cut --packing none --output masked
grep -q 'no document is left to train on' stderr || fail "$(cat stderr)"

# E5: more memory than allowed is refused with both numbers, before anything is written.
expect 2 "$TRIREME" train "${options[@]}" --output big --memory_budget 4096
grep -qE '[0-9.]+ [KMG]iB' stderr || fail "no numbers: $(cat stderr)"
for verb in train plan; do # and with the cheapest changes that do fit it
    rows=(--train_batch_size 64 --per_device_train_batch_size 64 --sequence_length 32)
    [ $verb = plan ] || rows+=(--data train.jsonl --output big --max_steps 1)
    expect 2 "$TRIREME" $verb --model model "${rows[@]}" --threads 1 --memory_budget 12MiB
    grep -q 'does not fit: memory_budget 12.00 MiB: a rank needs .* the cheapest first' stderr && [ "$(grep -c '^  --' stderr)" = 3 ] ||
        fail "advice: $(cat stderr)"
    expect 0 "$TRIREME" plan --model model --train_batch_size 64 --per_device_train_batch_size 64 --sequence_length 32 --threads 1 \
        $(sed -n 's/^  \(--[^:]*\):.*/\1/p' stderr | head -n 1) --memory_budget 12MiB
done
[ ! -e big ] || fail "a refused run wrote $(ls big)"

# I3: more memory than the host has: refused before anything is written, with what would fit.
expect 2 "$TRIREME" train "${options[@]}" --output big --sequence_length 10000000
grep -q 'does not fit: a rank needs .* the cheapest first' stderr && [ "$(grep -c '^  --' stderr)" = 3 ] || fail "advice: $(cat stderr)"
expect 2 "$TRIREME" train "${options[@]}" --output big --train_batch_size 1000000 --per_device_train_batch_size 1000000
grep -q '^  --per_device_train_batch_size' stderr || fail "advice: $(cat stderr)"
expect 2 "$TRIREME" eval --model model --data train.jsonl --sequence_length 10000000
grep -q 'does not fit' stderr || fail "eval: $(cat stderr)"
[ ! -e big ] || fail "a refused run wrote $(ls big)"

# A limit on addresses is one of them (an address sanitizer needs all there are).
many=(--max_steps 1 --train_batch_size 4096 --per_device_train_batch_size 4096)
if (ulimit -v 1000000 && "$TRIREME" --version) >/dev/null 2>&1; then
    (ulimit -v 300000 && expect 2 "$TRIREME" train "${options[@]}" "${many[@]}" --output big)
    grep -q 'ulimit -v leaves .*(raise it)' stderr || fail "ulimit -v: $(cat stderr)"
    # A proof that does not fit has remedies of its own.
    (ulimit -v 60000 && "$TRIREME" ckpt export clean --to hf --output proven) >proven.log 2>&1 && fail "60 MB are enough for a proof"
    grep -q 'does not fit: .*or ckpt export --rows 0' proven.log && [ ! -e proven ] || fail "$(cat proven.log)"
    (ulimit -v 60000 && "$TRIREME" ckpt export clean --to hf --rows 0 --output proven) >proven.log 2>&1 || fail "$(cat proven.log)"
    # Memory that is refused after all, as a GPU or a host without overcommit does: the same answer.
    TR_FAIL=train.has_joined:delay1500 "$TRIREME" train "${options[@]}" --output refused >refused.log 2>&1 &
    for _ in $(seq 300); do [ -e refused ] && break || sleep 0.01; done
    python3 -c "import resource; resource.prlimit($!, resource.RLIMIT_AS, (1 << 20, 1 << 20))"
    rc=0
    wait $! || rc=$?
    [ $rc = 2 ] && grep -q 'does not fit: .*refused' refused.log || fail "memory that is refused: exit $rc: $(cat refused.log)"
fi

# I4: too few open files: refused by name, by a rank and by the launcher.
(ulimit -n 40 && expect 2 "$TRIREME" train "${options[@]}" --output files)
grep -q 'ulimit -n allows 40 open files' stderr || fail "ulimit -n: $(cat stderr)"
(ulimit -n 40 && expect 2 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output files)
grep -q 'ulimit -n allows 40 open files' stderr && [ ! -e files ] || fail "ulimit -n: $(cat stderr)"

# MPI with a small /dev/shm: a message, where UCX would end by SIGBUS.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # what MPI libraries keep until the end is theirs
mpi=(--dp 2 --per_device_train_batch_size 1 --comm mpi --output mpi)
if [ -e "$(dirname "$TRIREME")/libtrireme_mpich.so" ] && unshare -m true 2>/dev/null; then
    # $work may itself be in /dev/shm, which the new one hides: it is moved aside first
    in_small_shm() { unshare -m bash -c 'mount --make-rprivate / && mkdir /tmp/shm.$$ && mount --bind "$0" /tmp/shm.$$ && cd /tmp/shm.$$ &&
        mount -t tmpfs -o size=4m tmpfs /dev/shm && "$@"; rc=$?; cd / && umount -l /tmp/shm.$$ && rmdir /tmp/shm.$$; exit $rc' "$work" "$@"; }
    expect 2 in_small_shm "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" "${mpi[@]}"
    grep -q 'MPI needs 8.50 MiB in /dev/shm for the 2 ranks of this host, which has 4.00 MiB' stderr || fail "small /dev/shm: $(cat stderr)"
    ! grep -q 'SIGSEGV\|SIGBUS' stderr || fail "MPI in a small /dev/shm: $(cat stderr)"
    UCX_TLS=tcp,self UCX_NET_DEVICES=lo expect 0 in_small_shm "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" "${mpi[@]}"
fi

# in_cgroup BYTES COMMAND: in a memory cgroup of its own. 99: this host does not let us make one.
in_cgroup() {
    local at=/sys/fs/cgroup/memory limit=memory.limit_in_bytes
    [ -d $at ] || { at=/sys/fs/cgroup limit=memory.max; }
    local dir=$at/trireme-test-$$ rc=0
    mkdir "$dir" 2>/dev/null || return 99
    echo "$1" 2>/dev/null >"$dir/$limit" || { rmdir "$dir"; return 99; }
    shift
    (echo $BASHPID >"$dir/cgroup.procs" && exec "$@") || rc=$?
    for _ in $(seq 50); do rmdir "$dir" 2>/dev/null && break || sleep 0.1; done
    return $rc
}
rc=0
in_cgroup 100M true || rc=$?
room=100M
[ $rc != 99 ] && [[ $(ldd "$TRIREME") != *asan* ]] || { # shadow memory counts too
    echo "no memory cgroup of our own here, or a sanitizer: the rest is not tested"
    exit 0
}
# What is advised fits: it runs in the cgroup that the first try did not fit.
expect 2 in_cgroup $room "$TRIREME" train "${options[@]}" "${many[@]}" --output boxed
grep -q 'cgroup .*trireme-test.* leaves' stderr || fail "cgroup: $(cat stderr)"
[ ! -e boxed ] || fail "a refused run wrote $(ls boxed)"
mapfile -t advice < <(grep -o '^  --[^:]*' stderr)
[ ${#advice[@]} -ge 2 ] || fail "advice: $(cat stderr)"
for line in "${advice[@]:0:2}"; do
    rm -rf boxed
    # shellcheck disable=SC2086
    expect 0 in_cgroup $room "$TRIREME" train "${options[@]}" "${many[@]}" $line --output boxed
done
# Ranks of a host are counted together, and all of them leave alike.
two=(--dp 2 --max_steps 1 --train_batch_size 640 --per_device_train_batch_size 320)
expect 2 in_cgroup $room "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" "${two[@]}" --output pair
grep -q 'the 2 ranks of the host of rank 0 need .* together' stderr || fail "two ranks: $(cat stderr)"
[ ! -e pair/events.jsonl ] || fail "two ranks that do not fit have begun"
# memory_budget 0 is what the machine has: recompute auto keeps to it.
expect 0 in_cgroup $room "$TRIREME" plan --model model --sequence_length 32 --per_device_train_batch_size 700 --recompute auto --threads 1
! grep -q 'recompute: none in 4' stdout || fail "recompute auto ignores the machine: $(cat stdout)"
