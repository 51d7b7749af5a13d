/* price.c - the seconds of an op of a program. Products and attention are priced by flops and shape, collectives by
 * their bytes. All other ops are priced by bytes on a GPU, and by the measured time of an element on a CPU, where
 * arithmetic and not memory sets the speed. */
#include "plan/price.h"
#include <assert.h>
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
    return tr_cost_gemm(&chip, p->dtype == TR_F32 ? TR_PRECISION_FP32 : TR_PRECISION_16, 1, m, n, k);
}

static double product(const struct tr_price *p, const struct tr_call *c, int unused)
{
    (void)unused;
    return gemm(p, (double)c->in[0].rows, (double)c->out[0].cols, (double)c->in[0].cols);
}

/* Square products of as many flops. */
static double by_flops(const struct tr_price *p, const struct tr_call *c, int unused)
{
    double side = cbrt(tr_op_flops(c) / 2);
    (void)unused;
    return gemm(p, side, side, side);
}

static double product_dw(const struct tr_price *p, const struct tr_call *c, int unused)
{
    bool sums_bias = c->out[1].rows > 0 && p->chip.all.op_s[TR_COST_ADD] == 0;
    double bias = sums_bias ? tr_cost_stream(&p->chip, view_bytes(&c->in[0])) : 0;
    (void)unused;
    return gemm(p, (double)c->in[0].cols, (double)c->in[1].cols, (double)c->in[0].rows) + bias;
}

/* The head: the logits with their loss, and in training also their gradient. */
static double head(const struct tr_price *p, const struct tr_call *c, int n_products)
{
    double T = (double)c->in[0].rows, D = (double)c->in[0].cols, V = ceil((double)c->in[1].rows / 8) * 8;
    const struct tr_chip *chip = &p->chip;
    double t = gemm(p, T, V, D) + (n_products > 1 ? gemm(p, T, D, V) : 0) + (n_products > 2 ? gemm(p, V, D, T) : 0);
    enum tr_op_cost cost = n_products > 2 ? TR_COST_LOSS : n_products > 1 ? TR_COST_STATS_BWD : TR_COST_STATS;
    if (chip->all.gemm.n > 0)
        return t + T * V * chip->all.op_s[cost];
    return t + tr_cost_stream(chip, (n_products > 1 ? 6 : 4) * T * V);
}

/* n_blocks: in how many kernel calls each row of q takes part. */
static double attention_blocks(const struct tr_price *p, const struct tr_call *c, bool is_backward, double n_blocks)
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
    return flops / (chip->peak[TR_PRECISION_16] * share) + chip->launch_s * (is_backward ? 3 : 1);
}

static double attention(const struct tr_price *p, const struct tr_call *c, int is_backward)
{
    return attention_blocks(p, c, is_backward, 1);
}

/* The keys and values of all ranks pass each rank once, in the backward together with their gradients. A rank has two
 * of the 2 n pieces of a row; together they meet 2 n + 1 pieces of keys. */
static double ring(const struct tr_price *p, const struct tr_call *c, int is_backward)
{
    const struct tr_view *q = &c->in[is_backward];
    double copied = elements(&q[0]) + (is_backward ? 4 : 2) * elements(&q[1]);
    return attention_blocks(p, c, is_backward, p->size[TR_AXIS_CP] + 0.5) + copied * p->chip.all.op_s[TR_COST_ADD];
}

/* ---- the rest ---- */

static double elementwise(const struct tr_price *p, const struct tr_call *c, int cost)
{
    const struct tr_chip *chip = &p->chip;
    double each = chip->all.op_s[cost];
    if (each > 0)
        return elements(&c->out[0]) * each;
    return tr_cost_stream(chip, p->impl->fusion * moved_bytes(c));
}

/* ---- messages ---- */

static double collective_of(const struct tr_price *p, const struct tr_call *c, int kind)
{
    bool is_by_input = kind == TR_COST_REDUCE_SCATTER || kind == TR_COST_ALL_TO_ALL;
    struct tr_group g = tr_price_group(p, (enum tr_axis)c->attr.axis);
    return tr_cost_collective(p->machine, (enum tr_collective)kind, g,
                              view_bytes(is_by_input ? &c->in[0] : &c->out[0]));
}

static double ring_of(const struct tr_price *p, const struct tr_call *c, int is_backward)
{
    struct tr_group g = tr_price_group(p, TR_AXIS_CP);
    double kv = view_bytes(&c->in[is_backward ? 2 : 1]) + view_bytes(&c->in[is_backward ? 3 : 2]);
    return tr_cost_collective(p->machine, TR_COST_ALL_GATHER, g, g.n * kv * (is_backward ? 3 : 1));
}

double tr_price_sums(const struct tr_price *p, const struct tr_compiled *c, int bucket, enum tr_axis axis)
{
    const struct tr_placement *x = &c->place;
    struct tr_group g = tr_price_group(p, axis);
    bool is_added = axis == TR_AXIS_TP || (axis == TR_AXIS_SHARD && c->opt.layout.zero >= 1);
    double n[2] = { 0 }; /* sums of the two exchanges */
    for (int i = 0; is_added && c->opt.optim->has_sums && i < x->model->n_params; i++)
        if (x->param[i].bucket == bucket) {
            n[0] += (double)tr_param_sums(x, i);
            n[1]++;
        }
    return n[1] == 0 ? 0
                     : tr_cost_collective(p->machine, TR_COST_ALL_REDUCE, g, n[0] * sizeof(double)) +
                           tr_cost_collective(p->machine, TR_COST_ALL_REDUCE, g, n[1] * sizeof(double));
}

/* ---- one line for each price class ---- */

typedef double price_fn(const struct tr_price *p, const struct tr_call *c, int arg);

static const struct {
    price_fn *kernel; /* NULL: it takes no time */
    int arg;
    price_fn *traffic; /* NULL: it sends nothing */
    int traffic_arg;
} classes[] = {
    [TR_PRICE_STREAM] = { .kernel = elementwise, .arg = TR_COST_ADD },
    [TR_PRICE_NORM] = { .kernel = elementwise, .arg = TR_COST_NORM },
    [TR_PRICE_NORM_BWD] = { .kernel = elementwise, .arg = TR_COST_NORM_BWD },
    [TR_PRICE_RMSNORM] = { .kernel = elementwise, .arg = TR_COST_RMSNORM },
    [TR_PRICE_RMSNORM_BWD] = { .kernel = elementwise, .arg = TR_COST_RMSNORM_BWD },
    [TR_PRICE_ACT] = { .kernel = elementwise, .arg = TR_COST_ACT },
    [TR_PRICE_ACT_BWD] = { .kernel = elementwise, .arg = TR_COST_ACT_BWD },
    [TR_PRICE_GLU] = { .kernel = elementwise, .arg = TR_COST_GLU },
    [TR_PRICE_GLU_BWD] = { .kernel = elementwise, .arg = TR_COST_GLU_BWD },
    [TR_PRICE_ROPE] = { .kernel = elementwise, .arg = TR_COST_ROPE },
    [TR_PRICE_UPDATE] = { .kernel = elementwise, .arg = TR_COST_UPDATE },
    [TR_PRICE_PRODUCT] = { .kernel = product },
    [TR_PRICE_PRODUCT_DW] = { .kernel = product_dw },
    [TR_PRICE_HEAD] = { .kernel = head, .arg = 1 },
    [TR_PRICE_HEAD_GRAD] = { .kernel = head, .arg = 2 },
    [TR_PRICE_HEAD_BOTH] = { .kernel = head, .arg = 3 },
    [TR_PRICE_ATTENTION] = { .kernel = attention, .arg = false },
    [TR_PRICE_ATTENTION_BWD] = { .kernel = attention, .arg = true },
    [TR_PRICE_RING] = { .kernel = ring, .arg = false, .traffic = ring_of, .traffic_arg = false },
    [TR_PRICE_RING_BWD] = { .kernel = ring, .arg = true, .traffic = ring_of, .traffic_arg = true },
    [TR_PRICE_ALL_REDUCE] = { .traffic = collective_of, .traffic_arg = TR_COST_ALL_REDUCE },
    [TR_PRICE_ALL_GATHER] = { .traffic = collective_of, .traffic_arg = TR_COST_ALL_GATHER },
    [TR_PRICE_REDUCE_SCATTER] = { .traffic = collective_of, .traffic_arg = TR_COST_REDUCE_SCATTER },
    [TR_PRICE_ALL_TO_ALL] = { .traffic = collective_of, .traffic_arg = TR_COST_ALL_TO_ALL },
    [TR_PRICE_FLOPS] = { .kernel = by_flops },
    [TR_PRICE_FREE] = { NULL },
};
static_assert(TR_COUNT_OF(classes) == TR_PRICE_COUNT, "one line per price class");

double tr_price_traffic(const struct tr_price *p, const struct tr_program *program, const struct tr_node *n)
{
    struct tr_call c;
    enum tr_price_class k = tr_op_row(n->op)->price;
    tr_node_call(program, n, &c);
    return classes[k].traffic ? classes[k].traffic(p, &c, classes[k].traffic_arg) : 0;
}

double tr_price_call(const struct tr_price *p, const struct tr_call *c)
{
    enum tr_price_class k = tr_op_row(c->op)->price;
    return classes[k].kernel ? classes[k].kernel(p, c, classes[k].arg) : 0;
}

double tr_price_node(const struct tr_price *p, const struct tr_program *program, const struct tr_node *n)
{
    struct tr_call c;
    tr_node_call(program, n, &c);
    return tr_price_call(p, &c);
}
