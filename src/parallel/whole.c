/* whole.c - which matrices the phases of an optimizer on whole matrices see, and which rank runs them. */
#include "parallel/parallel_impl.h"

int tr_param_matrices(const struct tr_param *p, struct tr_matrix out[TR_MAX_MATRICES])
{
    const struct tr_split *s = &p->split;
    bool has_parts = s->dim != TR_WHOLE && s->n_parts > 1;
    int64_t len = s->dim == 1 ? p->cols : p->rows, at = 0;
    int n = has_parts ? s->n_parts : 1;
    TR_BUG_ON(n > TR_MAX_MATRICES);
    for (int i = 0; i < n; i++) {
        int64_t width = has_parts ? len / (s->n_parts - 1 + s->lead) * (i == 0 ? s->lead : 1) : len;
        out[i] = has_parts && s->dim == 1 ? (struct tr_matrix){ 0, p->rows, at, width }
                 : has_parts              ? (struct tr_matrix){ at, width, 0, p->cols }
                                          : (struct tr_matrix){ 0, p->rows, 0, p->cols };
        at += width;
    }
    return n;
}

static double cost_of(const struct tr_param *p)
{
    return (double)tr_min64(p->rows, p->cols) * (double)p->n;
}

/* The matrices of a bucket go to ranks by falling cost, back and forth: 0 1 2 2 1 0 0 ... */
int tr_whole_owner(const struct tr_placement *p, int param)
{
    const struct tr_model *m = p->model;
    int size = p->layout->zero >= 1 ? p->layout->shard_size : 1, n_before = 0;
    double cost = cost_of(&m->param[param]);
    for (int i = 0; i < m->n_params; i++) {
        double other = cost_of(&m->param[i]);
        n_before += p->param[i].bucket == p->param[param].bucket && (other > cost || (other == cost && i < param));
    }
    return n_before / size % 2 ? size - 1 - n_before % size : n_before % size;
}

bool tr_has_whole(const struct tr_compiled *c)
{
    const struct tr_optim *o = c->opt.is_inference ? NULL : c->opt.optim;
    for (int k = 0; o && k < o->n_phases; k++)
        if (o->phase[k].is_whole)
            return true;
    return false;
}

size_t tr_whole_scratch(const struct tr_compiled *c)
{
    size_t bytes = 0;
    for (int i = 0; tr_has_whole(c) && i < c->place.model->n_params; i++) {
        struct tr_matrix part[TR_MAX_MATRICES];
        int n = c->place.fate_of[i] == TR_LEARNS ? tr_param_matrices(&c->place.model->param[i], part) : 0;
        for (int k = 0; k < n; k++)
            for (int phase = 0; phase < c->opt.optim->n_phases; phase++) {
                struct tr_call call = { .op = c->opt.optim->phase[phase].op };
                call.out[0] = (struct tr_view){
                    .dtype = TR_BF16, .rows = part[k].rows, .cols = part[k].cols, .ld = part[k].cols
                };
                if (!c->opt.optim->phase[phase].is_whole || c->opt.optim->phase[phase].kernel)
                    continue;
                size_t need = c->opt.column->scratch(&call, c->opt.n_threads);
                bytes = need > bytes ? need : bytes;
            }
    }
    return bytes;
}

/* The direction of the largest bucket; where the tensor axis splits matrices, what all its ranks hold of the largest
 * one, and that matrix. */
void tr_whole_bytes(const struct tr_compiled *c, size_t *direction, size_t *matrix)
{
    const struct tr_placement *p = &c->place;
    size_t size = (size_t)c->opt.layout.size[TR_AXIS_TP], elem = tr_dtype_bytes(TR_BF16);
    *direction = *matrix = 0;
    if (c->opt.is_inference || !c->opt.optim->has_direction)
        return;
    for (int b = 0; b < p->n_buckets; b++)
        if (tr_bucket_fate(p->model, b) == TR_LEARNS && (size_t)p->bucket[b].n * elem > *direction)
            *direction = (size_t)p->bucket[b].n * elem;
    for (int i = 0; i < p->model->n_params; i++) {
        const struct tr_tp_shard *tp = &p->param[i].tp;
        size_t n =
            p->fate_of[i] == TR_LEARNS && tp->is_split ? size * (size_t)tp->n_held + (size_t)p->model->param[i].n : 0;
        *matrix = n * elem > *matrix ? n * elem : *matrix;
    }
}
