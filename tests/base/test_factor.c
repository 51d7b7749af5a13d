/* Factors of a matrix: singular triplets are the best approximation, whichever shape and size; QR has the signs of
 * reflections; the number of threads changes no bit. */
#include "base/base.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void must(enum tr_status st)
{
    if (st != TR_OK)
        fail_msg("%s", tr_error_text());
}

static float *matrix(int64_t rows, int64_t cols, uint64_t seed)
{
    float *w = malloc((size_t)(rows * cols) * sizeof *w);
    assert_non_null(w);
    tr_normal_fill(seed, 0, 1, w, (size_t)(rows * cols));
    return w;
}

/* left (rows, k) diag(decay^i) right (k, cols): values that fall, as those of a trained matrix do. */
static float *falling(int64_t rows, int64_t cols, int64_t k, double decay)
{
    float *left = matrix(rows, k, 3), *right = matrix(k, cols, 4), *w = calloc((size_t)(rows * cols), sizeof *w);
    assert_non_null(w);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < k; c++)
            for (int64_t j = 0; j < cols; j++)
                w[i * cols + j] += (float)pow(decay, (double)c) * left[i * k + c] * right[c * cols + j];
    free(left);
    free(right);
    return w;
}

struct svd {
    int64_t rows, cols, r;
    float *u, *v;
    double *s;
};

static struct svd svd_of(const float *w, int64_t rows, int64_t cols, int64_t r, int n_threads)
{
    struct svd x = { rows,
                     cols,
                     r,
                     malloc((size_t)(rows * r) * sizeof(float)),
                     malloc((size_t)(cols * r) * sizeof(float)),
                     malloc((size_t)r * sizeof(double)) };
    struct tr_pool *pool = NULL;
    must(tr_pool_open(n_threads, &pool));
    must(tr_svd_top(w, rows, cols, r, pool, x.u, x.s, x.v));
    tr_pool_close(pool);
    return x;
}

static void svd_free(struct svd *x)
{
    free(x->u);
    free(x->v);
    free(x->s);
}

static double off_unit(const float *a, int64_t n, int64_t r)
{
    double most = 0;
    for (int64_t i = 0; i < r; i++)
        for (int64_t k = 0; k <= i; k++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += (double)a[j * r + i] * (double)a[j * r + k];
            most = fmax(most, fabs(sum - (i == k)));
        }
    return most;
}

/* Unit vectors, values that fall, W v = s u and W^T u = s v. */
static void check_triplets(const float *w, const struct svd *x, double allowed)
{
    double most = 0;
    assert_true(off_unit(x->u, x->rows, x->r) < 1e-5 && off_unit(x->v, x->cols, x->r) < 1e-5);
    for (int64_t c = 0; c < x->r; c++) {
        assert_true(c == 0 || x->s[c] <= x->s[c - 1]);
        for (int64_t i = 0; i < x->rows; i++) {
            double sum = 0;
            for (int64_t j = 0; j < x->cols; j++)
                sum += (double)w[i * x->cols + j] * (double)x->v[j * x->r + c];
            most = fmax(most, fabs(sum - x->s[c] * (double)x->u[i * x->r + c]));
        }
        for (int64_t j = 0; j < x->cols; j++) {
            double sum = 0;
            for (int64_t i = 0; i < x->rows; i++)
                sum += (double)w[i * x->cols + j] * (double)x->u[i * x->r + c];
            most = fmax(most, fabs(sum - x->s[c] * (double)x->v[j * x->r + c]));
        }
    }
    if (!(most <= allowed * x->s[0]))
        fail_msg("%d x %d: triplets are off by %.3g of the largest value", (int)x->rows, (int)x->cols, most / x->s[0]);
}

static void triplets_of_small_matrices_are_exact(void **state)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },   { 1, 7, 1 },     { 7, 1, 1 },    { 2, 2, 2 },
                                         { 5, 3, 3 },   { 3, 9, 2 },     { 40, 24, 24 }, { 24, 40, 5 },
                                         { 48, 48, 8 }, { 130, 70, 16 }, { 384, 20, 4 } };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        float *w = matrix(shapes[i][0], shapes[i][1], 7 + i);
        struct svd x = svd_of(w, shapes[i][0], shapes[i][1], shapes[i][2], 2);
        check_triplets(w, &x, 1e-6);
        if (shapes[i][2] == tr_min64(shapes[i][0], shapes[i][1])) { /* all of them are all of W */
            double squares = 0, values = 0;
            for (int64_t k = 0; k < shapes[i][0] * shapes[i][1]; k++)
                squares += (double)w[k] * (double)w[k];
            for (int64_t c = 0; c < x.r; c++)
                values += x.s[c] * x.s[c];
            assert_true(fabs(squares - values) <= 1e-6 * squares);
        }
        svd_free(&x);
        free(w);
    }
}

/* Larger than TR_SVD_EXACT: the search finds what the whole decomposition of the small factor says. */
static void triplets_of_large_matrices_are_searched(void **state)
{
    static const int64_t shapes[][2] = { { 520, 410 }, { 400, 700 } };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        float *w = falling(shapes[i][0], shapes[i][1], 60, 0.9);
        struct svd x = svd_of(w, shapes[i][0], shapes[i][1], 4, 2);
        check_triplets(w, &x, 2 * 1e-5);
        /* power iteration from the vector of ones finds the same largest value, by another way */
        double *v = malloc((size_t)shapes[i][1] * sizeof *v), norm = 0;
        for (int64_t j = 0; j < shapes[i][1]; j++)
            v[j] = 1;
        for (int turn = 0; turn < 200; turn++) {
            double *z = calloc((size_t)shapes[i][1], sizeof *z);
            for (int64_t k = 0; k < shapes[i][0]; k++) {
                const float *row = w + k * shapes[i][1];
                double sum = 0;
                for (int64_t j = 0; j < shapes[i][1]; j++)
                    sum += (double)row[j] * v[j];
                for (int64_t j = 0; j < shapes[i][1]; j++)
                    z[j] += sum * (double)row[j];
            }
            norm = 0;
            for (int64_t j = 0; j < shapes[i][1]; j++)
                norm += z[j] * z[j];
            for (int64_t j = 0; j < shapes[i][1]; j++)
                v[j] = z[j] / sqrt(norm);
            free(z);
        }
        assert_true(fabs(sqrt(sqrt(norm)) - x.s[0]) <= 1e-4 * x.s[0]);
        free(v);
        svd_free(&x);
        free(w);
    }
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    float *w = falling(430, 400, 50, 0.95);
    struct svd a = svd_of(w, 430, 400, 3, 1), b = svd_of(w, 430, 400, 3, 3);
    assert_memory_equal(a.u, b.u, (size_t)(430 * 3) * sizeof(float));
    assert_memory_equal(a.v, b.v, (size_t)(400 * 3) * sizeof(float));
    svd_free(&a);
    svd_free(&b);
    free(w);
}

/* A matrix of a smaller rank than was asked for: what is not there is zero. */
static void what_a_matrix_lacks_is_zero(void **state)
{
    (void)state;
    float *w = calloc(30 * 20, sizeof *w), *low = falling(30, 20, 2, 0.5);
    assert_non_null(w);
    struct svd none = svd_of(w, 30, 20, 3, 1), two = svd_of(low, 30, 20, 4, 1);
    for (int c = 0; c < 3; c++)
        assert_true(none.s[c] == 0 && none.u[c] == 0 && none.v[c] == 0);
    assert_true(two.s[1] > 0.01 * two.s[0] && two.s[2] <= 1e-6 * two.s[0] && isfinite(two.u[3]));
    svd_free(&none);
    svd_free(&two);
    free(w);
    free(low);
}

static void qr_has_the_signs_of_reflections(void **state)
{
    static const int64_t shapes[][3] = { { 6, 4, 4 }, { 4, 6, 4 }, { 90, 50, 7 }, { 3, 3, 1 }, { 1, 1, 1 } };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        int64_t rows = shapes[i][0], cols = shapes[i][1], r = shapes[i][2];
        float *w = matrix(rows, cols, 90 + i), *q = malloc((size_t)(rows * r) * sizeof *q),
              *t = malloc((size_t)(r * cols) * sizeof *t);
        assert_true(q && t);
        must(tr_qr_top(w, rows, cols, r, NULL, q, t));
        assert_true(off_unit(q, rows, r) < 1e-5);
        for (int64_t k = 0; k < r; k++)
            for (int64_t j = 0; j < k; j++)
                assert_true(fabs((double)t[k * cols + j]) < 1e-5);
        for (int64_t a = 0; a < rows; a++) /* the first r columns of W are Q R already */
            for (int64_t j = 0; j < r; j++) {
                double sum = 0;
                for (int64_t k = 0; k < r; k++)
                    sum += (double)q[a * r + k] * (double)t[k * cols + j];
                assert_true(fabs(sum - (double)w[a * cols + j]) < 1e-5);
            }
        if (rows > 1) /* the first diagonal element has the other sign than what it replaces */
            assert_true(t[0] * w[0] < 0);
        free(w);
        free(q);
        free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(triplets_of_small_matrices_are_exact),
        cmocka_unit_test(triplets_of_large_matrices_are_searched),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(what_a_matrix_lacks_is_zero),
        cmocka_unit_test(qr_has_the_signs_of_reflections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
