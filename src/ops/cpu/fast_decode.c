/* fast_decode.c - attention of a few new rows over a cache of keys and values. Generation runs it once per token and
 * layer.
 *
 * A task is one (row, head). It walks the keys in blocks with a running maximum, so it reads the cache once and stores
 * only one head of output between blocks. The bytes of the cache bound its speed; the blocks only keep exp off the
 * critical path.
 */
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"
#include <math.h>

enum { KEYS = 32, MAX_HEAD = 1024 };

static float dot_of(struct run a, struct run b, int64_t n)
{
    vf sum[TR_SUM_VECS] = { 0 };
    for (int64_t j = 0; j < n; j += TR_SUM_LANES)
#pragma GCC unroll 16
        for (int k = 0; k < TR_SUM_VECS; k++)
            sum[k] += v_load(a, j + k * TR_LANES, n) * v_load(b, j + k * TR_LANES, n);
    return v_sum(sum);
}

static void cached_head(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    const struct tr_attr *a = &c->attr;
    int64_t d = end - col, kv_col = col / d / (a->n_heads_q / a->n_heads_kv) * d;
    int64_t last = ((const int32_t *)c->in[3].data)[row * c->in[3].ld];
    int64_t first = a->window > 0 ? tr_max64(0, last - a->window + 1) : 0;
    struct run q = run_at(&c->in[0], row, col), out = run_at(&c->out[0], row, col);
    float o[MAX_HEAD] = { 0 }, score[KEYS], top = -INFINITY, sum = 0, factor = v_factor(c);
    struct run acc = { .p = (char *)o };
    for (int64_t j = first; j <= last; j += KEYS) {
        int64_t n = tr_min64(KEYS, last + 1 - j);
        float best = top;
        for (int64_t k = 0; k < n; k++) {
            score[k] = factor * dot_of(q, run_at(&c->in[1], j + k, kv_col), d);
            if (a->softcap > 0)
                score[k] = a->softcap * tanhf(score[k] / a->softcap);
            best = score[k] > best ? score[k] : best;
        }
        float keep = expf(top - best);
        sum *= keep;
        for (int64_t e = 0; e < d; e += TR_LANES)
            v_store(acc, e, d, v_load(acc, e, d) * keep);
        for (int64_t k = 0; k < n; k++) {
            float w = expf(score[k] - best);
            struct run v = run_at(&c->in[2], j + k, kv_col);
            sum += w;
            for (int64_t e = 0; e < d; e += TR_LANES)
                v_store(acc, e, d, v_load(acc, e, d) + v_load(v, e, d) * w);
        }
        top = best;
    }
    for (int64_t e = 0; e < d; e += TR_LANES)
        v_store(out, e, d, v_load(acc, e, d) / sum);
}

void TR_FAST(attention_cached)(const struct tr_call *c)
{
    TR_BUG_ON(c->attr.head_dim > MAX_HEAD);
    tr_fast_run(c, c->in[0].rows, c->in[0].cols, c->attr.head_dim, cached_head);
}
