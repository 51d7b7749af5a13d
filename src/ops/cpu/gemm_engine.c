/* gemm_engine.c - the choice of matrix-product engine: built in, or a library loaded at run time.
 *
 * No library is linked: dlopen looks up oneDNN's dnnl_sgemm (one C function, the same in 2.x and 3.x) or cblas_sgemm of
 * a CBLAS. The choice is made once, before step 0, and read-only afterwards. Libraries take fp32 products only; 16-bit
 * operands and products inside a task stay built in. AUTO is the built-in kernel wherever it has vectors:
 * measured in alternation with oneDNN 2.6 on two AVX-512 cores, it is 0 to 10 % slower on products of 512 to 3072 rows,
 * and a whole training step is as fast or faster (bench/results/cpu.md). Rejected: a timed probe, which would let the
 * load of the machine decide the bits of a run (libraries change bits with M, N or threads).
 */
#include "ops/cpu/gemm_impl.h"
#include <stdlib.h>
#include <dlfcn.h>

typedef int dnnl_sgemm_fn(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                          int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
typedef void cblas_sgemm_fn(int order, int transa, int transb, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void set_threads_fn(int n);

enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };

/* Set by tr_gemm_select. */
static struct {
    enum tr_gemm_choice engine;
    dnnl_sgemm_fn *dnnl;
    cblas_sgemm_fn *cblas;
    set_threads_fn *set_threads; /* of the library or its OpenMP; NULL: the library sets its own number of threads */
} chosen = { .engine = TR_GEMM_BUILTIN };

/* Function pointers come from dlsym as void *; POSIX promises this copy works. */
static bool load_symbol(void *lib, const char *name, void *fn)
{
    void *p = dlsym(lib, name);
    if (p)
        memcpy(fn, &p, sizeof p);
    return p != NULL;
}

static enum tr_status load_onednn(void)
{
    static const char *const names[] = { "libdnnl.so.2", "libdnnl.so.3", "libdnnl.so" };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (lib && load_symbol(lib, "dnnl_sgemm", &chosen.dnnl)) {
            load_symbol(lib, "omp_set_num_threads", &chosen.set_threads);
            return TR_OK;
        }
    }
    return tr_fail(TR_USAGE, "gemm engine onednn: libdnnl.so not found; install libdnnl2 (Debian, Ubuntu) or onednn");
}

static enum tr_status load_cblas(void)
{
    static const char *const names[] = { "libopenblas.so.0", "libblis.so.4", "libblis.so", "libcblas.so.3" };
    static const char *const set_threads[] = { "openblas_set_num_threads", "bli_thread_set_num_threads" };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (lib && load_symbol(lib, "cblas_sgemm", &chosen.cblas)) {
            for (size_t s = 0; s < TR_COUNT_OF(set_threads) && !chosen.set_threads; s++)
                load_symbol(lib, set_threads[s], &chosen.set_threads);
            return TR_OK;
        }
    }
    return tr_fail(TR_USAGE,
                   "gemm engine cblas: no library with cblas_sgemm found; install libopenblas0 (Debian, Ubuntu)");
}

static enum tr_status load(enum tr_gemm_choice e)
{
    chosen.set_threads = NULL;
    enum tr_status st = e == TR_GEMM_ONEDNN ? load_onednn() : e == TR_GEMM_CBLAS ? load_cblas() : TR_OK;
    chosen.engine = st == TR_OK ? e : TR_GEMM_BUILTIN;
    return st;
}

enum tr_status tr_gemm_select(enum tr_gemm_choice want, enum tr_gemm_choice *got)
{
    enum tr_status st = TR_OK;
    if (want == TR_GEMM_AUTO) {
        const struct tr_gemm_isa *isa[3];
        if (tr_gemm_isas(isa) > 1 || (load(TR_GEMM_ONEDNN) != TR_OK && load(TR_GEMM_CBLAS) != TR_OK))
            st = load(TR_GEMM_BUILTIN);
        tr_error_clear();
    } else {
        st = load(want);
    }
    if (st == TR_OK)
        *got = chosen.engine;
    return st;
}

const char *tr_gemm_name(enum tr_gemm_choice e)
{
    static const char *const names[] = { "auto", "builtin", "onednn", "cblas" };
    return (size_t)e < TR_COUNT_OF(names) ? names[e] : "unknown";
}

static void add_bias(const struct tr_gemm *g)
{
    const float *f = g->bias;
    const uint16_t *h = g->bias;
    for (int64_t i = 0; i < g->m; i++) {
        float *c = (float *)g->c + i * g->ldc;
        for (int64_t j = 0; j < g->n; j++)
            c[j] += g->bias_dtype == TR_BF16  ? tr_f32_of_bf16(h[j])
                    : g->bias_dtype == TR_F16 ? tr_f32_of_f16(h[j])
                                              : f[j];
    }
}

bool tr_gemm_external(const struct tr_gemm *g, int n_threads)
{
    bool is_f32 = g->a_dtype == TR_F32 && g->b_dtype == TR_F32 && g->c_dtype == TR_F32;
    if (chosen.engine == TR_GEMM_BUILTIN || !is_f32 || g->m <= 0 || g->n <= 0 || g->k <= 0)
        return false;
    float beta = g->accumulate ? 1.0f : 0.0f;
    if (chosen.engine == TR_GEMM_CBLAS) {
        int64_t widest = tr_max64(tr_max64(g->m, g->n), tr_max64(tr_max64(g->k, g->lda), tr_max64(g->ldb, g->ldc)));
        if (widest > INT_MAX)
            return false;
    }
    if (chosen.set_threads)
        chosen.set_threads(n_threads);
    if (chosen.engine == TR_GEMM_ONEDNN) {
        if (chosen.dnnl(g->a_t ? 'T' : 'N', g->b_t ? 'T' : 'N', g->m, g->n, g->k, 1.0f, g->a, g->lda, g->b, g->ldb,
                        beta, g->c, g->ldc) != 0)
            return false;
    } else {
        chosen.cblas(CBLAS_ROW_MAJOR, g->a_t ? CBLAS_TRANS : CBLAS_NO_TRANS, g->b_t ? CBLAS_TRANS : CBLAS_NO_TRANS,
                     (int)g->m, (int)g->n, (int)g->k, 1.0f, g->a, (int)g->lda, g->b, (int)g->ldb, beta, g->c,
                     (int)g->ldc);
    }
    if (g->bias)
        add_bias(g);
    return true;
}

double tr_gemm_peak(struct tr_pool *pool, enum tr_dtype dtype)
{
    enum { N = 768 };
    size_t matrix = N * N * sizeof(float), scratch = tr_gemm_scratch(N, N, N, tr_pool_threads(pool));
    char *mem = aligned_alloc(64, tr_round_up(3 * matrix + scratch, 64));
    double best = 0;
    if (!mem)
        return 0;
    float *a = (float *)(void *)mem;
    for (int i = 0; i < 2 * N * N; i++)
        a[i] = (float)(i % 251) * 0.01f - 1.0f; /* not zeroes, on which a product runs faster than on data */
    struct tr_gemm g = {
        .m = N, .n = N, .k = N, .a = a, .b = a + N * N, .c = a + 2 * N * N, .lda = N, .ldb = N, .ldc = N, .b_t = true
    };
    g.a_dtype = g.b_dtype = g.c_dtype = dtype;
    if (dtype != TR_F32) { /* in place: element i of the narrow matrices is written behind where float i was read */
        tr_convert(a, TR_F32, a, dtype, N * N);
        tr_convert(a + N * N, TR_F32, a + N * N, dtype, N * N);
    }
    int64_t begin = tr_clock_us();
    for (int i = 0; i < 5 && (i == 0 || tr_clock_us() - begin < 500000); i++) { /* once where a product takes long */
        int64_t start = tr_clock_us();
        tr_gemm(&g, pool, mem + 3 * matrix);
        double rate = 2.0 * N * N * N / ((double)(tr_clock_us() - start + 1) * 1e-6);
        best = rate > best ? rate : best;
    }
    free(mem);
    return best;
}
