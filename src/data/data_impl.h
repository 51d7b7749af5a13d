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
    bool shuffle, cuts_long;
    struct tr_shard_list shards;
    struct tr_data_group *groups;
    size_t n_groups;
    struct tr_mix mix; /* of the groups */
    struct tr_data_file *files;
    size_t n_files;
    struct tr_skip_list skips;
    struct tr_data_info info;
    char date[TR_DATE_MAX]; /* the date in the chat template; "": it uses none */
};

struct tr_place {
    const struct tr_data_part *part;
    uint64_t row; /* of the part */
    size_t i_group;
    uint64_t epoch; /* of the group */
};
/* Finds sample g in O(1), without any state. */
struct tr_place tr_data_place(const struct tr_data *d, uint64_t g);

#endif
