/* optim.c - the table of optimizers. */
#include "optim/optim.h"
#include <assert.h>

static const struct tr_optim *const rows[] = {
    [TR_OPTIM_ADAMW] = &tr_adamw,
    [TR_OPTIM_LION] = &tr_lion,
    [TR_OPTIM_SGD] = &tr_sgd,
};
static_assert(TR_COUNT_OF(rows) == TR_OPTIM_SGD + 1, "one row per optimizer");

const struct tr_optim *tr_optim_row(enum tr_optim_kind kind)
{
    return rows[kind];
}

const struct tr_state_row *tr_optim_state(const char *name, size_t n)
{
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        for (int k = 0; k < rows[i]->n_states; k++) {
            const struct tr_state_row *r = &rows[i]->state[k];
            if (r->name && strlen(r->name) == n && memcmp(r->name, name, n) == 0)
                return r;
        }
    return NULL;
}
