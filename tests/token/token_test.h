/* token_test.h - scratch directories, files and tokenizers for the tests of token, text and data. */
#ifndef TR_TESTS_TOKEN_TOKEN_TEST_H
#define TR_TESTS_TOKEN_TOKEN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "token/token.h"

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
