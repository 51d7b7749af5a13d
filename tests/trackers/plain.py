"""plain.py - the tracker files of a run, read with Python's own modules: for CI, which has no tracker packages. Each
reader follows the published format and checks every checksum; a torn end is where reading stops, as in the packages."""
import glob, json, re, sqlite3, struct, zlib

CRC32C = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    CRC32C.append(i)


def masked(data):
    c = 0xFFFFFFFF
    for b in data:
        c = CRC32C[(c ^ b) & 255] ^ c >> 8
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    x = shift = 0
    while True:
        b = data[at]
        at += 1
        x |= (b & 127) << shift
        shift += 7
        if b < 128:
            return x, at


def message(data):
    """[(field, value)]: numbers, or bytes."""
    at, out = 0, []
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        else:
            n, at = (8, at) if wire == 1 else (4, at) if wire == 5 else varint(data, at)
            assert at + n <= len(data), "a field beyond its message"
            value, at = data[at:at + n], at + n
        out.append((key >> 3, value))
    return out


def tensorboard(run, complete=True):
    out = {}
    for path in sorted(glob.glob(f"{run}/runs/*/events.out.tfevents.*")):
        raw, at, n_records = open(path, "rb").read(), 0, 0
        while at + 12 <= len(raw):
            n, crc = struct.unpack("<QI", raw[at:at + 12])
            body = raw[at + 12:at + 12 + n]
            if at + 16 + n > len(raw):
                break
            assert crc == masked(raw[at:at + 8]) and struct.unpack("<I", raw[at + 12 + n:at + 16 + n])[0] == masked(body), "checksum"
            at += 16 + n
            event = message(body)
            fields = dict(event)
            step = fields.get(2, 0)
            assert n_records or fields[3] == b"brain.Event:2"
            n_records += 1
            if 7 in fields and dict(message(fields[7]))[1] == 1:  # SessionLog START: forget later steps
                out = {k: v for k, v in out.items() if k[1] < step}
            for k, value in event:
                for one, v in message(value) if k == 5 else ():
                    parts = dict(message(v))
                    if 2 in parts:
                        out[parts[1].decode(), step] = struct.unpack("<f", parts[2])[0]
                    if 5 in parts:
                        h = dict(message(parts[5]))
                        counts = struct.unpack(f"<{len(h[7]) // 8}d", h[7])
                        assert sum(counts) == struct.unpack("<d", h[3])[0], "histogram"
    return out


def wandb_records(path):
    raw = open(path, "rb").read()
    if len(raw) < 7:
        return
    assert raw[:7] == b":W&B" + struct.pack("<HB", 0xBEE1, 0), "header"
    at, part = 7, b""
    while True:
        if 32768 - at % 32768 < 7:
            assert not any(raw[at:at + 32768 - at % 32768]), "padding"
            at += 32768 - at % 32768
        if at + 7 > len(raw):
            return
        crc, n, kind = struct.unpack("<IHB", raw[at:at + 7])
        data = raw[at + 7:at + 7 + n]
        if len(data) < n:
            return
        assert crc == zlib.crc32(raw[at + 6:at + 7] + data), "checksum"
        at += 7 + n
        part = data if kind in (1, 2) else part + data
        if kind in (1, 4):
            yield part


def add_row(out, row):
    """Numbers of a history row of W&B by name and step: each once."""
    step = row["train/global_step"]
    for k, v in row.items():
        if not isinstance(v, dict) and k not in ("_step", "_timestamp", "_runtime", "train/global_step"):
            assert (k, step) not in out, f"wandb has {k} at {step} twice"
            out[k, step] = v


def wandb(run, complete=True):
    out, last, n = {}, -1, 0
    files = glob.glob(f"{run}/wandb/offline-run-*/run-*.wandb")
    assert len(files) <= 1, files
    for f in files:
        for data in wandb_records(f):
            n += 1
            record = dict(message(data))
            assert record[1] == n, "record numbers"
            assert n != 1 or 21 in record
            assert n != 2 or 17 in record
            if 2 in record:
                history = message(record[2])
                number = dict(message(dict(history)[2])).get(1, 0)
                assert number > last, f"row {number} behind row {last}"
                last = number
                items = [dict(message(v)) for k, v in history if k == 1]
                names = [item[2].decode() for item in items]
                row = {name: json.loads(item[16]) for name, item in zip(names, items)}
                twice = {name for name in row if names.count(name) > 1 and not name.startswith(("memory/", "end/", "train/train_runtime"))}
                assert not twice and row["_step"] == number, twice  # two starts at one step have two plans and ends
                add_row(out, row)
    return out


def trackio(run, complete=True):
    out = {}
    for path in glob.glob(f"{run}/trackio/*.db"):
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'metrics'").fetchone():
            continue
        for step, text in db.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            for k, v in json.loads(text).items():
                assert (k, step) not in out or k.startswith(("memory/", "end/", "train/train_runtime")), f"{k} at {step} twice"
                if not isinstance(v, dict):
                    out[k, step] = v
        db.close()
    return out


def prometheus(text):
    """{name: value}; every family has a HELP and a TYPE before its samples, which stand together."""
    out, family, seen = {}, None, set()
    for line in text.splitlines():
        if line.startswith("# "):
            family = line.split()[2]
            if line.startswith("# HELP"):
                assert family not in seen, f"{family} twice"
                seen.add(family)
            continue
        name, value = line.rsplit(" ", 1)
        assert name.split("{")[0] == family, line
        assert name not in out, f"{name} twice"
        assert not re.search("_(s|ms|w|c)$", family), f"{family}: promtool wants units written out"
        out[name] = float(value)
    return out
