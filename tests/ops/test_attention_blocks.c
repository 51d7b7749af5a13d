/* Attention computed block by block, merged as it goes, is the attention of all rows: what ring attention relies on.
 * Every term is computed once either way; only the order of sums differs, so the bound is that of a sum of N terms in
 * float: 2^-24 sqrt(N) of the largest element, times 16 for the exp, the merge weights and products with them. */
#include "base/base.h"
#include "ops/ops.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N_MAX = 200, COLS_MAX = 64 };

struct shape {
    const char *name;
    int64_t n, document, block; /* rows, rows of a document, rows of a block */
    struct tr_attr attr;
};

static const struct shape shapes[] = {
    { "one document", 24, 24, 6, { .n_heads_q = 2, .n_heads_kv = 2, .head_dim = 8, .scale = 0.35f } },
    { "grouped, packed", 48, 13, 6, { .n_heads_q = 4, .n_heads_kv = 2, .head_dim = 16, .scale = 0.25f } },
    { "blocks of 3, window",
      24,
      24,
      3,
      { .n_heads_q = 2, .n_heads_kv = 1, .head_dim = 8, .scale = 0.3f, .window = 5 } },
    { "capped window, packed",
      48,
      17,
      3,
      { .n_heads_q = 2, .n_heads_kv = 1, .head_dim = 8, .scale = 0.3f, .window = 5, .softcap = 1.5f } },
    { "blocks of several tiles", 200, 150, 100, { .n_heads_q = 2, .n_heads_kv = 2, .head_dim = 8, .scale = 0.35f } },
    { "dropout",
      40,
      11,
      10,
      { .n_heads_q = 2, .n_heads_kv = 1, .head_dim = 8, .scale = 0.3f, .dropout_p = 0.2f, .key = 7 } },
};

enum { Q, K, V, DO, O, LSE, DQ, DK, DV, N_MATRICES };

struct data {
    float x[N_MATRICES][N_MAX * COLS_MAX];
    uint16_t half[LSE][N_MAX * COLS_MAX]; /* q, k, v, do, o in bf16 */
    int32_t begin[N_MAX], position[N_MAX];
    int64_t sample[N_MAX];
    float step[TR_STEP_COUNT];
};

enum who { REFERENCE, FAST, CUDA, CUDA_BF16 }; /* the last: sums stay in float, as in the ring */
static struct tr_device gpu;                   /* TR_TEST_DEVICE=cuda: a copy of the data there, and scratch */
static void *gpu_data, *gpu_scratch;
enum { GPU_SCRATCH = 128 << 20 };

/* The same call on the GPU: everything goes there and comes back. */
static void run_on_gpu(struct data *d, struct tr_call *c)
{
    for (int i = 0; i < TR_MAX_IN + TR_MAX_OUT; i++) {
        struct tr_view *v = i < TR_MAX_IN ? &c->in[i] : &c->out[i - TR_MAX_IN];
        if (v->data)
            v->data = (char *)gpu_data + ((char *)v->data - (char *)d);
    }
    assert_true(tr_column_of("cuda")->scratch(c, 1) <= GPU_SCRATCH);
    c->scratch = gpu_scratch;
    c->dev = &gpu;
    tr_device_copy_now(&gpu, gpu_data, d, sizeof *d);
    tr_column_of("cuda")->kernel(c->op)(c);
    tr_device_copy_now(&gpu, d, gpu_data, sizeof *d);
    if (tr_device_sync(&gpu, TR_STREAM_COMPUTE) != TR_OK)
        fail_msg("%s", tr_error_text());
}

static int64_t cols_of(const struct tr_attr *a, int what)
{
    bool is_kv = what == K || what == V || what == DK || what == DV;
    return what == LSE ? a->n_heads_q : (int64_t)(is_kv ? a->n_heads_kv : a->n_heads_q) * a->head_dim;
}

static struct tr_view matrix(struct data *d, const struct tr_attr *a, int what, int64_t row, int64_t rows)
{
    int64_t cols = cols_of(a, what);
    return (struct tr_view){ d->x[what] + row * cols, TR_F32, rows, cols, cols };
}

static struct tr_view half_matrix(struct data *d, const struct tr_attr *a, int what, int64_t row, int64_t rows)
{
    int64_t cols = cols_of(a, what);
    for (int64_t i = row * cols; i < (row + rows) * cols; i++)
        d->half[what][i] = tr_bf16_of_f32(d->x[what][i]);
    return (struct tr_view){ d->half[what] + row * cols, TR_BF16, rows, cols, cols };
}

static struct tr_view vector(void *data, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ data, dtype, n, 1, 1 };
}

/* Rows [q, q + n) of queries against rows [k, k + n) of keys. */
static void run(const struct shape *s, struct data *d, enum who who, bool is_backward, int64_t q, int64_t k, int64_t n,
                bool adds, struct tr_pool *pool)
{
    static const int ins[2][6] = { { Q, K, V }, { DO, Q, K, V, O, LSE } }, outs[2][3] = { { O, LSE }, { DQ, DK, DV } };
    struct tr_call c = { .op = is_backward ? TR_OP_ATTENTION_BWD : TR_OP_ATTENTION, .attr = s->attr, .pool = pool };
    int n_in = is_backward ? 6 : 3, n_out = is_backward ? 3 : 2;
    c.attr.row_q = q;
    c.attr.row_k = k;
    for (int i = 0; i < n_in + n_out; i++) {
        int what = i < n_in ? ins[is_backward][i] : outs[is_backward][i - n_in];
        bool is_kv = what == K || what == V || what == DK || what == DV;
        bool is_half = who == CUDA_BF16 && i < n_in && what < LSE;
        *(i < n_in ? &c.in[i] : &c.out[i - n_in]) =
            (is_half ? half_matrix : matrix)(d, &s->attr, what, is_kv ? k : q, n);
    }
    c.in[n_in] = vector(d->begin, TR_I32, s->n);
    c.in[n_in + 1] = vector(d->sample, TR_I64, s->n);
    c.in[n_in + 2] = vector(d->position, TR_I32, s->n);
    c.in[n_in + 3] = (struct tr_view){ d->step, TR_F32, 1, TR_STEP_COUNT, TR_STEP_COUNT };
    for (int i = 0; i < n_out; i++)
        c.accumulate[i] = adds;
    if (who >= CUDA) {
        run_on_gpu(d, &c);
        return;
    }
    size_t bytes = tr_op_scratch(&c, tr_pool_threads(pool));
    c.scratch = aligned_alloc(64, tr_round_up(bytes ? bytes : 64, 64));
    (who == FAST ? tr_op_cpu_fast : tr_op_cpu_ref)(c.op)(&c);
    free(c.scratch);
}

static void fill(const struct shape *s, struct data *d)
{
    *d = (struct data){ 0 };
    uint32_t bits = 1;
    for (int what = Q; what <= DO; what++)
        for (int64_t i = 0; i < s->n * cols_of(&s->attr, what); i++) {
            bits = bits * 1664525u + 1013904223u;
            d->x[what][i] = tr_f32_of_bf16(tr_bf16_of_f32((float)(bits >> 8) * 0x1p-23f - 1.0f));
        }
    for (int64_t i = 0; i < s->n; i++) {
        d->begin[i] = (int32_t)(i / s->document * s->document);
        d->position[i] = (int32_t)(i - d->begin[i]);
        d->sample[i] = d->begin[i]; /* position + sample numbers the tokens */
    }
}

static void by_block(const struct shape *s, struct data *d, enum who who, struct tr_pool *pool)
{
    for (int64_t q = 0; q < s->n; q += s->block)
        for (int64_t k = 0; k <= q; k += s->block) /* a first block that sees nothing, too */
            run(s, d, who, false, q, k, s->block, k > 0, pool);
    for (int64_t q = 0; q < s->n; q += s->block)
        for (int64_t k = 0; k <= q; k += s->block)
            run(s, d, who, true, q, k, s->block, true, pool);
}

/* bf16: probabilities, their gradients and o are rounded (2^-9 each) where they enter a product. */
static void compare(const struct shape *s, const struct data *want, const struct data *got, const char *who,
                    bool is_half)
{
    static const char *const names[] = { "q", "k", "v", "do", "o", "lse", "dq", "dk", "dv" };
    for (int what = O; what < N_MATRICES; what++) {
        double most = 0, off = 0;
        for (int64_t i = 0; i < s->n * cols_of(&s->attr, what); i++) {
            double diff = fabs((double)want->x[what][i] - (double)got->x[what][i]);
            most = fmax(most, fabs((double)want->x[what][i]));
            off = diff > off || isnan(diff) ? diff : off;
        }
        if (!(off <= (is_half ? 0x1p-7 : 16 * 0x1p-24 * sqrt((double)s->n)) * most))
            fail_msg("%s, %s: %s is off by %g of %g", s->name, who, names[what], off, most);
    }
}

static void blocks_add_up_to_the_whole(void **state)
{
    (void)state;
    struct data *whole = malloc(sizeof *whole), *parts = malloc(sizeof *parts);
    struct tr_pool *pool = NULL;
    assert_true(whole && parts);
    assert_int_equal(tr_pool_open(2, &pool), TR_OK);
    const char *names[] = { "reference", "fast", "cuda", "cuda bf16" }, *device = getenv("TR_TEST_DEVICE");
    bool has_gpu = device && strcmp(device, "cuda") == 0;
    if (has_gpu) {
        assert_int_equal(tr_device_open("cuda", &gpu), TR_OK);
        assert_int_equal(tr_column_of("cuda")->open(&gpu, false), TR_OK);
        assert_int_equal(tr_device_reserve(&gpu, TR_SPACE_DEVICE, sizeof(struct data), "data", &gpu_data), TR_OK);
        assert_int_equal(tr_device_reserve(&gpu, TR_SPACE_DEVICE, GPU_SCRATCH, "scratch", &gpu_scratch), TR_OK);
    }
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++)
        for (int who = REFERENCE; who <= (has_gpu ? CUDA_BF16 : FAST); who++) {
            const struct shape *s = &shapes[i];
            fill(s, whole);
            fill(s, parts);
            run(s, whole, REFERENCE, false, 0, 0, s->n, false, pool);
            run(s, whole, REFERENCE, true, 0, 0, s->n, false, pool);
            by_block(s, parts, (enum who)who, pool);
            compare(s, whole, parts, names[who], who == CUDA_BF16);
        }
    tr_pool_close(pool);
    free(whole);
    free(parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(blocks_add_up_to_the_whole) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
