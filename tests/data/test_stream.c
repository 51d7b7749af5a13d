/* test_stream.c - a data set that is tokenised while it is read: the same samples whatever the cache holds, however
 * often the reader was killed, and whoever else reads; every record of every file once in an epoch. */
#include "data/data_files.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { T = 64, N_RECORDS = 900, SLICE = 8 << 10, TASK = 128 << 10 };

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

struct files {
    char path[4][TR_PATH_MAX];
    const char *paths[4];
    struct bench b;
};

/* Records of one file: "<letter><number>." and letters behind it. */
static char *records(char letter, size_t n, bool is_json, size_t *n_bytes)
{
    struct tr_str s = { 0 };
    for (size_t i = 0; i < n; i++) {
        tr_str_addf(&s, is_json ? "{\"text\": \"" : "");
        tr_str_addf(&s, "%c%05zu.", letter, i);
        for (size_t k = 0; k < tr_philox(5, (uint64_t)letter, i).v[0] % 90; k++)
            tr_str_addf(&s, "%c", (char)('a' + (i + k) % 26));
        tr_str_addf(&s, is_json ? "\"}\n" : "\n");
        if (is_json && i % 101 == 100)
            tr_str_addf(&s, "no record\n");
    }
    *n_bytes = s.n;
    return s.p;
}

static void files_init(struct files *f, struct scratch *s)
{
    size_t n;
    bench_init(&f->b, s);
    f->b.options.row_tokens = T;
    f->b.options.shuffle = true;
    f->b.options.seed = 17;
    f->b.options.streams = true;
    f->b.options.slice_bytes = SLICE;
    f->b.options.on_skip = NULL;
    char *a = records('A', N_RECORDS, true, &n);
    put_file(s, "a.jsonl", a, n);
    memcpy(f->path[0], in_scratch(s, "a.jsonl"), TR_PATH_MAX);
    free(a);
    a = records('B', N_RECORDS, true, &n);
    memcpy(f->path[1], put_gzip(s, "b.jsonl.gz", a, n), TR_PATH_MAX);
    free(a);
    a = records('C', 12 * N_RECORDS, false, &n); /* cut between tasks of text, which are larger than a slice */
    assert_true(n > 4 * TASK);
    put_file(s, "c.txt", a, n);
    memcpy(f->path[2], in_scratch(s, "c.txt"), TR_PATH_MAX);
    free(a);
    a = records('D', 20, true, &n);
    put_file(s, "d.jsonl", a, n);
    memcpy(f->path[3], in_scratch(s, "d.jsonl"), TR_PATH_MAX);
    free(a);
    for (int i = 0; i < 4; i++)
        f->paths[i] = f->path[i];
}

#define assert_fails(call, status, text)                                                                               \
    do {                                                                                                               \
        assert_int_equal(call, status);                                                                                \
        assert_non_null(strstr(tr_error_text(), text));                                                                \
        tr_error_clear();                                                                                              \
    } while (0)

static struct tr_data *open_all(struct files *f)
{
    struct tr_data *d = NULL;
    assert_ok(tr_data_open(f->paths, 4, f->b.tokenizer, &f->b.options, &d));
    return d;
}

static struct tr_hash128 sample_hash(const struct tr_data *d, uint64_t g, struct rows *r)
{
    int64_t n_targets;
    assert_ok(tr_data_fill(d, g, 1, UINT64_MAX, &r->b, &n_targets));
    return tr_hash(r->b.tokens, T * 4);
}

/* The samples [0, n), in their order. */
static struct tr_hash128 *read_all(const struct tr_data *d, uint64_t n)
{
    struct rows r = rows_new(1, T);
    struct tr_hash128 *out = calloc(n, sizeof *out);
    for (uint64_t g = 0; g < n; g++)
        out[g] = sample_hash(d, g, &r);
    rows_free(&r);
    return out;
}

/* The records of an epoch, which ends where the first sample comes again: with packing none a row is a record. */
static void mark(const struct tr_data *d, uint64_t g, struct rows *r, uint8_t *seen)
{
    int64_t n_targets;
    assert_ok(tr_data_fill(d, g, 1, UINT64_MAX, &r->b, &n_targets));
    for (int64_t i = 0; i + 6 < T; i++) {
        const int32_t *x = r->b.tokens + i;
        char text[8] = { 0 };
        for (int k = 0; k < 7; k++)
            text[k] = (char)x[k];
        if (text[0] >= 'A' && text[0] <= 'D' && text[6] == '.')
            seen[(text[0] - 'A') * 16384 + (int)strtol(text + 1, NULL, 10)]++;
    }
}

static void every_record_comes_once_in_an_epoch(void **state)
{
    struct files f;
    struct rows r = rows_new(1, T);
    uint8_t *seen = calloc(4, 16384);
    files_init(&f, *state);
    f.b.options.packing = TR_PACK_NONE;
    f.b.options.how_long = TR_LONG_CUT;
    const char *paths[] = { f.paths[0], f.paths[1], f.paths[3] };
    struct tr_data *d = NULL;
    assert_ok(tr_data_open(paths, 3, f.b.tokenizer, &f.b.options, &d));
    uint64_t n = 2 * N_RECORDS + 20;
    for (uint64_t g = 0; g < n; g++)
        mark(d, g, &r, seen);
    for (int i = 0; i < N_RECORDS; i++)
        assert_true(seen[i] == 1 && seen[16384 + i] == 1);
    for (int i = 0; i < 20; i++)
        assert_int_equal(seen[3 * 16384 + i], 1);
    for (uint64_t g = n; g < 2 * n; g++) /* the next epoch has them all again, in another order */
        mark(d, g, &r, seen);
    for (int i = 0; i < N_RECORDS; i++)
        assert_true(seen[i] == 2 && seen[16384 + i] == 2);
    struct tr_hash128 *all = read_all(d, 2 * n);
    assert_memory_not_equal(all, all + n, 64 * sizeof *all);
    free(all);
    tr_data_close(d);
    bench_release(&f.b);
    rows_free(&r);
    free(seen);
}

static void a_full_cache_gives_the_samples_of_an_empty_one(void **state)
{
    enum { N = 2000 };
    struct files f;
    struct tr_data_info cold, warm;
    files_init(&f, *state);
    struct tr_data *d = open_all(&f);
    struct tr_hash128 *want = read_all(d, N);
    tr_data_get_info(d, &cold);
    tr_data_close(d);
    for (int threads = 1; threads <= 3; threads++) {
        f.b.options.n_threads = threads;
        d = open_all(&f);
        struct tr_hash128 *got = read_all(d, N);
        assert_memory_equal(got, want, N * sizeof *want);
        tr_data_get_info(d, &warm);
        assert_true(tr_hash_eq(cold.hash, warm.hash) && cold.n_rows == 0);
        free(got);
        tr_data_close(d);
    }
    free(want);
    bench_release(&f.b);
}

/* A reader that dies leaves the slices that it made; the next one goes on behind them. */
static void killed_readers_change_nothing(void **state)
{
    enum { N = 1500, KILLS = 8 };
    struct files f;
    files_init(&f, *state);
    struct tr_data *d = open_all(&f);
    struct tr_hash128 *want = read_all(d, N);
    tr_data_close(d);
    (void)snprintf(f.b.cache, sizeof f.b.cache, "%s", in_scratch(*state, "cache 2"));
    for (uint64_t i = 0; i < KILLS; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            (void)tr_data_open(f.paths, 4, f.b.tokenizer, &f.b.options, &d);
            usleep((useconds_t)(tr_philox(9, 9, i).v[0] % 4000));
            (void)kill(getpid(), SIGKILL); /* wherever its thread is */
        }
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    d = open_all(&f);
    struct tr_hash128 *got = read_all(d, N);
    assert_memory_equal(got, want, N * sizeof *want);
    tr_data_close(d);
    free(got);
    free(want);
    bench_release(&f.b);
}

/* Ranks of one host share the cache: one of them makes the slices, the others find them. */
static void processes_that_share_a_cache_see_the_same(void **state)
{
    enum { N = 1200, RANKS = 3 };
    struct files f;
    static const char *const ranks[RANKS] = { "rank 0", "rank 1", "rank 2" };
    pid_t child[RANKS];
    files_init(&f, *state);
    struct tr_data *d = NULL;
    for (int rank = 0; rank < RANKS; rank++) {
        child[rank] = fork();
        assert_true(child[rank] >= 0);
        if (child[rank] == 0) {
            char name[TR_PATH_MAX];
            if (tr_data_open(f.paths, 4, f.b.tokenizer, &f.b.options, &d) != TR_OK)
                _exit(1);
            struct tr_hash128 *got = read_all(d, N);
            memcpy(name, in_scratch(*state, ranks[rank]), sizeof name);
            FILE *out = fopen(name, "wb");
            tr_data_close(d);
            bool is_written = out && fwrite(got, sizeof *got, N, out) == N && fclose(out) == 0;
            _exit(is_written ? 0 : 1);
        }
    }
    for (int rank = 0, rc; rank < RANKS; rank++) {
        assert_int_equal(waitpid(child[rank], &rc, 0), child[rank]);
        assert_int_equal(rc, 0);
    }
    d = open_all(&f);
    struct tr_hash128 *want = read_all(d, N);
    for (int rank = 0; rank < RANKS; rank++) {
        char name[TR_PATH_MAX], *text = NULL;
        size_t n;
        memcpy(name, in_scratch(*state, ranks[rank]), sizeof name);
        assert_ok(tr_file_read(name, 1 << 20, &text, &n));
        assert_int_equal(n, N * sizeof *want);
        assert_memory_equal(text, want, n);
        free(text);
    }
    free(want);
    tr_data_close(d);
    bench_release(&f.b);
}

static void what_a_run_does_not_need_is_not_tokenised(void **state)
{
    struct files f;
    struct rows r = rows_new(1, T);
    int64_t n_targets;
    files_init(&f, *state);
    f.b.options.most_samples = 20;
    struct tr_data *d = open_all(&f);
    assert_ok(tr_data_fill(d, 19, 1, 20, &r.b, &n_targets));
    assert_fails(tr_data_fill(d, 1000000, 1, UINT64_MAX, &r.b, &n_targets), TR_USAGE, "behind the samples");
    tr_data_close(d);
    rows_free(&r);
    bench_release(&f.b);
}

static void weights_mix_streams_exactly(void **state)
{
    static const double weights[] = { 3, 1 };
    struct files f;
    struct rows r = rows_new(1, T);
    int n_of[2] = { 0 };
    files_init(&f, *state);
    f.b.options.weights = weights;
    f.b.options.packing = TR_PACK_NONE;
    f.b.options.how_long = TR_LONG_CUT;
    struct tr_data *d = NULL;
    assert_ok(tr_data_open(f.paths, 2, f.b.tokenizer, &f.b.options, &d));
    for (uint64_t g = 0; g < 400; g++) {
        (void)sample_hash(d, g, &r);
        n_of[r.b.tokens[0] == 'B']++;
    }
    assert_int_equal(n_of[0], 300);
    assert_int_equal(n_of[1], 100);
    tr_data_close(d);
    rows_free(&r);
    bench_release(&f.b);
}

/* A sample names its record: file and line, behind records that were skipped. */
static void a_sample_names_its_record(void **state)
{
    struct files f;
    struct rows r = rows_new(1, T);
    files_init(&f, *state);
    f.b.options.packing = TR_PACK_NONE;
    f.b.options.how_long = TR_LONG_CUT;
    struct tr_data *d = bench_open(&f.b, f.path[0]);
    for (uint64_t g = 0; g < N_RECORDS; g++) {
        struct tr_data_record at;
        char text[8] = { 0 };
        (void)sample_hash(d, g, &r);
        for (int k = 0; k < 6; k++)
            text[k] = (char)r.b.tokens[k];
        int64_t i = strtol(text + 1, NULL, 10);
        assert_ok(tr_data_where(d, g, 0, &at));
        assert_string_equal(at.path, f.path[0]);
        assert_int_equal(at.line, i + 1 + i / 101);
    }
    tr_data_close(d);
    rows_free(&r);
    bench_release(&f.b);
}

/* Whatever the cache holds, all that is skipped is told: in the first block's summary, or as news. */
static void what_later_blocks_skip_is_news(void **state)
{
    struct files f;
    struct rows r = rows_new(1, T);
    files_init(&f, *state);
    f.b.options.packing = TR_PACK_NONE;
    f.b.options.how_long = TR_LONG_CUT;
    for (int again = 0; again < 2; again++) {
        struct tr_data *d = bench_open(&f.b, f.path[0]);
        struct tr_data_news x;
        size_t n_first;
        (void)tr_data_skips(d, &n_first);
        uint64_t n_skipped = n_first, n_cut = 0;
        char first[sizeof x.first] = "";
        for (uint64_t g = 0; g < N_RECORDS + 1; g++) { /* the last one waits until the number of rows is known */
            (void)sample_hash(d, g, &r);
            if (!tr_data_take_news(d, &x))
                continue;
            n_skipped += x.n_skipped;
            n_cut += x.n_cut;
            if (!first[0])
                memcpy(first, x.first, sizeof first);
        }
        n_skipped += tr_data_take_news(d, &x) ? x.n_skipped : 0;
        assert_int_equal(n_skipped, (N_RECORDS - 1) / 101);
        assert_true(n_cut > 0);
        assert_ptr_equal(strstr(first, f.path[0]), first);
        assert_false(tr_data_take_news(d, &x));
        tr_data_close(d);
    }
    rows_free(&r);
    bench_release(&f.b);
}

static void a_file_that_changes_under_a_stream_is_refused(void **state)
{
    struct files f;
    struct rows r = rows_new(1, T);
    enum tr_status st = TR_OK;
    int64_t n_targets;
    files_init(&f, *state);
    f.b.options.most_samples = 1; /* the first block, and no more */
    struct tr_data *d = bench_open(&f.b, f.path[0]);
    tr_data_close(d);
    f.b.options.most_samples = 0;
    FILE *out = fopen(f.path[0], "a");
    assert_non_null(out);
    d = bench_open(&f.b, f.path[0]);
    assert_true(fputs("{\"text\": \"more\"}\n", out) >= 0 && fclose(out) == 0);
    for (uint64_t g = 0; g < 4000 && st == TR_OK; g++)
        st = tr_data_fill(d, g, 1, UINT64_MAX, &r.b, &n_targets);
    /* all slices may have been made before the file grew */
    assert_true(st == TR_OK || (st == TR_IO && strstr(tr_error_text(), "changed while it was being read")));
    tr_error_clear();
    tr_data_close(d);
    rows_free(&r);
    bench_release(&f.b);
}

static void what_needs_all_rows_is_refused(void **state)
{
    struct files f;
    struct tr_data *d = NULL;
    files_init(&f, *state);
    f.b.options.held_out = 0.1;
    assert_fails(tr_data_open(f.paths, 4, f.b.tokenizer, &f.b.options, &d), TR_USAGE, "eval_split");
    f.b.options.held_out = 0;
    f.b.options.wants_pairs = true;
    assert_fails(tr_data_open(f.paths, 4, f.b.tokenizer, &f.b.options, &d), TR_USAGE, "streaming false");
    bench_release(&f.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_record_comes_once_in_an_epoch),
        TEST(a_full_cache_gives_the_samples_of_an_empty_one),
        TEST(killed_readers_change_nothing),
        TEST(processes_that_share_a_cache_see_the_same),
        TEST(what_a_run_does_not_need_is_not_tokenised),
        TEST(weights_mix_streams_exactly),
        TEST(a_sample_names_its_record),
        TEST(what_later_blocks_skip_is_news),
        TEST(a_file_that_changes_under_a_stream_is_refused),
        TEST(what_needs_all_rows_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
