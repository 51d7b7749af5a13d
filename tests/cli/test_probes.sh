#!/usr/bin/env bash
# launch --metrics-port: probes on loopback say that the agent lives, that a step was made, that a rank hangs; nothing else is served, and a
# client that sends nothing delays nobody.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 --max_steps 6 --threads 1 --quiet)
expect 2 "$TRIREME" launch --metrics-port nowhere train "${options[@]}" --output none
grep -q 'metrics-port nowhere: ' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" launch --metrics-port 0.0.0.0:0 train "${options[@]}" --output none
grep -q 'means every interface of this host; name one, or allow it with --any_interface' stderr || fail "$(cat stderr)"
[ ! -e none ] || fail "a refused launch wrote $(find none)"

cat >ask.py <<'PY'
import socket, sys, time
port, want, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
def ask(text):
    s = socket.create_connection(("127.0.0.1", port), 5)
    s.sendall(text)
    answer = b""
    while chunk := s.recv(65536):
        answer += chunk
    return answer.decode()
path, status = want.split("=")
until = time.time() + seconds
while True:
    answer = ask(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    if answer.startswith(f"HTTP/1.1 {status} ") or time.time() > until:
        break
    time.sleep(0.05)
head, body = answer.split("\r\n\r\n", 1)
assert answer.startswith(f"HTTP/1.1 {status} "), answer
assert f"Content-Length: {len(body)}" in head, answer
print(body)
if path == "/healthz":
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)] # more than it serves at once
    idle.pop().close()
    time.sleep(0.1)
    for s in idle:
        s.close()
    assert ask(b"POST /healthz HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 400 ")
    assert ask(b"GET /etc/passwd HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 404 ")
    assert ask(b"HEAD /healthz HTTP/1.1\r\n\r\n").endswith("\r\n\r\n")
    try: # a request without an end is cut off
        assert ask(b"GET /" + b"a" * 100000) == ""
    except OSError:
        pass
PY
port_of() {
    for _ in $(seq 200); do
        port=$(sed -n 's/.*probes at http:\/\/127.0.0.1:\([0-9]*\)\/livez.*/\1/p' "$1" 2>/dev/null || true) # a busy machine makes it later
        [ -z "$port" ] || return 0
        sleep 0.05
    done
    fail "no port: $(cat "$1")"
}

"$TRIREME" launch --nproc-per-node 2 --metrics-port 0 train "${options[@]}" --max_steps 1000000 --output out >run.log 2>&1 &
pid=$!
port_of run.log
python3 ask.py "$port" /healthz=200 1 >/dev/null
python3 ask.py "$port" /readyz=200 20 >/dev/null
python3 ask.py "$port" /livez=200 1 >/dev/null
python3 ask.py "$port" /metrics=200 1 >metrics
grep -qx 'trireme_agent_ranks_running 2' metrics || fail "$(cat metrics)"
grep -qE '^trireme_agent_rank_step\{rank="1"\} [1-9]' metrics || fail "$(cat metrics)"
[ "$(grep -c '^# TYPE ' metrics)" = 7 ] || fail "$(cat metrics)"
kill -TERM $pid
code=0
wait $pid || code=$?
[ $code = 75 ] || fail "exit $code, want 75: $(cat run.log)"

# A rank that a signal has stopped hangs: /livez says so while the launcher ends the job, for which rank 0 takes its time.
TR_FAIL=train.before_step:stop:3:1,train.before_step:delay9000:3:0 "$TRIREME" launch --nproc-per-node 2 --metrics-port 0 train "${options[@]}" --output hung >hung.log 2>&1 &
pid=$!
port_of hung.log
python3 ask.py "$port" /livez=503 40 >said || fail "no 503: $(cat hung.log)"
grep -q 'rank 1 hangs' said || fail "$(cat said)"
code=0
wait $pid || code=$?
[ $code = 75 ] || fail "exit $code, want 75: $(cat hung.log)"
