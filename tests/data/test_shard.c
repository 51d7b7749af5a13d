/* test_shard.c - token shards: round trips, and every damaged or changed file is refused. */
#include "data/cache.h"
#include "data/data_test.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const int64_t lengths[] = { 1, 5, 2, 300, 7 };
enum { N_DOCS = 5, N_TOKENS = 315 };

static void shard_round_trips(struct scratch *s, uint64_t vocab, uint32_t token_bytes)
{
    struct tr_shard *sh = NULL;
    int32_t ids[N_TOKENS], targets[N_TOKENS];
    uint64_t starts[N_DOCS + 1], doc;
    int64_t n_targets, want_targets = 0;
    int fd = -1;
    put_shard(in_scratch(s, "a.trtok"), lengths, N_DOCS, 0, vocab, true);
    assert_ok(tr_shard_open(s->path, vocab, &sh));
    const struct tr_shard_info *i = tr_shard_get_info(sh);
    assert_int_equal(i->token_bytes, token_bytes);
    assert_int_equal(i->n_docs, N_DOCS);
    assert_int_equal(i->n_tokens, N_TOKENS);
    for (int parked = 0; parked < 2; parked++) {
        assert_ok(tr_shard_begin(sh, &fd));
        assert_ok(tr_shard_read(sh, fd, 0, N_TOKENS, ids));
        assert_ok(tr_shard_doc_starts(sh, fd, 0, N_DOCS + 1, starts));
        for (uint64_t d = 0, at = 0; d < N_DOCS; d++) {
            assert_int_equal(starts[d], at);
            for (int64_t k = 0; k < lengths[d]; k++, at++) {
                assert_int_equal(ids[at], stream_id(at, vocab));
                assert_ok(tr_shard_find_doc(sh, fd, at, &doc));
                assert_int_equal(doc, d);
            }
        }
        assert_int_equal(starts[N_DOCS], N_TOKENS);
        memcpy(targets, ids, sizeof ids);
        assert_ok(tr_shard_mask(sh, fd, 5, 300, targets + 5, &n_targets));
        want_targets = 0;
        for (int k = 5; k < 305; k++) {
            assert_int_equal(targets[k], k % 3 ? ids[k] : TR_TARGET_NONE);
            want_targets += k % 3 != 0;
        }
        assert_int_equal(n_targets, want_targets);
        tr_shard_end(sh, fd);
        tr_shard_park(sh);
    }
    tr_shard_close(sh);
}

static void sixteen_and_thirty_two_bit_shards_round_trip(void **state)
{
    shard_round_trips(*state, 257, 2);
    shard_round_trips(*state, 65536, 2);
    shard_round_trips(*state, 65537, 4);
}

/* Refused as bad input, with the file and the bytes of it that hold the damage (or the entry after it). */
static void assert_damage_is_placed(const char *path, size_t at, size_t n)
{
    struct tr_shard *sh = NULL;
    size_t first = 0, last = 0;
    assert_int_equal(tr_shard_open(path, 300, &sh), TR_USAGE);
    const char *place = strstr(tr_error_text(), "b.trtok: byte");
    int n_found = place ? sscanf(place, "b.trtok: bytes %zu to %zu:", &first, &last) : 0;
    if (place && n_found == 0)
        n_found = sscanf(place, "b.trtok: byte %zu:", &first);
    last = n_found == 2 ? last : first;
    bool is_version = strstr(tr_error_text(), "version") != NULL; /* names both instead of a place */
    if (!is_version && (n_found < 1 || (first > at + 8 && first < n) || (last < at && n_found == 2)))
        fail_msg("damage at byte %zu of %zu: %s", at, n, tr_error_text());
}

static void every_flipped_bit_and_every_cut_is_refused(void **state)
{
    struct scratch *s = *state;
    struct tr_shard *sh = NULL;
    char *bytes = NULL;
    size_t n = 0;
    put_shard(in_scratch(s, "a.trtok"), lengths, 3, 0, 300, true);
    assert_ok(tr_file_read(s->path, 1 << 20, &bytes, &n));
    for (size_t i = 0; i < n; i++) {
        bytes[i] ^= (char)(1 << i % 8);
        put_file(s, "b.trtok", bytes, n);
        assert_damage_is_placed(s->path, i, n);
        bytes[i] ^= (char)(1 << i % 8);
        put_file(s, "b.trtok", bytes, i);
        assert_damage_is_placed(s->path, i, i);
    }
    bytes = realloc(bytes, n + 1);
    bytes[n] = 0;
    put_file(s, "b.trtok", bytes, n + 1);
    assert_refused(tr_shard_open(s->path, 300, &sh), TR_USAGE, "grown");
    free(bytes);
}

/* A header whose checksum is right but whose fields lie: sizes near 2^64 must not wrap. */
static void lying_headers_are_refused(void **state)
{
    static const struct tr_shard_info good = { .token_bytes = 2, .n_tokens = 4, .n_docs = 1, .vocab_size = 9 };
    unsigned char h[TR_SHARD_HEADER_BYTES];
    struct tr_shard_info in, out;
    (void)state;
    tr_shard_format(&good, h);
    assert_ok(tr_shard_parse(h, 128 + 8 + 16, &out));
    assert_refused(tr_shard_parse(h, 128 + 8 + 15, &out), TR_USAGE, "truncated");
    static const uint64_t huge[] = { UINT64_MAX, UINT64_MAX / 2 + 1, UINT64_MAX / 8 + 1, (uint64_t)1 << 56 };
    for (size_t i = 0; i < TR_COUNT_OF(huge); i++) {
        in = good;
        in.n_tokens = huge[i];
        tr_shard_format(&in, h);
        assert_refused(tr_shard_parse(h, 152, &out), TR_USAGE, "truncated");
        in.n_docs = huge[i];
        tr_shard_format(&in, h);
        assert_refused(tr_shard_parse(h, 152, &out), TR_USAGE, "truncated");
    }
    in = good;
    in.token_bytes = 3;
    tr_shard_format(&in, h);
    assert_refused(tr_shard_parse(h, 152, &out), TR_USAGE, "token_bytes 3");
    in = good;
    in.n_docs = 0;
    tr_shard_format(&in, h);
    assert_refused(tr_shard_parse(h, 152, &out), TR_USAGE, "0 documents");
    in = good;
    in.vocab_size = 65537;
    tr_shard_format(&in, h);
    assert_refused(tr_shard_parse(h, 152, &out), TR_USAGE, "vocab_size 65537");
}

static void ids_beyond_the_vocabulary_are_refused_at_open_and_at_write(void **state)
{
    struct scratch *s = *state;
    struct tr_shard *sh = NULL;
    struct tr_shard_writer *w = NULL;
    struct tr_shard_info info = { .vocab_size = 10 };
    int32_t bad[] = { 10, -1 };
    put_shard(in_scratch(s, "a.trtok"), lengths, 2, 0, 300, false); /* ids up to 3 + 5 * 7 = 38 */
    assert_refused(tr_shard_open(s->path, 38, &sh), TR_USAGE, "id 38, beyond the vocabulary of 38");
    assert_ok(tr_shard_open(s->path, 39, &sh));
    tr_shard_close(sh);
    assert_ok(tr_shard_writer_open(in_scratch(s, "b.trtok"), &info, &w));
    assert_refused(tr_shard_writer_add(w, &bad[0], NULL, NULL, 1), TR_USAGE, "id 10");
    assert_refused(tr_shard_writer_add(w, &bad[1], NULL, NULL, 1), TR_USAGE, "id -1");
    assert_refused(tr_shard_writer_end_doc(w), TR_USAGE, "empty");
    assert_refused(tr_shard_writer_commit(w, true, 0), TR_USAGE, "no complete document");
    assert_false(tr_file_exists(s->path));
}

static void a_file_that_changes_after_open_is_refused(void **state)
{
    struct scratch *s = *state;
    struct tr_shard *sh = NULL;
    int fd = -1;
    for (int parked = 0; parked < 2; parked++) {
        put_shard(in_scratch(s, "a.trtok"), lengths, N_DOCS, 0, 300, false);
        assert_ok(tr_shard_open(s->path, 300, &sh));
        if (parked)
            tr_shard_park(sh);
        assert_ok(tr_shard_begin(sh, &fd));
        tr_shard_end(sh, fd);
        assert_int_equal(truncate(s->path, 200), 0);
        assert_refused(tr_shard_begin(sh, &fd), TR_IO, "changed since");
        tr_shard_close(sh);
    }
}

/* The name appears whole or not at all, and an abandoned writer leaves nothing. */
static void abandoned_writer_leaves_no_file(void **state)
{
    struct scratch *s = *state;
    struct tr_shard_writer *w = NULL;
    struct tr_shard_info info = { .vocab_size = 10 };
    int32_t id = 1;
    assert_ok(tr_mkdirs(in_scratch(s, "d")));
    assert_ok(tr_shard_writer_open(in_scratch(s, "d/a.trtok"), &info, &w));
    assert_ok(tr_shard_writer_add(w, &id, NULL, NULL, 1));
    tr_shard_writer_abort(w);
    assert_int_equal(rmdir(in_scratch(s, "d")), 0); /* empty, or this fails */
}

/* A link that is planted where the cache was, while a shard is being written: nothing behind it changes. */
static void a_link_in_the_place_of_the_cache_is_not_followed_at_any_write(void **state)
{
    struct scratch *s = *state;
    struct tr_shard_writer *w = NULL;
    struct tr_shard_info info = { .vocab_size = 10 };
    char own[TR_PATH_MAX], away[TR_PATH_MAX], other[TR_PATH_MAX], shard[TR_PATH_MAX];
    int32_t id = 1;
    assert_ok(tr_path_join(own, s->dir, ".cache"));
    assert_ok(tr_path_join(away, s->dir, "away"));
    assert_ok(tr_path_join(other, s->dir, "other"));
    assert_ok(tr_path_join(shard, own, "a.trtok"));
    assert_ok(tr_mkdirs(own));
    assert_ok(tr_mkdirs(other));
    assert_ok(tr_shard_writer_open(shard, &info, &w));
    assert_ok(tr_shard_writer_add(w, &id, NULL, NULL, 1));
    assert_ok(tr_shard_writer_end_doc(w));
    assert_int_equal(rename(own, away), 0);
    assert_int_equal(symlink(other, own), 0);
    assert_int_not_equal(tr_shard_writer_commit(w, true, 0), TR_OK);
    assert_refused(tr_shard_writer_open(shard, &info, &w), TR_USAGE, "is a link");
    assert_refused(tr_cache_write(own, "chat_date", "x", 1), TR_USAGE, "is a link");
    struct tr_cache cache = { own, 1000000, -1 };
    assert_refused(tr_cache_lock(&cache), TR_USAGE, "is a link");
    assert_int_equal(rmdir(other), 0); /* empty, or this fails */
}

static void weights_round_trip_and_none_is_above_the_limit(void **state)
{
    struct scratch *s = *state;
    struct tr_shard_info info = { .vocab_size = 10, .has_mask = true, .keeps_whole = true, .has_weights = true };
    const uint32_t weights[] = { 0, 1, TR_WEIGHT_ONE, (uint32_t)TR_WEIGHT_MOST * TR_WEIGHT_ONE };
    uint32_t got[3];
    for (int is_over = 0; is_over < 2; is_over++) {
        struct tr_shard_writer *w = NULL;
        struct tr_shard *sh = NULL;
        int fd = -1;
        assert_ok(tr_shard_writer_open(in_scratch(s, "w.trtok"), &info, &w));
        for (int32_t i = 0; i < 4; i++) {
            uint32_t weight = weights[i] + (uint32_t)(is_over && i == 3);
            assert_ok(tr_shard_writer_add(w, &i, &(uint8_t){ 1 }, &weight, 1));
        }
        assert_ok(tr_shard_writer_end_doc(w));
        assert_ok(tr_shard_writer_commit(w, true, 0));
        if (is_over) {
            assert_refused(tr_shard_open(s->path, 10, &sh), TR_USAGE, "a weight is above 255");
            continue;
        }
        assert_ok(tr_shard_open(s->path, 10, &sh));
        assert_ok(tr_shard_begin(sh, &fd));
        assert_ok(tr_shard_weights(sh, fd, 1, 3, got));
        assert_memory_equal(got, weights + 1, sizeof got);
        tr_shard_end(sh, fd);
        tr_shard_close(sh);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(sixteen_and_thirty_two_bit_shards_round_trip),
        T(every_flipped_bit_and_every_cut_is_refused),
        cmocka_unit_test(lying_headers_are_refused),
        T(ids_beyond_the_vocabulary_are_refused_at_open_and_at_write),
        T(a_file_that_changes_after_open_is_refused),
        T(weights_round_trip_and_none_is_above_the_limit),
        T(abandoned_writer_leaves_no_file),
        T(a_link_in_the_place_of_the_cache_is_not_followed_at_any_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
