#!/usr/bin/env python3
"""oracle.py - random tables, written by pyarrow and by Python's csv and json, read back by this program's readers.

Every case writes one table in a random way (codec, page version, dictionary, encodings, row groups, batches, nulls, nested lists of
structs), reads it with `bench_table --rows` and with the library that wrote it, and compares the records. Slices are compared with
those of datasets.

usage: oracle.py BENCH_TABLE [CASES [SEED]]     needs pyarrow and datasets; 400 cases by default
"""

import csv
import io
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

WORDS = ["", "a", "the", "naïve", "日本語", "🙂", 'quote " and \\ back', "line\nbreak", "tab\t", "\x01", "x" * 300, "it's", ",", ";"]


def text(r):
    return " ".join(r.choice(WORDS) for _ in range(r.randrange(0, 6)))


def number(r, bits, signed):
    lo, hi = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return r.choice([lo, hi, 0, 1, r.randint(lo, hi), r.randint(max(lo, -100), min(hi, 100))])


def real(r, narrow):
    x = r.choice([0.0, -0.0, 1.0, 0.1, 1e300, -2.5e-8, r.random(), r.gauss(0, 1e6), float("nan"), float("inf")])
    if narrow:
        x = 3.25e30 if abs(x) > 1e38 and math.isfinite(x) else x
    return x


def leaf_type(r):
    ints = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    return r.choice([pa.string(), pa.string(), pa.large_string(), pa.string_view(), pa.bool_(), pa.float32(), pa.float64(), pa.float16(), pa.null(), *ints])


def any_type(r, depth=0):
    k = r.random()
    if depth < 3 and k < 0.25:
        return r.choice([pa.list_, pa.large_list])(any_type(r, depth + 1))
    if depth < 3 and k < 0.45:
        names = r.sample(["role", "content", "from", "value", "n", "weight"], r.randrange(1, 4))
        return pa.struct([(n, any_type(r, depth + 1)) for n in names])
    return leaf_type(r)


def value(r, t, nulls):
    if pa.types.is_null(t) or r.random() < nulls:
        return None
    if pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t):
        return text(r)
    if pa.types.is_boolean(t):
        return r.random() < 0.5
    if pa.types.is_floating(t):
        return 1.5 if pa.types.is_float16(t) else real(r, pa.types.is_float32(t))
    if pa.types.is_integer(t):
        return number(r, t.bit_width, pa.types.is_signed_integer(t))
    if pa.types.is_struct(t):
        return {f.name: value(r, f.type, nulls) for f in t}
    return [value(r, t.value_type, nulls) for _ in range(r.choice([0, 0, 1, 2, 5]))]


def table(r):
    n = r.choice([0, 1, 2, 7, 100, 1000])
    nulls = r.choice([0, 0, 0.1, 0.9])
    few = r.random() < 0.3
    columns = {}
    for i in range(r.randrange(1, 5)):
        t = any_type(r)
        pool = [value(r, t, nulls) for _ in range(3)] if few else None
        columns[["text", "messages", "input_ids", "a \"b\""][i]] = pa.array([r.choice(pool) if pool else value(r, t, nulls) for _ in range(n)], t)
    return pa.table(columns)


def chat(r):
    """What people have: messages as lists of structs, token ids, long texts."""
    n = r.choice([1, 50, 500])
    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    return pa.table(
        {
            "messages": pa.array([[{"role": r.choice(["user", "assistant"]), "content": text(r)} for _ in range(r.randrange(0, 6))] for _ in range(n)], messages),
            "input_ids": pa.array([[r.randrange(0, 50000) for _ in range(r.randrange(0, 90))] for _ in range(n)], pa.list_(pa.int32())),
            "text": pa.array([r.choice([None, text(r) * 20]) for _ in range(n)]),
        }
    )


def encodings(r, t):
    """Encodings that the types of flat columns allow; None: the writer's own choice."""
    out = {}
    for f in t.schema:
        if pa.types.is_string(f.type):
            out[f.name] = r.choice(["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "PLAIN"])
        elif f.type in (pa.int32(), pa.int64()):
            out[f.name] = r.choice(["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "PLAIN"])
        elif f.type in (pa.float32(), pa.float64()):
            out[f.name] = r.choice(["BYTE_STREAM_SPLIT", "PLAIN"])
        elif pa.types.is_boolean(f.type):
            out[f.name] = r.choice(["RLE", "PLAIN"])
    return out


def write_parquet(r, t, path):
    how = {
        "compression": r.choice(["none", "snappy", "gzip", "zstd", "lz4"]),
        "data_page_version": r.choice(["1.0", "2.0"]),
        "data_page_size": r.choice([64, 1000, 1 << 20]),
        "write_page_checksum": r.random() < 0.5,
        "row_group_size": r.choice([1, 3, 64, 1 << 20]) if t.num_rows < 200 else r.choice([64, 1 << 20]),
        "version": r.choice(["1.0", "2.4", "2.6"]),
        "write_statistics": r.random() < 0.5,
        "use_compliant_nested_type": r.random() < 0.7,
    }
    own = encodings(r, t) if r.random() < 0.5 else {}
    how["use_dictionary"] = False if own else r.random() < 0.6
    if own:
        how["column_encoding"] = own
    if t.num_rows > 1 and r.random() < 0.3:
        t = pa.concat_tables([t.slice(0, t.num_rows // 2), t.slice(t.num_rows // 2)])
    try:
        pq.write_table(t, path, **how)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError):
        pq.write_table(t, path)
        how = {}
    return how, pq.read_table(path).to_pylist()


def write_arrow(r, t, path):
    how = {"kind": r.choice(["stream", "file", "feather"]), "codec": r.choice([None, "lz4", "zstd"])}
    if r.random() < 0.3 and t.num_rows:
        for i, f in enumerate(t.schema):
            if pa.types.is_string(f.type):
                t = t.set_column(i, f.name, t.column(i).combine_chunks().dictionary_encode())
        how["dictionary"] = True
    if r.random() < 0.3 and t.num_rows > 4:
        t = t.slice(r.randrange(0, 4), t.num_rows - 5)
    if how["kind"] == "feather":
        feather.write_feather(t, path, compression=how["codec"] or "uncompressed", chunksize=r.choice([3, 1000]))
        return how, feather.read_table(path).to_pylist()
    opened = ipc.new_stream if how["kind"] == "stream" else ipc.new_file
    with opened(path, t.schema, options=ipc.IpcWriteOptions(compression=how["codec"])) as w:
        w.write_table(t, max_chunksize=r.choice([1, 7, 10000]))
    return how, t.to_pylist()


def write_csv(r, path):
    names = r.sample(["text", "prompt", "a b", "日本", "n"], r.randrange(1, 4))
    rows = [{n: text(r).replace("\r", "") for n in names} for _ in range(r.choice([0, 1, 5, 200]))]
    tab = path.suffix == ".tsv"
    f = io.StringIO(newline="")
    quoting, end = r.choice([(csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_ALL, "\r"), (csv.QUOTE_MINIMAL, "\n"), (csv.QUOTE_MINIMAL, "\r\n")])
    w = csv.DictWriter(f, names, delimiter="\t" if tab else ",", quoting=quoting, lineterminator=end)
    w.writeheader()
    w.writerows(rows)
    path.write_bytes((b"\xef\xbb\xbf" if r.random() < 0.3 else b"") + f.getvalue().encode())
    f.seek(0)
    return {}, list(csv.DictReader(f, delimiter="\t" if tab else ","))


def write_json(r, path):
    rows = [row for row in chat(r).to_pylist()]
    indent = r.choice([None, 1, 4])
    kind = r.choice(["array", "data", "lines"])
    if kind == "lines":
        body = "\n".join(json.dumps(x, indent=indent) for x in rows)
    else:
        body = json.dumps(rows if kind == "array" else {"version": "1 \"[{", "data": rows, "more": [1]}, indent=indent, ensure_ascii=r.random() < 0.5)
    path.write_text(body)
    return {"kind": kind}, rows


def same(a, b):
    """A record of ours against the library's: NaN and infinity are null in JSON."""
    if isinstance(b, float) and not math.isfinite(b):
        return a is None
    if isinstance(b, float):
        return isinstance(a, float) and a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(b, dict):
        return isinstance(a, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in b)
    if isinstance(b, list):
        return isinstance(a, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def one(program, r, seed, directory):
    kind = r.choice(["parquet"] * 5 + ["arrow"] * 3 + ["csv", "tsv", "json"])
    path = directory / f"case.{kind}"
    t = chat(r) if r.random() < 0.2 else table(r)
    if kind in ("parquet", "arrow"):
        try:
            how, expected = (write_parquet if kind == "parquet" else write_arrow)(r, t, path)
        except pa.ArrowException as e:  # of a table that pyarrow itself cannot write or read back
            return f"{kind}: pyarrow: {str(e)[:60]}", {}
    elif kind == "json":
        how, expected = write_json(r, path)
    else:
        how, expected = write_csv(r, path)
    done = subprocess.run([program, "--rows", str(path)], capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        sys.exit(f"seed {seed}: {kind} {how}: {t.schema}\n{done.stderr.decode()}")
    # a record of .json is its text as it is in the file, over several lines where that is so
    decoder, rows, body, at = json.JSONDecoder(), [], done.stdout.decode(), 0
    while at < len(body):
        try:
            row, at = decoder.raw_decode(body, at)
        except ValueError:
            sys.exit(f"seed {seed}: {kind} {how}: {body[at : at + 200]!r} is not JSON")
        rows.append(row)
        at += 1
    if len(rows) != len(expected):
        sys.exit(f"seed {seed}: {kind} {how}: {len(rows)} rows, expected {len(expected)}\n{t.schema}")
    for i, (a, b) in enumerate(zip(rows, expected)):
        if not same(a, b):
            sys.exit(f"seed {seed}: {kind} {how}: row {i}: {a!r}, expected {b!r}\n{t.schema}")
    return kind, how


def slices(program, r, n):
    """As datasets reads split="train[...]", refusals included."""
    for _ in range(n):
        bound = lambda: r.choice(["", str(r.randrange(-120, 121)), f"{r.randrange(-105, 106)}%", str(r.randrange(0, 4000))])
        spec, count = f"train[{bound()}:{bound()}]", r.choice([0, 1, 7, 50, 99, 100, 101, 1000, 3333])
        try:
            (part,) = datasets.ReadInstruction.from_spec(spec).to_absolute({"train": count})
            expected = f"{part.from_} {max(part.from_, part.to)}"
        except ValueError:
            expected = ""
        got = subprocess.run([program, "--slice", spec, str(count)], capture_output=True, timeout=60, check=False).stdout.decode().strip()
        if got != expected:
            sys.exit(f"{spec} of {count}: {got!r}, expected {expected!r}")


def main():
    program = sys.argv[1]
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    seen = {}
    with tempfile.TemporaryDirectory() as d:
        for seed in range(first, first + n):
            kind, how = one(program, random.Random(seed), seed, Path(d))
            for key in [kind] + [f"{kind} {k}={v}" for k, v in how.items() if isinstance(v, (str, bool))]:
                seen[key] = seen.get(key, 0) + 1
    for key in sorted(seen):
        print(f"{seen[key]:5} {key}")
    slices(program, random.Random(first), n)
    print(f"{n} tables and {n} slices read alike")


if __name__ == "__main__":
    main()
