/* trace.c - the timeline and the table of a profile (trace.h).
 *
 * An event is two marks of the device: clock readings on a CPU, stream events on a GPU. Communicators report through
 * their tracer. The flops and bytes of a kernel are those of its contract, with each operand counted once. The roofline
 * time of a call is the longer of its flops at the peak and its bytes at the memory bandwidth; the share of a row is
 * the sum of those times over the measured time. Rejected: the vendor's profiling library. It does not exist on a CPU,
 * and it does not know the micro-batch, the segment and the site of a call.
 */
#include "exec/trace_impl.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- recording events ---- */

static int begin(struct tr_trace *t, struct event ev, void *stream)
{
    if (t->n == t->cap) {
        t->n_lost++;
        return -1;
    }
    ev.action = ev.action ? ev.action : t->action;
    ev.called_us = ev.returned_us = tr_marks_now_us();
    t->event[t->n] = ev;
    tr_mark(t->marks, 2 * t->n, stream);
    return t->n++;
}

static void end(struct tr_trace *t, int i, void *stream)
{
    if (i < 0)
        return;
    tr_mark(t->marks, 2 * i + 1, stream);
    t->event[i].comm = NULL;
    if (!t->e->dev->row->is_host) /* on a host the call is the work */
        t->event[i].returned_us = tr_marks_now_us();
}

static double bytes_of(const struct tr_call *c)
{
    double sum = 0;
    for (int i = 0; i < TR_MAX_IN + TR_MAX_OUT; i++) {
        const struct tr_view *v = i < TR_MAX_IN ? &c->in[i] : &c->out[i - TR_MAX_IN];
        if (v->data)
            sum += (double)v->rows * (double)v->cols * (double)tr_dtype_bytes(v->dtype);
    }
    return sum;
}

int tr_trace_op(struct tr_trace *t, const struct tr_call *c, int n)
{
    if (!t || !t->is_on)
        return -1;
    struct event ev = { .track = COMPUTE, .name = tr_op_row(c->op)->name };
    for (int i = 0; i < n; i++) {
        ev.flops += tr_op_flops(&c[i]);
        ev.bytes += bytes_of(&c[i]);
    }
    double flops_us = t->peak_flops > 0 ? ev.flops / t->peak_flops * 1e6 : 0;
    double bytes_us = t->e->dev->peak_bytes > 0 ? ev.bytes / t->e->dev->peak_bytes * 1e6 : 0;
    ev.floor_us = flops_us > bytes_us ? flops_us : bytes_us;
    return begin(t, ev, NULL);
}

int tr_trace_action(struct tr_trace *t, const struct tr_action *a)
{
    if (!t || !t->is_on)
        return -1;
    t->action = a;
    tr_range_begin(t->e->dev, tr_action_name(a->kind));
    return begin(t, (struct event){ .track = ACTIONS, .name = tr_action_name(a->kind), .action = a }, NULL);
}

int tr_trace_copy(struct tr_trace *t, const char *name, size_t bytes)
{
    if (!t || !t->is_on)
        return -1;
    return begin(t, (struct event){ .track = COPIES, .name = name, .bytes = (double)bytes }, NULL);
}

void tr_trace_end(struct tr_trace *t, int i)
{
    if (!t || i < 0)
        return;
    if (t->event[i].track == ACTIONS) {
        tr_range_end(t->e->dev);
        t->action = NULL;
    }
    end(t, i, NULL);
}

/* The line of a communicator in the timeline; those beyond the last one share it. */
static int lane_of(struct tr_trace *t, const struct tr_comm *c)
{
    int i = 0;
    while (i < t->n_lanes && t->lane[i] != c)
        i++;
    if (i == t->n_lanes && i < TRACE_LANES)
        t->lane[t->n_lanes++] = c;
    return i < TRACE_LANES ? i : TRACE_LANES - 1;
}

/* A communicator reports the start or the end of a collective or of a wait. */
static void on_mark(struct tr_comm_tracer *self, const struct tr_comm *c, tr_ticket ticket, const struct tr_coll *x,
                    enum tr_comm_mark mark, void *stream)
{
    struct tr_trace *t = (struct tr_trace *)(void *)self;
    enum track track = mark == TR_MARK_START || mark == TR_MARK_END ? COMM : WAITS;
    if (mark == TR_MARK_START || mark == TR_MARK_WAIT) {
        struct event ev = { .track = track, .comm = c, .ticket = ticket, .name = "wait", .group = c->size };
        ev.lane = lane_of(t, c);
        if (x) {
            ev.name = tr_coll_name(x->kind);
            ev.site = x->site;
            ev.dtype = x->dtype;
            ev.bytes = (double)x->count * (double)tr_dtype_bytes(x->dtype);
        }
        (void)begin(t, ev, stream);
        return;
    }
    for (int i = t->n - 1; i >= 0; i--)
        if (t->event[i].comm == c && t->event[i].ticket == ticket && t->event[i].track == track) {
            end(t, i, stream);
            return;
        }
}

/* ---- opening, and the steps ---- */

static int events_of_step(const struct tr_exec *e)
{
    const struct tr_schedule *s = &e->c->schedule[TR_FOR_TRAIN];
    int n = 4 * e->c->place.model->n_params + e->c->place.norm_first[e->c->place.model->n_params] +
            8 * e->c->opt.n_micro + 64;
    for (int i = 0; i < s->n_actions; i++) {
        const struct tr_action *a = &s->action[i];
        bool has_program = tr_action_has_program(a);
        n += 4 + (has_program ? 4 * s->program[s->program_of[a->segment]]->n_nodes : 0);
    }
    return n;
}

enum tr_status tr_trace_open(struct tr_exec *e, int64_t first, int64_t n, const char *dir, double peak_flops,
                             struct tr_trace **out)
{
    enum tr_status st = TR_OK;
    struct tr_trace *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "profile: out of memory");
    *t = (struct tr_trace){ .e = e, .first = first, .n_steps = n, .peak_flops = peak_flops };
    t->tracer.mark = on_mark;
    t->cap = (int)tr_min64((int64_t)events_of_step(e) * n, 1 << 20);
    TR_TRY(TR_ALLOC(t->event, (size_t)t->cap, "%d events", t->cap));
    TR_TRY(TR_ALLOC(t->step, (size_t)n, "%d events", t->cap));
    TR_TRY(tr_format(t->output, sizeof t->output, "%s", dir));
    TR_TRY(tr_path_join(t->dir, dir, TR_NAME_PROFILE));
    TR_TRY(tr_marks_open(e->dev, 2 * t->cap, &t->marks));
out:
    if (st == TR_OK)
        *out = t;
    else
        tr_trace_close(t);
    return st;
}

void tr_trace_plan(struct tr_trace *t, const double planned_s[TR_OP_COUNT], struct tr_planned_span *span, int n)
{
    t->has_plan = true;
    memcpy(t->planned_s, planned_s, sizeof t->planned_s);
    t->planned = span;
    t->n_planned = n;
}

void tr_trace_close(struct tr_trace *t)
{
    if (!t)
        return;
    tr_marks_close(t->marks);
    free(t->event);
    free(t->step);
    free(t->planned);
    tr_str_release(&t->text);
    tr_str_release(&t->table);
    free(t);
}

enum tr_status tr_trace_before(struct tr_trace *t, int64_t step)
{
    enum tr_status st = TR_OK;
    if (!t || step < t->first || step >= t->first + t->n_steps)
        return TR_OK;
    if (step == t->first || t->n == 0)
        st = tr_marks_start(t->marks);
    if (t->n_done == 0)
        tr_profile_range(t->e->dev, true);
    t->step[t->n_done] = (struct traced_step){ step, tr_marks_now_us(), 0 };
    t->is_on = st == TR_OK;
    t->e->trace = t;
    tr_mesh_trace(t->e->mesh, &t->tracer);
    return st;
}

/* ---- the table ---- */

struct row {
    const char *name;
    enum track track;
    int n;
    double us, flops, bytes, floor_us;
};
enum { MAX_ROWS = TR_OP_COUNT + TR_COLL_KINDS + 8 };

static int by_time(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return (x->us < y->us) - (x->us > y->us);
}

static int add_up(const struct tr_trace *t, struct row rows[MAX_ROWS])
{
    int n_rows = 0;
    for (int i = 0; i < t->n; i++) {
        const struct event *ev = &t->event[i];
        int k = 0;
        if (ev->track == ACTIONS || ev->track == WAITS)
            continue;
        while (k < n_rows && (rows[k].name != ev->name || rows[k].track != ev->track))
            k++;
        if (k == MAX_ROWS)
            continue;
        if (k == n_rows)
            rows[n_rows++] = (struct row){ .name = ev->name, .track = ev->track };
        rows[k].n++;
        rows[k].us += tr_event_length_us(t, i);
        rows[k].flops += ev->flops;
        rows[k].bytes += ev->bytes;
        rows[k].floor_us += ev->floor_us;
    }
    qsort(rows, (size_t)n_rows, sizeof *rows, by_time);
    return n_rows;
}

static void add_planned(struct tr_trace *t, const struct row *r)
{
    int op = 0;
    while (op < TR_OP_COUNT && tr_op_row((enum tr_opcode)op)->name != r->name)
        op++;
    if (t->has_plan && r->track == COMPUTE && op < TR_OP_COUNT)
        tr_str_addf(&t->table, " %10.3f", t->planned_s[op] * 1e3);
    else if (t->has_plan)
        tr_str_addf(&t->table, " %10s", "");
}

static void add_row(struct tr_trace *t, const struct row *r)
{
    double steps = (double)t->n_done, s = r->us * 1e-6;
    tr_str_addf(&t->table, "%-18s %6.0f %10.3f", r->name, r->n / steps, r->us * 1e-3 / steps);
    add_planned(t, r);
    tr_str_addf(&t->table, " %6.1f %%", t->step_s > 0 ? 100 * s / t->step_s : 0);
    if (r->flops > 0 && s > 0)
        tr_str_addf(&t->table, " %9.3f", r->flops / s * 1e-12);
    else
        tr_str_addf(&t->table, " %9s", "");
    tr_str_addf(&t->table, " %9.1f", s > 0 ? r->bytes / s * 1e-9 : 0);
    if (r->track == COMPUTE && r->floor_us > 0 && r->us > 0)
        tr_str_addf(&t->table, " %7.0f %%", 100 * r->floor_us / r->us);
    tr_str_addf(&t->table, "\n");
}

/* Where time goes that the device could do without, and what shortens it. */
struct lost {
    double s;
    char text[240];
};
enum { MOST_LOST = 3 };

static int by_loss(const void *a, const void *b)
{
    const struct lost *x = a, *y = b;
    return (x->s < y->s) - (x->s > y->s);
}

/* What the collectives that took the longest are for. There are few sites and many events: one pass over these. */
static const char *slowest_site(const struct tr_trace *t)
{
    enum { MAX_SITES = 64 };
    const char *site[MAX_SITES];
    double us[MAX_SITES] = { 0 };
    int n = 0, most = 0;
    for (int i = 0; i < t->n; i++) {
        const struct event *ev = &t->event[i];
        int k = 0;
        if (ev->track != COMM || !ev->site)
            continue;
        while (k < n && site[k] != ev->site)
            k++;
        if (k == MAX_SITES)
            continue;
        if (k == n)
            site[n++] = ev->site;
        us[k] += tr_event_length_us(t, i);
        most = us[k] > us[most] ? k : most;
    }
    return n > 0 ? site[most] : "messages";
}

/* The largest losses, each a hundredth of a step or more. */
static void add_losses(struct tr_trace *t, const struct row *rows, int n, double idle_s)
{
    struct lost lost[MAX_ROWS + 2];
    int k = 0;
    for (int i = 0; i < n; i++)
        if (rows[i].track == COMPUTE && rows[i].floor_us > 0) {
            lost[k].s = (rows[i].us - rows[i].floor_us) * 1e-6;
            (void)snprintf(lost[k++].text, sizeof lost->text,
                           "%s above its roofline: larger micro-batches or fewer splits make its products larger",
                           rows[i].name);
        }
    lost[k].s = t->exposed_s;
    if (t->exposed_s > 0)
        (void)snprintf(
            lost[k++].text, sizeof lost->text,
            "waits for communication, most of it \"%s\": more tokens a step (--gradient_accumulation_steps), "
            "or a layout that sends less (plan --search)",
            slowest_site(t));
    lost[k].s = idle_s;
    (void)snprintf(lost[k++].text, sizeof lost->text,
                   "nothing to do: larger micro-batches (--per_device_train_batch_size), or data that comes late");
    qsort(lost, (size_t)k, sizeof *lost, by_loss);
    for (int i = 0; i < k && i < MOST_LOST && lost[i].s >= 0.01 * t->step_s; i++)
        tr_str_addf(&t->table, "\nlost: %.3f ms (%.1f %%) %s", lost[i].s * 1e3 / (double)t->n_done,
                    100 * lost[i].s / t->step_s, lost[i].text);
}

static void make_table(struct tr_trace *t)
{
    struct row rows[MAX_ROWS];
    int n = add_up(t, rows);
    double busy_s = 0, steps = (double)t->n_done;
    tr_str_addf(&t->table, "%-18s %6s %10s%s %8s %9s %9s %9s\n", "a step", "calls", "ms",
                t->has_plan ? "    planned" : "", "share", "TFLOP/s", "GB/s", "roofline");
    for (int i = 0; i < n; i++) {
        busy_s += rows[i].track == COMPUTE ? rows[i].us * 1e-6 : 0;
        add_row(t, &rows[i]);
    }
    double idle_s = t->step_s - busy_s - t->exposed_s;
    tr_str_addf(&t->table,
                "of %.3f ms a step: %.3f computing, %.3f held up by communication, %.3f idle; timeline in %s",
                t->step_s * 1e3 / steps, busy_s * 1e3 / steps, t->exposed_s * 1e3 / steps,
                (idle_s > 0 ? idle_s : 0) * 1e3 / steps, t->dir);
    add_losses(t, rows, n, idle_s);
    if (t->n_lost)
        tr_str_addf(&t->table, "\n%d events were not recorded: the buffer of %d events was full", t->n_lost, t->cap);
}

enum tr_status tr_trace_after(struct tr_trace *t, int64_t step, double step_s, double exposed_s, bool is_last,
                              const char **table)
{
    *table = NULL;
    if (!t || !t->is_on)
        return TR_OK;
    t->step_s += step_s;
    t->exposed_s += exposed_s;
    t->is_on = false;
    tr_mesh_trace(t->e->mesh, NULL);
    t->step[t->n_done++].end_us = tr_marks_now_us();
    if (step != t->first + t->n_steps - 1 && !is_last)
        return TR_OK;
    t->e->trace = NULL;
    tr_profile_range(t->e->dev, false);
    make_table(t);
    *table = t->table.p;
    return tr_trace_write(t);
}
