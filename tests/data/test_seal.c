/* test_seal.c - a seal holds exactly as long as its file is unchanged, and what it says is believed. */
#include "data/data_test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

static struct stat stat_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st;
}

static void a_seal_ends_with_any_change_of_its_file(void **state)
{
    struct scratch *s = *state;
    char cache[TR_PATH_MAX];
    memcpy(cache, in_scratch(s, "cache"), sizeof cache);
    struct tr_seals seals = { .cache_dir = cache }, ignored = { cache, true }, none = { 0 };
    struct tr_hash128 value = { 0x123456789abcdef0, 0x0fedcba987654321 }, got = { 0 };
    struct stat st = stat_of(put_text(s, "a", "text"));
    assert_false(tr_seal_find(&seals, &st, "content", &got));
    tr_seal_save(&seals, &st, 2, "content", value); /* too young */
    assert_false(tr_seal_find(&seals, &st, "content", &got));
    tr_seal_save(&seals, &st, 0, "content", value);
    assert_true(tr_seal_find(&seals, &st, "content", &got));
    assert_true(tr_hash_eq(got, value));
    assert_false(tr_seal_find(&seals, &st, "something else", &got));
    assert_false(tr_seal_find(&ignored, &st, "content", &got));
    assert_false(tr_seal_find(&none, &st, "content", &got));
    st = stat_of(put_text(s, "a", "texT")); /* same name and size */
    assert_false(tr_seal_find(&seals, &st, "content", &got));
    tr_seal_save(&seals, &st, 0, "content", value);
    struct timespec times[2] = { st.st_atim, st.st_mtim };
    usleep(20000); /* a tick of the file system's clock */
    put_text(s, "a", "tExt");
    assert_int_equal(utimensat(AT_FDCWD, s->path, times, 0), 0); /* a forged time of modification */
    st = stat_of(s->path);
    assert_false(tr_seal_find(&seals, &st, "content", &got));
}

/* A shard with a flipped bit and a seal that calls it good: opened without being read, refused when rechecked. */
static void a_sealed_shard_is_not_read_again_unless_asked(void **state)
{
    struct scratch *s = *state;
    struct tr_shard *sh = NULL;
    char cache[TR_PATH_MAX];
    int64_t length = 100;
    memcpy(cache, in_scratch(s, "cache"), sizeof cache);
    struct tr_seals seals = { .cache_dir = cache }, ignored = { cache, true };
    put_shard(in_scratch(s, "a.trtok"), &length, 1, 0, 257, false);
    assert_ok(tr_shard_open_sealed(s->path, 257, &seals, &sh));
    struct tr_hash128 payload = tr_shard_get_info(sh)->payload;
    tr_shard_close(sh);
    int fd = open(s->path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 130), 1);
    close(fd);
    assert_refused(tr_shard_open_sealed(s->path, 257, &seals, &sh), TR_USAGE, "checksum");
    struct stat st = stat_of(s->path);
    tr_seal_save(&seals, &st, 0, "shard below 257", payload);
    assert_ok(tr_shard_open_sealed(s->path, 257, &seals, &sh));
    tr_shard_close(sh);
    assert_refused(tr_shard_open_sealed(s->path, 257, &ignored, &sh), TR_USAGE, "checksum");
    assert_refused(tr_shard_open_sealed(s->path, 256, &seals, &sh), TR_USAGE, "checksum"); /* sealed for 257 ids */
}

static void a_damaged_seal_is_no_seal(void **state)
{
    struct scratch *s = *state;
    struct tr_hash128 value = { 1, 2 }, got;
    struct tr_seals seals = { .cache_dir = s->dir };
    struct stat st = stat_of(put_text(s, "a", "text"));
    char command[600];
    tr_seal_save(&seals, &st, 0, "content", value);
    assert_true(tr_seal_find(&seals, &st, "content", &got));
    snprintf(command, sizeof command, "for f in %s/seals/*; do printf x | dd of=$f conv=notrunc status=none; done",
             s->dir);
    assert_int_equal(system(command), 0);
    assert_false(tr_seal_find(&seals, &st, "content", &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_seal_ends_with_any_change_of_its_file),
        TEST(a_sealed_shard_is_not_read_again_unless_asked),
        TEST(a_damaged_seal_is_no_seal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
