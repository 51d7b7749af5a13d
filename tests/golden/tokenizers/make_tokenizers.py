#!/usr/bin/env python3
"""Makes the small tokenizers of this directory and what the `tokenizers` library says of them.

usage: make_tokenizers.py   (writes texts.json, <name>/tokenizer.json and <name>/cases.json beside itself)
A case goes with the text of the same place: its ids, how many they are with special tokens, the decoded text, and the text of the ids with special tokens put
around and then skipped (both null when equal to the text). Trained on this script's own texts, so
nothing is downloaded; the real tokenizers are compared by tests/token/tokenizer_parity.py.
"""
import json, os, random
from tokenizers import AddedToken, Regex, Tokenizer, decoders as D, models as M, normalizers as N, pre_tokenizers as P, processors, trainers as T

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = """The quick brown fox jumps over the lazy dog. It's said that they'll've seen 1234567 foxes, don't you think?
Der schnelle braune Fuchs springt über den faulen Hund; größer, früher, Straße. Le garçon a mangé des crêpes à Noël.
Быстрая коричневая лиса прыгает через ленивую собаку. Γρήγορη καφέ αλεπού. השועל החום המהיר. الثعلب البني السريع يقفز.
敏捷的棕色狐狸跳过懒狗。すばやい茶色の狐はのろまな犬を飛び越える。빠른 갈색 여우가 게으른 개를 뛰어넘습니다. สุนัขจิ้งจอกสีน้ำตาล
तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। দ্রুত বাদামী শিয়াল। விரைவான பழுப்பு நரி. మేఘాలు. ქართული ენა. հայերեն. አማርኛ. ភាសាខ្មែរ བོད་ཡིག
See /usr/bin.\n/etc/x.\n/var.\n//tmp/y.\n/opt\ndef main(argc, argv):\n    if argc != 2:\n        return -1  # HelloWorld camelCase HTTPServer\n\tprint("x += 0x1F;")
""".replace("\\n", "\n").replace("\\t", "\t")
SPACES = r"|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + SPACES
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]" + SPACES
UP, LOW, ANY = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED = r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+%s|" + r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW + "*%s"
O200K = CASED % (ANY, ANY) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + SPACES
TEKKEN = CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+" + SPACES
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+" + SPACES]


def texts():
    rng = random.Random(3)
    yield from CORPUS.splitlines()
    yield CORPUS
    yield from ["", " ", "   ", "\n", "\r\n\r\n", "\t x", "a  b   c", " lead", "trail ", "  both  ", "a\n b\n\n c", "x\r\ny", "\u00a0\u3000\u2003a", "'s 'S 'ſ I'M we'LL 'VE", "''''", "a/b//\n/c", ".\n/x", "!!!\n\n",
                "0 12 123 1234 12345 ½²③Ⅷ٣٤٥६७८", "ABCdef abcDEF XMLHttp ÀÉÎ", "e\u0301 é o\u0308\u0323 ạ\u0302", "\u1100\u1161\u11a8 각 \uac00\u11a8", "ﬁﬂ ½ ™ ㎏ ﷺ Å", "İ ẞ ǅ", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏿", "\u202eabc\u202c", "\ufeffa",
                "�", "▁a ▁▁b", "<s>a</s> b <unk>", "<|end|>", "a<|end|>b <|end|> c", "<|end", "<mask> x  <mask>", "sand and band, and", "THE the then", "a_b-c d'e", "\u0301a", "中文 和 English 混合", "ก่ ้า", "ß" * 30, "a" * 200, " " * 70 + "x", "中" * 60, "xyz" * 40,
                "\u0890\u0897\u1734\U0001e4ec", "Ⓐ🅰 x²", "²", "snake_case ²x", "{}[]()<>@#$%^&*", "http://example.org/a?b=c&d=e", "\x7f\x1b[0m\x01", "one two", "日本語テキスト。次の文。"]
    parts = ["a", "B", "é", " ", " ", "\n", "\r", "\t", "'s", "'", "1", "23", "中", "ß", "\u0301", "😀", ".", "/", "\u3000", "ー", "▁", "<s>", "_", "the", " fox", "<|end|>", "\u0327", "각"]
    for _ in range(60):
        yield "".join(rng.choice(parts) for _ in range(rng.randrange(1, 40)))


def train(tok, trainer):
    tok.train_from_iterator([CORPUS] * 2 + CORPUS.splitlines(), trainer)
    return tok


def byte_bpe(pre, norm=None, post=None, n=420, end=None):
    tok = Tokenizer(M.BPE())
    if norm:
        tok.normalizer = norm
    tok.pre_tokenizer, tok.decoder = pre, D.ByteLevel()
    train(tok, T.BpeTrainer(vocab_size=n, initial_alphabet=P.ByteLevel.alphabet(), special_tokens=["<|end|>"], show_progress=False))
    if post:
        tok.post_processor = post
    return tok


def splits(*patterns):
    return P.Sequence([P.Split(Regex(p), "isolated") for p in patterns] + [P.ByteLevel(add_prefix_space=False, use_regex=False)])


def char_bpe(norm, pre, decoder, **model):
    tok = Tokenizer(M.BPE(**model))
    tok.pre_tokenizer = P.Metaspace() if model.get("byte_fallback") else pre  # SentencePiece's merges keep words apart
    alphabet = sorted(set(c for c in CORPUS if ord(c) < 0x500) | {"▁"})
    special = ["<unk>", "<s>", "</s>"] + (["<0x%02X>" % b for b in range(256)] if model.get("byte_fallback") else [])
    trainer = T.BpeTrainer(vocab_size=len(special) + len(alphabet) + 120, initial_alphabet=alphabet, limit_alphabet=len(alphabet), special_tokens=special, show_progress=False,
                           **({"end_of_word_suffix": model["end_of_word_suffix"]} if "end_of_word_suffix" in model else {}))
    train(tok, trainer)
    tok.decoder = decoder
    if norm:
        tok.normalizer = norm
    if not pre:
        d = json.loads(tok.to_str())
        d["pre_tokenizer"] = None
        return Tokenizer.from_str(json.dumps(d))
    tok.pre_tokenizer = pre
    return tok


def with_model(tok, **options):
    """Byte tokens are ordinary vocabulary, not added tokens; and options that training drops."""
    d = json.loads(tok.to_str())
    d["added_tokens"] = [t for t in d["added_tokens"] if not t["content"].startswith("<0x")]
    d["model"].update(options)
    return Tokenizer.from_str(json.dumps(d))


def llama_decoder():
    return D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])


def tokenizers():
    end = processors.TemplateProcessing(single="$A <|end|>", pair="$A $B", special_tokens=[("<|end|>", 0)])
    yield "gpt2", byte_bpe(P.ByteLevel(add_prefix_space=False))
    yield "roberta", byte_bpe(P.ByteLevel(add_prefix_space=True), post=processors.RobertaProcessing(("<|end|>", 0), ("!", 1)))
    yield "llama3", with_model(byte_bpe(splits(LLAMA3), post=processors.Sequence([processors.ByteLevel(), end])), ignore_merges=True)
    yield "cl100k", byte_bpe(splits(CL100K))
    yield "qwen", byte_bpe(splits(LLAMA3.replace("{1,3}", "")), N.NFC())
    yield "o200k", byte_bpe(splits(O200K))
    yield "tekken", byte_bpe(splits(TEKKEN))
    yield "deepseek", byte_bpe(splits(*DEEPSEEK))
    yield "smollm", byte_bpe(P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)]), N.NFKC())
    yield "falcon", byte_bpe(P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(individual_digits=False), P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]), N.NFD())
    yield "pcre", byte_bpe(P.Sequence([P.Split(Regex(r"[^\S\n]{2,}|\w+(?=\d)"), "merged_with_next"), P.Split("a", "merged_with_previous"), P.Split(Regex(r"x*"), "contiguous"), P.ByteLevel(add_prefix_space=False, use_regex=False)]), N.NFKD())
    flags = byte_bpe(P.ByteLevel(add_prefix_space=False), N.Sequence([N.Lowercase(), N.Strip()]))
    flags.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    flags.add_tokens([AddedToken("and", single_word=True, normalized=False), AddedToken("THE", normalized=True), AddedToken("one two", normalized=False)])
    yield "flags", flags
    yield "llama2", with_model(char_bpe(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None, llama_decoder(), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    yield "mistral", with_model(char_bpe(None, P.Metaspace(prepend_scheme="first", split=False), llama_decoder(), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    yield "gemma", with_model(char_bpe(N.Replace(" ", "▁"), P.Split(" ", "merged_with_previous"), D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]), unk_token="<unk>", byte_fallback=True))
    yield "unknown", char_bpe(N.Nmt(), P.Metaspace(prepend_scheme="always"), D.Metaspace(), unk_token="<unk>")
    yield "clip", char_bpe(N.Sequence([N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()]), P.Whitespace(), D.BPEDecoder(), unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=True)
    bert = Tokenizer(M.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    bert.normalizer, bert.pre_tokenizer, bert.decoder = N.BertNormalizer(), P.BertPreTokenizer(), D.WordPiece()
    train(bert, T.WordPieceTrainer(vocab_size=420, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    bert.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    bert.enable_truncation(16)
    bert.enable_padding(length=32)
    yield "bert", bert
    for name, pre, norm in (("t5", P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), N.Sequence([N.NFKC(), N.StripAccents()])), ("unigram", P.Metaspace(prepend_scheme="never", split=False), N.Replace(Regex(" {2,}"), " "))):
        uni = Tokenizer(M.Unigram())
        uni.normalizer, uni.pre_tokenizer, uni.decoder = norm, pre, D.Metaspace()
        yield name, train(uni, T.UnigramTrainer(vocab_size=380, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False))
    words = Tokenizer(M.WordLevel({w: i for i, w in enumerate(["[UNK]"] + sorted(set(CORPUS.split())))}, unk_token="[UNK]"))
    words.pre_tokenizer = P.Sequence([P.Whitespace(), P.Punctuation("removed")])
    yield "words", words


def write_list(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in rows) + "\n]\n")


def main():
    all_texts = list(texts())
    write_list(os.path.join(HERE, "texts.json"), all_texts)
    for name, tok in tokenizers():
        os.makedirs(os.path.join(HERE, name), exist_ok=True)
        path, cases = os.path.join(HERE, name, "tokenizer.json"), []
        with open(path, "w", encoding="utf-8") as f:
            json.dump(json.loads(tok.to_str()), f, ensure_ascii=False, separators=(",", ":"))
        tok = Tokenizer.from_file(path)
        tok.no_truncation()
        tok.no_padding()
        for text in all_texts:
            ids, special = tok.encode(text, add_special_tokens=False).ids, tok.encode(text).ids
            back, short = tok.decode(ids, skip_special_tokens=False), tok.decode(special, skip_special_tokens=True)
            cases.append([ids, len(special), None if back == text else back, None if short == text else short])
        write_list(os.path.join(HERE, name, "cases.json"), cases)
        print(name, tok.get_vocab_size(), len(cases))


main()
