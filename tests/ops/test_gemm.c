/* The matrix product: right within a computed bound, the same bits however it is cut, nothing written outside C. */
#include "ops/cpu/gemm_impl.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { GUARD = 64 };

static void *must_alloc(size_t n)
{
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    return p;
}

static size_t bytes_of(enum tr_dtype d)
{
    return d == TR_F32 ? 4 : 2;
}

/* Exactly rows x ld elements less the tail of the last row, so that a read past the end is seen by ASan. */
static void *fill(int64_t rows, int64_t cols, int64_t ld, enum tr_dtype dtype, uint32_t seed)
{
    size_t n = rows > 0 && cols > 0 ? (size_t)((rows - 1) * ld + cols) : 0;
    void *p = must_alloc(n * bytes_of(dtype));
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        float f = (float)((int32_t)(x >> 8) - (1 << 23)) / (float)(1 << 23);
        tr_convert(&f, TR_F32, (char *)p + i * bytes_of(dtype), dtype, 1);
    }
    return p;
}

static double get(const void *p, enum tr_dtype dtype, int64_t i)
{
    float f;
    tr_convert((const char *)p + (size_t)i * bytes_of(dtype), dtype, &f, TR_F32, 1);
    return (double)f;
}

struct problem {
    struct tr_gemm g;
    size_t c_bytes;
    void *c_before;
};

static struct problem problem_open(int64_t m, int64_t n, int64_t k, bool a_t, bool b_t, enum tr_dtype in,
                                   enum tr_dtype out, bool accumulate, bool has_bias)
{
    struct problem p = { .g = { .m = m, .n = n, .k = k, .a_t = a_t, .b_t = b_t, .accumulate = accumulate } };
    struct tr_gemm *g = &p.g;
    g->a_dtype = g->b_dtype = g->bias_dtype = in;
    g->c_dtype = out;
    g->lda = (a_t ? m : k) + 3;
    g->ldb = (b_t ? k : n) + 5;
    g->ldc = n + 7;
    g->a = fill(a_t ? k : m, a_t ? m : k, g->lda, in, 1);
    g->b = fill(b_t ? n : k, b_t ? k : n, g->ldb, in, 2);
    g->c = fill(m, n, g->ldc, out, 3);
    g->bias = has_bias ? fill(1, n, n, in, 4) : NULL;
    p.c_bytes = m > 0 && n > 0 ? (size_t)((m - 1) * g->ldc + n) * bytes_of(out) : 0;
    p.c_before = must_alloc(p.c_bytes);
    memcpy(p.c_before, g->c, p.c_bytes);
    return p;
}

static void problem_close(struct problem *p)
{
    free((void *)(uintptr_t)p->g.a);
    free((void *)(uintptr_t)p->g.b);
    free((void *)(uintptr_t)p->g.bias);
    free(p->g.c);
    free(p->c_before);
}

/* Runs with scratch of exactly the promised size and a guard behind it. */
static void run(const struct tr_gemm_isa *isa, const struct tr_gemm *g, struct tr_pool *pool)
{
    size_t n = tr_gemm_scratch(g->m, g->n, g->k, tr_pool_threads(pool));
    unsigned char *scratch = aligned_alloc(64, tr_round_up(n + GUARD, 64));
    assert_non_null(scratch);
    memset(scratch, 0xff, n + GUARD); /* NaN: scratch read before it is written shows */
    tr_gemm_builtin(isa, g, pool, scratch);
    for (size_t i = n; i < n + GUARD; i++)
        assert_int_equal(scratch[i], 0xff);
    free(scratch);
}

static double rounding_of(enum tr_dtype d, double size)
{
    return d == TR_BF16 ? ldexp(size, -8) : d == TR_F16 ? ldexp(size, -11) + ldexp(1, -25) : 0;
}

/* Each element against a double sum. An fp32 chain of L additions of products p_i errs by at most L * 2^-24 * sum|p_i|
 * (Higham, gamma_L, first order; 1.01 covers the rest): L = one K block, then one addition a block, c and bias. A bf16
 * result adds half a unit in the last place, 2^-9 relative (2^-8 after a carry), an fp16 one an eighth of that and,
 * below 2^-14, 2^-25. */
static void check_values(const struct problem *p)
{
    const struct tr_gemm *g = &p->g;
    int64_t block = tr_min64(g->k, TR_GEMM_KC), n_blocks = (g->k + TR_GEMM_KC - 1) / TR_GEMM_KC;
    double unit = 1.01 * ldexp(1, -24) * (double)(block + n_blocks + 2);
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            int64_t at = i * g->ldc + j;
            double sum = g->accumulate ? get(p->c_before, g->c_dtype, at) : 0, size = fabs(sum);
            if (g->bias) {
                sum += get(g->bias, g->bias_dtype, j);
                size += fabs(get(g->bias, g->bias_dtype, j));
            }
            for (int64_t k = 0; k < g->k; k++) {
                double product = get(g->a, g->a_dtype, g->a_t ? k * g->lda + i : i * g->lda + k) *
                                 get(g->b, g->b_dtype, g->b_t ? j * g->ldb + k : k * g->ldb + j);
                sum += product;
                size += fabs(product);
            }
            double bound = unit * size + rounding_of(g->c_dtype, fabs(sum) + unit * size);
            double err = fabs(get(g->c, g->c_dtype, at) - sum);
            if (!(err <= bound))
                fail_msg("m %d n %d k %d at (%d, %d): error %g, bound %g", (int)g->m, (int)g->n, (int)g->k, (int)i,
                         (int)j, err, bound);
        }
    }
}

static void check_gaps(const struct problem *p)
{
    size_t e = bytes_of(p->g.c_dtype), row = (size_t)p->g.ldc * e, used = (size_t)p->g.n * e;
    for (int64_t i = 0; i + 1 < p->g.m; i++) {
        size_t gap = (size_t)i * row + used;
        assert_memory_equal((char *)p->g.c + gap, (char *)p->c_before + gap, row - used);
    }
}

static const int64_t shapes[][3] = { { 1, 1, 1 },     { 1, 33, 5 },    { 5, 1, 300 },   { 13, 31, 15 },
                                     { 14, 32, 16 },  { 15, 33, 17 },  { 64, 96, 257 }, { 29, 70, 513 },
                                     { 97, 130, 60 }, { 176, 48, 40 }, { 90, 17, 400 }, { 50, 49, 385 } };

/* Sanitizers slow the tiles twentyfold: there each shape takes every third form, another third at every shape. */
#if defined(__SANITIZE_ADDRESS__)
enum { FORM_STEP = 3 };
#else
enum { FORM_STEP = 1 };
#endif

static void every_form_is_within_the_rounding_bound(void **state)
{
    (void)state;
    const struct tr_gemm_isa *isa[3];
    int n_isa = tr_gemm_isas(isa);
    for (int s = 0; s < n_isa; s++) {
        for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
            const enum tr_dtype half = i % 2 ? TR_F16 : TR_BF16;
            for (int form = (int)i % FORM_STEP; form < 64; form += FORM_STEP) {
                struct problem p =
                    problem_open(shapes[i][0], shapes[i][1], shapes[i][2], form & 1, form & 2, form & 4 ? half : TR_F32,
                                 form & 8 ? half : TR_F32, form & 16, form & 32);
                run(isa[s], &p.g, NULL);
                check_values(&p);
                check_gaps(&p);
                problem_close(&p);
            }
        }
    }
}

/* Forms of two bfloat16 operands by the processor's instruction for pairs, K even and odd. The same bound: a word is
 * two additions. */
static void pairs_are_within_the_rounding_bound(void **state)
{
    (void)state;
    const struct tr_gemm_isa *isa = tr_gemm_isa_of_pairs();
    if (!isa)
        skip();
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        for (int form = (int)i % FORM_STEP; form < 32; form += FORM_STEP) {
            struct problem p = problem_open(shapes[i][0], shapes[i][1], shapes[i][2], form & 1, form & 2, TR_BF16,
                                            form & 4 ? TR_BF16 : TR_F32, form & 8, form & 16);
            run(isa, &p.g, NULL);
            check_values(&p);
            check_gaps(&p);
            problem_close(&p);
        }
    }
}

static void empty_k_gives_zero_c_and_bias(void **state)
{
    (void)state;
    const struct tr_gemm_isa *isa[3];
    tr_gemm_isas(isa);
    for (int form = 0; form < 8; form++) {
        struct problem p = problem_open(3, 5, 0, false, true, TR_F32, form & 1 ? TR_BF16 : TR_F32, form & 2, form & 4);
        run(isa[0], &p.g, NULL);
        check_values(&p);
        check_gaps(&p);
        problem_close(&p);
    }
    struct problem none = problem_open(0, 4, 4, false, false, TR_F32, TR_F32, false, false);
    run(isa[0], &none.g, NULL);
    problem_close(&none);
}

/* Rows [i, i+m) and columns [j, j+n) of the product, alone. */
static struct tr_gemm part_of(const struct tr_gemm *g, int64_t i, int64_t m, int64_t j, int64_t n)
{
    struct tr_gemm part = *g;
    size_t a = bytes_of(g->a_dtype), b = bytes_of(g->b_dtype), c = bytes_of(g->c_dtype);
    part.m = m;
    part.n = n;
    part.a = (const char *)g->a + (size_t)(g->a_t ? i : i * g->lda) * a;
    part.b = (const char *)g->b + (size_t)(g->b_t ? j * g->ldb : j) * b;
    part.c = (char *)g->c + (size_t)(i * g->ldc + j) * c;
    if (g->bias)
        part.bias = (const char *)g->bias + (size_t)j * bytes_of(g->bias_dtype);
    return part;
}

static void expect_same_bits(struct problem *p, const void *want, const char *how)
{
    if (memcmp(p->g.c, want, p->c_bytes) != 0)
        fail_msg("%s changed bits: m %d n %d k %d a_t %d b_t %d", how, (int)p->g.m, (int)p->g.n, (int)p->g.k, p->g.a_t,
                 p->g.b_t);
    memcpy(p->g.c, p->c_before, p->c_bytes);
}

static void check_cuts(struct problem *p, const struct tr_gemm_isa *isa, struct tr_pool *const pool[2])
{
    const struct tr_gemm *g = &p->g;
    void *want = must_alloc(p->c_bytes);
    run(isa, g, NULL);
    memcpy(want, g->c, p->c_bytes);
    memcpy(g->c, p->c_before, p->c_bytes);
    run(isa, g, pool[0]);
    expect_same_bits(p, want, "2 threads");
    run(isa, g, pool[1]);
    expect_same_bits(p, want, "5 threads");
    int64_t cut_m[] = { g->m / 2, 7, g->m - 1 }, cut_n[] = { g->n / 2, 19, g->n - 1 };
    for (size_t c = 0; c < TR_COUNT_OF(cut_m); c++) {
        struct tr_gemm top = part_of(g, 0, cut_m[c], 0, g->n), rest = part_of(g, cut_m[c], g->m - cut_m[c], 0, g->n);
        run(isa, &rest, NULL);
        run(isa, &top, pool[0]);
        expect_same_bits(p, want, "a split of M");
        struct tr_gemm left = part_of(g, 0, g->m, 0, cut_n[c]), right = part_of(g, 0, g->m, cut_n[c], g->n - cut_n[c]);
        run(isa, &right, pool[0]);
        run(isa, &left, NULL);
        expect_same_bits(p, want, "a split of N");
    }
    free(want);
}

static void threads_and_cuts_of_m_and_n_never_change_bits(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        bool has_bias;
    } cut_shapes[] = { { 200, 256, 600, true },
                       { 61, 2200, 530, true },
                       { 350, 90, 256, true },
                       { 33, 40, 4700, true },
                       { 190, 70, 400, false } }; /* parts of few columns are computed as C^T, the whole is not */
    const struct tr_gemm_isa *isa[3];
    const struct tr_gemm_isa *pairs = tr_gemm_isa_of_pairs();
    int n_isa = tr_gemm_isas(isa);
    struct tr_pool *pool[2];
    assert_int_equal(tr_pool_open(2, &pool[0]), TR_OK);
    assert_int_equal(tr_pool_open(5, &pool[1]), TR_OK);
    for (int s = 0; s < n_isa + (pairs != NULL); s++) {
        for (size_t i = 0; i < TR_COUNT_OF(cut_shapes); i++) {
            for (int form = (int)i % FORM_STEP; form < 8; form += FORM_STEP) {
                struct problem p = problem_open(cut_shapes[i].m, cut_shapes[i].n, cut_shapes[i].k, form & 1, form & 2,
                                                s < n_isa ? TR_F32 : TR_BF16, form & 4 ? TR_BF16 : TR_F32, true,
                                                cut_shapes[i].has_bias);
                check_cuts(&p, s < n_isa ? isa[s] : pairs, pool);
                problem_close(&p);
            }
        }
    }
    tr_pool_close(pool[0]);
    tr_pool_close(pool[1]);
}

/* Partial sums of a bf16 C live in bounded scratch: rows and K beyond one chunk of it. */
static void bf16_sums_over_several_chunks_equal_the_rounded_fp32_sums(void **state)
{
    (void)state;
    const struct tr_gemm_isa *isa[3];
    tr_gemm_isas(isa);
    struct tr_pool *pool;
    assert_int_equal(tr_pool_open(2, &pool), TR_OK);
    static const int64_t large[][3] = { { 1100, 2100, 20 }, { 140, 1030, 300 }, { 16, 1100, 4000 } };
    for (size_t i = 0; i < TR_COUNT_OF(large); i++) {
        struct problem f =
            problem_open(large[i][0], large[i][1], large[i][2], false, true, TR_F32, TR_F32, false, false);
        struct problem h =
            problem_open(large[i][0], large[i][1], large[i][2], false, true, TR_F32, TR_BF16, false, false);
        run(isa[0], &f.g, pool);
        for (int threads = 0; threads < 2; threads++) {
            run(isa[0], &h.g, threads ? pool : NULL);
            for (int64_t r = 0; r < f.g.m; r++)
                for (int64_t j = 0; j < f.g.n; j++)
                    assert_int_equal(((uint16_t *)h.g.c)[r * h.g.ldc + j],
                                     tr_bf16_of_f32(((float *)f.g.c)[r * f.g.ldc + j]));
        }
        problem_close(&f);
        problem_close(&h);
    }
    tr_pool_close(pool);
}

static void instruction_sets_with_fma_give_the_same_bits(void **state)
{
    (void)state;
    const struct tr_gemm_isa *isa[3];
    if (tr_gemm_isas(isa) < 3)
        skip();
    for (int form = 0; form < 16; form++) {
        struct problem p = problem_open(83, 101, 700, form & 1, form & 2, form & 4 ? TR_BF16 : TR_F32,
                                        form & 8 ? TR_BF16 : TR_F32, true, true);
        void *want = must_alloc(p.c_bytes);
        run(isa[0], &p.g, NULL);
        memcpy(want, p.g.c, p.c_bytes);
        memcpy(p.g.c, p.c_before, p.c_bytes);
        run(isa[1], &p.g, NULL);
        expect_same_bits(&p, want, isa[1]->name);
        free(want);
        problem_close(&p);
    }
}

static void a_nan_stays_in_its_row_or_column(void **state)
{
    (void)state;
    const struct tr_gemm_isa *isa[3];
    int n_isa = tr_gemm_isas(isa);
    for (int s = 0; s < n_isa; s++) {
        for (int form = 0; form < 8; form++) {
            struct problem p =
                problem_open(30, 45, 20, form & 1, form & 2, TR_F32, form & 4 ? TR_BF16 : TR_F32, false, false);
            ((float *)(uintptr_t)p.g.a)[p.g.a_t ? 29 : 29 * p.g.lda] = NAN;
            ((float *)(uintptr_t)p.g.b)[p.g.b_t ? 44 * p.g.ldb : 44] = NAN;
            run(isa[s], &p.g, NULL);
            for (int64_t i = 0; i < p.g.m; i++)
                for (int64_t j = 0; j < p.g.n; j++)
                    assert_int_equal(isnan(get(p.g.c, p.g.c_dtype, i * p.g.ldc + j)), i == 29 || j == 44);
            problem_close(&p);
        }
    }
}

static void engines_agree_or_name_the_package_to_install(void **state)
{
    (void)state;
    static const enum tr_gemm_choice engines[] = { TR_GEMM_BUILTIN, TR_GEMM_ONEDNN, TR_GEMM_CBLAS, TR_GEMM_AUTO };
    struct tr_pool *pool;
    assert_int_equal(tr_pool_open(2, &pool), TR_OK);
    for (size_t e = 0; e < TR_COUNT_OF(engines); e++) {
        enum tr_gemm_choice got = TR_GEMM_AUTO;
        if (tr_gemm_select(engines[e], &got) != TR_OK) {
            assert_true(engines[e] == TR_GEMM_ONEDNN || engines[e] == TR_GEMM_CBLAS);
            assert_non_null(strstr(tr_error_text(), "install"));
            continue;
        }
        assert_int_not_equal(got, TR_GEMM_AUTO);
        assert_true(engines[e] == TR_GEMM_AUTO || got == engines[e]);
        for (int form = 0; form < 8; form++) {
            struct problem p = problem_open(37, 65, 40, form & 1, form & 2, TR_F32, TR_F32, form & 4, true);
            void *scratch = must_alloc(tr_gemm_scratch(p.g.m, p.g.n, p.g.k, 2));
            tr_gemm(&p.g, pool, scratch);
            check_values(&p);
            check_gaps(&p);
            free(scratch);
            problem_close(&p);
        }
    }
    tr_pool_close(pool);
    assert_string_equal(tr_gemm_name(TR_GEMM_ONEDNN), "onednn");
}

static void scratch_is_bounded_and_serves_smaller_shapes(void **state)
{
    (void)state;
    assert_true(tr_gemm_scratch(1 << 20, 1 << 20, 1 << 20, 1) < (size_t)3 << 20);
    assert_true(tr_gemm_scratch(1 << 20, 1 << 20, 1 << 20, 16) < (size_t)48 << 20);
    for (int64_t n = 1; n < 3000; n += 37) {
        for (int threads = 1; threads < 4; threads++) {
            size_t more = tr_gemm_scratch(1200, n + 37, 5000, threads);
            assert_true(tr_gemm_scratch(1200, n, 5000, threads) <= more);
            assert_true(tr_gemm_scratch(900, n + 37, 5000, threads) <= more);
            assert_true(tr_gemm_scratch(1200, n + 37, 3000, threads) <= more);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_is_within_the_rounding_bound),
        cmocka_unit_test(pairs_are_within_the_rounding_bound),
        cmocka_unit_test(empty_k_gives_zero_c_and_bias),
        cmocka_unit_test(threads_and_cuts_of_m_and_n_never_change_bits),
        cmocka_unit_test(bf16_sums_over_several_chunks_equal_the_rounded_fp32_sums),
        cmocka_unit_test(instruction_sets_with_fma_give_the_same_bits),
        cmocka_unit_test(a_nan_stays_in_its_row_or_column),
        cmocka_unit_test(engines_agree_or_name_the_package_to_install),
        cmocka_unit_test(scratch_is_bounded_and_serves_smaller_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
