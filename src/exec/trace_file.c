/* trace_file.c - the timeline of a profile as a file (trace.h).
 *
 * The file has the words of PyTorch's profiler, because its readers know those: Perfetto and chrome://tracing take any
 * trace, but Holistic Trace Analysis (HTA) looks at categories, at `ProfilerStep#N`, at the launch that belongs to a
 * kernel (the same `correlation`), at `stream`, and takes for communication what is called `nccl...`. So kernels,
 * collectives and copies are events of a device whose number is the rank, each with the host's call before it. Times
 * are those of the host's monotonic clock in microseconds, so that files of several ranks of a host lie on one line;
 * baseTimeNanoseconds leads to the time of day. What the plan says lies beside it without a category: HTA skips it.
 */
#include "exec/trace_impl.h"
#include <assert.h>
#include <stdio.h>
#include <time.h>

enum { PLANNED_PID = 1000000, HOST_PID = 2000000, FIRST_LANE = 10, NEXT_LINE = 100 };
static const char *const track_names[] = { "actions", "compute", "waiting", "communication", "copies" };
static_assert(TR_COUNT_OF(track_names) == N_TRACKS, "one name per track");

/* What HTA calls a collective, as NCCL's kernels are named. */
static const char *const kernel_names[] = { "AllReduce", "ReduceScatter", "AllGather", "Broadcast",
                                            "AllToAll",  "Send",          "Recv",      "Barrier" };
static_assert(TR_COUNT_OF(kernel_names) == TR_COLL_KINDS, "one name per kind");

static const char *kernel_name(const char *coll)
{
    int k = 0;
    while (k + 1 < TR_COLL_KINDS && strcmp(tr_coll_name((enum tr_coll_kind)k), coll) != 0)
        k++;
    return kernel_names[k];
}

static void name_of(struct tr_str *out, const char *what, int pid, int tid, const char *name)
{
    tr_str_addf(out, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what, pid, tid);
    tr_str_json(out, name);
    tr_str_addf(out, "}},\n");
}

/* ---- head: who ran ---- */

static int64_t base_ns(void)
{
    struct timespec day, mono;
    (void)clock_gettime(CLOCK_REALTIME, &day);
    (void)clock_gettime(CLOCK_MONOTONIC, &mono);
    return ((int64_t)day.tv_sec - mono.tv_sec) * 1000000000 + (day.tv_nsec - mono.tv_nsec);
}

/* HTA finds the rank with a pattern that wants a blank behind the colon. */
static void add_head(struct tr_trace *t)
{
    const struct tr_exec *e = t->e;
    const char *engine = e->mesh->all->ops->name;
    tr_str_addf(&t->text,
                "{\n\"schemaVersion\": 1,\n\"deviceProperties\": [{\"id\": %d, \"name\": \"%s\", \"numSms\": %d, ",
                e->mesh->rank, e->dev->row->name, e->dev->n_units);
    tr_str_addf(&t->text, "\"computeMajor\": %d, \"computeMinor\": %d, \"totalGlobalMem\": %zu}],\n",
                e->dev->capability / 10, e->dev->capability % 10, e->dev->reserved_bytes);
    tr_str_addf(&t->text, "\"distributedInfo\": {\"backend\": \"%s\", \"rank\": %d, \"world_size\": %d},\n", engine,
                e->mesh->rank, e->mesh->world);
    tr_str_addf(&t->text, "\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": %lld,\n\"traceEvents\": [\n",
                (long long)base_ns());
}

/* n_lines: of each lane, and of copies. */
static void add_names(struct tr_trace *t, int rank, const int n_lines[TRACE_LANES + 1])
{
    char name[64];
    (void)snprintf(name, sizeof name, "rank %d", rank);
    name_of(&t->text, "process_name", rank, 0, name);
    (void)snprintf(name, sizeof name, "rank %d, host", rank);
    name_of(&t->text, "process_name", HOST_PID + rank, 0, name);
    for (int k = 0; k < N_TRACKS; k++)
        if (k != COMM)
            name_of(&t->text, "thread_name", rank, k, track_names[k]);
    for (int k = 0; k < t->n_lanes; k++)
        for (int line = 0; line < n_lines[k]; line++) {
            (void)snprintf(name, sizeof name, "communication of %d ranks", t->lane[k]->size);
            name_of(&t->text, "thread_name", rank, FIRST_LANE + k + NEXT_LINE * line, name);
        }
    for (int line = 1; line < n_lines[TRACE_LANES]; line++)
        name_of(&t->text, "thread_name", rank, COPIES + NEXT_LINE * line, track_names[COPIES]);
}

/* ---- events ---- */

/* Messages of one communicator, and copies of both directions, may be under way at once. Viewers expect the events of
 * one line to nest: Perfetto drops an event that begins inside another one and ends after it. So overlapping events get
 * further lines. Returns how many lines each lane has, and the copies. */
static void spread(struct tr_trace *t, int n_lines[TRACE_LANES + 1])
{
    double end_us[TRACE_LANES + 1][TRACE_LINES] = { 0 };
    for (int i = 0; i < t->n; i++) {
        struct event *ev = &t->event[i];
        int lane = ev->track == COMM ? ev->lane : TRACE_LANES, line = 0;
        double from = tr_event_us(t, i), to = from + tr_event_length_us(t, i);
        if (ev->track != COMM && ev->track != COPIES)
            continue;
        while (line + 1 < TRACE_LINES && from < end_us[lane][line])
            line++;
        end_us[lane][line] = to > end_us[lane][line] ? to : end_us[lane][line];
        n_lines[lane] = n_lines[lane] > line ? n_lines[lane] : line + 1;
        ev->line = line;
    }
}

static void add_kind(struct tr_trace *t, const struct event *ev)
{
    switch (ev->track) {
    case COMPUTE:
        tr_str_addf(&t->text, "{\"name\":\"%s\",\"cat\":\"kernel\"", ev->name);
        return;
    case COMM:
        tr_str_addf(&t->text, "{\"name\":\"ncclDevKernel_%s\",\"cat\":\"kernel\"", kernel_name(ev->name));
        return;
    case COPIES:
        tr_str_addf(&t->text, "{\"name\":\"Memcpy %s\",\"cat\":\"gpu_memcpy\"", ev->name);
        return;
    default:
        tr_str_addf(&t->text, "{\"name\":\"%s\",\"cat\":\"gpu_user_annotation\"", ev->name);
    }
}

static bool is_on_device(const struct event *ev)
{
    return ev->track == COMPUTE || ev->track == COMM || ev->track == COPIES;
}

static void add_args(struct tr_trace *t, int i, int rank, int tid)
{
    const struct event *ev = &t->event[i];
    const struct tr_action *a = ev->action;
    double us = tr_event_length_us(t, i);
    tr_str_addf(&t->text, "\"args\":{\"bytes\":%.0f", ev->bytes);
    if (is_on_device(ev))
        tr_str_addf(&t->text, ",\"device\":%d,\"stream\":%d,\"correlation\":%d,\"External id\":%d", rank, tid, i + 1,
                    i + 1);
    if (ev->flops > 0)
        tr_str_addf(&t->text, ",\"flops\":%.0f", ev->flops);
    if (ev->track == COPIES && us > 0)
        tr_str_addf(&t->text, ",\"memory bandwidth (GB/s)\":%.3f", ev->bytes / us * 1e-3);
    if (ev->track == COMM)
        tr_str_addf(&t->text,
                    ",\"Collective name\":\"%s\",\"In msg nelems\":%.0f,\"dtype\":\"%s\",\"Group size\":%d,"
                    "\"Process Group Name\":\"%d\"",
                    ev->name, ev->bytes / (double)tr_dtype_bytes(ev->dtype), tr_dtype_name(ev->dtype), ev->group,
                    ev->lane);
    if (ev->site)
        tr_str_addf(&t->text, ",\"site\":\"%s\"", ev->site);
    if (a)
        tr_str_addf(&t->text, ",\"segment\":%d,\"micro\":%d,\"action\":\"%s\"", a->of >= 0 ? a->of : a->segment,
                    a->micro, tr_action_name(a->kind));
    tr_str_addf(&t->text, "}},\n");
}

static void add_event(struct tr_trace *t, int i, int rank)
{
    const struct event *ev = &t->event[i];
    int tid = (ev->track == COMM ? FIRST_LANE + ev->lane : (int)ev->track) + NEXT_LINE * ev->line;
    double from = tr_event_us(t, i);
    if (ev->track == COMM && ev->group == 1) /* nothing moves; a kernel of nanoseconds is a loss of time to HTA */
        return;
    if (is_on_device(ev)) /* a launch is never behind its kernel, whatever two clocks say */
        tr_str_addf(
            &t->text,
            "{\"name\":\"%s\",\"cat\":\"cuda_runtime\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"correlation\":%d,\"External id\":%d}},\n",
            ev->track == COPIES ? "cudaMemcpyAsync" : "cudaLaunchKernel", HOST_PID + rank, HOST_PID + rank,
            ev->called_us < from ? ev->called_us : from, ev->returned_us - ev->called_us, i + 1, i + 1);
    add_kind(t, ev);
    tr_str_addf(&t->text, ",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", rank, tid, from,
                tr_event_length_us(t, i));
    add_args(t, i, rank, tid);
}

/* The plan's step begins where the first measured one does. */
static void add_planned(struct tr_trace *t)
{
    char name[64];
    int last = -1;
    for (int i = 0; i < t->n_planned; i++) {
        const struct tr_planned_span *s = &t->planned[i];
        int pid = PLANNED_PID + s->stage;
        if (s->stage > last) {
            (void)snprintf(name, sizeof name, "stage %d, as planned", s->stage);
            name_of(&t->text, "process_name", pid, 0, name);
            name_of(&t->text, "thread_name", pid, 0, "compute");
            name_of(&t->text, "thread_name", pid, 1, "traffic");
            last = s->stage;
        }
        tr_str_addf(&t->text, "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", s->name,
                    pid, (int)s->is_traffic, t->step[0].begin_us + s->begin_s * 1e6, s->s * 1e6);
        tr_str_addf(&t->text, "\"args\":{\"micro\":%d}},\n", s->micro);
    }
}

enum tr_status tr_trace_write(struct tr_trace *t)
{
    char name[48];
    int rank = t->e->mesh->rank, n_lines[TRACE_LANES + 1] = { 0 };
    spread(t, n_lines);
    add_head(t);
    add_names(t, rank, n_lines);
    add_planned(t);
    for (int i = 0; i < t->n; i++)
        add_event(t, i, rank);
    for (int i = 0; i < t->n_done; i++)
        tr_str_addf(&t->text,
                    "%s{\"name\":\"ProfilerStep#%lld\",\"cat\":\"user_annotation\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,"
                    "\"ts\":%.3f,\"dur\":%.3f,\"args\":{}}",
                    i ? ",\n" : "", (long long)t->step[i].number, HOST_PID + rank, HOST_PID + rank, t->step[i].begin_us,
                    t->step[i].end_us - t->step[i].begin_us);
    tr_str_addf(&t->text, "\n]}\n");
    TR_PASS(tr_str_check(&t->text, "the timeline of %d events", t->n));
    TR_PASS(tr_out_mkdir(t->output, TR_NAME_PROFILE));
    TR_PASS(tr_format(name, sizeof name, TR_NAME_PROFILE "/" TR_NAME_OF_RANK ".json", rank));
    return tr_out_write(t->output, name, t->text.p, t->text.n);
}
