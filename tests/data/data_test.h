/* data_test.h - shards and batches for the data tests. */
#ifndef TR_TESTS_DATA_DATA_TEST_H
#define TR_TESTS_DATA_DATA_TEST_H

#include "token/token_test.h"

#include "data/data.h"
#include "data/shard.h"

/* Documents of these lengths; token j of the stream has id (j * 7 + 3) % vocab. With a mask, every third is no target.
 */
static inline int32_t stream_id(uint64_t j, uint64_t vocab)
{
    return (int32_t)((j * 7 + 3) % vocab);
}

static inline void put_shard(const char *path, const int64_t *lengths, size_t n_docs, uint64_t first, uint64_t vocab,
                             bool has_mask)
{
    struct tr_shard_info info = { .vocab_size = vocab, .has_mask = has_mask };
    struct tr_shard_writer *w = NULL;
    assert_ok(tr_shard_writer_open(path, &info, &w));
    for (size_t d = 0; d < n_docs; d++) {
        for (int64_t i = 0; i < lengths[d]; i++, first++) {
            int32_t id = stream_id(first, vocab);
            uint8_t is_target = first % 3 != 0;
            assert_ok(tr_shard_writer_add(w, &id, has_mask ? &is_target : NULL, NULL, 1));
        }
        assert_ok(tr_shard_writer_end_doc(w));
    }
    assert_ok(tr_shard_writer_commit(w, true, 0));
}

struct rows { /* a batch with its own memory */
    struct tr_batch b;
    size_t n;
};

static inline struct rows rows_new(int64_t n_rows, int64_t row_tokens)
{
    struct rows r = { .n = (size_t)(n_rows * row_tokens) };
    for (enum tr_batch_slot i = 0; i < TR_B_COUNT; i++) {
        tr_batch_set(&r.b, i, calloc(r.n, tr_batch_elem_bytes(i)));
        assert_non_null(tr_batch_part(&r.b, i));
    }
    return r;
}

static inline void rows_free(struct rows *r)
{
    for (enum tr_batch_slot i = 0; i < TR_B_COUNT; i++)
        free(tr_batch_part(&r->b, i));
}

/* Elements [at, at + n) of a equal [0, n) of b, `begin` apart by shift. */
static inline void assert_same_rows(const struct tr_batch *a, size_t at, const struct tr_batch *b, size_t n,
                                    int32_t shift)
{
    assert_memory_equal(a->tokens + at, b->tokens, n * 4);
    assert_memory_equal(a->targets + at, b->targets, n * 4);
    assert_memory_equal(a->positions + at, b->positions, n * 4);
    assert_memory_equal(a->sample + at, b->sample, n * 8);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(a->begin[at + i], b->begin[i] + shift);
}

#endif
