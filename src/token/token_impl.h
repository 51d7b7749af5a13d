/* token_impl.h - the parts of a loaded tokenizer, and the functions that the files of this room share.
 *
 * A tokenizer holds HF's pipeline as data: added tokens -> normalizer steps -> split steps -> model -> ids, and decoder
 * steps for the opposite direction. load.c fills it once, and then it is const. All state that changes during encoding
 * is in a tr_tok_encoder.
 */
#ifndef TR_TOKEN_TOKEN_IMPL_H
#define TR_TOKEN_TOKEN_IMPL_H

#include "token/token_parts.h"

enum {
    TR_TOK_STEPS_MAX = 32, /* of one stage */
    TR_TOK_ADDED_MAX = 1 << 16,
    TR_TOK_PIECE_MAX = INT32_MAX, /* bytes between two added tokens */
};

/* ---- the stages ---- */

enum tr_tok_norm_kind {
    TR_TOK_NORM_NFC,
    TR_TOK_NORM_NFD,
    TR_TOK_NORM_NFKC,
    TR_TOK_NORM_NFKD,
    TR_TOK_NORM_LOWER,
    TR_TOK_NORM_STRIP,
    TR_TOK_NORM_MARKS,
    TR_TOK_NORM_REPLACE,
    TR_TOK_NORM_PREPEND,
    TR_TOK_NORM_CLEAN,
    TR_TOK_NORM_CHINESE,
    TR_TOK_NORM_MN,
    TR_TOK_NORM_NMT,
    TR_TOK_NORM_CHARSMAP,
    TR_TOK_NORM_BYTES,
};
struct tr_tok_norm {
    enum tr_tok_norm_kind kind;
    bool left, right;              /* STRIP */
    struct tr_tok_pattern pattern; /* REPLACE */
    char *text;                    /* REPLACE, PREPEND: the new text; CHARSMAP: the trie and its texts */
    size_t n;
};

enum tr_tok_behavior { TR_TOK_REMOVED, TR_TOK_ISOLATED, TR_TOK_MERGED_PREVIOUS, TR_TOK_MERGED_NEXT, TR_TOK_CONTIGUOUS };
enum tr_tok_split_kind {
    TR_TOK_SPLIT_PATTERN,
    TR_TOK_SPLIT_CLASS,     /* every character of the class is a match */
    TR_TOK_SPLIT_WORDS,     /* runs of \w and of neither \w nor \s */
    TR_TOK_SPLIT_METASPACE, /* rewrites spaces, may prepend one, may split before it */
    TR_TOK_SPLIT_PREFIX,    /* puts a space before the text */
    TR_TOK_SPLIT_BYTES,     /* turns bytes into byte characters, when a later step or the model needs them */
};
enum tr_tok_prepend { TR_TOK_PREPEND_ALWAYS, TR_TOK_PREPEND_FIRST, TR_TOK_PREPEND_NEVER };
struct tr_tok_split {
    enum tr_tok_split_kind kind;
    enum tr_tok_behavior behavior;
    bool invert;
    struct tr_tok_pattern pattern; /* PATTERN; METASPACE: the replacement */
    unsigned flag;                 /* CLASS: bit of the table, 0 = white space */
    enum tr_tok_prepend prepend;   /* METASPACE */
    bool has_split;
};

enum tr_tok_decode_kind {
    TR_TOK_DECODE_BYTES,
    TR_TOK_DECODE_METASPACE,
    TR_TOK_DECODE_REPLACE,
    TR_TOK_DECODE_FUSE,
    TR_TOK_DECODE_FALLBACK,
    TR_TOK_DECODE_STRIP,
    TR_TOK_DECODE_WORDPIECE,
    TR_TOK_DECODE_BPE,
};
struct tr_tok_decode {
    enum tr_tok_decode_kind kind;
    struct tr_tok_pattern pattern; /* REPLACE; METASPACE, STRIP: the character; WORDPIECE: prefix; BPE: suffix */
    char *text;                    /* REPLACE: the new text */
    size_t n;
    bool cleanup, keeps_first; /* WORDPIECE; METASPACE */
    int64_t start, stop;       /* STRIP */
};

/* An added token. `normal` is the form that is searched for in normalised text. */
struct tr_tok_added {
    char *text, *normal;
    size_t n, n_normal;
    int32_t id;
    bool is_special, is_normalized, lstrip, rstrip, single_word;
};

enum tr_tok_model_kind { TR_TOK_MODEL_BPE, TR_TOK_MODEL_UNIGRAM, TR_TOK_MODEL_WORDPIECE, TR_TOK_MODEL_WORDLEVEL };

struct tr_tok_pool_list;

struct tr_tokenizer {
    uint16_t *table; /* Unicode */
    /* model */
    enum tr_tok_model_kind model;
    struct tr_tok_vocab vocab; /* of the model; added tokens only if the model has them too */
    struct tr_tok_merges merges;
    int32_t id_of_byte[TR_TOK_BYTES]; /* is_raw: the id of the byte character; else of <0x..> (-1: none) */
    int32_t *id_of_cp;                /* BMP character -> id, -1: none; NULL with affixes or raw */
    uint8_t *may_merge;               /* one bit for each hash of (symbol, symbol): a merge may join the two */
    bool is_raw;                      /* byte-level: the model sees bytes, not byte characters */
    bool ignore_merges, byte_fallback, fuse_unk;
    char *prefix, *suffix;     /* continuing_subword_prefix, end_of_word_suffix; "" none */
    int32_t unk;               /* -1: none */
    double *scores, unk_score; /* unigram */
    struct tr_tok_trie pieces;
    int64_t word_max_chars; /* wordpiece */
    size_t n_longest;       /* bytes of the longest token */
    /* pipeline */
    struct tr_tok_norm norms[TR_TOK_STEPS_MAX];
    struct tr_tok_split splits[TR_TOK_STEPS_MAX];
    struct tr_tok_decode decodes[TR_TOK_STEPS_MAX];
    size_t n_norms, n_splits, n_decodes;
    bool has_decoder, takes_bytes;
    bool cuts_at_space, cuts_at_newline; /* a text may be cut there and encoded in parts */
    struct tr_ids before, after;         /* of the post-processor: ids around every text */
    /* added tokens */
    struct tr_tok_added *added;
    size_t n_added;
    struct tr_tok_vocab added_vocab;            /* their texts */
    struct tr_tok_trie added_raw, added_normal; /* value: index into added */
    int32_t *added_of_id;                       /* index into added, -1 */
    size_t n_ids;                               /* largest id + 1 */
    int32_t eos, bos;
    struct tr_hash128 hash;
    struct tr_tok_pool_list *pool; /* encoders that are not in use */
};

/* ---- one thread's work ---- */

struct tr_tok_word; /* an entry of the word cache */
struct tr_tok_encoder {
    const struct tr_tokenizer *t;
    struct tr_tok_encoder *next; /* in the pool */
    struct tr_tok_matcher *matcher;
    struct tr_str clean, norm[2], text[2];
    struct tr_tok_spans spans[2], matches;
    struct tr_tok_word *cache;
    uint32_t *symbols, *links; /* BPE: the word and its neighbours; normalisation: code points */
    uint64_t *heap;            /* BPE of long words */
    size_t n_symbols_cap, n_links_cap, n_heap_cap;
    struct tr_str scratch;
    struct tr_tok_path *path; /* unigram */
    size_t n_path_cap;
};

/* Steps of a text, or of ids that are decoded, and for each byte or id; see base/work.h. */
enum { TR_TOK_WORK = 50 * 1000 * 1000, TR_TOK_WORK_BYTE = 100 };
enum tr_status tr_tok_work(size_t n_steps); /* takes them */
enum tr_status tr_ids_reserve(struct tr_ids *v, size_t n_more);
enum tr_status tr_tok_encoder_grow(void *p, size_t *n_cap, size_t n, size_t width);

/* Normalises the piece. *out points into the text or into the encoder. *at_start is cleared when leading text is
 * dropped. `is_first` false: the piece continues an earlier part, so nothing is put before it. */
enum tr_status tr_tok_normalize(struct tr_tok_encoder *e, const char *p, size_t n, bool is_first, bool *at_start,
                                const char **out, size_t *n_out);
enum tr_status tr_tok_charsmap_check(const char *blob, size_t n);
/* Stops soon after `most` bytes. */
void tr_tok_charsmap_apply(const struct tr_tok_norm *x, const char *p, size_t n, size_t most, struct tr_str *out);
/* Splits the piece into words, which are spans of *text. *text is the piece or memory of the encoder. */
enum tr_status tr_tok_split_text(struct tr_tok_encoder *e, const char *p, size_t n, bool at_start, const char **text,
                                 struct tr_tok_spans **words);
enum tr_status tr_tok_model_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_tok_bpe_text(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_tok_bpe_prepare(struct tr_tokenizer *t); /* computes tables from the vocabulary and the merges */
/* Whether no merge joins an ASCII letter and the first character of `mark`. */
bool tr_tok_bpe_never_joins(const struct tr_tokenizer *t, const char *mark);
void tr_tok_find_cuts(struct tr_tokenizer *t);
enum tr_status tr_tok_cached_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_tok_unigram_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_tok_wordpiece_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_tok_bpe_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out);
enum tr_status tr_tok_word_cache_new(struct tr_tok_word **out);
enum tr_status tr_tok_pool_list_open(struct tr_tok_pool_list **out);
void tr_tok_pool_list_close(struct tr_tok_pool_list *l);
enum { TR_TOK_WORD_CACHE_BITS = 15, TR_TOK_WORD_KEY_MAX = 47, TR_TOK_WORD_IDS_MAX = 18 };

/* The next added token in the text at or after *i, and where it begins and ends (stripped white space included). NULL:
 * there is none, or the thread may not do more work. */
const struct tr_tok_added *tr_tok_added_next(const struct tr_tokenizer *t, const struct tr_tok_trie *trie,
                                             const char *p, size_t n, size_t from, size_t *i, size_t *begin,
                                             size_t *end);

/* load_model.c */
enum tr_status tr_tok_load_model(struct tr_tokenizer *t, const cJSON *root);
enum tr_status tr_tok_load_added(struct tr_tokenizer *t, const cJSON *root);
enum tr_status tr_tok_load_id(const cJSON *x, const char *what, int32_t *out);

#endif
