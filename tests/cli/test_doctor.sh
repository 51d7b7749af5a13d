#!/usr/bin/env bash
# doctor names what is wrong with a machine and the fix: low limits, a driver library that does not fit, no GPU, and, where
# this test may make namespaces, a tiny /dev/shm, a full disk and a cgroup with little memory. runs lists and compares.
source "$(dirname "$0")/common.sh"
problem() { # WHAT: in the last line of stdout; its value and its fix must be texts
    python3 - "$1" <<'PY' || fail "doctor does not name $1: $(tail -n 1 stdout)"
import json, sys
d = json.loads(open("stdout").readlines()[-1])
found = [p for p in d["problems"] if p["what"].startswith(sys.argv[1])]
sys.exit(not (found and all(p["value"] and p["fix"] for p in found)))
PY
}
ready() { python3 -c 'import json,sys; sys.exit(sys.argv[1] not in json.loads(open("stdout").readlines()[-1])["ready_for"])' "$1"; }

expect 0 "$TRIREME" doctor
tail -n 1 stdout | grep -q '^ready for: .*training on the CPU.*checkpoints' || fail "the last line is: $(tail -n 1 stdout)"
expect 0 "$TRIREME" doctor --json
ready cpu && ready checkpoints || fail "not ready for a CPU: $(cat stdout)"
expect 2 "$TRIREME" doctor now

(ulimit -n 200 && expect 0 "$TRIREME" doctor --json && problem 'ulimit -n' && ! ready ranks) || fail "few files"
(ulimit -f 1000 && expect 1 "$TRIREME" doctor --json && problem 'ulimit -f' && ! ready checkpoints) || fail "small files"
if [ -z "${TR_SANITIZED:-}" ]; then # sanitizers reserve more addresses than that
    (ulimit -v 4000000 && expect 0 "$TRIREME" doctor --json && problem 'ulimit -v') || fail "few addresses"
fi
expect 0 "$TRIREME" doctor --json --output absent/deeper/ # a run makes it
ready checkpoints && [ ! -e absent ] || fail "not ready for an output that a run makes: $(cat stdout)"
echo >file
for output in file file/deeper; do
    expect 1 "$TRIREME" doctor --json --output $output
    problem output
done
mkdir lib && echo 'int nothing_of_nvml;' | "${CC:-cc}" -shared -fPIC -x c - -o lib/libnvidia-ml.so.1
if [ -z "${TR_SANITIZED:-}" ]; then
    expect 0 env LD_LIBRARY_PATH="$PWD/lib" "$TRIREME" doctor --json
    problem 'GPU driver library'
fi
ready gpu && fail "ready for GPUs with a library that is none"
if [ ! -e /dev/nvidiactl ]; then
    expect 0 "$TRIREME" doctor --json
    problem GPU
fi

# Namespaces: as root only, and not in every container.
if [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; then
    mkdir disk
    unshare -m sh -ec "mount -t tmpfs -o size=1m none disk && '$TRIREME' doctor --json --output disk" >stdout || true
    problem disk
    ready checkpoints && fail "ready to save on a disk of 1 MiB"
    unshare -m sh -ec "mount -t tmpfs -o ro none disk && '$TRIREME' doctor --output disk" >stdout || true
    grep -q 'disk: cannot create disk/.*Read-only file system' stdout || fail "a disk that is read-only: $(cat stdout)"
    unshare -m sh -ec "mount -t tmpfs none /proc && '$TRIREME' doctor --json" >bare 2>stderr || true
    mv bare stdout # /proc is gone: the kernel still knows the memory
    problem /proc
    python3 -c 'import json; v = [f["value"] for f in json.loads(open("stdout").readlines()[-1])["facts"] if f["what"] == "memory"][0]; assert "EiB" not in v, v' ||
        fail "without /proc: $(cat stdout)"
    unshare -m sh -ec "mount -t tmpfs -o size=32m none /dev/shm && cd / && '$TRIREME' doctor --json --output /" >stdout 2>stderr || true
    [ ! -s stdout ] || { problem /dev/shm; ! ready ranks || fail "ready for ranks with 32 MiB of /dev/shm"; }
fi

# A cgroup with little memory, of either version, where this test may make one.
for limit in /sys/fs/cgroup/memory/trireme-doctor-$$/memory.limit_in_bytes /sys/fs/cgroup/trireme-doctor-$$/memory.max; do
    group=$(dirname "$limit")
    [ -z "${TR_SANITIZED:-}" ] && mkdir "$group" 2>/dev/null || continue
    disk=$(mktemp -d -p /tmp) # what is written to /dev/shm counts as memory of the cgroup
    for size in 400M 48M; do
        [ -e "$limit" ] && echo $size 2>/dev/null >"$limit" || continue
        (echo "$BASHPID" >"$group/cgroup.procs" && exec "$TRIREME" doctor --json --output "$disk") >stdout 2>stderr || true
        problem memory
        grep -q "by cgroup [^ ]*trireme-doctor" stdout || fail "$size: the cgroup is not named: $(cat stdout)"
        [ $size = 400M ] || ! ready cpu || fail "ready to train in 48 MiB"
    done
    rmdir "$disk" "$group" 2>/dev/null || { sleep 0.2 && rmdir "$group"; } # the kernel forgets a process a little later
done

# runs
tiny_model model
tiny_text train.jsonl
for name in a b c; do
    rate=$([ $name = c ] && echo 1e-3 || echo 1e-4)
    "$TRIREME" train --model model --data train.jsonl --output "all/$name" --sequence_length 32 --per_device_train_batch_size 2 --max_steps 4 --learning_rate "$rate" --quiet --threads 1 >/dev/null
done
rm -rf all/b/checkpoint-4
expect 0 "$TRIREME" runs all --json --sort loss
python3 - <<'PY' || fail "runs: $(cat stdout)"
import json
runs = json.loads(open("stdout").readlines()[-1])["runs"]
last = {n: [json.loads(l) for l in open(f"all/{n}/events.jsonl") if '"step"' in l] for n in "abc"}
loss = {n: [e["loss"] for e in v if e["event"] == "step"][-1] for n, v in last.items()}
assert {r["path"] for r in runs} == {"all/a", "all/b", "all/c"} and all(r["state"] == "done" and r["step"] == 4 for r in runs), runs
assert all(r["loss"] == loss[r["path"][-1]] for r in runs) and [r["loss"] for r in runs] == sorted(loss.values()), runs
PY
# Of several sets of evaluation data, the loss of the one that chooses the best step.
for set in '"main","best_of":true,"loss":1.5' '"other","best_of":false,"loss":9'; do
    echo '{"event":"eval","time":1,"run":"x","schema":1,"step":4,"set":'"$set}" >>all/c/events.jsonl
done
expect 0 "$TRIREME" runs all --json
grep -q '"eval_loss": *1.5' stdout || fail "runs: $(cat stdout)"
expect 0 "$TRIREME" runs all
[ "$(wc -l <stdout)" = 4 ] || fail "runs: $(cat stdout)"
expect 0 "$TRIREME" runs diff all/a all/b # one has no checkpoint; options, counts of data and the curve are equal
cp -r all/a twin
expect 0 "$TRIREME" runs diff all/a twin # where the output lies is no difference
rm -r twin/checkpoint-*
expect 1 "$TRIREME" runs diff twin all/c
grep -q '^option *learning_rate *0.0001 -> 0.001$' stdout || fail "no checkpoint, no options: $(cat stdout)"
mkdir odd
printf '%s\n' '{"event":"config","options":[1,2]}' '{"event":"step","step":1,"loss":1e999}' '{"event":"step","step":2,"loss":null}' '{"event":"data","sources":5}' >odd/events.jsonl
expect 0 "$TRIREME" runs diff odd odd --json
expect 1 "$TRIREME" runs diff all/a all/c --json
python3 - <<'PY' || fail "runs diff: $(cat stdout)"
import json
d = json.loads(open("stdout").readlines()[-1])
assert d["options"] == [{"name": "learning_rate", "a": 1e-4, "b": 1e-3}] and d["data"] == [], d
assert d["curve"]["common_steps"] == 4 and d["curve"]["first_difference"] in (1, 2) and d["curve"]["largest_difference"] > 0, d
PY
expect 2 "$TRIREME" runs all --sort beauty
expect 2 "$TRIREME" runs absent
mkdir empty
expect 0 "$TRIREME" runs empty
echo ok
