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

void tr_segment_ctx(const struct tr_placement *p, int segment, struct tr_pass_ctx *ctx)
{
    ctx->skips_din = !tr_segment_gives_din(p, segment);
    ctx->skips_dout = !tr_segment_gives_din(p, segment + 1);
}

static bool learns(const struct tr_placement *p, int segment)
{
    const struct tr_segment *g = &p->model->segment[segment];
    for (int k = 0; k < p->model->program[g->program]->n_params; k++)
        if (!p->is_frozen[g->param[k]])
            return true;
    return false;
}

bool tr_segment_gives_din(const struct tr_placement *p, int segment)
{
    if (segment <= 0 || segment >= p->model->n_segments)
        return false;
    bool is_wanted = p->stage_of[segment] != p->stage_of[0];
    for (int g = 0; g < segment && !is_wanted; g++)
        is_wanted = learns(p, g);
    return is_wanted;
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
    return tr_segment_gives_din(p, a) == tr_segment_gives_din(p, b) &&
           tr_segment_gives_din(p, a + 1) == tr_segment_gives_din(p, b + 1);
}

/* Flops of the segment's program with its backward, as one rank runs it; -1: no memory. */
static double segment_flops(const struct tr_placement *p, int segment)
{
    struct tr_program *at = NULL;
    struct tr_pass_ctx ctx = { .is_training = true };
    double sum = -1;
    tr_segment_ctx(p, segment, &ctx);
    if (tr_program_copy(p->model->program[p->model->segment[segment].program], &at) != TR_OK)
        return sum;
    tr_program_freeze(p, segment, at);
    if (tr_pass_grad(at, &ctx) == TR_OK)
        sum = tr_program_flops(at, TR_FORWARD) + tr_program_flops(at, TR_BACKWARD_INPUT) +
              tr_program_flops(at, TR_BACKWARD_WEIGHT);
    tr_program_close(at);
    return sum;
}

/* The programs say it: those of a model in which everything learns have three products for one of the forward. */
double tr_flops_per_token(const struct tr_placement *p)
{
    double sum = 0, one = 0;
    bool any = false;
    for (int g = 0; g < p->model->n_segments; g++)
        for (int k = 0; k < p->model->program[p->model->segment[g].program]->n_params; k++)
            any |= p->is_frozen[p->model->segment[g].param[k]];
    for (int g = 0; any && g < p->model->n_segments; g++) {
        one = g > 0 && tr_segments_are_alike(p, g - 1, g) ? one : segment_flops(p, g);
        if (one < 0)
            break;
        sum += one;
    }
    return any && one >= 0 ? sum / (double)p->model->n_tokens : tr_model_flops_per_token(p->model);
}

/* Is input k of this node the weight of a linear of a layer? */
static bool is_linear_weight(const struct tr_segment *seg, const struct tr_node *n, int k)
{
    return seg->layer >= 0 && tr_op_row(n->op)->in[k].is_weight;
}

bool tr_param_is_in_out(const struct tr_model *m, int param)
{
    for (int g = 0; g < m->n_segments; g++) {
        const struct tr_program *p = m->program[m->segment[g].program];
        for (int k = 0; k < p->n_params; k++)
            if (m->segment[g].param[k] == param)
                return p->param[k].n_dims == 2 && p->param[k].out_dim == 1;
    }
    return false;
}

bool tr_param_is_hidden(const struct tr_model *m, int param)
{
    for (int g = 0; g < m->n_segments; g++)
        for (int k = 0; m->segment[g].layer < 0 && k < m->program[m->segment[g].program]->n_params; k++)
            if (m->segment[g].param[k] == param)
                return false;
    return true;
}

bool tr_param_is_table(const struct tr_model *m, int param)
{
    for (int g = 0; g < m->n_segments; g++) {
        const struct tr_segment *seg = &m->segment[g];
        const struct tr_program *p = m->program[seg->program];
        for (int i = 0; i < p->n_nodes; i++) {
            tr_val root = p->node[i].op == TR_OP_EMBED ? tr_value_root(p, p->node[i].in[1]) : TR_NONE;
            if (root != TR_NONE && p->value[root].kind == TR_V_PARAM && seg->param[p->value[root].slot] == param)
                return true;
        }
    }
    return false;
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
