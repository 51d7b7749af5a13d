/* data_test.h - scratch directories, files and shards for the data tests. */
#ifndef TR_TESTS_DATA_DATA_TEST_H
#define TR_TESTS_DATA_DATA_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "data/data.h"
#include "data/shard.h"

#define assert_ok(expr)                                                                                                \
    do {                                                                                                               \
        enum tr_status st_ = (expr);                                                                                   \
        if (st_ != TR_OK)                                                                                              \
            fail_msg("%s: %s: %s", #expr, tr_status_str(st_), tr_error_text());                                        \
    } while (0)

/* The call fails with this status and its text holds this. */
#define assert_refused(expr, status, part)                                                                             \
    do {                                                                                                               \
        enum tr_status st_ = (expr);                                                                                   \
        if (st_ != (status) || !strstr(tr_error_text(), (part)))                                                       \
            fail_msg("%s: got %s: %s; wanted \"%s\"", #expr, tr_status_str(st_), st_ ? tr_error_text() : "", (part));  \
    } while (0)

struct scratch {
    char dir[256];
    char path[TR_PATH_MAX]; /* of the last in_scratch() */
};

static inline int scratch_setup(void **state)
{
    const char *tmp = getenv("TMPDIR");
    struct scratch *s = calloc(1, sizeof *s);
    assert_non_null(s);
    snprintf(s->dir, sizeof s->dir, "%s/tr-data-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(s->dir));
    *state = s;
    return 0;
}

static inline int scratch_teardown(void **state)
{
    struct scratch *s = *state;
    assert_ok(tr_remove_tree(s->dir));
    free(s);
    return 0;
}

static inline const char *in_scratch(struct scratch *s, const char *name)
{
    assert_ok(tr_path_join(s->path, s->dir, name));
    return s->path;
}

static inline const char *put_file(struct scratch *s, const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_scratch(s, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    return s->path;
}

static inline const char *put_text(struct scratch *s, const char *name, const char *text)
{
    return put_file(s, name, text, strlen(text));
}

static inline struct tr_tokenizer *byte_tokenizer(struct scratch *s)
{
    struct tr_tokenizer *t = NULL;
    assert_ok(tr_tokenizer_write_bytes(s->dir));
    assert_ok(tr_tokenizer_open(s->dir, &t));
    return t;
}

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
            assert_ok(tr_shard_writer_add(w, &id, has_mask ? &is_target : NULL, 1));
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
    r.b.tokens = calloc(r.n, 4);
    r.b.targets = calloc(r.n, 4);
    r.b.positions = calloc(r.n, 4);
    r.b.begin = calloc(r.n, 4);
    r.b.sample = calloc(r.n, 8);
    assert_non_null(r.b.sample);
    return r;
}

static inline void rows_free(struct rows *r)
{
    free(r->b.tokens);
    free(r->b.targets);
    free(r->b.positions);
    free(r->b.begin);
    free(r->b.sample);
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

/* One of tests/golden/tokenizers. */
static inline struct tr_tokenizer *open_golden(const char *name)
{
    char path[TR_PATH_MAX];
    struct tr_tokenizer *t = NULL;
    assert_ok(tr_format(path, sizeof path, "%s/tests/golden/tokenizers/%s", TR_SOURCE_DIR, name));
    assert_ok(tr_tokenizer_open(path, &t));
    return t;
}

#endif
