/* check.c - proves that no action of a schedule touches bytes that another action may still be using.
 *
 * Actions are issued one after the other, and those of the compute stream end in that order. So only a posted action
 * can conflict with a later one, from where it is posted to the first action that waits for it. The check walks two
 * steps, because waits reach into the step before. Each action and each posted action that is still under way must
 * touch different bytes, or both must only read. The check also covers slots: none is used before it is taken or after
 * it is freed, and no two live slots share bytes.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

struct walk {
    const struct tr_schedule *s;
    int *under_way, n_under_way; /* posted actions that no action has waited for yet */
    int *live, n_live;           /* slots that are taken */
};

static bool is_in(const int *set, int n, int x)
{
    for (int i = 0; i < n; i++)
        if (set[i] == x)
            return true;
    return false;
}

static void take_out(int *set, int *n, int x)
{
    for (int i = 0; i < *n; i++)
        if (set[i] == x) {
            set[i] = set[--*n];
            return;
        }
}

static bool is_slot(const struct tr_buffer *b)
{
    return b->region < TR_BUF_SLOTS;
}

static bool overlap(const struct tr_schedule *s, int a, int b)
{
    const struct tr_buffer *x = &s->buffer[a], *y = &s->buffer[b];
    if (!is_slot(x) || !is_slot(y))
        return a == b;
    return x->region == y->region && x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

/* The first buffer of x whose bytes y touches too, when one of them writes; -1: none. The norm reads all gradients. */
static int conflict(const struct tr_schedule *s, const struct tr_action *x, const struct tr_action *y)
{
    for (int i = 0; i < x->n_uses; i++) {
        const struct tr_buffer_use *u = &x->use[i];
        if (u->is_idle)
            continue;
        if (y->kind == TR_DO_NORM && y->of < 0 && u->writes && s->buffer[u->buffer].region == TR_BUF_GRAD)
            return u->buffer;
        for (int k = 0; k < y->n_uses; k++)
            if ((u->writes || y->use[k].writes) && !y->use[k].is_idle && overlap(s, u->buffer, y->use[k].buffer))
                return u->buffer;
    }
    return -1;
}

static enum tr_status check_slots(struct walk *w, int i)
{
    const struct tr_schedule *s = w->s;
    const struct tr_action *a = &s->action[i];
    for (int k = 0; k < a->n_uses; k++) {
        int buffer = a->use[k].buffer;
        if (!is_slot(&s->buffer[buffer]))
            continue;
        for (int m = 0; a->use[k].takes && m < w->n_live; m++)
            if (overlap(s, w->live[m], buffer))
                return tr_fail(TR_BUG, "schedule: action %d (%s) takes buffer %d, whose bytes buffer %d still holds", i,
                               tr_action_name(a->kind), buffer, w->live[m]);
        if (a->use[k].takes)
            w->live[w->n_live++] = buffer;
        if (!is_in(w->live, w->n_live, buffer))
            return tr_fail(TR_BUG, "schedule: action %d (%s) uses buffer %d, which no action holds there", i,
                           tr_action_name(a->kind), buffer);
    }
    for (int k = 0; k < a->n_uses; k++)
        if (a->use[k].frees)
            take_out(w->live, &w->n_live, a->use[k].buffer);
    return TR_OK;
}

static enum tr_status check_action(struct walk *w, int i)
{
    const struct tr_schedule *s = w->s;
    const struct tr_action *a = &s->action[i];
    for (int k = 0; k < a->n_waits; k++)
        take_out(w->under_way, &w->n_under_way, s->wait[a->first_wait + k].action);
    for (int m = 0; m < w->n_under_way; m++) {
        int x = w->under_way[m], buffer = conflict(s, &s->action[x], a);
        if (buffer >= 0)
            return tr_fail(
                TR_BUG,
                "schedule: action %d (%s) touches %zu bytes at %zu (region %d, bucket %d) that action %d (%s) "
                "may still use; it has to wait for it",
                i, tr_action_name(a->kind), s->buffer[buffer].bytes, s->buffer[buffer].offset,
                (int)s->buffer[buffer].region, s->buffer[buffer].bucket, x, tr_action_name(s->action[x].kind));
    }
    if (tr_action_is_posted(a) && is_in(w->under_way, w->n_under_way, i))
        return tr_fail(TR_BUG, "schedule: action %d (%s) comes again before any action has waited for it", i,
                       tr_action_name(a->kind));
    if (tr_action_is_posted(a))
        w->under_way[w->n_under_way++] = i;
    return check_slots(w, i);
}

enum tr_status tr_schedule_check(const struct tr_schedule *s)
{
    struct walk w = { .s = s };
    enum tr_status st = TR_OK;
    w.under_way = calloc((size_t)s->n_actions + 1, sizeof *w.under_way);
    w.live = calloc((size_t)s->n_buffers + 1, sizeof *w.live);
    if (!w.under_way || !w.live)
        st = tr_fail(TR_NOMEM, "schedule: out of memory");
    for (int step = 0; step < 2 && st == TR_OK; step++) {
        /* slots that a step leaves taken (the gradients of its last reduction) are free for the next step */
        w.n_live = 0;
        for (int i = 0; i < s->n_actions && st == TR_OK; i++)
            st = check_action(&w, i);
    }
    free(w.under_way);
    free(w.live);
    return st;
}
