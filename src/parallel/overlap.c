/* overlap.c - level-2 pass: hides communication behind arithmetic.
 *
 * Gathers of zero 3 and copies from the host are posted ahead of need, so that they run while an action computes. Then
 * the pass writes every wait: an action waits for the posted actions of the buckets it touches. At most one posted
 * action is under way for a bucket. At most one reduction of shards is under way at all, because all of them share the
 * staging buffer. An action that needs the reduced shard first runs the remaining hops and adds the shard to those of
 * earlier micro-batches. With zero 1 and 2, the forwards of the next step wait for the gathers of new parameters (lag
 * 1).
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

enum { MOST_AHEAD = 2 };

struct pending {
    int action;    /* the posted action, -1: none */
    int lag;       /* 1: it belongs to the last step, and its place in this list is not known yet */
    bool is_shard; /* a shard that is being reduced and has hops left */
    bool is_first;
    int micro;
};

struct overlap_pass {
    struct tr_emit e;
    struct pending *pending; /* by bucket */
    int reducing;            /* bucket whose shards are under way, -1: none */
    int *fetched, *stored;   /* by bucket: its fetch in this step, and its store until a copy waits; -1: none */
    int *copy;               /* by buffer: the stow, unstow, grad-in or grad-out under way that uses it, -1: none */
    /* of the current action: actions; -1 - bucket: that bucket's gather in the last step; less by n_buckets: its store
     */
    int *wait, n_wait;
};

/* ---- gathers ahead ---- */

/* How many readers ahead of its own an action is posted. What comes from the host comes two ahead: while one segment
 * computes, what the next one needs is there and those of the one after it come, so that a copy may take longer than a
 * segment where others take less. */
static int ahead_of(const struct tr_action *a)
{
    bool is_gather = a->kind == TR_DO_GATHER && a->part == TR_PART_GRADIENTS && !a->is_first;
    bool is_copy = a->kind == TR_DO_BRING || a->kind == TR_DO_UNSTOW || a->kind == TR_DO_GRAD_IN;
    return is_copy ? MOST_AHEAD : is_gather ? 1 : 0;
}

/* Does the reader end the time of another slot of the bucket? It waits for the copy from there, which the copy to the
 * device follows. */
static bool frees_slot_of(const struct tr_schedule *s, const struct tr_action *a, int bucket)
{
    for (int k = 0; k < a->n_uses; k++)
        if (a->use[k].is_idle && s->buffer[a->use[k].buffer].bucket == bucket)
            return true;
    return false;
}

/* Moves gathers and copies in front of earlier readers, but never of a reader of the same bucket, which has a slot of
 * its own for it. */
static void post_ahead(struct tr_schedule *s)
{
    struct tr_action *list = s->action;
    int reader[MOST_AHEAD] = { -1, -1 }; /* the last ones, the newest first */
    for (int i = 0; i < s->n_actions; i++) {
        int k = 0, of = list[i].of;
        while (k < ahead_of(&list[i]) && reader[k] >= 0 && !tr_action_has_bucket(&list[reader[k]], of) &&
               !(list[i].kind == TR_DO_GRAD_IN && frees_slot_of(s, &list[reader[k]], of)))
            k++;
        if (k > 0) {
            struct tr_action moved = list[i];
            int to = reader[k - 1];
            memmove(&list[to + 1], &list[to], (size_t)(i - to) * sizeof *list);
            list[to] = moved;
            while (k > 0)
                reader[--k]++;
        } else if (tr_action_reads_params(&list[i])) {
            memmove(&reader[1], &reader[0], (MOST_AHEAD - 1) * sizeof *reader);
            reader[0] = i;
        }
    }
}

/* ---- waits ---- */

static void emit_waiting(struct overlap_pass *p, const struct tr_action *from)
{
    struct tr_action *a = tr_emit(&p->e, from);
    for (int i = 0; i < p->n_wait; i++)
        if (p->wait[i] >= 0)
            tr_wait_add(&p->e, a, p->wait[i], 0);
        else
            tr_wait_add(&p->e, a, p->wait[i], 1); /* the action is filled in at the end */
    p->n_wait = 0;
}

/* Emits the rest of a reduction of shards: its other hops over data ranks, and the sum with earlier micro-batches. */
static void finish_shard(struct overlap_pass *p, int bucket)
{
    struct pending *x = &p->pending[bucket];
    const struct tr_bucket *b = &p->e.c->place.bucket[bucket];
    int in = tr_fixed_buffer(p->e.s, x->is_first ? TR_BUF_GRAD : TR_BUF_STAGING, x->is_first ? bucket : -1);
    struct tr_action a = { .kind = TR_DO_REDUCE,
                           .stream = TR_STREAM_COMPUTE, /* the next action needs the result */
                           .part = TR_PART_GRADIENTS,
                           .segment = -1,
                           .micro = x->micro,
                           .of = bucket,
                           .hop = 1,
                           .is_first = x->is_first,
                           .n_buckets = 1,
                           .bucket = { bucket } };
    (void)tr_use_add(&a, in, TR_AS_OTHER, true);
    if (b->n_hops > 1 && b->hop[1].axes == TR_ON_REPLICAS)
        emit_waiting(p, &a);
    if (!x->is_first) {
        a.kind = TR_DO_ADD;
        (void)tr_use_add(&a, tr_fixed_buffer(p->e.s, TR_BUF_GRAD, bucket), TR_AS_OTHER, true);
        emit_waiting(p, &a);
    }
    x->is_shard = false;
    p->reducing = -1;
}

/* Makes the current action wait for the posted action of the bucket. */
static void settle(struct overlap_pass *p, int bucket)
{
    struct pending *x = &p->pending[bucket];
    if (x->lag)
        p->wait[p->n_wait++] = -1 - bucket;
    else if (x->action >= 0)
        p->wait[p->n_wait++] = x->action;
    x->action = -1;
    x->lag = 0;
    if (x->is_shard)
        finish_shard(p, bucket);
}

static void settle_all(struct overlap_pass *p)
{
    for (int b = 0; b < p->e.c->place.n_buckets; b++)
        if (!p->pending[b].lag)
            settle(p, b);
}

/* Posts a gather, a copy or a reduction, after the posted action of the same bucket and, for shards, after the one that
 * uses the staging buffer. */
static void post(struct overlap_pass *p, const struct tr_action *a)
{
    struct pending *x = &p->pending[a->of];
    const struct tr_bucket *b = &p->e.c->place.bucket[a->of];
    bool is_scatter = a->kind == TR_DO_REDUCE && b->hop[a->hop].is_scatter;
    if (is_scatter && p->reducing >= 0)
        settle(p, p->reducing);
    TR_BUG_ON(a->kind == TR_DO_BRING && x->action >= 0); /* its wait would hold the copies only */
    if (tr_action_is_posted(a))
        settle(p, a->of);
    if (a->kind == TR_DO_BRING && p->stored[a->of] >= 0) { /* parameters that an update of this step has changed */
        p->wait[p->n_wait++] = p->stored[a->of];
        p->stored[a->of] = -1; /* later copies to the device are behind this one */
    }
    emit_waiting(p, a);
    x->action = tr_action_is_posted(a) ? p->e.s->n_actions - 1 : -1;
    x->is_shard = is_scatter;
    x->is_first = a->is_first;
    x->micro = a->micro;
    p->reducing = is_scatter ? a->of : p->reducing;
}

static void set_copy(struct overlap_pass *p, int action, int to)
{
    const struct tr_action *a = &p->e.s->action[action];
    for (int k = 0; k < a->n_uses; k++)
        p->copy[a->use[k].buffer] = to;
}

/* Makes the current action wait for stows and unstows of the slots that it uses or frees. */
static void settle_copies(struct overlap_pass *p, const struct tr_action *a)
{
    for (int k = 0; k < a->n_uses; k++) {
        int copy = p->copy[a->use[k].buffer];
        if (copy >= 0) {
            p->wait[p->n_wait++] = copy;
            set_copy(p, copy, -1);
        }
    }
}

static void pass_action(struct overlap_pass *p, const struct tr_action *a, int *message)
{
    settle_copies(p, a);
    switch (a->kind) {
    case TR_DO_STOW:
    case TR_DO_UNSTOW:
    case TR_DO_GRAD_IN:
    case TR_DO_GRAD_OUT:
        TR_BUG_ON(p->n_wait > 0); /* a wait here would hold the copies only */
        emit_waiting(p, a);
        set_copy(p, p->e.s->n_actions - 1, p->e.s->n_actions - 1);
        return;
    case TR_DO_SEND:
    case TR_DO_RECV:
        emit_waiting(p, a);
        message[a->message] = p->e.s->n_actions - 1;
        return;
    case TR_DO_WAIT:
        p->wait[p->n_wait++] = message[a->message];
        break;
    case TR_DO_GATHER:
    case TR_DO_REDUCE:
    case TR_DO_BRING:
        post(p, a);
        return;
    case TR_DO_FETCH:
        for (int k = 1; k < a->n_buckets; k++) {
            int *store = &p->stored[a->bucket[k]];
            if (*store >= 0)
                p->wait[p->n_wait++] = *store;
            else if (!p->e.c->place.is_value_on_host[a->bucket[k]]) /* else a copy of that step has waited for it */
                p->wait[p->n_wait++] = -1 - p->e.c->place.n_buckets - a->bucket[k];
            *store = -1;
        }
        emit_waiting(p, a);
        p->fetched[a->of] = p->e.s->n_actions - 1;
        return;
    case TR_DO_STORE:
        emit_waiting(p, a);
        p->stored[a->of] = p->e.s->n_actions - 1;
        return;
    case TR_DO_UPDATE:
        if (p->fetched[a->of] >= 0)
            p->wait[p->n_wait++] = p->fetched[a->of];
        break;
    case TR_DO_TIE:
        settle(p, a->of);
        break;
    case TR_DO_NORM: /* reads all gradients, or those of a bucket */
        if (a->of >= 0) {
            settle(p, a->of);
            break;
        }
        settle_all(p);
        for (int b = 0; b < p->e.s->n_buffers;
             b++) /* and the next step reads those that are on their way to the host */
            if (p->copy[b] >= 0 && p->e.s->action[p->copy[b]].kind == TR_DO_GRAD_OUT) {
                p->wait[p->n_wait++] = p->copy[b];
                set_copy(p, p->copy[b], -1);
            }
        break;
    default:
        for (int k = 0; tr_action_has_program(a) && k < a->n_buckets; k++)
            settle(p, a->bucket[k]);
    }
    emit_waiting(p, a);
}

/* The gather or the store of a bucket that the list leaves under way. The next step waits for it. */
static int last_of(const struct tr_schedule *s, int n_buckets, int number)
{
    enum tr_action_kind kind = number < n_buckets ? TR_DO_GATHER : TR_DO_STORE;
    int i = s->n_actions - 1;
    while (i >= 0 && (s->action[i].kind != kind || s->action[i].of != number % n_buckets))
        i--;
    TR_BUG_ON(i < 0);
    return i;
}

enum tr_status tr_pass_overlap(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct overlap_pass p = { .reducing = -1 };
    post_ahead(s);
    p.pending = calloc((size_t)c->place.n_buckets, sizeof *p.pending);
    p.wait = calloc(2 * (size_t)c->place.n_buckets + TR_MAX_USES + 1, sizeof *p.wait);
    p.copy = calloc((size_t)s->n_buffers + 1, sizeof *p.copy);
    p.fetched = calloc(2 * (size_t)c->place.n_buckets, sizeof *p.fetched);
    int *message = calloc((size_t)s->n_messages + 1, sizeof *message);
    enum tr_status st =
        p.pending && p.wait && p.copy && p.fetched && message ? TR_OK : tr_fail(TR_NOMEM, "schedule: out of memory");
    if (st == TR_OK) {
        p.stored = p.fetched + c->place.n_buckets;
        for (int b = 0; b < c->place.n_buckets; b++)
            p.pending[b].action = p.fetched[b] = p.stored[b] = -1;
        for (int b = 0; b < s->n_buffers; b++)
            p.copy[b] = -1;
        for (int i = 0; i < s->n_actions; i++)
            if (s->action[i].kind == TR_DO_GATHER && s->action[i].part == TR_PART_UPDATE)
                p.pending[s->action[i].of].lag = 1;
        tr_emit_begin(&p.e, c, s);
        for (int i = 0; i < p.e.n_from; i++)
            pass_action(&p, &p.e.from[i], message);
        st = tr_emit_end(&p.e);
        for (int i = 0; i < s->n_waits; i++)
            if (s->wait[i].lag)
                s->wait[i].action = last_of(s, c->place.n_buckets, -1 - s->wait[i].action);
    }
    free(p.pending);
    free(p.wait);
    free(p.copy);
    free(p.fetched);
    free(message);
    return st;
}
