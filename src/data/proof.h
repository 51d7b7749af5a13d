/* proof.h - shows people what a data set holds: files, skipped records, masks, and samples as training sees them. */
#ifndef TR_DATA_PROOF_H
#define TR_DATA_PROOF_H

#include "data/shape.h"
#include "token/token.h"

struct tr_data;

struct tr_data_file {
    const char *path;
    enum tr_shape shape;     /* as detected or given; AUTO: a token shard, which does not record it */
    bool uses_chat;          /* the chat template wrote its documents */
    enum tr_packing packing; /* as used */
    double weight;
    uint64_t n_tokens, n_docs, n_skipped;
    bool was_cached;   /* nothing was tokenised */
    size_t i_shard;    /* its first shard */
    uint64_t i_doc;    /* its first document in that shard */
    uint64_t n_before; /* records of the file in front of the slice that is used */
};
const struct tr_data_file *tr_data_files(const struct tr_data *d, size_t *n);

/* What its documents say of the tokens `end` and `bos` (-1: none). Documents are read up to the first one with `end`
 * among its targets; without an `end`, the first one is. */
struct tr_data_turns {
    bool has_end;
    int n_bos; /* at the beginning of a document, at most: 0, 1, or 2 for more */
};
enum tr_status tr_data_find_turns(const struct tr_data *d, size_t i_file, int32_t end, int32_t bos,
                                  struct tr_data_turns *out);

enum { TR_DATA_KEPT_SKIPS = 20 };
struct tr_data_skip {
    const char *path;
    int64_t line;
    const char *why;
};
/* The first TR_DATA_KEPT_SKIPS skipped records, also when the shards came from the cache. */
const struct tr_data_skip *tr_data_skips(const struct tr_data *d, size_t *n);

/* The first packed documents that lost tokens or were left out: what they lost, and how long a row they need. */
const struct tr_data_skip *tr_data_losses(const struct tr_data *d, size_t *n);

/* What the blocks of a stream skipped and lost that came since the last call. The first block is not among them: it is
 * in the summary. False: nothing, or no stream. */
struct tr_data_news {
    uint64_t n_skipped;        /* records */
    uint64_t n_cut, n_dropped; /* documents that lost tokens; that were left out */
    char first[400];           /* PATH:LINE: why, of the first that is known; "": of none */
};
bool tr_data_take_news(const struct tr_data *d, struct tr_data_news *out);

/* The record that a token of a sample comes from. */
struct tr_data_record {
    const char *path;
    int64_t line; /* from 1; 0: the file has no lines, or too many records of it were skipped to tell */
    uint64_t doc; /* of the file, from 0 */
};
enum tr_status tr_data_where(const struct tr_data *d, uint64_t sample, int64_t token, struct tr_data_record *out);

/* The targets among the tokens of the first samples, of at most TR_MASKS_ROWS samples. */
enum { TR_MASKS_ROWS = 256 };
struct tr_data_masks {
    int64_t n_rows, n_tokens, n_targets;
    int64_t n_idle; /* rows without a target, from which nothing is learnt */
};
enum tr_status tr_data_get_masks(const struct tr_data *d, struct tr_data_masks *out);

/* Summarises files, skipped records, rows, truncation and masks, as lines for people and as members of a JSON object
 * ("tokens":1,...). A long list is shortened, with a line for the rest. */
enum tr_status tr_data_summary(const struct tr_data *d, struct tr_str *text, struct tr_str *json);

/* One sample in readable form. Token i is_target when it is the target of the token before it. */
struct tr_proof_token {
    int32_t id;
    int32_t position; /* in its document, or in the part of the document that is in this row */
    bool is_target, is_pad;
    const char *text; /* its bytes, made valid UTF-8; in row->text */
    size_t n_text;
};
struct tr_proof_row {
    uint64_t sample, epoch; /* epoch of its source */
    size_t i_source;        /* with weights: number of the path; without: 0 */
    int64_t n_tokens, n_targets, n_docs;
    struct tr_proof_token *tokens; /* row_tokens of them */
    struct tr_str text;
};
/* t may be NULL; then the texts are empty. */
enum tr_status tr_data_prove(const struct tr_data *d, const struct tr_tokenizer *t, uint64_t sample,
                             struct tr_proof_row *out);
void tr_proof_row_release(struct tr_proof_row *row);
/* Prints the first n_max tokens of the row on one line. With colour, trained tokens are green and the others dim; else
 * trained tokens are in [brackets]. A bar marks the beginning of a document. */
void tr_proof_row_show(const struct tr_proof_row *row, bool has_color, int64_t n_max, struct tr_str *out);
/* The first n_max tokens as a member of a JSON object: "sample":{"id","epoch","tokens","documents","trained","pieces"}.
 * A piece is [what, text], neighbours that are alike together; what: 1 trained, 2 the beginning of a document, 4
 * padding, or their sum. */
void tr_proof_row_json(const struct tr_proof_row *row, int64_t n_max, struct tr_str *out);

#endif
