#!/usr/bin/env python3
"""The `tokenizers` library and Trireme on the same documents, one thread each, taking turns in one run.

usage: peer_tokenizers.py PROGRAM DOCS MODEL_DIR...   (PROGRAM: bench_tokenizer; DOCS: as tests/token/tokenizer_parity.py
writes them; a MODEL_DIR without tokenizer.json is skipped). One JSON line a model: MB/s, the best of the library's runs.
"""
import json, os, struct, subprocess, sys, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer, __version__

N_REPS = 3


def read_docs(path):
    data, at, docs = open(path, "rb").read(), 0, []
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        docs.append(data[at + 4 : at + 4 + n].decode())
        at += 4 + n
    return docs, len(data) - 4 * len(docs)


def library_speed(path, docs, n_bytes):
    tok = Tokenizer.from_file(path)
    tok.no_truncation()
    tok.no_padding()
    best, n_ids = 0.0, 0
    for _ in range(N_REPS):
        start = time.perf_counter()
        n_ids = sum(len(e.ids) for i in range(0, len(docs), 64) for e in tok.encode_batch_fast(docs[i : i + 64], add_special_tokens=False))
        best = max(best, n_bytes / (time.perf_counter() - start) / 1e6)
    return best, n_ids


def main():
    program, path, *models = sys.argv[1:]
    docs, n_bytes = read_docs(path)
    for m in models:
        if not os.path.exists(os.path.join(m, "tokenizer.json")):
            continue
        ours = json.loads(subprocess.run([program, m, path], check=True, capture_output=True).stdout)
        best, n_ids = library_speed(os.path.join(m, "tokenizer.json"), docs, n_bytes)
        assert n_ids == ours["tokens"], (m, n_ids, ours["tokens"])
        print(json.dumps({"bench": "tokenizer", "model": os.path.basename(os.path.normpath(m)), "bytes": n_bytes, "tokens": n_ids,
                          "trireme_mb_s": ours["encode_mb_s"]["median"], "trireme_best_mb_s": ours["encode_mb_s"]["best"],
                          "tokenizers_mb_s": round(best, 2), "tokenizers": __version__,
                          "ratio": round(ours["encode_mb_s"]["median"] / best, 1)}), flush=True)


main()
