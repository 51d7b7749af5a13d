/* gemm.c - the built-in matrix product: packing, blocking and the split over threads, in the structure of
 * GotoBLAS/BLIS.
 *
 * For each chunk of N (and of K, where B's packed chunk would outgrow its buffer) all threads pack B into shared
 * panels, then each task packs its own block of A and multiplies. Invariant: an element is the sum, in order of K, of
 * chains of TR_GEMM_KC fused multiply-adds; chunks, blocks and tasks decide only who computes it and when. Partial sums
 * are fp32: in C itself, or in scratch where C is bf16. Rejected: splitting K over threads (order would follow the
 * thread count), private copies of B (packs the larger operand once a thread).
 */
#include "ops/cpu/gemm_impl.h"
#include "base/banned.h"

enum {
    KC = TR_GEMM_KC,
    MC = 168,                    /* rows of A a task packs at once: 252 KiB, well inside a second-level cache */
    NC_SERIAL = 768,             /* columns of B packed at once */
    NC_SHARED = 2048,            /* the same for many threads, */
    B_FLOATS_SHARED = 4 << 20,   /* of as much K as 16 MiB hold */
    SUM_FLOATS_SERIAL = 1 << 17, /* partial sums of a bf16 C */
    SUM_FLOATS_SHARED = 2 << 20,
    /* Packing an operand does not pay when few tiles read it. */
    N_IN_PLACE = 512,           /* A, rows along k */
    N_IN_PLACE_T = 128,         /* A, rows along m: a new page at every k */
    M_IN_PLACE = 128,           /* B, rows along n */
    B_IN_PLACE = 1 << 16,       /* and only what the caches hold: its strides defeat the prefetchers */
    MIN_FLOPS_SHARED = 1 << 20, /* below, waking threads costs more than it brings */
    LINE_FLOATS = 16,
};

/* Largest chunk held at once. */
struct chunk {
    int64_t m, n, k;
};

struct job {
    const struct tr_gemm *g;
    const struct tr_gemm_isa *isa;
    float *packed_b, *packed_a, *sums, *bias;
    struct chunk max;
    int n_threads;
    bool a_in_place, b_in_place;        /* the tile reads the operand where it lies */
    int64_t i0, j0, p0;                 /* the chunk in work: first row, column, k */
    int64_t m, n, k;                    /* and its size */
    int64_t n_row_blocks, n_col_groups; /* its tasks */
    bool packs_on_use;                  /* a panel of B is packed by the one task that reads it first */
    int64_t panels_at_once;             /* of B, in one call of the packer */
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t div_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static struct chunk chunk_max(int64_t m, int64_t n, int64_t k, int n_threads)
{
    bool is_serial = n_threads == 1;
    struct chunk c;
    int64_t n_chunks = div_up(n, is_serial ? NC_SERIAL : NC_SHARED); /* of even width */
    c.n = round_up(div_up(n, n_chunks), TR_GEMM_MAX_NR);
    c.k = tr_min64(round_up(k, KC), is_serial ? KC : B_FLOATS_SHARED / c.n / KC * KC);
    c.m = tr_min64(m, (is_serial ? SUM_FLOATS_SERIAL : SUM_FLOATS_SHARED) / c.n);
    return c;
}

/* Floats of one worker's packed block of A. */
static int64_t a_block_floats(int64_t m, int64_t k)
{
    return round_up((tr_min64(m, MC) + TR_GEMM_MAX_MR) * tr_min64(k, KC) + TR_GEMM_SLACK, LINE_FLOATS);
}

/* Floats of packed B, packed A, partial sums and bias. Upper bounds, so that scratch for a shape serves smaller ones.
 */
static void scratch_parts(int64_t m, int64_t n, int64_t k, int n_threads, int64_t part[4])
{
    bool is_serial = n_threads == 1;
    int64_t nc = tr_min64(round_up(n, TR_GEMM_MAX_NR), is_serial ? NC_SERIAL : NC_SHARED);
    part[0] = tr_min64(nc * k, is_serial ? NC_SERIAL * KC : B_FLOATS_SHARED);
    part[1] = n_threads * a_block_floats(m, k);
    part[2] = tr_min64(m * nc, is_serial ? SUM_FLOATS_SERIAL : SUM_FLOATS_SHARED);
    part[3] = nc;
}

size_t tr_gemm_scratch(int64_t m, int64_t n, int64_t k, int n_threads)
{
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    int64_t part[4];
    scratch_parts(m, n, k, n_threads, part);
    return (size_t)(part[0] + part[1] + part[2] + part[3] + LINE_FLOATS) * sizeof(float);
}

static void *at(const void *base, enum tr_dtype dtype, int64_t index)
{
    return (char *)(uintptr_t)base + index * (dtype == TR_BF16 ? 2 : 4);
}

/* Columns [j, j + n) of the chunk of B and K block p, into their panels. */
static void pack_b(const struct job *job, int64_t j, int64_t n, int64_t p)
{
    const struct tr_gemm *g = job->g;
    const int nr = job->isa->nr;
    int64_t col = job->j0 + j, k = job->p0 + p;
    struct tr_gemm_pack pack = { .ld = g->ldb, .is_bf16 = g->b_dtype == TR_BF16, .n = n, .width = nr };
    pack.src = at(g->b, g->b_dtype, g->b_t ? col * g->ldb + k : k * g->ldb + col);
    pack.k = tr_min64(KC, job->k - p);
    pack.dst = job->packed_b + p * round_up(job->n, nr) + j * pack.k;
    (g->b_t ? job->isa->pack_lines : job->isa->pack_rows)(&pack);
}

static void pack_b_task(void *ctx, int64_t task, int worker)
{
    (void)worker;
    const struct job *job = ctx;
    int64_t width = job->panels_at_once * job->isa->nr, j = task * width;
    for (int64_t p = 0; p < job->k; p += KC)
        pack_b(job, j, tr_min64(width, job->n - j), p);
}

/* Where the tiles find a block of A: tile row ir starts at a + ir * line. */
struct a_block {
    const float *a;
    int64_t line, row, step;
    int mr;
};

/* Rows [i, i + m) of A and K block k, in place or packed to dst. */
static struct a_block bring_a(const struct job *job, int64_t i, int64_t m, int64_t k, int64_t kc, float *dst)
{
    const struct tr_gemm *g = job->g;
    int mr = (int)div_up(m, div_up(m, job->isa->mr)); /* tiles of even height: 64 rows are 13+13+13+13+12, not 4*14+8 */
    const void *src = at(g->a, g->a_dtype, g->a_t ? k * g->lda + i : i * g->lda + k);
    if (job->a_in_place)
        return g->a_t ? (struct a_block){ src, 1, 1, g->lda, mr } : (struct a_block){ src, g->lda, g->lda, 1, mr };
    struct tr_gemm_pack pack = { src, g->lda, g->a_dtype == TR_BF16, m, kc, mr, dst };
    (g->a_t ? job->isa->pack_rows : job->isa->pack_lines)(&pack);
    return (struct a_block){ dst, kc, 1, mr, mr };
}

/* The block's fp32 home: C itself, or the partial sums when C is bf16. */
static float *sum_at(const struct job *job, int64_t i, int64_t j, int64_t *ld)
{
    bool is_bf16 = job->g->c_dtype == TR_BF16;
    *ld = is_bf16 ? job->max.n : job->g->ldc;
    return is_bf16 ? job->sums + (i - job->i0) * *ld + (j - job->j0) : (float *)job->g->c + i * *ld + j;
}

/* A block of m rows at i times the columns [j, j + n) of the chunk, over one K block. */
static void multiply_block(const struct job *job, const struct a_block *a, int64_t i, int64_t m, int64_t j, int64_t n,
                           int64_t p)
{
    const struct tr_gemm *g = job->g;
    const int nr = job->isa->nr;
    int64_t kc = tr_min64(KC, job->k - p), k = job->p0 + p;
    struct tr_gemm_tile t = { .k = kc, .a_row = a->row, .a_step = a->step, .b_step = job->b_in_place ? g->ldb : nr };
    t.load_c = g->accumulate || k > 0;
    float *c = sum_at(job, i, job->j0, &t.ldc);
    const float *b = job->packed_b + p * round_up(job->n, nr);
    if (job->b_in_place)
        b = (const float *)g->b + k * g->ldb + job->j0;
    for (int64_t jr = j; jr < j + n; jr += nr) {
        int64_t width = job->panels_at_once * nr;
        if (job->packs_on_use && i == job->i0 && (jr - j) % width == 0)
            pack_b(job, jr, tr_min64(width, j + n - jr), p);
        t.b = b + jr * (job->b_in_place ? 1 : kc);
        t.n_cols = (int)tr_min64(nr, j + n - jr);
        t.bias = g->bias && k + kc == g->k ? job->bias + jr : NULL;
        for (int64_t ir = 0; ir < m; ir += a->mr) {
            t.a = a->a + ir * a->line;
            t.n_rows = (int)tr_min64(a->mr, m - ir);
            t.c = c + ir * t.ldc + jr;
            job->isa->tile(&t);
        }
    }
}

static void widen_block(const struct job *job, int64_t i, int64_t m, int64_t j, int64_t n)
{
    int64_t ld;
    float *sum = sum_at(job, i, job->j0 + j, &ld);
    for (int64_t r = 0; r < m; r++)
        job->isa->widen((const uint16_t *)job->g->c + (i + r) * job->g->ldc + job->j0 + j, sum + r * ld, n);
}

static void narrow_block(const struct job *job, int64_t i, int64_t m, int64_t j, int64_t n)
{
    int64_t ld;
    const float *sum = sum_at(job, i, job->j0 + j, &ld);
    for (int64_t r = 0; r < m; r++)
        job->isa->narrow(sum + r * ld, (uint16_t *)job->g->c + (i + r) * job->g->ldc + job->j0 + j, n);
}

static void multiply_task(void *ctx, int64_t task, int worker)
{
    const struct job *job = ctx;
    const struct tr_gemm *g = job->g;
    const int nr = job->isa->nr;
    int64_t block = task / job->n_col_groups, group = task % job->n_col_groups, n_panels = div_up(job->n, nr);
    int64_t i = job->m * block / job->n_row_blocks, m = job->m * (block + 1) / job->n_row_blocks - i;
    int64_t j = n_panels * group / job->n_col_groups * nr;
    int64_t n = tr_min64(n_panels * (group + 1) / job->n_col_groups * nr, job->n) - j;
    float *packed_a = job->packed_a + worker * a_block_floats(g->m, g->k);
    i += job->i0;
    if (g->c_dtype == TR_BF16 && g->accumulate && job->p0 == 0)
        widen_block(job, i, m, j, n);
    for (int64_t p = 0; p < job->k; p += KC) {
        struct a_block a = bring_a(job, i, m, job->p0 + p, tr_min64(KC, job->k - p), packed_a);
        multiply_block(job, &a, i, m, j, n, p);
    }
    if (g->c_dtype == TR_BF16 && job->p0 + job->k == g->k)
        narrow_block(job, i, m, j, n);
}

/* Row blocks of at most MC rows. One block: columns are cut instead, and every panel of B has one reader, its packer.
 * More: a whole number of blocks a thread; columns are cut only where rows run out, since each cut packs A again. */
static void cut_tasks(struct job *job)
{
    const int64_t n_panels = div_up(job->n, job->isa->nr), n_threads = job->n_threads;
    job->n_row_blocks = div_up(job->m, MC);
    job->n_col_groups = 1;
    if (n_threads > 1 && job->n_row_blocks == 1) {
        job->n_col_groups = tr_min64(4 * n_threads, n_panels);
    } else if (n_threads > 1) {
        job->n_row_blocks = tr_min64(round_up(job->n_row_blocks, n_threads), div_up(job->m, 2 * job->isa->mr));
        job->n_col_groups = tr_min64(div_up(n_threads, job->n_row_blocks), n_panels);
    }
    job->packs_on_use = !job->b_in_place && (n_threads == 1 || job->n_row_blocks == 1);
    job->panels_at_once = job->g->b_t ? 1 : 8; /* rows of B are read a KiB at a time */
}

static void run_chunks(struct job *job, struct tr_pool *pool)
{
    const struct tr_gemm *g = job->g;
    for (job->j0 = 0; job->j0 < g->n; job->j0 += job->max.n) {
        job->n = tr_min64(job->max.n, g->n - job->j0);
        if (g->bias && g->bias_dtype == TR_BF16)
            job->isa->widen((const uint16_t *)g->bias + job->j0, job->bias, job->n);
        else if (g->bias)
            job->bias = (float *)at(g->bias, TR_F32, job->j0);
        for (job->i0 = 0; job->i0 < g->m; job->i0 += job->max.m) {
            job->m = tr_min64(job->max.m, g->m - job->i0);
            for (job->p0 = 0; job->p0 < g->k; job->p0 += job->max.k) {
                job->k = tr_min64(job->max.k, g->k - job->p0);
                cut_tasks(job);
                if (!job->packs_on_use && !job->b_in_place)
                    tr_pool_run(pool, div_up(job->n, job->panels_at_once * job->isa->nr), pack_b_task, job);
                tr_pool_run(pool, job->n_row_blocks * job->n_col_groups, multiply_task, job);
            }
        }
    }
}

/* K = 0: the empty sum, in plain C. */
static void store_empty_sum(const struct tr_gemm *g)
{
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            void *c = at(g->c, g->c_dtype, i * g->ldc + j);
            float v = 0;
            if (g->accumulate)
                tr_convert(c, g->c_dtype, &v, TR_F32, 1);
            float bias = 0;
            if (g->bias)
                tr_convert(at(g->bias, g->bias_dtype, j), g->bias_dtype, &bias, TR_F32, 1);
            v += bias;
            tr_convert(&v, TR_F32, c, g->c_dtype, 1);
        }
    }
}

void tr_gemm_builtin(const struct tr_gemm_isa *isa, const struct tr_gemm *g, struct tr_pool *pool, void *scratch)
{
    if (g->m <= 0 || g->n <= 0)
        return;
    if (g->k <= 0) {
        store_empty_sum(g);
        return;
    }
    /* A product too small to share takes the chunks of one thread: its scratch is never larger. */
    if (2.0 * (double)g->m * (double)g->n * (double)g->k < MIN_FLOPS_SHARED)
        pool = NULL;
    struct job job = { .g = g, .isa = isa, .n_threads = tr_pool_threads(pool) };
    job.max = chunk_max(g->m, g->n, g->k, job.n_threads);
    int64_t part[4];
    scratch_parts(g->m, g->n, g->k, job.n_threads, part);
    job.packed_b = (float *)tr_round_up((uintptr_t)scratch, LINE_FLOATS * sizeof(float));
    job.packed_a = job.packed_b + part[0];
    job.sums = job.packed_a + part[1];
    job.bias = job.sums + part[2];
    if (g->c_dtype != TR_BF16)
        job.max.m = g->m; /* no partial sums to hold */
    job.a_in_place = g->a_dtype == TR_F32 && g->n <= (g->a_t ? N_IN_PLACE_T : N_IN_PLACE);
    job.b_in_place =
        g->b_dtype == TR_F32 && !g->b_t && g->n % isa->nr == 0 && g->m <= M_IN_PLACE && g->n * g->k <= B_IN_PLACE;
    run_chunks(&job, pool);
}

int tr_gemm_isas(const struct tr_gemm_isa *out[3])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        out[n++] = &tr_gemm_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = &tr_gemm_avx2;
#endif
    out[n++] = &tr_gemm_portable;
    return n;
}

static const struct tr_gemm_isa *best_isa(void)
{
    const struct tr_gemm_isa *isa[3];
    tr_gemm_isas(isa);
    return isa[0];
}

void tr_gemm(const struct tr_gemm *g, struct tr_pool *pool, void *scratch)
{
    if (!tr_gemm_external(g, tr_pool_threads(pool)))
        tr_gemm_builtin(best_isa(), g, pool, scratch);
}

/* Always built in: a library's own threads inside our tasks would fight over the cores. */
void tr_gemm_serial(const struct tr_gemm *g, void *scratch)
{
    tr_gemm_builtin(best_isa(), g, NULL, scratch);
}
