/* sink_tensorboard.c - OUTPUT/runs/NAME/events.out.tfevents.*, which TensorBoard reads.
 *
 * A file is a list of records: length, checksum of the length, an Event of TensorBoard's event.proto, checksum of it.
 * Each start of the run begins a file of its own, whose second record tells readers to forget steps from `from` on, so
 * that a live TensorBoard follows and no step appears twice. Rejected: cutting the old file back, which a reader that
 * has it open would take for damage. Scalars are simple_value, float32: the tag that every reader knows.
 */
#include "observe/track_impl.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

enum { HEAD_BYTES = 12, FOOT_BYTES = 4, RECORD_MAX = 16 << 20 };
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { DTYPE_FLOAT = 1, DTYPE_STRING = 7 };
enum { SESSION_SUCCESS = 1, SESSION_FAILURE = 2, SESSION_RUNNING = 3 };
#define PREFIX "events.out.tfevents."

struct tensorboard {
    int fd;
    char name[TR_PATH_MAX];
    struct tr_str out, event, summary, value, part;
};

static uint32_t masked(const void *p, size_t n)
{
    uint32_t c = tr_crc(TR_CRC32C, 0, p, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static void add_record(struct tr_str *out, const struct tr_str *event)
{
    unsigned char head[HEAD_BYTES], foot[FOOT_BYTES];
    tr_put_le(head, event->n, 8);
    tr_put_le(head + 8, masked(head, 8), 4);
    tr_put_le(foot, masked(event->p, event->n), 4);
    tr_str_add(out, (const char *)head, sizeof head);
    tr_str_add(out, event->p, event->n);
    tr_str_add(out, (const char *)foot, sizeof foot);
}

static void begin(struct tensorboard *t, double time, int64_t step)
{
    tr_str_clear(&t->event);
    tr_str_clear(&t->summary);
    tr_pb_double(&t->event, EVENT_TIME, time);
    tr_pb_int(&t->event, EVENT_STEP, step);
}

static void end(struct tensorboard *t)
{
    if (t->summary.n)
        tr_pb_bytes(&t->event, EVENT_SUMMARY, t->summary.p, t->summary.n);
    if (tr_str_ok(&t->event) && tr_str_ok(&t->summary))
        add_record(&t->out, &t->event);
}

static void begin_value(struct tensorboard *t, const char *tag)
{
    tr_str_clear(&t->value);
    tr_pb_text(&t->value, VALUE_TAG, tag);
}

static void end_value(struct tensorboard *t)
{
    tr_pb_bytes(&t->summary, 1, t->value.p ? t->value.p : "", t->value.n);
}

/* metadata {plugin_data {plugin_name, content}} */
static void add_plugin(struct tensorboard *t, const char *plugin, const struct tr_str *content)
{
    struct tr_str data = { 0 }, meta = { 0 };
    tr_pb_text(&data, 1, plugin);
    if (content)
        tr_pb_bytes(&data, 2, content->p, content->n);
    tr_pb_bytes(&meta, 1, data.p, data.n);
    tr_pb_bytes(&t->value, VALUE_METADATA, meta.p, meta.n);
    tr_str_release(&data);
    tr_str_release(&meta);
}

/* A vector of n elements: n strings, or none of floats. */
static void add_tensor(struct tensorboard *t, int dtype, const char *text)
{
    struct tr_str tensor = { 0 }, shape = { 0 }, dim = { 0 };
    tr_pb_int(&tensor, 1, dtype);
    tr_pb_int(&dim, 1, text ? 1 : 0);
    tr_pb_bytes(&shape, 2, dim.p, dim.n);
    tr_pb_bytes(&tensor, 2, shape.p, shape.n);
    if (text)
        tr_pb_text(&tensor, 8, text);
    tr_pb_bytes(&t->value, VALUE_TENSOR, tensor.p, tensor.n);
    tr_str_release(&tensor);
    tr_str_release(&shape);
    tr_str_release(&dim);
}

static void add_text(struct tensorboard *t, const char *name, const char *text)
{
    char tag[256];
    (void)snprintf(tag, sizeof tag, "%.200s/text_summary", name);
    begin_value(t, tag);
    add_plugin(t, "text", NULL);
    add_tensor(t, DTYPE_STRING, text);
    end_value(t);
}

static void add_histogram(struct tensorboard *t, const char *tag, const struct tr_histogram *h)
{
    double num = 0;
    for (int i = 0; i < TR_HISTOGRAM_BINS; i++)
        num += h->count[i];
    tr_str_clear(&t->part);
    tr_pb_double(&t->part, 1, h->min);
    tr_pb_double(&t->part, 2, h->max);
    tr_pb_double(&t->part, 3, num);
    tr_pb_double(&t->part, 4, h->sum);
    tr_pb_double(&t->part, 5, h->sum_squares);
    tr_pb_doubles(&t->part, 6, h->edge + 1, TR_HISTOGRAM_BINS);
    tr_pb_doubles(&t->part, 7, h->count, TR_HISTOGRAM_BINS);
    begin_value(t, tag);
    tr_pb_bytes(&t->value, VALUE_HISTOGRAM, t->part.p, t->part.n);
    end_value(t);
}

/* A message of the hparams plugin: {version 0, FIELD: body}. */
static void add_hparams(struct tensorboard *t, const char *tag, int field, const struct tr_str *body)
{
    struct tr_str content = { 0 };
    tr_pb_int(&content, 1, 0);
    tr_pb_bytes(&content, field, body->p ? body->p : "", body->n);
    begin_value(t, tag);
    add_plugin(t, "hparams", &content);
    add_tensor(t, DTYPE_FLOAT, NULL);
    end_value(t);
    tr_str_release(&content);
}

static void add_hparam(struct tr_str *body, const cJSON *x)
{
    struct tr_str value = { 0 }, pair = { 0 };
    char *text = cJSON_IsNumber(x) || cJSON_IsBool(x) || cJSON_IsString(x) ? NULL : cJSON_PrintUnformatted(x);
    if (cJSON_IsNumber(x))
        tr_pb_double(&value, 2, x->valuedouble);
    else if (cJSON_IsBool(x))
        tr_pb_int(&value, 4, cJSON_IsTrue(x));
    else
        tr_pb_text(&value, 3, cJSON_IsString(x) ? x->valuestring : text ? text : "");
    tr_pb_text(&pair, 1, x->string);
    tr_pb_bytes(&pair, 2, value.p, value.n);
    tr_pb_bytes(body, 1, pair.p, pair.n);
    cJSON_free(text);
    tr_str_release(&value);
    tr_str_release(&pair);
}

static void add_config(struct tensorboard *t, const struct tr_track_run *run)
{
    cJSON *config = NULL;
    struct tr_str body = { 0 };
    if (!run->config || tr_json_parse(run->config, strlen(run->config), "options", &config) != TR_OK) {
        tr_error_clear();
        return;
    }
    for (const cJSON *x = config->child; x; x = x->next)
        add_hparam(&body, x);
    tr_pb_text(&body, 4, run->name);
    tr_pb_double(&body, 5, run->start_time);
    begin(t, run->start_time, 0);
    add_hparams(t, "_hparams_/session_start_info", 3, &body);
    end(t);
    tr_str_release(&body);
    cJSON_Delete(config);
}

/* ---- what older files hold ---- */

/* What readers see in the files of a directory: the highest step, and each record of an earlier step that stands behind
 * a later one. */
struct seen_steps {
    int64_t last; /* -1: none */
    struct late {
        int64_t step, behind;
    } * late;
    size_t n_late, n_cap;
};

static void note_step(struct seen_steps *s, int64_t step)
{
    if (step < s->last && TR_GROW(s->late, s->n_late + 1, &s->n_cap))
        s->late[s->n_late++] = (struct late){ .step = step, .behind = s->last };
    s->last = tr_max64(s->last, step);
}

/* Readers forget steps, and the log is replayed from a line on. So that no record is shown twice, or lost, both begin
 * at a step behind which nothing stands that is older: at most `from`. */
static int64_t rewind_step(const struct seen_steps *s, int64_t from)
{
    int64_t before;
    do {
        before = from;
        for (size_t i = 0; i < s->n_late; i++)
            if (s->late[i].behind >= from)
                from = tr_min64(from, s->late[i].step);
    } while (from < before);
    return from;
}

/* Reading ends at the first record that is not whole. */
static void read_steps(int fd, struct seen_steps *out)
{
    off_t at = 0;
    unsigned char head[HEAD_BYTES], *record = NULL;
    while (pread(fd, head, sizeof head, at) == (ssize_t)sizeof head) {
        uint64_t n = tr_get_le(head, 8);
        if (tr_get_le(head + 8, 4) != masked(head, 8) || n > RECORD_MAX)
            break;
        unsigned char *p = realloc(record, (size_t)n + FOOT_BYTES);
        record = p ? p : record;
        if (!p || pread(fd, record, (size_t)n + FOOT_BYTES, at + HEAD_BYTES) != (ssize_t)(n + FOOT_BYTES) ||
            tr_get_le(record + n, 4) != masked(record, (size_t)n))
            break;
        int64_t step = -1;
        bool has_summary = false, is_start = false;
        struct tr_pb_field f;
        for (const unsigned char *q = record; tr_pb_next(&q, record + n, &f);) {
            step = f.field == EVENT_STEP ? (int64_t)f.value : step;
            has_summary = has_summary || f.field == EVENT_SUMMARY;
            is_start = is_start || f.field == EVENT_SESSION;
        }
        if (is_start) /* readers have forgotten this step and later ones */
            out->last = tr_min64(out->last, step);
        if (has_summary)
            note_step(out, step);
        at += (off_t)(HEAD_BYTES + n + FOOT_BYTES);
    }
    free(record);
}

static int is_ours(const struct dirent *d)
{
    return strncmp(d->d_name, PREFIX, sizeof PREFIX - 1) == 0;
}

/* The step from which the log is replayed: the highest one that the files hold, at most first_step, and earlier where
 * rewind_step says so. 0: all of it. */
static int64_t first_wanted(const char *dir, int64_t first_step)
{
    struct dirent **file = NULL;
    struct seen_steps steps = { .last = -1 };
    int n = scandir(dir, &file, is_ours, alphasort);
    for (int i = 0; i < n; i++) {
        char path[TR_PATH_MAX];
        int fd = tr_path_join(path, dir, file[i]->d_name) == TR_OK
                     ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
                     : -1;
        if (fd >= 0) {
            read_steps(fd, &steps);
            close(fd);
        }
        free(file[i]);
    }
    free(file);
    int64_t from = rewind_step(&steps, tr_min64(steps.last, first_step));
    free(steps.late);
    return tr_max64(0, from);
}

/* ---- the row ---- */

static enum tr_status close_tensorboard(void *sink, bool is_over)
{
    struct tensorboard *t = sink;
    enum tr_status st = TR_OK;
    if (is_over)
        st = tr_append(t->fd, t->name, &t->out);
    if (t->fd >= 0)
        close(t->fd);
    tr_str_release(&t->out);
    tr_str_release(&t->event);
    tr_str_release(&t->summary);
    tr_str_release(&t->value);
    tr_str_release(&t->part);
    free(t);
    return st;
}

/* Readers take files in the order of their names: a later start must sort behind an earlier one, whatever the clock. */
static enum tr_status make_file(struct tensorboard *t, const struct tr_track_run *run, const char *dir)
{
    char host[65] = "", path[TR_PATH_MAX], last[16] = "";
    struct dirent **file = NULL;
    int64_t at = (int64_t)run->start_time, before = 0;
    (void)gethostname(host, sizeof host - 1);
    TR_PASS(tr_path_join(path, run->output, dir));
    int n = scandir(path, &file, is_ours, alphasort);
    if (n > 0)
        (void)snprintf(last, sizeof last, "%.*s", (int)strcspn(file[n - 1]->d_name + sizeof PREFIX - 1, "."),
                       file[n - 1]->d_name + sizeof PREFIX - 1);
    for (int i = 0; i < n; i++)
        free(file[i]);
    free(file);
    if (last[0] && tr_parse_int(last, 0, INT64_C(9999999998), &before) != TR_OK)
        tr_error_clear();
    at = tr_max64(at, before + 1);
    TR_PASS(tr_format(t->name, sizeof t->name, "%s/" PREFIX "%010" PRId64 ".%s.%d.0", dir, at,
                      tr_name_is_plain(host) ? host : "host", (int)getpid()));
    TR_PASS(tr_out_open(run->output, t->name, TR_OUT_NEW, &t->fd));
    return TR_OK;
}

static enum tr_status open_tensorboard(const struct tr_track_run *run, void **sink, int64_t *from, struct tr_str *place)
{
    enum tr_status st = TR_OK;
    char dir[TR_PATH_MAX], path[TR_PATH_MAX];
    struct tensorboard *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "no memory");
    t->fd = -1;
    TR_TRY(tr_format(dir, sizeof dir, TR_NAME_RUNS "/%s", run->name));
    TR_TRY(tr_out_mkdir(run->output, dir));
    TR_TRY(tr_path_join(path, run->output, dir));
    *from = first_wanted(path, run->first_step);
    TR_TRY(make_file(t, run, dir));
    tr_pb_double(&t->event, EVENT_TIME, run->start_time);
    tr_pb_text(&t->event, EVENT_VERSION, "brain.Event:2");
    add_record(&t->out, &t->event);
    begin(t, run->start_time, *from);
    tr_pb_int(&t->part, 1, 1); /* SessionLog {status START} */
    tr_pb_bytes(&t->event, EVENT_SESSION, t->part.p, t->part.n);
    end(t);
    add_config(t, run);
    tr_str_addf(place, "%s/" TR_NAME_RUNS, run->output);
    *sink = t;
out:
    if (st != TR_OK)
        (void)close_tensorboard(t, false);
    return st;
}

static void add_end(struct tensorboard *t, const struct tr_track_event *e)
{
    const char *status = "";
    struct tr_str body = { 0 };
    if (tr_json_str(e->event->json, "status", false, &status) != TR_OK)
        tr_error_clear();
    tr_pb_int(&body, 1, strcmp(status, "failed") == 0 ? SESSION_FAILURE : SESSION_SUCCESS);
    tr_pb_double(&body, 2, e->time);
    add_hparams(t, "_hparams_/session_end_info", 4, &body);
    tr_str_release(&body);
}

static enum tr_status write_event(void *sink, const struct tr_track_event *e)
{
    enum { FLUSH_BYTES = 1 << 20 };
    struct tensorboard *t = sink;
    begin(t, e->time, e->step);
    for (size_t i = 0; i < e->n_metrics; i++) {
        begin_value(t, e->metric[i].name);
        tr_pb_float(&t->value, VALUE_SIMPLE, (float)e->metric[i].value);
        end_value(t);
    }
    if (e->is_text)
        add_text(t, e->kind, e->event->text);
    if (e->histogram)
        add_histogram(t, e->histogram_name, e->histogram);
    if (e->is_end)
        add_end(t, e);
    end(t);
    return t->out.n > FLUSH_BYTES ? tr_append(t->fd, t->name, &t->out) : TR_OK;
}

static enum tr_status flush(void *sink)
{
    struct tensorboard *t = sink;
    return tr_append(t->fd, t->name, &t->out);
}

const struct tr_sink_row tr_sink_tensorboard = {
    .name = "tensorboard",
    .note = "tensorboard --logdir %s",
    .open = open_tensorboard,
    .event = write_event,
    .flush = flush,
    .close = close_tensorboard,
};
