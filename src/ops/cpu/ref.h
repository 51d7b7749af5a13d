/* ref.h - the reference kernels and how they access memory: they read any element type, compute in double and round
 * once. */
#ifndef TR_OPS_CPU_REF_H
#define TR_OPS_CPU_REF_H

#include "ops/ops.h"

#define X(id, name) void tr_ref_##id(const struct tr_call *c);
TR_OP_LIST(X)
#undef X

double tr_ref_get(const struct tr_view *v, int64_t row, int64_t col);
int64_t tr_ref_int(const struct tr_view *v, int64_t row); /* first column of an I32 or I64 view */
void tr_ref_put(const struct tr_view *v, int64_t row, int64_t col, double x);
/* Stores x in an accumulating output: adds it when c->accumulate[out], else overwrites. Skips an absent output. */
void tr_ref_put_acc(const struct tr_call *c, int out, int64_t row, int64_t col, double x);

/* Adds 16 random bits below the bits that stay, then truncates, so the expected value is x. Inf and NaN stay. */
static inline uint16_t tr_bf16_randomly(float x, uint32_t random)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7f800000u) == 0x7f800000u)
        return tr_bf16_of_f32(x);
    return (uint16_t)((u + (random & 0xffffu)) >> 16);
}
/* Element i of p of an update, rounded with random bits in BF16, and its copy. */
void tr_ref_put_p(const struct tr_call *c, int64_t i, double x);

/* The element, or zero for an absent view (optional bias or addend). */
static inline double tr_ref_opt(const struct tr_view *v, int64_t row, int64_t col)
{
    return v->data ? tr_ref_get(v, row, col) : 0.0;
}

static inline double tr_ref_factor(const struct tr_call *c)
{
    return c->attr.scale == 0.0f ? 1.0 : (double)c->attr.scale;
}

double tr_ref_act_slope(int32_t kind, double x); /* derivative of enum tr_act */
double tr_ref_softcap(double s, float cap);
double tr_ref_softcap_slope(double capped, float cap); /* derivative, from the capped value */

#endif
