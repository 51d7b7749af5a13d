/* forecast_bytes.c - what the fullest rank of a layout holds, before anybody compiles it.
 *
 * Trireme's stages are cut as the compile cuts them (pipeline.c: the most expensive one as cheap as can be, then the
 * most even), and each rank of the pipeline is added up by itself: the first holds most micro-batches, the last the
 * head. Of other trainers only that they balance, or do not, is known. Rejected: the fullest of everything at once,
 * which held up to half more than any rank does.
 */
#include "plan/forecast_impl.h"
#include <math.h>

double tr_shape_expert_params(const struct tr_shape_cost *s)
{
    return s->experts * (s->is_gated ? 3 : 2) * s->hidden * s->ffn;
}

double tr_shard_size(const struct tr_forecast_query *a)
{
    return a->shard > 0 ? a->shard : (double)a->dp * a->cp;
}

/* Experts of a rank. Fewer ranks hold the same ones than hold the rest. */
static double rank_experts(const struct tr_forecast_query *a)
{
    const struct tr_shape_cost *s = &a->shape;
    double n = s->experts > 0 ? s->layers - s->dense_layers + s->n_further : 0;
    return n * tr_shape_expert_params(s) / a->pp / a->ep / (a->splits_experts ? a->tp : 1);
}

/* Of a model's parameters, how many learn. */
static double learning_share(const struct tr_forecast_query *a)
{
    return a->is_frozen ? a->adapter_share : 1;
}

double tr_owned_params(const struct tr_forecast_query *a, const struct tr_forecast *f)
{
    double experts = rank_experts(a), tp = a->splits_experts ? 1 : a->tp;
    double holders = fmax(1, fmin(tr_shard_size(a), (double)a->dp * a->cp * tp / a->ep));
    double all =
        a->zero < 1 ? f->rank_parameters : (f->rank_parameters - experts) / tr_shard_size(a) + experts / holders;
    return learning_share(a) * all;
}

double tr_library_bytes(const struct tr_forecast_query *a)
{
    bool is_host = a->machine && a->machine->is_shared;
    return is_host ? 0 : a->impl->library_bytes + (a->tp * a->pp * a->cp * a->dp > 1 ? a->impl->comm_bytes : 0);
}

/* ---- one rank of the pipeline ---- */

struct place {
    double layers, n_tables; /* embedding, head */
    double kept, split;      /* layers times micro-batches: under way; between the two parts of their backward (zb) */
    bool has_head, splits_backward;
};

static bool is_order(const struct tr_forecast_query *a, const char *name)
{
    return a->pp > 1 && a->schedule && strcmp(a->schedule, name) == 0;
}

static struct place even_place(const struct tr_forecast_query *a, double n_micro)
{
    double p = a->pp, layers = (a->shape.layers + a->shape.n_further) / p;
    double in_flight = is_order(a, "gpipe") ? n_micro : fmin(n_micro, p);
    double more = a->chunks > 1 ? 1 + (p - 1) / (p * a->chunks) : 1;
    return (struct place){ .layers = layers,
                           .n_tables = p == 1 && !a->shape.is_tied ? 2 : 1,
                           .kept = in_flight * more * layers,
                           .split = is_order(a, "zb") ? layers : 0,
                           .has_head = p == 1,
                           .splits_backward = is_order(a, "zb") };
}

struct stage_share { /* into n stages: the last has `last` layers and the head, the `n_more` before it one more than
                        `few` */
    double n, few, n_more, last;
};

static struct stage_share cut_of(const struct tr_forecast_query *a, double head)
{
    double n = (double)a->pp * a->chunks, best = INFINITY, best_squares = INFINITY;
    struct stage_share c = { .n = n };
    for (double last = 0; last <= ceil(a->shape.layers / n); last++) {
        double rest = a->shape.layers - last, few = floor(rest / (n - 1)), n_more = rest - few * (n - 1);
        double worst = fmax(few + (n_more > 0), last + head);
        double squares = (n - 1 - n_more) * few * few + n_more * (few + 1) * (few + 1) + (last + head) * (last + head);
        if (worst < best || (worst <= best && squares <= best_squares)) {
            best = worst;
            best_squares = squares;
            c = (struct stage_share){ n, few, n_more, last };
        }
    }
    return c;
}

static double layers_of(const struct stage_share *c, double stage)
{
    return stage == c->n - 1 ? c->last : c->few + (stage >= c->n - 1 - c->n_more);
}

/* Interleaved, a rank has run 2 (p - r - 1) + (v - 1) p + 1 slots before its first backward. Between the two parts of a
 * split backward the activations of its micro-batch stay, so with zb all ranks hold those of equally many
 * micro-batches, and later ranks have more backwards of which the weight part is still to come. */
static struct place cut_place(const struct tr_forecast_query *a, const struct stage_share *c, int r, double n_micro)
{
    double p = a->pp, v = a->chunks, under_way = fmin(n_micro, p - r);
    struct place x = { .n_tables = (r == 0) + (r == a->pp - 1),
                       .has_head = r == a->pp - 1,
                       .splits_backward = is_order(a, "zb") };
    double slots = fmin(n_micro * v, 2 * (p - r - 1) + (v - 1) * p + 1) - (v - 1) * fmin(n_micro, p);
    if (is_order(a, "gpipe"))
        under_way = n_micro;
    else if (x.splits_backward)
        under_way = fmin(n_micro, p);
    else if (a->chunks > 1)
        under_way = slots;
    for (int k = 0; k < a->chunks; k++) {
        double layers = layers_of(c, (double)k * p + r);
        x.layers += layers;
        x.kept += layers * (k == 0 ? under_way : fmin(n_micro, p));
    }
    x.split = x.splits_backward ? fmin(n_micro, r + 1) * x.layers : 0;
    return x;
}

/* ---- its bytes ---- */

struct sizes { /* the same for all ranks of the pipeline: a search asks for a hundred thousand layouts */
    double layer, table, experts; /* parameters that a rank holds of a layer and of a table; its experts */
    double moving_layers;         /* whole for a moment: parameters of a layer and of the next one */
    double moving_table;
    double shard;     /* ranks */
    double temporary; /* bytes that a layer needs while it runs */
    const struct tr_layer_cost *cost, *head;
};

static struct sizes sizes_of(const struct tr_forecast_query *a, const struct tr_layer_cost *layer,
                             const struct tr_layer_cost *head)
{
    const struct tr_shape_cost *s = &a->shape;
    double moe = s->experts > 0 ? s->layers - s->dense_layers + s->n_further : 0;
    double dense = s->experts > 0 ? s->dense_layers : s->layers + s->n_further;
    double n = dense * tr_shape_layer_params(s, true) +
               (moe > 0 ? moe * (tr_shape_layer_params(s, false) - tr_shape_expert_params(s)) : 0);
    double whole = tr_shape_layer_params(s, s->experts == 0) - tr_shape_expert_params(s) * (1 - 1.0 / a->ep);
    bool spreads_tables = a->impl->is_balanced && !a->impl->cuts_by_flops;
    struct sizes z = { .layer = n / (dense + moe),
                       .table = s->vocab * s->hidden / (spreads_tables ? a->pp : 1),
                       .experts = rank_experts(a),
                       .moving_layers = 2 * whole,
                       .moving_table = s->vocab * s->hidden,
                       .shard = tr_shard_size(a),
                       .temporary = a->keep == TR_KEEP_ALL && a->impl->score_bytes == 0 ? 0 : layer->one_bytes,
                       .cost = layer,
                       .head = head };
    if (a->machine->chip.generation > 0)
        z.temporary += a->impl->score_bytes * a->micro * s->heads / a->tp * a->seq * a->seq / a->cp;
    return z;
}

static double moving_params(const struct tr_forecast_query *a, const struct sizes *z, double n_tables)
{
    return (n_tables * z->moving_table + z->moving_layers) / a->tp;
}

/* Of one layer and of the head, which Trireme holds one after the other. */
static double work_bytes(const struct tr_forecast_query *a, const struct sizes *z, const struct place *x)
{
    double head = x->has_head ? z->head->kept_bytes : 0;
    return a->impl->keeps_products ? fmax(z->temporary, head) : z->temporary + head;
}

static void bytes_of(const struct tr_forecast_query *a, const struct sizes *z, const struct place *x,
                     struct tr_forecast *f)
{
    double d = z->shard, n = (z->layer * x->layers + x->n_tables * z->table) / a->tp + z->experts;
    double some = fmin(x->n_tables, 1), grad_bytes = learning_share(a) * a->grad_bytes;
    f->rank_parameters = n;
    f->bytes[TR_BYTES_PARAMS] = a->param_bytes * n / (a->zero >= 3 ? d : 1);
    f->bytes[TR_BYTES_GRADS] = grad_bytes * n / (a->zero >= 2 && !a->sync_last ? d : 1);
    if (a->impl->reduces_each && a->zero >= 2 && !a->sync_last && d > 1) /* whole until they have travelled */
        f->bytes[TR_BYTES_GRADS] +=
            grad_bytes * ((x->splits_backward ? n : moving_params(a, z, x->has_head ? 2 : some)) +
                          some * z->moving_table / a->tp / d);
    f->bytes[TR_BYTES_STATE] = a->state_bytes * tr_owned_params(a, f);
    f->bytes[TR_BYTES_ACTS] = x->kept * z->cost->kept_bytes + x->split * z->cost->split_bytes;
    f->bytes[TR_BYTES_WORK] =
        (a->zero >= 3 && d > 1 ? a->gather_bytes * moving_params(a, z, some) : 0) + work_bytes(a, z, x);
    f->bytes[TR_BYTES_LIBRARY] = tr_library_bytes(a);
    f->total_bytes = 0;
    for (int k = 0; k < TR_BYTES_KINDS; k++)
        f->total_bytes += f->bytes[k] * (k == TR_BYTES_LIBRARY ? 1 : a->impl->fragments);
}

void tr_forecast_bytes(const struct tr_forecast_query *a, const struct tr_layer_cost *layer,
                       const struct tr_layer_cost *head, struct tr_forecast *f)
{
    struct place fullest = even_place(a, f->n_micro);
    struct sizes z = sizes_of(a, layer, head);
    bytes_of(a, &z, &fullest, f);
    if (a->pp == 1 || !a->impl->cuts_by_flops)
        return;
    struct stage_share c = cut_of(a, head->flops / layer->flops);
    double most = 0;
    for (int r = 0; r < a->pp; r++) {
        struct place x = cut_place(a, &c, r, f->n_micro);
        bytes_of(a, &z, &x, f);
        if (f->total_bytes > most) {
            most = f->total_bytes;
            fullest = x;
        }
    }
    bytes_of(a, &z, &fullest, f);
}
