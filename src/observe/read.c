/* read.c - events.jsonl read back. Memory is one line, whatever the size of the file; the size of a line is checked
 * before it is parsed. */
#include "observe/observe_impl.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <unistd.h>

enum { LINE_TOO_LONG = -1, LINE_NONE = -2 };

struct tr_events {
    FILE *f;
    cJSON *json;
    int64_t n_skipped;
    uint64_t at;       /* bytes of the file that were read */
    bool is_following; /* the file grows */
    char path[TR_PATH_MAX];
    char line[TR_EVENT_MAX_BYTES + 1];
};

static const char *const kind_names[] = { "step", "eval", "checkpoint", "grad_norms", "layout", "end" };
static_assert(TR_COUNT_OF(kind_names) == TR_EVENT_OTHER, "one name a kind");

/* Begins at byte `at`, or where the last `tail_bytes` bytes begin when that is later. */
static enum tr_status open_from(const char *path, uint64_t at, uint64_t tail_bytes, struct tr_events **out)
{
    int fd = -1;
    uint64_t n_bytes = 0;
    struct tr_events *r = calloc(1, sizeof *r);
    if (r == NULL)
        return tr_fail(TR_NOMEM, "no memory to read %s", path);
    enum tr_status st = tr_format(r->path, sizeof r->path, "%s", path);
    if (st == TR_OK)
        st = tr_file_open_read(path, &fd, &n_bytes);
    if (st != TR_OK) {
        free(r);
        return st;
    }
    r->at = n_bytes > tail_bytes && n_bytes - tail_bytes > at ? n_bytes - tail_bytes : at;
    r->f = lseek(fd, (off_t)r->at, SEEK_SET) == (off_t)r->at ? fdopen(fd, "r") : NULL;
    if (r->f == NULL) {
        st = tr_fail(TR_IO, "%s: %s", path, strerror(errno));
        close(fd);
        free(r);
        return st;
    }
    *out = r;
    return TR_OK;
}

enum tr_status tr_events_open(const char *path, uint64_t tail_bytes, struct tr_events **out)
{
    return open_from(path, 0, tail_bytes > 0 ? tail_bytes : UINT64_MAX, out);
}

enum tr_status tr_events_open_at(const char *path, uint64_t at, struct tr_events **out)
{
    return open_from(path, at, UINT64_MAX, out);
}

void tr_events_close(struct tr_events *r)
{
    if (r == NULL)
        return;
    cJSON_Delete(r->json);
    fclose(r->f);
    free(r);
}

/* One line without its newline; its length, LINE_TOO_LONG (it is read past), or LINE_NONE at the end. */
static ptrdiff_t read_line(struct tr_events *r)
{
    ptrdiff_t n = 0;
    off_t n_bytes = 0;
    if (r->is_following)
        clearerr(r->f);
    int c = getc_unlocked(r->f);
    if (c == EOF)
        return LINE_NONE;
    for (; c != EOF && c != '\n'; c = getc_unlocked(r->f), n_bytes++) {
        if (n != LINE_TOO_LONG && n < TR_EVENT_MAX_BYTES)
            r->line[n++] = (char)c;
        else
            n = LINE_TOO_LONG;
    }
    if (c == EOF && r->is_following && fseeko(r->f, -n_bytes, SEEK_CUR) == 0)
        return LINE_NONE; /* the rest of the line is still to come */
    r->at += (uint64_t)n_bytes + (c == '\n');
    if (n != LINE_TOO_LONG)
        r->line[n] = '\0';
    return n;
}

static double real_of(const cJSON *o, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(x) ? x->valuedouble : (double)NAN;
}

/* A sample is an id, a run of samples [first,last]. */
static void read_samples(struct tr_event *e)
{
    const cJSON *x = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(e->json, "samples"), 0);
    const cJSON *first = cJSON_IsArray(x) ? cJSON_GetArrayItem(x, 0) : x;
    const cJSON *last = cJSON_IsArray(x) ? cJSON_GetArrayItem(x, 1) : x;
    e->has_samples = cJSON_IsNumber(first) && cJSON_IsNumber(last);
    e->first_sample = e->has_samples ? (int64_t)first->valuedouble : -1;
    e->last_sample = e->has_samples ? (int64_t)last->valuedouble : -1;
}

/* Is the line an event? */
static bool read_event(struct tr_events *r, size_t n, struct tr_event *e)
{
    const char *name = NULL;
    if (tr_json_parse(r->line, n, r->path, &r->json) != TR_OK || !cJSON_IsObject(r->json) ||
        tr_json_str(r->json, "event", true, &name) != TR_OK)
        return false;
    *e = (struct tr_event){ .text = r->line, .n = n, .json = r->json, .step = -1 };
    while (e->kind < TR_EVENT_OTHER && strcmp(kind_names[e->kind], name) != 0)
        e->kind++;
    if (e->kind < TR_EVENT_LAYOUT && tr_json_int(r->json, "step", true, 0, INT64_MAX, &e->step) != TR_OK)
        return false;
    e->loss = real_of(r->json, "loss");
    e->grad_norm = real_of(r->json, "grad_norm");
    e->lr = real_of(r->json, "lr");
    e->tokens = real_of(r->json, "tokens");
    e->tokens_per_s = real_of(r->json, "tokens_per_s");
    e->data_wait_s = real_of(r->json, "data_wait_s");
    e->comm_exposed_s = real_of(r->json, "comm_exposed_s");
    e->bubble = real_of(r->json, "bubble");
    e->stall_s = real_of(r->json, "stall_s");
    read_samples(e);
    return true;
}

void tr_events_follow(struct tr_events *r)
{
    r->is_following = true;
}

bool tr_events_next(struct tr_events *r, struct tr_event *out)
{
    ptrdiff_t n;
    while (r != NULL && (n = read_line(r)) != LINE_NONE) {
        if (n == 0)
            continue; /* the newline that closed a torn line */
        cJSON_Delete(r->json);
        r->json = NULL;
        if (n != LINE_TOO_LONG && read_event(r, (size_t)n, out))
            return true;
        tr_error_clear();
        r->n_skipped++;
    }
    return false;
}

int64_t tr_events_skipped(const struct tr_events *r)
{
    return r->n_skipped;
}

uint64_t tr_events_at(const struct tr_events *r)
{
    return r->at;
}

enum tr_status tr_events_failed(const struct tr_events *r)
{
    return ferror(r->f) ? tr_fail(TR_IO, "%s: cannot be read to its end", r->path) : TR_OK;
}
