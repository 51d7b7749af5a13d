/* tmpdir.h - a fresh directory per test, and small files in it. */
#ifndef TR_TESTS_CKPT_TMPDIR_H
#define TR_TESTS_CKPT_TMPDIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"

static inline int tmpdir_setup(void **state)
{
    const char *base = getenv("TMPDIR");
    char *dir = malloc(TR_PATH_MAX);
    snprintf(dir, TR_PATH_MAX, "%s/trireme-ckpt-XXXXXX", base ? base : "/tmp");
    *state = mkdtemp(dir);
    return *state ? 0 : -1;
}

static inline int tmpdir_teardown(void **state)
{
    enum tr_status st = tr_remove_tree(*state);
    free(*state);
    return st == TR_OK ? 0 : -1;
}

/* Four paths may be in use at once. */
static inline const char *in_dir(const char *dir, const char *name)
{
    static char paths[4][TR_PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 4];
    assert_int_equal(tr_path_join(path, dir, name), TR_OK);
    return path;
}

static inline void put_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void copy_file(const char *from, const char *to)
{
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(tr_file_read(from, 1 << 24, &text, &n), TR_OK);
    put_file(to, text, n);
    free(text);
}

static inline void assert_fails_with(enum tr_status got, enum tr_status want, const char *text)
{
    if (got != want || !strstr(tr_error_text(), text))
        fail_msg("status %d text \"%s\"; wanted %d with \"%s\"", (int)got, got == TR_OK ? "" : tr_error_text(),
                 (int)want, text);
}

#define assert_ok(expr)                                                                                                \
    do {                                                                                                               \
        if ((expr) != TR_OK)                                                                                           \
            fail_msg("%s: %s", #expr, tr_error_text());                                                                \
    } while (0)

#define dir_test(f) cmocka_unit_test_setup_teardown(f, tmpdir_setup, tmpdir_teardown)

#endif
