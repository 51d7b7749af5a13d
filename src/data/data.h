/* data.h - room header of data: a data set as rows of T tokens, one global sample index, and a loader thread.
 *
 * Rows are fixed when the data set is opened (docs/formats/token-shard.md, "Rows"). A row is tokens [i*T, (i+1)*T) of
 * the stream of all documents, or whole documents packed together. Without weights, sample g is position g % n_rows of
 * epoch g / n_rows, and each epoch is a keyed permutation of the rows. With weights, a fixed table gives the source of
 * sample g, and each source has epochs of its own. The content of a sample depends only on (data, T, seed, g), so any
 * rank can read any slice, and the state of a resume is one number. Rejected: per-rank samplers (they repeat or drop
 * samples when the world changes) and a stored shuffle (it needs memory for every row).
 */
#ifndef TR_DATA_DATA_H
#define TR_DATA_DATA_H

#include "base/base.h"
#include "data/proof.h"
#include "text/text.h"

enum { TR_TARGET_NONE = -100 }; /* a token without a loss, as in HF */

enum { TR_DATA_MAX_SKIPPED = 1000 }; /* the default limit of skipped records */

/* Called for each record that is skipped. line counts from 1 (0: the whole file). */
typedef void tr_skip_fn(void *ctx, const char *path, int64_t line, const char *why);
/* Called for each file before it is tokenised, but not for a file whose tokens are in the cache. */
typedef void tr_make_fn(void *ctx, const char *path, uint64_t bytes);

struct tr_data_options {
    int64_t row_tokens;      /* T */
    uint64_t seed;           /* of the shuffle */
    bool shuffle;            /* false: rows in order, every epoch */
    bool in_order;           /* and records are not packed by their length, unless packing says so */
    int64_t vocab_size;      /* of the model; ids at or above it are refused at open */
    const double *weights;   /* one for each path; NULL or all 1: every row once in each epoch */
    const char *const *maps; /* one for each path: how its records are read (map.h); NULL: by the usual names */
    enum tr_shape shape;     /* of records */
    const char *text_key;    /* member that holds the text of a record; NULL: "text"; if given, records must be text */
    struct tr_chat *chat;   /* for conversations; NULL: they are refused, and alpaca records become alpaca's own text */
    const char *chat_date;  /* the date in templates that use one; NULL: that of the first start with cache_dir */
    enum tr_chat_mask mask; /* of conversations; TR_MASK_ALL: prompts have a loss too */
    bool reads_weights;     /* records have weights of their targets (weights.c), which may be other than 0 and 1 */
    bool weighs;            /* and a batch has them; its targets are counted in units of a weight */
    enum tr_packing packing;
    double held_out;   /* share of each source's rows that only evaluation uses */
    bool wants_pairs;  /* documents are pairs of answers, and samples are counted in pairs; false: they are not */
    bool wants_labels; /* documents are answers with labels (KTO), and samples are counted in them */
    bool weighs_tails; /* of pairs: targets of an answer behind the length of the other one weigh tail_weight */
    float tail_weight;
    bool is_held_out_side;     /* true: this data set has only the held-out rows; false: all others */
    enum tr_long how_long;     /* packed documents that are longer than a row */
    const char *fetch_command; /* for paths that are addresses (fetch.h); NULL: they are refused */
    const char *cache_dir;     /* of the token shards of text sources; created when absent; NULL: only .trtok sources */
    int64_t max_skipped;       /* the data set is refused when more records are skipped */
    int64_t shard_tokens;      /* a cache shard ends after the document that reaches this count; 0: 2^26 */
    int64_t cache_wait_us;     /* the longest wait for another process that fills the cache; 0: one hour */
    int n_threads;             /* that tokenise; 0: one for each core; never changes the result */
    bool streams;              /* rows are read while text is still tokenised (stream.h); for data that is shuffled */
    uint64_t streams_from;     /* bytes of all files: smaller data is not streamed */
    uint64_t most_samples;     /* of a stream: what is behind them is not tokenised; 0: all is */
    size_t slice_bytes;        /* of a stream: text of one slice, about; 0: 16 MiB */
    bool recheck;              /* read and verify every file, even if a seal in the cache says that it is unchanged */
    tr_skip_fn *on_skip;       /* may be NULL; called at first tokenising, not when the cache is reused */
    void *on_skip_ctx;
    tr_make_fn *on_make; /* may be NULL */
    void *on_make_ctx;
};

struct tr_data;

/* paths are files (text, records as in table.h, .trtok), directories or globs. tokenizer may be NULL when no
 * source is text. Text is tokenised here, once, into cache_dir. A shard that is new to the cache is verified in full.
 * Several processes may open the same cache at once: one does the work, and the others wait. A stream uses the
 * tokenizer, options->chat and the strings of options but cache_dir until it is closed; other data sets do not. */
enum tr_status tr_data_open(const char *const *paths, size_t n_paths, const struct tr_tokenizer *tokenizer,
                            const struct tr_data_options *options, struct tr_data **out);
void tr_data_close(struct tr_data *d);
/* The chat template is closed with the data set. */
void tr_data_keep(struct tr_data *d, struct tr_chat *chat);

struct tr_data_info {
    uint64_t n_tokens, n_docs, n_shards;
    uint64_t n_skipped;     /* records that were skipped when the shards were made */
    uint64_t n_rows;        /* all rows of all sources: samples of one epoch; 0: a stream, which does not know them */
    uint64_t n_row_tokens;  /* tokens in them; efficiency = n_row_tokens / (n_rows * T) */
    uint64_t n_split;       /* packed documents that are longer than a row and continue in further rows */
    uint64_t n_cut;         /* packed documents that were truncated, at their end or as prompt and answer */
    uint64_t n_dropped;     /* packed documents that were left out: too long, or no target would be left */
    uint64_t n_tokens_lost; /* tokens that were lost by these two, and targets among them */
    uint64_t n_targets_lost;
    struct tr_hash128 hash; /* of content, T, seed, shuffle, packing and weights; equal hashes mean equal samples */
};
void tr_data_get_info(const struct tr_data *d, struct tr_data_info *out);
uint64_t tr_data_rows(const struct tr_data *d);
int64_t tr_data_row_tokens(const struct tr_data *d);

/* ---- samples ---- */

/* What `n_targets` counts below is what the loss of a step is divided by: valid targets, pairs, answers with labels, or
 * the sum of the targets' weights in units. The weight of a target is TR_B_WEIGHT of the token in front of it. */
enum { TR_WEIGHT_ONE = 1 << 24 }; /* a weight of 1, in units: sums of whole numbers do not depend on their order */
enum { TR_WEIGHT_MOST = 255 };    /* the largest weight */

/* The number of optimizer steps that cover total_samples. The last step may be partly padding: no sample is repeated or
 * dropped. */
static inline uint64_t tr_data_steps(uint64_t total_samples, uint64_t batch_rows)
{
    return total_samples / batch_rows + (total_samples % batch_rows != 0);
}

/* Fills samples [first_sample, first_sample + n_rows). Those at or above total_samples become padding rows (token 0, no
 * targets). Counts the valid targets. Allocates nothing. Any number of threads may call this at the same time. */
enum tr_status tr_data_fill(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                            const struct tr_batch *out, int64_t *n_targets);
/* The same samples one behind the other, without padding between them: what is left is behind all of them, and
 * out->n_used says where. A sample has the same ids, positions and targets. */
enum tr_status tr_data_fill_dense(const struct tr_data *d, uint64_t first_sample, int64_t n_rows,
                                  uint64_t total_samples, struct tr_batch *out, int64_t *n_targets);
/* The same of answers with labels, with the mismatched document of each (partner.h) in its place. */
enum tr_status tr_data_fill_mismatched(const struct tr_data *d, uint64_t first_sample, int64_t n_rows,
                                       uint64_t total_samples, const struct tr_batch *out, int64_t *n_targets);
/* The tokens of these samples; padding is not counted. */
enum tr_status tr_data_tokens(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                              int64_t *n_tokens);
/* The targets of these samples, counted without reading the tokens. */
enum tr_status tr_data_count(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                             int64_t *n_targets);

/* ---- the reference of pairs and of answers with labels ---- */

/* Two numbers for each document, in the order of the data set's: the loss of the chosen and of the rejected answer
 * under the reference, or of the answer and of its mismatched document, which TR_B_VALUE has from then on. *n of them;
 * 0 until the caller writes them. */
float *tr_data_references(struct tr_data *d, uint64_t *n);
/* Of the first total_samples samples those whose row no earlier one has, with 1 in marks for each of their documents.
 * samples has room for all rows of d, marks for all documents, and is zeroes. */
enum tr_status tr_data_first_uses(const struct tr_data *d, uint64_t total_samples, unsigned char *marks,
                                  uint64_t *samples, uint64_t *n);
/* tr_data_fill or tr_data_fill_mismatched of n samples in any order; n_rows - n rows of padding follow. */
enum tr_status tr_data_fill_samples(const struct tr_data *d, const uint64_t *samples, int64_t n, int64_t n_rows,
                                    bool are_mismatched, const struct tr_batch *out);
/* Copies what a forward pass says of these samples to their place in the references. b: the samples as they were
 * filled; sums: (n_rows * T, n_cols), of which column 0 of the row where an answer begins is its loss. */
enum tr_status tr_data_take_references(struct tr_data *d, const uint64_t *samples, int64_t n_rows,
                                       const struct tr_batch *b, bool is_mismatched, const float *sums, int64_t n_cols);
bool tr_data_has_labels(const struct tr_data *d);

/* ---- Loader: one thread that keeps `depth` steps ready. ---- */

struct tr_loader_shape {
    int64_t row_tokens; /* T, as in the data set */
    int64_t batch_rows; /* B: rows of one step, all ranks together; step s is samples [s*B, (s+1)*B) */
    int64_t first_row;  /* this rank's slice of them */
    int64_t n_rows;     /* a multiple of micro_rows */
    int64_t micro_rows; /* rows of one micro-batch */
    int64_t depth;      /* steps in memory, >= 2; the caller uses one of them */
    bool is_dense;      /* micro-batches are filled by tr_data_fill_dense */
};

struct tr_step_batch {
    uint64_t step;
    uint64_t first_sample;    /* of the whole global batch: s * B */
    uint64_t n_samples;       /* of the whole global batch, padding rows not counted: B, less in the last step */
    int64_t n_targets;        /* valid targets of the whole global batch: the divisor of the loss */
    int64_t n_targets_local;  /* of this slice */
    int64_t n_micro;          /* n_rows / micro_rows */
    struct tr_batch *micro;   /* `begin` counts from the start of each micro-batch */
    int64_t *n_micro_targets; /* valid targets of each micro-batch */
};

struct tr_loader;

/* The host bytes that a loader of this shape needs, a pure function of the shape. 0: the shape is not legal. */
size_t tr_loader_bytes(const struct tr_loader_shape *shape);

/* Loads steps [first_step, last_step) of total_samples samples. mem is tr_loader_bytes() bytes, aligned to 64. It
 * belongs to the caller and must live until tr_loader_close() returns. Nothing else is allocated. d must outlive the
 * loader. */
enum tr_status tr_loader_open(const struct tr_data *d, const struct tr_loader_shape *shape, uint64_t first_step,
                              uint64_t last_step, uint64_t total_samples, void *mem, size_t n_mem,
                              struct tr_loader **out);
/* Gives the next step, in order. It is valid until the next call. *out is NULL after the last step. TR_TIMEOUT: the
 * step was not ready within wait_us; the caller may call again. An error of the loader thread is returned by this and
 * every later call. */
enum tr_status tr_loader_next(struct tr_loader *l, struct tr_step_batch **out, int64_t wait_us);
void tr_loader_close(struct tr_loader *l);

#include "data/match.h"

#endif
