/* token_parts.h - the parts below the pipeline: Unicode, spans, vocabulary, merges, tries, patterns. */
#ifndef TR_TOKEN_TOKEN_PARTS_H
#define TR_TOKEN_TOKEN_PARTS_H

#include "token/token.h"

enum { TR_TOK_BYTES = 256, TR_TOK_VOCAB_MAX = 4 << 20 /* ids are below this */ };

/* GPT-2's bytes_to_unicode: a printable Latin-1 byte is represented by itself, the others by U+0100 onward in order. */
uint32_t tr_tok_byte_char(unsigned b);
int tr_tok_byte_of_char(uint32_t c); /* the inverse; -1: not a byte character */

/* ---- text (unicode.c) ---- */

/* Classes are utf8proc's categories, except that white space has three of its own. */
enum { TR_TOK_CLASS_WS = 23, TR_TOK_CLASS_NEWLINE = 24, TR_TOK_CLASS_SPACE = 25, TR_TOK_CLASS_MASK = 31 };
enum {                             /* the other bits of a row of the table */
       TR_TOK_CP_CANON = 1 << 5,   /* has a canonical decomposition */
       TR_TOK_CP_COMPAT = 1 << 6,  /* has a compatibility decomposition */
       TR_TOK_CP_JOINS = 1 << 7,   /* may be reordered or composed with the character before it */
       TR_TOK_CP_INERT = 1 << 8,   /* normalisation neither changes it nor joins it */
       TR_TOK_CP_PUNCT = 1 << 9,   /* Punctuation, BertPreTokenizer */
       TR_TOK_CP_MARK = 1 << 10,   /* StripAccents */
       TR_TOK_CP_MN = 1 << 11,     /* BertNormalizer.strip_accents */
       TR_TOK_CP_OTHER = 1 << 12,  /* BertNormalizer.clean_text */
       TR_TOK_CP_WORD = 1 << 13,   /* \w */
       TR_TOK_CP_NUMERIC = 1 << 14 /* Digits */
};
enum { TR_TOK_CP_TABLE = 0x40000, TR_TOK_CP_INVALID = 0x110000 };

#define TR_TOK_WS ((uint32_t)7 << TR_TOK_CLASS_WS)

uint16_t *tr_tok_unicode_new(void);
uint16_t tr_tok_unicode_high(uint32_t c); /* rows beyond the table */
uint32_t tr_tok_unicode_lower(uint32_t c);

static inline unsigned tr_tok_cp(const uint16_t *table, uint32_t c)
{
    return c < TR_TOK_CP_TABLE ? table[c] : tr_tok_unicode_high(c);
}

static inline bool tr_tok_cp_in(const uint16_t *table, uint32_t c, uint32_t classes)
{
    return classes >> (tr_tok_cp(table, c) & TR_TOK_CLASS_MASK) & 1;
}

/* The character at p (n > 0) and its length. A byte that begins no character is TR_TOK_CP_INVALID with length 1. */
uint32_t tr_utf8_get_long(const char *p, size_t n, size_t *len);
static inline uint32_t tr_utf8_get(const char *p, size_t n, size_t *len)
{
    unsigned char c = (unsigned char)*p;
    if (c >= 0x80)
        return tr_utf8_get_long(p, n, len);
    *len = 1;
    return c;
}
size_t tr_utf8_put(uint32_t c, char out[4]);
size_t tr_utf8_before(const char *p, size_t at); /* start of the character that ends at `at` > 0 */
bool tr_utf8_is_valid(const char *p, size_t n);

/* ---- spans of a text ---- */

struct tr_tok_span {
    uint32_t begin, end;
    bool is_match;
};
struct tr_tok_spans {
    struct tr_tok_span *p;
    size_t n, n_cap;
};
enum tr_status tr_tok_spans_grow(struct tr_tok_spans *v);
static inline enum tr_status tr_tok_spans_add(struct tr_tok_spans *v, size_t begin, size_t end, bool is_match)
{
    if (v->n == v->n_cap) {
        enum tr_status st = tr_tok_spans_grow(v);
        if (st != TR_OK)
            return st;
    }
    v->p[v->n++] = (struct tr_tok_span){ (uint32_t)begin, (uint32_t)end, is_match };
    return TR_OK;
}

/* ---- vocabulary (vocab.c) ---- */

struct tr_tok_vocab {
    struct tr_str text;  /* all tokens, one after the other */
    uint32_t *at, *len;  /* by id; len UINT32_MAX: no such id */
    size_t n_ids, n_cap; /* largest id + 1 */
    size_t n_tokens;
    uint32_t *slots; /* id + 1 by hash of the text; 0 is free */
    size_t n_slots;  /* a power of two */
};
void tr_tok_vocab_release(struct tr_tok_vocab *v);
/* TR_USAGE when the id or the text is already there. With may_repeat, a repeated text is legal and the later id wins.
 */
enum tr_status tr_tok_vocab_add(struct tr_tok_vocab *v, const char *text, size_t n, int64_t id, bool may_repeat);
int32_t tr_tok_vocab_find(const struct tr_tok_vocab *v, const char *text, size_t n); /* -1: absent */
const char *tr_tok_vocab_text(const struct tr_tok_vocab *v, int64_t id, size_t *n);  /* NULL: absent */

struct tr_tok_merge {
    uint64_t pair; /* left << 32 | right, + 1 */
    uint32_t rank, id;
};
struct tr_tok_merges {
    struct tr_tok_merge *slots;
    size_t n_slots, n;
};
enum tr_status tr_tok_merges_reserve(struct tr_tok_merges *m, size_t n);
void tr_tok_merges_put(struct tr_tok_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
uint64_t tr_tok_mix(uint64_t x);
uint64_t tr_tok_text_hash(const char *p, size_t n);
static inline const struct tr_tok_merge *tr_tok_merges_find(const struct tr_tok_merges *m, uint32_t left,
                                                            uint32_t right)
{
    uint64_t pair = ((uint64_t)left << 32 | right) + 1;
    for (size_t i = (size_t)tr_tok_mix(pair);; i++) {
        const struct tr_tok_merge *s = &m->slots[i & (m->n_slots - 1)];
        if (s->pair == pair || s->pair == 0)
            return s->pair ? s : NULL;
    }
}

/* A byte trie whose nodes hold their children side by side, sorted. */
struct tr_tok_trie_node {
    uint32_t first; /* child */
    int32_t value;  /* -1: no key ends here */
    uint16_t n_children;
    uint8_t byte;
};
struct tr_tok_trie {
    struct tr_tok_trie_node *nodes; /* NULL: no keys */
    size_t n_nodes;
    bool starts[TR_TOK_BYTES]; /* some key begins with this byte */
};
struct tr_tok_trie_key {
    const char *text;
    size_t n;
    int32_t value;
};
/* Sorts the keys. Of equal keys the last one wins. Empty keys are left out. */
enum tr_status tr_tok_trie_build(struct tr_tok_trie *t, struct tr_tok_trie_key *keys, size_t n);
void tr_tok_trie_release(struct tr_tok_trie *t);
static inline const struct tr_tok_trie_node *tr_tok_trie_step(const struct tr_tok_trie *t,
                                                              const struct tr_tok_trie_node *node, uint8_t byte)
{
    const struct tr_tok_trie_node *c = t->nodes + node->first;
    size_t lo = 0, hi = node->n_children;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c[mid].byte < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < node->n_children && c[lo].byte == byte ? &c[lo] : NULL;
}

/* ---- regular expressions (regex.c, scan.c) ---- */

struct tr_tok_scan; /* one of the well-known patterns, matched by hand-written code */
const struct tr_tok_scan *tr_tok_scan_of(const char *pattern);
/* The next match at or after *i, or false. */
bool tr_tok_scan_ends_words(const struct tr_tok_scan *s); /* a space between two letters begins a match */
bool tr_tok_scan_next(const struct tr_tok_scan *s, const uint16_t *table, const char *p, size_t n, size_t *i,
                      size_t *end);

struct tr_tok_regex {
    const struct tr_tok_scan *scan; /* or */
    void *code;                     /* pcre2_code */
};
struct tr_tok_matcher; /* the memory that one thread needs to run PCRE2 */
enum tr_status tr_tok_regex_open(const char *pattern, struct tr_tok_regex *out);
void tr_tok_regex_close(struct tr_tok_regex *r);
enum tr_status tr_tok_matcher_open(struct tr_tok_matcher **out);
void tr_tok_matcher_close(struct tr_tok_matcher *m);
/* Appends all of [begin, end) to out: the matches and the gaps between them, in order. */
enum tr_status tr_tok_regex_split(const struct tr_tok_regex *r, struct tr_tok_matcher *m, const uint16_t *table,
                                  const char *p, size_t begin, size_t end, struct tr_tok_spans *out);

/* A pattern of the JSON file: a literal text or a regular expression. */
struct tr_tok_pattern {
    char *text;
    size_t n;
    bool is_regex;
    struct tr_tok_regex re;
};
void tr_tok_pattern_release(struct tr_tok_pattern *x);
enum tr_status tr_tok_pattern_split(const struct tr_tok_pattern *x, struct tr_tok_matcher *m, const uint16_t *table,
                                    const char *p, size_t begin, size_t end, struct tr_tok_spans *out);

#endif
