/* gemm.cu - matrix products by cuBLASLt, fp32 accumulation, and the three ops of a linear layer.
 *
 * The plan of a shape (descriptors and algorithm) is made at its first call and kept. Timing the first few algorithms
 * of the library's list on the real operands chooses one: the library's own ranking would make a step 3 % slower. The
 * choice is stored on disk (gemm_memory.h), so that the next run has the same bits. Where it cannot be stored and the
 * run must be reproducible, the first of the list is used. Only calls that do not read their output can be timed; a
 * call that adds to its output uses the algorithm of the call that overwrites it. cuBLASLt is column-major: a row-major
 * C = A B is its C^T = B^T A^T. fp32 stays fp32 (no tf32). A product for which the library has no algorithm (unaligned
 * pitches or addresses) runs on a plain kernel. A product of 16-bit matrices whose rows are not whole packs of 16
 * bytes, though their pitch is, is cut where the whole packs end: the library's fast kernels want whole packs.
 */
#include "ops/cuda/library.cuh"
#include <string.h>

enum { MAX_TRIED = 8, TIMED_RUNS = 3, WORKSPACE_ALIGN = 256 };

static const float LONG_MS = 2.0f;
static const size_t WORKSPACE_BYTES = TR_CUDA_WORKSPACE - WORKSPACE_ALIGN;

static cudaDataType_t type_of(enum tr_dtype d)
{
    return d == TR_BF16   ? CUDA_R_16BF
           : d == TR_F16  ? CUDA_R_16F
           : d == TR_E4M3 ? CUDA_R_8F_E4M3
           : d == TR_E5M2 ? CUDA_R_8F_E5M2
                          : CUDA_R_32F;
}

static uint32_t alignment_of(const void *p)
{
    uint32_t a = 256;
    while ((uintptr_t)p % a != 0)
        a /= 2;
    return a;
}

/* One output element for each thread: for the shapes that cuBLASLt refuses, which are small. Rows are along x of the
 * grid, because y ends at 65535. */
template <typename A, typename B, typename U> __global__ void plain_kernel(struct cuda_gemm g)
{
    int64_t col = (int64_t)blockIdx.y * 32 + threadIdx.x, row = (int64_t)blockIdx.x * 8 + threadIdx.y;
    const A *a = (const A *)g.a;
    const B *b = (const B *)g.b;
    float sum = 0;
    if (row >= g.m || col >= g.n)
        return;
    for (int64_t k = 0; k < g.k; k++)
        sum +=
            to_f32(a[g.a_t ? k * g.lda + row : row * g.lda + k]) * to_f32(b[g.b_t ? col * g.ldb + k : k * g.ldb + col]);
    if (g.scale_a)
        sum *= *g.scale_a * *g.scale_b;
    if (g.beta != 0.0f)
        sum += g.beta * to_f32(((const U *)(g.d ? g.d : g.c))[row * g.ldd + col]);
    if (g.bias)
        sum += to_f32(((const U *)g.bias)[col]);
    ((U *)g.c)[row * g.ldc + col] = from_f32<U>(sum);
}

template <typename A, typename B> static void run_plain_of(const struct tr_call *c, const struct cuda_gemm *g)
{
    dim3 grid((unsigned)ceil_div(g->m, 8), (unsigned)ceil_div(g->n, 32)), block(32, 8);
    struct tr_view out = {};
    out.dtype = g->c_dtype;
    with_type(out, [&](auto u) { plain_kernel<A, B, decltype(u)><<<grid, block, 0, stream_of(c)>>>(*g); });
    check_launch(c);
}

static void run_plain(const struct tr_call *c, const struct cuda_gemm *g)
{
    struct tr_view a = {};
    a.dtype = g->a_dtype;
    TR_BUG_ON(g->gelu_aux != NULL);
    if (g->a_is_e5m2)
        run_plain_of<__nv_fp8_e5m2, __nv_fp8_e4m3>(c, g);
    else if (g->b_is_e5m2)
        run_plain_of<__nv_fp8_e4m3, __nv_fp8_e5m2>(c, g);
    else if (g->a_dtype == TR_E4M3)
        run_plain_of<__nv_fp8_e4m3, __nv_fp8_e4m3>(c, g);
    else
        with_type(a, [&](auto t) { run_plain_of<decltype(t), decltype(t)>(c, g); });
}

struct gemm_call {
    const struct tr_call *c;
    struct tr_cuda_library *l;
    const struct cuda_gemm *g;
    void *workspace;
    bool is_ok;
};

static void fail(struct gemm_call *x, cublasStatus_t st, const char *what)
{
    const struct cuda_gemm *g = x->g;
    if (st == CUBLAS_STATUS_SUCCESS)
        return;
    x->is_ok = false;
    tr_device_note(x->c->dev, TR_IO, "device cuda: op %s: %s of a %" PRId64 " x %" PRId64 " x %" PRId64 " product: %s",
                   tr_op_row(x->c->op)->name, what, g->m, g->n, g->k, x->l->fn.cublasLtGetStatusString(st));
}

static void set(struct gemm_call *x, cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v, size_t n)
{
    fail(x, x->l->fn.cublasLtMatmulDescSetAttribute(d, a, v, n), "describing");
}

/* Everything a plan depends on; of a pointer, only its alignment. */
static void key_of(const struct cuda_gemm *g, uint64_t key[6])
{
    const void *all[] = { g->a, g->b, g->c, g->d, g->bias, g->gelu_aux };
    uint64_t bits = 0;
    for (size_t i = 0; i < TR_COUNT_OF(all); i++)
        bits = bits * 512 + (all[i] ? alignment_of(all[i]) : 0);
    uint64_t flags = (uint64_t)g->a_t | (uint64_t)g->b_t << 1 | (uint64_t)(g->a_dtype == TR_BF16) << 2 |
                     (uint64_t)(g->c_dtype == TR_BF16) << 3 | (uint64_t)(g->bias != NULL) << 4 |
                     (uint64_t)(g->gelu_aux != NULL) << 5 | (uint64_t)g->is_dgelu << 6 |
                     (uint64_t)(g->a_dtype == TR_E4M3) << 7;
    key[0] = (uint64_t)g->m << 32 | (uint64_t)g->n;
    key[1] = (uint64_t)g->k << 8 | flags;
    key[2] = (uint64_t)g->lda << 32 | (uint64_t)g->ldb;
    key[3] = (uint64_t)g->ldc << 32 | (uint64_t)g->ldd;
    key[4] = bits;
    key[5] = (uint64_t)g->ld_aux << 1 | (uint64_t)g->is_exact | (uint64_t)g->a_is_e5m2 << 60 |
             (uint64_t)g->b_is_e5m2 << 61 | (uint64_t)(g->a_dtype == TR_F16) << 62 |
             (uint64_t)(g->c_dtype == TR_F16) << 63;
}

static cublasLtMatrixLayout_t layout(struct gemm_call *x, enum tr_dtype t, int64_t rows, int64_t cols, int64_t ld)
{
    cublasLtMatrixLayout_t m = NULL;
    fail(x, x->l->fn.cublasLtMatrixLayoutCreate(&m, type_of(t), (uint64_t)rows, (uint64_t)cols, ld), "describing");
    return m;
}

static void set_epilogue(struct gemm_call *x, cublasLtMatmulDesc_t desc)
{
    const struct cuda_gemm *g = x->g;
    cublasLtEpilogue_t e = CUBLASLT_EPILOGUE_DEFAULT;
    if (g->gelu_aux && g->is_dgelu)
        e = CUBLASLT_EPILOGUE_DGELU;
    else if (g->gelu_aux)
        e = g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    else if (g->bias)
        e = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t t = type_of(g->c_dtype);
    set(x, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e);
    if (g->bias) {
        set(x, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &t, sizeof t);
        set(x, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    }
    if (g->gelu_aux) {
        set(x, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->gelu_aux, sizeof g->gelu_aux);
        set(x, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->ld_aux, sizeof g->ld_aux);
    }
    if (g->scale_a) {
        set(x, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->scale_b, sizeof g->scale_b);
        set(x, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->scale_a, sizeof g->scale_a);
    }
}

static void describe(struct gemm_call *x, struct lt_plan *p)
{
    const struct cuda_gemm *g = x->g;
    cublasOperation_t op_a = g->b_t ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = g->a_t ? CUBLAS_OP_T : CUBLAS_OP_N;
    fail(x, x->l->fn.cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing");
    set(x, p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    set(x, p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (g->a_dtype == TR_E4M3) {
        int8_t is_fast = !g->is_exact;
        set(x, p->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &is_fast, sizeof is_fast);
    }
    p->a = layout(x, g->b_is_e5m2 ? TR_E5M2 : g->a_dtype, g->b_t ? g->k : g->n, g->b_t ? g->n : g->k, g->ldb);
    p->b = layout(x, g->a_is_e5m2 ? TR_E5M2 : g->a_dtype, g->a_t ? g->m : g->k, g->a_t ? g->k : g->m, g->lda);
    p->c = layout(x, g->c_dtype, g->n, g->m, g->ldd);
    p->d = layout(x, g->c_dtype, g->n, g->m, g->ldc);
}

static cublasStatus_t run(struct gemm_call *x, const struct lt_plan *p, const cublasLtMatmulAlgo_t *algo)
{
    const struct cuda_gemm *g = x->g;
    const float one = 1.0f;
    return x->l->fn.cublasLtMatmul(x->l->lt, p->desc, &one, g->b, p->a, g->a, p->b, &g->beta, g->d ? g->d : g->c, p->c,
                                   g->c, p->d, algo, x->workspace, WORKSPACE_BYTES, stream_of(x->c));
}

static int candidates(struct gemm_call *x, const struct lt_plan *p, cublasLtMatmulHeuristicResult_t *out)
{
    const struct cuda_gemm *g = x->g;
    cublasLtMatmulPreference_t pref = NULL;
    size_t bytes = WORKSPACE_BYTES;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* parts of K are added in fp32 */
    int n = 0;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *p;
    } align[] = { { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, g->b },
                  { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, g->a },
                  { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, g->d ? g->d : g->c },
                  { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, g->c } };
    fail(x, x->l->fn.cublasLtMatmulPreferenceCreate(&pref), "ranking");
    fail(x,
         x->l->fn.cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                       sizeof bytes),
         "ranking");
    fail(x,
         x->l->fn.cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums,
                                                       sizeof sums),
         "ranking");
    for (size_t i = 0; i < TR_COUNT_OF(align); i++) {
        uint32_t a = alignment_of(align[i].p);
        fail(x, x->l->fn.cublasLtMatmulPreferenceSetAttribute(pref, align[i].name, &a, sizeof a), "ranking");
    }
    cublasStatus_t st =
        x->l->fn.cublasLtMatmulAlgoGetHeuristic(x->l->lt, p->desc, p->a, p->b, p->c, p->d, pref, MAX_TRIED, out, &n);
    if (pref)
        (void)x->l->fn.cublasLtMatmulPreferenceDestroy(pref);
    return st == CUBLAS_STATUS_SUCCESS ? n : 0;
}

/* The fastest of a few runs; one run is enough where it takes long or is much slower than the best one known. */
static float time_of(struct gemm_call *x, const struct lt_plan *p, const cublasLtMatmulAlgo_t *algo, float known_ms)
{
    float best = 1e30f;
    for (int i = 0; i <= TIMED_RUNS; i++) { /* the first warms up */
        float ms = 1e30f;
        (void)cudaEventRecord(x->l->start, stream_of(x->c));
        if (run(x, p, algo) != CUBLAS_STATUS_SUCCESS)
            return 1e30f;
        (void)cudaEventRecord(x->l->stop, stream_of(x->c));
        if (cudaEventSynchronize(x->l->stop) != cudaSuccess ||
            cudaEventElapsedTime(&ms, x->l->start, x->l->stop) != cudaSuccess)
            return 1e30f;
        if (i > 0 && ms < best)
            best = ms;
        if (i > 0 && (ms > LONG_MS || best > 1.1f * known_ms))
            break;
    }
    return best;
}

/* Can the product run twice with the same result? Not when it adds to its own output. */
static bool is_repeatable(const struct cuda_gemm *g)
{
    return g->beta == 0.0f || (g->d && g->d != g->c);
}

static void choose(struct gemm_call *x, struct lt_plan *p)
{
    const struct tr_gemm_record *known = tr_gemm_memory_find(&x->l->memory, p->key);
    static_assert(sizeof known->algo == sizeof p->algo, "an algorithm is eight words");
    if (known) {
        memcpy(&p->algo, known->algo, sizeof p->algo);
        p->is_tuned = true;
        return;
    }
    cublasLtMatmulHeuristicResult_t found[MAX_TRIED];
    int n = candidates(x, p, found), best = -1;
    bool may_choose = x->l->may_choose || tr_gemm_memory_is_open(&x->l->memory);
    bool may_time = may_choose && is_repeatable(x->g) && x->g->m * x->g->n * x->g->k >= (int64_t)1 << 24;
    float best_ms = 1e30f;
    for (int i = 0; i < n; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        float ms = may_time ? time_of(x, p, &found[i].algo, best_ms) : (float)i;
        if (best < 0 || ms < best_ms)
            best = i, best_ms = ms;
    }
    p->is_plain = best < 0 || (may_time && best_ms >= 1e30f);
    if (!p->is_plain)
        p->algo = found[best].algo;
    p->is_tuned = is_repeatable(x->g);
    if (may_time && !p->is_plain) {
        uint64_t algo[TR_GEMM_ALGO];
        memcpy(algo, &p->algo, sizeof algo);
        const struct tr_gemm_record *holds = tr_gemm_memory_add(&x->l->memory, p->key, algo);
        if (holds) /* another rank may have stored its choice first */
            memcpy(&p->algo, holds->algo, sizeof p->algo);
    }
}

static struct lt_plan *find(struct gemm_call *x)
{
    uint64_t key[6];
    struct tr_cuda_library *l = x->l;
    key_of(x->g, key);
    for (int i = 0; i < l->n_gemms; i++)
        if (memcmp(l->gemm[i].key, key, sizeof key) == 0) {
            if (!l->gemm[i].is_tuned && is_repeatable(x->g))
                choose(x, &l->gemm[i]);
            return &l->gemm[i];
        }
    if (l->n_gemms == MAX_GEMMS) {
        fail(x, CUBLAS_STATUS_ALLOC_FAILED, "remembering");
        return NULL;
    }
    struct lt_plan *p = &l->gemm[l->n_gemms++];
    memcpy(p->key, key, sizeof key);
    describe(x, p);
    if (x->is_ok)
        set_epilogue(x, p->desc);
    if (x->is_ok)
        choose(x, p);
    return p;
}

static bool run_product(const struct tr_call *c, const struct cuda_gemm *g, void *workspace)
{
    void *aligned = (void *)tr_round_up((size_t)workspace, WORKSPACE_ALIGN);
    struct gemm_call x = { c, library_of(c), g, aligned, true };
    if (g->m == 0 || g->n == 0 || g->k == 0)
        return true;
    struct lt_plan *p = find(&x);
    if (x.is_ok && p->is_plain) {
        if (!g->gelu_aux)
            run_plain(c, g);
        return !g->gelu_aux;
    }
    if (x.is_ok && (g->bias || g->gelu_aux || g->scale_a))
        set_epilogue(&x, p->desc); /* pointers differ from call to call */
    cublasStatus_t st = x.is_ok ? run(&x, p, &p->algo) : CUBLAS_STATUS_SUCCESS;
    if (st == CUBLAS_STATUS_NOT_SUPPORTED || st == CUBLAS_STATUS_INVALID_VALUE) { /* nothing was started */
        p->is_plain = true;
        if (!g->gelu_aux)
            run_plain(c, g);
        return !g->gelu_aux;
    }
    fail(&x, st, "running");
    return true;
}

/* ---- rows that end inside a pack of 16 bytes ---- */

static const void *element(const void *p, int64_t i, enum tr_dtype t)
{
    return p ? (const char *)p + (size_t)i * tr_dtype_bytes(t) : NULL;
}

/* Elements past the last whole pack of a row; 0: there are none, or the pitch allows no packs. */
static int64_t past_packs(int64_t n, int64_t ld, enum tr_dtype t)
{
    int64_t pack = 16 / (int64_t)tr_dtype_bytes(t);
    return ld % pack == 0 && n > pack ? n % pack : 0;
}

/* Columns [first, first + n) of C. */
static struct cuda_gemm columns_of(struct cuda_gemm g, int64_t first, int64_t n)
{
    g.n = n;
    g.b = element(g.b, g.b_t ? first * g.ldb : first, g.a_dtype);
    g.c = (void *)element(g.c, first, g.c_dtype);
    g.d = element(g.d, first, g.c_dtype);
    g.bias = element(g.bias, first, g.c_dtype);
    return g;
}

static struct cuda_gemm rows_of(struct cuda_gemm g, int64_t first, int64_t n)
{
    g.m = n;
    g.a = element(g.a, g.a_t ? first : first * g.lda, g.a_dtype);
    g.c = (void *)element(g.c, first * g.ldc, g.c_dtype);
    g.d = element(g.d, first * g.ldd, g.c_dtype);
    return g;
}

/* The end of K first, so that the product of the rest adds to it in fp32: only the small part is rounded once more. */
static bool run_cut_k(const struct tr_call *c, const struct cuda_gemm *g, int64_t first, void *workspace)
{
    struct cuda_gemm end = *g, rest = *g;
    end.k = g->k - first;
    end.a = element(g->a, g->a_t ? first * g->lda : first, g->a_dtype);
    end.b = element(g->b, g->b_t ? first : first * g->ldb, g->a_dtype);
    end.bias = NULL;
    rest.k = first, rest.d = NULL, rest.ldd = rest.ldc, rest.beta = 0.0f;
    if (is_repeatable(g)) { /* the rest's algorithm is chosen while it may still overwrite C */
        struct gemm_call x = { c, library_of(c), &rest, (void *)tr_round_up((size_t)workspace, WORKSPACE_ALIGN), true };
        (void)find(&x);
    }
    rest.beta = 1.0f;
    return tr_cuda_gemm(c, &end, workspace) && tr_cuda_gemm(c, &rest, workspace);
}

bool tr_cuda_gemm(const struct tr_call *c, const struct cuda_gemm *g, void *workspace)
{
    bool may_cut = (g->a_dtype == TR_BF16 || g->a_dtype == TR_F16) && !g->gelu_aux;
    int64_t m = g->a_t ? past_packs(g->m, g->lda, g->a_dtype) : 0;
    int64_t n = tr_max64(past_packs(g->n, g->ldc, g->c_dtype), g->b_t ? 0 : past_packs(g->n, g->ldb, g->a_dtype));
    int64_t k =
        tr_max64(g->a_t ? 0 : past_packs(g->k, g->lda, g->a_dtype), g->b_t ? past_packs(g->k, g->ldb, g->a_dtype) : 0);
    if (!may_cut || (m == 0 && n == 0 && k == 0))
        return run_product(c, g, workspace);
    if (m == 0 && n == 0)
        return run_cut_k(c, g, g->k - k, workspace);
    struct cuda_gemm whole = m > 0 ? rows_of(*g, 0, g->m - m) : columns_of(*g, 0, g->n - n);
    struct cuda_gemm rest = m > 0 ? rows_of(*g, g->m - m, m) : columns_of(*g, g->n - n, n);
    return tr_cuda_gemm(c, &whole, workspace) && tr_cuda_gemm(c, &rest, workspace);
}

/* ---- the linear layer ---- */

/* y (N,O) = x (N,I) W^T + b; W is (O,I), or (I,O) when stored so. */
static struct cuda_gemm forward_of(const struct tr_call *c, const struct tr_view &y)
{
    const struct tr_view &x = c->in[0], &w = c->in[1];
    struct cuda_gemm g = {};
    g.m = y.rows, g.n = y.cols, g.k = x.cols;
    g.a = x.data, g.lda = x.ld, g.a_dtype = x.dtype;
    g.b = w.data, g.ldb = w.ld, g.b_t = !c->attr.weight_is_in_out;
    g.c = y.data, g.ldc = g.ldd = y.ld, g.c_dtype = y.dtype;
    g.bias = c->in[2].data;
    return g;
}

static struct cuda_gemm dx_of(const struct tr_call *c)
{
    const struct tr_view &dy = c->in[0], &w = c->in[1], &dx = c->out[0];
    struct cuda_gemm g = {};
    g.m = dx.rows, g.n = dx.cols, g.k = dy.cols;
    g.a = dy.data, g.lda = dy.ld, g.a_dtype = dy.dtype;
    g.b = w.data, g.ldb = w.ld, g.b_t = c->attr.weight_is_in_out;
    g.c = dx.data, g.ldc = g.ldd = dx.ld, g.c_dtype = dx.dtype;
    return g;
}

static void set_addend(struct cuda_gemm *g, const struct tr_view &addend)
{
    if (addend.data)
        g->d = addend.data, g->ldd = addend.ld, g->beta = 1.0f;
}

void tr_cuda_LINEAR(const struct tr_call *c)
{
    struct cuda_gemm g = forward_of(c, c->out[0]);
    (void)tr_cuda_gemm(c, &g, c->scratch);
}

void tr_cuda_LINEAR_ADD(const struct tr_call *c)
{
    struct cuda_gemm g = forward_of(c, c->out[0]);
    set_addend(&g, c->in[3]);
    (void)tr_cuda_gemm(c, &g, c->scratch);
}

void tr_cuda_LINEAR_DX(const struct tr_call *c)
{
    struct cuda_gemm g = dx_of(c);
    set_addend(&g, c->in[2]);
    (void)tr_cuda_gemm(c, &g, c->scratch);
}

/* The product's own epilogue knows gelu by tanh, in 16 bits, on rows of whole 16 bytes. */
static bool has_epilogue(const struct tr_call *c, const struct tr_view &aux)
{
    return c->attr.act == TR_ACT_GELU_TANH && is_half(aux) && aux.ld % 8 == 0 && aux.cols % 8 == 0 &&
           (uintptr_t)aux.data % 16 == 0;
}

void tr_cuda_LINEAR_ACT(const struct tr_call *c)
{
    struct cuda_gemm g = forward_of(c, c->out[0]);
    g.gelu_aux = c->out[1].data, g.ld_aux = c->out[1].ld;
    if (has_epilogue(c, c->out[1]) && tr_cuda_gemm(c, &g, c->scratch))
        return;
    g = forward_of(c, c->out[1]);
    (void)tr_cuda_gemm(c, &g, c->scratch);
    struct tr_call act = *c;
    act.in[0] = c->out[1];
    tr_cuda_ACT(&act);
}

void tr_cuda_LINEAR_DX_ACT(const struct tr_call *c)
{
    struct cuda_gemm g = dx_of(c);
    g.gelu_aux = c->in[2].data, g.ld_aux = c->in[2].ld, g.is_dgelu = true;
    if (has_epilogue(c, c->in[2]) && tr_cuda_gemm(c, &g, c->scratch))
        return;
    g = dx_of(c);
    (void)tr_cuda_gemm(c, &g, c->scratch);
    struct tr_call act = *c;
    act.in[0] = c->out[0], act.in[1] = c->in[2];
    tr_cuda_ACT_BWD(&act);
}

void tr_cuda_LINEAR_DW(const struct tr_call *c)
{
    const struct tr_view &dy = c->in[0], &x = c->in[1], &dw = c->out[0];
    const struct tr_view &a = c->attr.weight_is_in_out ? x : dy, &b = c->attr.weight_is_in_out ? dy : x;
    struct cuda_gemm g = {};
    g.m = dw.rows, g.n = dw.cols, g.k = x.rows;
    g.a = a.data, g.lda = a.ld, g.a_dtype = a.dtype, g.a_t = true;
    g.b = b.data, g.ldb = b.ld;
    g.c = dw.data, g.ldc = g.ldd = dw.ld, g.c_dtype = dw.dtype, g.beta = c->accumulate[0] ? 1.0f : 0.0f;
    if (dw.data)
        (void)tr_cuda_gemm(c, &g, c->scratch);
    if (c->out[1].data)
        tr_cuda_colsum(c, dy, c->out[1], c->accumulate[1], 1.0f, (char *)c->scratch + TR_CUDA_WORKSPACE);
}
