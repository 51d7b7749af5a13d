/* factor.c - singular triplets by a restarted block Krylov search with Rayleigh-Ritz, and QR by reflections.
 *
 * The search grows an orthonormal basis of the shorter side by blocks W^T W X, solves the small symmetric problem
 * of the squared matrix in it, and starts again from the best vectors. A small matrix is its own subspace, so the
 * result is exact. Rejected: LAPACK (another library at run time, whose result depends on who built it); one-sided
 * Jacobi of the whole matrix (hours for the linears of an 8B model); plain subspace iteration (weights of language
 * models have spectra so flat that it needs hundreds of passes).
 */
#include "base/factor.h"
#include "base/compiler.h"
#include "base/misc.h"
#include "base/rng.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, TASK_ROWS = 32, TASK_COLS = 64, BLOCKS = 5, SPARE = 8, QL_MAX = 80 };
static const double ENOUGH = 1e-5, GONE = 1e-10;

static double dot(const double *a, const double *b, int64_t n)
{
    double part[LANES] = { 0 }, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            part[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int k = 0; k < LANES; k++)
        sum += part[k];
    return sum;
}

/* ---- products with W ---- */

/* to = W x or W^T x for `width` vectors, which lie side by side: x (n, width), width a multiple of LANES. */
struct product {
    const float *w;
    int64_t rows, cols, width;
    const double *x;
    double *to;
};

static inline void add_lanes(double *to, double factor, const double *x, int64_t width)
{
    for (int64_t c = 0; c < width; c += LANES)
        for (int k = 0; k < LANES; k++)
            to[c + k] += factor * x[c + k];
}

static void rows_task(void *ctx, int64_t task, int worker)
{
    const struct product *p = ctx;
    int64_t first = task * TASK_ROWS, last = tr_min64(first + TASK_ROWS, p->rows);
    (void)worker;
    memset(p->to + first * p->width, 0, (size_t)((last - first) * p->width) * sizeof *p->to);
    for (int64_t j = 0; j < p->cols; j++)
        for (int64_t i = first; i < last; i++)
            add_lanes(p->to + i * p->width, (double)p->w[i * p->cols + j], p->x + j * p->width, p->width);
}

static void cols_task(void *ctx, int64_t task, int worker)
{
    const struct product *p = ctx;
    int64_t first = task * TASK_COLS, last = tr_min64(first + TASK_COLS, p->cols);
    (void)worker;
    memset(p->to + first * p->width, 0, (size_t)((last - first) * p->width) * sizeof *p->to);
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = first; j < last; j++)
            add_lanes(p->to + j * p->width, (double)p->w[i * p->cols + j], p->x + i * p->width, p->width);
}

static void multiply(const struct product *p, bool is_transposed, struct tr_pool *pool)
{
    if (is_transposed)
        tr_pool_run(pool, (p->cols + TASK_COLS - 1) / TASK_COLS, cols_task, (void *)(uintptr_t)p);
    else
        tr_pool_run(pool, (p->rows + TASK_ROWS - 1) / TASK_ROWS, rows_task, (void *)(uintptr_t)p);
}

/* ---- symmetric eigenproblem ---- */

/* Q^T A Q of a symmetric A (n, n) becomes tridiagonal: d its diagonal, e[0..n-2] beside it; A becomes Q^T, a row for
 * each column of Q. */
static void tridiagonalise(double *a, int64_t n, double *d, double *e)
{
    memset(e, 0, (size_t)n * sizeof *e);
    for (int64_t k = 0; k + 2 < n; k++) { /* the reflection of step k is left in row k, behind the diagonal */
        double *x = a + k * n, norm = sqrt(dot(x + k + 1, x + k + 1, n - k - 1));
        double alpha = x[k + 1] > 0 ? -norm : norm;
        d[k] = x[k];
        e[k] = alpha;
        x[k + 1] -= alpha;
        double square = dot(x + k + 1, x + k + 1, n - k - 1), sum = 0;
        x[k] = square; /* its diagonal is free now */
        if (!(square > 0))
            continue;
        double *p = d + k + 1; /* not final yet */
        for (int64_t i = k + 1; i < n; i++) {
            p[i - k - 1] = 2 * dot(a + i * n + k + 1, x + k + 1, n - k - 1) / square;
            sum += p[i - k - 1] * x[i];
        }
        for (int64_t i = k + 1; i < n; i++)
            p[i - k - 1] -= sum / square * x[i];
        for (int64_t i = k + 1; i < n; i++)
            for (int64_t j = k + 1; j < n; j++)
                a[i * n + j] -= x[i] * p[j - k - 1] + p[i - k - 1] * x[j];
    }
    if (n > 1) {
        d[n - 2] = a[(n - 2) * n + n - 2];
        e[n - 2] = a[(n - 2) * n + n - 1];
    }
    d[n - 1] = a[n * n - 1];
    for (int64_t k = n - 1; k >= 0; k--) { /* Q^T from the last reflection on: rows and columns k+1.. are done */
        double *x = a + k * n, square = k + 2 < n ? x[k] : 0;
        for (int64_t i = k + 1; square > 0 && i < n; i++) {
            double *row = a + i * n, factor = 2 * dot(row + k + 1, x + k + 1, n - k - 1) / square;
            for (int64_t j = k + 1; j < n; j++)
                row[j] -= factor * x[j];
        }
        for (int64_t j = k + 1; j < n; j++)
            x[j] = a[j * n + k] = 0;
        x[k] = 1;
    }
}

static void rotate(double *a, double *b, double c, double s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = a[i], y = b[i];
        a[i] = c * x - s * y;
        b[i] = s * x + c * y;
    }
}

/* hypot, by operations that round alike everywhere: glibc's rounds in another way from 2.35 on, and a program that uses
 * the new one starts on no older system. */
static double norm_of_two(double x, double y)
{
    double big = fmax(fabs(x), fabs(y)), small = fmin(fabs(x), fabs(y));
    return big > 0 ? big * sqrt(1 + small / big * (small / big)) : 0;
}

/* Eigenvalues of a tridiagonal matrix, d its diagonal and e[0..n-2] beside it, into d, by implicit QL steps with
 * Wilkinson's shift; rows of q turn with them. */
static enum tr_status solve_tridiagonal(double *d, double *e, int64_t n, double *q)
{
    for (int64_t l = 0; l < n; l++)
        for (int turn = 0;; turn++) {
            int64_t m = l, i;
            while (m + 1 < n && fabs(e[m]) > 0x1p-52 * (fabs(d[m]) + fabs(d[m + 1])))
                m++;
            if (m == l)
                break;
            if (turn == QL_MAX)
                return tr_fail(TR_NUMBERS, "eigenvalues of a %" PRId64 " x %" PRId64 " matrix do not converge", n, n);
            double g = (d[l + 1] - d[l]) / (2 * e[l]), c = 1, s = 1, p = 0, r = 0;
            g = d[m] - d[l] + e[l] / (g + copysign(norm_of_two(g, 1), g));
            for (i = m - 1; i >= l; i--) {
                double f = s * e[i], b = c * e[i];
                e[i + 1] = r = norm_of_two(f, g);
                if (r == 0) { /* the matrix falls apart here */
                    d[i + 1] -= p;
                    break;
                }
                s = f / r;
                c = g / r;
                g = d[i + 1] - p;
                r = (d[i] - g) * s + 2 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
                rotate(q + i * n, q + (i + 1) * n, c, s, n);
            }
            e[m] = 0;
            if (i >= l)
                continue;
            d[l] -= p;
            e[l] = g;
        }
    return TR_OK;
}

struct eigenvalue {
    double value;
    int64_t at;
};

/* Larger values first; equal ones in their order, so that the result is one. */
static int by_value(const void *a, const void *b)
{
    const struct eigenvalue *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value ? 1 : -1) : (x->at < y->at ? -1 : x->at > y->at);
}

/* The k largest eigenvalues of a symmetric A (n, n), which is overwritten, and their vectors as rows of out (k, n). */
static enum tr_status eigen_top(double *a, int64_t n, int64_t k, double *value, double *out)
{
    enum tr_status st = TR_OK;
    double *d = malloc((size_t)n * 2 * sizeof *d);
    struct eigenvalue *order = malloc((size_t)n * sizeof *order);
    if (!d || !order)
        TR_TRY(tr_fail(TR_NOMEM, "start of an adapter: out of memory"));
    tridiagonalise(a, n, d, d + n);
    TR_TRY(solve_tridiagonal(d, d + n, n, a));
    for (int64_t i = 0; i < n; i++)
        order[i] = (struct eigenvalue){ d[i], i };
    qsort(order, (size_t)n, sizeof *order, by_value);
    for (int64_t i = 0; i < k; i++) {
        value[i] = order[i].value;
        memcpy(out + i * n, a + order[i].at * n, (size_t)n * sizeof *out);
    }
out:
    free(d);
    free(order);
    return st;
}

/* ---- the search ---- */

/* Vectors of the shorter side (length n) and their images under W or W^T (length m >= n), one after the other. */
struct search {
    const float *w;
    int64_t rows, cols;
    bool is_wide; /* cols > rows: the shorter side is that of the rows */
    int64_t m, n, block, most, count;
    double *basis, *image;      /* (most, n), (most, m) */
    double *wide, *narrow;      /* (m, width), (n, width): a block side by side */
    double *gram, *value, *mix; /* (most, most), (block), (block, most) */
    double *next, *next_image;
    struct tr_pool *pool;
};

static int64_t width_of(int64_t k)
{
    return (k + LANES - 1) / LANES * LANES;
}

/* k vectors of length n side by side, and back. */
static void interleave(const double *from, int64_t k, int64_t n, int64_t width, double *to)
{
    memset(to, 0, (size_t)(n * width) * sizeof *to);
    for (int64_t c = 0; c < k; c++)
        for (int64_t i = 0; i < n; i++)
            to[i * width + c] = from[c * n + i];
}

static void separate(const double *from, int64_t k, int64_t n, int64_t width, double *to)
{
    for (int64_t c = 0; c < k; c++)
        for (int64_t i = 0; i < n; i++)
            to[c * n + i] = from[i * width + c];
}

/* Images of k vectors, or with is_back the way back. */
static void apply(struct search *x, const double *from, int64_t k, bool is_back, double *to)
{
    int64_t width = width_of(k), n_from = is_back ? x->m : x->n, n_to = is_back ? x->n : x->m;
    double *in = is_back ? x->wide : x->narrow, *out = is_back ? x->narrow : x->wide;
    interleave(from, k, n_from, width, in);
    multiply(&(struct product){ x->w, x->rows, x->cols, width, in, out }, x->is_wide != is_back, x->pool);
    separate(out, k, n_to, width, to);
}

struct projecting {
    const struct search *x;
    double *v, *factor;
};

static void project_task(void *ctx, int64_t task, int worker)
{
    const struct projecting *p = ctx;
    (void)worker;
    p->factor[task] = dot(p->x->basis + task * p->x->n, p->v, p->x->n);
}

static void subtract_task(void *ctx, int64_t task, int worker)
{
    const struct projecting *p = ctx;
    int64_t first = task * 512, last = tr_min64(first + 512, p->x->n);
    (void)worker;
    for (int64_t k = 0; k < p->x->count; k++)
        for (int64_t i = first; i < last; i++)
            p->v[i] -= p->factor[k] * p->x->basis[k * p->x->n + i];
}

/* Adds to the basis what v has beside it; twice is enough (Kahan). Vectors that lie in it are left out. */
static void add_vector(struct search *x, const double *v)
{
    double *to = x->basis + x->count * x->n, before = sqrt(dot(v, v, x->n));
    struct projecting p = { x, to, x->value + x->block };
    memcpy(to, v, (size_t)x->n * sizeof *to);
    for (int pass = 0; pass < 2; pass++) {
        tr_pool_run(x->pool, x->count, project_task, &p);
        tr_pool_run(x->pool, (x->n + 511) / 512, subtract_task, &p);
    }
    double norm = sqrt(dot(to, to, x->n));
    if (!(norm > GONE * before))
        return;
    for (int64_t i = 0; i < x->n; i++)
        to[i] /= norm;
    x->count++;
}

static void grow(struct search *x, const double *block, int64_t k)
{
    int64_t first = x->count;
    for (int64_t c = 0; c < k && x->count < x->most; c++)
        add_vector(x, block + c * x->n);
    for (int64_t c = first; c < x->count; c += x->block) {
        int64_t here = tr_min64(x->block, x->count - c);
        apply(x, x->basis + c * x->n, here, false, x->image + c * x->m);
    }
}

static void gram_task(void *ctx, int64_t task, int worker)
{
    const struct search *x = ctx;
    (void)worker;
    for (int64_t k = 0; k <= task; k++)
        x->gram[task * x->count + k] = x->gram[k * x->count + task] =
            dot(x->image + task * x->m, x->image + k * x->m, x->m);
}

static void mix_task(void *ctx, int64_t task, int worker)
{
    const struct search *x = ctx;
    double *v = x->next + task * x->n, *y = x->next_image + task * x->m;
    (void)worker;
    memset(v, 0, (size_t)x->n * sizeof *v);
    memset(y, 0, (size_t)x->m * sizeof *y);
    for (int64_t j = 0; j < x->count; j++) {
        double f = x->mix[task * x->count + j];
        for (int64_t i = 0; i < x->n; i++)
            v[i] += f * x->basis[j * x->n + i];
        for (int64_t i = 0; i < x->m; i++)
            y[i] += f * x->image[j * x->m + i];
    }
}

/* The best vectors of the subspace into `next`, their images into `next_image`, squared values into `value`. */
static enum tr_status rayleigh_ritz(struct search *x)
{
    int64_t k = tr_min64(x->block, x->count);
    tr_pool_run(x->pool, x->count, gram_task, x);
    TR_PASS(eigen_top(x->gram, x->count, k, x->value, x->mix));
    tr_pool_run(x->pool, k, mix_task, x);
    return TR_OK;
}

/* |W^T W v - s^2 v| / s^2 of the first r vectors, the worst against the largest value. */
static bool is_found(struct search *x, int64_t r)
{
    double worst = 0, top = sqrt(fmax(x->value[0], 0));
    int64_t k = tr_min64(x->block, x->count);
    apply(x, x->next_image, k, true, x->basis); /* the basis is not needed any more: the next search begins anew */
    for (int64_t c = 0; c < tr_min64(r, k); c++) {
        double *z = x->basis + c * x->n, s = sqrt(fmax(x->value[c], 0));
        for (int64_t i = 0; i < x->n; i++)
            z[i] -= x->value[c] * x->next[c * x->n + i];
        worst = fmax(worst, s > GONE * top ? sqrt(dot(z, z, x->n)) / s : 0);
    }
    return worst <= ENOUGH * top;
}

static void search_close(struct search *x)
{
    double *const all[] = { x->basis, x->image, x->wide, x->narrow, x->gram, x->value, x->mix, x->next, x->next_image };
    for (size_t i = 0; i < TR_COUNT_OF(all); i++)
        free(all[i]);
}

static enum tr_status search_open(struct search *x, int64_t r)
{
    x->is_wide = x->cols > x->rows;
    x->m = tr_max64(x->rows, x->cols);
    x->n = tr_min64(x->rows, x->cols);
    bool is_exact = x->n <= TR_SVD_EXACT || BLOCKS * (r + SPARE) >= x->n;
    x->block = is_exact ? x->n : r + SPARE;
    x->most = is_exact ? x->n : BLOCKS * x->block;
    int64_t width = width_of(x->block);
    const struct {
        double **p;
        int64_t n;
    } parts[] = {
        { &x->basis, x->most * x->n },   { &x->image, x->most * x->m },   { &x->wide, x->m * width },
        { &x->narrow, x->n * width },    { &x->gram, x->most * x->most }, { &x->value, x->block + x->most },
        { &x->mix, x->block * x->most }, { &x->next, x->block * x->n },   { &x->next_image, x->block * x->m }
    };
    for (size_t i = 0; i < TR_COUNT_OF(parts); i++)
        if (!(*parts[i].p = malloc((size_t)parts[i].n * sizeof(double))))
            return tr_fail(TR_NOMEM,
                           "start of an adapter: no memory for the singular vectors of %" PRId64 " x %" PRId64, x->rows,
                           x->cols);
    return TR_OK;
}

/* The first block: unit vectors where the subspace is everything, else random ones. */
static void first_block(struct search *x)
{
    bool is_exact = x->block == x->n;
    uint64_t key = tr_rng_key(0, "singular vectors", 0);
    for (int64_t c = 0; c < x->block; c++)
        for (int64_t i = 0; i < x->n; i++) {
            float z = c == i;
            if (!is_exact)
                tr_normal_fill(key, (uint64_t)(c * x->n + i), 1, &z, 1);
            x->next[c * x->n + i] = (double)z;
        }
}

static enum tr_status find_subspace(struct search *x, int64_t r)
{
    first_block(x);
    int64_t k = x->block;
    for (int cycle = 0; cycle < TR_SVD_CYCLES; cycle++) {
        x->count = 0;
        grow(x, x->next, k);
        for (int64_t before = 0; x->count < x->most && x->count > before;) {
            int64_t n_last = x->count - before; /* the last block, once through W and back */
            apply(x, x->image + before * x->m, n_last, true, x->next);
            before = x->count;
            grow(x, x->next, n_last);
        }
        TR_PASS(rayleigh_ritz(x));
        k = tr_min64(x->block, x->count);
        if (x->most == x->n || is_found(x, r))
            break;
    }
    return TR_OK;
}

enum tr_status tr_svd_top(const float *w, int64_t rows, int64_t cols, int64_t r, struct tr_pool *pool, float *u,
                          double *s, float *v)
{
    enum tr_status st = TR_OK;
    struct search x = { .w = w, .rows = rows, .cols = cols, .pool = pool };
    TR_TRY(search_open(&x, r));
    TR_TRY(find_subspace(&x, r));
    float *short_side = x.is_wide ? u : v, *long_side = x.is_wide ? v : u;
    for (int64_t c = 0; c < r; c++) { /* where W has a smaller rank there is nothing left */
        bool is_there = c < x.count && x.value[c] > GONE * GONE * x.value[0];
        s[c] = is_there ? sqrt(x.value[c]) : 0;
        for (int64_t i = 0; i < x.n; i++)
            short_side[i * r + c] = is_there ? (float)x.next[c * x.n + i] : 0;
        for (int64_t i = 0; i < x.m; i++)
            long_side[i * r + c] = is_there ? (float)(x.next_image[c * x.m + i] / s[c]) : 0;
    }
out:
    search_close(&x);
    return st;
}

/* ---- QR ---- */

/* Reflections of the first r columns, as rows of h (r, rows): I - 2 h h^T / |h|^2; sign: of the diagonal of R where
 * nothing is reflected. */
static void reflect(const double *h, double square, double *x, int64_t n)
{
    double factor = square > 0 ? 2 * dot(h, x, n) / square : 0;
    for (int64_t i = 0; i < n; i++)
        x[i] -= factor * h[i];
}

static void unit_columns(double *h, double *q, int64_t rows, int64_t r)
{
    for (int64_t k = 0; k < r; k++) {
        double *x = h + k * rows;
        for (int64_t j = 0; j < k; j++)
            reflect(h + j * rows, dot(h + j * rows, h + j * rows, rows), x, rows);
        double below = dot(x + k + 1, x + k + 1, rows - k - 1), norm = sqrt(x[k] * x[k] + below);
        memset(x, 0, (size_t)k * sizeof *x);
        if (below > 0)
            x[k] += x[k] < 0 ? -norm : norm;
        else
            memset(x, 0, (size_t)rows * sizeof *x); /* nothing to reflect */
    }
    for (int64_t k = 0; k < r; k++) {
        double *x = q + k * rows;
        memset(x, 0, (size_t)rows * sizeof *x);
        x[k] = 1;
        for (int64_t j = r - 1; j >= 0; j--)
            reflect(h + j * rows, dot(h + j * rows, h + j * rows, rows), x, rows);
    }
}

enum tr_status tr_qr_top(const float *w, int64_t rows, int64_t cols, int64_t r, struct tr_pool *pool, float *q,
                         float *out_r)
{
    enum tr_status st = TR_OK;
    int64_t width = width_of(r);
    double *h = malloc((size_t)(r * rows) * sizeof *h), *unit = calloc((size_t)(r * rows), sizeof *unit),
           *beside = malloc((size_t)(rows * width) * sizeof *beside), *to = malloc((size_t)(cols * width) * sizeof *to);
    if (!h || !unit || !beside || !to)
        TR_TRY(tr_fail(TR_NOMEM, "start of an adapter: out of memory"));
    for (int64_t k = 0; k < r; k++)
        for (int64_t i = 0; i < rows; i++)
            h[k * rows + i] = (double)w[i * cols + k];
    unit_columns(h, unit, rows, r);
    interleave(unit, r, rows, width, beside);
    multiply(&(struct product){ w, rows, cols, width, beside, to }, true, pool);
    for (int64_t k = 0; k < r; k++) {
        for (int64_t i = 0; i < rows; i++)
            q[i * r + k] = (float)unit[k * rows + i];
        for (int64_t j = 0; j < cols; j++)
            out_r[k * cols + j] = (float)to[j * width + k];
    }
out:
    free(h);
    free(unit);
    free(beside);
    free(to);
    return st;
}
