"""Mutations of T19, see t19_files.sh: a hostile file from a good one, by a die with a seed. Every function takes the die and bytes
and returns bytes; those that know a format change what it means, and keep the rest legal, so that the damage is met deep inside."""
import base64, copy, gzip, json, struct, subprocess, zlib

NUMBERS = ["0", "-1", "1", "2", "3", "7", "0.5", "1e300", "-1e300", "1e999", "-1e999", "1e-320", "2147483647", "2147483648", "-2147483649",
           "4294967296", "4194303", "65536", "9007199254740993", "9223372036854775807", "18446744073709551616", "1" * 200, "1" * 500, "-0"]
TEXTS = ["", "\x1b[2J\x1b]0;owned\x07", "\u009b31m", "\u202egnp", "a" * 5000, "../../../etc/passwd", "/dev/zero", "%s%n%d", "\ufffd", "\U0010ffff",
         "*" * 200 + "x", "(a+)+" * 40, "\n\n", "NaN", "true", "💥" * 100, "\t", "model.layers.99999999.mlp.up_proj", "<|im_start|>" * 300]
KEYS = ["", "__proto__", "\x1b[31m", "type", "x" * 3000, "model_type", "vocab"]


class Raw(str):
    """A number as it is spelled."""


def spell(x):
    """JSON, with numbers spelled as Raw says and pairs kept in order, even twice."""
    if isinstance(x, Raw):
        return str(x)
    if isinstance(x, Pairs):
        return "{" + ",".join(f"{json.dumps(k)}:{spell(v)}" for k, v in x.list) + "}"
    if isinstance(x, list):
        return "[" + ",".join(map(spell, x)) + "]"
    return json.dumps(x)


class Pairs:
    def __init__(self, pairs):
        self.list = [list(p) for p in pairs]


def places(x, out):
    """Every (container, index) of the tree."""
    for box, keys in ((x, range(len(x))),) if isinstance(x, list) else ((x.list, range(len(x.list))),) if isinstance(x, Pairs) else ():
        for k in keys:
            out.append((x, k))
            places(box[k] if isinstance(x, list) else box[k][1], out)
    return out


def value(dice):
    return dice.choice([
        lambda: Raw(dice.choice(NUMBERS)), lambda: Raw(dice.choice(NUMBERS)), lambda: dice.choice(TEXTS), lambda: dice.choice(TEXTS),
        lambda: None, lambda: True, lambda: [], lambda: Pairs([]), lambda: [Raw("0")] * dice.choice([1, 3, 70, 100000]),
        lambda: Pairs([[f"k{i}", Raw(str(i))] for i in range(dice.choice([1, 3, 20000]))]),
        lambda: Raw("[" * (d := dice.choice([5, 63, 64, 2000, 100000])) + "]" * d), lambda: Raw('{"a":' * 70 + "0" + "}" * 70),
        lambda: "y" * dice.choice([300, 70000, 1 << 20])])()


def change(dice, tree):
    spots = places(tree, [])
    if not spots:
        return value(dice)
    box, k = dice.choice(spots)
    how = dice.randrange(10)
    if isinstance(box, Pairs):
        if how == 0:
            del box.list[k]
        elif how == 1:
            box.list.append(list(box.list[k]))
        elif how == 2:
            box.list[k][0] = dice.choice(KEYS + TEXTS)
        elif how == 3:
            other, j = dice.choice(spots)
            box.list[k][1] = copy.deepcopy(other[j] if isinstance(other, list) else other.list[j][1])
        else:
            box.list[k][1] = value(dice)
    elif how < 2:
        del box[k]
    elif how < 4:
        box[k:k] = [box[k]] * dice.choice([1, 2, 50])
    else:
        box[k] = value(dice)
    return tree


def nested(tree, at=0):
    return at if not isinstance(tree, (list, Pairs)) else max(
        [at] + [nested(v, at + 1) for v in (tree if isinstance(tree, list) else [v for _, v in tree.list])])


def tree_of(data):
    return json.loads(data, object_pairs_hook=Pairs, parse_int=Raw, parse_float=Raw)


def as_json(dice, data):
    tree = tree_of(data)
    for _ in range(dice.choice([1, 1, 1, 2, 5])):
        tree = change(dice, tree)
        if nested(tree) > 300:
            break
    return spell(tree).encode("utf-8", "surrogatepass")


def raw(dice, data):
    """Bytes without a meaning: flipped, cut, doubled, moved, filled."""
    b, n = bytearray(data), max(1, len(data))
    at, size = dice.randrange(n), dice.choice([1, 1, 2, 8, 64])
    how = dice.randrange(12)
    if how < 3:
        for _ in range(dice.choice([1, 1, 4, 50])):
            if b:
                b[dice.randrange(len(b))] ^= 1 << dice.randrange(8)
    elif how < 5:
        del b[at:]
    elif how == 5:
        del b[at:at + size]
    elif how == 6:
        b[at:at] = bytes(dice.randrange(256) for _ in range(size))
    elif how == 7:
        b[at:at + size] = dice.choice([b"\0", b"\xff", b"\x1b", b"\n", b"\"", b"{", b"[", b"\\"]) * size
    elif how == 8:
        b += bytes(b[:at] if dice.random() < 0.5 else b)
    elif how == 9:
        b = bytearray(dice.choice([b"", b"\0", b"\xef\xbb\xbf" + bytes(b), b"\xff\xfe" + bytes(b), b"[" * 200000, b"null", b"[]", b"{}", b'"x"', b"-"]))
    elif how == 10:
        b[at:at] = dice.choice([b"\x1b[2J", b"\xc2\x9b31m", b"\x00", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\r", b"\x7f"])
    else:
        b[at:at] = dice.choice([b"a", b"\n", b"\0", b" ", b"[", b"0,"]) * dice.choice([1000, 100000, 1 << 20])
    return bytes(b)


def json_file(dice, data):
    if dice.random() < 0.25:
        return raw(dice, data)
    try:
        return as_json(dice, data)
    except (ValueError, RecursionError):
        return raw(dice, data)


def safetensors(dice, data):
    how = dice.randrange(10)
    if how == 0:
        return raw(dice, data)
    n = struct.unpack("<Q", data[:8])[0]
    head, body = data[8:8 + n], data[8 + n:]
    if how == 1:
        return struct.pack("<Q", dice.choice([0, 1, n - 1, n + 1, len(data), 1 << 20, 1 << 27, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])) + data[8:]
    if how == 2:
        body = raw(dice, body)
    elif how == 3:
        head = as_json(dice, head)
    elif how == 4:
        t = tree_of(head)
        t.list += [[f"extra.{i}", Pairs([["dtype", "F32"], ["shape", []], ["data_offsets", [Raw(str(len(body))), Raw(str(len(body)))]]])]
                   for i in range(dice.choice([1, 100, 20000]))]
        head = spell(t).encode()
    else:
        t = tree_of(head)
        rows = [p for p in t.list if isinstance(p[1], Pairs) and any(k == "shape" for k, _ in p[1].list)]
        for name_row in dice.sample(rows, min(len(rows), dice.choice([1, 1, 3]))):
            row = dict((p[0], p) for p in name_row[1].list)
            what = dice.randrange(6)
            if what == 0:
                row["dtype"][1] = dice.choice(["F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "F4", "X", "", "f32", "U16", "C64"])
            elif what == 1:
                row["shape"][1] = [Raw(dice.choice(NUMBERS)) for _ in range(dice.choice([0, 1, 2, 3, 40]))]
            elif what == 2:
                row["data_offsets"][1] = [Raw(str(dice.choice([0, 1, 4, len(body), len(body) + 4, 1 << 40, (1 << 64) - 4]))) for _ in range(dice.choice([1, 2, 2, 2, 3]))]
            elif what == 3 and len(rows) > 1:
                row["data_offsets"][1] = dict(dice.choice(rows)[1].list)["data_offsets"]
            elif what == 4:
                name_row[0] = dice.choice(TEXTS + [dice.choice(rows)[0], "model.embed_tokens.weight", name_row[0] + ".absmax"])
            else:
                row["shape"][1] = list(row["shape"][1])[::-1] + ([Raw("1")] if dice.random() < 0.5 else [])
        head = spell(t).encode("utf-8", "surrogatepass")
    if dice.random() < 0.8:
        head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + body


def lines(dice, data):
    """JSONL: one line or a few are hostile, the others stay."""
    rows = data.split(b"\n")
    if dice.random() < 0.2:
        return raw(dice, data)
    for _ in range(dice.choice([1, 1, 3])):
        i = dice.randrange(max(1, len(rows) - 1))
        try:
            rows[i] = json_file(dice, rows[i])
        except (ValueError, IndexError):
            rows[i] = raw(dice, rows[i])
    if dice.random() < 0.05:
        rows.insert(0, b'{"text": "' + b"long " * (4 << 20) + b'"}')
    if dice.random() < 0.05:
        rows.insert(0, b'{"input_ids": [' + b"1," * (2 << 20) + b"1]}")
    return b"\n".join(rows)


def text(dice, data):
    how = dice.randrange(4)
    words = data.split(b" ")
    if how == 0:
        return raw(dice, data)
    if how == 1:
        return data + dice.choice([b"a", b" ", b"\xcc\x81", b"ab", b"\xf0\x9f\x92\xa5", b"\n", b"<|endoftext|>", b"\xe1\xb6\xbf", b"\0"]) * dice.choice([100, 30000, 300000])
    for _ in range(dice.choice([1, 3, 30])):
        words[dice.randrange(len(words))] = dice.choice(TEXTS + NUMBERS).encode("utf-8", "surrogatepass")
    return b" ".join(words)


def words(dice, data):
    """Text with a grammar of its own (YAML, merges, schedules): words are swapped, doubled, replaced."""
    if dice.random() < 0.4:
        return raw(dice, data)
    rows = [line.split(b" ") for line in data.split(b"\n")]
    for _ in range(dice.choice([1, 1, 3, 10])):
        row, other = dice.choice(rows), dice.choice(rows)
        how, i = dice.randrange(6), dice.randrange(len(row))
        if how == 0:
            row[i] = dice.choice(other)
        elif how == 1:
            rows.insert(dice.randrange(len(rows)), list(other))
        elif how == 2:
            row[i:i] = [b""] * dice.choice([1, 2, 300])
        elif how == 3:
            row[i] = dice.choice([b"[", b"{", b"&a", b"*a", b"!!x", b"|", b">", b"- -", b"? ", b"a: b: c", b"\t", b"#", b"---", b"..."]) * dice.choice([1, 1, 5000])
        else:
            row[i] = dice.choice(TEXTS + NUMBERS).encode("utf-8", "surrogatepass")
    return b"\n".join(b" ".join(r) for r in rows)


def gz(dice, data):
    how = dice.randrange(8)
    if how == 0:
        return gzip.compress(bytes(dice.choice([1 << 20, 64 << 20])), 9, mtime=0)
    if how == 1:
        return gzip.compress(data, mtime=0) + dice.choice([b"\0" * 100, b"junk", gzip.compress(data, mtime=0)[:-3], b"\x1f\x8b"])
    if how == 2:
        return zlib.compress(data)
    if how == 3:
        return gzip.compress(lines(dice, data), mtime=0)
    return raw(dice, b"".join(gzip.compress(data, mtime=0) for _ in range(dice.choice([1, 3]))))


def zst(dice, data):
    def pack(x, *how):
        return subprocess.run(["zstd", "-q", "-c", *how], input=x, stdout=subprocess.PIPE, check=True).stdout
    how = dice.randrange(8)
    if how == 0:
        return pack(bytes(64 << 20), "-19")
    if how == 1:
        return pack(data, "--ultra", "--long=27") + dice.choice([b"", b"junk", pack(data)[:-3]])
    if how == 2: # a frame that asks for a window of 2^31 bytes and more
        return b"\x28\xb5\x2f\xfd\x00" + bytes([dice.choice([0xA8, 0xB0, 0xF8, 0xFF])]) + b"\x01\x00\x00"
    if how == 3:
        return pack(lines(dice, data))
    return raw(dice, b"".join(pack(data) for _ in range(dice.choice([1, 3]))))


BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{% if s.strip('ba') == s.count('b') %}{% endif %}{% endfor %}",
    "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{% if s in s or s < s or s.rfind('bb') %}{% endif %}{% endfor %}",
    "{% set s = ' ' * 8000000 %}{% set c = 'xyz' * 1000000 ~ ' ' %}{% for i in range(99999) %}{% set t = s.strip(c) %}{% endfor %}",
    "{% set s = 'a' * 8000000 %}{% set t = ('a' * 1000000) ~ 'b' %}{% for i in range(999) %}{% set u = s.rsplit(t) %}{% endfor %}",
    "{{ [[[[[[1]]]]]]|tojson(indent='x' * 16000000) }}",
    "{% set s = 'a' * 16000000 %}{{ s.replace('a', s) }}",
    "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% if s.startswith((s, s, s, s, s, s)) %}{% endif %}{% endfor %}",
    "{% set l = range(99999)|list %}{% for i in l %}{% if l == l or i in l %}{% endif %}{% endfor %}",
    "{% set l = range(99999)|list|reverse|list %}{% for i in l %}{% set m = l|sort|unique|list %}{% endfor %}",
    "{% set s = '\\x1b' * 1000000 %}{% for i in range(999) %}{% set t = [s]|string %}{% set t = s|tojson %}{% endfor %}",
    "{{ '\x1b[2J' }}{{ raise_exception('\x1b[2J\x1b]0;owned\x07') }}", "{{ messages[0]['content'] * 99999999 }}", "{{ '%99999d' % 3 }}{{ 9 ** 9 ** 9 }}",
    "{% for m in messages %}{{ m.role }}{% endfor %}" * 3000, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if x %}" * 3000,
    "{{ messages|map('upper')|map('lower')|join|length|string|" + "|".join(["string"] * 2000) + " }}",
    "{{ strftime_now('%c' * 60) }}{{ strftime_now('\x1b%Y') }}", "{{ x.y.z }}", "{{ ''.join([m.content for m in messages]) }}",
]


def template(dice, data):
    how = dice.randrange(4)
    if how == 0:
        return raw(dice, data)
    if how == 1:
        return dice.choice(BOMBS).encode() + (data if dice.random() < 0.5 else b"")
    words = data.split(b" ")
    for _ in range(dice.choice([1, 2, 8])):
        i, j = dice.randrange(len(words)), dice.randrange(len(words))
        words[i] = words[j] if dice.random() < 0.6 else dice.choice([b"{%", b"%}", b"{{", b"}}", b"(", b"]", b"|tojson", b"in", b"not", b"endfor", b"*", b"99999999",
                                                                     b"'", b"~", b"|sort", b".strip(", b"[::-1]", b"loop.previtem", b"namespace("])
    return b" ".join(words)


def tokenizer(dice, data):
    """Parts that cost: replacements of replacements, patterns that backtrack, maps that lie, ids far away."""
    how = dice.randrange(12)
    if how > 6 or not data.startswith(b"{"):
        return json_file(dice, data)
    t = json.loads(data)
    grow = {"type": "Replace", "pattern": {"String": dice.choice(["e", " ", "a", "ee"])}, "content": dice.choice(["e", " ", "ab"]) * dice.choice([2, 100, 5000])}
    bad = {"type": "Split", "behavior": dice.choice(["Isolated", "Removed", "MergedWithNext", "Contiguous"]), "invert": dice.random() < 0.5, "pattern": {
        "Regex": dice.choice(["(a+)+[xy]", "(?:a|ab)*c", "(.*)*\\p{L}", "(?=(\\w+))\\w*x", "[^x]*[^y]*[^z]*q", "(?i:(o|oa|oar)+)z", "a{1,60000}", "(((((a*)*)*)*)*)*b", "\\s+|x?"])}}
    if how == 0:
        t["normalizer"] = {"type": "Sequence", "normalizers": [grow] * dice.choice([1, 2, 4, 32])}
    elif how == 1:
        t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [bad] * dice.choice([1, 3]) + ([t["pre_tokenizer"]] if t.get("pre_tokenizer") else [])}
    elif how == 2:
        t["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(dice.randrange(256) for _ in range(dice.choice([4, 60, 1000])))).decode()}
    elif how == 3 and isinstance(t["model"].get("vocab"), dict):
        t["model"]["vocab"][dice.choice(["far", "\x1b[2J", "e" * 70000])] = dice.choice([len(t["model"]["vocab"]), 4194303, 1 << 30, -5])
    elif how == 4:
        n = max(list(t["model"]["vocab"].values()) if isinstance(t["model"].get("vocab"), dict) else [0]) + 1
        t["added_tokens"] = t.get("added_tokens", []) + [{"id": n + i, "content": f"{'o' * (i % 7)}{i}", "special": i % 2 == 0, "normalized": i % 3 == 0, "lstrip": i % 5 == 0,
                                                         "rstrip": i % 7 == 0, "single_word": i % 11 == 0} for i in range(dice.choice([1, 100, 5000]))]
    elif how == 5:
        deep = grow if dice.random() < 0.5 else {"type": "NFKD"}
        for _ in range(dice.choice([1, 10, 28])):
            deep = {"type": "Sequence", "normalizers": [deep, deep] if dice.random() < 0.3 else [deep]}
        t["normalizer"] = deep
    else:
        t["normalizer"] = {"type": "Prepend", "prepend": "e" * dice.choice([1, 1000, 100000])}
    return json.dumps(t).encode()


# ---- tables ----

def ends(dice, data):
    """Binary formats: numbers where numbers are, with the extremes of their width; most of them near the end, where footers are."""
    b = bytearray(data)
    if dice.random() < 0.3 or len(b) < 16:
        return raw(dice, data)
    for _ in range(dice.choice([1, 1, 2, 5])):
        n = dice.choice([1, 1, 4, 8])
        at = len(b) - 1 - dice.randrange(min(len(b), 700)) if dice.random() < 0.5 else dice.randrange(len(b))
        at -= at % n if n > 1 else 0
        x = dice.choice([0, 1, 2, 3, 0x7f, 0x80, 0xff, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, dice.getrandbits(64)])
        b[at:at + n] = (x & ((1 << 8 * n) - 1)).to_bytes(n, "little")[:len(b) - at]
    return bytes(b)


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def number(n):
    return varint(n << 1 if n >= 0 else (-n << 1) - 1)


def thrift(*fields):
    """A struct of the compact protocol: (id, type, bytes)."""
    out, last = b"", 0
    for id_, type_, body in fields:
        out += bytes([(id_ - last) << 4 | type_]) + body
        last = id_
    return out + b"\0"


def words_of(*texts):
    return bytes([len(texts) << 4 | 8]) + b"".join(varint(len(t)) + t for t in texts)


def column(name, repetition, children=0):
    name = (4, 8, varint(len(name)) + name)
    return thrift((3, 5, number(repetition)), name, (5, 5, number(children))) if children else thrift((1, 5, number(6)), (3, 5, number(repetition)), name)


def parquet_bomb(dice):
    """A small file that stands for very much: runs of a billion entries, a text a million times, pages and rows that are not there."""
    how = dice.choice(["nulls", "dictionary", "page", "rows", "deep", "wide"])
    n = dice.choice([10**6, 10**8, (1 << 31) - 1])
    pack = lambda x: subprocess.run(["zstd", "-q", "-c"], input=x, stdout=subprocess.PIPE, check=True).stdout
    sized = lambda x: struct.pack("<I", len(x)) + x
    page = lambda body, kind, inner, size=None: thrift((1, 5, number(kind)), (2, 5, number(len(body) if size is None else size)), (3, 5, number(len(pack(body)))), inner) + pack(body)
    head = lambda count, encoding: thrift((1, 5, number(count)), (2, 5, number(encoding)), (3, 5, number(3)), (4, 5, number(3)))
    dictionary = b""
    if how == "dictionary":
        dictionary = page(sized(b"x" * (1 << 20)), 2, (7, 12, thrift((1, 5, number(1)), (2, 5, number(0)))))
        body = sized(varint(n << 1) + b"\1") + b"\0" + varint(n << 1)
    else:
        body = sized(varint(n << 1) + b"\0")
    data = dictionary + page(body, 0, (5, 12, head(n, 8 if dictionary else 0)), (1 << 31) - 1 if how == "page" else None)
    depth = 5000 if how == "deep" else 0
    schema = [column(b"schema", 0, 1)] + [column(b"a", 1, 1)] * depth + [column(b"text", 1)]
    if how == "wide":
        schema = [column(b"schema", 0, 1 << 15)] + [column(b"text%d" % i, 1) for i in range(1 << 15)]
    meta = thrift((1, 5, number(6)), (2, 9, b"\x15" + number(0)), (3, 9, words_of(b"text")), (4, 5, number(6)), (5, 6, number(n)), (6, 6, number(len(data))), (7, 6, number(len(data))),
                  (9, 6, number(4 + len(dictionary))), *([(11, 6, number(4))] if dictionary else []))
    rows = 1 << 60 if how == "rows" else n
    group = thrift((1, 9, b"\x1c" + thrift((2, 6, number(4)), (3, 12, meta))), (2, 6, number(len(data))), (3, 6, number(rows)))
    footer = thrift((1, 5, number(1)), (2, 9, b"\xfc" + varint(len(schema)) + b"".join(schema)), (3, 6, number(rows)), (4, 9, b"\x1c" + group))
    return b"PAR1" + data + footer + struct.pack("<I", len(footer)) + b"PAR1"


def parquet(dice, data):
    bomb = dice.random() < 0.3
    return parquet_bomb(dice) if bomb and dice.random() < 0.7 else ends(dice, parquet_bomb(dice) if bomb else data)


def csv(dice, data):
    how = dice.randrange(5)
    rows = data.split(b"\n")
    if how == 0:
        return raw(dice, data)
    if how == 1:  # a long name, and many short rows
        return b"a" * dice.choice([1000, 100000]) + b",text\n" + b"1,2\n" * dice.choice([10, 100000])
    if how == 2:
        return b",".join(b"c%d" % i for i in range(dice.choice([100, 16384, 20000]))) + b"\n" + b"1,2\n" * 1000
    if how == 3:
        rows.insert(1, b'"' + b"text," * dice.choice([10, 1 << 20, 4 << 20]))
    for _ in range(dice.choice([1, 3, 30])):
        i = dice.randrange(len(rows))
        rows[i] = dice.choice([b'"', b'""', b'"""', b",,,,", b"\r", b"\0", b'"a"b"c"', dice.choice(TEXTS).encode("utf-8", "surrogatepass")]) + rows[i]
    return b"\n".join(rows)


def array(dice, data):
    """A .json file: hostile as JSON, or an array without end."""
    how = dice.randrange(6)
    if how == 0:
        return raw(dice, data)
    if how == 1:
        return b'{"data": ' + data[:dice.randrange(len(data))]
    if how == 2:
        return b"[" * dice.choice([1, 100, 1 << 20]) + data
    if how == 3:
        return b'[{"text": "' + b"long " * (4 << 20) + b'"}, ' + data[1:]
    return json_file(dice, data)
