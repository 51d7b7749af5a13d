/* tokenizer_impl.h - the parts of a loaded tokenizer, and what the files tokenizer_*.c share.
 *
 * A tokenizer is HF's pipeline as data: added tokens -> normalizer steps -> split steps -> model -> ids, and decoder
 * steps for the way back. It is filled once by tokenizer_load.c and then const; everything that changes while encoding
 * lives in a tr_encoder.
 */
#ifndef TR_DATA_TOKENIZER_IMPL_H
#define TR_DATA_TOKENIZER_IMPL_H

#include "data/tokenizer.h"

enum {
    TR_BYTES = 256,
    TR_STEPS_MAX = 32,        /* of one stage */
    TR_VOCAB_MAX = 4 << 20,   /* ids are below this */
    TR_ADDED_MAX = 1 << 16,
    TR_PIECE_MAX = INT32_MAX, /* bytes between two added tokens */
};

/* GPT-2's bytes_to_unicode: printable Latin-1 bytes stand for themselves, the others for U+0100 onward in order. */
uint32_t tr_byte_char(unsigned b);
int tr_byte_of_char(uint32_t c); /* the way back; -1: not a byte character */

/* ---- text (tokenizer_unicode.c) ---- */

/* Classes are utf8proc's categories, except that white space has three of its own. */
enum { TR_CLASS_WS = 23, TR_CLASS_NEWLINE = 24, TR_CLASS_SPACE = 25, TR_CLASS_MASK = 31 };
enum { /* the other bits of a row of the table */
       TR_CP_CANON = 1 << 5,   /* has a canonical decomposition */
       TR_CP_COMPAT = 1 << 6,  /* has a compatibility decomposition */
       TR_CP_JOINS = 1 << 7,   /* may reorder with or compose with what stands before it */
       TR_CP_INERT = 1 << 8,   /* normalisation leaves it and keeps it apart */
       TR_CP_PUNCT = 1 << 9,   /* Punctuation, BertPreTokenizer */
       TR_CP_MARK = 1 << 10,   /* StripAccents */
       TR_CP_MN = 1 << 11,     /* BertNormalizer.strip_accents */
       TR_CP_OTHER = 1 << 12,  /* BertNormalizer.clean_text */
       TR_CP_WORD = 1 << 13,   /* \w */
       TR_CP_NUMERIC = 1 << 14 /* Digits */
};
enum { TR_CP_TABLE = 0x40000, TR_CP_INVALID = 0x110000 };

#define TR_WS ((uint32_t)7 << TR_CLASS_WS)

uint16_t *tr_unicode_new(void);
uint16_t tr_unicode_high(uint32_t c); /* rows beyond the table */
uint32_t tr_unicode_lower(uint32_t c);

static inline unsigned tr_cp(const uint16_t *table, uint32_t c)
{
    return c < TR_CP_TABLE ? table[c] : tr_unicode_high(c);
}

static inline bool tr_cp_in(const uint16_t *table, uint32_t c, uint32_t classes)
{
    return classes >> (tr_cp(table, c) & TR_CLASS_MASK) & 1;
}

/* The character at p (n > 0) and its length; a byte that begins none is TR_CP_INVALID, one byte long. */
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

struct tr_span {
    uint32_t begin, end;
    bool is_match;
};
struct tr_spans {
    struct tr_span *p;
    size_t n, n_cap;
};
enum tr_status tr_spans_grow(struct tr_spans *v);
static inline enum tr_status tr_spans_add(struct tr_spans *v, size_t begin, size_t end, bool is_match)
{
    if (v->n == v->n_cap) {
        enum tr_status st = tr_spans_grow(v);
        if (st != TR_OK)
            return st;
    }
    v->p[v->n++] = (struct tr_span){ (uint32_t)begin, (uint32_t)end, is_match };
    return TR_OK;
}

/* ---- vocabulary (tokenizer_vocab.c) ---- */

struct tr_vocab {
    struct tr_str text;   /* all tokens, one after the other */
    uint32_t *at, *len;   /* by id; len UINT32_MAX: no such id */
    size_t n_ids, n_cap;  /* largest id + 1 */
    size_t n_tokens;
    uint32_t *slots;      /* id + 1 by hash of the text; 0 is free */
    size_t n_slots;       /* a power of two */
};
void tr_vocab_release(struct tr_vocab *v);
/* TR_USAGE when the id or (unless may_repeat: then the later id wins) the text is there already. */
enum tr_status tr_vocab_add(struct tr_vocab *v, const char *text, size_t n, int64_t id, bool may_repeat);
int32_t tr_vocab_find(const struct tr_vocab *v, const char *text, size_t n); /* -1: absent */
const char *tr_vocab_text(const struct tr_vocab *v, int64_t id, size_t *n);  /* NULL: absent */

struct tr_merge {
    uint64_t pair; /* left << 32 | right, + 1 */
    uint32_t rank, id;
};
struct tr_merges {
    struct tr_merge *slots;
    size_t n_slots, n;
};
enum tr_status tr_merges_reserve(struct tr_merges *m, size_t n);
void tr_merges_put(struct tr_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
uint64_t tr_mix(uint64_t x);
uint64_t tr_text_hash(const char *p, size_t n);
static inline const struct tr_merge *tr_merges_find(const struct tr_merges *m, uint32_t left, uint32_t right)
{
    uint64_t pair = ((uint64_t)left << 32 | right) + 1;
    for (size_t i = (size_t)tr_mix(pair);; i++) {
        const struct tr_merge *s = &m->slots[i & (m->n_slots - 1)];
        if (s->pair == pair || s->pair == 0)
            return s->pair ? s : NULL;
    }
}

/* A byte trie whose nodes hold their children side by side, sorted. */
struct tr_trie_node {
    uint32_t first; /* child */
    int32_t value;  /* -1: no key ends here */
    uint16_t n_children;
    uint8_t byte;
};
struct tr_trie {
    struct tr_trie_node *nodes; /* NULL: no keys */
    size_t n_nodes;
    bool starts[TR_BYTES]; /* some key begins with this byte */
};
struct tr_trie_key {
    const char *text;
    size_t n;
    int32_t value;
};
/* Sorts the keys; of equal ones the last given wins. Empty keys are left out. */
enum tr_status tr_trie_build(struct tr_trie *t, struct tr_trie_key *keys, size_t n);
void tr_trie_release(struct tr_trie *t);
static inline const struct tr_trie_node *tr_trie_step(const struct tr_trie *t, const struct tr_trie_node *node, uint8_t byte)
{
    const struct tr_trie_node *c = t->nodes + node->first;
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

/* ---- regular expressions (tokenizer_regex.c, tokenizer_scan.c) ---- */

struct tr_scan; /* one of the well-known patterns, matched by hand */
const struct tr_scan *tr_scan_of(const char *pattern);
/* The next match at or after *i, or false. */
bool tr_scan_ends_words(const struct tr_scan *s); /* a space between two letters begins a match */
bool tr_scan_next(const struct tr_scan *s, const uint16_t *table, const char *p, size_t n, size_t *i, size_t *end);

struct tr_regex {
    const struct tr_scan *scan; /* or */
    void *code;                 /* pcre2_code */
};
struct tr_matcher; /* what one thread needs to run PCRE2 */
enum tr_status tr_regex_open(const char *pattern, struct tr_regex *out);
void tr_regex_close(struct tr_regex *r);
enum tr_status tr_matcher_open(struct tr_matcher **out);
void tr_matcher_close(struct tr_matcher *m);
/* Appends all of [begin, end) to out: matches and the gaps between them, in order. */
enum tr_status tr_regex_split(const struct tr_regex *r, struct tr_matcher *m, const uint16_t *table, const char *p,
                              size_t begin, size_t end, struct tr_spans *out);

/* A pattern of the JSON file: a literal text or a regular expression. */
struct tr_pattern {
    char *text;
    size_t n;
    bool is_regex;
    struct tr_regex re;
};
void tr_pattern_release(struct tr_pattern *x);
enum tr_status tr_pattern_split(const struct tr_pattern *x, struct tr_matcher *m, const uint16_t *table, const char *p,
                                size_t begin, size_t end, struct tr_spans *out);

/* ---- the stages ---- */

enum tr_norm_kind {
    TR_NORM_NFC, TR_NORM_NFD, TR_NORM_NFKC, TR_NORM_NFKD, TR_NORM_LOWER, TR_NORM_STRIP, TR_NORM_MARKS, TR_NORM_REPLACE,
    TR_NORM_PREPEND, TR_NORM_CLEAN, TR_NORM_CHINESE, TR_NORM_MN, TR_NORM_NMT, TR_NORM_CHARSMAP, TR_NORM_BYTES,
};
struct tr_norm {
    enum tr_norm_kind kind;
    bool left, right;          /* STRIP */
    struct tr_pattern pattern; /* REPLACE */
    char *text;                /* REPLACE, PREPEND: what is put in; CHARSMAP: the trie and the texts */
    size_t n;
};

enum tr_behavior { TR_REMOVED, TR_ISOLATED, TR_MERGED_PREVIOUS, TR_MERGED_NEXT, TR_CONTIGUOUS };
enum tr_split_kind {
    TR_SPLIT_PATTERN,
    TR_SPLIT_CLASS,     /* every character of the class is a match */
    TR_SPLIT_WORDS,     /* runs of \w and of neither \w nor \s */
    TR_SPLIT_METASPACE, /* rewrites spaces, may prepend one, may split before it */
    TR_SPLIT_PREFIX,    /* a space in front */
    TR_SPLIT_BYTES,     /* to byte characters, when a later step or the model looks at them */
};
enum tr_prepend { TR_PREPEND_ALWAYS, TR_PREPEND_FIRST, TR_PREPEND_NEVER };
struct tr_split {
    enum tr_split_kind kind;
    enum tr_behavior behavior;
    bool invert;
    struct tr_pattern pattern; /* PATTERN; METASPACE: the replacement */
    unsigned flag;             /* CLASS: bit of the table, 0 = white space */
    enum tr_prepend prepend;   /* METASPACE */
    bool has_split;
};

enum tr_decode_kind {
    TR_DECODE_BYTES, TR_DECODE_METASPACE, TR_DECODE_REPLACE, TR_DECODE_FUSE, TR_DECODE_FALLBACK, TR_DECODE_STRIP,
    TR_DECODE_WORDPIECE, TR_DECODE_BPE,
};
struct tr_decode {
    enum tr_decode_kind kind;
    struct tr_pattern pattern; /* REPLACE; METASPACE, STRIP: the character; WORDPIECE: prefix; BPE: suffix */
    char *text;                /* REPLACE: what is put in */
    size_t n;
    bool cleanup, keeps_first; /* WORDPIECE; METASPACE */
    int64_t start, stop;       /* STRIP */
};

/* An added token. `normal` is what is looked for in normalised text. */
struct tr_added {
    char *text, *normal;
    size_t n, n_normal;
    int32_t id;
    bool is_special, is_normalized, lstrip, rstrip, single_word;
};

enum tr_model_kind { TR_MODEL_BPE, TR_MODEL_UNIGRAM, TR_MODEL_WORDPIECE, TR_MODEL_WORDLEVEL };

struct tr_pool_list;

struct tr_tokenizer {
    uint16_t *table; /* Unicode */
    /* model */
    enum tr_model_kind model;
    struct tr_vocab vocab; /* the model's; added tokens only where the model has them too */
    struct tr_merges merges;
    int32_t id_of_byte[TR_BYTES]; /* raw: of the byte character; else of <0x..> (-1: none) */
    int32_t *id_of_cp;            /* BMP character -> id, -1: none; NULL with affixes or raw */
    uint8_t *may_merge;           /* a bit by hash of (symbol, symbol): some merge may join across them */
    bool is_raw;                  /* byte-level: the model sees bytes, not byte characters */
    bool ignore_merges, byte_fallback, fuse_unk;
    char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; "" none */
    int32_t unk;           /* -1: none */
    double *scores, unk_score; /* unigram */
    struct tr_trie pieces;
    int64_t word_max_chars;    /* wordpiece */
    size_t n_longest;          /* bytes of the longest token */
    /* pipeline */
    struct tr_norm norms[TR_STEPS_MAX];
    struct tr_split splits[TR_STEPS_MAX];
    struct tr_decode decodes[TR_STEPS_MAX];
    size_t n_norms, n_splits, n_decodes;
    bool has_decoder, takes_bytes, has_prepend;
    bool cuts_at_space, cuts_at_newline; /* a text may be encoded in parts there */
    struct tr_ids before, after;         /* the post-processor: around every text */
    /* added tokens */
    struct tr_added *added;
    size_t n_added;
    struct tr_vocab added_vocab;            /* their texts */
    struct tr_trie added_raw, added_normal; /* value: index into added */
    int32_t *added_of_id;                   /* index into added, -1 */
    size_t n_ids;                           /* largest id + 1 */
    int32_t eos, bos;
    struct tr_hash128 hash;
    struct tr_pool_list *pool; /* encoders at rest */
};

/* ---- one thread's work ---- */

struct tr_word; /* an entry of the word cache */
struct tr_encoder {
    const struct tr_tokenizer *t;
    struct tr_encoder *next; /* in the pool */
    struct tr_matcher *matcher;
    struct tr_str clean, norm[2], text[2];
    struct tr_spans spans[2], matches;
    struct tr_word *cache;
    uint32_t *symbols, *links; /* BPE: the word and its neighbours; normalisation: code points */
    uint64_t *heap;            /* BPE of long words */
    size_t n_symbols_cap, n_links_cap, n_heap_cap;
    struct tr_str scratch;
    struct tr_path *path; /* unigram */
    size_t n_path_cap;
    bool is_inside; /* tr_encoder_part: a part was taken before */
    size_t n_no_cut;
};

enum tr_status tr_ids_reserve(struct tr_ids *v, size_t n_more);
enum tr_status tr_encoder_grow(void **p, size_t *n_cap, size_t n, size_t width);

/* Normalises the piece. *out points into the text or into the encoder. *at_start is cleared when leading text is
 * dropped. `is_first` false: the piece goes on from an earlier part, so nothing is put in front. */
enum tr_status tr_normalize(struct tr_encoder *e, const char *p, size_t n, bool is_first, bool *at_start,
                            const char **out, size_t *n_out);
enum tr_status tr_charsmap_check(const char *blob, size_t n);
void tr_charsmap_apply(const struct tr_norm *x, const char *p, size_t n, struct tr_str *out);
/* The words of the piece: spans of *text (the piece or the encoder's). */
enum tr_status tr_split_text(struct tr_encoder *e, const char *p, size_t n, bool at_start, const char **text,
                             struct tr_spans **words);
enum tr_status tr_model_word(struct tr_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_bpe_text(struct tr_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_bpe_prepare(struct tr_tokenizer *t); /* tables that follow from vocabulary and merges */
/* No merge joins an ASCII letter and the first character of `mark`. */
bool tr_bpe_never_joins(const struct tr_tokenizer *t, const char *mark);
void tr_find_cuts(struct tr_tokenizer *t);
enum tr_status tr_cached_word(struct tr_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_unigram_word(struct tr_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_wordpiece_word(struct tr_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_bpe_word(struct tr_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_word_cache_new(struct tr_word **out);
enum tr_status tr_pool_list_open(struct tr_pool_list **out);
void tr_pool_list_close(struct tr_pool_list *l);
enum { TR_WORD_CACHE_BITS = 15, TR_WORD_KEY_MAX = 47, TR_WORD_IDS_MAX = 18 };

/* The next added token in text at or after *i: its index, and where it begins and ends (strips included). */
const struct tr_added *tr_added_next(const struct tr_tokenizer *t, const struct tr_trie *trie, const char *p, size_t n,
                                     size_t from, size_t *i, size_t *begin, size_t *end);

/* tokenizer_pipeline.c: the stages of a tokenizer.json. */
enum tr_status tr_load_pipeline(struct tr_tokenizer *t, const cJSON *root);
/* tokenizer_model.c */
enum tr_status tr_load_model(struct tr_tokenizer *t, const cJSON *root);
enum tr_status tr_load_added(struct tr_tokenizer *t, const cJSON *root);
enum tr_status tr_load_id(const cJSON *x, const char *what, int32_t *out);

#endif
