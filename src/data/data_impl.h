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

struct tr_data {
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
    bool has_pairs, has_labels;
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

/* Is the loss a mean over documents? */
static inline bool tr_data_counts_docs(const struct tr_data *d)
{
    return d->has_pairs || d->has_labels;
}

/* The targets of sample g, of pairs too. */
enum tr_status tr_data_targets(const struct tr_data *d, uint64_t g, int64_t *n_targets);

struct tr_place {
    const struct tr_data_part *part;
    uint64_t row; /* of the part */
    size_t i_group;
    uint64_t epoch; /* of the group */
};
/* Finds sample g in O(1), without any state. */
struct tr_place tr_data_place(const struct tr_data *d, uint64_t g);

#endif
