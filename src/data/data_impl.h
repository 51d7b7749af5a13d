/* data_impl.h - what data.c (opening), fill.c (samples) and proof.c (showing
 * them) share. */
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
    uint64_t n_rows;         /* that are samples here: all, or one side of the held-out split */
    uint64_t n_all, i_first; /* rows of all parts; with a split, where this side begins in its keyed order */
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
    char date[TR_DATE_MAX]; /* that conversations were told; "": none */
};

struct tr_place {
    const struct tr_data_part *part;
    uint64_t row; /* of the part */
    size_t i_group;
    uint64_t epoch; /* of the group */
};
/* Where sample g is: O(1), no state. */
struct tr_place tr_data_place(const struct tr_data *d, uint64_t g);

#endif
