/* init.c - the random weights of a parameter. Every element is a function of seed, name and position, so that ranks
 * fill their own parts and no layout changes a bit. */
#include "model/model.h"
#include <math.h>
#include <stdlib.h>

struct filling {
    void (*fill)(uint64_t key, uint64_t first, float size, float *out, size_t n);
    uint64_t key;
    int64_t first, n;
    float std, *out;
};

enum { FILL_TASK = 1 << 14 };

static void fill_task(void *ctx, int64_t task, int worker)
{
    const struct filling *f = ctx;
    int64_t at = task * FILL_TASK;
    (void)worker;
    f->fill(f->key, (uint64_t)(f->first + at), f->std, f->out + at, (size_t)tr_min64(FILL_TASK, f->n - at));
}

/* ---- orthogonal: PEFT's orthogonal_init ---- */

/* A random orthonormal matrix: normal rows, each made orthogonal to those before it. A second pass removes what the
 * rounding of the first one left. */
static void make_orthonormal(uint64_t key, int64_t r, float *normal, double *q)
{
    tr_normal_fill(key, 0, 1, normal, (size_t)(r * r));
    for (int64_t i = 0; i < r; i++) {
        double *row = q + i * r, norm = 0;
        for (int64_t k = 0; k < r; k++)
            row[k] = (double)normal[i * r + k];
        for (int64_t j = 0; j < 2 * i; j++) {
            const double *before = q + j % i * r;
            double dot = 0;
            for (int64_t k = 0; k < r; k++)
                dot += row[k] * before[k];
            for (int64_t k = 0; k < r; k++)
                row[k] -= dot * before[k];
        }
        for (int64_t k = 0; k < r; k++)
            norm += row[k] * row[k];
        for (int64_t k = 0; k < r; k++)
            row[k] /= sqrt(norm);
    }
}

/* Element k of what one input (or output) has: its normals times the even (or odd) rows of q, over 10. A and B use
 * different rows, so B A is zero when training begins. */
static float orthogonal_element(const float *z, const double *q, int64_t r, int64_t k, bool is_b)
{
    double sum = 0;
    for (int64_t j = 0; j < r / 2; j++)
        sum += (double)z[j] * q[(2 * j + is_b) * r + k];
    return (float)(sum / 10);
}

static enum tr_status fill_orthogonal(const struct tr_param *p, uint64_t seed, int64_t first, int64_t n, float *out)
{
    bool is_b = p->init == TR_INIT_ORTHOGONAL_B;
    int64_t r = is_b ? p->cols : p->rows, n_points = is_b ? p->rows : p->cols;
    char module[TR_NAME_MAX];
    memcpy(module, p->name, sizeof module);
    char *end = strstr(module, ".lora_");
    TR_BUG_ON(!end);
    *end = 0;
    float *z = malloc((size_t)(r * r) * sizeof *z);
    double *q = malloc((size_t)(r * r) * sizeof *q);
    enum tr_status st = z && q ? TR_OK : tr_fail(TR_NOMEM, "init: out of memory");
    if (st == TR_OK)
        make_orthonormal(tr_rng_key(seed, module, 1), r, z, q);
    uint64_t key = tr_rng_key(seed, p->name, 0);
    int64_t point = is_b ? first / r : 0, last = is_b ? (first + n - 1) / r + 1 : n_points;
    for (; st == TR_OK && point < last; point++) {
        tr_normal_fill(key, (uint64_t)(point * (r / 2)), 1, z, (size_t)(r / 2));
        for (int64_t k = 0; k < r; k++) {
            int64_t at = (is_b ? point * r + k : k * n_points + point) - first;
            if (at >= 0 && at < n)
                out[at] = orthogonal_element(z, q, r, k, is_b);
        }
    }
    free(z);
    free(q);
    return st;
}

/* ---- rows of a table that learn by themselves ---- */

static enum tr_status fill_rows(const struct tr_model *m, int i, uint64_t seed, int64_t first, int64_t n, float *out)
{
    const struct tr_param *p = &m->param[i];
    const struct tr_model_rows *r = tr_model_rows_of(m, i);
    enum tr_status st = TR_OK;
    TR_BUG_ON(!r);
    for (int64_t at = 0, len; at < n && st == TR_OK; at += len) {
        int64_t row = (first + at) / p->cols, col = (first + at) % p->cols;
        len = tr_min64(n - at, p->cols - col);
        if (p->init == TR_INIT_ROWS_PICK) {
            for (int64_t k = 0; k < len; k++)
                out[at + k] = r->id[col + k] == row ? 1.0f : 0.0f;
            continue;
        }
        st = tr_model_init_param(m, r->table, seed, r->id[row] * p->cols + col, len, NULL, out + at);
        for (int64_t k = 0; k < len && p->init == TR_INIT_ROWS_MINUS; k++)
            out[at + k] = -out[at + k];
    }
    return st;
}

enum tr_status tr_model_init_param(const struct tr_model *m, int i, uint64_t seed, int64_t first, int64_t n,
                                   struct tr_pool *pool, float *out)
{
    const struct tr_param *p = &m->param[i];
    bool is_uniform = p->init == TR_INIT_UNIFORM;
    struct filling f = {
        is_uniform ? tr_uniform_fill : tr_normal_fill, tr_rng_key(seed, p->name, 0), first, n, p->init_std, out
    };
    if (p->init == TR_INIT_ORTHOGONAL_A || p->init == TR_INIT_ORTHOGONAL_B)
        return fill_orthogonal(p, seed, first, n, out);
    if (p->init >= TR_INIT_ROWS)
        return fill_rows(m, i, seed, first, n, out);
    if (p->init == TR_INIT_NORMAL || is_uniform)
        tr_pool_run(pool, (n + FILL_TASK - 1) / FILL_TASK, fill_task, &f);
    else
        for (int64_t k = 0; k < n; k++)
            out[k] = p->init == TR_INIT_ONES ? 1.0f : 0.0f;
    return TR_OK;
}
