/* gemm.c - the built-in matrix product: packing, blocking and the split over threads, in the structure of
 * GotoBLAS/BLIS.
 *
 * C is split into rectangles of at most NC columns. A task owns one and shares nothing: it packs a block of B (KC x NC,
 * which stays in its second-level cache), then block after block of A, and multiplies. Invariant: an element is the
 * sum, in order of K, of chains of TR_GEMM_KC fused multiply-adds; rectangles, blocks and threads decide only which
 * thread computes it and when. Partial sums are fp32: in C itself, or in scratch where C has 16 bits or is
 * computed as C^T. Rejected:
 * splitting K over threads (the order of sums would depend on the thread count); panels of B packed once for all
 * threads (they come back from another core's cache and every chunk ends in a barrier: up to 20 % slower where K is
 * long); software prefetch of the next block of A or panel of B (0 to 4 % slower).
 */
#include "ops/cpu/gemm_impl.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdatomic.h>

enum {
    KC = TR_GEMM_KC,
    MC = 392,             /* rows of A packed at once: 588 KiB, half a second-level cache */
    NC = 768,             /* columns of a task: its packed B is 1.2 MiB */
    SUM_FLOATS = 1 << 18, /* partial sums of a 16-bit C */
    TASKS_A_THREAD = 4,   /* at most; more tasks than threads balance cores of uneven speed */
    /* Packing an operand does not pay when few tiles read it. */
    N_IN_PLACE = 512,           /* A with rows along k */
    N_IN_PLACE_T = 128,         /* A with rows along m: every k is on a new page */
    M_IN_PLACE = 128,           /* B with rows along n */
    B_IN_PLACE = 1 << 16,       /* and at most what the caches hold, because its strides defeat the prefetchers */
    MIN_FLOPS_SHARED = 1 << 20, /* for smaller products, waking threads costs more than they save */
    SHORT_K = 64,               /* all of the packed B stays in the caches, so tiles follow the rows of C */
    N_TURNED = 64,              /* C^T = B^T A^T where A has rows along m: a new page for every k against few columns */
    LINE_FLOATS = 16,
};

/* One rectangle of C and the worker's buffers. */
struct job {
    const struct tr_gemm *g;
    const struct tr_gemm_isa *isa;
    float *packed_b, *packed_a, *sums, *bias;
    bool a_in_place, b_in_place; /* the tile reads the operand without packing */
    int64_t i0, j0, m, n;        /* the rectangle; with sums of its own, only the rows that fit */
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t div_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Floats of one worker's packed B, packed A, partial sums and bias. These are upper bounds, so scratch for one shape
 * serves smaller shapes too. */
static int64_t scratch_parts(int64_t m, int64_t n, int64_t k, int64_t part[4])
{
    int64_t nc = tr_min64(round_up(n, TR_GEMM_MAX_NR), NC), kc = tr_min64(k, KC);
    part[0] = nc * kc;
    part[1] = round_up((tr_min64(m, MC) + TR_GEMM_MAX_MR) * kc + TR_GEMM_SLACK, LINE_FLOATS);
    part[2] = tr_min64(m * nc, SUM_FLOATS);
    part[3] = nc;
    return round_up(part[0] + part[1] + part[2] + part[3], LINE_FLOATS);
}

size_t tr_gemm_scratch(int64_t m, int64_t n, int64_t k, int n_threads)
{
    int64_t part[4];
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    int64_t floats = scratch_parts(m, n, k, part);
    if (k >= KC)
        floats = tr_max64(floats, scratch_parts(tr_min64(n, N_TURNED), m, k, part));
    return (size_t)(n_threads * floats + LINE_FLOATS) * sizeof(float);
}

/* Is it cheaper to compute C^T? The elements are the same chains. */
static bool is_better_turned(const struct tr_gemm *g)
{
    return g->a_t && !g->c_t && !g->bias && g->n <= N_TURNED && g->k >= KC && g->m > g->n;
}

static struct tr_gemm turned(const struct tr_gemm *g)
{
    struct tr_gemm t = *g;
    t.m = g->n, t.n = g->m, t.c_t = true;
    t.a = g->b, t.lda = g->ldb, t.a_dtype = g->b_dtype, t.a_t = !g->b_t;
    t.b = g->a, t.ldb = g->lda, t.b_dtype = g->a_dtype, t.b_t = !g->a_t;
    return t;
}

static void *at(const void *base, enum tr_dtype dtype, int64_t index)
{
    return (char *)(uintptr_t)base + index * (dtype == TR_F32 ? 4 : 2);
}

/* Words of the packed form that hold kc elements of a line. */
static int64_t words(const struct job *job, int64_t kc)
{
    return div_up(kc, job->isa->n_of_word);
}

/* Packs columns [j, j + n) of the rectangle, block k of K, of B into their panels. */
static void pack_b(const struct job *job, int64_t j, int64_t n, int64_t k, int64_t kc)
{
    const struct tr_gemm *g = job->g;
    int64_t col = job->j0 + j;
    struct tr_gemm_pack pack = { .ld = g->ldb, .dtype = g->b_dtype, .n = n, .k = kc };
    pack.width = job->isa->nr;
    pack.src = at(g->b, g->b_dtype, g->b_t ? col * g->ldb + k : k * g->ldb + col);
    pack.dst = job->packed_b + j * words(job, kc);
    (g->b_t ? job->isa->pack_lines : job->isa->pack_rows)(&pack);
}

/* Where the tiles read a block of A: tile row ir starts at a + ir * line. */
struct a_block {
    const float *a;
    int64_t line, row, step;
    int mr;
};

/* Rows [i, i + m) of A, block k of K: in place, or packed to dst. */
static struct a_block bring_a(const struct job *job, int64_t i, int64_t m, int64_t k, int64_t kc, float *dst)
{
    const struct tr_gemm *g = job->g;
    /* Tiles of nearly equal height: 64 rows are 13+13+13+13+12, not 4*14+8. */
    int mr = (int)div_up(m, div_up(m, job->isa->mr));
    const void *src = at(g->a, g->a_dtype, g->a_t ? k * g->lda + i : i * g->lda + k);
    if (job->a_in_place)
        return g->a_t ? (struct a_block){ src, 1, 1, g->lda, mr } : (struct a_block){ src, g->lda, g->lda, 1, mr };
    struct tr_gemm_pack pack = { src, g->lda, g->a_dtype, m, kc, mr, dst };
    (g->a_t ? job->isa->pack_rows : job->isa->pack_lines)(&pack);
    return (struct a_block){ dst, words(job, kc), 1, mr, mr };
}

static bool has_sums(const struct tr_gemm *g)
{
    return g->c_dtype != TR_F32 || g->c_t;
}

/* Where the fp32 sum of element (i, j) is: in C itself, or in the partial sums when C has 16 bits or is C^T. */
static float *sum_at(const struct job *job, int64_t i, int64_t j, int64_t *ld)
{
    bool is_apart = has_sums(job->g);
    *ld = is_apart ? job->n : job->g->ldc;
    return is_apart ? job->sums + (i - job->i0) * *ld + (j - job->j0) : (float *)job->g->c + i * *ld + j;
}

/* The tile at row ir of the block and column j of the rectangle. t has what all tiles of the block share. */
static void multiply_tile(const struct job *job, const struct a_block *a, struct tr_gemm_tile t, int64_t ir, int64_t m,
                          int64_t j, int64_t k)
{
    const struct tr_gemm *g = job->g;
    t.b = job->b_in_place ? (const float *)g->b + k * g->ldb + job->j0 + j : job->packed_b + j * t.k;
    t.n_cols = (int)tr_min64(job->isa->nr, job->n - j);
    t.bias = g->bias && k + KC >= g->k ? job->bias + j : NULL;
    t.a = a->a + ir * a->line;
    t.n_rows = (int)tr_min64(a->mr, m - ir);
    t.c += ir * t.ldc + j;
    job->isa->tile(&t);
}

/* Rows [i, i + m) of A times the packed columns of the rectangle, over K block k. The first block of rows also packs B.
 */
static void multiply_block(const struct job *job, const struct a_block *a, int64_t i, int64_t m, int64_t k)
{
    const struct tr_gemm *g = job->g;
    const int nr = job->isa->nr;
    int64_t kc = tr_min64(KC, g->k - k);
    bool packs = !job->b_in_place && i == job->i0;
    struct tr_gemm_tile t = {
        .k = words(job, kc), .a_row = a->row, .a_step = a->step, .b_step = job->b_in_place ? g->ldb : nr
    };
    t.load_c = g->accumulate || k > 0;
    t.c = sum_at(job, i, job->j0, &t.ldc);
    if (kc <= SHORT_K) { /* little arithmetic for an element of C: what counts is that C is written row after row */
        if (packs)
            pack_b(job, 0, job->n, k, kc);
        for (int64_t ir = 0; ir < m; ir += a->mr)
            for (int64_t j = 0; j < job->n; j += nr)
                multiply_tile(job, a, t, ir, m, j, k);
        return;
    }
    int64_t width = g->b_t ? nr : 8 * nr; /* columns packed at once, so that rows of B are read a KiB at a time */
    for (int64_t j = 0; j < job->n; j += nr) {
        if (packs && j % width == 0)
            pack_b(job, j, tr_min64(width, job->n - j), k, kc);
        for (int64_t ir = 0; ir < m; ir += a->mr)
            multiply_tile(job, a, t, ir, m, j, k);
    }
}

/* Line r of the rectangle in C: a row of it, or with c_t column r of the sums, which is a row of C too. */
static uint16_t *line_of_c(const struct job *job, int64_t r)
{
    const struct tr_gemm *g = job->g;
    int64_t row = g->c_t ? job->j0 + r : job->i0 + r, col = g->c_t ? job->i0 : job->j0;
    return at(g->c, g->c_dtype, row * g->ldc + col);
}

static void widen_line(const struct job *job, int64_t r, float *dst, int64_t n)
{
    if (job->g->c_dtype == TR_F32)
        memcpy(dst, line_of_c(job, r), (size_t)n * sizeof *dst);
    else
        job->isa->widen(line_of_c(job, r), job->g->c_dtype, dst, n);
}

static void narrow_line(const struct job *job, int64_t r, const float *src, int64_t n)
{
    if (job->g->c_dtype == TR_F32)
        memcpy(line_of_c(job, r), src, (size_t)n * sizeof *src);
    else
        job->isa->narrow(src, line_of_c(job, r), job->g->c_dtype, n);
}

static void widen_sums(const struct job *job)
{
    float line[N_TURNED];
    for (int64_t r = 0; !job->g->c_t && r < job->m; r++)
        widen_line(job, r, job->sums + r * job->n, job->n);
    for (int64_t r = 0; job->g->c_t && r < job->n; r++) {
        widen_line(job, r, line, job->m);
        for (int64_t i = 0; i < job->m; i++)
            job->sums[i * job->n + r] = line[i];
    }
}

static void narrow_sums(const struct job *job)
{
    float line[N_TURNED];
    for (int64_t r = 0; !job->g->c_t && r < job->m; r++)
        narrow_line(job, r, job->sums + r * job->n, job->n);
    for (int64_t r = 0; job->g->c_t && r < job->n; r++) {
        for (int64_t i = 0; i < job->m; i++)
            line[i] = job->sums[i * job->n + r];
        narrow_line(job, r, line, job->m);
    }
}

static void multiply_rectangle(struct job *job)
{
    const struct tr_gemm *g = job->g;
    int64_t n_blocks = div_up(job->m, MC);
    if (has_sums(g) && g->accumulate)
        widen_sums(job);
    for (int64_t k = 0; k < g->k; k += KC) {
        for (int64_t b = 0; b < n_blocks; b++) {
            int64_t i = job->m * b / n_blocks, m = job->m * (b + 1) / n_blocks - i;
            i += job->i0;
            struct a_block a = bring_a(job, i, m, k, tr_min64(KC, g->k - k), job->packed_a);
            multiply_block(job, &a, i, m, k);
        }
    }
    if (has_sums(g))
        narrow_sums(job);
}

/* How C is split: a task is (row part, column part). */
struct gemm_tasks {
    const struct tr_gemm *g;
    const struct tr_gemm_isa *isa;
    float *scratch;
    int64_t n_rows, n_cols; /* parts */
};

/* The start of part p of n along `size`. Parts are whole tiles, except the last. */
static int64_t part_start(int64_t size, int64_t tile, int64_t p, int64_t n)
{
    return tr_min64(div_up(size, tile) * p / n * tile, size);
}

static void multiply_task(void *ctx, int64_t task, int worker)
{
    const struct gemm_tasks *cut = ctx;
    const struct tr_gemm *g = cut->g;
    int64_t row = task / cut->n_cols, col = task % cut->n_cols, part[4];
    struct job job = { .g = g, .isa = cut->isa };
    job.packed_b = cut->scratch + worker * scratch_parts(g->m, g->n, g->k, part);
    job.packed_a = job.packed_b + part[0];
    job.sums = job.packed_a + part[1];
    job.bias = job.sums + part[2];
    job.j0 = part_start(g->n, job.isa->nr, col, cut->n_cols);
    job.n = part_start(g->n, job.isa->nr, col + 1, cut->n_cols) - job.j0;
    if (g->bias && g->bias_dtype != TR_F32)
        job.isa->widen((const uint16_t *)g->bias + job.j0, g->bias_dtype, job.bias, job.n);
    else if (g->bias)
        job.bias = (float *)at(g->bias, TR_F32, job.j0);
    job.a_in_place = g->a_dtype == TR_F32 && g->n <= (g->a_t ? N_IN_PLACE_T : N_IN_PLACE);
    job.b_in_place =
        g->b_dtype == TR_F32 && !g->b_t && g->n % job.isa->nr == 0 && g->m <= M_IN_PLACE && g->n * g->k <= B_IN_PLACE;
    int64_t i = part_start(g->m, job.isa->mr, row, cut->n_rows),
            end = part_start(g->m, job.isa->mr, row + 1, cut->n_rows);
    int64_t rows = has_sums(g) ? tr_max64(SUM_FLOATS / tr_max64(job.n, 1), 1) : end - i;
    for (; i < end && job.n > 0; i += job.m) {
        job.i0 = i;
        job.m = tr_min64(rows, end - i);
        multiply_rectangle(&job);
    }
}

/* Each task packs its rows of A and its columns of B. Of the splits that keep every thread busy, this takes the one
 * that packs least. Large products get more parts than threads while each part still has a block of rows. */
static void cut_tasks(struct gemm_tasks *cut, int n_threads)
{
    const struct tr_gemm *g = cut->g;
    int64_t min_cols = div_up(g->n, NC), best = INT64_MAX;
    for (int64_t rows = 1; rows <= n_threads; rows++) {
        int64_t cols = round_up(min_cols, n_threads / rows * rows == n_threads ? n_threads / rows : n_threads);
        int64_t packed = cols * g->m + rows * g->n;
        if (packed < best) {
            best = packed;
            cut->n_rows = rows;
            cut->n_cols = cols;
        }
    }
    while (n_threads > 1 && cut->n_rows * cut->n_cols < TASKS_A_THREAD * n_threads && g->m / cut->n_rows >= 4 * MC)
        cut->n_rows *= 2;
}

/* K = 0: C gets the empty sum. */
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
    TR_BUG_ON(isa->n_of_word == 2 && (g->a_dtype != TR_BF16 || g->b_dtype != TR_BF16));
    if (2.0 * (double)g->m * (double)g->n * (double)g->k < MIN_FLOPS_SHARED)
        pool = NULL;
    struct tr_gemm mirror = turned(g);
    struct gemm_tasks cut = { .g = is_better_turned(g) ? &mirror : g, .isa = isa };
    cut.scratch = (float *)tr_round_up((uintptr_t)scratch, LINE_FLOATS * sizeof(float));
    cut_tasks(&cut, tr_pool_threads(pool));
    tr_pool_run(pool, cut.n_rows * cut.n_cols, multiply_task, &cut);
}

/* Runs cpuid once: on a virtual machine it traps and costs 15 us, more than a small product. */
bool tr_has_f16c(void)
{
#if defined(__x86_64__)
    static _Atomic int known; /* 0: not known yet, 1: no, 2: yes; threads that race write the same value */
    unsigned a, b, c, d;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == 0) {
        answer = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
#else
    return false;
#endif
}

int tr_gemm_isas(const struct tr_gemm_isa *out[3])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        out[n++] = &tr_gemm_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && tr_has_f16c())
        out[n++] = &tr_gemm_avx2;
#endif
    out[n++] = &tr_gemm_portable;
    return n;
}

const struct tr_gemm_isa *tr_gemm_isa_of_pairs(void)
{
#if defined(__x86_64__)
    const struct tr_gemm_isa *isa[3];
    if (__builtin_cpu_supports("avx512bf16") && tr_gemm_isas(isa) > 0 && isa[0] == &tr_gemm_avx512)
        return &tr_gemm_bf16;
#endif
    return NULL;
}

static bool takes_pairs = true; /* written before threads start */

void tr_gemm_allow_pairs(bool is_allowed)
{
    takes_pairs = is_allowed;
}

bool tr_gemm_takes_pairs(void)
{
    return takes_pairs && tr_gemm_isa_of_pairs() != NULL;
}

static const struct tr_gemm_isa *best_isa(const struct tr_gemm *g)
{
    const struct tr_gemm_isa *isa[3];
    if (g->a_dtype == TR_BF16 && g->b_dtype == TR_BF16 && tr_gemm_takes_pairs())
        return tr_gemm_isa_of_pairs();
    tr_gemm_isas(isa);
    return isa[0];
}

void tr_gemm(const struct tr_gemm *g, struct tr_pool *pool, void *scratch)
{
    if (!tr_gemm_external(g, tr_pool_threads(pool)))
        tr_gemm_builtin(best_isa(g), g, pool, scratch);
}

/* Always the built-in product: a library's own threads inside our tasks would compete for the cores. */
void tr_gemm_serial(const struct tr_gemm *g, void *scratch)
{
    tr_gemm_builtin(best_isa(g), g, NULL, scratch);
}
