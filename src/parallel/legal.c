/* legal.c - fills legality queries from what this room knows: the shape of a model, the sizes of a mesh, the order of a
 * schedule file. The rules are in config/legal.c. */
#include "parallel/legal.h"
#include "parallel/pipe.h"

void tr_legal_add_model(const struct tr_model *m, struct tr_legal_query *q)
{
    q->micro_rows = m->n_tokens / m->sequence_length;
    q->model.n_heads_q = m->hp.n_heads_q;
    q->model.n_heads_kv = m->hp.n_heads_kv;
    q->model.head_dim = m->hp.head_dim;
    q->model.ffn = m->hp.ffn;
    q->model.vocab = m->hp.vocab;
    q->model.n_segments = m->n_segments;
    q->model.row_tokens = m->sequence_length;
}

struct tr_legal_query tr_legal_mesh(const struct tr_model *m, const int size[TR_AXES])
{
    struct tr_legal_query q = { .pp = size[TR_AXIS_PP],
                                .dp = (int64_t)size[TR_AXIS_DP] * size[TR_AXIS_SHARD],
                                .cp = size[TR_AXIS_CP],
                                .tp = size[TR_AXIS_TP],
                                .pp_chunks = 1,
                                .n_micro = 1 };
    tr_legal_add_model(m, &q);
    return q;
}

enum tr_status tr_legal_add_schedule(struct tr_legal_query *q)
{
    struct tr_pipe *pipe = NULL;
    if (q->pp == 1 || !q->pp_schedule || tr_pipe_is_named(q->pp_schedule))
        return TR_OK;
    enum tr_status st = tr_pipe_open(q->pp_schedule, (int)q->pp, (int)q->pp_chunks, (int)q->n_micro, &pipe);
    q->runs_back = st == TR_OK && !tr_pipe_is_in_order(pipe);
    tr_pipe_close(pipe);
    return st;
}
