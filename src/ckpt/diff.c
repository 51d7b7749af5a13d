/* diff.c - how two checkpoints differ, tensor by tensor. Weights are compared by name, whatever file holds them.
 * Optimizer state is compared range by range where both have the same ranges; another layout is resharded first (ckpt
 * reshard). */
#include "ckpt/load_impl.h"
#include <math.h>
#include <stdlib.h>

enum { CHUNK = 1 << 16 };

struct diff {
    struct tr_str *out;
    size_t n, most;
    float *a, *b; /* CHUNK each */
    const char *other;
};

static void add_line(struct diff *d, const char *name, const char *what)
{
    char esc[200];
    if (d->n++ < d->most)
        tr_str_addf(d->out, "%s: %s\n", tr_escape(name, esc, sizeof esc), what);
}

struct numbers {
    int64_t n, first;
    double most;
};

static void compare(struct diff *d, size_t n, int64_t at, struct numbers *x)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&d->a[i], &d->b[i], sizeof d->a[i]) == 0)
            continue;
        x->first = x->n++ ? x->first : at + (int64_t)i;
        double off = fabs((double)d->a[i] - (double)d->b[i]);
        x->most = off > x->most || isnan(off) ? off : x->most;
    }
}

static void tell(struct diff *d, const char *name, const struct numbers *x, int64_t n_all)
{
    char text[160];
    if (x->n &&
        tr_format(text, sizeof text, "%" PRId64 " of %" PRId64 " elements differ, first %" PRId64 ", at most by %.9g",
                  x->n, n_all, x->first, x->most) == TR_OK)
        add_line(d, name, text);
}

static bool is_alike(const struct tr_st_tensor *a, const struct tr_st_tensor *b)
{
    return a->n_elems == b->n_elems && a->n_dims == b->n_dims &&
           memcmp(a->dims, b->dims, (size_t)a->n_dims * sizeof *a->dims) == 0;
}

static enum tr_status open_weights(const char *dir, struct tr_hf **out)
{
    return tr_dir_has(dir, TR_ADAPTER_CONFIG) ? tr_adapter_file(dir, out) : tr_hf_open(dir, out);
}

static enum tr_status diff_weights(struct diff *d, const char *dir_a, const char *dir_b)
{
    enum tr_status st = TR_OK;
    struct tr_hf *a = NULL, *b = NULL;
    TR_TRY(open_weights(dir_a, &a));
    TR_TRY(open_weights(dir_b, &b));
    for (size_t i = 0; i < tr_hf_count(a); i++) {
        const struct tr_st_tensor *t = tr_hf_tensor(a, i);
        struct numbers x = { 0 };
        size_t k = 0;
        if (!tr_hf_find(b, t->name, &k) || !is_alike(t, tr_hf_tensor(b, k))) {
            add_line(d, t->name, "is not in the other one with this shape");
            continue;
        }
        for (uint64_t at = 0; at < t->n_elems; at += CHUNK) {
            size_t n = t->n_elems - at < CHUNK ? (size_t)(t->n_elems - at) : CHUNK;
            TR_TRY(tr_hf_read(a, i, at, n, d->a, TR_F32));
            TR_TRY(tr_hf_read(b, k, at, n, d->b, TR_F32));
            compare(d, n, (int64_t)at, &x);
        }
        tell(d, t->name, &x, (int64_t)t->n_elems);
    }
    for (size_t i = 0, k; i < tr_hf_count(b); i++)
        if (!tr_hf_find(a, tr_hf_tensor(b, i)->name, &k))
            add_line(d, tr_hf_tensor(b, i)->name, "is in the second only");
out:
    tr_hf_close(a);
    tr_hf_close(b);
    return st;
}

/* Elements as floats. Codes of 8 bits are compared as the numbers that they are. */
static enum tr_status read_numbers(const struct tr_st *f, size_t i, uint64_t at, size_t n, float *to)
{
    if (tr_st_tensor(f, i)->dtype != TR_U8)
        return tr_st_read(f, i, at, n, to, TR_F32);
    uint8_t *codes = (uint8_t *)(to + n) - n; /* the end of the buffer: each code is read before a float covers it */
    enum tr_status st = tr_st_read(f, i, at, n, codes, TR_U8);
    for (size_t k = 0; k < n && st == TR_OK; k++)
        to[k] = (float)codes[k];
    return st;
}

static enum tr_status diff_file(void *ctx, const char *path)
{
    enum tr_status st = TR_OK;
    struct diff *d = ctx;
    struct tr_st *a = NULL, *b = NULL;
    char name[96], path_b[TR_PATH_MAX];
    TR_TRY(tr_format(name, sizeof name, "trireme/%s", strrchr(path, '/') + 1));
    TR_TRY(tr_path_join(path_b, d->other, name));
    if (!tr_file_exists(path_b)) {
        add_line(d, name, "is not in the other one: saved by another layout; trireme ckpt reshard makes them alike");
        goto out;
    }
    TR_TRY(tr_st_open(path, &a));
    TR_TRY(tr_st_open(path_b, &b));
    for (size_t i = 0; i < tr_st_count(a); i++) {
        const struct tr_st_tensor *t = tr_st_tensor(a, i);
        struct numbers x = { 0 };
        size_t k = 0;
        if (!tr_st_find(b, t->name, &k) || !is_alike(t, tr_st_tensor(b, k))) {
            add_line(d, t->name, "is not in the other one with this shape");
            continue;
        }
        for (uint64_t at = 0; at < t->n_elems; at += CHUNK) {
            size_t n = t->n_elems - at < CHUNK ? (size_t)(t->n_elems - at) : CHUNK;
            TR_TRY(read_numbers(a, i, at, n, d->a));
            TR_TRY(read_numbers(b, k, at, n, d->b));
            compare(d, n, (int64_t)at, &x);
        }
        tell(d, t->name, &x, (int64_t)t->n_elems);
    }
out:
    tr_st_close(a);
    tr_st_close(b);
    return st;
}

static bool has_optim(const char *dir)
{
    char path[TR_PATH_MAX];
    return tr_path_join(path, dir, "trireme") == TR_OK && tr_dir_exists(path);
}

enum tr_status tr_ckpt_diff(const char *a, const char *b, size_t most, struct tr_str *out, size_t *out_n)
{
    enum tr_status st = TR_OK;
    struct diff d = { .out = out, .most = most, .other = b };
    TR_TRY(TR_ALLOC(d.a, CHUNK, "a comparison"));
    TR_TRY(TR_ALLOC(d.b, CHUNK, "a comparison"));
    TR_TRY(diff_weights(&d, a, b));
    if (has_optim(a) && has_optim(b))
        TR_TRY(tr_each_optim_file(a, diff_file, &d));
    if (d.n > most)
        tr_str_addf(out, "... and %zu more\n", d.n - most);
    *out_n = d.n;
out:
    free(d.a);
    free(d.b);
    return st;
}
