/* stream.h - a data set whose text is tokenised while its rows are read: a list of data sets, its blocks, that grows.
 *
 * The files are read in slices of about 16 MiB (tokenize.h), which one thread makes one after another, in lanes: each
 * file belongs to one of at most eight lanes, and the lane that is furthest behind for its length comes next. A block
 * is the next 1, 1, 2, 4, 8, 8, ... slices, and is a data set like others: its rows are packed and shuffled among
 * themselves. Rows are read block after block. All this depends on the files, the options and the seed alone. A sample
 * whose block is not there yet is waited for, so a full cache, an empty one and another number of ranks give the same
 * samples in the same order. Rejected: reading what is ready first (the order would depend on the machine), and drawing
 * slices at random (a compressed file can be read only from its start).
 *
 * The number of rows is not known before all is tokenised. So a stream needs a run whose length is given in steps.
 */
#ifndef TR_DATA_STREAM_H
#define TR_DATA_STREAM_H

#include "data/mix.h"
#include "data/tokenize.h"

struct tr_stream;

bool tr_stream_is_wanted(const struct tr_data_options *o, const struct tr_sources *sources);
/* Looks at every file, starts the thread and waits for the first block of each group. Takes the sources, and what t has
 * (its maps too) but the tokenizer. mix: of the groups; it must live as long. */
enum tr_status tr_stream_open(struct tr_tokenize *t, struct tr_sources *sources, size_t n_groups,
                              const struct tr_mix *mix, struct tr_stream **out);
void tr_stream_close(struct tr_stream *s); /* NULL is fine */

/* Row k of a group: row *row of a block, before its shuffle. Waits for the block. Any number of threads may call it. */
enum tr_status tr_stream_find(struct tr_stream *s, size_t i_group, uint64_t k, const struct tr_data **block,
                              uint64_t *row, uint64_t *epoch);
struct tr_data_news;
bool tr_stream_take_news(struct tr_stream *s, struct tr_data_news *out); /* tr_data_take_news */
const struct tr_data *tr_stream_first(const struct tr_stream *s);
/* Equal hashes mean equal samples. A large file is known by its size and by pieces of it. */
struct tr_hash128 tr_stream_hash(const struct tr_stream *s);
uint64_t tr_stream_bytes(const struct tr_stream *s); /* of all files */

#endif
