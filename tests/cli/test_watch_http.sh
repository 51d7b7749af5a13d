#!/usr/bin/env bash
# `watch --http` as strangers meet it (H6-H12): nothing without the token, fixed paths, GET only, a Host that is ours; slow and silent
# clients are ended, floods of headers and of connections are bounded, and the server goes on.
. "$(dirname "$0")/common.sh"
ldconfig -p | grep 'libmicrohttpd.so.12' >/dev/null || exit 77
mkdir run
for i in 1 2 3; do echo '{"event":"step","time":1,"run":"x","schema":1,"step":'$i',"loss":2.5,"lr":0.1}'; done >run/events.jsonl
expect 2 "$TRIREME" watch run --http 0.0.0.0:0
grep -q 'any_interface' stderr || fail "all interfaces without leave"
expect 2 "$TRIREME" watch run --http 127.0.0.1:99999
expect 2 "$TRIREME" watch run --http example.org:80
expect 2 "$TRIREME" watch nothing --http 0
python3 - "$TRIREME" <<'PY' || fail "see above"
import http.client, os, resource, signal, socket, subprocess, sys, time

server = subprocess.Popen([sys.argv[1], "watch", "run", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
url = server.stdout.readline().strip()
port, token = int(url.split(":")[2].split("/")[0]), url.split("token=")[1]
assert url.startswith("http://127.0.0.1:") and len(token) == 64, url
own = {"Authorization": "Bearer " + token}


def ask(path, headers={}, method="GET", host=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    c.putrequest(method, path, skip_host=host is not None)
    for k, v in {**headers, **({"Host": host} if host else {})}.items():
        c.putheader(k, v)
    c.endheaders()
    r = c.getresponse()
    return r.status, r.getheaders(), r.read() if "event-stream" not in str(r.getheader("Content-Type")) else r.read(20)


def want(code, *args, **kw):
    got = ask(*args, **kw)
    assert got[0] == code, (args, kw, got)
    return got


# H10: without the token nothing, with it everything; another site's name is not this host's
for path in ("/", "/app.js", "/style.css", "/events", "/api/run?run=0", "/?token=" + "0" * 64, "/?token=" + token[:-1], "/app.js?token=" + token):
    assert want(403, path)[2].count(b"loss") == 0
want(403, "/", {"Authorization": "Bearer " + token.upper() if token.upper() != token else "x"})
status, headers, _ = want(303, "/?token=" + token)
cookie = dict(headers)["Set-Cookie"]
assert dict(headers)["Location"] == "/" and "HttpOnly" in cookie and "SameSite=Strict" in cookie
want(200, "/", {"Cookie": cookie.split(";")[0]})
policy = dict(want(200, "/", own)[1])
assert "unsafe" not in policy["Content-Security-Policy"] and "default-src 'none'" in policy["Content-Security-Policy"]
assert policy["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in policy
for host in ("evil.example", "evil.example:%d" % port, "127.0.0.1.evil.example", "localhost.evil", "127.0.0.1:80@evil", "[::1", ""):
    assert ask("/", own, host=host)[0] in (400, 403), host
for host in ("localhost", "localhost:99", "127.0.0.1:1", "[::1]:7", socket.gethostname()):
    want(200, "/", own, host=host)
assert b'"loss":2.5' in want(200, "/api/run?run=0", own)[2]
assert want(200, "/events", own)[2].startswith(b"id: ")
# H6: no path is a file
for path in ("/../run/events.jsonl", "/events.jsonl", "/..%2f..%2fetc/passwd", "/api/log?which=../../x", "//etc/passwd", "/api/run?run=0&run=9", "/index.htm", "/x" * 5000):
    assert ask(path, own)[0] in (400, 404, 414, 431), path
# H9: GET only
for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "HEAD"):
    assert ask("/", own, method)[0] in (405, 501), method
# H8: floods of headers
s = socket.create_connection(("127.0.0.1", port))
s.settimeout(10)
try:
    s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(2000)) + b"\r\n")
    assert s.recv(100).split()[1:2] in ([b"413"], [b"431"], [b"400"])
except (ConnectionResetError, BrokenPipeError):
    pass
# H12, H11: more connections than there are slots, and streams that nobody reads; pages in front of them go on
idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
streams = []
for i in range(20):
    s = socket.create_connection(("127.0.0.1", port))
    try:
        s.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token.encode() + b"\r\n\r\n")
    except OSError:
        pass
    streams.append(s)
time.sleep(0.5)
# H7: a request that comes a byte at a time ends after 5 s, although it never stops
slow, begin = idle[0], time.monotonic()
slow.settimeout(0.5)
ended = None
while ended is None and time.monotonic() - begin < 20:
    try:
        slow.sendall(b"G")
        if slow.recv(1) == b"":
            ended = time.monotonic() - begin
    except TimeoutError:
        pass
    except OSError:
        ended = time.monotonic() - begin
assert ended is not None and ended < 12, ended
want(200, "/", own)
for s in streams:
    s.close()
time.sleep(1)
want(200, "/events", own)
used = len(os.listdir(f"/proc/{server.pid}/fd"))
memory = int(open(f"/proc/{server.pid}/statm").read().split()[1]) * 4096
assert used < 100 and memory < 200e6, (used, memory)
server.send_signal(signal.SIGTERM)
assert server.wait(10) == 0
PY
