/* states.c - state rows: what a run holds of each parameter. VALUE, GRAD and MASTER belong to every run, the other rows
 * to its optimizer. */
#include "optim/optim.h"

static const struct tr_state_row common[TR_S_OPTIM] = {
    [TR_S_VALUE] = { .name = "master", .title = "weights", .block = 1, .zero = 3 }, /* tr_states_save_value */
    [TR_S_GRAD] = { .title = "gradient", .block = 1, .zero = 2 },
    [TR_S_MASTER] = { .name = "master", .title = "master weights", .block = 1, .zero = 1 },
};

void tr_states_of(const struct tr_optim *o, const struct tr_state_dtypes *d, struct tr_states *out)
{
    const enum tr_dtype dtypes[TR_S_OPTIM] = { d->value, d->grad, d->master };
    *out = (struct tr_states){ .n = TR_S_OPTIM + (o ? o->n_states : 0) };
    for (int i = 0; i < TR_S_OPTIM; i++) {
        out->row[i] = common[i];
        out->row[i].dtype = dtypes[i];
    }
    out->row[TR_S_VALUE].is_held = true;
    out->row[TR_S_GRAD].is_held = o != NULL;
    out->row[TR_S_MASTER].is_held = o && d->master != d->value;
    for (int i = TR_S_OPTIM; i < out->n; i++) {
        out->row[i] = o->state[i - TR_S_OPTIM];
        out->row[i].dtype = out->row[i].is_moment ? d->moment : out->row[i].dtype;
        out->row[i].is_held = true;
    }
}

int32_t tr_states_grain(const struct tr_states *s)
{
    int32_t most = 1;
    for (int i = 0; i < s->n; i++)
        most = s->row[i].block > most ? s->row[i].block : most;
    return most;
}

static double bytes_of(const struct tr_state_row *r)
{
    return r->is_held ? (double)tr_dtype_bytes(r->dtype) / r->block : 0;
}

double tr_states_bytes(const struct tr_states *s)
{
    double sum = 0;
    for (int i = TR_S_MASTER; i < s->n; i++)
        sum += bytes_of(&s->row[i]);
    return sum;
}

/* Without a MASTER, VALUE is counted twice: as the parameter and as its copy. This is slightly too much, but the
 * measured prices of updates expect it. */
double tr_update_bytes(const struct tr_states *s)
{
    double value = bytes_of(&s->row[TR_S_VALUE]);
    double twice = tr_states_bytes(s) + (s->row[TR_S_MASTER].is_held ? 0 : value);
    return 2 * twice + bytes_of(&s->row[TR_S_GRAD]) + value;
}

bool tr_states_save_value(const struct tr_states *s, enum tr_dtype weights)
{
    return !s->row[TR_S_MASTER].is_held && s->n > TR_S_OPTIM &&
           tr_dtype_bytes(weights) < tr_dtype_bytes(s->row[TR_S_VALUE].dtype);
}

int tr_states_find(const struct tr_states *s, const char *name, size_t n)
{
    for (int i = TR_S_MASTER; i < s->n; i++)
        if (s->row[i].name && strlen(s->row[i].name) == n && memcmp(s->row[i].name, name, n) == 0)
            return i;
    return -1;
}
