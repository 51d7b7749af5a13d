/* tokenize.h - turns text sources into token shards in the cache, once. */
#ifndef TR_DATA_TOKENIZE_H
#define TR_DATA_TOKENIZE_H

#include "data/cache.h"
#include "data/chunks.h"
#include "data/data.h"
#include "data/lines.h"
#include "data/record.h"
#include "data/shard.h"
#include "data/sources.h"

struct tr_shard_list {
    struct tr_shard **p;
    size_t n, n_cap;
};
/* Takes ownership of s, even when it fails. */
enum tr_status tr_shard_list_add(struct tr_shard_list *l, struct tr_shard *s);
void tr_shard_list_release(struct tr_shard_list *l);
void tr_shard_list_cut(struct tr_shard_list *l, size_t n); /* closes the shards from n on */

/* The first records that were skipped. The strings are copies. */
struct tr_skip_list {
    struct tr_data_skip p[TR_DATA_KEPT_SKIPS];
    size_t n;
};
enum tr_status tr_skip_list_add(struct tr_skip_list *l, const char *path, int64_t line, const char *why);
void tr_skip_list_release(struct tr_skip_list *l);

/* A file while it is read. That of a stream stays open from slice to slice. */
struct tr_reader {
    bool is_open, has_ended;
    uint64_t at;             /* where the next slice begins */
    struct tr_textfile file; /* of text */
    struct tr_table *table;  /* of records */
    struct tr_lines lines;
    struct tr_chunks chunks; /* of a text file */
};
void tr_reader_release(struct tr_reader *r); /* safe on zeroes */

/* Text, or records, of one slice: about so many bytes. */
static inline size_t tr_slice_bytes(const struct tr_data_options *o)
{
    return o->slice_bytes ? o->slice_bytes : 16 << 20;
}

void tr_maps_close(struct tr_source_map **maps, size_t n);

struct tr_tokenize {
    const struct tr_tokenizer *tokenizer; /* NULL: only sources of ids can be read */
    const struct tr_data_options *options;
    struct tr_source_map **maps; /* one for each path, NULL: the usual names; NULL: for all */
    size_t n_maps;
    struct tr_cache cache;
    struct tr_seals seals;
    struct tr_pool *pool; /* opened when first needed */
    uint64_t n_skipped;   /* so far, over all sources */
    struct tr_skip_list skips;
    struct tr_reader *reader; /* of slices */
};

/* Appends the shards of a source of text or records, or of the joined files that begin with it, from the cache or newly
 * made. The key of the cache is made of the file's content, the hash of the tokenizer, and the options that change
 * tokens; names and times do not matter. Sets shape, n_skipped and was_cached of file. Nothing is appended for a slice
 * at the end of its file. */
enum tr_status tr_tokenize_source(struct tr_tokenize *t, const struct tr_source *source, struct tr_shard_list *out,
                                  struct tr_data_file *file);

/* How its records are read, and the key of its shards when this stands for its content. */
enum tr_status tr_tokenize_look(const struct tr_tokenize *t, const struct tr_source *source, struct tr_hash128 content,
                                enum tr_shape *shape, struct tr_hash128 *key);

/* ---- shared by tokenize.c and make.c ---- */

struct tr_joined_text {
    char *p;
    size_t n;
};
struct tr_make {
    struct tr_tokenize *t;
    const struct tr_source *source;
    size_t n; /* files: 1, or those that are joined with the source */
    struct tr_record_rules rules;
    struct tr_hash128 *contents, key; /* contents: of each file */
    struct tr_joined_text *texts;     /* of each joined file; NULL: one file, which is read while its shards are made */
};
/* Reads the files, and writes its shards and its list of skipped records into the cache. */
enum tr_status tr_make_shards(const struct tr_make *m);
void tr_skips_name(struct tr_hash128 key, char out[64]); /* in the cache */
void tr_end_name(struct tr_hash128 key, char out[64]);   /* it says that the file of a slice ends before it */

#endif
