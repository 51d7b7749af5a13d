/* messages.c - the sends, receives and waits around the slots of a pipeline schedule.
 *
 * The n-th send pairs with the n-th receive between the same two ranks. So a receiver posts its receives in the order
 * in which the sender makes the results, whatever order it needs them in. Receives are posted one slot ahead: the
 * transfer runs while the slot before computes. A result that itself needs that slot cannot come earlier, and its
 * receive is posted behind it: a GPU's receive is a kernel that spins until the peer sends, and CUDA may wait for every
 * running kernel before it starts one of the slot for the first time. Sends are posted at once; the buffer of the n-th
 * send is free when send n + window is posted. In an unusual schedule that wait can close a cycle. So all ranks are
 * simulated with a window of 1, 2, 4 ... until every rank reaches the end. At the latest this happens when no rank
 * waits before its end.
 */
#include "parallel/pipe.h"
#include <stdlib.h>

void tr_pipe_steps_release(struct tr_pipe_steps *s)
{
    free(s->step);
    *s = (struct tr_pipe_steps){ 0 };
}

static enum tr_status add(struct tr_pipe_steps *s, enum tr_step_kind kind, int slot, int peer)
{
    TR_PASS(TR_ROOM(s->step, (size_t)s->n + 1, &s->n_cap, "pipeline messages"));
    s->step[s->n++] = (struct tr_pipe_step){ .kind = kind, .slot = slot, .peer = peer };
    return TR_OK;
}

/* The rank that receives the result of a slot, or -1: no rank, or a stage on the same rank. */
static int goes_to(const struct tr_pipe *o, int slot)
{
    const struct tr_pipe_slot *t = &o->slot[slot];
    int target = tr_pipe_slot_target(o, t);
    bool is_wanted = target >= 0 && *tr_pipe_maker(o, t->kind != TR_DO_FORWARD, target, t->micro) >= 0;
    return is_wanted && tr_pipe_rank(o, target) != tr_pipe_rank(o, t->stage) ? tr_pipe_rank(o, target) : -1;
}

/* The slot of another rank whose result this one needs, or -1. */
static int comes_from(const struct tr_pipe *o, int slot)
{
    const struct tr_pipe_slot *t = &o->slot[slot];
    int source = tr_pipe_slot_source(o, t);
    if (source < 0 || tr_pipe_rank(o, source) == tr_pipe_rank(o, t->stage))
        return -1;
    return *tr_pipe_maker(o, t->kind != TR_DO_FORWARD, source, t->micro);
}

struct making {
    const struct tr_pipe *o;
    int rank, window;
    struct tr_pipe_steps *out;
    int *n_posted;         /* by peer: receives are posted for all of its slots before this one */
    int *n_sent, *n_freed; /* by peer */
    int *sent;             /* slots sent to peer q: sent[q * n_slots ...] */
    int n_slots;
};

static enum tr_status ask_for(struct making *k, int slot)
{
    enum tr_status st = TR_OK;
    int source = slot >= 0 ? tr_pipe_rank(k->o, k->o->slot[slot].stage) : 0;
    for (; slot >= 0 && k->n_posted[source] <= slot && st == TR_OK; k->n_posted[source]++)
        if (goes_to(k->o, k->n_posted[source]) == k->rank)
            st = add(k->out, TR_STEP_RECV, k->n_posted[source], source);
    return st;
}

static enum tr_status free_oldest(struct making *k, int peer)
{
    return add(k->out, TR_STEP_WAIT_SEND, k->sent[peer * k->n_slots + k->n_freed[peer]++], peer);
}

/* Does the result that slot i + 1 waits for need slot i? The stages pass a micro-batch on, from one to the next, and
 * only weight parts make nothing that another stage needs. */
static bool is_cause(const struct tr_pipe *o, int i)
{
    return o->slot[i].micro == o->slot[i + 1].micro && o->slot[i].kind != TR_DO_BACKWARD_WEIGHT;
}

static enum tr_status one_slot(struct making *k, int i)
{
    int source = comes_from(k->o, i), peer = goes_to(k->o, i);
    TR_PASS(ask_for(k, source));
    if (i + 1 < k->o->first[k->rank + 1] && !is_cause(k->o, i))
        TR_PASS(ask_for(k, comes_from(k->o, i + 1)));
    if (source >= 0)
        TR_PASS(add(k->out, TR_STEP_WAIT_RECV, source, tr_pipe_rank(k->o, k->o->slot[source].stage)));
    TR_PASS(add(k->out, TR_STEP_SLOT, i, -1));
    if (peer >= 0) {
        if (k->n_sent[peer] - k->n_freed[peer] >= k->window)
            TR_PASS(free_oldest(k, peer));
        TR_PASS(add(k->out, TR_STEP_SEND, i, peer));
        k->sent[peer * k->n_slots + k->n_sent[peer]++] = i;
    }
    return TR_OK;
}

enum tr_status tr_pipe_steps(const struct tr_pipe *o, int rank, int window, struct tr_pipe_steps *out)
{
    enum tr_status st = TR_OK;
    int n_slots = o->first[rank + 1] - o->first[rank], p = o->n_ranks;
    struct making k = { .o = o, .rank = rank, .window = window, .out = out, .n_slots = n_slots };
    int *mem = calloc((size_t)p * (3 + (size_t)n_slots), sizeof *mem);
    if (!mem)
        return tr_fail(TR_NOMEM, "pipeline messages: out of memory");
    k.n_posted = mem;
    k.n_sent = mem + p;
    k.n_freed = mem + 2 * p;
    k.sent = mem + 3 * p;
    for (int q = 0; q < p; q++)
        k.n_posted[q] = o->first[q];
    for (int i = o->first[rank]; i < o->first[rank + 1]; i++)
        TR_TRY(one_slot(&k, i));
    for (int q = 0; q < p; q++)
        while (k.n_freed[q] < k.n_sent[q])
            TR_TRY(free_oldest(&k, q));
out:
    free(mem);
    return st;
}

/* Do all ranks reach the end? A receive is over when its send was posted, and a send when its receive was posted. */
static bool all_end(const struct tr_pipe *o, const struct tr_pipe_steps *all, bool *is_sent, bool *is_posted, int *at)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < o->n_ranks; r++)
            for (; at[r] < all[r].n; at[r]++, moved = true) {
                const struct tr_pipe_step *s = &all[r].step[at[r]];
                if ((s->kind == TR_STEP_WAIT_RECV && !is_sent[s->slot]) ||
                    (s->kind == TR_STEP_WAIT_SEND && !is_posted[s->slot]))
                    break;
                if (s->kind == TR_STEP_SEND)
                    is_sent[s->slot] = true;
                if (s->kind == TR_STEP_RECV)
                    is_posted[s->slot] = true;
            }
    }
    for (int r = 0; r < o->n_ranks; r++)
        if (at[r] < all[r].n)
            return false;
    return true;
}

enum tr_status tr_pipe_window(const struct tr_pipe *o, int *out)
{
    enum tr_status st = TR_OK;
    size_t n = (size_t)o->first[o->n_ranks];
    bool *flags = NULL;
    int *at = NULL;
    struct tr_pipe_steps *all = calloc((size_t)o->n_ranks, sizeof *all);
    for (int window = 1;; window *= 2) {
        free(flags);
        free(at);
        flags = calloc(2 * n, sizeof *flags);
        at = calloc((size_t)o->n_ranks, sizeof *at);
        if (!all || !flags || !at)
            TR_TRY(tr_fail(TR_NOMEM, "pipeline messages: out of memory"));
        for (int r = 0; r < o->n_ranks; r++) {
            all[r].n = 0;
            TR_TRY(tr_pipe_steps(o, r, window, &all[r]));
        }
        *out = window;
        if (all_end(o, all, flags, flags + n, at))
            break;
        TR_BUG_ON((size_t)window > n); /* tr_pipe_check has proved that the schedule can run */
    }
out:
    for (int r = 0; all && r < o->n_ranks; r++)
        tr_pipe_steps_release(&all[r]);
    free(all);
    free(flags);
    free(at);
    return st;
}
