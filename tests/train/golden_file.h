/* golden_file.h - what a golden case expects: the batch, and tensors by name (tests/golden/README.md). */
#ifndef TR_TESTS_TRAIN_GOLDEN_FILE_H
#define TR_TESTS_TRAIN_GOLDEN_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
#include "adapter/adapter.h"
#include "train/train.h"

enum { SPREAD_GRAD, SPREAD_AFTER, N_SPREADS }; /* golden_bounds.h */

struct golden {
    struct tr_st *st;
    int64_t rows, length, n_targets;
    int32_t *tokens, *targets, *positions, *begin;
    double spread[N_SPREADS]; /* 0 where the file does not say */
};

static bool is_rank; /* a process of its own, in which cmocka must not jump */

static inline void must(enum tr_status st)
{
    if (st == TR_OK)
        return;
    if (!is_rank)
        fail_msg("%s", tr_error_text());
    fprintf(stderr, "%s\n", tr_error_text());
    _exit(1);
}

/* All of tensor `name`, as dtype; *n gets its elements. */
static inline void *golden_read(const struct golden *g, const char *name, enum tr_dtype dtype, int64_t *n)
{
    size_t i;
    if (!tr_st_find(g->st, name, &i))
        fail_msg("%s: no tensor %s", tr_st_path(g->st), name);
    const struct tr_st_tensor *t = tr_st_tensor(g->st, i);
    void *p = malloc((size_t)t->n_elems * tr_dtype_bytes(dtype));
    assert_non_null(p);
    must(tr_st_read(g->st, i, 0, (size_t)t->n_elems, p, dtype));
    if (n)
        *n = (int64_t)t->n_elems;
    return p;
}

static inline double *golden_param(const struct golden *g, const char *what, const struct tr_param *p)
{
    char name[TR_NAME_MAX + 16];
    int64_t n = 0;
    must(tr_format(name, sizeof name, "%s.%s", what, p->name));
    double *x = golden_read(g, name, TR_F64, &n);
    assert_int_equal(n, p->n);
    return x;
}

static inline double golden_number(const struct golden *g, const char *name)
{
    double *p = golden_read(g, name, TR_F64, NULL), x = *p;
    free(p);
    return x;
}

static inline void golden_open_file(struct golden *g, const char *dir)
{
    char path[TR_PATH_MAX];
    size_t i;
    must(tr_path_join(path, dir, "golden.safetensors"));
    must(tr_st_open(path, &g->st));
    if (!tr_st_find(g->st, "spread", &i))
        return;
    assert_int_equal(tr_st_tensor(g->st, i)->n_elems, N_SPREADS);
    must(tr_st_read(g->st, i, 0, N_SPREADS, g->spread, TR_F64));
}

static inline void golden_open(struct golden *g, const char *dir)
{
    size_t i;
    *g = (struct golden){ 0 };
    golden_open_file(g, dir);
    assert_true(tr_st_find(g->st, "tokens", &i));
    g->rows = tr_st_tensor(g->st, i)->dims[0];
    g->length = tr_st_tensor(g->st, i)->dims[1];
    g->tokens = golden_read(g, "tokens", TR_I32, NULL);
    g->targets = golden_read(g, "targets", TR_I32, NULL);
    g->positions = golden_read(g, "positions", TR_I32, NULL);
    g->begin = golden_read(g, "begin", TR_I32, NULL);
    g->n_targets = 0;
    for (int64_t k = 0; k < g->rows * g->length; k++)
        g->n_targets += g->targets[k] >= 0;
}

static inline void golden_close(struct golden *g)
{
    tr_st_close(g->st);
    free(g->tokens);
    free(g->targets);
    free(g->positions);
    free(g->begin);
}

#endif
