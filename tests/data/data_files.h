/* data_files.h - text files for the data tests: compressed ones, a data set over the byte tokenizer, and its documents
 * as text. */
#ifndef TR_TESTS_DATA_DATA_FILES_H
#define TR_TESTS_DATA_DATA_FILES_H

#include "data/data_test.h"

#include <zlib.h>
#include <zstd.h>

struct bench {
    struct scratch *s;
    struct tr_tokenizer *tokenizer;
    struct tr_data_options options;
    char cache[TR_PATH_MAX];
    int n_skips; /* told while tokenising */
};

static inline void count_skip(void *ctx, const char *path, int64_t line, const char *why)
{
    (void)path, (void)line, (void)why;
    ++*(int *)ctx;
}

static inline void bench_init(struct bench *b, struct scratch *s)
{
    *b = (struct bench){ .s = s, .tokenizer = byte_tokenizer(s) };
    memcpy(b->cache, in_scratch(s, "cache"), TR_PATH_MAX);
    b->options = (struct tr_data_options){
        .row_tokens = 64,
        .vocab_size = 257,
        .cache_dir = b->cache,
        .max_skipped = 1000,
        .n_threads = 2,
        .on_skip = count_skip,
        .on_skip_ctx = &b->n_skips,
    };
}

static inline void bench_release(struct bench *b)
{
    tr_tokenizer_close(b->tokenizer);
}

static inline struct tr_data *bench_open(struct bench *b, const char *path)
{
    struct tr_data *d = NULL;
    assert_ok(tr_data_open(&path, 1, b->tokenizer, &b->options, &d));
    return d;
}

static inline const char *put_gzip(struct scratch *s, const char *name, const char *bytes, size_t n)
{
    gzFile f = gzopen(in_scratch(s, name), "wb6");
    assert_non_null(f);
    for (size_t at = 0; at < n;) {
        unsigned k = n - at < 1 << 20 ? (unsigned)(n - at) : 1 << 20;
        assert_int_equal(gzwrite(f, bytes + at, k), k);
        at += k;
    }
    assert_int_equal(gzclose(f), Z_OK);
    return s->path;
}

static inline const char *put_zstd(struct scratch *s, const char *name, const char *bytes, size_t n)
{
    size_t cap = ZSTD_compressBound(n);
    char *out = malloc(cap);
    assert_non_null(out);
    size_t k = ZSTD_compress(out, cap, bytes, n, 3);
    assert_false(ZSTD_isError(k));
    put_file(s, name, out, k);
    free(out);
    return s->path;
}

/* All documents in order, as text: <eos> is '$', '|' ends a document; with marks, targets stand in upper case (ids are
 * letters in these tests). Rows must hold one document each: packing none, no shuffle. */
static inline char *documents(const struct tr_data *d, bool marks)
{
    struct tr_data_info info;
    struct tr_str out = { 0 };
    int64_t T = tr_data_row_tokens(d), n_targets;
    struct rows r = rows_new(1, T);
    tr_data_get_info(d, &info);
    for (uint64_t g = 0; g < info.n_rows; g++) {
        struct tr_proof_row row;
        assert_ok(tr_data_fill(d, g, 1, info.n_rows, &r.b, &n_targets));
        assert_ok(tr_data_prove(d, NULL, g, &row));
        assert_int_equal(row.n_targets, n_targets);
        for (int64_t i = 0; i < row.n_tokens; i++) {
            int32_t id = r.b.tokens[i];
            bool is_on = i > 0 && r.b.targets[i - 1] != TR_TARGET_NONE;
            assert_int_equal(row.tokens[i].is_target, is_on);
            assert_int_equal(row.tokens[i].id, id);
            char c = id == 256 ? '$' : (char)id;
            if (marks && is_on)
                c = c == '$' ? '!' : c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
            tr_str_add(&out, &c, 1);
        }
        tr_str_add(&out, "|", 1);
        tr_proof_row_release(&row);
    }
    rows_free(&r);
    return out.p;
}

static inline void assert_documents(struct bench *b, const char *path, bool marks, const char *want)
{
    b->options.packing = TR_PACK_NONE;
    struct tr_data *d = bench_open(b, path);
    char *got = documents(d, marks);
    assert_string_equal(got, want);
    free(got);
    tr_data_close(d);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

#endif
