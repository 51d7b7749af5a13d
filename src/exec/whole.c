/* whole.c - phases of the update on whole matrices.
 *
 * The phase before has written this rank's elements of the direction of a bucket. They become whole by a gather over
 * the shard axis; each matrix is computed by the one rank that owns it, and a sum over the shard axis, to which all
 * other ranks add zeros, gives each rank its elements of the result: the bits are those of one rank. Ranks of the
 * tensor axis gather the parts of a matrix and compute all of it. Rejected: shards that end where matrices end, because
 * the largest matrix of a layer is a quarter of it, so that eight shards would need twice the memory.
 */
#include "exec/exec_impl.h"

static char *direction_at(const struct tr_exec *e, int64_t element)
{
    return e->base[TR_A_PARAMS] + e->c->memory.direction + (size_t)element * tr_dtype_bytes(TR_BF16);
}

struct tr_view tr_exec_direction(const struct tr_exec *e, int param)
{
    const struct tr_param_place *p = &e->c->place.param[param];
    return (struct tr_view){
        .data = direction_at(e, p->at + p->first), .dtype = TR_BF16, .rows = 1, .cols = p->n, .ld = p->n
    };
}

static struct tr_view matrix_view(char *data, int64_t rows, int64_t cols)
{
    return (struct tr_view){ .data = data, .dtype = TR_BF16, .rows = rows, .cols = cols, .ld = cols };
}

/* Copies the part of a tensor rank to its place in the whole matrix, or back. */
static void move_part(struct tr_exec *e, const struct tr_tp_shard *s, struct tr_view part, struct tr_view whole,
                      bool is_back)
{
    struct tr_tp_piece row[TR_MAX_PIECES], col[TR_MAX_PIECES];
    int n_rows = tr_tp_pieces(&s->row, row), n_cols = tr_tp_pieces(&s->col, col);
    for (int i = 0; i < n_rows; i++)
        for (int k = 0; k < n_cols; k++) {
            struct tr_view x = tr_view_part(&part, row[i].local, row[i].n, col[k].local, col[k].n);
            struct tr_view y = tr_view_part(&whole, row[i].at, row[i].n, col[k].at, col[k].n);
            tr_exec_move(e, is_back ? y : x, is_back ? x : y, false);
        }
}

static void run_matrices(struct tr_exec *e, const struct tr_update_phase *phase, int param, struct tr_view whole)
{
    struct tr_matrix part[TR_MAX_MATRICES];
    int n = tr_param_matrices(&e->c->place.model->param[param], part);
    for (int k = 0; k < n; k++) {
        struct tr_call c = tr_exec_call(e, phase->op);
        c.in[1] = tr_exec_step_view(e, param);
        c.out[0] = tr_view_part(&whole, part[k].row, part[k].rows, part[k].col, part[k].cols);
        if (phase->kernel)
            phase->kernel(&c);
        else
            tr_exec_kernel(e, &c);
    }
}

/* The parts of all tensor ranks become the whole matrix; afterwards this rank takes its own part. */
static enum tr_status run_split(struct tr_exec *e, const struct tr_update_phase *phase, int param)
{
    const struct tr_param_place *p = &e->c->place.param[param];
    const struct tr_param *x = &e->c->place.model->param[param];
    int size = e->c->opt.layout.size[TR_AXIS_TP];
    size_t held = (size_t)p->tp.n_held * tr_dtype_bytes(TR_BF16);
    char *parts = e->base[TR_A_PARAMS] + e->c->memory.matrix;
    struct tr_view whole = matrix_view(parts + (size_t)size * held, x->rows, x->cols);
    struct tr_coll gather = { .kind = TR_ALL_GATHER,
                              .dtype = TR_BF16,
                              .in = direction_at(e, p->at),
                              .out = parts,
                              .count = (size_t)size * (size_t)p->tp.n_held,
                              .site = "gather a matrix" };
    TR_PASS(tr_exec_run(e, tr_mesh_axis(e->mesh, TR_AXIS_TP), &gather));
    for (int r = 0; r < size; r++) {
        struct tr_tp_shard s = tr_tp_shard_of(x->n_dims, x->rows, x->cols, x->split, size, r);
        move_part(e, &s, matrix_view(parts + (size_t)r * held, s.rows, s.cols), whole, false);
    }
    run_matrices(e, phase, param, whole);
    move_part(e, &p->tp, matrix_view(direction_at(e, p->at), p->tp.rows, p->tp.cols), whole, true);
    return TR_OK;
}

/* Gathers the direction of a bucket over the shard axis, or gives each rank the sum of its elements. */
static enum tr_status exchange(struct tr_exec *e, int bucket, enum tr_coll_kind kind)
{
    const struct tr_bucket *f = &e->c->place.bucket[bucket];
    bool is_gather = kind == TR_ALL_GATHER;
    struct tr_coll c = { .kind = kind,
                         .dtype = TR_BF16,
                         .op = TR_SUM,
                         .in = direction_at(e, is_gather ? f->shard_first : 0),
                         .out = direction_at(e, is_gather ? 0 : f->shard_first),
                         .count = (size_t)f->n,
                         .site = is_gather ? "gather directions" : "share directions" };
    return e->c->opt.layout.zero >= 1 ? tr_exec_run(e, tr_mesh_axis(e->mesh, TR_AXIS_SHARD), &c) : TR_OK;
}

enum tr_status tr_exec_whole(struct tr_exec *e, const struct tr_update_phase *phase, int bucket)
{
    const struct tr_placement *p = &e->c->place;
    enum tr_status st = exchange(e, bucket, TR_ALL_GATHER);
    for (int i = 0; i < p->model->n_params && st == TR_OK; i++) {
        const struct tr_param_place *x = &p->param[i];
        if (x->bucket != bucket)
            continue;
        if (p->layout->zero >= 1 && tr_whole_owner(p, i) != p->layout->shard_rank)
            tr_device_clear(e->dev, TR_STREAM_COMPUTE, direction_at(e, x->at),
                            (size_t)x->tp.n_held * tr_dtype_bytes(TR_BF16));
        else if (x->tp.is_split)
            st = run_split(e, phase, i);
        else
            run_matrices(e, phase, i, matrix_view(direction_at(e, x->at), x->tp.rows, x->tp.cols));
    }
    return st == TR_OK ? exchange(e, bucket, TR_REDUCE_SCATTER) : st;
}
