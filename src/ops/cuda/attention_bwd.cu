/* attention_bwd.cu - attention on tensor cores of any GPU from compute capability 8.0 on: the backward, and which calls
 * these kernels cover.
 *
 * Three kernels: do.o of every row (here), dq (attention_dq.cu), dk and dv (attention_dkv.cu). Scores are computed
 * twice, so that every sum has one owner and a fixed order: the same bits from run to run without atomics. Rejected: dq
 * added by the kernel of dk and dv in turns; blocks of threads then wait for one another.
 */
#include "ops/cuda/attention_bwd.cuh"
#include "ops/cuda/attention_launch.cuh"

/* ---- do.o: LANES lanes a row and head, 8 columns each ---- */

enum { DELTA_THREADS = 128 };

template <typename T, int LANES> __global__ void __launch_bounds__(DELTA_THREADS) tile_delta(bwd_call<T> b)
{
    constexpr int ROWS = DELTA_THREADS / LANES;
    int64_t h = blockIdx.x % (unsigned)b.t.n_heads, i = (int64_t)(blockIdx.x / (unsigned)b.t.n_heads) * ROWS;
    int e = (int)threadIdx.x % LANES * 8;
    i += threadIdx.x / LANES;
    bool is_in = i < b.t.rule.n_q;
    float sum = 0;
    if (is_in && e < b.t.d) {
        float p[8], q[8];
        load<8>(b.d_o.at(i, h * b.t.d + e), p);
        load<8>(b.o.at(i, h * b.t.d + e), q);
#pragma unroll
        for (int v = 0; v < 8; v++)
            sum += p[v] * q[v];
    }
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (is_in && e == 0)
        b.delta[h * b.t.rule.n_q + i] = sum;
}

template <typename T, int LANES> static void launch_delta(const struct tr_call *c, const bwd_call<T> &b)
{
    int64_t n_blocks = ceil_div(b.t.rule.n_q, DELTA_THREADS / LANES) * b.t.n_heads;
    start(c, tile_delta<T, LANES>, (unsigned)n_blocks, DELTA_THREADS, 0, b);
}

/* ---- the call ---- */

/* Is the view absent, or such that its rows can be copied 16 bytes at a time? */
static bool is_operand(const struct tr_view *v, enum tr_dtype dtype)
{
    return v->dtype == dtype && v->ld % 8 == 0 && (uintptr_t)v->data % 16 == 0;
}

/* Can two neighbouring columns be stored at once? */
static bool is_result(const struct tr_view *v, enum tr_dtype dtype)
{
    return (v->dtype == dtype || v->dtype == TR_F32) && v->ld % 2 == 0 &&
           (uintptr_t)v->data % (2 * tr_dtype_bytes(v->dtype)) == 0;
}

bool tr_tile_attention_covers(const struct tr_call *c)
{
    bool is_bwd = c->op == TR_OP_ATTENTION_BWD;
    const struct tr_attr *a = &c->attr;
    enum tr_dtype dtype = c->in[0].dtype;
    if (!is_half(c->in[0]) || a->head_dim % 8 != 0 || a->head_dim > 256 || tile_shared(a->head_dim) > shared_of_gpu())
        return false;
    for (int i = 0; i < (is_bwd ? 5 : 3); i++)
        if (!is_operand(&c->in[i], dtype))
            return false;
    for (int i = 0; i < (is_bwd ? 3 : 1); i++)
        if (!is_result(&c->out[i], dtype) || c->out[i].dtype != c->out[0].dtype)
            return false;
    return true;
}

template <typename T> static bool backward(const struct tr_call *c)
{
    bwd_call<T> b = {};
    b.t = tile_call_of<T>(c, 1, 6, &c->in[5]);
    b.d_o = mat_of<const T>(c->in[0]), b.o = mat_of<const T>(c->in[4]);
    b.delta = (float *)c->scratch;
    b.is_f32 = !is_half(c->out[0]);
    for (int i = 0; i < 3; i++)
        b.out[i] = c->out[i].data, b.ld[i] = c->out[i].ld, b.adds[i] = c->accumulate[i];
    if (b.t.d <= 64)
        launch_delta<T, 8>(c, b);
    else if (b.t.d <= 128)
        launch_delta<T, 16>(c, b);
    else
        launch_delta<T, 32>(c, b);
    return tile_launch_dq<T>(c, b) && tile_launch_dkv<T>(c, b);
}

bool tr_tile_attention_bwd(const struct tr_call *c)
{
    if (!tr_tile_attention_covers(c))
        return false;
    TR_BUG_ON(!(is_bf16(c->in[0]) ? backward<bf16>(c) : backward<f16>(c)));
    return true;
}
