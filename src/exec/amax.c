/* amax.c - fp8 with delayed scales: keeps the amax history and derives the scales of the next step from it.
 *
 * Kernels record the largest element of each value that they quantise. After an update the host takes the maximum over
 * all ranks, so every rank has the same numbers and they do not depend on the layout. The maximum of the last
 * TR_AMAX_STEPS updates gives the scales of the next step. While the history is empty, a kernel uses the largest
 * element of the current value. Steps without an update and values that are not finite leave no entry in the history.
 */
#include "exec/exec_impl.h"
#include <math.h>
#include <stdlib.h>

enum tr_status tr_exec_amax_open(struct tr_exec *e)
{
    size_t n = (size_t)e->c->memory.n_amax * (size_t)e->c->place.model->n_segments;
    if (n == 0)
        return TR_OK;
    e->amax.n = n;
    e->amax.amax = calloc(TR_AMAX_STEPS * n, sizeof *e->amax.amax);
    e->amax.pair = calloc(n, sizeof *e->amax.pair);
    return e->amax.amax && e->amax.pair ? TR_OK : tr_fail(TR_NOMEM, "executor: out of memory");
}

void tr_exec_amax_close(struct tr_exec *e)
{
    free(e->amax.amax);
    free(e->amax.pair);
}

enum tr_status tr_run_AMAX_IN(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    (void)a;
    struct tr_amax_history *p = &e->amax;
    for (size_t i = 0; i < p->n; i++) {
        p->pair[i].before = p->pair[i].now = 0;
        for (size_t k = 0; k < TR_AMAX_STEPS; k++)
            p->pair[i].before = fmaxf(p->pair[i].before, p->amax[k * p->n + i]);
    }
    if (p->n)
        tr_device_copy_now(e->dev, e->base[TR_A_WORK] + e->c->memory.amax, p->pair, p->n * sizeof *p->pair);
    return TR_OK;
}

enum tr_status tr_run_AMAX_OUT(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    (void)a;
    struct tr_amax_history *p = &e->amax;
    if (p->n == 0)
        return TR_OK;
    float *amax = p->amax + (size_t)(p->n_steps % TR_AMAX_STEPS) * p->n;
    tr_device_copy_now(e->dev, p->pair, e->base[TR_A_WORK] + e->c->memory.amax, p->n * sizeof *p->pair);
    for (size_t i = 0; i < p->n; i++)
        amax[i] = isfinite(p->pair[i].now) ? p->pair[i].now : 0.0f;
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = TR_F32,
                         .op = TR_MAX,
                         .in = amax,
                         .out = amax,
                         .count = p->n,
                         .site = "largest elements of all ranks" };
    enum tr_status st = tr_comm_run(e->mesh->all, &c);
    p->n_steps += st == TR_OK;
    return st;
}
