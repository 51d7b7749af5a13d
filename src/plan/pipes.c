/* pipes.c - pipeline schedules that a search has opened, and what each took to play with given costs.
 *
 * A search plays thousands of layouts but only some tens of different schedules, because stages, chunks and
 * micro-batches repeat from mesh to mesh; and layouts that differ in their ZeRO stage alone often have the same costs.
 * Making and checking a schedule takes longer than playing it. Both are remembered here within fixed bounds: when the
 * schedules hold too many slots they are all dropped, and a play whose place in the table is taken replaces the old
 * one.
 */
#include "plan/forecast_impl.h"
#include <stdlib.h>

enum { PIPES_MAX = 128, SLOTS_MAX = 8 << 20, PLAYS = 4096 };

struct opened {
    char name[32];
    int n_ranks, n_chunks, n_micro;
    uint64_t id; /* never used twice */
    struct tr_pipe *pipe;
};

struct played {
    uint64_t id;       /* of the schedule; 0: none yet */
    double (*slot)[4]; /* the costs, n of them */
    size_t n;
    double message, length;
};

struct tr_pipes {
    struct opened opened[PIPES_MAX];
    int n;
    double n_slots;
    uint64_t last_id;
    struct played played[PLAYS];
};

enum tr_status tr_pipes_open(struct tr_pipes **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? TR_OK : tr_fail(TR_NOMEM, "search: out of memory");
}

static void drop_pipes(struct tr_pipes *o)
{
    for (int i = 0; i < o->n; i++)
        tr_pipe_close(o->opened[i].pipe);
    o->n = 0;
    o->n_slots = 0;
}

void tr_pipes_close(struct tr_pipes *o)
{
    if (!o)
        return;
    drop_pipes(o);
    for (int i = 0; i < PLAYS; i++)
        free(o->played[i].slot);
    free(o);
}

static enum tr_status find_pipe(struct tr_pipes *o, const struct tr_pipe_key *key, struct opened **out)
{
    double n_slots = 3.0 * key->n_ranks * key->n_chunks * key->n_micro; /* a split backward has two */
    for (int i = 0; i < o->n; i++) {
        struct opened *x = &o->opened[i];
        if (x->n_ranks == key->n_ranks && x->n_chunks == key->n_chunks && x->n_micro == key->n_micro &&
            strcmp(x->name, key->schedule) == 0) {
            *out = x;
            return TR_OK;
        }
    }
    if (o->n == PIPES_MAX || o->n_slots + n_slots > SLOTS_MAX)
        drop_pipes(o);
    struct opened new = { .n_ranks = key->n_ranks, .n_chunks = key->n_chunks, .n_micro = key->n_micro };
    TR_PASS(tr_format(new.name, sizeof new.name, "%s", key->schedule));
    TR_PASS(tr_pipe_open(key->schedule, key->n_ranks, key->n_chunks, key->n_micro, &new.pipe));
    new.id = ++o->last_id;
    o->n_slots += n_slots;
    o->opened[o->n] = new;
    *out = &o->opened[o->n++];
    return TR_OK;
}

static struct played *place_of(struct tr_pipes *o, uint64_t id, const struct tr_pipe_costs *costs, size_t n)
{
    struct tr_hash128 h = tr_hash(costs->slot, n * sizeof *costs->slot);
    return &o->played[(h.lo ^ id * UINT64_C(0x9e3779b97f4a7c15)) % PLAYS];
}

static bool is_played(const struct played *p, uint64_t id, const struct tr_pipe_costs *costs, size_t n)
{
    return p->id == id && p->n == n && p->message == costs->message &&
           memcmp(p->slot, costs->slot, n * sizeof *costs->slot) == 0;
}

static enum tr_status play_alone(const struct tr_pipe_key *key, const struct tr_pipe_costs *costs, double *length)
{
    struct tr_pipe *pipe = NULL;
    struct tr_pipe_times times;
    enum tr_status st = TR_OK;
    TR_TRY(tr_pipe_open(key->schedule, key->n_ranks, key->n_chunks, key->n_micro, &pipe));
    TR_TRY(tr_pipe_play_costs(pipe, costs, &times, NULL, NULL));
    *length = times.length;
out:
    tr_pipe_close(pipe);
    return st;
}

enum tr_status tr_pipes_play(struct tr_pipes *o, const struct tr_pipe_key *key, const struct tr_pipe_costs *costs,
                             double *length)
{
    struct opened *x = NULL;
    struct tr_pipe_times times;
    size_t n = (size_t)key->n_ranks * (size_t)key->n_chunks;
    if (!o || !tr_pipe_is_named(key->schedule)) /* a schedule of a file may have any name */
        return play_alone(key, costs, length);
    TR_PASS(find_pipe(o, key, &x));
    struct played *p = place_of(o, x->id, costs, n);
    if (!is_played(p, x->id, costs, n)) {
        TR_PASS(tr_pipe_play_costs(x->pipe, costs, &times, NULL, NULL));
        double(*slot)[4] = realloc(p->slot, n * sizeof *slot);
        if (!slot)
            return tr_fail(TR_NOMEM, "search: out of memory");
        memcpy(slot, costs->slot, n * sizeof *slot);
        *p = (struct played){ .id = x->id, .slot = slot, .n = n, .message = costs->message, .length = times.length };
    }
    *length = p->length;
    return TR_OK;
}
