/* cost.c - what one operation takes on a machine: a roofline with the things that bend it. Products lose to tiles that
 * do not fill the last wave of multiprocessors, to short inner dimensions and to rows that tensor cores cannot load;
 * kernels that stream lose a launch; collectives pay latency for each hop and share the thinnest link on their way.
 */
#include "plan/machine.h"
#include <math.h>

double tr_curve_at(const struct tr_curve *c, double x)
{
    int i = 1;
    if (c->n == 0)
        return 0;
    if (x <= c->at[0])
        return c->rate[0];
    while (i < c->n && c->at[i] < x)
        i++;
    if (i == c->n)
        return c->rate[c->n - 1];
    double share = log(x / c->at[i - 1]) / log(c->at[i] / c->at[i - 1]);
    return c->rate[i - 1] * pow(c->rate[i] / c->rate[i - 1], share);
}

/* Ranks with one core each are measured, as is a rank with all of them; between the two, times go with a power of the
 * number of ranks. Halving what all cores do together is not what a core does alone: small products and short kernels
 * gain little from a second core. */
struct tr_chip tr_chip_part(const struct tr_chip *c, double n)
{
    struct tr_chip part = *c;
    bool has_one = c->one.gemm.n > 0 && c->n_units > 1;
    double to_one = has_one ? fmin(1, log(n) / log(c->n_units)) : 0;
    double more = has_one ? fmax(1, n / c->n_units) : n;
    for (int i = 0; i < TR_PRECISION_COUNT; i++)
        part.peak[i] /= n;
    part.memory_rate /= n;
    if (to_one == 1)
        part.all.gemm = c->one.gemm;
    for (int i = 0; i < part.all.gemm.n; i++) {
        double *rate = &part.all.gemm.rate[i];
        if (to_one > 0 && to_one < 1)
            *rate *= pow(tr_curve_at(&c->one.gemm, part.all.gemm.at[i]) / *rate, to_one);
        *rate /= more;
    }
    for (int k = 0; k < TR_OP_COSTS; k++) {
        if (to_one > 0 && c->all.op_s[k] > 0 && c->one.op_s[k] > 0)
            part.all.op_s[k] *= pow(c->one.op_s[k] / c->all.op_s[k], to_one);
        part.all.op_s[k] *= more;
    }
    return part;
}

/* Best of a few tiles: a larger tile reuses more, a smaller one fills the last wave better. */
static double tile_share(double count, double m, double n, double n_units)
{
    static const struct {
        double m, n, share;
    } tiles[] = { { 256, 128, 1 }, { 128, 256, 1 }, { 128, 128, 0.94 }, { 128, 64, 0.80 }, { 64, 64, 0.65 } };
    double best = 0;
    for (size_t i = 0; i < TR_COUNT_OF(tiles); i++) {
        double n_tiles = count * ceil(m / tiles[i].m) * ceil(n / tiles[i].n), waves = ceil(n_tiles / n_units);
        double useful = count * (m / tiles[i].m) * (n / tiles[i].n);
        double share = tiles[i].share * useful / (waves * n_units);
        best = share > best ? share : best;
    }
    return best;
}

/* Tensor cores load 16 bytes at once: rows that are no multiple of that go element by element. */
static double alignment_share(enum tr_precision precision, double n, double k)
{
    double step = precision == TR_PRECISION_FP32  ? 4
                  : precision == TR_PRECISION_16  ? 8
                  : precision == TR_PRECISION_FP8 ? 16
                                                  : 32;
    return fmod(n, step) == 0 && fmod(k, step) == 0 ? 1 : 0.04;
}

double tr_cost_gemm(const struct tr_chip *c, enum tr_precision precision, double count, double m, double n, double k)
{
    static const double bytes[] = { 4, 2, 1, 0.5625 };
    double flops = 2 * count * m * n * k;
    if (c->all.gemm.n > 0)
        return flops / tr_curve_at(&c->all.gemm, flops / count) + c->launch_s;
    double peak = c->peak[precision] > 0 ? c->peak[precision] : c->peak[TR_PRECISION_16];
    static const double of_share[] = { 1, 1, 0.88, 0.72 }; /* MAMF: H100 0.80 and 0.71, B200 0.78 and 0.76 */
    double fill = tile_share(count, m, n, c->n_units) * k / (k + 64) * alignment_share(precision, n, k);
    double share = c->gemm_share * of_share[precision] * (c->held > 0 && c->held < fill ? c->held : fill);
    double moved = count * (bytes[precision] * (m * k + k * n) + (precision == TR_PRECISION_FP32 ? 4 : 2) * m * n);
    double compute = flops / (peak * share), memory = moved / (c->memory_rate * c->stream_share);
    return (compute > memory ? compute : memory) + c->launch_s;
}

double tr_cost_stream(const struct tr_chip *c, double bytes)
{
    return bytes / (c->memory_rate * c->stream_share) + c->launch_s;
}

struct tr_group tr_group_of(const struct tr_machine *m, double n, double stride)
{
    double in = stride >= m->domain ? 1 : floor(m->domain / stride);
    return (struct tr_group){ n, in < n ? in : n };
}

static double over(const struct tr_link *l, double bytes, double rate)
{
    return bytes / rate + l->ramp_s * bytes / (bytes + 64e6);
}

/* Rings, or trees where hops would cost more: in a node the ring's latency is nearly flat (all links are equal),
 * between nodes a tree of log2(nodes) hops. Between nodes every chip of the group that is in a node brings its own
 * card. */
static double ring(const struct tr_machine *m, struct tr_group g, double bytes)
{
    double nodes = g.n / g.in, moved = bytes * (g.n - 1) / g.n, fast = m->fast.rate * m->fast.share;
    double t = 0;
    if (g.in > 1)
        t = m->fast.latency_s + over(&m->fast, moved, fast);
    if (nodes > 1) {
        double wide = g.in * m->slow.rate * m->slow.share, rate = g.in > 1 && fast < wide ? fast : wide;
        t = m->slow.latency_s * (1 + log2(nodes)) + over(&m->slow, moved, rate);
    }
    return t;
}

static double all_to_all(const struct tr_machine *m, struct tr_group g, double bytes)
{
    double in = bytes * (g.in - 1) / g.n / (m->fast.rate * m->fast.share);
    double out = bytes * (g.n - g.in) / g.n / (m->slow.rate * m->slow.share);
    return (g.n > g.in ? m->slow.latency_s : m->fast.latency_s) * 2 + (in > out ? in : out);
}

double tr_cost_collective(const struct tr_machine *m, enum tr_collective kind, struct tr_group g, double bytes)
{
    if (g.n <= 1 || bytes <= 0)
        return 0;
    switch (kind) {
    case TR_COST_ALL_REDUCE:
        return 2 * ring(m, g, bytes);
    case TR_COST_ALL_GATHER:
    case TR_COST_REDUCE_SCATTER:
        return ring(m, g, bytes);
    case TR_COST_ALL_TO_ALL:
        return all_to_all(m, g, bytes);
    case TR_COST_SEND:
    default: {
        const struct tr_link *l = g.in > 1 ? &m->fast : &m->slow;
        return l->latency_s + over(l, bytes, l->rate * l->share);
    }
    }
}
