/* snapshot.c - the memory of a step that has not run, as the snapshot of PyTorch's allocator: pytorch.org/memory_viz
 * and torch.cuda._memory_viz read it.
 *
 * A pipeline rank is a device, an arena is a segment of it. What stays (parameters, gradients, states, tables) is
 * allocated first. Then the schedule is walked: an action takes and frees the buffers that pass between actions, and
 * the nodes of its program make and drop the values of the work arena. Addresses are arena and offset as planned, so
 * the picture shows the layout that the run will have, and an overlap would be seen. The clock counts events. The file
 * is a pickle of protocol 2 with dicts, lists, strings and integers only; nothing in it can be run.
 */
#include "plan/plan.h"
#include <stdlib.h>

enum { EVENTS_MAX = 200000, BATCH = 1000 }; /* BATCH: elements of a list put at once; the page's reader spreads them */

/* ---- pickle ---- */

static void put_byte(struct tr_str *out, int b)
{
    char c = (char)b;
    tr_str_add(out, &c, 1);
}

static void put_text(struct tr_str *out, const char *text)
{
    size_t n = strlen(text);
    put_byte(out, 'X');
    for (int i = 0; i < 4; i++)
        put_byte(out, (int)(n >> 8 * i & 0xff));
    tr_str_add(out, text, n);
}

/* LONG1: little-endian, signed, hence the ninth byte. */
static void put_number(struct tr_str *out, uint64_t x)
{
    int n = 0;
    while (n < 8 && x >> (8 * n) != 0)
        n++;
    put_byte(out, 0x8a);
    put_byte(out, n + 1);
    for (int i = 0; i < n; i++)
        put_byte(out, (int)(x >> (8 * i) & 0xff));
    put_byte(out, 0);
}

static void put_pair(struct tr_str *out, const char *key, uint64_t x)
{
    put_text(out, key);
    put_number(out, x);
}

static void put_word(struct tr_str *out, const char *key, const char *text)
{
    put_text(out, key);
    put_text(out, text);
}

static void open_dict(struct tr_str *out)
{
    tr_str_addf(out, "}(");
}

static void close_dict(struct tr_str *out)
{
    tr_str_addf(out, "u");
}

/* "frames": where an allocation was made, from the inside out. */
static void put_frames(struct tr_str *out, const char *name, const char *place)
{
    put_text(out, "frames");
    tr_str_addf(out, "](");
    open_dict(out);
    put_word(out, "filename", place);
    put_pair(out, "line", 0);
    put_word(out, "name", name);
    close_dict(out);
    tr_str_addf(out, "e");
}

/* ---- one rank ---- */

struct snapshot {
    struct tr_str *out;
    const struct tr_compiled *c;
    int device, n_events;
    bool *is_taken; /* by buffer: slots that are in use now */
};

static uint64_t address(const struct snapshot *s, int arena, size_t offset)
{
    return ((uint64_t)s->device * 64 + (uint64_t)arena + 1) << 44 | offset;
}

static void put_event(struct snapshot *s, const char *action, int arena, size_t offset, size_t bytes, const char *name,
                      const char *place)
{
    struct tr_str *out = s->out;
    if (s->n_events % BATCH == 0)
        tr_str_addf(out, s->n_events ? "e(" : "(");
    open_dict(out);
    put_word(out, "action", action);
    put_pair(out, "addr", address(s, arena, offset));
    put_pair(out, "size", bytes);
    put_pair(out, "stream", 0);
    put_pair(out, "time_us", (uint64_t)s->n_events++);
    put_frames(out, name, place);
    close_dict(out);
}

static void put_free(struct snapshot *s, int arena, size_t offset, size_t bytes, const char *name, const char *place)
{
    put_event(s, "free_requested", arena, offset, bytes, name, place);
    put_event(s, "free_completed", arena, offset, bytes, name, place);
}

/* Regions of slots, whose buffers come and go within a step: the arena of each, and where in it they begin. */
static int slots_at(const struct tr_memory_map *m, enum tr_region region, size_t *offset)
{
    static const int arena[TR_BUF_SLOTS] = { TR_A_ACTS, TR_A_PARAMS, TR_A_GRADS, TR_A_OPTIM, TR_A_HOST };
    const size_t at[TR_BUF_SLOTS] = { 0, m->gathered, m->unreduced, m->states, m->resting };
    *offset = at[region];
    return arena[region];
}

static bool is_moving(const struct tr_compiled *c, const struct tr_slice *x)
{
    size_t at = 0;
    bool is = x->arena == TR_A_WORK && x->offset == c->memory.temps;
    for (int r = 0; r < TR_BUF_SLOTS && !is; r++)
        is = (int)x->arena == slots_at(&c->memory, (enum tr_region)r, &at) && x->offset == at &&
             c->schedule[TR_FOR_TRAIN].region_bytes[r] > 0;
    return is || x->arena == TR_A_ACTS;
}

/* Where a buffer is; -1: it is no slot, and always there. */
static int arena_of(const struct tr_compiled *c, const struct tr_buffer *b, size_t *offset)
{
    if (b->region >= TR_BUF_SLOTS)
        return -1;
    int arena = slots_at(&c->memory, b->region, offset);
    *offset += b->offset;
    return arena;
}

static const char *role_name(const struct tr_buffer_use *u)
{
    static const char *const names[] = {
        [TR_AS_IN] = "input",
        [TR_AS_OUT] = "output",
        [TR_AS_DOUT] = "gradient of the output",
        [TR_AS_DIN] = "gradient of the input",
        [TR_AS_SAVED] = "saved for backward",
        [TR_AS_SPLIT_SAVED] = "saved for the weights",
        [TR_AS_VALUE] = "parameters that come and go",
        [TR_AS_GRAD] = "gradients",
        [TR_AS_STATE] = "states of the optimizer",
        [TR_AS_OTHER] = "buffer",
    };
    return names[u->role];
}

/* ---- values of one action ---- */

struct value_span {
    int first, last;
};

static void meet(const struct tr_program *p, struct value_span *span, tr_val v, int node)
{
    if (v == TR_NONE)
        return;
    struct value_span *s = &span[tr_value_root(p, v)];
    s->first = s->first < 0 ? node : s->first;
    s->last = node;
}

static bool is_passing(const struct tr_program *p, tr_val v)
{
    const struct tr_value *x = &p->value[v];
    return x->kind == TR_V_TEMP && x->base == TR_NONE && v != p->out && v != p->din && !x->is_saved &&
           !x->is_split_saved;
}

/* At a node the values that end there and hand their place on are freed before those that begin are made. */
static void walk_node(struct snapshot *s, const struct tr_program *p, const struct value_span *span, int node,
                      bool is_end, const char *place)
{
    for (tr_val v = 0; v < p->n_values; v++) {
        size_t at = s->c->memory.temps + p->value[v].offset,
               bytes = (size_t)(p->value[v].rows * p->value[v].cols) * tr_dtype_bytes(p->value[v].dtype);
        if (!is_passing(p, v) || span[v].first < 0)
            continue;
        if (is_end ? span[v].last == node : span[v].first == node) {
            if (is_end)
                put_free(s, TR_A_WORK, at, bytes, p->value[v].name, place);
            else
                put_event(s, "alloc", TR_A_WORK, at, bytes, p->value[v].name, place);
        }
    }
}

/* A value whose place another takes over ends one node earlier: at the node that reads it and writes the other. */
static void hand_over(const struct tr_program *p, struct value_span *span)
{
    for (tr_val v = 0; v < p->n_values; v++)
        for (tr_val w = 0; is_passing(p, v) && span[v].first >= 0 && w < p->n_values; w++)
            if (w != v && is_passing(p, w) && span[w].first == span[v].last &&
                p->value[w].offset == p->value[v].offset && span[v].last > span[v].first)
                span[v].last--;
}

static enum tr_status walk_program(struct snapshot *s, const struct tr_schedule *x, const struct tr_action *a)
{
    const struct tr_program *p = x->program[x->program_of[a->segment]];
    struct value_span *span = calloc((size_t)p->n_values + 1, sizeof *span);
    char place[96];
    if (!span)
        return tr_fail(TR_NOMEM, "memory snapshot: out of memory");
    for (int v = 0; v < p->n_values; v++)
        span[v].first = span[v].last = -1;
    for (int i = 0; i < p->n_nodes; i++) {
        const struct tr_node *n = &p->node[i];
        for (int k = 0; k < TR_MAX_IN + TR_MAX_OUT && tr_action_runs(a->kind, n->phase); k++)
            meet(p, span, k < TR_MAX_IN ? n->in[k] : n->out[k - TR_MAX_IN], i);
    }
    hand_over(p, span);
    for (int i = 0; i < p->n_nodes; i++)
        if (tr_action_runs(a->kind, p->node[i].phase)) {
            (void)snprintf(place, sizeof place, "%s in %s of segment %d, micro-batch %d",
                           tr_op_row(p->node[i].op)->name, tr_action_name(a->kind), a->segment, a->micro);
            walk_node(s, p, span, i, false, place);
            walk_node(s, p, span, i, true, place);
        }
    free(span);
    return TR_OK;
}

static void walk_buffers(struct snapshot *s, const struct tr_schedule *x, const struct tr_action *a, bool is_end)
{
    char place[96];
    for (int k = 0; k < a->n_uses; k++) {
        const struct tr_buffer_use *u = &a->use[k];
        const struct tr_buffer *b = &x->buffer[u->buffer];
        size_t offset = 0;
        int arena = arena_of(s->c, b, &offset);
        (void)snprintf(place, sizeof place, "%s of segment %d, micro-batch %d", tr_action_name(a->kind), a->segment,
                       a->micro);
        if (arena >= 0 && u->takes != u->frees && (is_end ? u->frees : u->takes))
            s->is_taken[u->buffer] = u->takes;
        if (arena >= 0 && !is_end && u->takes)
            put_event(s, "alloc", arena, offset, b->bytes, role_name(u), place);
        if (arena >= 0 && is_end && u->frees)
            put_free(s, arena, offset, b->bytes, role_name(u), place);
    }
}

/* ---- the whole ---- */

static void put_segments(struct snapshot *s, bool *is_open)
{
    const struct tr_memory_map *m = &s->c->memory;
    struct tr_str *out = s->out;
    for (int arena = 0; arena < TR_A_DISK; arena++) {
        size_t active = 0;
        for (int i = 0; i < m->n_slices; i++)
            active += (int)m->slice[i].arena == arena && !is_moving(s->c, &m->slice[i]) ? m->slice[i].bytes : 0;
        if (m->bytes[arena] == 0)
            continue;
        tr_str_addf(out, *is_open ? "" : "(");
        *is_open = true;
        open_dict(out);
        put_pair(out, "device", (uint64_t)s->device);
        put_pair(out, "address", address(s, arena, 0));
        put_pair(out, "total_size", m->bytes[arena]);
        put_pair(out, "allocated_size", active);
        put_pair(out, "active_size", active);
        put_pair(out, "requested_size", active);
        put_pair(out, "stream", 0);
        put_word(out, "segment_type", "large");
        put_text(out, "blocks");
        tr_str_addf(out, "](");
        for (int i = 0; i < m->n_slices; i++) {
            const struct tr_slice *x = &m->slice[i];
            if ((int)x->arena != arena)
                continue;
            open_dict(out);
            put_pair(out, "address", address(s, arena, x->offset));
            put_pair(out, "size", x->bytes);
            put_pair(out, "requested_size", x->bytes);
            put_word(out, "state", is_moving(s->c, x) ? "inactive" : "active_allocated");
            put_frames(out, x->name, tr_arena_row((enum tr_arena_id)arena)->name);
            close_dict(out);
        }
        tr_str_addf(out, "e");
        close_dict(out);
    }
}

static enum tr_status put_trace(struct snapshot *s)
{
    enum tr_status st = TR_OK;
    const struct tr_memory_map *m = &s->c->memory;
    const struct tr_schedule *x = &s->c->schedule[TR_FOR_TRAIN];
    tr_str_addf(s->out, "]");
    for (int i = 0; i < m->n_slices; i++)
        if (!is_moving(s->c, &m->slice[i]))
            put_event(s, "alloc", (int)m->slice[i].arena, m->slice[i].offset, m->slice[i].bytes, m->slice[i].name,
                      tr_arena_row(m->slice[i].arena)->name);
    TR_TRY(TR_ALLOC(s->is_taken, (size_t)x->n_buffers + 1, "a memory snapshot"));
    for (int i = 0; i < x->n_actions && s->n_events < EVENTS_MAX; i++) {
        walk_buffers(s, x, &x->action[i], false);
        if (tr_action_has_program(&x->action[i]))
            TR_TRY(walk_program(s, x, &x->action[i]));
        walk_buffers(s, x, &x->action[i], true);
    }
    for (int i = 0; i < x->n_buffers; i++) { /* what no action frees ends with the step */
        size_t offset = 0;
        int arena = arena_of(s->c, &x->buffer[i], &offset);
        if (s->is_taken[i])
            put_free(s, arena, offset, x->buffer[i].bytes, "buffer", "end of the step");
    }
    tr_str_addf(s->out, s->n_events ? "e" : "");
out:
    free(s->is_taken);
    return st;
}

enum tr_status tr_memory_snapshot(const struct tr_compiled *const *c, int n, struct tr_str *out)
{
    bool is_open = false;
    put_byte(out, 0x80);
    put_byte(out, 2);
    open_dict(out);
    put_text(out, "segments");
    tr_str_addf(out, "]");
    for (int k = 0; k < n; k++)
        put_segments(&(struct snapshot){ .out = out, .c = c[k], .device = k }, &is_open);
    tr_str_addf(out, is_open ? "e" : "");
    put_text(out, "device_traces");
    tr_str_addf(out, "](");
    for (int k = 0; k < n; k++)
        TR_PASS(put_trace(&(struct snapshot){ .out = out, .c = c[k], .device = k }));
    tr_str_addf(out, "e");
    close_dict(out);
    put_byte(out, '.');
    return TR_OK;
}
