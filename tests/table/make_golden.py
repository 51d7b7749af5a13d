#!/usr/bin/env python3
"""make_golden.py - writes tests/table/golden: small files of each format and, beside each, the records that pyarrow, datasets, csv or json
read from it, one JSON object a line; files whose names are the same up to the first - or dot hold the same records. Needs pyarrow and datasets; CI only compares with what is recorded.

usage: make_golden.py [DIRECTORY]
"""

import csv
import gzip
import json
import math
import random
import re
import shutil
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from oracle import chat, table, text

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")


def plain(x):
    """JSON has no NaN and no infinity: null."""
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    if isinstance(x, bytes):  # of a text where they are one
        try:
            return None if b"\0" in x else x.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return [plain(v) for v in x] if isinstance(x, list) else x


def record(name, rows):
    path = HERE / (re.split("[-.]", name)[0] + ".rows")
    body = "".join(json.dumps(plain(r), ensure_ascii=False) + "\n" for r in rows)
    assert not path.exists() or path.read_text() == body, f"{name} differs from the others of its name"
    path.write_text(body)


def parquet(name, t, **how):
    pq.write_table(t, HERE / f"{name}.parquet", **how)
    record(f"{name}.parquet", pq.read_table(HERE / f"{name}.parquet").to_pylist())


def small_chat(r, n):
    t = chat(r)
    while t.num_rows < n:
        t = pa.concat_tables([t, chat(r)])
    return t.slice(0, n)


TALK = small_chat(random.Random(7), 24)


def parquets():
    r = random.Random(7)
    for codec in ["none", "snappy", "gzip", "zstd", "lz4"]:
        parquet(f"chat-{codec}", TALK, compression=codec, data_page_version="2.0" if codec in ("zstd", "none") else "1.0", write_page_checksum=codec != "lz4", row_group_size=9)
    flat = pa.table(
        {
            "text": pa.array([text(r) if i % 7 else None for i in range(60)]),
            "n": pa.array([r.randrange(-(1 << 40), 1 << 40) for _ in range(60)], pa.int64()),
            "small": pa.array([i * i % 97 - 40 for i in range(60)], pa.int32()),
            "x": pa.array([r.gauss(0, 1) for _ in range(60)], pa.float64()),
            "y": pa.array([r.gauss(0, 1) for _ in range(60)], pa.float32()),
            "is": pa.array([r.random() < 0.5 for _ in range(60)]),
        }
    )
    for i, text_encoding in enumerate(["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "PLAIN"]):
        numbers = ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "PLAIN"][i]
        reals = ["BYTE_STREAM_SPLIT", "PLAIN", "PLAIN"][i]
        encoding = {"text": text_encoding, "n": numbers, "small": numbers, "x": reals, "y": reals, "is": ["RLE", "PLAIN", "PLAIN"][i]}
        parquet(f"flat-{i}", flat, use_dictionary=False, column_encoding=encoding, data_page_version="2.0" if i == 0 else "1.0", data_page_size=256, compression="zstd")
    parquet("flat-dictionary", flat, data_page_size=100, row_group_size=30, compression="snappy")
    parquet("empty", flat.slice(0, 0))
    seed = 100
    for i in range(4):
        while True:
            seed += 1
            t = table(random.Random(seed))
            if any(pa.types.is_nested(f.type) for f in t.schema) and 2 <= t.num_rows <= 100:
                break
        parquet(f"nested{i}", t, data_page_version=["1.0", "2.0"][i % 2], use_compliant_nested_type=i < 2, compression="zstd")


BYTES = pa.table({"text": ["one", "two", "three", None], "image": pa.array([b"\x89PNG\0\xff", b"plain bytes, \xc3\xbc", b"", None]),
                  "hash": pa.array([b"abcd", b"\0\1\2\3", b"\xff\xfe\xfd\xfc", None], pa.binary(4)),
                  "parts": [[{"raw": b"\xf0\x9f"}], [{"raw": b"x" * 40 + b"\xff"}, {"raw": b"y" * 40}], [], None]})


def arrows():
    parquet("bytes-1", BYTES)
    with ipc.new_stream(HERE / "bytes-2.arrow", BYTES.schema) as w:
        w.write_table(BYTES)
    record("bytes-2.arrow", BYTES.to_pylist())
    for kind, codec in [("stream", None), ("file", "lz4"), ("file", "zstd"), ("stream", "zstd")]:
        name = f"chat-{kind}-{codec or 'plain'}.arrow"
        opened = ipc.new_stream if kind == "stream" else ipc.new_file
        with opened(HERE / name, TALK.schema, options=ipc.IpcWriteOptions(compression=codec)) as w:
            w.write_table(TALK, max_chunksize=11)
        record(name, TALK.to_pylist())
    words = pa.table({"text": pa.array(["a", "b", None, "a", "ü"] * 6).dictionary_encode(), "ids": pa.array([[1, 2], None, [], [3], [4]] * 6, pa.large_list(pa.uint16()))})
    with ipc.new_file(HERE / "words.arrow", words.schema) as w:
        w.write_table(words)
    record("words.arrow", words.to_pylist())
    views()
    with ipc.new_stream(HERE / "empty.arrow", words.schema):
        pass
    record("empty.arrow", [])


def views():
    """Texts as views: short ones stand in the view, long ones in buffers of their own; a list of them, and a dictionary."""
    words = ["a", "", None, "twelve bytes", "thirteen byte", "ü" * 30, "a longer one than any view holds"] * 5
    t = pa.table({"text": pa.array(words, pa.string_view()), "raw": pa.array([w.encode() if w else None for w in words], pa.binary_view()),
                  "list": pa.array([[w, "x" * 40] if w else None for w in words], pa.list_(pa.string_view())),
                  "kind": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1, 0] * 7, pa.int32()), pa.array(["short", "a kind with a long name"], pa.string_view()))})
    for name, opened, codec in [("views-stream.arrow", ipc.new_stream, None), ("views-zstd.arrow", ipc.new_file, "zstd")]:
        with opened(HERE / name, t.schema, options=ipc.IpcWriteOptions(compression=codec)) as w:
            w.write_table(t, max_chunksize=16)
        record(name, [{k: v.decode() if isinstance(v, bytes) else v for k, v in row.items()} for row in t.to_pylist()])


def texts():
    r = random.Random(9)
    rows = [{"prompt": text(r), "completion": text(r)} for _ in range(25)]
    for name, tab, quoting in [("rows.csv", ",", csv.QUOTE_MINIMAL), ("rows-quoted.csv", ",", csv.QUOTE_ALL), ("rows.tsv", "\t", csv.QUOTE_MINIMAL)]:
        with open(HERE / name, "w", newline="", encoding="utf-8-sig" if name == "rows-quoted.csv" else "utf-8") as f:
            w = csv.DictWriter(f, list(rows[0]), delimiter=tab, quoting=quoting)
            w.writeheader()
            w.writerows(rows)
        with open(HERE / name, newline="", encoding="utf-8-sig") as f:
            record(name, list(csv.DictReader(f, delimiter=tab)))
    (HERE / "rows.csv.gz").write_bytes(gzip.compress((HERE / "rows.csv").read_bytes(), mtime=0))
    record("rows.csv.gz", rows)
    (HERE / "rows-array.json").write_text(json.dumps(rows, indent=2, ensure_ascii=False))
    (HERE / "rows-data.json").write_text(json.dumps({"version": "1 [{", "data": rows}))
    (HERE / "rows-lines.json").write_text("\n".join(map(json.dumps, rows)))
    for name in ["rows-array.json", "rows-data.json", "rows-lines.json"]:
        record(name, rows)


def directories():
    """What save_to_disk writes; only the names and sizes of the files matter to tests/data/test_datasets.c."""
    rows = [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(10)]
    d = datasets.Dataset.from_list(rows)
    both = datasets.DatasetDict({"train": d.select(range(7)), "test": d.select(range(7, 10))})
    shutil.rmtree(HERE / "saved", ignore_errors=True)
    both.save_to_disk(HERE / "saved", num_shards={"train": 2, "test": 1})
    for split in both:
        (HERE / "saved" / f"{split}.rows").write_text("".join(json.dumps(x) + "\n" for x in both[split]))


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    parquets()
    arrows()
    texts()
    directories()


if __name__ == "__main__":
    main()
