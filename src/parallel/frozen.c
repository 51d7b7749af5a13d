/* frozen.c - what frozen parameters change in programs and in the count of flops. */
#include "parallel/parallel_impl.h"

void tr_program_freeze(const struct tr_compiled *c, const struct tr_model *m, int segment, struct tr_program *p)
{
    for (int k = 0; k < p->n_params; k++)
        p->param[k].is_frozen = c->is_frozen[m->segment[segment].param[k]];
}

bool tr_segments_are_alike(const struct tr_compiled *c, const struct tr_model *m, int a, int b)
{
    const struct tr_segment *x = &m->segment[a], *y = &m->segment[b];
    if (x->program != y->program)
        return false;
    for (int k = 0; k < m->program[x->program]->n_params; k++)
        if (c->is_frozen[x->param[k]] != c->is_frozen[y->param[k]])
            return false;
    return true;
}

/* A product with a frozen weight has one backward product instead of two, each of its own size. */
double tr_flops_per_token(const struct tr_compiled *c)
{
    const struct tr_model *m = c->model;
    double saved = 0;
    for (int g = 0; g < m->n_segments; g++) {
        const struct tr_program *p = m->program[m->segment[g].program];
        for (int i = 0; i < p->n_nodes; i++) {
            const struct tr_value *w = p->node[i].in[1] == TR_NONE ? NULL : &p->value[p->node[i].in[1]];
            struct tr_call call;
            if (!w || w->kind != TR_V_PARAM || !c->is_frozen[m->segment[g].param[w->slot]])
                continue;
            tr_node_call(p, &p->node[i], &call);
            saved += tr_op_flops(&call);
        }
    }
    return tr_model_flops_per_token(m) - saved / (double)m->n_tokens;
}
