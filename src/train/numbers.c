/* numbers.c - judges the loss and the gradient norm of each step.
 *
 * Losses and norms are equal on all ranks when they are judged, so all ranks decide alike without a query. The search
 * for the origin costs nothing while steps are good. A suspect step is run again, and only then every activation and
 * gradient is checked, before sums over ranks spread a bad value. Rejected: checks in every step (a read of all
 * activations), and a non-finite flag from each rank (it names a rank, not a tensor).
 */
#include "train/numbers.h"
#include "exec/exec.h"
#include <math.h>
#include <stdlib.h>

enum { N_HISTORY = 32, N_HISTORY_MIN = 16 };
enum { LOSS, NORM, N_SERIES };

/* Where a value is not finite. The order is that of cause: an earlier kind explains the later ones. */
enum kind { NOWHERE, IN_WEIGHTS, IN_OUTPUT, IN_LOSS, IN_GRADIENT, IN_REPLAY };
struct finding { /* sent to peers as raw bytes */
    int64_t kind, micro, order, id, sample, rank;
};
enum { FINDING_WORDS = sizeof(struct finding) / sizeof(int64_t) };

struct tr_numbers {
    const struct tr_config *cfg;
    struct tr_exec *e;
    struct tr_scaler *scaler;
    int64_t n_skipped, n_seen;
    double history[N_SERIES][N_HISTORY]; /* logarithms of the last values */
    size_t n_losses, n_norms;
    double *losses, *norms; /* of the first run of a suspect step */
    struct finding mine, *all;
    const struct tr_step_batch *batch;
};

enum tr_status tr_numbers_open(struct tr_exec *e, const struct tr_config *cfg, int64_t n_skipped,
                               struct tr_scaler *scaler, struct tr_numbers **out)
{
    struct tr_numbers *n = calloc(1, sizeof *n);
    if (!n)
        return tr_fail(TR_NOMEM, "no memory to judge steps");
    n->cfg = cfg;
    n->e = e;
    n->n_skipped = n_skipped;
    n->scaler = scaler;
    const struct tr_placement *p = &tr_exec_compiled(e)->place;
    n->n_losses = (size_t)p->layout->data_size * (size_t)tr_exec_compiled(e)->opt.n_micro;
    n->n_norms = (size_t)p->norm_first[p->model->n_params];
    n->losses = calloc(n->n_losses + 1, sizeof *n->losses);
    n->norms = calloc(n->n_norms + 1, sizeof *n->norms);
    n->all = calloc((size_t)tr_exec_mesh(e)->world, sizeof *n->all);
    if (!n->losses || !n->norms || !n->all) {
        tr_numbers_close(n);
        return tr_fail(TR_NOMEM, "no memory to judge steps");
    }
    *out = n;
    return TR_OK;
}

void tr_numbers_close(struct tr_numbers *n)
{
    if (!n)
        return;
    free(n->losses);
    free(n->norms);
    free(n->all);
    free(n);
}

int64_t tr_numbers_skipped(const struct tr_numbers *n)
{
    return n->n_skipped;
}

/* ---- search for the origin ---- */

static struct tr_view row_of(char *at, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ .data = at, .dtype = dtype, .rows = 1, .cols = n, .ld = n };
}

static void find(struct tr_numbers *n, enum kind kind, int micro, int order, int id)
{
    if (n->mine.kind != NOWHERE && n->mine.kind <= (int64_t)kind)
        return;
    n->mine =
        (struct finding){ .kind = kind, .micro = micro, .order = order, .id = id, .sample = -1, .rank = n->mine.rank };
}

/* Checks the output of a forward: (tokens, D), one row per token. */
static void look_at_output(struct tr_numbers *n, const struct tr_action *a, const struct tr_program *p)
{
    struct tr_exec *e = n->e;
    if (p->out == TR_NONE || n->mine.kind == IN_WEIGHTS || n->mine.kind == IN_OUTPUT)
        return;
    const struct tr_value *v = &p->value[p->out];
    char *at = tr_exec_arena(e, TR_A_ACTS) + a->out;
    int64_t row = 0, n_tokens = tr_exec_compiled(e)->place.model->n_tokens, n_used = n->batch->micro[a->micro].n_used;
    int64_t n_rows = n_used > 0 && v->rows == n_tokens ? n_used : v->rows;
    if (tr_exec_is_finite(e, row_of(at, v->dtype, n_rows * v->cols)))
        return;
    find(n, IN_OUTPUT, a->micro, a->segment, a->segment);
    while (tr_exec_is_finite(e, row_of(at + (size_t)(row * v->cols) * tr_dtype_bytes(v->dtype), v->dtype, v->cols)) &&
           row + 1 < n_rows)
        row++;
    if (v->rows == n_tokens) /* otherwise tokens are split over ranks, and the row does not name a sample */
        n->mine.sample = n->batch->micro[a->micro].sample[row] / tr_exec_compiled(e)->place.model->sequence_length;
}

static void look_at_gradients(struct tr_numbers *n, const struct tr_action *a, const struct tr_program *p)
{
    const struct tr_model *m = tr_exec_compiled(n->e)->place.model;
    struct tr_view grad;
    for (int i = 0; i < p->n_params && n->mine.kind == NOWHERE; i++)
        if (tr_exec_gradient(n->e, a, i, &grad) && !tr_exec_is_finite(n->e, grad))
            find(n, IN_GRADIENT, a->micro, m->n_segments - a->segment, m->segment[a->segment].param[i]);
}

static void look(void *ctx, const struct tr_action *a)
{
    struct tr_numbers *n = ctx;
    const struct tr_schedule *s = &tr_exec_compiled(n->e)->schedule[TR_FOR_TRAIN];
    if (a->kind == TR_DO_FORWARD)
        look_at_output(n, a, s->program[s->program_of[a->segment]]);
    else if (a->kind == TR_DO_BACKWARD || a->kind == TR_DO_BACKWARD_WEIGHT)
        look_at_gradients(n, a, s->program[s->program_of[a->segment]]);
}

/* Packed weights never change, and were finite when they were read. */
static void look_at_weights(struct tr_numbers *n)
{
    struct tr_exec *e = n->e;
    for (int i = 0; i < tr_exec_compiled(e)->place.model->n_params && n->mine.kind == NOWHERE; i++) {
        if (tr_exec_compiled(e)->place.packed_of[i])
            continue;
        int64_t first = 0, count = 0;
        enum tr_dtype dtype = tr_exec_dtype(e, TR_S_VALUE);
        char *at = tr_exec_at(e, TR_S_VALUE, i, &first, &count);
        if (count > 0 && !tr_exec_is_finite(e, row_of(at + (size_t)first * tr_dtype_bytes(dtype), dtype, count)))
            find(n, IN_WEIGHTS, 0, 0, i);
    }
}

/* Checks this rank's losses: a loss that is not finite, or that differs from the first run. */
static void look_at_losses(struct tr_numbers *n, bool is_same)
{
    const struct tr_placement *p = &tr_exec_compiled(n->e)->place;
    int n_micro = tr_exec_compiled(n->e)->opt.n_micro;
    for (int m = 0; tr_segment_is_here(p, p->model->n_segments - 1) && m < n_micro; m++) {
        size_t i = (size_t)(p->layout->data_rank * n_micro + m);
        if (!isfinite(tr_exec_losses(n->e)[i]))
            find(n, IN_LOSS, m, 0, 0);
        else if (!is_same && memcmp(&tr_exec_losses(n->e)[i], &n->losses[i], sizeof *n->losses) != 0)
            find(n, IN_REPLAY, m, 0, 0);
    }
}

static bool is_before(const struct finding *a, const struct finding *b)
{
    if (a->kind == NOWHERE || b->kind == NOWHERE)
        return b->kind == NOWHERE && a->kind != NOWHERE;
    return a->kind != b->kind ? a->kind < b->kind : a->micro != b->micro ? a->micro < b->micro : a->order < b->order;
}

/* All ranks exchange their findings; the first finding in the order of cause is the origin. */
static enum tr_status share(struct tr_numbers *n, struct finding *out)
{
    struct tr_mesh *mesh = tr_exec_mesh(n->e);
    int world = mesh->world;
    enum tr_status st = TR_OK;
    if (n->mine.sample < 0 && n->mine.kind != NOWHERE)
        n->mine.sample =
            n->batch->micro[n->mine.micro].sample[0] / tr_exec_compiled(n->e)->place.model->sequence_length;
    n->all[0] = n->mine;
    struct tr_coll c = { .kind = TR_ALL_GATHER,
                         .dtype = TR_I64,
                         .in = &n->mine,
                         .out = n->all,
                         .count = (size_t)world * FINDING_WORDS,
                         .site = "where numbers went wrong" };
    st = tr_comm_run(mesh->all, &c);
    *out = n->all[0];
    for (int r = 1; r < world && st == TR_OK; r++)
        if (is_before(&n->all[r], out))
            *out = n->all[r];
    return st;
}

static void describe(const struct tr_numbers *n, const struct finding *f, struct tr_str *out)
{
    const struct tr_model *m = tr_exec_compiled(n->e)->place.model;
    const struct tr_segment *seg = f->kind == IN_OUTPUT ? &m->segment[f->id] : NULL;
    switch ((enum kind)f->kind) {
    case NOWHERE:
        return;
    case IN_WEIGHTS:
        tr_str_addf(out, "; first in the weights of %s on rank %d", m->param[f->id].name, (int)f->rank);
        return;
    case IN_OUTPUT:
        if (seg->layer >= 0)
            tr_str_addf(out, "; first in the output of layer %d", seg->layer);
        else
            tr_str_addf(out, "; first in the output of %s", m->program[seg->program]->name);
        break;
    case IN_LOSS:
        tr_str_addf(out, "; first in the loss");
        break;
    case IN_GRADIENT:
        tr_str_addf(out, "; first in the gradient of %s", m->param[f->id].name);
        break;
    case IN_REPLAY:
        tr_str_addf(out, "; the loss differs");
        break;
    }
    tr_str_addf(out, " on rank %d, micro-batch %d, sample %" PRId64, (int)f->rank, (int)f->micro, f->sample);
}

/* ---- judging ---- */

static bool is_finite(const struct tr_step_result *r)
{
    return isfinite(r->loss_sum) && isfinite(r->grad_norm);
}

/* By how many standard deviations x is above the line through the last values of its series. The line is needed because
 * a falling loss has a trend, which is no deviation. Values are logarithms, because norms have a long tail. The
 * deviation is at least 2 %, because a smooth series has almost none. */
static double deviations(const struct tr_numbers *n, int series, double x)
{
    int64_t count = tr_min64(n->n_seen, N_HISTORY), first = n->n_seen - count;
    double k = (double)count, middle = (k - 1) / 2, mean = 0, slope = 0, var = 0;
    if (count < N_HISTORY_MIN || !(x > 0))
        return 0;
    for (int64_t i = 0; i < count; i++) {
        double y = n->history[series][(first + i) % N_HISTORY];
        mean += y / k;
        slope += y * ((double)i - middle) * 12 / (k * (k * k - 1));
    }
    for (int64_t i = 0; i < count; i++) {
        double off = n->history[series][(first + i) % N_HISTORY] - mean - slope * ((double)i - middle);
        var += off * off / k;
    }
    return (log(x) - mean - slope * (k - middle)) / fmax(sqrt(var), 0.02);
}

static void remember(struct tr_numbers *n, const struct tr_step_result *r, double loss)
{
    if (!(loss > 0) || !(r->grad_norm > 0)) /* a batch without targets has no loss to record */
        return;
    n->history[LOSS][n->n_seen % N_HISTORY] = log(loss);
    n->history[NORM][n->n_seen % N_HISTORY] = log(r->grad_norm);
    n->n_seen++;
}

/* Is the result suspect? Appends the reason to *why. */
static bool is_suspect(const struct tr_numbers *n, const struct tr_step_result *r, double loss, struct tr_str *why)
{
    double z[N_SERIES] = { deviations(n, LOSS, loss), deviations(n, NORM, r->grad_norm) };
    if (!is_finite(r)) {
        tr_str_addf(why, "loss %g, gradient norm %g", loss, r->grad_norm);
        return true;
    }
    for (int s = 0; n->cfg->spike_zscore > 0 && s < N_SERIES; s++)
        if (z[s] > n->cfg->spike_zscore) {
            tr_str_addf(why, "%s %g is %.1f deviations above the last %d steps", s == LOSS ? "loss" : "gradient norm",
                        s == LOSS ? loss : r->grad_norm, z[s], (int)tr_min64(n->n_seen, N_HISTORY));
            return true;
        }
    return false;
}

/* Runs the same step again and checks every activation and gradient. */
static enum tr_status replay(struct tr_numbers *n, const float values[TR_STEP_COUNT], struct tr_step_result *out,
                             struct finding *origin, bool *is_same)
{
    struct tr_exec *e = n->e;
    memcpy(n->losses, tr_exec_losses(e), n->n_losses * sizeof *n->losses);
    memcpy(n->norms, tr_exec_norms(e), n->n_norms * sizeof *n->norms);
    n->mine = (struct finding){ .rank = tr_exec_mesh(e)->rank, .sample = -1 };
    TR_PASS(tr_exec_drain(e));
    look_at_weights(n);
    tr_exec_watch(e, look, n);
    enum tr_status st = tr_exec_measure(e, n->cfg, n->batch->micro, values, out);
    tr_exec_watch(e, NULL, NULL);
    TR_PASS(st);
    *is_same = tr_exec_compiled(e)->opt.any_order ||
               (memcmp(n->losses, tr_exec_losses(e), n->n_losses * sizeof *n->losses) == 0 &&
                memcmp(n->norms, tr_exec_norms(e), n->n_norms * sizeof *n->norms) == 0);
    look_at_losses(n, *is_same);
    return share(n, origin);
}

/* Appends the first parameter whose gradient norm differs from the first run. With one sum over all gradients it is
 * unknown. */
static void describe_norms(const struct tr_numbers *n, struct tr_str *out)
{
    for (int p = 0; p < tr_exec_compiled(n->e)->place.model->n_params && !tr_exec_has_one_norm(n->e); p++)
        for (int i = tr_exec_compiled(n->e)->place.norm_first[p]; i < tr_exec_compiled(n->e)->place.norm_first[p + 1];
             i++)
            if (memcmp(&n->norms[i], &tr_exec_norms(n->e)[i], sizeof *n->norms) != 0) {
                tr_str_addf(out, "; the gradient of %s differs", tr_exec_compiled(n->e)->place.model->param[p].name);
                return;
            }
}

static enum tr_status judge(struct tr_numbers *n, const float values[TR_STEP_COUNT], struct tr_step_result *r,
                            struct tr_str *text, struct tr_verdict *verdict)
{
    struct finding origin;
    bool is_same = true;
    TR_PASS(replay(n, values, r, &origin, &is_same));
    describe(n, &origin, text);
    verdict->rank = origin.kind == NOWHERE ? -1 : (int)origin.rank;
    if (!is_same && origin.kind == NOWHERE)
        describe_norms(n, text);
    tr_str_addf(text, is_same
                          ? "; a replay gave the same bits: data or model"
                          : "; a replay gave other bits: hardware is suspected, and the result of the replay is used");
    if (is_finite(r))
        return TR_OK;
    verdict->is_skipped = n->cfg->nonfinite == TR_NONFINITE_SKIP && n->n_skipped < n->cfg->nonfinite_budget;
    n->n_skipped += verdict->is_skipped;
    if (verdict->is_skipped)
        tr_str_addf(text, "; no parameter was changed, skip %" PRId64 " of at most %" PRId64, n->n_skipped,
                    n->cfg->nonfinite_budget);
    else
        tr_str_addf(text, "; no parameter was changed, stopped after %" PRId64 " skips (--nonfinite %s)", n->n_skipped,
                    tr_config_word("nonfinite", (int)n->cfg->nonfinite));
    return TR_OK;
}

enum tr_status tr_numbers_step(struct tr_numbers *n, const struct tr_step_batch *b, const float values[TR_STEP_COUNT],
                               struct tr_step_result *out, struct tr_verdict *verdict)
{
    enum tr_status st = TR_OK;
    struct tr_step_result r = { 0 };
    struct tr_str text = { 0 };
    double n_targets = (double)tr_max64(1, b->n_targets);
    *verdict = (struct tr_verdict){ .rank = -1 };
    n->batch = b;
    TR_TRY(tr_exec_measure(n->e, n->cfg, b->micro, values, &r));
    verdict->is_overflow = tr_scaler_overflows(n->scaler, &r);
    if (!verdict->is_overflow && is_suspect(n, &r, r.loss_sum / n_targets, &text)) {
        verdict->is_odd = true;
        TR_TRY(judge(n, values, &r, &text, verdict));
        (void)snprintf(verdict->cause, sizeof verdict->cause, "%s", tr_str_ok(&text) ? text.p : "out of memory");
    }
    if (is_finite(&r)) {
        remember(n, &r, r.loss_sum / n_targets);
        TR_TRY(tr_exec_update(n->e, &r));
    } else if (!verdict->is_skipped && !verdict->is_overflow) {
        TR_TRY(tr_fail(TR_NUMBERS, "%s", verdict->cause));
    }
    tr_scaler_count(n->scaler, verdict->is_overflow);
    *out = r;
out:
    tr_str_release(&text);
    return st;
}
