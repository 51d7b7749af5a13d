/* states.c - state rows: what a run holds of each parameter. VALUE, GRAD and MASTER belong to every run, the other rows
 * to its optimizer. */
#include "optim/optim.h"

enum { ALL = (1 << TR_FATES) - 1, LEARNING = 1 << TR_LEARNS | 1 << TR_LEARNS_APART };

static const struct tr_state_row common[TR_S_OPTIM] = {
    [TR_S_VALUE] = { .name = "master", .title = "weights", .block = 1, .zero = 3, .fates = ALL }, /* save_value */
    [TR_S_GRAD] = { .title = "gradient", .block = 1, .zero = 2, .fates = LEARNING },
    [TR_S_MASTER] = { .name = "master", .title = "master weights", .block = 1, .zero = 1, .fates = LEARNING },
};

static void add_rows(const struct tr_optim *o, enum tr_fate fate, enum tr_dtype moment, struct tr_states *out)
{
    for (int k = 0; o && k < o->n_states; k++) {
        struct tr_state_row *r = &out->row[out->n++];
        *r = o->state[k];
        r->dtype = r->is_moment ? moment : r->dtype;
        r->is_held = true;
        r->fates = (uint8_t)(1 << fate);
    }
}

void tr_states_of(const struct tr_optim *o, const struct tr_state_dtypes *d, struct tr_states *out)
{
    const enum tr_dtype dtypes[TR_S_OPTIM] = { d->value, d->grad, d->master };
    *out = (struct tr_states){ .n = TR_S_OPTIM };
    for (int i = 0; i < TR_S_OPTIM; i++) {
        out->row[i] = common[i];
        out->row[i].dtype = dtypes[i];
    }
    out->row[TR_S_VALUE].is_held = true;
    out->row[TR_S_GRAD].is_held = o != NULL;
    out->row[TR_S_MASTER].is_held = o && d->master != d->value;
    add_rows(o, TR_LEARNS, d->moment, out);
    add_rows(o ? o->rest : NULL, TR_LEARNS_APART, d->moment, out);
}

int32_t tr_states_grain(const struct tr_states *s)
{
    int32_t most = 1;
    for (int i = 0; i < s->n; i++)
        most = s->row[i].block > most ? s->row[i].block : most;
    return most;
}

static double bytes_of(const struct tr_states *s, int row, enum tr_fate fate)
{
    const struct tr_state_row *r = &s->row[row];
    bool is_small = r->shape != TR_PER_BLOCK; /* a few bytes a row */
    return tr_states_has(s, row, fate) && !is_small ? (double)tr_dtype_bytes(r->dtype) / r->block : 0;
}

static double bytes_beside_value(const struct tr_states *s, enum tr_fate fate)
{
    double sum = 0;
    for (int i = TR_S_MASTER; i < s->n; i++)
        sum += bytes_of(s, i, fate);
    return sum;
}

double tr_states_bytes(const struct tr_states *s)
{
    return bytes_beside_value(s, TR_LEARNS);
}

/* Without a MASTER, VALUE is counted twice: as the parameter and as its copy. This is slightly too much, but the
 * measured prices of updates expect it. */
double tr_update_bytes(const struct tr_states *s, enum tr_fate fate)
{
    double value = bytes_of(s, TR_S_VALUE, fate);
    double twice = bytes_beside_value(s, fate) + (s->row[TR_S_MASTER].is_held ? 0 : value);
    return 2 * twice + bytes_of(s, TR_S_GRAD, fate) + value;
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
