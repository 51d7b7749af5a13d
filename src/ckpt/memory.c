/* memory.c - a store in host memory: all of a model's state, for tools that turn one checkpoint into another. A
 * training never uses it; its ranks hold parts. */
#include "ckpt/ckpt.h"
#include <stdlib.h>

struct tr_memory {
    const struct tr_model *m;
    float *state[TR_STATE_COUNT]; /* all parameters, one after another; NULL: not held */
    int64_t *at;                  /* of each parameter */
};

static enum tr_status get(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    const struct tr_memory *x = ctx;
    (void)n;
    *out = x->state[what] + x->at[param] + first;
    return TR_OK;
}

static enum tr_status put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src)
{
    const struct tr_memory *x = ctx;
    memcpy(x->state[what] + x->at[param] + first, src, (size_t)n * sizeof(float));
    return TR_OK;
}

static bool wants(void *ctx, enum tr_state what, int param, int64_t first, int64_t n)
{
    const struct tr_memory *x = ctx;
    (void)param, (void)first, (void)n;
    return x->state[what] != NULL;
}

static int boxes(void *ctx, enum tr_state what, int param, struct tr_range out[TR_MAX_RANGES])
{
    const struct tr_memory *x = ctx;
    (void)what;
    out[0] = (struct tr_range){ 0, 1, x->m->param[param].n };
    return 1;
}

void tr_memory_close(struct tr_memory *x)
{
    if (!x)
        return;
    for (int i = 0; i < TR_STATE_COUNT; i++)
        free(x->state[i]);
    free(x->at);
    free(x);
}

enum tr_status tr_memory_open(const struct tr_model *m, const bool has[TR_STATE_COUNT], struct tr_memory **out,
                              struct tr_store *store)
{
    struct tr_memory *x = calloc(1, sizeof *x);
    bool ok = x && (x->at = calloc((size_t)m->n_params, sizeof *x->at)) != NULL;
    size_t bytes = 0;
    ok = ok && tr_mul_size((size_t)m->n_elements, sizeof(float), &bytes);
    for (int i = 0; i < TR_STATE_COUNT && ok; i++)
        ok = !has[i] || (x->state[i] = malloc(bytes)) != NULL;
    if (!ok) {
        tr_memory_close(x);
        return tr_fail(TR_NOMEM, "no memory for %" PRId64 " parameters", m->n_elements);
    }
    for (int i = 1; i < m->n_params; i++)
        x->at[i] = x->at[i - 1] + m->param[i - 1].n;
    x->m = m;
    *store = (struct tr_store){ .ctx = x,
                                .model = m,
                                .get = get,
                                .whole = get,
                                .put = put,
                                .wants = wants,
                                .boxes = boxes,
                                .weights = has[TR_S_MASTER] ? TR_S_MASTER : TR_S_VALUE };
    memcpy(store->has, has, sizeof store->has);
    for (int i = 0; i < TR_STATE_COUNT; i++)
        store->dtype[i] = TR_F32;
    *out = x;
    return TR_OK;
}
