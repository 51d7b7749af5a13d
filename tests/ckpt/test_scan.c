/* test_scan.c - damage on disk is found, named and passed over: C7-C11, C15, C18; every bit of the manifest. */
#include <fcntl.h>
#include "ckpt/checkpoint.h"
#include "ckpt/sums.h"
#include <utime.h>

static const char *const members[] = { "model.safetensors", "trireme/state.json", "config.json" };

static void read_member(const char *dir, const char *name, char **out, size_t *out_n)
{
    assert_ok(tr_file_read(in_dir(dir, name), 1 << 24, out, out_n));
}

static void every_flipped_bit_of_the_manifest_is_seen(void **state)
{
    char *text;
    size_t n;
    struct tr_ckpt_manifest m;
    assert_ok(toy_save(*state, "run", 1, 0, 0));
    read_member(*state, "checkpoint-1/trireme/manifest.json", &text, &n);
    assert_ok(tr_ckpt_manifest_parse(text, n, &m));
    assert_int_equal(m.n_files, 3);
    assert_string_equal(m.files[0].name, "config.json");
    assert_int_equal(m.files[0].bytes, 3);
    tr_ckpt_manifest_release(&m);
    for (size_t bit = 0; bit < n * 8; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << (bit % 8)));
        if (tr_ckpt_manifest_parse(text, n, &m) != TR_IO)
            fail_msg("bit %zu", bit);
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << (bit % 8)));
    }
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(tr_ckpt_manifest_parse(text, cut, &m), TR_IO);
    free(text);
}

static void a_damaged_file_is_named_and_the_one_before_is_used(void **state)
{
    assert_ok(toy_save(*state, "run", 1, 0, 0));
    assert_ok(toy_save(*state, "run", 2, 0, 0));
    char dir[TR_PATH_MAX], *text;
    snprintf(dir, sizeof dir, "%s", in_dir(*state, "checkpoint-2"));
    for (size_t i = 0; i < TR_COUNT_OF(members); i++) {
        size_t n;
        read_member(dir, members[i], &text, &n);
        for (size_t at = 0; at < n; at += n / 16 + 1) {
            text[at] ^= 1;
            put_file(in_dir(dir, members[i]), text, n);
            assert_fails_with(tr_ckpt_verify(dir, NULL, NULL), TR_IO, members[i]);
            text[at] ^= 1;
        }
        assert_int_equal(toy_newest(*state), 1);
        put_file(in_dir(dir, members[i]), text, n - 1); /* torn */
        assert_fails_with(tr_ckpt_verify(dir, NULL, NULL), TR_IO, members[i]);
        assert_non_null(strstr(tr_error_text(), "bytes, the manifest says"));
        put_file(in_dir(dir, members[i]), text, 0);
        assert_fails_with(tr_ckpt_verify(dir, NULL, NULL), TR_IO, members[i]);
        assert_int_equal(unlink(in_dir(dir, members[i])), 0);
        assert_fails_with(tr_ckpt_verify(dir, NULL, NULL), TR_IO, members[i]);
        assert_int_equal(toy_newest(*state), 1);
        put_file(in_dir(dir, members[i]), text, n);
        assert_int_equal(toy_newest(*state), 2);
        free(text);
    }
}

static void swapped_extra_and_foreign_files_are_found(void **state)
{
    char one[TR_PATH_MAX], two[TR_PATH_MAX];
    struct tr_ckpt_info info;
    assert_ok(toy_save(*state, "run", 1, 0, 0));
    assert_ok(toy_save(*state, "run", 2, 0, 0));
    snprintf(one, sizeof one, "%s", in_dir(*state, "checkpoint-1"));
    snprintf(two, sizeof two, "%s", in_dir(*state, "checkpoint-2"));

    put_file(in_dir(two, "README.md"), "x", 1); /* people may add this */
    assert_ok(tr_ckpt_verify(two, "run", &info));
    put_file(in_dir(two, "model-00002-of-00002.safetensors"), "x", 1);
    assert_fails_with(tr_ckpt_verify(two, NULL, NULL), TR_IO,
                      "model-00002-of-00002.safetensors: is not in the manifest");
    assert_int_equal(unlink(in_dir(two, "model-00002-of-00002.safetensors")), 0);
    put_file(in_dir(two, "trireme/optim-0001-of-0001.safetensors"), "x", 1);
    assert_fails_with(tr_ckpt_verify(two, NULL, NULL), TR_IO, "is not in the manifest");
    assert_int_equal(unlink(in_dir(two, "trireme/optim-0001-of-0001.safetensors")), 0);

    /* the shard of another step: same name and size, other bytes */
    assert_int_equal(rename(in_dir(two, "model.safetensors"), in_dir(*state, "aside")), 0);
    copy_file(in_dir(one, "model.safetensors"), in_dir(two, "model.safetensors"));
    assert_fails_with(tr_ckpt_verify(two, NULL, NULL), TR_IO, "damaged or swapped");
    assert_int_equal(rename(in_dir(*state, "aside"), in_dir(two, "model.safetensors")), 0);

    assert_fails_with(tr_ckpt_verify(two, "other", NULL), TR_IO, "belongs to run run");
    assert_int_equal(rename(two, in_dir(*state, "checkpoint-3")), 0);
    assert_fails_with(tr_ckpt_verify(in_dir(*state, "checkpoint-3"), NULL, NULL), TR_IO, "holds step 2");
    assert_int_equal(toy_newest(*state), 1);
    assert_int_equal(rename(in_dir(*state, "checkpoint-3"), in_dir(*state, "best")), 0);
    assert_ok(tr_ckpt_verify(in_dir(*state, "best"), NULL, &info)); /* a name that claims no step may be anything */
    assert_int_equal(info.step, 2);
}

static void links_are_never_followed_and_never_passed_over(void **state)
{
    char two[TR_PATH_MAX];
    assert_ok(toy_save(*state, "run", 1, 0, 0));
    assert_ok(toy_save(in_dir(*state, "else"), "run", 9, 0, 0));
    assert_int_equal(symlink("else/checkpoint-9", in_dir(*state, "checkpoint-9")), 0);
    struct tr_ckpt_info info;
    bool is_found = false;
    assert_fails_with(tr_ckpt_scan(*state, NULL, &is_found, &info, NULL), TR_USAGE, "is newer than every checkpoint");
    assert_int_equal(unlink(in_dir(*state, "checkpoint-9")), 0);
    assert_int_equal(toy_newest(*state), 1);
    assert_int_equal(symlink("else/checkpoint-9", in_dir(*state, "checkpoint-0")), 0); /* an older one is left alone */
    assert_int_equal(toy_newest(*state), 1);

    assert_ok(toy_save(*state, "run", 2, 0, 0));
    snprintf(two, sizeof two, "%s", in_dir(*state, "checkpoint-2"));
    assert_int_equal(rename(in_dir(two, "config.json"), in_dir(two, "config2.json")), 0);
    assert_int_equal(symlink("config2.json", in_dir(two, "config.json")), 0);
    assert_fails_with(tr_ckpt_verify(two, NULL, NULL), TR_IO, "config.json: is a link");
    assert_int_equal(rename(in_dir(two, "config2.json"), in_dir(two, "config.json")), 0);
    assert_int_equal(rename(in_dir(two, "trireme"), in_dir(two, "trireme2")), 0);
    assert_int_equal(symlink("trireme2", in_dir(two, "trireme")), 0);
    assert_int_equal(toy_newest(*state), 1);
}

/* V1: what is read after verification is compared block by block, whatever part of it is asked for. */
static void reads_are_compared_with_what_was_verified(void **state)
{
    enum { N = 3 * TR_SUM_BLOCK - 1000 };
    static const struct {
        size_t at, n;
    } reads[] = { { 0, N }, { 0, 8 }, { 1, TR_SUM_BLOCK }, { TR_SUM_BLOCK, TR_SUM_BLOCK }, { N - 1, 1 }, { 5, 0 } };
    struct tr_sums *s = NULL;
    struct tr_sums_file *f = NULL;
    const struct tr_sums_file *found = NULL;
    char *data = malloc(N), *got = malloc(N);
    assert_true(data && got);
    for (size_t i = 0; i < N; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    const char *path = in_dir(*state, "f");
    put_file(path, data, N);
    assert_ok(tr_sums_open(*state, 1, &s));
    assert_ok(tr_sums_add(s, "f", N, &f));
    for (size_t at = 0; at < N; at += TR_SUM_BLOCK)
        f->block[at / TR_SUM_BLOCK] = tr_hash(data + at, N - at < TR_SUM_BLOCK ? N - at : TR_SUM_BLOCK);
    assert_ok(tr_sums_find(s, "elsewhere", "f", &found));
    assert_null(found);
    assert_fails_with(tr_sums_find(s, *state, "g", &found), TR_IO, "was not there");
    assert_ok(tr_sums_find(s, *state, "f", &found));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (size_t i = 0; i < TR_COUNT_OF(reads); i++) {
        assert_ok(tr_sums_pread(found, fd, path, got, reads[i].n, reads[i].at));
        assert_memory_equal(got, data + reads[i].at, reads[i].n);
    }
    assert_int_equal(pwrite(fd, "!", 1, TR_SUM_BLOCK + 7), 1);
    assert_ok(tr_sums_pread(found, fd, path, got, 100, TR_SUM_BLOCK - 100));
    assert_fails_with(tr_sums_pread(found, fd, path, got, 1, 2 * TR_SUM_BLOCK - 1), TR_IO, "have changed");
    assert_fails_with(tr_sums_pread(found, fd, path, got, N, 0), TR_IO, "have changed");
    assert_int_equal(ftruncate(fd, N - 1), 0);
    assert_fails_with(tr_sums_pread(found, fd, path, got, 1, 2 * TR_SUM_BLOCK), TR_IO, "ends at byte");
    assert_fails_with(tr_sums_pread(found, fd, path, got, 2, N - 1), TR_IO, "past the end");
    close(fd);
    tr_sums_close(s);
    free(data);
    free(got);
}

/* A checkpoint that was moved away, or renamed, is asked for by name: a run that resumes never starts from scratch. */
static void what_looks_like_a_checkpoint_is_not_passed_over(void **state)
{
    static const char *const names[] = { "checkpoint-4.old", "checkpoint-4.aside-2", "checkpoint-04", "checkpoint-4" };
    struct tr_ckpt_info info;
    bool is_found = true;
    assert_int_equal(mkdir(in_dir(*state, "checkpoint-4.tmp-1"), 0777), 0); /* a first save that was killed */
    assert_ok(tr_ckpt_scan(*state, NULL, &is_found, &info, NULL));
    assert_false(is_found);
    assert_ok(tr_ckpt_check_new(*state));
    put_file(in_dir(*state, "latest"), "checkpoint-4\n", 13);
    assert_fails_with(tr_ckpt_scan(*state, NULL, &is_found, &info, NULL), TR_USAGE, "\"latest\"");
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        assert_int_equal(symlink("nowhere", in_dir(*state, names[i])), 0);
        assert_fails_with(tr_ckpt_scan(*state, NULL, &is_found, &info, NULL), TR_USAGE, names[i]);
        assert_int_equal(unlink(in_dir(*state, names[i])), 0);
    }
    assert_int_equal(symlink("nowhere", in_dir(*state, "checkpoint-4")), 0);
    assert_fails_with(tr_ckpt_check_new(*state), TR_USAGE, "checkpoints of an earlier run");
}

/* C11: whatever the pointer says, the answer is the same; a disagreement is told. */
static void the_pointer_is_only_a_hint(void **state)
{
    static const char *const pointers[] = {
        "checkpoint-1\n", "checkpoint-99\n", "../checkpoint-2\n", "", "/etc/passwd", "checkpoint-2x\n", "\x1b[2J"
    };
    struct tr_str notes = { 0 };
    struct tr_ckpt_info info;
    bool is_found;
    assert_ok(toy_save(*state, "run", 1, 0, 0));
    assert_ok(toy_save(*state, "run", 2, 0, 0));
    assert_ok(tr_ckpt_scan(*state, "run", &is_found, &info, &notes));
    assert_int_equal(notes.n, 0);
    for (size_t i = 0; i < TR_COUNT_OF(pointers); i++) {
        put_file(in_dir(*state, "latest"), pointers[i], strlen(pointers[i]));
        tr_str_clear(&notes);
        assert_ok(tr_ckpt_scan(*state, "run", &is_found, &info, &notes));
        assert_true(is_found);
        assert_int_equal(info.step, 2);
        assert_non_null(strstr(notes.p, "latest names"));
        assert_null(strchr(notes.p, '\x1b'));
    }
    assert_int_equal(unlink(in_dir(*state, "latest")), 0);
    assert_int_equal(symlink("checkpoint-1", in_dir(*state, "latest")), 0);
    assert_int_equal(toy_newest(*state), 2);
    tr_str_release(&notes);
}

/* C18 */
static void newest_is_the_largest_step_not_the_youngest_file(void **state)
{
    assert_ok(toy_save(*state, "run", 1000, 0, 0));
    assert_ok(toy_save(*state, "run", 999, 1, 0));
    assert_ok(toy_save(*state, "run", 20, 2, 0));
    assert_int_equal(utime(in_dir(*state, "checkpoint-1000"), &(struct utimbuf){ 1, 1 }), 0);
    assert_int_equal(toy_newest(*state), 1000);
}

/* C10 */
static void all_bad_is_an_error_and_none_is_not(void **state)
{
    struct tr_str notes = { 0 };
    struct tr_ckpt_info info;
    bool is_found = true;
    assert_ok(tr_ckpt_scan(in_dir(*state, "absent"), NULL, &is_found, &info, NULL));
    assert_false(is_found);
    assert_ok(tr_ckpt_scan(*state, NULL, &is_found, &info, NULL));
    assert_false(is_found);
    for (int64_t step = 1; step <= 3; step++)
        assert_ok(toy_save(*state, "run", step, 0, 0));
    assert_int_equal(truncate(in_dir(*state, "checkpoint-1/model.safetensors"), 0), 0);
    assert_int_equal(truncate(in_dir(*state, "checkpoint-2/trireme/manifest.json"), 0), 0);
    assert_ok(tr_remove_tree(in_dir(*state, "checkpoint-3/trireme")));
    assert_fails_with(tr_ckpt_scan(*state, NULL, &is_found, &info, &notes), TR_IO, "none of 3 checkpoints is good");
    const char *three = strstr(notes.p, "checkpoint-3: no trireme/"),
               *two = strstr(notes.p, "checkpoint-2: manifest.json"),
               *one = strstr(notes.p, "checkpoint-1: model.safetensors");
    assert_true(three && two && one && three < two && two < one);
    tr_str_release(&notes);
}

/* Appends the checksum line to a manifest body, as manifest.c does. */
static void put_manifest(const char *path, const char *body)
{
    struct tr_str s = { 0 };
    char hex[33];
    tr_hash_hex(tr_hash(body, strlen(body)), hex);
    tr_str_addf(&s, "%s  \"checksum\": \"%s\"\n}\n", body, hex);
    put_file(path, s.p, s.n);
    tr_str_release(&s);
}

/* C15 */
static void a_newer_format_is_refused_with_both_versions(void **state)
{
    struct tr_ckpt_info info;
    bool is_found;
    assert_ok(toy_save(*state, "run", 1, 0, 0));
    assert_ok(toy_save(*state, "run", 2, 0, 0));
    put_manifest(in_dir(*state, "checkpoint-2/trireme/manifest.json"),
                 "{\n  \"format\": \"trireme-checkpoint\",\n  \"version\": 7,\n  \"shape\": \"unknown\",\n");
    assert_fails_with(tr_ckpt_scan(*state, NULL, &is_found, &info, NULL), TR_USAGE, "version 7 is newer than 1");
}

static void a_manifest_with_a_good_checksum_is_still_checked(void **state)
{
#define HEAD                                                                                                           \
    "{\n\"format\": \"trireme-checkpoint\", \"version\": 1, \"run_id\": \"r\", \"step\": 1, \"generation\": 0,\n"
#define HASH "\"xxh3_128\": \"00000000000000000000000000000000\""
    static const char *const bodies[] = {
        "",
        "{\n",
        "[\n",
        HEAD,
        HEAD "\"files\": {},\n",
        HEAD "\"files\": [{}],\n",
        HEAD "\"files\": [{\"name\": \"../x\", \"bytes\": 1, " HASH "}],\n",
        HEAD "\"files\": [{\"name\": \"/x\", \"bytes\": 1, " HASH "}],\n",
        HEAD "\"files\": [{\"name\": \"x\", \"bytes\": -1, " HASH "}],\n",
        HEAD "\"files\": [{\"name\": \"x\", \"bytes\": 1e30, " HASH "}],\n",
        HEAD "\"files\": [{\"name\": \"x\", \"bytes\": 1, \"xxh3_128\": \"0\"}],\n",
        HEAD "\"files\": [{\"name\": \"x\", \"bytes\": 1, " HASH "}, {\"name\": \"x\", \"bytes\": 1, " HASH "}],\n",
        "{\"format\": \"other\", \"version\": 1,\n",
        "{\"format\": \"trireme-checkpoint\", \"version\": 0,\n",
        "{\"format\": \"trireme-checkpoint\", \"version\": 1, \"run_id\": \"a b\", \"step\": 1,\n",
    };
    const char *path = in_dir(*state, "manifest.json");
    for (size_t i = 0; i < TR_COUNT_OF(bodies); i++) {
        char *text;
        size_t n;
        struct tr_ckpt_manifest m;
        put_manifest(path, bodies[i]);
        assert_ok(tr_file_read(path, 1 << 20, &text, &n));
        if (tr_ckpt_manifest_parse(text, n, &m) != TR_IO)
            fail_msg("body %zu", i);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        dir_test(every_flipped_bit_of_the_manifest_is_seen),
        dir_test(a_damaged_file_is_named_and_the_one_before_is_used),
        dir_test(swapped_extra_and_foreign_files_are_found),
        dir_test(links_are_never_followed_and_never_passed_over),
        dir_test(reads_are_compared_with_what_was_verified),
        dir_test(what_looks_like_a_checkpoint_is_not_passed_over),
        dir_test(the_pointer_is_only_a_hint),
        dir_test(newest_is_the_largest_step_not_the_youngest_file),
        dir_test(all_bad_is_an_error_and_none_is_not),
        dir_test(a_newer_format_is_refused_with_both_versions),
        dir_test(a_manifest_with_a_good_checksum_is_still_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
