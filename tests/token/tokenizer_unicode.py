#!/usr/bin/env python3
"""Writes src/token/unicode_tables.h: where the Unicode tables inside the `tokenizers` library differ from utf8proc's.

The library mixes several Unicode versions (its regex engine, the Rust standard library, old crates for punctuation and
marks). Every property is read out of the library itself, code point by code point, and compared with utf8proc through
ctypes. usage: tokenizer_unicode.py > src/token/unicode_tables.h
"""
import ctypes
from tokenizers import Regex, normalizers as N, pre_tokenizers as P

u = ctypes.CDLL("libutf8proc.so.2")
libc = ctypes.CDLL(None)
u.utf8proc_map.restype = ctypes.c_ssize_t
u.utf8proc_tolower.restype = ctypes.c_int32
CP = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
NAMES = "CN LU LL LT LM LO MN MC ME ND NL NO PC PD PS PE PI PF PO SM SC SK SO ZS ZL ZP CC CF CS CO".split()


def utf8proc(s, options):
    b, p = s.encode(), ctypes.POINTER(ctypes.c_char)()
    n = u.utf8proc_map(b, ctypes.c_ssize_t(len(b)), ctypes.byref(p), options)
    r = ctypes.string_at(p, n).decode()
    libc.free(p)
    return r


def regex_class(pattern):
    split, out = P.Split(Regex(pattern), "removed", invert=True), set()
    for i in range(0, len(CP), 4096):
        for text, _ in split.pre_tokenize_str("".join(map(chr, CP[i : i + 4096]))):
            out.update(map(ord, text))
    return out


def pieces(pre, c):
    return [t for t, _ in pre.pre_tokenize_str("a" + chr(c) + "a")]


def table(name, comment, values):
    rows = []
    for c in sorted(values):
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == values[c]:
            rows[-1][1] = c
        else:
            rows.append([c, c, values[c]])
    print(f"\n/* {comment} */\nstatic const struct range {name}[] = {{")
    for i in range(0, len(rows), 4):
        print("    " + " ".join("{ 0x%X, 0x%X, %s }," % tuple(r) for r in rows[i : i + 4]))
    print("};")


def difference(library, ours):
    return {**{c: "1" for c in library - ours}, **{c: "0" for c in ours - library}}


def main():
    ours = {c: NAMES[u.utf8proc_category(c)] for c in CP}
    cat = dict(ours)
    for c in regex_class(r"\p{Cn}"):
        cat[c] = "CN"
    for k in ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No"]:
        for c in regex_class(r"\p{%s}" % k):
            cat[c] = k.upper()
    for k, as_ in (("P", "PO"), ("S", "SO")):
        for c in regex_class(r"\p{%s}" % k):
            cat[c] = ours[c] if ours[c][0] == k else as_
    groups = lambda *ks: {c for c in CP if cat[c] in ks or cat[c][0] in ks}
    ascii_punct = set(map(ord, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"))
    clean = N.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    strip = N.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    gone = lambda norm: {c for c in CP if norm.normalize_str("a" + chr(c) + "a") == "aa"}
    digits, punct, words = P.Digits(individual_digits=True), P.Punctuation("isolated"), P.Whitespace()
    contexts = ["%s", "a\u0327%s\u0301\u0345", "a%s\u0327", "a%s\u0301", "a\u0345%s", "\u0ca8\u094d%s\u093c"]
    inert = set()
    for options, norm in ((10, N.NFC()), (18, N.NFD()), (14, N.NFKC()), (22, N.NFKD())):
        inert |= {c for c in CP if any(norm.normalize_str(x % chr(c)) != utf8proc(x % chr(c), options) for x in contexts)}
    for c in list(inert):
        parts = utf8proc(chr(c), 18)
        if len(parts) == 2 and utf8proc(parts, 10) == chr(c):
            inert.add(ord(parts[1]))  # the library does not know that it composes
    lower = N.Lowercase()
    low = {c: lower.normalize_str(chr(c)) for c in CP}

    print("/* unicode_tables.h - where the Unicode tables of the tokenizers library differ from utf8proc 2.8.\n *")
    print(" * Written by tests/token/tokenizer_unicode.py; included by unicode.c only. */")
    table("class_ranges", "categories of the library's regex engine (Unicode 16)", {c: "C_" + cat[c] for c in CP if cat[c] != ours[c]})
    table("numeric_ranges", "Digits: on top of category N", difference({c for c in CP if chr(c) in pieces(digits, c)}, groups("N")))
    table("punct_ranges", "Punctuation and BertPreTokenizer: category P and ASCII punctuation, but", difference({c for c in CP if chr(c) in pieces(punct, c)}, groups("P") | ascii_punct))
    table("mark_ranges", "StripAccents: category M, but", difference(gone(N.StripAccents()), groups("M")))
    table("mn_ranges", "BertNormalizer strip_accents: category Mn, but", difference(gone(strip), groups("MN")))
    table("other_ranges", "BertNormalizer clean_text removes Cc, Cf, Co, but", difference(gone(clean), groups("CC", "CF", "CO")))
    table("word_ranges", "a word character (\\w of the Rust regex crate): L, M, Nd, Nl, Pc, and", difference({c for c in CP if len(pieces(words, c)) == 1}, groups("L", "M", "ND", "NL", "PC")))
    table("inert_ranges", "unknown to the library's normalisation tables: never decomposed, reordered or composed", {c: "1" for c in inert})
    table("lower_ranges", "lower case one code point away by another distance than utf8proc says; U+0130 becomes two", {c: str(ord(low[c]) - c) for c in CP if len(low[c]) == 1 and ord(low[c]) != u.utf8proc_tolower(c)})
    assert {c for c in CP if len(low[c]) != 1} == {0x130}


main()
