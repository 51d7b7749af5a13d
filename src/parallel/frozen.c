/* frozen.c - what frozen and packed parameters change in programs and in the count of flops. */
#include "parallel/parallel_impl.h"

void tr_program_freeze(const struct tr_placement *p, int segment, struct tr_program *out)
{
    for (int k = 0; k < out->n_params; k++) {
        int param = p->model->segment[segment].param[k];
        out->param[k].is_frozen = p->is_frozen[param];
        out->param[k].packed = (enum tr_packed)p->packed_of[param];
    }
}

bool tr_segments_are_alike(const struct tr_placement *p, int a, int b)
{
    const struct tr_model *m = p->model;
    const struct tr_segment *x = &m->segment[a], *y = &m->segment[b];
    if (x->program != y->program)
        return false;
    for (int k = 0; k < m->program[x->program]->n_params; k++)
        if (p->is_frozen[x->param[k]] != p->is_frozen[y->param[k]] ||
            p->packed_of[x->param[k]] != p->packed_of[y->param[k]])
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

/* Is input k of this node the weight of a linear of a layer? */
static bool is_linear_weight(const struct tr_segment *seg, const struct tr_node *n, int k)
{
    return seg->layer >= 0 && tr_op_row(n->op)->in[k].is_weight && !n->attr.weight_is_in_out;
}

bool tr_param_may_pack(const struct tr_model *m, int param)
{
    int n_uses = 0;
    if (m->param[param].in_adapter)
        return false;
    for (int g = 0; g < m->n_segments; g++) {
        const struct tr_segment *seg = &m->segment[g];
        const struct tr_program *p = m->program[seg->program];
        for (int i = 0; i < p->n_nodes; i++)
            for (int k = 0; k < TR_MAX_IN; k++) {
                tr_val root = tr_value_root(p, p->node[i].in[k]);
                if (root == TR_NONE || p->value[root].kind != TR_V_PARAM || seg->param[p->value[root].slot] != param)
                    continue;
                if (!is_linear_weight(seg, &p->node[i], k))
                    return false;
                n_uses++;
            }
    }
    return n_uses > 0;
}
