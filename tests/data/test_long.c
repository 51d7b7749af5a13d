/* test_long.c - records that are longer than a row: prompt and answer share it, no row is without a target, and what is
 * lost is named. */
#include "data/data_files.h"
#include "data/long.h"

enum { VOCAB = 1 << 20, MAX_DOC = 400, N_DOCS = 120 };

/* A record of turns of random lengths. Token k of record d is d * MAX_DOC + k, so that an id tells where it was. */
struct doc {
    int n;
    uint8_t mask[MAX_DOC];
};
static struct doc docs[N_DOCS];

static uint32_t draw(uint64_t i, uint32_t n)
{
    return tr_philox(7, 1, i).v[0] % n;
}

static void make_docs(uint64_t seed)
{
    for (size_t d = 0; d < N_DOCS; d++) {
        struct doc *x = &docs[d];
        uint64_t key = (seed * N_DOCS + d) * 64;
        int n_turns = 1 + (int)draw(key, 4);
        *x = (struct doc){ 0 };
        for (int k = 0; k < n_turns; k++) {
            int most = MAX_DOC / n_turns / 2, s = 1 + (int)draw(key + 8 + (uint64_t)k, (uint32_t)most);
            int t = 1 + (int)draw(key + 16 + (uint64_t)k, (uint32_t)(k % 2 ? 3 : most)) - (k > 0 && k == n_turns - 1);
            x->n += s;
            for (int i = 0; i < t; i++)
                x->mask[x->n++] = 1;
        }
    }
}

static struct tr_data *open_docs(struct scratch *s, int64_t row_tokens, enum tr_long how, enum tr_status want)
{
    struct tr_shard_info info = { .vocab_size = VOCAB, .keeps_whole = true, .has_mask = true };
    struct tr_data_options o = {
        .row_tokens = row_tokens, .vocab_size = VOCAB, .shuffle = true, .packing = TR_PACK_BESTFIT, .how_long = how
    };
    struct tr_shard_writer *w = NULL;
    struct tr_data *d = NULL;
    assert_ok(tr_shard_writer_open(in_scratch(s, "a.trtok"), &info, &w));
    for (int k = 0; k < N_DOCS; k++) {
        for (int32_t i = 0; i < docs[k].n; i++) {
            int32_t id = k * MAX_DOC + i;
            assert_ok(tr_shard_writer_add(w, &id, &docs[k].mask[i], NULL, 1));
        }
        assert_ok(tr_shard_writer_end_doc(w));
    }
    assert_ok(tr_shard_writer_commit(w, true, 0));
    const char *path = s->path;
    assert_int_equal(tr_data_open(&path, 1, NULL, &o, &d), want);
    return d;
}

/* The tokens of a long record that stay, by the definition: turn by turn. Returns how many. */
static int fitted(const struct doc *x, int c, int *kept)
{
    int n = 0, at = 0, n_targets = 0;
    while (at < x->n && c > 0) {
        int s = 0, t = 0;
        while (at + s < x->n && !x->mask[at + s])
            s++;
        while (at + s + t < x->n && x->mask[at + s + t])
            t++;
        int most = 2 * t < c ? c : 2 * s < c ? c - s : (int)((double)c * ((double)t / (s + t)));
        int new_t = most < t ? most : t;
        int new_s = c - new_t < s ? c - new_t : s;
        if (t > 0 && n_targets + new_t == 0) {
            new_t = 1;
            new_s = c - 1;
        }
        for (int i = 0; i < new_s; i++)
            kept[n++] = at + i;
        for (int i = 0; i < new_t; i++)
            kept[n++] = at + s + i;
        n_targets += new_t;
        c -= new_s + new_t;
        at += s + t;
    }
    return n;
}

/* Checks the document of a row that begins at column `at`: its tokens, targets and positions. Returns its length. */
static int check_fitted(const struct tr_batch *b, int64_t at, int64_t n_row, int row_tokens, int *seen)
{
    int k = b->tokens[at] / MAX_DOC, kept[MAX_DOC], n = docs[k].n;
    for (int i = 0; i < n; i++)
        kept[i] = i;
    if (n > row_tokens)
        n = fitted(&docs[k], row_tokens, kept);
    assert_true(at + n <= n_row);
    for (int i = 0; i < n; i++) {
        assert_int_equal(b->tokens[at + i], k * MAX_DOC + kept[i]);
        assert_int_equal(b->positions[at + i], i);
        assert_int_equal(b->begin[at + i], at);
        bool is_known = i + 1 < n && docs[k].mask[kept[i + 1]];
        assert_int_equal(b->targets[at + i], is_known ? k * MAX_DOC + kept[i + 1] : TR_TARGET_NONE);
    }
    seen[k]++;
    return n;
}

static void prompt_and_answer_share_a_row(void **state)
{
    static const int lengths[] = { 2, 3, 7, 32, 64, 100, 257 };
    for (size_t l = 0; l < TR_COUNT_OF(lengths); l++) {
        int T = lengths[l], seen[N_DOCS] = { 0 };
        make_docs(l);
        struct tr_data *d = open_docs(*state, T, TR_LONG_FIT, TR_OK);
        struct rows r = rows_new(1, T);
        for (uint64_t g = 0; g < tr_data_rows(d); g++) {
            int64_t n_targets, n_tokens, at = 0, count;
            assert_ok(tr_data_fill(d, g, 1, g + 1, &r.b, &n_targets));
            assert_ok(tr_data_tokens(d, g, 1, g + 1, &n_tokens));
            assert_ok(tr_data_count(d, g, 1, g + 1, &count));
            assert_int_equal(count, n_targets);
            assert_true(n_targets > 0);
            while (at < n_tokens)
                at += check_fitted(&r.b, at, n_tokens, T, seen);
        }
        for (int k = 0; k < N_DOCS; k++)
            assert_int_equal(seen[k], 1);
        rows_free(&r);
        tr_data_close(d);
    }
}

static void no_way_leaves_a_row_without_a_target(void **state)
{
    for (int how = TR_LONG_FIT; how <= TR_LONG_DROP; how++)
        for (int T = 64; T <= 256; T *= 2) {
            make_docs((uint64_t)T);
            struct tr_data *d = open_docs(*state, T, (enum tr_long)how, TR_OK);
            struct tr_data_info info;
            uint64_t n_long = 0, n_all = 0, n_seen = 0;
            for (int k = 0; k < N_DOCS; k++) {
                n_long += docs[k].n > T;
                for (int i = 1; i < docs[k].n; i++)
                    n_all += docs[k].mask[i];
            }
            for (uint64_t g = 0; g < tr_data_rows(d); g++) {
                int64_t n_targets;
                assert_ok(tr_data_count(d, g, 1, g + 1, &n_targets));
                assert_true(n_targets > 0);
                n_seen += (uint64_t)n_targets;
            }
            tr_data_get_info(d, &info);
            assert_int_equal(info.n_split + info.n_cut + info.n_dropped, n_long);
            assert_true(how != TR_LONG_FIT || info.n_dropped == 0);
            assert_true(how != TR_LONG_SPLIT || (info.n_split == n_long && n_seen == n_all)); /* it loses no target */
            if (how == TR_LONG_FIT || how == TR_LONG_CUT)
                assert_int_equal(n_seen + info.n_targets_lost, n_all);
            tr_data_close(d);
        }
}

static void what_is_lost_is_named(void **state)
{
    size_t n;
    make_docs(3);
    struct tr_data *d = open_docs(*state, 64, TR_LONG_CUT, TR_OK);
    const struct tr_data_skip *x = tr_data_losses(d, &n);
    assert_int_equal(n, TR_DATA_KEPT_SKIPS);
    for (size_t i = 0; i < n; i++)
        assert_non_null(strstr(x[i].why, "it needs --sequence_length"));
    tr_data_close(d);
    open_docs(*state, 64, TR_LONG_REFUSE, TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "tokens are longer than a row of 64; give --sequence_length"));
    tr_error_clear();
    assert_null(open_docs(*state, 1, TR_LONG_DROP, TR_USAGE));
    assert_non_null(strstr(tr_error_text(), "no document is left to train on"));
    tr_error_clear();
}

/* The last token of a stream is a target of the row before it, and predicts nothing itself. */
static void a_last_token_alone_is_in_no_row(void **state)
{
    for (int n = 16; n <= 18; n++) {
        struct tr_shard_info info = { .vocab_size = VOCAB };
        struct tr_data_options o = { .row_tokens = 8, .vocab_size = VOCAB, .packing = TR_PACK_STREAM };
        struct tr_shard_writer *w = NULL;
        struct tr_data *d = NULL;
        int64_t n_targets;
        assert_ok(tr_shard_writer_open(in_scratch(*state, "a.trtok"), &info, &w));
        for (int32_t i = 0; i < n; i++)
            assert_ok(tr_shard_writer_add(w, &i, NULL, NULL, 1));
        assert_ok(tr_shard_writer_end_doc(w));
        assert_ok(tr_shard_writer_commit(w, true, 0));
        const char *path = ((struct scratch *)*state)->path;
        assert_ok(tr_data_open(&path, 1, NULL, &o, &d));
        assert_int_equal(tr_data_rows(d), n == 18 ? 3 : 2);
        assert_ok(tr_data_count(d, 0, (int64_t)tr_data_rows(d), tr_data_rows(d), &n_targets));
        assert_int_equal(n_targets, n - 1);
        tr_data_close(d);
    }
}

static void shares_are_those_of_the_formula(void **state)
{
    static const uint64_t rows[][5] = {
        { 100, 10, 64, 54, 10 },  /* the answer stays whole */
        { 10, 100, 64, 10, 54 },  /* the prompt stays whole */
        { 100, 100, 64, 32, 32 }, /* both give */
        { 300, 100, 64, 48, 16 }, { 0, 100, 64, 0, 64 }, { 100, 0, 64, 64, 0 },
    };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        uint64_t out[2];
        tr_long_share(rows[i][0], rows[i][1], rows[i][2], out);
        assert_int_equal(out[0], rows[i][3]);
        assert_int_equal(out[1], rows[i][4]);
    }
}

/* ---- records of every format, as a user gives them ---- */

static void add_run(struct tr_str *out, char c, uint32_t n)
{
    while (n-- > 0)
        tr_str_add(out, &c, 1);
}

/* A record whose questions are q and whose answers are a, each of a random length. */
static void add_record(struct tr_str *out, int shape, uint64_t key)
{
    uint32_t n_q = 1 + draw(key, draw(key + 1, 4) ? 40 : 300), n_a = 1 + draw(key + 2, draw(key + 3, 4) ? 40 : 300);
    static const char *const parts[][3] = {
        { "{\"prompt\": \"", "\", \"completion\": \"", "\"}\n" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"", "\"}, {\"role\": \"assistant\", \"content\": \"",
          "\"}]}\n" },
        { "{\"conversations\": [{\"from\": \"human\", \"value\": \"", "\"}, {\"from\": \"gpt\", \"value\": \"",
          "\"}]}\n" },
        { "{\"instruction\": \"", "\", \"input\": \"\", \"output\": \"", "\"}\n" },
    };
    tr_str_addf(out, "%s", parts[shape][0]);
    add_run(out, 'q', n_q);
    tr_str_addf(out, "%s", parts[shape][1]);
    add_run(out, 'a', n_a);
    tr_str_addf(out, "%s", parts[shape][2]);
}

/* Every row has a target, and no document begins with an answer. */
static void check_rows(const struct tr_data *d, bool is_whole)
{
    int64_t T = tr_data_row_tokens(d);
    struct rows r = rows_new(1, T);
    for (uint64_t g = 0; g < tr_data_rows(d); g++) {
        int64_t n_targets;
        bool is_asked = false;
        assert_ok(tr_data_fill(d, g, 1, g + 1, &r.b, &n_targets));
        assert_true(n_targets > 0);
        for (int64_t i = 0; i < T && is_whole; i++) {
            is_asked = (is_asked && r.b.begin[i] != i) || r.b.tokens[i] != 'a';
            assert_true(is_asked || r.b.targets[i] == TR_TARGET_NONE);
        }
    }
    rows_free(&r);
}

static void no_option_leaves_an_answer_without_its_question(void **state)
{
    struct bench b;
    struct tr_chat *chat = NULL;
    int n_opened = 0;
    bench_init(&b, *state);
    assert_ok(tr_chat_open(b.s->dir, "chatml", &chat));
    for (uint64_t k = 0; k < 120; k++) {
        struct tr_str text = { 0 };
        struct tr_data *d = NULL;
        char name[32], path[TR_PATH_MAX];
        uint64_t key = 1000000 + k * 1000;
        int shape = (int)draw(key, 4);
        for (uint64_t i = 0; i < 12; i++)
            add_record(&text, shape, key + 10 + i * 8);
        b.options.row_tokens = 4 + (int64_t)draw(key + 1, 300);
        b.options.how_long = (enum tr_long)draw(key + 2, 5);
        b.options.packing = draw(key + 3, 2) ? TR_PACK_AUTO : TR_PACK_NONE;
        b.options.mask = (enum tr_chat_mask)draw(key + 4, 3);
        b.options.chat = shape != 3 || draw(key + 5, 2) ? chat : NULL;
        b.options.shuffle = draw(key + 6, 2);
        assert_ok(tr_format(name, sizeof name, "r%d.jsonl", (int)k));
        memcpy(path, put_text(*state, name, text.p), TR_PATH_MAX);
        const char *paths[] = { path };
        enum tr_status st = tr_data_open(paths, 1, b.tokenizer, &b.options, &d);
        if (st == TR_OK) {
            check_rows(d, b.options.how_long != TR_LONG_SPLIT);
            n_opened++;
        } else { /* refused by name */
            assert_int_equal(st, TR_USAGE);
            assert_non_null(strstr(tr_error_text(), "longer than a row"));
            tr_error_clear();
        }
        tr_data_close(d);
        tr_str_release(&text);
    }
    assert_true(n_opened > 60);
    tr_chat_close(chat);
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(prompt_and_answer_share_a_row),   TEST(no_way_leaves_a_row_without_a_target),
        TEST(what_is_lost_is_named),           TEST(a_last_token_alone_is_in_no_row),
        TEST(shares_are_those_of_the_formula), TEST(no_option_leaves_an_answer_without_its_question),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
