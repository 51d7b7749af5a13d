/* memory.c - a store in host memory: all of a checkpoint's state, for tools that turn one into another. Of an adapted
 * model that is the adapter. A training never uses it; its ranks hold parts. */
#include "ckpt/ckpt.h"
#include <stdlib.h>

struct tr_memory {
    const struct tr_model *m;
    struct tr_states states;
    char *state[TR_STATES_MAX]; /* all parameters, one after another; NULL: not held */
    int64_t *at[TR_STATES_MAX]; /* of each parameter, in elements of the state */
};

static char *address(const struct tr_memory *x, enum tr_state what, int param, int64_t first)
{
    return x->state[what] + (size_t)(x->at[what][param] + first) * tr_dtype_bytes(x->states.row[what].dtype);
}

static enum tr_status get(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    const struct tr_memory *x = ctx;
    (void)n;
    *out = address(x, what, param, first);
    return TR_OK;
}

static enum tr_status put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src)
{
    const struct tr_memory *x = ctx;
    memcpy(address(x, what, param, first), src, (size_t)n * tr_dtype_bytes(x->states.row[what].dtype));
    return TR_OK;
}

static bool wants(void *ctx, enum tr_state what, int param, int64_t first, int64_t n)
{
    const struct tr_memory *x = ctx;
    (void)first, (void)n;
    return x->state[what] != NULL && tr_adapter_saves(x->m, param);
}

static int ranges(void *ctx, enum tr_state what, int param, struct tr_range out[TR_MAX_RANGES])
{
    const struct tr_memory *x = ctx;
    out[0] =
        (struct tr_range){ 0, 1,
                           tr_state_count(&x->states.row[what], x->m->param[param].rows, x->m->param[param].cols) };
    return 1;
}

void tr_memory_close(struct tr_memory *x)
{
    if (!x)
        return;
    for (int i = 0; i < TR_STATES_MAX; i++) {
        free(x->state[i]);
        free(x->at[i]);
    }
    free(x);
}

/* One state of all parameters. */
static bool reserve(struct tr_memory *x, int row)
{
    const struct tr_state_row *r = &x->states.row[row];
    int64_t n = 0;
    size_t bytes = 0;
    if (!r->is_held)
        return true;
    x->at[row] = calloc((size_t)x->m->n_params, sizeof *x->at[row]);
    for (int i = 0; x->at[row] && i < x->m->n_params; i++) {
        x->at[row][i] = n;
        n += tr_adapter_saves(x->m, i) ? tr_state_count(r, x->m->param[i].rows, x->m->param[i].cols) : 0;
    }
    if (x->at[row] && tr_mul_size((size_t)n, tr_dtype_bytes(r->dtype), &bytes))
        x->state[row] = malloc(bytes);
    return x->state[row] != NULL;
}

enum tr_status tr_memory_open(const struct tr_model *m, const struct tr_states *states, struct tr_memory **out,
                              struct tr_store *store)
{
    struct tr_memory *x = calloc(1, sizeof *x);
    bool ok = x != NULL;
    if (x)
        *x = (struct tr_memory){ .m = m, .states = *states };
    for (int i = 0; i < states->n && ok; i++)
        ok = reserve(x, i);
    if (!ok) {
        tr_memory_close(x);
        return tr_fail(TR_NOMEM, "no memory for %" PRId64 " parameters", m->n_elements);
    }
    *store = (struct tr_store){
        .ctx = x, .model = m, .states = *states, .get = get, .whole = get, .put = put, .wants = wants, .ranges = ranges
    };
    *out = x;
    return TR_OK;
}
