/* actions.c - the list that level-2 passes write: actions, what they touch and what they wait for.
 *
 * A pass reads the list and emits it anew, with its own actions between (struct tr_emit). The functions here return no
 * error: the emitter keeps the first failure, and the list stays as long as it was.
 */
#include "parallel/parallel_impl.h"
#include <assert.h>
#include <stdlib.h>

static const struct {
    const char *name;
    enum tr_stream stream;
} rows[] = {
#define X(id, action_name, phase, failpoint, on_stream) { .name = action_name, .stream = TR_STREAM_##on_stream },
    TR_ACTION_LIST(X)
#undef X
};
static_assert(TR_COUNT_OF(rows) == TR_ACTION_KINDS, "one row a kind");

const char *tr_action_name(enum tr_action_kind kind)
{
    return rows[kind].name;
}

bool tr_action_runs(enum tr_action_kind kind, enum tr_phase phase)
{
    switch (phase) {
    case TR_FORWARD:
        return kind == TR_DO_FORWARD;
    case TR_BACKWARD_INPUT:
        return kind == TR_DO_BACKWARD || kind == TR_DO_BACKWARD_INPUT;
    default:
        return kind == TR_DO_BACKWARD || kind == TR_DO_BACKWARD_WEIGHT;
    }
}

void tr_emit_begin(struct tr_emit *e, const struct tr_compiled *c, struct tr_schedule *s)
{
    *e = (struct tr_emit){ .c = c, .s = s, .from = s->action, .n_from = s->n_actions };
    s->action = NULL;
    s->n_actions = 0;
    s->n_actions_cap = 0;
}

enum tr_status tr_emit_end(struct tr_emit *e)
{
    free(e->from);
    e->from = NULL;
    return e->st;
}

struct tr_action *tr_emit(struct tr_emit *e, const struct tr_action *a)
{
    struct tr_schedule *s = e->s;
    if (TR_ROOM(s->action, (size_t)s->n_actions + 1, &s->n_actions_cap, "a schedule") != TR_OK) {
        e->st = TR_NOMEM;
        return &e->nowhere;
    }
    s->action[s->n_actions] = *a;
    return &s->action[s->n_actions++];
}

struct tr_action *tr_emit_new(struct tr_emit *e, enum tr_action_kind kind, enum tr_step_part part, int segment,
                              int micro)
{
    return tr_emit(
        e, &(struct tr_action){
               .kind = kind, .stream = rows[kind].stream, .part = part, .segment = segment, .micro = micro, .of = -1 });
}

int tr_slot_add(struct tr_emit *e, enum tr_region region, int bucket, size_t bytes)
{
    struct tr_schedule *s = e->s;
    if (TR_ROOM(s->buffer, (size_t)s->n_buffers + 1, &s->n_buffers_cap, "a schedule") != TR_OK) {
        e->st = TR_NOMEM;
        return 0;
    }
    s->buffer[s->n_buffers] = (struct tr_buffer){ .region = region, .bucket = bucket, .bytes = bytes };
    return s->n_buffers++;
}

/* Fixed buffers are few and stand in front of the slots: schedule.c adds all of them before the first pass. */
int tr_fixed_buffer(const struct tr_schedule *s, enum tr_region region, int bucket)
{
    int i = 0;
    while (i < s->n_buffers && (s->buffer[i].region != region || s->buffer[i].bucket != bucket))
        i++;
    TR_BUG_ON(i == s->n_buffers);
    return i;
}

struct tr_buffer_use *tr_use_add(struct tr_action *a, int buffer, enum tr_role role, bool writes)
{
    TR_BUG_ON(a->n_uses == TR_MAX_USES);
    struct tr_buffer_use *u = &a->use[a->n_uses++];
    *u = (struct tr_buffer_use){ .buffer = buffer, .role = (uint8_t)role, .writes = writes };
    return u;
}

void tr_use_free(struct tr_action *a, int buffer)
{
    int i = 0;
    while (i < a->n_uses && a->use[i].buffer != buffer)
        i++;
    if (i == a->n_uses)
        tr_use_add(a, buffer, TR_AS_OTHER, false)->is_idle = true;
    a->use[i].frees = true;
}

void tr_wait_add(struct tr_emit *e, struct tr_action *a, int action, int lag)
{
    struct tr_schedule *s = e->s;
    if (TR_ROOM(s->wait, (size_t)s->n_waits + 1, &s->n_waits_cap, "a schedule") != TR_OK) {
        e->st = TR_NOMEM;
        return;
    }
    a->first_wait = a->n_waits ? a->first_wait : s->n_waits;
    TR_BUG_ON(a->first_wait + a->n_waits != s->n_waits);
    s->wait[s->n_waits++] = (struct tr_wait){ .action = action, .lag = (uint8_t)lag };
    a->n_waits++;
}
