/* test_st_write.c - what the writer writes, the reader reads: bits, conversions, pieces, reuse, failures. */
#include "ckpt/tmpdir.h"
#include <signal.h>
#include <sys/resource.h>
#include "ckpt/safetensors.h"

enum { N = 200003 }; /* more than one conversion chunk of any type, more than one piece of the pump, and odd */
static struct tr_pump *pump;

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)(i * 2654435761u % 100003u) / 997.0 - 50.0);
    x[0] = 0.0f;
    x[1] = -0.0f;
    x[2] = 65504.0f;
    x[3] = 0x1p-24f; /* smallest half subnormal */
}

static const struct tr_st_entry entries[] = {
    { "d", TR_F64, 1, { N } },      { "empty", TR_F64, 2, { 0, 4 } }, { "f", TR_F32, 2, { N, 1 } },
    { "scalar", TR_F32, 0, { 0 } }, { "ids", TR_I32, 1, { 3 } },      { "b", TR_BF16, 1, { N } },
    { "h", TR_F16, 1, { N } },      { "bytes", TR_U8, 1, { 5 } },
};

static enum tr_status write_all(struct tr_st_writer *w, const char *path, const float *x, size_t piece,
                                uint64_t *out_bytes, struct tr_hash128 *out_hash)
{
    static const int32_t ids[3] = { -1, 0, INT32_MAX };
    enum tr_status st = TR_OK;
    char dir[TR_PATH_MAX];
    const char *name;
    TR_TRY(tr_path_split(path, dir, &name));
    TR_TRY(tr_st_writer_begin(w, pump, dir, name));
    for (size_t e = 0; e < TR_COUNT_OF(entries); e++) {
        if (entries[e].dtype == TR_I32) {
            TR_TRY(tr_st_writer_add(w, ids, TR_I32, 3));
        } else if (entries[e].dtype == TR_U8) {
            TR_TRY(tr_st_writer_add(w, "hello", TR_U8, 5));
        } else {
            uint64_t n, n_bytes;
            TR_TRY(tr_st_entry_size(&entries[e], &n, &n_bytes));
            for (size_t at = 0; at < n; at += piece)
                TR_TRY(tr_st_writer_add(w, x + at, TR_F32, n - at < piece ? n - at : piece));
        }
    }
    TR_TRY(tr_st_writer_finish(w, out_bytes, out_hash));
out:
    return st;
}

static void every_dtype_comes_back_as_converted(void **state)
{
    const char *path = in_dir(*state, "x.safetensors");
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint16_t *half = malloc(N * sizeof *half);
    struct tr_st_writer *w;
    struct tr_st *st;
    uint64_t n_bytes;
    struct tr_hash128 hash;
    fill(x, N);
    assert_ok(tr_st_writer_prepare(entries, TR_COUNT_OF(entries), &(struct tr_st_pair){ "k", "a\"b" }, 1, &w));
    assert_ok(write_all(w, path, x, N, &n_bytes, &hash));
    assert_int_equal(n_bytes, tr_st_writer_bytes(w));
    tr_st_writer_close(w);

    assert_ok(tr_st_open(path, &st));
    assert_int_equal(tr_st_count(st), TR_COUNT_OF(entries));
    assert_string_equal(tr_st_metadata(st, "format"), "pt");
    assert_string_equal(tr_st_metadata(st, "k"), "a\"b");
    for (size_t e = 0; e < TR_COUNT_OF(entries); e++) {
        size_t i;
        assert_true(tr_st_find(st, entries[e].name, &i));
        const struct tr_st_tensor *t = tr_st_tensor(st, i);
        assert_int_equal(t->dtype, entries[e].dtype);
        assert_int_equal(t->n_dims, entries[e].n_dims);
        assert_memory_equal(t->dims, entries[e].dims, sizeof t->dims);
        if (t->n_elems != N)
            continue;
        assert_ok(tr_st_read(st, i, 0, N, y, TR_F32));
        for (size_t k = 0; k < N; k++) {
            float want = t->dtype == TR_BF16  ? tr_f32_of_bf16(tr_bf16_of_f32(x[k]))
                         : t->dtype == TR_F16 ? tr_f32_of_f16(tr_f16_of_f32(x[k]))
                                              : x[k];
            assert_memory_equal(&y[k], &want, sizeof want);
        }
        /* any range, another type: same bits as converting what a full read gave */
        assert_ok(tr_st_read(st, i, 33000, 1001, half, TR_BF16));
        for (size_t k = 0; k < 1001; k++)
            assert_int_equal(half[k], tr_bf16_of_f32(y[33000 + k]));
    }
    tr_st_close(st);
    free(x);
    free(y);
    free(half);
}

static void the_hash_is_that_of_the_file(void **state)
{
    const char *path = in_dir(*state, "x.safetensors");
    float *x = malloc(N * sizeof *x);
    struct tr_st_writer *w;
    uint64_t n_bytes;
    struct tr_hash128 hash;
    char *text;
    size_t n;
    fill(x, N);
    assert_ok(tr_st_writer_prepare(entries, TR_COUNT_OF(entries), NULL, 0, &w));
    assert_ok(write_all(w, path, x, 777, &n_bytes, &hash));
    tr_st_writer_close(w);
    assert_ok(tr_file_read(path, 1 << 24, &text, &n));
    assert_int_equal(n, n_bytes);
    assert_true(tr_hash_eq(hash, tr_hash(text, n)));
    free(text);
    free(x);
}

static void data_begins_aligned_whatever_the_header(void **state)
{
    for (int n_name = 1; n_name <= TR_ST_ALIGN; n_name++) {
        char name[TR_ST_ALIGN + 1] = "", length[8];
        struct tr_st_entry e = { name, TR_U8, 0, { 0 } };
        struct tr_st_writer *w;
        struct tr_hash128 hash;
        uint64_t n_bytes, n_header = 0;
        memset(name, 'x', (size_t)n_name);
        assert_ok(tr_st_writer_prepare(&e, 1, NULL, 0, &w));
        assert_ok(tr_st_writer_begin(w, pump, *state, name));
        assert_ok(tr_st_writer_add(w, "1", TR_U8, 1));
        assert_ok(tr_st_writer_finish(w, &n_bytes, &hash));
        tr_st_writer_close(w);
        FILE *f = fopen(in_dir(*state, name), "rb");
        assert_non_null(f);
        assert_int_equal(fread(length, 1, 8, f), 8);
        fclose(f);
        for (int i = 0; i < 8; i++)
            n_header |= (uint64_t)(unsigned char)length[i] << (8 * i);
        assert_int_equal((8 + n_header) % TR_ST_ALIGN, 0);
        assert_int_equal(8 + n_header + 1, n_bytes);
    }
}

static void a_writer_serves_many_files_and_piece_size_changes_nothing(void **state)
{
    float *x = malloc(N * sizeof *x);
    struct tr_st_writer *w;
    struct tr_hash128 first = { 0 }, hash;
    fill(x, N);
    assert_ok(tr_st_writer_prepare(entries, TR_COUNT_OF(entries), NULL, 0, &w));
    for (size_t i = 0; i < 4; i++) {
        static const size_t pieces[] = { N, 1000, 65536, 12345 };
        char name[] = "0.safetensors";
        uint64_t n_bytes;
        name[0] = (char)('0' + i);
        assert_ok(write_all(w, in_dir(*state, name), x, pieces[i], &n_bytes, &hash));
        if (i == 0)
            first = hash;
        assert_true(tr_hash_eq(first, hash));
    }
    tr_st_writer_close(w);
    free(x);
}

static void a_failed_file_is_gone_and_the_writer_still_works(void **state)
{
    static const char *const points[] = { "ckpt.shard_header:error", "ckpt.shard_write:error",
                                          "ckpt.shard_write:error:5", "ckpt.before_fsync:error",
                                          "ckpt.after_fsync:error" };
    const char *path = in_dir(*state, "x.safetensors");
    float *x = malloc(N * sizeof *x);
    struct tr_st_writer *w;
    uint64_t n_bytes;
    struct tr_hash128 hash;
    fill(x, N);
    assert_ok(tr_st_writer_prepare(entries, TR_COUNT_OF(entries), NULL, 0, &w));
    for (size_t i = 0; i < TR_COUNT_OF(points); i++) {
        assert_ok(tr_failpoint_setup(points[i], 0));
        assert_fails_with(write_all(w, path, x, N, &n_bytes, &hash), TR_IO, "failpoint");
        assert_int_not_equal(access(path, F_OK), 0);
    }
    assert_ok(tr_failpoint_setup("", 0));
    assert_ok(write_all(w, path, x, N, &n_bytes, &hash));
    assert_fails_with(write_all(w, path, x, N, &n_bytes, &hash), TR_USAGE, "create"); /* never over a file */
    assert_int_equal(access(path, F_OK), 0);
    tr_st_writer_close(w);
    free(x);
}

/* C1: a limit on the file size fails write() half way, as a full disk does. */
static void a_write_that_stops_half_way_leaves_no_file(void **state)
{
    const char *path = in_dir(*state, "x.safetensors");
    float *x = malloc(N * sizeof *x);
    struct tr_st_writer *w;
    uint64_t n_bytes;
    struct tr_hash128 hash;
    struct rlimit old, small;
    fill(x, N);
    assert_ok(tr_st_writer_prepare(entries, TR_COUNT_OF(entries), NULL, 0, &w));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (size_t i = 0; i < 3; i++) { /* in the first piece, in the last, in its odd end */
        small = old;
        small.rlim_cur = (rlim_t[]){ 500000, 2500000, tr_st_writer_bytes(w) - 1 }[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        enum tr_status st = write_all(w, path, x, N, &n_bytes, &hash);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_fails_with(st, TR_IO, "x.safetensors");
        assert_int_not_equal(access(path, F_OK), 0);
    }
    assert_ok(write_all(w, path, x, N, &n_bytes, &hash));
    tr_st_writer_close(w);
    free(x);
}

static void entries_that_no_reader_would_take_are_refused_at_prepare(void **state)
{
    (void)state;
    static const struct {
        struct tr_st_entry e[2];
        const char *text;
    } rows[] = {
        { { { "a", TR_F32, 1, { 1 } }, { "a", TR_F32, 1, { 1 } } }, "given twice" },
        { { { "a", TR_F32, 1, { -1 } }, { "b", TR_F32, 1, { 1 } } }, "bad shape" },
        { { { "a", TR_F32, 2, { INT64_MAX, 4 } }, { "b", TR_F32, 1, { 1 } } }, "bad shape" },
        { { { "a", TR_U8, 1, { INT64_MAX } }, { "b", TR_U8, 1, { INT64_MAX } } }, "larger than" },
        { { { "a", TR_U8, 1, { 3 } }, { "b", TR_F32, 1, { 1 } } }, "wider dtypes first" },
        { { { "a\n", TR_U8, 1, { 3 } }, { "b", TR_U8, 1, { 1 } } }, "control byte" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_st_writer *w;
        assert_fails_with(tr_st_writer_prepare(rows[i].e, 2, NULL, 0, &w), TR_USAGE, rows[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        dir_test(every_dtype_comes_back_as_converted),
        dir_test(the_hash_is_that_of_the_file),
        dir_test(data_begins_aligned_whatever_the_header),
        dir_test(a_writer_serves_many_files_and_piece_size_changes_nothing),
        dir_test(a_failed_file_is_gone_and_the_writer_still_works),
        dir_test(a_write_that_stops_half_way_leaves_no_file),
        cmocka_unit_test(entries_that_no_reader_would_take_are_refused_at_prepare),
    };
    if (tr_pump_open(NULL, &pump) != TR_OK)
        return 1;
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    tr_pump_close(pump);
    return n_failed;
}
