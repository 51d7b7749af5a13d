/* optim.c - the table of optimizers: those of this build, then those that a program adds before it parses options. */
#include "optim/optim.h"

enum { N_BUILT_IN = TR_OPTIM_ADAFACTOR + 1, N_MAX = N_BUILT_IN + TR_CONFIG_OPTIMS_MAX, BLOCK_MAX = 4096 };

static const struct tr_optim *rows[N_MAX] = {
    [TR_OPTIM_ADAMW] = &tr_adamw,         [TR_OPTIM_LION] = &tr_lion,   [TR_OPTIM_SGD] = &tr_sgd,
    [TR_OPTIM_ADAMW8] = &tr_adamw8,       [TR_OPTIM_LION8] = &tr_lion8, [TR_OPTIM_MUON] = &tr_muon,
    [TR_OPTIM_ADAFACTOR] = &tr_adafactor,
};
static int n_rows = N_BUILT_IN;

const struct tr_optim *tr_optim_row(enum tr_optim_kind kind)
{
    TR_BUG_ON((int)kind >= n_rows);
    return rows[kind];
}

static const struct tr_state_row *state_of(const struct tr_optim *o, const char *name, size_t n)
{
    for (int k = 0; o && k < o->n_states; k++)
        if (o->state[k].name && strlen(o->state[k].name) == n && memcmp(o->state[k].name, name, n) == 0)
            return &o->state[k];
    return NULL;
}

const struct tr_state_row *tr_optim_state(const char *name, size_t n)
{
    const struct tr_state_row *found = NULL;
    for (int i = 0; i < n_rows && !found; i++) {
        found = state_of(rows[i], name, n);
        found = found ? found : state_of(rows[i]->rest, name, n);
    }
    return found;
}

enum tr_fate tr_optim_fate(const struct tr_optim *o, const struct tr_optim_param *p)
{
    return o->rest && !o->takes(p) ? TR_LEARNS_APART : TR_LEARNS;
}

/* A name in files must mean the same state in every optimizer. A block must begin where parameters and shards may
 * begin. */
static enum tr_status check_state(const struct tr_optim *o, const struct tr_state_row *r)
{
    const struct tr_state_row *other = r->name ? tr_optim_state(r->name, strlen(r->name)) : NULL;
    if (r->block < 1 || r->block > BLOCK_MAX || (r->block & (r->block - 1)) != 0)
        return tr_fail(TR_USAGE, "optim %s: block %d of its %s must be a power of 2, at most %d", o->name,
                       (int)r->block, r->title, BLOCK_MAX);
    if ((r->name && strcmp(r->name, "master") == 0) ||
        (other && (other->block != r->block || other->shape != r->shape)))
        return tr_fail(TR_USAGE, "optim %s: the name %s in files belongs to another state; choose another", o->name,
                       r->name);
    return TR_OK;
}

enum tr_status tr_optim_add(const struct tr_optim *row, enum tr_optim_kind *out)
{
    enum tr_status st = TR_OK;
    if (row->n_states > TR_OPTIM_STATES || row->n_phases < 1 || row->n_phases > TR_OPTIM_PHASES)
        return tr_fail(TR_USAGE, "optim %s: %d states and %d phases; at most %d and %d", row->name, row->n_states,
                       row->n_phases, TR_OPTIM_STATES, TR_OPTIM_PHASES);
    if (row->has_sums && row->n_states > TR_OPTIM_SUMS - TR_OPTIM_STATE)
        return tr_fail(TR_USAGE, "optim %s: %d states beside sums; at most %d, because the sums have the slots behind",
                       row->name, row->n_states, TR_OPTIM_SUMS - TR_OPTIM_STATE);
    for (int k = 0; k < row->n_states && st == TR_OK; k++)
        st = check_state(row, &row->state[k]);
    if (st == TR_OK)
        st = tr_config_add_optim(row->name, n_rows);
    if (st != TR_OK)
        return st;
    rows[n_rows] = row;
    *out = (enum tr_optim_kind)n_rows++;
    return TR_OK;
}
