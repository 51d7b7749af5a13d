/* toy_optim.h - an optimizer that this build does not have: momentum in one byte an element, with one scale for 32. */
#ifndef TR_TESTS_TRAIN_TOY_OPTIM_H
#define TR_TESTS_TRAIN_TOY_OPTIM_H

#include "optim/optim.h"
#include <math.h>

enum { TOY_BLOCK = 32 };

static inline float toy_decode(uint8_t code, float scale)
{
    return scale * (float)((int)code - 128) / 127;
}

/* Phase 1: momentum = beta1 * momentum + clipped gradient, block by block. */
static inline void toy_average(const struct tr_call *c)
{
    const float *g = c->in[0].data, *step = c->in[1].data;
    uint8_t *code = c->out[TR_OPTIM_STATE].data;
    float *scale = c->out[TR_OPTIM_STATE + 1].data;
    for (int64_t at = 0, b = 0; at < c->in[0].cols; at += TOY_BLOCK, b++) {
        int64_t n = tr_min64(TOY_BLOCK, c->in[0].cols - at);
        float m[TOY_BLOCK], most = 0;
        for (int64_t i = 0; i < n; i++) {
            m[i] = step[TR_STEP_BETA1] * toy_decode(code[at + i], scale[b]) + step[TR_STEP_CLIP] * g[at + i];
            most = fmaxf(most, fabsf(m[i]));
        }
        for (int64_t i = 0; i < n; i++)
            code[at + i] = (uint8_t)(128 + (most > 0 ? (int)lrintf(127 * m[i] / most) : 0));
        scale[b] = most;
    }
}

/* Phase 2: parameter -= learning rate * momentum. */
static inline void toy_apply(const struct tr_call *c)
{
    const float *step = c->in[1].data, *scale = c->out[TR_OPTIM_STATE + 1].data;
    const uint8_t *code = c->out[TR_OPTIM_STATE].data;
    float *p = c->out[0].data;
    const struct tr_view *copy = &c->out[TR_OPTIM_COPY];
    for (int64_t i = 0; i < c->in[0].cols; i++)
        p[i] -= step[TR_STEP_LR] * toy_decode(code[i], scale[i / TOY_BLOCK]);
    if (copy->data)
        tr_convert(p, TR_F32, copy->data, copy->dtype, (size_t)c->in[0].cols);
}

static inline void toy_step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    tr_step_averages(cfg, cfg->momentum, n_updates, out);
}

static const struct tr_optim toy = {
    .name = "toy",
    .n_states = 2,
    .state = { { .name = "toy_code", .title = "momentum code", .dtype = TR_U8, .block = 1, .zero = 1 },
               { .name = "toy_scale", .title = "momentum scale", .dtype = TR_F32, .block = TOY_BLOCK, .zero = 1 } },
    .n_phases = 2,
    .phase = { { .op = TR_OP_SGD, .kernel = toy_average }, { .op = TR_OP_SGD, .kernel = toy_apply } },
    .step_values = toy_step_values,
};

#endif
