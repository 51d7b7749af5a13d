/* offload.c - states, parameters and activations that live on the host: copies to and from the device on streams of
 * their own. A copy starts when the compute stream has done what was issued before; the event of its action says when
 * it is over. */
#include "exec/exec_impl.h"
#include <stdlib.h>

static bool is_copy(const struct tr_action *a)
{
    return a->stream == TR_STREAM_IN || a->stream == TR_STREAM_OUT;
}

enum tr_status tr_exec_copies_open(struct tr_exec *e)
{
    const struct tr_schedule *all = e->c->schedule;
    for (int k = 0; k < TR_PURPOSES; k++)
        e->n_copied = (int)tr_max64(e->n_copied, all[k].n_actions);
    TR_PASS(TR_ALLOC(e->copied, (size_t)e->n_copied + 1, "an executor"));
    TR_PASS(tr_stream_event_open(e->dev, &e->computed));
    for (int k = 0; k < TR_PURPOSES; k++) /* schedules run one after the other, so they share the events */
        for (int i = 0; i < all[k].n_actions; i++)
            if (is_copy(&all[k].action[i]) && !e->copied[i])
                TR_PASS(tr_stream_event_open(e->dev, &e->copied[i]));
    for (int i = 0; i < all[TR_FOR_TRAIN].n_actions; i++)
        e->may_record &= !is_copy(&all[TR_FOR_TRAIN].action[i]); /* a recording holds the compute stream only */
    e->defers = tr_defers_updates(&all[TR_FOR_TRAIN]);
    return TR_OK;
}

void tr_exec_copies_close(struct tr_exec *e)
{
    for (int i = 0; e->copied && i < e->n_copied; i++)
        tr_stream_event_close(e->dev, e->copied[i]);
    tr_stream_event_close(e->dev, e->computed);
    free(e->copied);
}

static enum tr_status post_bytes(struct tr_run *r, const struct tr_action *a, void *to, const void *from, size_t bytes)
{
    struct tr_exec *e = r->e;
    int i = (int)(a - r->s->action);
    TR_BUG_ON(e->posted[i].is_copy); /* the schedule must wait for an action before it repeats it */
    tr_stream_record(e->dev, TR_STREAM_COMPUTE, e->computed);
    tr_stream_wait(e->dev, a->stream, e->computed);
    tr_device_copy(e->dev, a->stream, to, from, bytes);
    tr_stream_record(e->dev, a->stream, e->copied[i]);
    e->posted[i].is_copy = true;
    e->n_posted++;
    return TR_OK;
}

static enum tr_status post_copy(struct tr_run *r, const struct tr_action *a, void *to, const void *from)
{
    return post_bytes(r, a, to, from, r->s->buffer[a->use[0].buffer].bytes);
}

static char *host_at(const struct tr_exec *e, int bucket)
{
    return e->base[tr_state_arena(&e->c->place, TR_S_MASTER, bucket)] + e->c->memory.bucket[bucket].host;
}

enum tr_status tr_run_FETCH(struct tr_run *r, const struct tr_action *a)
{
    char *to = r->e->base[TR_A_OPTIM] + a->state;
    if (r->e->c->place.has_states_on_disk)
        return tr_exec_spill_post(r, a, false, r->e->c->memory.bucket[a->of].host, to);
    return post_copy(r, a, to, host_at(r->e, a->of));
}

enum tr_status tr_run_BRING(struct tr_run *r, const struct tr_action *a)
{
    const struct tr_exec *e = r->e;
    size_t from = e->c->memory.bucket[a->of].state[TR_S_VALUE];
    char *to = e->base[TR_A_PARAMS] + a->value[0];
    if (e->c->place.has_values_on_disk)
        return tr_exec_spill_post(r, a, false, from, to);
    return post_copy(r, a, to, e->base[TR_A_HOST] + from);
}

enum tr_status tr_run_STOW(struct tr_run *r, const struct tr_action *a)
{
    return post_copy(r, a, r->e->base[TR_A_HOST] + a->out, r->e->base[TR_A_ACTS] + a->in);
}

enum tr_status tr_run_UNSTOW(struct tr_run *r, const struct tr_action *a)
{
    return post_copy(r, a, r->e->base[TR_A_ACTS] + a->out, r->e->base[TR_A_HOST] + a->in);
}

enum tr_status tr_run_STORE(struct tr_run *r, const struct tr_action *a)
{
    char *from = r->e->base[TR_A_OPTIM] + a->state;
    if (r->e->c->place.has_states_on_disk)
        return tr_exec_spill_post(r, a, true, r->e->c->memory.bucket[a->of].host, from);
    size_t grads = tr_bucket_grad_bytes_on_host(&r->e->c->place, a->of); /* an update only reads them */
    return post_bytes(r, a, host_at(r->e, a->of) + grads, from + grads, r->s->buffer[a->use[0].buffer].bytes - grads);
}

enum tr_status tr_run_GRAD_IN(struct tr_run *r, const struct tr_action *a)
{
    return post_copy(r, a, r->e->base[TR_A_GRADS] + a->grad[0], host_at(r->e, a->of));
}

enum tr_status tr_run_GRAD_OUT(struct tr_run *r, const struct tr_action *a)
{
    return post_copy(r, a, host_at(r->e, a->of), r->e->base[TR_A_GRADS] + a->grad[0]);
}

char *tr_exec_fetched(const struct tr_exec *e, const struct tr_action *a, int row, int param, char *at)
{
    int bucket = e->c->place.param[param].bucket;
    enum tr_arena_id arena = tr_state_arena(&e->c->place, row, bucket);
    bool is_fetched = a->kind == TR_DO_UPDATE && (arena == TR_A_HOST || arena == TR_A_DISK);
    return is_fetched ? e->base[TR_A_OPTIM] + a->state + (at - host_at(e, bucket)) : at;
}
