/* stow.c - level-2 pass: activations between segments that rest on the host from forward to backward.
 *
 * With block recompute the input of a segment is all that its forward leaves for its backward. Such a slot rests: its
 * last reader in the forward is followed by many other segments before a backward reads it. The pass copies it to a
 * slot of the host behind that reader (stow), frees it on the device STAYS segments later, when the copy has had time
 * to end, and copies it into a new slot in front of the backward (unstow), which `overlap` posts ahead. Slots that rest
 * for a few segments only, and those that messages use, stay. So the device holds activations of a few segments,
 * whatever their number.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

/* Segments that run before the slot of a stowed activation is free; how many run at least while it rests: enough for
 * the free, and for a copy back that is posted ahead. */
enum { STAYS = 2, LEAST_REST = 6 };

struct rest {
    int last, next; /* actions between which it rests; next is -1: it does not */
    int before;     /* the last action so far that uses it; -1: none */
    int host, back; /* its slot on the host, and the one on the device that it comes back to */
    bool is_barred; /* something else than a segment's input or output */
};

struct stow_pass {
    struct tr_emit e;
    struct rest *rest;              /* by buffer */
    int *number;                    /* by action: how many forwards and backwards are before it */
    int *stowed, n_stowed, n_freed; /* buffers in the order in which they were stowed; how many of them are free */
};

static bool is_border(const struct tr_action *a, const struct tr_buffer_use *u)
{
    return tr_action_has_program(a) && !u->is_idle && (u->role == TR_AS_IN || u->role == TR_AS_OUT);
}

static void find_rests(struct stow_pass *p, const struct tr_schedule *s)
{
    for (int i = 0, n = 0; i < s->n_actions; i++) {
        const struct tr_action *a = &s->action[i];
        p->number[i] = n;
        n += tr_action_reads_params(a); /* `overlap` counts the same ones */
        for (int k = 0; k < a->n_uses; k++) {
            struct rest *x = &p->rest[a->use[k].buffer];
            bool is_long = x->before >= 0 && p->number[i] - p->number[x->before] > LEAST_REST;
            x->is_barred |= s->buffer[a->use[k].buffer].region != TR_BUF_ACTS || !is_border(a, &a->use[k]);
            if (is_long && x->next < 0 && s->action[x->before].kind == TR_DO_FORWARD) {
                x->last = x->before;
                x->next = i;
            }
            x->before = i;
        }
    }
}

static bool rests(const struct stow_pass *p, int buffer)
{
    return p->rest[buffer].next >= 0 && !p->rest[buffer].is_barred;
}

static void copy(struct stow_pass *p, enum tr_action_kind kind, const struct tr_action *of, int from, int to)
{
    struct tr_action *a = tr_emit_new(&p->e, kind, TR_PART_GRADIENTS, of->segment, of->micro);
    (void)tr_use_add(a, from, TR_AS_IN, false);
    tr_use_add(a, to, TR_AS_OUT, true)->takes = true;
}

static void stow(struct stow_pass *p, const struct tr_action *of, int buffer)
{
    p->rest[buffer].host = tr_slot_add(&p->e, TR_BUF_RESTING, -1, p->e.s->buffer[buffer].bytes);
    copy(p, TR_DO_STOW, of, buffer, p->rest[buffer].host);
    p->stowed[p->n_stowed++] = buffer;
}

static void unstow(struct stow_pass *p, const struct tr_action *of, int buffer)
{
    p->rest[buffer].back = tr_slot_add(&p->e, TR_BUF_ACTS, -1, p->e.s->buffer[buffer].bytes);
    copy(p, TR_DO_UNSTOW, of, p->rest[buffer].host, p->rest[buffer].back);
}

/* An action with a program: what rests comes back in front of it, and goes behind it. */
static void pass_action(struct stow_pass *p, int i)
{
    const struct tr_action *from = &p->e.from[i];
    for (int k = 0; k < from->n_uses; k++)
        if (rests(p, from->use[k].buffer) && p->rest[from->use[k].buffer].next == i)
            unstow(p, from, from->use[k].buffer);
    struct tr_action *a = tr_emit(&p->e, from);
    for (int k = 0; k < from->n_uses; k++) {
        const struct rest *x = &p->rest[from->use[k].buffer];
        if (rests(p, from->use[k].buffer) && i >= x->next)
            a->use[k].buffer = x->back;
        if (rests(p, from->use[k].buffer) && i == x->next)
            tr_use_free(a, x->host);
    }
    for (; p->n_freed < p->n_stowed; p->n_freed++) {
        int buffer = p->stowed[p->n_freed];
        if (p->number[i] - p->number[p->rest[buffer].last] < STAYS)
            break;
        tr_use_free(a, buffer);
    }
    for (int k = 0; k < from->n_uses; k++)
        if (rests(p, from->use[k].buffer) && p->rest[from->use[k].buffer].last == i)
            stow(p, from, from->use[k].buffer);
}

enum tr_status tr_pass_stow(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct stow_pass p = { .n_stowed = 0 };
    enum tr_status st = TR_OK;
    if (!c->opt.stows_activations || s->purpose != TR_FOR_TRAIN)
        return TR_OK;
    int n_buffers = s->n_buffers;
    TR_TRY(TR_ALLOC(p.rest, (size_t)n_buffers + 1, "a schedule"));
    TR_TRY(TR_ALLOC(p.number, (size_t)s->n_actions + 1, "a schedule"));
    TR_TRY(TR_ALLOC(p.stowed, (size_t)n_buffers + 1, "a schedule"));
    for (int i = 0; i < n_buffers; i++)
        p.rest[i] = (struct rest){ .next = -1, .before = -1 };
    find_rests(&p, s);
    tr_emit_begin(&p.e, c, s);
    for (int i = 0; i < p.e.n_from; i++)
        if (tr_action_has_program(&p.e.from[i]))
            pass_action(&p, i);
        else
            (void)tr_emit(&p.e, &p.e.from[i]);
    st = tr_emit_end(&p.e);
out:
    free(p.rest);
    free(p.number);
    free(p.stowed);
    return st;
}
