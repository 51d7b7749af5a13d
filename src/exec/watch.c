/* watch.c - what a caller may read of a step while it runs, and the faults that tests plant there. */
#include "exec/exec_impl.h"
#include <math.h>

void tr_exec_watch(struct tr_exec *e, tr_exec_look *look, void *ctx)
{
    e->look = look;
    e->look_ctx = ctx;
}

bool tr_exec_is_finite(struct tr_exec *e, struct tr_view v)
{
    double sum = 0;
    /* free until the norm is computed; behind all slots where some of them are computed before (place.c) */
    int slot = e->c->opt.offloads_grads ? e->c->place.norm_first[e->c->place.model->n_params] : 0;
    char *at = e->base[TR_A_WORK] + e->c->memory.norm + (size_t)slot * sizeof(double);
    struct tr_call c = tr_exec_call(e, TR_OP_SUMSQ);
    c.in[0] = v;
    c.out[0] = (struct tr_view){ .data = at, .dtype = TR_F64, .rows = 1, .cols = 1, .ld = 1 };
    tr_op_launch(e->dev, e->kernel[TR_OP_SUMSQ], &c);
    tr_device_copy_now(e->dev, &sum, at, sizeof sum);
    return isfinite(sum);
}

bool tr_exec_gradient(const struct tr_exec *e, const struct tr_action *a, int local_param, struct tr_view *out)
{
    const struct tr_schedule *s = &e->c->schedule[TR_FOR_TRAIN];
    const struct tr_program *p = s->program[s->program_of[a->segment]];
    int param = s->model->segment[a->segment].param[local_param];
    for (int i = 0; i < p->n_values; i++) {
        const struct tr_value *v = &p->value[i];
        if (v->kind != TR_V_GRAD || v->slot != local_param)
            continue;
        const struct tr_param_place *at = &e->c->place.param[param];
        int bucket = 0;
        while (a->bucket[bucket] != at->bucket)
            TR_BUG_ON(++bucket == a->n_buckets);
        int64_t n = v->rows * v->cols;
        char *grad = e->base[TR_A_GRADS] + a->grad[bucket] + (size_t)at->at * tr_dtype_bytes(v->dtype);
        *out = (struct tr_view){ .data = grad, .dtype = v->dtype, .rows = 1, .cols = n, .ld = n };
        return true;
    }
    return false;
}

/* Writes a NaN at `at` when the failpoint is armed. */
static void plant_nan(struct tr_exec *e, const char *point, char *at)
{
    const uint32_t nan_bits = 0x7fc07fc0; /* a NaN as one float32 and as two 16-bit floats */
    if (tr_failpoint(point) == TR_OK)
        return;
    tr_error_clear();
    if (at)
        tr_device_copy_now(e->dev, at, &nan_bits, sizeof nan_bits);
}

void tr_exec_poison(struct tr_exec *e, const struct tr_action *a)
{
    const struct tr_schedule *s = &e->c->schedule[TR_FOR_TRAIN];
    if (a->kind == TR_DO_BACKWARD)
        plant_nan(e, "exec.lose_gradient", e->base[TR_A_GRADS] + a->grad[0]);
    if (a->kind != TR_DO_FORWARD)
        return;
    const struct tr_program *p = s->program[s->program_of[a->segment]];
    const struct tr_value *v = p->out == TR_NONE ? NULL : &p->value[p->out];
    size_t last_row = v ? (size_t)((v->rows - 1) * v->cols) * tr_dtype_bytes(v->dtype) : 0;
    plant_nan(e, "exec.lose_output", v ? e->base[TR_A_ACTS] + a->out + last_row : NULL);
    plant_nan(e, "exec.lose_weight", e->base[TR_A_PARAMS] + a->value[0]);
}
