/* sink_wandb.c - a W&B run in offline mode: wandb/offline-run-DATE-ID/run-ID.wandb, which `wandb sync` uploads.
 *
 * The file is a LevelDB log: blocks of 32 KiB of chunks with checksum, length and type; a record of W&B's
 * wandb_internal.proto is one chunk or several. One history row holds all numbers of a step, so it is written when the
 * next step begins. A resumed run continues its file, cut back to the step it resumes from. Values are JSON text with
 * 17 digits: exact. The variables that W&B's own client reads (WANDB_PROJECT, WANDB_DIR ...) mean the same here.
 */
#include "observe/track_impl.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 32768, CHUNK_HEAD = 7, FILE_HEAD = 7, RECORD_MAX = 64 << 20 };
enum { CHUNK_FULL = 1, CHUNK_FIRST, CHUNK_MIDDLE, CHUNK_LAST };
enum { NUM = 1, HISTORY = 2, SUMMARY = 3, STATS = 7, OUTPUT_RAW = 13, RUN = 17, EXIT = 18, HEADER = 21 };
enum { ITEM_KEY = 1, ITEM_NESTED = 2, ITEM_JSON = 16 };

struct wandb {
    int fd;
    char name[TR_PATH_MAX];
    off_t at; /* of the next byte, out included */
    int64_t n_records;
    double start_time, last_time;
    int64_t step; /* of the row; -1: none */
    struct tr_str out, row, summary;
};

/* ---- the log ---- */

static void add_chunk(struct wandb *w, int type, const char *p, size_t n)
{
    unsigned char head[CHUNK_HEAD];
    tr_put_le(head + 4, n, 2);
    head[6] = (unsigned char)type;
    tr_put_le(head, tr_crc(TR_CRC32, tr_crc(TR_CRC32, 0, head + 6, 1), p, n), 4);
    tr_str_add(&w->out, (const char *)head, sizeof head);
    tr_str_add(&w->out, p, n);
    w->at += (off_t)(sizeof head + n);
}

static void add_log(struct wandb *w, const char *p, size_t n)
{
    static const char zeros[CHUNK_HEAD];
    bool is_first = true, is_last = false;
    while (!is_last) {
        size_t left = BLOCK - (size_t)(w->at % BLOCK);
        if (left < CHUNK_HEAD) {
            tr_str_add(&w->out, zeros, left);
            w->at += (off_t)left;
            left = BLOCK;
        }
        size_t part = n < left - CHUNK_HEAD ? n : left - CHUNK_HEAD;
        is_last = part == n;
        add_chunk(w, is_first ? (is_last ? CHUNK_FULL : CHUNK_FIRST) : is_last ? CHUNK_LAST : CHUNK_MIDDLE, p, part);
        is_first = false;
        p += part;
        n -= part;
    }
}

static void add_record(struct wandb *w, int field, const struct tr_str *body)
{
    struct tr_str record = { 0 };
    tr_pb_int(&record, NUM, ++w->n_records);
    tr_pb_bytes(&record, field, body->p ? body->p : "", body->n);
    if (tr_str_ok(&record) && tr_str_ok(body))
        add_log(w, record.p, record.n);
    tr_str_release(&record);
}

/* Reads a log that was written here, record by record, to the first that is not whole. */
struct wandb_log {
    int fd;
    off_t at;
    struct tr_str record;
};

static bool read_chunk(struct wandb_log *l, int *type)
{
    unsigned char head[CHUNK_HEAD], data[BLOCK];
    size_t left = BLOCK - (size_t)(l->at % BLOCK);
    if (left < CHUNK_HEAD)
        l->at += (off_t)left;
    if (pread(l->fd, head, sizeof head, l->at) != (ssize_t)sizeof head)
        return false;
    size_t n = (size_t)tr_get_le(head + 4, 2), room = BLOCK - (size_t)(l->at % BLOCK) - CHUNK_HEAD;
    if (n > room || pread(l->fd, data, n, l->at + CHUNK_HEAD) != (ssize_t)n)
        return false;
    if (tr_get_le(head, 4) != tr_crc(TR_CRC32, tr_crc(TR_CRC32, 0, head + 6, 1), data, n))
        return false;
    *type = head[6];
    tr_str_add(&l->record, (const char *)data, n);
    l->at += (off_t)(CHUNK_HEAD + n);
    return l->record.n <= RECORD_MAX && tr_str_ok(&l->record);
}

static bool next_record(struct wandb_log *l)
{
    int type = 0;
    bool is_first = true;
    tr_str_clear(&l->record);
    do {
        if (!read_chunk(l, &type) || is_first != (type == CHUNK_FULL || type == CHUNK_FIRST))
            return false;
        is_first = false;
    } while (type == CHUNK_FIRST || type == CHUNK_MIDDLE);
    return type == CHUNK_FULL || type == CHUNK_LAST;
}

/* The step of a history record; -1: it is another one. */
static int64_t step_of(const struct tr_str *record)
{
    struct tr_pb_field f, g, h;
    const unsigned char *p = (const unsigned char *)record->p, *end = p + record->n;
    while (tr_pb_next(&p, end, &f))
        for (const unsigned char *q = f.p; f.field == HISTORY && q && tr_pb_next(&q, f.p + f.n, &g);)
            for (const unsigned char *r = g.p; g.field == 2 && r && tr_pb_next(&r, g.p + g.n, &h);)
                if (h.field == 1)
                    return (int64_t)h.value;
    return -1;
}

/* Where an old log is cut, so that it ends before the rows of *from, which is the last step it holds, but at most
 * first_step. 0: it holds nothing to continue. */
static off_t find_cut(int fd, int64_t first_step, int64_t *from, int64_t *n_records)
{
    struct wandb_log l = { .fd = fd, .at = FILE_HEAD };
    int64_t n = 0, last = -1;
    off_t cut = 0;
    *from = 0;
    *n_records = 0;
    while (last < first_step) {
        off_t begin = l.at;
        if (!next_record(&l))
            break;
        int64_t step = step_of(&l.record);
        if (step >= 0) {
            last = step;
            cut = begin;
            *n_records = n;
        }
        n++;
    }
    tr_str_release(&l.record);
    if (last <= 0)
        return 0;
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
    tr_str_release(&version);
    tr_str_release(&body);
}

static void end_row(struct wandb *w)
{
    struct tr_str step = { 0 };
    if (w->step < 0)
        return;
    tr_pb_int(&step, 1, w->step);
    tr_pb_bytes(&w->row, 2, step.p ? step.p : "", step.n);
    add_number(&w->row, 1, ITEM_NESTED, "_step", (double)w->step);
    add_number(&w->row, 1, ITEM_NESTED, "train/global_step", (double)w->step);
    add_number(&w->row, 1, ITEM_NESTED, "_timestamp", w->last_time);
    add_number(&w->row, 1, ITEM_NESTED, "_runtime", w->last_time - w->start_time);
    add_record(w, HISTORY, &w->row);
    tr_str_clear(&w->summary);
    tr_str_add(&w->summary, w->row.p ? w->row.p : "", w->row.n);
    tr_str_clear(&w->row);
    tr_str_release(&step);
    w->step = -1;
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
    TR_TRY(find_dir(base, run, id, dir));
    TR_TRY(tr_format(files, sizeof files, "%s/files", dir));
    TR_TRY(tr_out_mkdir(base, files));
    TR_TRY(tr_format(w->name, sizeof w->name, "%s/run-%s.wandb", dir, id));
    TR_TRY(tr_out_open(base, w->name, TR_OUT_APPEND, &w->fd));
    w->at = find_cut(w->fd, run->first_step, from, &w->n_records);
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
    add_item(&w->row, 1, ITEM_NESTED, e->histogram_name, json.p ? json.p : "null");
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

static enum tr_status write_event(void *sink, const struct tr_track_event *e)
{
    enum { FLUSH_BYTES = 1 << 20 };
    struct wandb *w = sink;
    bool is_system = strcmp(e->kind, "system") == 0;
    if (e->n_metrics && !is_system && w->step != e->step)
        end_row(w);
    for (size_t i = 0; i < e->n_metrics && !is_system; i++)
        add_number(&w->row, 1, ITEM_NESTED, e->metric[i].name, e->metric[i].value);
    if (e->histogram)
        add_histogram(w, e);
    if (e->n_metrics && !is_system) {
        w->step = e->step;
        w->last_time = e->time;
    }
    if (is_system)
        add_stats(w, e);
    if (e->is_text)
        add_line(w, e);
    if (e->is_end)
        add_exit(w, e);
    TR_PASS(tr_str_check(&w->row, "%s", w->name));
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
