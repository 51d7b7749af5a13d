/* sink_wandb.c - a W&B run in offline mode: wandb/offline-run-DATE-ID/run-ID.wandb, which `wandb sync` uploads.
 *
 * The file is a LevelDB log (leveldb.c) of records of W&B's wandb_internal.proto. One history row holds all numbers of
 * a step, so it is written when the next step begins. W&B wants the numbers of rows (_step) to grow, so a checkpoint
 * that is reported after later steps has a row of its own behind them; curves are drawn over train/global_step, which
 * is the step itself. Rows are in the order of the log: a resumed run cuts its file back to the step it resumes from
 * and continues it. Values are JSON text with 17 digits: exact. The variables of W&B's own client (WANDB_PROJECT,
 * WANDB_DIR ...) mean the same here.
 */
#include "observe/track_impl.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILE_HEAD = 7 };
enum { NUM = 1, HISTORY = 2, SUMMARY = 3, STATS = 7, METRIC = 12, OUTPUT_RAW = 13, RUN = 17, EXIT = 18, HEADER = 21 };
enum { ITEM_KEY = 1, ITEM_NESTED = 2, ITEM_JSON = 16 };
enum { ROW_ITEM = 1, ROW_NUMBER = 2 };
#define STEP_NAME "train/global_step"

struct wandb {
    int fd;
    char name[TR_PATH_MAX];
    off_t at; /* of the next byte, out included */
    int64_t n_records;
    double start_time, last_time;
    int64_t step;        /* of the row that is being filled; -1: none */
    int64_t last_step;   /* the highest so far */
    int64_t last_number; /* of the last row that was written */
    struct tr_str out, row, summary;
    struct tr_str late; /* whole rows of earlier steps, as field 1 each: they follow the row that is being filled */
};

/* ---- the log ---- */

static void add_record(struct wandb *w, int field, const struct tr_str *body)
{
    struct tr_str record = { 0 };
    tr_pb_int(&record, NUM, ++w->n_records);
    tr_pb_bytes(&record, field, body->p ? body->p : "", body->n);
    if (tr_str_ok(&record) && tr_str_ok(body))
        tr_leveldb_add(&w->out, &w->at, record.p, record.n);
    tr_str_release(&record);
}

/* What a history row says of itself: its number, and its step or -1. */
struct row_head {
    int64_t number, step;
};

static void read_item(const struct tr_pb_field *item, struct row_head *head)
{
    struct tr_pb_field f;
    bool is_step = false;
    const unsigned char *p = item->p;
    while (p && tr_pb_next(&p, item->p + item->n, &f)) {
        char text[32];
        if (f.field == ITEM_NESTED && f.p)
            is_step = f.n == sizeof STEP_NAME - 1 && memcmp(f.p, STEP_NAME, f.n) == 0;
        if (f.field != ITEM_JSON || !is_step || !f.p || f.n >= sizeof text)
            continue;
        memcpy(text, f.p, f.n);
        text[f.n] = 0;
        if (tr_parse_int(text, 0, INT64_MAX, &head->step) != TR_OK)
            tr_error_clear();
    }
}

static struct row_head head_of(const struct tr_str *record)
{
    struct row_head head = { .step = -1 };
    struct tr_pb_field f, g, h;
    const unsigned char *p = (const unsigned char *)record->p, *end = p + record->n;
    while (tr_pb_next(&p, end, &f))
        for (const unsigned char *q = f.p; f.field == HISTORY && q && tr_pb_next(&q, f.p + f.n, &g);) {
            if (g.field == ROW_ITEM)
                read_item(&g, &head);
            for (const unsigned char *r = g.p; g.field == ROW_NUMBER && r && tr_pb_next(&r, g.p + g.n, &h);)
                head.number = h.field == 1 ? (int64_t)h.value : head.number;
        }
    return head;
}

/* Where the old log of w is cut, so that it ends before the first row of *from, which is the highest step it holds, but
 * at most first_step. 0: it holds nothing to continue. */
static off_t find_cut(struct wandb *w, int64_t first_step, int64_t *from)
{
    struct tr_leveldb l = { .fd = w->fd, .at = FILE_HEAD };
    int64_t n = 0, last = -1;
    off_t cut = 0;
    *from = 0;
    while (last < first_step) {
        off_t begin = l.at;
        if (!tr_leveldb_next(&l))
            break;
        struct row_head head = head_of(&l.record);
        if (head.step > last) {
            last = head.step;
            cut = begin;
            w->n_records = n;
            w->last_number = head.number - 1;
        }
        n++;
    }
    tr_str_release(&l.record);
    if (last <= 0) {
        w->n_records = w->last_number = 0;
        return 0;
    }
    *from = tr_min64(last, first_step);
    return cut;
}

/* ---- records ---- */

static void add_item(struct tr_str *to, int field, int key_field, const char *key, const char *json)
{
    struct tr_str item = { 0 };
    tr_pb_text(&item, key_field, key);
    tr_pb_text(&item, ITEM_JSON, json);
    tr_pb_bytes(to, field, item.p ? item.p : "", item.n);
    tr_str_release(&item);
}

static void add_number(struct tr_str *to, int field, int key_field, const char *key, double x)
{
    struct tr_str json = { 0 };
    tr_str_number(&json, x);
    add_item(to, field, key_field, key, json.p ? json.p : "null");
    tr_str_release(&json);
}

static void add_time(struct tr_str *to, int field, double t)
{
    struct tr_str time = { 0 };
    tr_pb_int(&time, 1, (int64_t)floor(t));
    tr_pb_int(&time, 2, (int64_t)((t - floor(t)) * 1e9));
    tr_pb_bytes(to, field, time.p ? time.p : "", time.n);
    tr_str_release(&time);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void add_variable(struct tr_str *body, int field, const char *name, const char *otherwise)
{
    const char *value = variable(name);
    if (value || otherwise)
        tr_pb_text(body, field, value ? value : otherwise);
}

static void add_config(struct tr_str *body, const struct tr_track_run *run)
{
    cJSON *config = NULL;
    struct tr_str updates = { 0 };
    if (run->config && tr_json_parse(run->config, strlen(run->config), "options", &config) != TR_OK)
        tr_error_clear();
    for (const cJSON *x = config ? config->child : NULL; x; x = x->next) {
        char *json = cJSON_PrintUnformatted(x);
        add_item(&updates, 1, ITEM_KEY, x->string, json ? json : "null");
        cJSON_free(json);
    }
    tr_pb_bytes(body, 4, updates.p ? updates.p : "", updates.n);
    tr_str_release(&updates);
    cJSON_Delete(config);
}

static void add_tags(struct tr_str *body)
{
    for (const char *p = variable("WANDB_TAGS"); p && *p;) {
        size_t n = strcspn(p, ",");
        if (n)
            tr_pb_bytes(body, 10, p, n);
        p += n + (p[n] == ',');
    }
}

/* As define_metric("*", step_metric=...): the axis of every curve is the step, whatever the number of its row. */
static void add_axis(struct wandb *w)
{
    struct tr_str options = { 0 }, body = { 0 };
    tr_pb_int(&options, 3, 1); /* defined */
    tr_pb_text(&body, 1, STEP_NAME);
    tr_pb_bytes(&body, 6, options.p ? options.p : "", options.n);
    add_record(w, METRIC, &body);
    tr_str_clear(&body);
    tr_pb_int(&options, 1, 1); /* step_sync */
    tr_pb_text(&body, 2, "*");
    tr_pb_text(&body, 4, STEP_NAME);
    tr_pb_bytes(&body, 6, options.p ? options.p : "", options.n);
    add_record(w, METRIC, &body);
    tr_str_release(&options);
    tr_str_release(&body);
}

static void add_head(struct wandb *w, const struct tr_track_run *run, const char *id)
{
    struct tr_str version = { 0 }, body = { 0 };
    unsigned char head[FILE_HEAD] = { ':', 'W', '&', 'B', 0xE1, 0xBE, 0 };
    char host[65] = "";
    tr_str_add(&w->out, (const char *)head, sizeof head);
    w->at = FILE_HEAD;
    tr_pb_text(&version, 1, "0.31.0");
    tr_pb_text(&version, 2, "0.70.0");
    tr_pb_bytes(&body, 1, version.p ? version.p : "", version.n);
    add_record(w, HEADER, &body);
    tr_str_clear(&body);
    (void)gethostname(host, sizeof host - 1);
    tr_pb_text(&body, 1, id);
    add_variable(&body, 2, "WANDB_ENTITY", NULL);
    add_variable(&body, 3, "WANDB_PROJECT", "huggingface");
    add_config(&body, run);
    add_variable(&body, 6, "WANDB_RUN_GROUP", NULL);
    add_variable(&body, 7, "WANDB_JOB_TYPE", NULL);
    tr_pb_text(&body, 8, run->has_name || !variable("WANDB_NAME") ? run->name : variable("WANDB_NAME"));
    add_variable(&body, 9, "WANDB_NOTES", NULL);
    add_tags(&body);
    tr_pb_text(&body, 13, host);
    add_time(&body, 17, run->start_time);
    add_record(w, RUN, &body);
    add_axis(w);
    tr_str_release(&version);
    tr_str_release(&body);
}

static void add_place(struct tr_str *row, int64_t step, double time, double start_time)
{
    add_number(row, ROW_ITEM, ITEM_NESTED, STEP_NAME, (double)step);
    add_number(row, ROW_ITEM, ITEM_NESTED, "_timestamp", time);
    add_number(row, ROW_ITEM, ITEM_NESTED, "_runtime", time - start_time);
}

static void add_row(struct wandb *w, int64_t number, struct tr_str *row)
{
    struct tr_str step = { 0 };
    w->last_number = number;
    tr_pb_int(&step, 1, number);
    tr_pb_bytes(row, ROW_NUMBER, step.p ? step.p : "", step.n);
    add_number(row, ROW_ITEM, ITEM_NESTED, "_step", (double)number);
    add_record(w, HISTORY, row);
    tr_str_release(&step);
}

static void end_row(struct wandb *w)
{
    struct tr_pb_field f;
    if (w->step < 0)
        return;
    add_place(&w->row, w->step, w->last_time, w->start_time);
    add_row(w, tr_max64(w->step, w->last_number + 1), &w->row);
    tr_str_clear(&w->summary);
    tr_str_add(&w->summary, w->row.p ? w->row.p : "", w->row.n);
    const unsigned char *p = (const unsigned char *)w->late.p;
    for (const unsigned char *end = p ? p + w->late.n : p; p && tr_pb_next(&p, end, &f);) {
        tr_str_clear(&w->row);
        tr_str_add(&w->row, (const char *)f.p, f.n);
        add_row(w, w->last_number + 1, &w->row);
    }
    tr_str_clear(&w->row);
    tr_str_clear(&w->late);
    w->step = -1;
}

/* An event of a step whose row is written. */
static void add_late(struct wandb *w, const struct tr_track_event *e)
{
    struct tr_str row = { 0 };
    for (size_t i = 0; i < e->n_metrics; i++)
        add_number(&row, ROW_ITEM, ITEM_NESTED, e->metric[i].name, e->metric[i].value);
    add_place(&row, e->step, e->time, w->start_time);
    tr_pb_bytes(&w->late, 1, row.p ? row.p : "", row.n);
    tr_str_release(&row);
}

/* ---- where ---- */

static bool is_off(void)
{
    const char *mode = variable("WANDB_MODE"), *disabled = variable("WANDB_DISABLED");
    return (mode && strcmp(mode, "disabled") == 0) || (disabled && strcmp(disabled, "false") != 0);
}

/* 8 characters of [a-z0-9], the same whenever this run is resumed. */
static enum tr_status id_of(const struct tr_track_run *run, char out[129])
{
    const char *id = variable("WANDB_RUN_ID");
    if (!id)
        return tr_format(out, 129, "%.8s", run->id);
    if (!tr_name_is_plain(id) || strlen(id) > 128 || strpbrk(id, "\\#?%:"))
        return tr_fail(TR_USAGE, "WANDB_RUN_ID \"%.40s\": at most 128 characters without / \\ # ? %% :", id);
    return tr_format(out, 129, "%s", id);
}

/* The directory of this run from an earlier start, else a new name. */
static enum tr_status find_dir(const char *base, const struct tr_track_run *run, const char *id, char out[TR_PATH_MAX])
{
    char path[TR_PATH_MAX], suffix[160], date[32];
    struct dirent *d;
    enum tr_status st = tr_path_join(path, base, TR_NAME_WANDB);
    if (st == TR_OK)
        st = tr_format(suffix, sizeof suffix, "-%s", id);
    DIR *dir = st == TR_OK ? opendir(path) : NULL;
    bool is_found = false;
    while (dir && run->first_step > 0 && !is_found && (d = readdir(dir)) != NULL) {
        size_t n = strlen(d->d_name), n_suffix = strlen(suffix);
        is_found = strncmp(d->d_name, "offline-run-", 12) == 0 && n > n_suffix &&
                   strcmp(d->d_name + n - n_suffix, suffix) == 0 &&
                   tr_format(out, TR_PATH_MAX, TR_NAME_WANDB "/%s", d->d_name) == TR_OK;
    }
    if (dir)
        closedir(dir);
    if (st != TR_OK || is_found)
        return st;
    time_t now = (time_t)run->start_time;
    struct tm local = { 0 };
    (void)localtime_r(&now, &local);
    (void)strftime(date, sizeof date, "%Y%m%d_%H%M%S", &local);
    return tr_format(out, TR_PATH_MAX, TR_NAME_WANDB "/offline-run-%s-%s", date, id);
}

/* ---- the row of the table ---- */

static enum tr_status flush(void *sink)
{
    struct wandb *w = sink;
    return tr_append(w->fd, w->name, &w->out);
}

static enum tr_status close_wandb(void *sink, bool is_over)
{
    struct wandb *w = sink;
    enum tr_status st = TR_OK;
    if (is_over) {
        end_row(w);
        st = flush(w);
    }
    if (w->fd >= 0)
        close(w->fd);
    tr_str_release(&w->out);
    tr_str_release(&w->row);
    tr_str_release(&w->summary);
    tr_str_release(&w->late);
    free(w);
    return st;
}

static enum tr_status open_wandb(const struct tr_track_run *run, void **sink, int64_t *from, struct tr_str *place)
{
    enum tr_status st = TR_OK;
    char id[129], dir[TR_PATH_MAX], files[TR_PATH_MAX];
    const char *base = variable("WANDB_DIR") ? variable("WANDB_DIR") : run->output;
    struct wandb *w = is_off() ? NULL : calloc(1, sizeof *w);
    if (is_off())
        return TR_OK;
    if (!w)
        return tr_fail(TR_NOMEM, "no memory");
    w->fd = -1;
    w->step = -1;
    w->start_time = w->last_time = run->start_time;
    TR_TRY(id_of(run, id));
    TR_TRY(tr_mkdirs(base)); /* as W&B's own client does */
    TR_TRY(find_dir(base, run, id, dir));
    TR_TRY(tr_format(files, sizeof files, "%s/files", dir));
    TR_TRY(tr_out_mkdir(base, files));
    TR_TRY(tr_format(w->name, sizeof w->name, "%s/run-%s.wandb", dir, id));
    TR_TRY(tr_out_open(base, w->name, TR_OUT_APPEND, &w->fd));
    w->at = find_cut(w, run->first_step, from);
    if (ftruncate(w->fd, w->at) != 0)
        TR_TRY(tr_fail(TR_IO, "%s: %s", w->name, strerror(errno)));
    if (w->at == 0)
        add_head(w, run, id);
    tr_str_addf(place, "%s/%s", base, dir);
    *sink = w;
out:
    if (st != TR_OK)
        (void)close_wandb(w, false);
    return st;
}

/* Names that W&B's system panel knows. */
static const char *stat_name(const char *name)
{
    static const struct {
        const char *ours, *theirs;
    } rows[] = {
        { "system/cpu", "cpu" },
        { "system/memory_used", "memory_percent" },
        { "system/process_memory_bytes", "proc.memory.rssBytes" },
        { "system/network_sent_bytes", "network.sent" },
        { "system/network_received_bytes", "network.recv" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (strcmp(rows[i].ours, name) == 0)
            return rows[i].theirs;
    return name + sizeof "system/" - 1;
}

/* "gpu.0/power_w" becomes "gpu.0.powerWatts". */
static void gpu_name(char *name)
{
    static const struct {
        const char *ours, *theirs;
    } rows[] = {
        { "/utilization", ".gpu" },    { "/memory_used_bytes", ".memoryAllocatedBytes" },
        { "/power_w", ".powerWatts" }, { "/temperature_c", ".temp" },
        { "/clock_mhz", ".smClock" },  { "/memory_clock_mhz", ".memoryClock" },
    };
    char *slash = strchr(name, '/');
    for (size_t i = 0; slash && i < TR_COUNT_OF(rows); i++)
        if (strcmp(slash, rows[i].ours) == 0) {
            (void)snprintf(slash, 32, "%s", rows[i].theirs);
            return;
        }
}

static void add_stats(struct wandb *w, const struct tr_track_event *e)
{
    struct tr_str body = { 0 };
    add_time(&body, 2, e->time);
    for (size_t i = 0; i < e->n_metrics; i++) {
        char name[300];
        (void)snprintf(name, sizeof name, "%s", stat_name(e->metric[i].name));
        gpu_name(name);
        /* W&B counts these two in percent */
        bool is_share = strcmp(name, "cpu") == 0 || strcmp(name, "memory_percent") == 0 ||
                        (strlen(name) > 4 && strcmp(name + strlen(name) - 4, ".gpu") == 0);
        add_number(&body, 3, ITEM_KEY, name, e->metric[i].value * (is_share ? 100 : 1));
    }
    add_record(w, STATS, &body);
    tr_str_release(&body);
}

static void add_line(struct wandb *w, const struct tr_track_event *e)
{
    struct tr_str body = { 0 }, line = { 0 };
    tr_str_addf(&line, "%s\n", e->event->text);
    tr_pb_int(&body, 1, 1); /* stdout */
    add_time(&body, 2, e->time);
    tr_pb_text(&body, 3, line.p ? line.p : "");
    add_record(w, OUTPUT_RAW, &body);
    tr_str_release(&body);
    tr_str_release(&line);
}

static void add_histogram(struct wandb *w, const struct tr_track_event *e)
{
    struct tr_str json = { 0 };
    tr_str_addf(&json, "{\"_type\":\"histogram\",\"values\":[");
    for (int i = 0; i < TR_HISTOGRAM_BINS; i++)
        tr_str_addf(&json, "%s%.0f", i ? "," : "", e->histogram->count[i]);
    tr_str_addf(&json, "],\"bins\":[");
    for (int i = 0; i <= TR_HISTOGRAM_BINS; i++)
        tr_str_addf(&json, "%s%.17g", i ? "," : "", e->histogram->edge[i]);
    tr_str_addf(&json, "]}");
    add_item(&w->row, ROW_ITEM, ITEM_NESTED, e->histogram_name, json.p ? json.p : "null");
    tr_str_release(&json);
}

static void add_exit(struct wandb *w, const struct tr_track_event *e)
{
    const char *status = "";
    struct tr_str body = { 0 };
    if (tr_json_str(e->event->json, "status", false, &status) != TR_OK)
        tr_error_clear();
    end_row(w);
    if (w->summary.n) { /* items of a history and of a summary have the same fields */
        struct tr_str items = { 0 };
        struct tr_pb_field f;
        const unsigned char *p = (const unsigned char *)w->summary.p;
        for (const unsigned char *end = p + w->summary.n; tr_pb_next(&p, end, &f);)
            if (f.field == 1)
                tr_pb_bytes(&items, 1, f.p, f.n);
        add_record(w, SUMMARY, &items);
        tr_str_release(&items);
    }
    tr_pb_int(&body, 1, strcmp(status, "failed") == 0);
    tr_pb_int(&body, 2, (int64_t)(e->time - w->start_time));
    add_record(w, EXIT, &body);
    tr_str_release(&body);
}

/* Numbers of a step go to its row. */
static void add_numbers(struct wandb *w, const struct tr_track_event *e)
{
    if (e->step < w->last_step) {
        add_late(w, e);
        return;
    }
    if (w->step != e->step)
        end_row(w);
    for (size_t i = 0; i < e->n_metrics; i++)
        add_number(&w->row, ROW_ITEM, ITEM_NESTED, e->metric[i].name, e->metric[i].value);
    if (e->histogram)
        add_histogram(w, e);
    w->step = w->last_step = e->step;
    w->last_time = e->time;
}

static enum tr_status write_event(void *sink, const struct tr_track_event *e)
{
    enum { FLUSH_BYTES = 1 << 20 };
    struct wandb *w = sink;
    if (strcmp(e->kind, "system") == 0)
        add_stats(w, e);
    else if (e->n_metrics)
        add_numbers(w, e);
    if (e->is_text)
        add_line(w, e);
    if (e->is_end)
        add_exit(w, e);
    TR_PASS(tr_str_check(&w->row, "%s", w->name));
    TR_PASS(tr_str_check(&w->late, "%s", w->name));
    return w->out.n > FLUSH_BYTES ? flush(w) : TR_OK;
}

static enum tr_status check_wandb(void)
{
    static const char *const modes[] = { "online", "offline", "dryrun", "run", "disabled", "shared" };
    const char *mode = variable("WANDB_MODE");
    struct tr_track_run run = { .id = "" };
    char id[129];
    if (mode && !TR_ROW(modes, mode))
        return tr_fail(TR_USAGE, "WANDB_MODE \"%.40s\": write online, offline or disabled", mode);
    return id_of(&run, id);
}

const struct tr_sink_row tr_sink_wandb = {
    .name = "wandb",
    .note = "upload it with: wandb sync %s",
    .check = check_wandb,
    .open = open_wandb,
    .event = write_event,
    .flush = flush,
    .close = close_wandb,
};
