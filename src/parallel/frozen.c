/* frozen.c - what frozen parameters change in programs and in the count of flops. */
#include "parallel/parallel_impl.h"

void tr_program_freeze(const struct tr_placement *p, int segment, struct tr_program *out)
{
    for (int k = 0; k < out->n_params; k++)
        out->param[k].is_frozen = p->is_frozen[p->model->segment[segment].param[k]];
}

bool tr_segments_are_alike(const struct tr_placement *p, int a, int b)
{
    const struct tr_model *m = p->model;
    const struct tr_segment *x = &m->segment[a], *y = &m->segment[b];
    if (x->program != y->program)
        return false;
    for (int k = 0; k < m->program[x->program]->n_params; k++)
        if (p->is_frozen[x->param[k]] != p->is_frozen[y->param[k]])
            return false;
    return true;
}

/* A product with a frozen weight has one backward product instead of two, each of its own size. */
double tr_flops_per_token(const struct tr_placement *p)
{
    const struct tr_model *m = p->model;
    double saved = 0;
    for (int g = 0; g < m->n_segments; g++) {
        const struct tr_program *at = m->program[m->segment[g].program];
        for (int i = 0; i < at->n_nodes; i++) {
            const struct tr_value *w = at->node[i].in[1] == TR_NONE ? NULL : &at->value[at->node[i].in[1]];
            struct tr_call call;
            if (!w || w->kind != TR_V_PARAM || !p->is_frozen[m->segment[g].param[w->slot]])
                continue;
            tr_node_call(at, &at->node[i], &call);
            saved += tr_op_flops(&call);
        }
    }
    return tr_model_flops_per_token(m) - saved / (double)m->n_tokens;
}
