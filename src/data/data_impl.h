/* data_impl.h - the data set, as data.c (opens it), fill.c (reads samples) and proof.c (shows them) share it. */
#ifndef TR_DATA_DATA_IMPL_H
#define TR_DATA_DATA_IMPL_H

#include "data/data.h"
#include "data/mix.h"
#include "data/rows.h"
#include "data/tokenize.h"

struct tr_data_group {
    uint64_t seed; /* of its shuffle */
    struct tr_data_part parts[TR_PACK_COUNT];
    size_t n_parts;
    bool is_split;
    uint64_t n_rows;         /* rows that are samples of this data set: all, or one side of the held-out split */
    uint64_t n_all, i_first; /* rows of all parts; with a split, the place in the keyed order where this side begins */
};

struct tr_stream;

struct tr_data {
    struct tr_stream *stream; /* not NULL: rows are those of its blocks, and the members below up to mix are empty */
    struct tr_chat *chat;     /* owned; NULL: nothing was given to keep */
    int64_t row_tokens;
    uint64_t seed;
    bool shuffle;
    enum tr_long how_long;
    struct tr_shard_list shards;
    struct tr_data_group *groups;
    size_t n_groups;
    struct tr_mix mix; /* of the groups */
    struct tr_data_file *files;
    size_t n_files;
    bool has_pairs, has_labels, weighs, weighs_tails;
    float tail_weight;
    float *ref; /* two for each document of all parts, part after part; of pairs and labels only */
    uint64_t n_ref;
    struct tr_skip_list skips, losses; /* losses: packed documents that lost tokens, or were left out */
    uint64_t n_idle;                   /* rows that were left out because they had no target */
    struct tr_data_info info;
    char date[TR_DATE_MAX]; /* the date in the chat template; "": it uses none */
};

/* Adds the first long documents of a part to d->losses. With TR_LONG_REFUSE the first one is refused. */
enum tr_status tr_data_name_losses(struct tr_data *d, const struct tr_data_part *part,
                                   const struct tr_skip_list *skips);

/* ---- a data set in steps: begin, add sources, end ---- */

enum tr_status tr_data_begin(const struct tr_data_options *o, uint64_t seed, size_t n_files, struct tr_data **out);
/* Opens the source, or the joined files that begin with it. No shard is added for a slice at the end of its file. */
enum tr_status tr_data_add(struct tr_data *d, struct tr_tokenize *t, const struct tr_source *source);
/* Makes rows of all shards, as one group. There may be none. Takes the skipped records of t. */
enum tr_status tr_data_end(struct tr_data *d, struct tr_tokenize *t);

/* The data set whose files, skipped records and losses stand for all: itself, or the first block of a stream. */
const struct tr_data *tr_data_first(const struct tr_data *d);

/* Is the loss a mean over documents? */
static inline bool tr_data_counts_docs(const struct tr_data *d)
{
    return d->has_pairs || d->has_labels;
}

/* The targets of sample g, of pairs too. */
enum tr_status tr_data_targets(const struct tr_data *d, uint64_t g, int64_t *n_targets);

struct tr_place {
    const struct tr_data *d; /* the data set of the part: a block, if it is streamed */
    const struct tr_data_part *part;
    uint64_t row; /* of the part */
    size_t i_group;
    uint64_t epoch; /* of the group */
};
/* Finds sample g in O(1), without any state; of a stream, waits until it is there. */
enum tr_status tr_data_place(const struct tr_data *d, uint64_t g, struct tr_place *out);

#endif
