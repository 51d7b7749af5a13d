/* price.c - ops of a program in seconds. Products and attention by flops and shape, collectives by their bytes, all
 * else by bytes on a GPU and by measured time of an element on a CPU, where arithmetic, not memory, decides.
 */
#include "plan/price.h"
#include <math.h>

void tr_price_open(const struct tr_compiled *c, const struct tr_machine *m, struct tr_price *out)
{
    int n = 1;
    *out = (struct tr_price){ .machine = m, .impl = &tr_impl_trireme, .dtype = c->opt.compute_dtype };
    for (int a = 0; a < TR_AXES; a++) {
        out->size[a] = c->opt.layout.size[a] > 1 ? c->opt.layout.size[a] : 1;
        n *= out->size[a];
    }
    out->chip = m->is_shared ? tr_chip_part(&m->chip, n < m->node ? n : m->node) : m->chip;
}

struct tr_group tr_price_group(const struct tr_price *p, enum tr_axis axis)
{
    double stride = 1;
    for (int a = TR_AXES - 1; a > (int)axis; a--) /* the last axis is the innermost */
        stride *= p->size[a];
    return tr_group_of(p->machine, p->size[axis], stride);
}

static double view_bytes(const struct tr_view *v)
{
    return (double)v->rows * (double)v->cols * (double)tr_dtype_bytes(v->dtype);
}

static double moved_bytes(const struct tr_call *c)
{
    double sum = 0;
    for (int i = 0; i < TR_MAX_IN; i++)
        sum += c->in[i].rows > 0 ? view_bytes(&c->in[i]) : 0;
    for (int i = 0; i < TR_MAX_OUT; i++)
        sum += c->out[i].rows > 0 ? view_bytes(&c->out[i]) : 0;
    return sum;
}

static double elements(const struct tr_view *v)
{
    return (double)v->rows * (double)v->cols;
}

/* ---- products ---- */

static double gemm(const struct tr_price *p, double m, double n, double k)
{
    struct tr_chip chip = p->chip;
    chip.held = p->impl->product;
    return tr_cost_gemm(&chip, p->dtype == TR_F32 ? TR_NUMBER_FP32 : TR_NUMBER_16, 1, m, n, k);
}

/* Logits of blocks of rows, each with its loss and, training, its gradient. */
static double head(const struct tr_price *p, const struct tr_call *c, double n_products)
{
    double T = (double)c->in[0].rows, D = (double)c->in[0].cols, V = ceil((double)c->in[1].rows / 8) * 8;
    const struct tr_chip *chip = &p->chip;
    double t = gemm(p, T, V, D) + (n_products > 1 ? gemm(p, T, D, V) : 0) + (n_products > 2 ? gemm(p, V, D, T) : 0);
    enum tr_op_cost cost = n_products > 2 ? TR_COST_LOSS : n_products > 1 ? TR_COST_STATS_BWD : TR_COST_STATS;
    if (chip->all.gemm.n > 0)
        return t + T * V * chip->all.op_s[cost];
    return t + tr_cost_stream(chip, (n_products > 1 ? 6 : 4) * T * V);
}

/* n_blocks: kernels that each row of q is in. */
static double attention(const struct tr_price *p, const struct tr_call *c, bool is_backward, double n_blocks)
{
    const struct tr_chip *chip = &p->chip;
    const double *op_s = chip->all.op_s;
    double flops = tr_op_flops(c) * (is_backward ? 1.25 : 1);
    double per_flop = op_s[is_backward ? TR_COST_ATTENTION_BWD : TR_COST_ATTENTION];
    if (per_flop > 0)
        return flops * per_flop + n_blocks * elements(&c->in[is_backward]) *
                                      op_s[is_backward ? TR_COST_ATTENTION_ROW_BWD : TR_COST_ATTENTION_ROW];
    double seq = (c->attr.seq_len > 0 ? (double)c->attr.seq_len : (double)c->in[0].rows) / p->size[TR_AXIS_CP];
    double share = tr_core_share(chip->generation, p->impl, c->attr.head_dim, seq, is_backward);
    return flops / (chip->peak[TR_NUMBER_16] * share) + chip->launch_s * (is_backward ? 3 : 1);
}

/* ---- the rest ---- */

static enum tr_op_cost class_of(enum tr_opcode op)
{
    switch (op) {
    case TR_OP_LAYERNORM:
        return TR_COST_NORM;
    case TR_OP_LAYERNORM_BWD:
        return TR_COST_NORM_BWD;
    case TR_OP_RMSNORM:
        return TR_COST_RMSNORM;
    case TR_OP_RMSNORM_BWD:
        return TR_COST_RMSNORM_BWD;
    case TR_OP_ACT:
        return TR_COST_ACT;
    case TR_OP_ACT_BWD:
        return TR_COST_ACT_BWD;
    case TR_OP_GLU:
        return TR_COST_GLU;
    case TR_OP_GLU_BWD:
        return TR_COST_GLU_BWD;
    case TR_OP_ROPE:
        return TR_COST_ROPE;
    case TR_OP_ADAMW:
    case TR_OP_LION:
    case TR_OP_SGD:
        return TR_COST_UPDATE;
    default:
        return TR_COST_ADD;
    }
}

static double other(const struct tr_price *p, const struct tr_call *c)
{
    const struct tr_chip *chip = &p->chip;
    double each = chip->all.op_s[class_of(c->op)];
    if (each > 0)
        return elements(&c->out[0]) * each;
    return tr_cost_stream(chip, p->impl->fusion * moved_bytes(c));
}

static double collective(const struct tr_price *p, const struct tr_call *c)
{
    struct tr_group g = tr_price_group(p, (enum tr_axis)c->attr.axis);
    switch (c->op) {
    case TR_OP_ALL_REDUCE:
        return tr_cost_collective(p->machine, TR_COST_ALL_REDUCE, g, view_bytes(&c->out[0]));
    case TR_OP_ALL_GATHER:
        return tr_cost_collective(p->machine, TR_COST_ALL_GATHER, g, view_bytes(&c->out[0]));
    case TR_OP_REDUCE_SCATTER:
        return tr_cost_collective(p->machine, TR_COST_REDUCE_SCATTER, g, view_bytes(&c->in[0]));
    case TR_OP_ALL_TO_ALL:
        return tr_cost_collective(p->machine, TR_COST_ALL_TO_ALL, g, view_bytes(&c->in[0]));
    default:
        return 0;
    }
}

/* Keys and values of all ranks pass by: once forward; backward with their gradients. A rank has two pieces of a row's
 * 2 n, which meet 2 n + 1 pieces of keys. */
static double ring_attention(const struct tr_price *p, const struct tr_call *c, bool is_backward)
{
    const struct tr_view *q = &c->in[is_backward];
    double copied = elements(&q[0]) + (is_backward ? 4 : 2) * elements(&q[1]);
    return attention(p, c, is_backward, p->size[TR_AXIS_CP] + 0.5) + copied * p->chip.all.op_s[TR_COST_ADD];
}

static double ring_traffic(const struct tr_price *p, const struct tr_call *c, bool is_backward)
{
    struct tr_group g = tr_price_group(p, TR_AXIS_CP);
    double kv = view_bytes(&c->in[is_backward ? 2 : 1]) + view_bytes(&c->in[is_backward ? 3 : 2]);
    return tr_cost_collective(p->machine, TR_COST_ALL_GATHER, g, g.n * kv * (is_backward ? 3 : 1));
}

double tr_price_traffic(const struct tr_price *p, const struct tr_program *program, const struct tr_node *n)
{
    struct tr_call c;
    tr_node_call(program, n, &c);
    if (c.op == TR_OP_RING_ATTENTION || c.op == TR_OP_RING_ATTENTION_BWD)
        return ring_traffic(p, &c, c.op == TR_OP_RING_ATTENTION_BWD);
    return tr_op_is_collective(c.op) ? collective(p, &c) : 0;
}

double tr_price_node(const struct tr_price *p, const struct tr_program *program, const struct tr_node *n)
{
    struct tr_call c;
    tr_node_call(program, n, &c);
    double m = (double)c.in[0].rows, k = (double)c.in[0].cols;
    switch (c.op) {
    case TR_OP_LINEAR:
    case TR_OP_LINEAR_DX:
    case TR_OP_LINEAR_ADD:
    case TR_OP_LINEAR_ACT:
    case TR_OP_LINEAR_DX_ACT:
        return gemm(p, m, (double)c.out[0].cols, k);
    case TR_OP_LINEAR_DW: {
        double bias = c.out[1].rows > 0 && p->chip.all.op_s[TR_COST_ADD] == 0
                          ? tr_cost_stream(&p->chip, view_bytes(&c.in[0]))
                          : 0;
        return gemm(p, k, (double)c.in[1].cols, m) + bias;
    }
    case TR_OP_HEAD_LOSS:
    case TR_OP_HEAD_STATS:
        return head(p, &c, 1);
    case TR_OP_HEAD_LOSS_GRAD:
        return head(p, &c, 3);
    case TR_OP_HEAD_GRAD:
        return head(p, &c, 2);
    case TR_OP_ATTENTION:
        return attention(p, &c, false, 1);
    case TR_OP_ATTENTION_BWD:
        return attention(p, &c, true, 1);
    case TR_OP_RING_ATTENTION:
        return ring_attention(p, &c, false);
    case TR_OP_RING_ATTENTION_BWD:
        return ring_attention(p, &c, true);
    default:
        return tr_op_is_collective(c.op) ? 0 : other(p, &c);
    }
}
