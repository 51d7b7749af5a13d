/* staging.c - what is decided about saving before step 0: which rank writes which tensor, and how much a rank copies.
 *
 * Weights are written as whole tensors, because other programs read whole tensors. The tensors of a stage are divided
 * into runs of about equal size, one for each of its ranks, so that all ranks write at once. A small model is not
 * divided, and neither is an adapter, which is one file: rank 0 gets the parts of all stages. Optimizer state is
 * written in ranges; replicas write equal shares. The staging bytes are a bound that is the same for all ranks of a
 * stage, so the plan of one rank holds for all of them.
 */
#include "parallel/parallel_impl.h"

static int64_t stage_elements(const struct tr_placement *p, int stage)
{
    int64_t n = 0;
    for (int i = 0; i < p->model->n_params; i++)
        n += p->param[i].stage == stage ? p->model->param[i].n : 0;
    return n;
}

static int ranks_of_a_stage(const struct tr_layout *l)
{
    int n = 1;
    for (int a = TR_AXIS_PP + 1; a < TR_AXES; a++)
        n *= l->size[a];
    return n;
}

static enum tr_dtype weights_dtype(const struct tr_compile_options *o)
{
    return o->is_inference ? o->compute_dtype : o->master_dtype;
}

void tr_place_writers(struct tr_placement *p, const struct tr_compile_options *o)
{
    const struct tr_layout *l = p->layout;
    int n_ranks = ranks_of_a_stage(l);
    if (o->n_saved) /* one file: rank 0 writes it */
        return;
    for (int s = 0; s < p->n_stages; s++) {
        int64_t total = stage_elements(p, s), before = 0, part = (int64_t)o->part_bytes;
        int64_t n_worth = part ? total * (int64_t)tr_dtype_bytes(weights_dtype(o)) / part : 1;
        int64_t n_writers = tr_max64(1, tr_min64(n_worth, n_ranks));
        for (int i = 0; i < p->model->n_params; i++) {
            if (p->param[i].stage != s)
                continue;
            /* a tensor belongs to the rank whose range holds its middle */
            int64_t n = p->model->param[i].n, middle = before + n / 2;
            int64_t k = (int64_t)((double)middle * (double)n_writers / (double)total);
            p->param[i].writer = s % l->size[TR_AXIS_PP] * n_ranks + (int)tr_min64(k, n_writers - 1);
            before += n;
        }
    }
}

/* Bytes of whole tensors: the largest share of any rank of this stage. */
static size_t weight_bytes(const struct tr_compiled *c)
{
    const struct tr_layout *l = &c->opt.layout;
    int n_ranks = ranks_of_a_stage(l), first = l->coord[TR_AXIS_PP] * n_ranks;
    int64_t most = 0;
    for (int r = first; r < first + n_ranks; r++) {
        int64_t n = 0;
        for (int i = 0; i < c->place.model->n_params; i++) {
            int n_tensors = c->place.param[i].writer != r ? 0 : c->opt.n_saved ? c->opt.n_saved[i] : 1;
            n += n_tensors * c->place.model->param[i].n;
        }
        most = tr_max64(most, n);
    }
    return (size_t)most * tr_dtype_bytes(weights_dtype(&c->opt));
}

/* Elements of state ranges: a share of every bucket, and at most one element more for each parameter. */
static int64_t range_count(const struct tr_placement *p, int row)
{
    int32_t block = p->states.row[row].block;
    const struct tr_layout *l = p->layout;
    int64_t n = p->model->n_params, n_replicas = l->size[TR_AXIS_DP] * l->size[TR_AXIS_CP];
    enum tr_state_shape shape = p->states.row[row].shape;
    int64_t n_alike = n_replicas * l->size[TR_AXIS_SHARD] * l->size[TR_AXIS_TP]; /* of states by row */
    for (int g = 0; g < p->n_buckets && !tr_bucket_is_frozen(p->model, g); g++)
        if (tr_states_has(&p->states, row, tr_bucket_fate(p->model, g)))
            n += (shape ? p->bucket[g].n_by[shape] / n_alike : p->bucket[g].shard_n / block / n_replicas) + 1;
    return n;
}

static size_t range_bytes(const struct tr_compiled *c)
{
    size_t sum = 0;
    for (int s = 0; s < c->place.states.n; s++) {
        const struct tr_state_row *r = &c->place.states.row[s];
        bool is_saved =
            s == TR_S_VALUE ? tr_states_save_value(&c->place.states, c->opt.save_dtype) : r->is_held && r->name;
        sum += is_saved ? (size_t)range_count(&c->place, s) * tr_dtype_bytes(r->dtype) : 0;
    }
    return sum;
}

size_t tr_staging_bytes(const struct tr_compiled *c)
{
    if (c->opt.is_inference || !c->opt.stages_saves)
        return 0;
    return tr_round_up(weight_bytes(c), TR_ALIGN) + range_bytes(c);
}
