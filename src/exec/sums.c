/* sums.c - phases of the update that need sums over all elements of a parameter, over its rows and over its columns.
 *
 * Each rank sums its own elements. The sums of a bucket lie side by side, so that one collective an axis adds those of
 * all ranks: over the shard axis, then over the tensor axis, where a parameter that is not split is added once. A
 * tensor rank numbers the rows and columns of its own part; their sums are moved to their places in the whole matrix.
 * Sums are in double and their results are rounded to float, so layouts give the same bits except where a sum lies, to
 * the last bits of a double, halfway between two floats.
 */
#include "exec/exec_impl.h"

/* The sums of one parameter. */
struct sums {
    int param;
    double *last, *all, *part; /* part: of this tensor rank's part of the matrix, for the parameter at hand */
};

static struct tr_view view(double *x, int64_t n)
{
    return (struct tr_view){ .data = x, .dtype = TR_F64, .rows = 1, .cols = n, .ld = n };
}

static bool is_in_parts(const struct tr_exec *e, int param)
{
    return e->c->place.param[param].tp.is_split && tr_param_has_rows(&e->c->place, param);
}

static void clear(struct tr_exec *e, double *x, int64_t n)
{
    tr_device_clear(e->dev, TR_STREAM_COMPUTE, x, (size_t)n * sizeof *x);
}

static void copy(struct tr_exec *e, double *to, const double *from, int64_t n)
{
    tr_device_copy(e->dev, TR_STREAM_COMPUTE, to, from, (size_t)n * sizeof *to);
}

/* Copies the sums of the rows or columns of a part to their places in those of the whole, or back. */
static void move_dim(struct tr_exec *e, const struct tr_tp_dim *d, double *part, double *whole, bool is_back)
{
    struct tr_tp_piece piece[TR_MAX_PIECES];
    int n = tr_tp_pieces(d, piece);
    for (int i = 0; i < n; i++) {
        double *x = part + piece[i].local, *y = whole + piece[i].at;
        copy(e, is_back ? x : y, is_back ? y : x, piece[i].n);
    }
}

static void move_part(struct tr_exec *e, const struct sums *s, bool is_back)
{
    const struct tr_tp_shard *tp = &e->c->place.param[s->param].tp;
    copy(e, is_back ? s->part : s->all, is_back ? s->all : s->part, 1);
    move_dim(e, &tp->row, s->part + 1, s->all + 1, is_back);
    move_dim(e, &tp->col, s->part + 1 + tp->rows, s->all + 1 + e->c->place.model->param[s->param].rows, is_back);
}

static void run(struct tr_exec *e, const struct tr_update_phase *phase, const struct tr_action *a, const struct sums *s)
{
    const struct tr_placement *p = &e->c->place;
    const struct tr_param_place *at = &p->param[s->param];
    bool has_parts = is_in_parts(e, s->param) && phase->sums != TR_SUMS_WHOLE;
    struct tr_call c = tr_exec_update_call(e, a, phase->op, s->param);
    c.attr.at = at->first;
    c.attr.rows = tr_param_has_rows(p, s->param) ? at->tp.rows : 0;
    c.attr.cols = at->tp.cols;
    c.attr.n_all = p->model->param[s->param].n;
    c.out[TR_OPTIM_SUMS] =
        has_parts ? view(s->part, 1 + at->tp.rows + at->tp.cols) : view(s->all, tr_param_sums(p, s->param));
    c.out[TR_OPTIM_SUMS + 1] = view(s->last, 1);
    if (has_parts && phase->sums != TR_SUMS_ALL)
        move_part(e, s, true);
    tr_exec_kernel(e, &c);
    if (has_parts && phase->sums == TR_SUMS_ALL)
        move_part(e, s, false);
}

/* Runs a phase for one parameter; a rank that owns none of its elements adds zeros. */
static void run_or_clear(struct tr_exec *e, const struct tr_update_phase *phase, const struct tr_action *a,
                         const struct sums *s)
{
    bool is_empty = e->c->place.param[s->param].n == 0;
    if (phase->sums == TR_SUMS_ALL && (is_empty || is_in_parts(e, s->param)))
        clear(e, s->all, tr_param_sums(&e->c->place, s->param));
    if (phase->sums == TR_SUMS_LAST && is_empty)
        clear(e, s->last, 1);
    if (!is_empty || phase->sums == TR_SUMS_WHOLE)
        run(e, phase, a, s);
}

static bool is_of(const struct tr_exec *e, int param, int bucket)
{
    return e->c->place.param[param].bucket == bucket;
}

static int64_t count(const struct tr_exec *e, int bucket, bool is_last)
{
    int64_t n = 0;
    for (int i = 0; i < e->c->place.model->n_params; i++)
        if (is_of(e, i, bucket))
            n += is_last ? 1 : tr_param_sums(&e->c->place, i);
    return n;
}

/* Adds up what all ranks have of the sums at x: of each parameter the last one, or all others. */
static enum tr_status add_up(struct tr_exec *e, int bucket, double *x, bool is_last)
{
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = TR_F64,
                         .op = TR_SUM,
                         .in = x,
                         .out = x,
                         .count = (size_t)count(e, bucket, is_last),
                         .site = "sums of an update" };
    struct tr_comm *over_parts = tr_mesh_axis(e->mesh, TR_AXIS_TP);
    if (e->c->opt.layout.zero >= 1)
        TR_PASS(tr_exec_run(e, tr_mesh_axis(e->mesh, TR_AXIS_SHARD), &c));
    for (int i = 0; i < e->c->place.model->n_params; i++) {
        int64_t n = !is_of(e, i, bucket) ? 0 : is_last ? 1 : tr_param_sums(&e->c->place, i);
        if (n > 0 && !e->c->place.param[i].tp.is_split && over_parts->rank > 0)
            clear(e, x, n);
        x += n;
    }
    return tr_exec_run(e, over_parts, &c);
}

enum tr_status tr_exec_sums(struct tr_exec *e, const struct tr_update_phase *phase, const struct tr_action *a)
{
    double *last = (double *)(void *)(e->base[TR_A_PARAMS] + e->c->memory.sums), *all = last + count(e, a->of, true);
    struct sums s = { .last = last, .all = all, .part = all + count(e, a->of, false) };
    for (int i = 0; i < e->c->place.model->n_params; i++)
        if (is_of(e, i, a->of)) {
            s.param = i;
            run_or_clear(e, phase, a, &s);
            s.last++;
            s.all += tr_param_sums(&e->c->place, i);
        }
    return phase->sums == TR_SUMS_ALL    ? add_up(e, a->of, all, false)
           : phase->sums == TR_SUMS_LAST ? add_up(e, a->of, last, true)
                                         : TR_OK;
}
