/* sums.c - bytes for the sums of an optimizer's phases. */
#include "parallel/parallel_impl.h"

bool tr_param_has_rows(const struct tr_placement *p, int param)
{
    for (int s = TR_S_OPTIM; s < p->states.n; s++)
        if (p->states.row[s].shape == TR_PER_ROW && tr_states_has(&p->states, s, (enum tr_fate)p->fate_of[param]))
            return true;
    return false;
}

int64_t tr_param_sums(const struct tr_placement *p, int param)
{
    const struct tr_param *x = &p->model->param[param];
    return 1 + (tr_param_has_rows(p, param) ? x->rows + x->cols : 0);
}

static bool has_sums(const struct tr_compiled *c)
{
    return !c->opt.is_inference && c->opt.optim->has_sums;
}

/* Those of the largest bucket, with one more for each parameter, and those of one tensor rank's part of a matrix. */
size_t tr_sums_bytes(const struct tr_compiled *c)
{
    const struct tr_placement *p = &c->place;
    int64_t largest = 0, part = 0;
    for (int b = 0; has_sums(c) && b < p->n_buckets; b++) {
        int64_t n = 0;
        for (int i = 0; i < p->model->n_params; i++)
            if (p->param[i].bucket == b && !p->is_frozen[i]) {
                n += 1 + tr_param_sums(p, i);
                part = tr_max64(part, p->param[i].tp.is_split ? tr_param_sums(p, i) : 0);
            }
        largest = tr_max64(largest, n);
    }
    return (size_t)(largest + part) * sizeof(double);
}

size_t tr_sums_scratch(const struct tr_compiled *c)
{
    size_t bytes = 0;
    for (int i = 0; has_sums(c) && i < c->place.model->n_params; i++)
        for (int k = 0; k < c->opt.optim->n_phases; k++) {
            struct tr_call call = { .op = c->opt.optim->phase[k].op, .attr = { .rows = c->place.param[i].tp.rows } };
            size_t need = c->opt.column->scratch(&call, c->opt.n_threads);
            bytes = need > bytes ? need : bytes;
        }
    return bytes;
}
