#!/usr/bin/env bash
# The program that fetches data ends with the run, however that ends, with all that it has started; and a copy that has no end is cut at nine tenths of
# what was free.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
cat >slow.sh <<'SH'
sleep 61.125 &
echo $$ $! >pids
wait
SH
options=(--model model --sequence_length 32 --train_batch_size 2 --max_steps 2 --threads 1 --quiet --data s3://bucket/train.jsonl)
for signal in KILL TERM INT; do
    rm -f pids
    python3 - "$signal" "$TRIREME" train "${options[@]}" --fetch_command 'bash slow.sh {url} {path}' --output "out-$signal" <<'PY' || fail "SIG$signal while data is fetched"
import os, signal, subprocess, sys, time
sig = getattr(signal, "SIG" + sys.argv[1])
p = subprocess.Popen(sys.argv[2:], stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
end = time.time() + 30
while not (os.path.exists("pids") and len(open("pids").read().split()) == 2) and time.time() < end:
    time.sleep(0.01)
pids = [int(x) for x in open("pids").read().split()]
start = time.time()
p.send_signal(sig)
code = p.wait(20)
assert code == (-9 if sig == signal.SIGKILL else 75) and time.time() - start < 2, f"exit {code} after {time.time() - start:.1f} s"
def is_there(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
time.sleep(0.2)
left = [pid for pid in pids if is_there(pid)]
for pid in pids:
    is_there(pid) and os.kill(pid, 9)
assert not left, f"left running: {left} of {pids}"
PY
done
if mkdir small && mount -t tmpfs -o size=8m tmpfs small 2>/dev/null; then
    trap 'umount "$work/small"; rm -rf "$work"' EXIT
    mkdir small/out
    expect 70 "$TRIREME" train "${options[@]}" --fetch_command 'bash -c "cat /dev/zero >\"\$1\"" - {path} {url}' --output small/out
    grep -q 'its copy has 7.* MiB, nine tenths of what was free' stderr || fail "$(cat stderr)"
    [ -z "$(find small/out -size +64k)" ] || fail "the copy stays: $(find small/out -size +64k)"
fi
