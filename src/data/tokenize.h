/* tokenize.h - text sources become token shards in the cache, once. */
#ifndef TR_DATA_TOKENIZE_H
#define TR_DATA_TOKENIZE_H

#include "data/cache.h"
#include "data/data.h"
#include "data/shard.h"
#include "data/sources.h"

struct tr_shard_list {
    struct tr_shard **p;
    size_t n, n_cap;
};
enum tr_status tr_shard_list_add(struct tr_shard_list *l, struct tr_shard *s); /* owns s, also when it fails */
void tr_shard_list_release(struct tr_shard_list *l);
void tr_shard_list_cut(struct tr_shard_list *l, size_t n); /* closes those from n on */

struct tr_tokenize {
    const struct tr_tokenizer *tokenizer;
    const struct tr_data_options *options;
    struct tr_cache cache;
    uint64_t n_skipped; /* so far, over all sources */
};

/* Appends the shards of a .txt or .jsonl source, from the cache or newly made. The key is the content of the file, what
 * the tokenizer does, and the options that change tokens; names and times do not matter. */
enum tr_status tr_tokenize_source(struct tr_tokenize *t, const struct tr_source *source, struct tr_shard_list *out);

#endif
