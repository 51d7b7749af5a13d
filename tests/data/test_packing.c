/* test_packing.c - packed rows: every document whole and once, rows never overfull, nothing depends on token ids or on
 * the world; and the best fit is the best fit. */
#include "data/data_test.h"
#include "data/pack.h"

enum { VOCAB = 60000 };

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

/* One shard of n documents; document d is the token d, again and again, so that an id tells its document. Document 0 is
 * made of the padding id: padding must be told by length. */
static struct tr_data *open_docs(struct scratch *s, const int64_t *lengths, size_t n, const struct tr_data_options *o)
{
    struct tr_shard_info info = { .vocab_size = VOCAB, .keeps_whole = true };
    struct tr_shard_writer *w = NULL;
    struct tr_data *d = NULL;
    assert_ok(tr_shard_writer_open(in_scratch(s, "a.trtok"), &info, &w));
    for (size_t k = 0; k < n; k++) {
        int32_t id = (int32_t)k;
        for (int64_t i = 0; i < lengths[k]; i++)
            assert_ok(tr_shard_writer_add(w, &id, NULL, NULL, 1));
        assert_ok(tr_shard_writer_end_doc(w));
    }
    assert_ok(tr_shard_writer_commit(w, true, 0));
    const char *path = s->path;
    assert_ok(tr_data_open(&path, 1, NULL, o, &d));
    return d;
}

static int64_t random_length(uint64_t i, int64_t max)
{
    return 1 + (int64_t)(tr_philox(99, 0, i).v[0] % (uint64_t)max);
}

/* Counts tokens of each document over one epoch, and checks boundaries, positions and padding of every row. */
static void check_epoch(const struct tr_data *d, uint64_t epoch, int64_t T, int64_t *seen, size_t n_docs)
{
    uint64_t n = tr_data_rows(d);
    struct rows r = rows_new(1, T);
    struct tr_proof_row row;
    int64_t n_targets;
    memset(seen, 0, n_docs * sizeof *seen);
    for (uint64_t g = epoch * n; g < (epoch + 1) * n; g++) {
        assert_ok(tr_data_fill(d, g, 1, g + 1, &r.b, &n_targets));
        assert_ok(tr_data_prove(d, NULL, g, &row));
        assert_true(row.n_tokens > 0 && row.n_tokens <= T);
        for (int64_t i = 0; i < row.n_tokens; i++) {
            int32_t begin = r.b.begin[i];
            seen[r.b.tokens[i]]++;
            assert_int_equal(r.b.tokens[begin], r.b.tokens[i]); /* attention stays inside the document */
            assert_int_equal(r.b.positions[i], i - begin);
            assert_true(begin == 0 || r.b.tokens[begin - 1] != r.b.tokens[i]);
        }
        for (int64_t i = row.n_tokens; i < T; i++) {
            assert_int_equal(r.b.targets[i], TR_TARGET_NONE);
            assert_int_equal(r.b.begin[i], row.n_tokens);
        }
        tr_proof_row_release(&row);
    }
    rows_free(&r);
}

static void every_document_is_in_every_epoch_once(void **state)
{
    enum { N = 3000, T = 128 };
    static int64_t lengths[N], seen[N];
    for (int how = TR_PACK_BESTFIT; how <= TR_PACK_NONE; how++)
        for (int cut = 0; cut < 2; cut++) {
            struct tr_data_options o = { .row_tokens = T,
                                         .vocab_size = VOCAB,
                                         .shuffle = true,
                                         .seed = 5,
                                         .packing = (enum tr_packing)how,
                                         .how_long = cut ? TR_LONG_CUT : TR_LONG_FIT };
            struct tr_data_info info;
            uint64_t n_long = 0, n_all = 0, n_lost = 0, n_alone = 0; /* alone: a tail of one token is in no row */
            for (size_t i = 0; i < N; i++) {
                lengths[i] = i % 50 == 7 ? 3 * T : random_length(i, i % 10 == 0 ? 3 * T : T);
                n_long += lengths[i] > T;
                n_all += (uint64_t)lengths[i];
                n_lost += lengths[i] > T ? (uint64_t)(lengths[i] - T) : 0;
                n_alone += lengths[i] > T && lengths[i] % T == 1 && !cut;
            }
            struct tr_data *d = open_docs(*state, lengths, N, &o);
            tr_data_get_info(d, &info);
            assert_int_equal(info.n_split, cut ? 0 : n_long);
            assert_int_equal(info.n_cut, cut ? n_long : 0);
            assert_int_equal(info.n_tokens_lost, cut ? n_lost : 0);
            assert_int_equal(info.n_row_tokens, n_all - info.n_tokens_lost - n_alone);
            for (uint64_t epoch = 0; epoch < 2; epoch++) {
                check_epoch(d, epoch, T, seen, N);
                for (size_t i = 0; i < N; i++)
                    assert_int_equal(seen[i], lengths[i] <= T ? lengths[i]
                                              : cut           ? T
                                                              : lengths[i] - (lengths[i] % T == 1));
            }
            if (how == TR_PACK_BESTFIT) /* uniform lengths fill rows almost completely */
                assert_true((double)info.n_row_tokens / (double)(info.n_rows * T) > 0.98);
            tr_data_close(d);
        }
}

/* Of a long document that goes on, the last token of a full row still predicts the first of the next; of one that is
 * cut off it predicts nothing. */
static void targets_cross_rows_only_where_the_document_goes_on(void **state)
{
    static const int64_t lengths[] = { 20, 3 };
    struct tr_data_info info[2];
    for (int cut = 0; cut < 2; cut++) {
        struct tr_data_options o = { .row_tokens = 8,
                                     .vocab_size = VOCAB,
                                     .packing = TR_PACK_BESTFIT,
                                     .how_long = cut ? TR_LONG_CUT : TR_LONG_SPLIT };
        struct tr_data *d = open_docs(*state, lengths, 2, &o);
        int64_t n = (int64_t)tr_data_rows(d), n_targets, count;
        assert_int_equal(n, cut ? 2 : 3); /* 8 + 8 + (4 + 3), or 3 and 8 */
        struct rows r = rows_new(n, 8);
        assert_ok(tr_data_fill(d, 0, n, (uint64_t)n, &r.b, &n_targets));
        assert_ok(tr_data_count(d, 0, n, (uint64_t)n, &count));
        assert_int_equal(n_targets, cut ? 7 + 2 : 19 + 2);
        assert_int_equal(count, n_targets);
        assert_ok(tr_data_tokens(d, 0, n, (uint64_t)n, &count));
        assert_int_equal(count, cut ? 8 + 3 : 20 + 3); /* the rest of the rows is padding */
        tr_data_get_info(d, &info[cut]);
        rows_free(&r);
        tr_data_close(d);
    }
    assert_false(tr_hash_eq(info[0].hash, info[1].hash)); /* a resume must notice */
}

/* Against a search through all rows for the least room that is enough, longest document first. */
static void rows_are_those_of_best_fit_decreasing(void **state)
{
    enum { N = 500, T = 100 };
    struct tr_pack p;
    int64_t room[N], order[N];
    size_t n_rows = 0;
    static int64_t lengths[N];
    (void)state;
    assert_ok(tr_pack_init(&p, T, N));
    for (size_t i = 0; i < N; i++) {
        lengths[i] = random_length(i, T - 1);
        order[i] = (int64_t)i;
        assert_ok(tr_pack_add(&p, (uint64_t)lengths[i]));
    }
    assert_ok(tr_pack_finish(&p, TR_PACK_BESTFIT, false, 0));
    for (size_t i = 1; i < N; i++) /* insertion sort: stable */
        for (size_t k = i; k > 0 && lengths[order[k - 1]] < lengths[order[k]]; k--) {
            int64_t swap = order[k];
            order[k] = order[k - 1];
            order[k - 1] = swap;
        }
    for (size_t i = 0; i < N; i++) {
        int64_t doc = order[i];
        size_t best = N;
        for (size_t k = 0; k < n_rows; k++)
            if (room[k] >= lengths[doc] && (best == N || room[k] < room[best]))
                best = k;
        if (best == N)
            room[best = n_rows++] = T;
        room[best] -= lengths[doc];
    }
    assert_int_equal(p.n_rows, n_rows);
    for (size_t row = 0; row < n_rows; row++) {
        int64_t sum = 0;
        for (uint32_t i = p.row_first[row]; i < p.row_first[row + 1]; i++)
            sum += lengths[p.doc[i]];
        assert_true(sum <= T);
    }
    int64_t ours[T + 1] = { 0 }, theirs[T + 1] = { 0 }; /* rows of equal room may be chosen differently; rooms not */
    for (size_t row = 0; row < n_rows; row++) {
        int64_t sum = 0;
        for (uint32_t i = p.row_first[row]; i < p.row_first[row + 1]; i++)
            sum += lengths[p.doc[i]];
        ours[T - sum]++;
        theirs[room[row]]++;
    }
    assert_memory_equal(ours, theirs, sizeof ours);
    tr_pack_release(&p);
}

static void windows_bound_the_work_and_the_seed_decides_the_rows(void **state)
{
    enum { N = 3 * TR_PACK_WINDOW + 17, T = 64 };
    struct tr_pack p[3];
    static const uint64_t seeds[] = { 1, 1, 2 };
    (void)state;
    for (int k = 0; k < 3; k++) {
        uint64_t sum = 0;
        assert_ok(tr_pack_init(&p[k], T, N));
        for (uint64_t i = 0; i < N; i++)
            assert_ok(tr_pack_add(&p[k], (uint64_t)random_length(i, T + 10)));
        assert_ok(tr_pack_finish(&p[k], TR_PACK_BESTFIT, true, seeds[k]));
        for (uint64_t i = 0; i < N; i++) {
            uint64_t n = (uint64_t)random_length(i, T + 10);
            sum += n - (n == T + 1); /* a tail of one token is in no row */
        }
        assert_int_equal(p[k].n_row_tokens, sum);
        assert_true((double)sum / (double)(p[k].n_rows * T) > 0.98);
    }
    assert_int_equal(p[0].n_rows, p[1].n_rows);
    assert_memory_equal(p[0].row_first, p[1].row_first, (p[0].n_tail_rows + 1) * sizeof(uint32_t));
    assert_memory_equal(p[0].doc, p[1].doc, p[0].row_first[p[0].n_tail_rows] * sizeof(uint32_t));
    assert_memory_not_equal(p[0].doc, p[2].doc, 1000 * sizeof(uint32_t));
    for (int k = 0; k < 3; k++)
        tr_pack_release(&p[k]);
}

static void a_slice_of_packed_rows_equals_the_same_rows_of_the_whole(void **state)
{
    enum { N = 400, T = 32, B = 12 };
    static int64_t lengths[N];
    struct tr_data_options o = { .row_tokens = T, .vocab_size = VOCAB, .shuffle = true, .seed = 5 };
    for (size_t i = 0; i < N; i++)
        lengths[i] = random_length(i, 2 * T);
    struct tr_data *d = open_docs(*state, lengths, N, &o); /* automatic: records are kept whole */
    uint64_t total = 2 * tr_data_rows(d);
    struct rows whole = rows_new(B, T), part = rows_new(B, T);
    for (uint64_t first = 0; first < total; first += B)
        for (int64_t k = 1; k < B; k += 4) {
            int64_t n_whole, n_part, sum = 0;
            assert_ok(tr_data_fill(d, first, B, total, &whole.b, &n_whole));
            for (int64_t at = 0; at < B; at += k) {
                int64_t n = at + k <= B ? k : B - at;
                assert_ok(tr_data_fill(d, first + (uint64_t)at, n, total, &part.b, &n_part));
                assert_same_rows(&whole.b, (size_t)(at * T), &part.b, (size_t)(n * T), (int32_t)(at * T));
                sum += n_part;
            }
            assert_int_equal(sum, n_whole);
        }
    rows_free(&whole);
    rows_free(&part);
    tr_data_close(d);
}

/* One document a row: a dense batch has the tokens of the rows, and nothing between them. */
static void a_dense_batch_holds_the_rows_without_their_padding(void **state)
{
    enum { T = 64, N = 40, ROWS = 8, GRAIN = 64 };
    int64_t lengths[N], n_targets, n_dense;
    for (int k = 0; k < N; k++)
        lengths[k] = random_length((uint64_t)k, 30);
    struct tr_data *d =
        open_docs(*state, lengths, N,
                  &(struct tr_data_options){
                      .row_tokens = T, .seed = 3, .shuffle = true, .packing = TR_PACK_NONE, .vocab_size = VOCAB });
    struct rows r = rows_new(ROWS, T), x = rows_new(ROWS, T);
    for (uint64_t g = 0; g < N + 2 * ROWS; g += ROWS) { /* the last ones are past the end */
        int64_t at = 0;
        assert_ok(tr_data_fill(d, g, ROWS, N - 3, &r.b, &n_targets));
        assert_ok(tr_data_fill_dense(d, g, ROWS, N - 3, &x.b, &n_dense));
        assert_int_equal(n_dense, n_targets);
        for (int64_t i = 0; i < ROWS * T; i++) {
            bool is_padding = r.b.begin[i] % T != 0 || g + (uint64_t)(i / T) >= N - 3;
            if (is_padding)
                continue;
            assert_int_equal(x.b.tokens[at], r.b.tokens[i]);
            assert_int_equal(x.b.targets[at], r.b.targets[i]);
            assert_int_equal(x.b.positions[at], r.b.positions[i]);
            assert_int_equal(x.b.sample[at], r.b.sample[i]);
            assert_int_equal(x.b.begin[at], at - r.b.positions[i]);
            at++;
        }
        assert_int_equal(x.b.n_used, at ? (int64_t)tr_round_up((size_t)at, GRAIN) : GRAIN);
        for (; at < ROWS * T; at++) {
            assert_int_equal(x.b.targets[at], TR_TARGET_NONE);
            assert_true(x.b.positions[at] < T && x.b.begin[at] == at - x.b.positions[at]); /* tables have T positions */
        }
    }
    rows_free(&r);
    rows_free(&x);
    tr_data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_document_is_in_every_epoch_once),
        TEST(targets_cross_rows_only_where_the_document_goes_on),
        cmocka_unit_test(rows_are_those_of_best_fit_decreasing),
        cmocka_unit_test(windows_bound_the_work_and_the_seed_decides_the_rows),
        TEST(a_dense_batch_holds_the_rows_without_their_padding),
        TEST(a_slice_of_packed_rows_equals_the_same_rows_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
