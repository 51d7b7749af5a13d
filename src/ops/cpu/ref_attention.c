/* ref_attention.c - the definition of causal attention over packed documents, and of its backward.
 *
 * Scores are recomputed wherever they are needed, so there is no (N, N) matrix and no buffer larger than one head.
 */
#include "ops/cpu/dropout.h"
#include "ops/cpu/ref.h"
#include <math.h>

enum { MAX_HEAD_DIM = 1024 };

/* The inputs that both the forward and the backward read. */
struct attn {
    const struct tr_attr *a;
    const struct tr_view *q, *k, *v, *begin, *sample, *position;
    struct tr_dropout dropout;
    double scale;
    int64_t n, d, group;         /* group: query heads per key head */
    int64_t row_q, row_k, end_k; /* q and k are rows [row_q, ..) and [row_k, end_k) of the micro-batch */
};

static struct attn attn_init(const struct tr_call *c, int q, int begin)
{
    const struct tr_attr *a = &c->attr;
    TR_BUG_ON(a->head_dim > MAX_HEAD_DIM || a->n_heads_q % a->n_heads_kv != 0);
    return (struct attn){ .a = a,
                          .q = &c->in[q],
                          .k = &c->in[q + 1],
                          .v = &c->in[q + 2],
                          .begin = &c->in[begin],
                          .sample = &c->in[begin + 1],
                          .position = &c->in[begin + 2],
                          .dropout = tr_dropout_init(a, c->in[begin + 3].data),
                          .scale = tr_ref_factor(c),
                          .n = c->in[q].rows,
                          .d = a->head_dim,
                          .group = a->n_heads_q / a->n_heads_kv,
                          .row_q = a->row_q,
                          .row_k = a->row_k,
                          .end_k = a->row_k + c->in[q + 1].rows };
}

/* First row of k that row i of q sees; i and j count from the first rows of q and k, which may be blocks. */
static int64_t first_seen(const struct attn *t, int64_t i)
{
    int64_t row = t->row_q + i, begin = tr_max64(tr_ref_int(t->begin, row), t->row_k);
    return (t->a->window > 0 ? tr_max64(begin, row - t->a->window + 1) : begin) - t->row_k;
}

/* One past the last row of k that row i of q sees. */
static int64_t seen_end(const struct attn *t, int64_t i)
{
    return tr_min64(t->row_q + i + 1, t->end_k) - t->row_k;
}

static double dot(const struct tr_view *a, int64_t row_a, int64_t col_a, const struct tr_view *b, int64_t row_b,
                  int64_t col_b, int64_t n)
{
    double sum = 0;
    for (int64_t e = 0; e < n; e++)
        sum += tr_ref_get(a, row_a, col_a + e) * tr_ref_get(b, row_b, col_b + e);
    return sum;
}

/* Score of query row i, head h, against key row j; capped. */
static double score(const struct attn *t, int64_t h, int64_t i, int64_t j)
{
    double s = t->scale * dot(t->q, i, h * t->d, t->k, j, h / t->group * t->d, t->d);
    return tr_ref_softcap(s, t->a->softcap);
}

static uint32_t token(const struct attn *t, int64_t row)
{
    return tr_drop_token(tr_ref_int(t->sample, row), (int32_t)tr_ref_int(t->position, row));
}

/* Dropout factor on the probability of (i, j): 1 without dropout. */
static double keep(const struct attn *t, int64_t h, int64_t i, int64_t j)
{
    if (t->a->dropout_p <= 0)
        return 1.0;
    uint32_t query = token(t, t->row_q + i), key = token(t, t->row_k + j);
    struct tr_philox eight = tr_dropout_pair8(&t->dropout, t->a->first + h, query, key);
    return (double)tr_dropout_keep(&t->dropout, &eight, tr_drop_at_of_pair(query, key));
}

static double row_lse(const struct attn *t, int64_t h, int64_t i)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = first_seen(t, i); j < seen_end(t, i); j++)
        max = fmax(max, score(t, h, i, j));
    for (int64_t j = first_seen(t, i); j < seen_end(t, i); j++)
        sum += exp(score(t, h, i, j) - max);
    return sum > 0 ? max + log(sum) : -INFINITY;
}

void tr_ref_ATTENTION(const struct tr_call *c)
{
    struct attn t = attn_init(c, 0, 3);
    for (int64_t h = 0; h < t.a->n_heads_q; h++) {
        for (int64_t i = 0; i < t.n; i++) {
            double o[MAX_HEAD_DIM] = { 0 }, lse = row_lse(&t, h, i), old = 0;
            if (c->accumulate[0]) {
                double was = tr_ref_get(&c->out[1], i, h), top = fmax(was, lse);
                lse = top > -INFINITY ? top + log(exp(was - top) + exp(lse - top)) : top;
                old = was > -INFINITY ? exp(was - lse) : 0;
            }
            for (int64_t j = first_seen(&t, i); j < seen_end(&t, i); j++) {
                double p = exp(score(&t, h, i, j) - lse) * keep(&t, h, i, j);
                for (int64_t e = 0; e < t.d; e++)
                    o[e] += p * tr_ref_get(t.v, j, h / t.group * t.d + e);
            }
            for (int64_t e = 0; e < t.d; e++)
                tr_ref_put(&c->out[0], i, h * t.d + e,
                           o[e] + (old > 0 ? old * tr_ref_get(&c->out[0], i, h * t.d + e) : 0));
            tr_ref_put(&c->out[1], i, h, lse);
        }
    }
}

/* For one pair: *p = dropped probability (what multiplies v), *ds = derivative of the loss by scale * q.k.
 * ds = P * (keep * do.v - do.o) * slope: do.o is the sum over j of P_j * keep_j * do.v_j. */
static void pair(const struct tr_call *c, const struct attn *t, int64_t h, int64_t i, int64_t j, double *p, double *ds)
{
    const struct tr_view *d_o = &c->in[0], *o = &c->in[4], *lse = &c->in[5];
    double s = score(t, h, i, j), prob = exp(s - tr_ref_get(lse, i, h)), factor = keep(t, h, i, j);
    double do_v = dot(d_o, i, h * t->d, t->v, j, h / t->group * t->d, t->d);
    double do_o = dot(d_o, i, h * t->d, o, i, h * t->d, t->d);
    *p = prob * factor;
    *ds = prob * (factor * do_v - do_o) * tr_ref_softcap_slope(s, t->a->softcap);
}

static void backward_q(const struct tr_call *c, const struct attn *t, int64_t h, int64_t i)
{
    double dq[MAX_HEAD_DIM] = { 0 }, p, ds;
    for (int64_t j = first_seen(t, i); j < seen_end(t, i); j++) {
        pair(c, t, h, i, j, &p, &ds);
        for (int64_t e = 0; e < t->d; e++)
            dq[e] += t->scale * ds * tr_ref_get(t->k, j, h / t->group * t->d + e);
    }
    for (int64_t e = 0; e < t->d; e++)
        tr_ref_put_acc(c, 0, i, h * t->d + e, dq[e]);
}

static void backward_kv(const struct tr_call *c, const struct attn *t, int64_t h_kv, int64_t j)
{
    double dk[MAX_HEAD_DIM] = { 0 }, dv[MAX_HEAD_DIM] = { 0 }, p, ds;
    for (int64_t h = h_kv * t->group; h < (h_kv + 1) * t->group; h++) {
        for (int64_t i = 0; i < t->n; i++) {
            if (j < first_seen(t, i) || j >= seen_end(t, i))
                continue;
            pair(c, t, h, i, j, &p, &ds);
            for (int64_t e = 0; e < t->d; e++) {
                dk[e] += t->scale * ds * tr_ref_get(t->q, i, h * t->d + e);
                dv[e] += p * tr_ref_get(&c->in[0], i, h * t->d + e);
            }
        }
    }
    for (int64_t e = 0; e < t->d; e++) {
        tr_ref_put_acc(c, 1, j, h_kv * t->d + e, dk[e]);
        tr_ref_put_acc(c, 2, j, h_kv * t->d + e, dv[e]);
    }
}

void tr_ref_ATTENTION_BWD(const struct tr_call *c)
{
    struct attn t = attn_init(c, 1, 6);
    for (int64_t h = 0; h < t.a->n_heads_q; h++)
        for (int64_t i = 0; i < t.n; i++)
            backward_q(c, &t, h, i);
    for (int64_t h = 0; h < t.a->n_heads_kv; h++)
        for (int64_t j = 0; j < c->in[2].rows; j++)
            backward_kv(c, &t, h, j);
}

/* The ring of one rank. */
void tr_ref_RING_ATTENTION(const struct tr_call *c)
{
    tr_ref_ATTENTION(c);
}

void tr_ref_RING_ATTENTION_BWD(const struct tr_call *c)
{
    tr_ref_ATTENTION_BWD(c);
}

void tr_ref_CACHE_PUT(const struct tr_call *c)
{
    const struct tr_view *x = &c->in[0], *cache = &c->out[0];
    int64_t n_rows = tr_cache_rows(&c->attr, x->rows, cache->rows);
    for (int64_t i = 0; i < x->rows; i++) {
        int64_t row = tr_ref_int(&c->in[1], i), at = tr_cache_first(&c->attr, i, n_rows) + row;
        for (int64_t j = 0; row >= 0 && j < x->cols; j++)
            tr_ref_put(cache, at, j, tr_ref_get(x, i, j));
    }
}

void tr_ref_ATTENTION_CACHED(const struct tr_call *c)
{
    const struct tr_attr *a = &c->attr;
    int64_t n_rows = tr_cache_rows(a, c->in[0].rows, c->in[1].rows);
    struct attn t = { .a = a,
                      .q = &c->in[0],
                      .k = &c->in[1],
                      .v = &c->in[2],
                      .scale = tr_ref_factor(c),
                      .d = a->head_dim,
                      .group = a->n_heads_q / a->n_heads_kv };
    for (int64_t i = 0; i < c->in[0].rows; i++)
        for (int64_t h = 0; h < a->n_heads_q; h++) {
            int64_t last = tr_ref_int(&c->in[3], i), first = a->window > 0 ? tr_max64(0, last - a->window + 1) : 0;
            first += tr_cache_first(a, i, n_rows);
            last += tr_cache_first(a, i, n_rows);
            double top = -INFINITY, sum = 0;
            for (int64_t j = first; j <= last; j++)
                top = fmax(top, score(&t, h, i, j));
            for (int64_t j = first; j <= last; j++)
                sum += exp(score(&t, h, i, j) - top);
            for (int64_t e = 0; e < t.d; e++) {
                double o = 0;
                for (int64_t j = first; j <= last; j++)
                    o += exp(score(&t, h, i, j) - top) / sum * tr_ref_get(t.v, j, h / t.group * t.d + e);
                tr_ref_put(&c->out[0], i, h * t.d + e, o);
            }
        }
}
