#!/usr/bin/env python3
"""sync.py RUN [WANDB] - does W&B's own client upload what a run's log holds? `wandb sync` (0.31 and newer read .wandb files in their own program, not in
Python) runs against a server of this script on the loopback interface, which answers what the client waits for; the rows that arrive are compared
with events.jsonl, value for value."""
import gzip
import glob
import http.server
import json
import os
import subprocess
import sys
import threading

from read_back import compare, wanted

rows = []


def answer(path, text, own):
    if path.endswith("/file_stream"):
        rows.extend(json.loads(text).get("files", {}).get("wandb-history.jsonl", {}).get("content", []))
        return {}
    if "upsertBucket" in text:
        bucket = {"id": "x", "name": "x", "displayName": "x", "config": "{}", "historyLineCount": 0,
                  "project": {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}}
        return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
    if "CreateRunFiles" in text:
        files = [{"name": name, "uploadUrl": f"{own}/{i}"} for i, name in enumerate(json.loads(text)["variables"]["files"])]
        return {"data": {"createRunFiles": {"runID": "x", "uploadHeaders": [], "files": files}}}
    return {"data": {"viewer": {"id": "1", "entity": "e", "flags": "{}", "teams": {"edges": []}}, "serverInfo": {"features": []}}}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        reply = json.dumps(answer(self.path, body.decode("utf-8", "replace"), self.server.own)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_PUT = do_POST

    def log_message(self, *args):
        pass


def main():
    run, client = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "wandb"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.own = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    subprocess.run([client, "sync", *glob.glob(f"{run}/wandb/offline-run-*")], check=True, timeout=300,
                   env=dict(os.environ, WANDB_BASE_URL=server.own, WANDB_API_KEY="0" * 40))
    server.shutdown()
    got, last = {}, -1
    for row in map(json.loads, rows):
        assert row["_step"] > last, f"row {row['_step']} behind row {last}"
        last = row["_step"]
        got.update({(name, row["train/global_step"]): value for name, value in row.items()})
    print(f"{len(rows)} rows")
    compare("wandb sync", wanted(run), got, False)


if __name__ == "__main__":
    main()
