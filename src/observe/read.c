/* read.c - events.jsonl read back. Memory is one line, whatever the size of the file; the size of a line is checked
 * before it is parsed. */
#include "observe/observe_impl.h"

#include <assert.h>
#include <math.h>

struct tr_events {
    struct tr_tail *tail;
    bool is_brief;
    cJSON *json;
    int64_t n_skipped;
};

static const char *const kind_names[] = { "step", "eval", "checkpoint", "grad_norms", "layout", "end" };
static_assert(TR_COUNT_OF(kind_names) == TR_EVENT_OTHER, "one name a kind");

enum tr_status tr_events_open_at(const char *path, uint64_t at, struct tr_events **out)
{
    TR_PASS(tr_events_open(path, 0, out));
    tr_tail_seek((*out)->tail, at);
    return TR_OK;
}

uint64_t tr_events_at(const struct tr_events *r)
{
    return tr_tail_at(r->tail);
}

enum tr_status tr_events_open(const char *path, uint64_t tail_bytes, struct tr_events **out)
{
    struct tr_events *r = calloc(1, sizeof *r);
    if (r == NULL)
        return tr_fail(TR_NOMEM, "no memory to read %s", path);
    enum tr_status st = tr_tail_open(path, TR_EVENT_MAX_BYTES, tail_bytes, &r->tail);
    if (st != TR_OK) {
        free(r);
        return st;
    }
    *out = r;
    return TR_OK;
}

void tr_events_follow(struct tr_events *r)
{
    tr_tail_follow(r->tail);
}

void tr_events_be_brief(struct tr_events *r)
{
    r->is_brief = true;
}

bool tr_events_was_replaced(const struct tr_events *r)
{
    return tr_tail_was_replaced(r->tail);
}

void tr_events_close(struct tr_events *r)
{
    if (r == NULL)
        return;
    cJSON_Delete(r->json);
    tr_tail_close(r->tail);
    free(r);
}

/* ---- any event ---- */

/* Numbers of an event by the names of their members. */
static const struct {
    const char *name;
    size_t at;
} reals[] = {
    { "time", offsetof(struct tr_event, time) },
    { "loss", offsetof(struct tr_event, loss) },
    { "grad_norm", offsetof(struct tr_event, grad_norm) },
    { "lr", offsetof(struct tr_event, lr) },
    { "loss_scale", offsetof(struct tr_event, loss_scale) },
    { "tokens", offsetof(struct tr_event, tokens) },
    { "tokens_per_s", offsetof(struct tr_event, tokens_per_s) },
    { "mfu", offsetof(struct tr_event, mfu) },
    { "data_wait_s", offsetof(struct tr_event, data_wait_s) },
    { "comm_exposed_s", offsetof(struct tr_event, comm_exposed_s) },
    { "bubble", offsetof(struct tr_event, bubble) },
    { "stall_s", offsetof(struct tr_event, stall_s) },
};

static void set_real(struct tr_event *e, size_t i, double x)
{
    memcpy((char *)e + reals[i].at, &x, sizeof x);
}

static struct tr_event no_event(const char *line, size_t n)
{
    struct tr_event e = { .text = line, .n = n, .step = -1, .first_sample = -1, .last_sample = -1 };
    for (size_t i = 0; i < TR_COUNT_OF(reals); i++)
        set_real(&e, i, (double)NAN);
    return e;
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
static bool read_event(struct tr_events *r, const char *line, size_t n, struct tr_event *e)
{
    const char *name = NULL;
    if (tr_json_parse(line, n, tr_tail_path(r->tail), &r->json) != TR_OK || !cJSON_IsObject(r->json) ||
        tr_json_str(r->json, "event", true, &name) != TR_OK)
        return false;
    *e = no_event(line, n);
    e->json = r->json;
    while (e->kind < TR_EVENT_OTHER && strcmp(kind_names[e->kind], name) != 0)
        e->kind++;
    if (e->kind < TR_EVENT_LAYOUT && tr_json_int(r->json, "step", true, 0, INT64_MAX, &e->step) != TR_OK)
        return false;
    for (size_t i = 0; i < TR_COUNT_OF(reals); i++) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(r->json, reals[i].name);
        if (cJSON_IsNumber(x))
            set_real(e, i, x->valuedouble);
    }
    read_samples(e);
    return true;
}

/* ---- a step, without a tree ---- */

static const char *scan_digits(const char *p, uint64_t *digits)
{
    for (; *p >= '0' && *p <= '9'; p++)
        *digits = 10 * *digits + (uint64_t)(*p - '0');
    return p;
}

/* Past a number of JSON's grammar; NULL: there is none. Of at most 19 digits and with a power of ten that a long double
 * holds, it is that quotient: the nearest double, or in one of a thousand cases its neighbour. */
static const char *scan_number(const char *p, double *out)
{
    static const long double tens[] = { 1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                        1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                        1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L };
    const char *from = p, *first = p += *p == '-', *end;
    uint64_t digits = 0, power = 0;
    ptrdiff_t n_behind = 0;
    p = end = scan_digits(p, &digits);
    if (p == first || (*first == '0' && p > first + 1))
        return NULL;
    if (*p == '.') {
        p = scan_digits(p + 1, &digits);
        n_behind = p - end - 1;
        if (n_behind == 0)
            return NULL;
    }
    bool is_short = p - first <= 19 + (n_behind > 0);
    if (*p == 'e' || *p == 'E') {
        bool is_below = *++p == '-';
        p += *p == '-' || *p == '+';
        const char *at = p;
        p = scan_digits(p, &power);
        if (p == at)
            return NULL;
        is_short &= p - at <= 4;
        n_behind += is_below ? (ptrdiff_t)(power % 100000) : -(ptrdiff_t)(power % 100000);
    }
    ptrdiff_t shift = n_behind < 0 ? -n_behind : n_behind;
    if (is_short && shift < (ptrdiff_t)TR_COUNT_OF(tens)) {
        long double x = n_behind < 0 ? (long double)digits * tens[shift] : (long double)digits / tens[shift];
        *out = *from == '-' ? -(double)x : (double)x;
        return p;
    }
    *out = strtod(from, NULL);
    return isfinite(*out) ? p : NULL;
}

/* Past a plain string (no escapes, printable ASCII) whose opening quote is at p; NULL: it is not plain. */
static const char *scan_string(const char *p)
{
    while (*++p != '"')
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f || *p == '\\')
            return NULL;
    return p + 1;
}

/* Past a list of whole numbers and pairs of them; NULL: it is something else. */
static const char *scan_samples(const char *p)
{
    double unused;
    if (p[1] == ']')
        return p + 2;
    do {
        bool is_pair = *++p == '[';
        p = scan_number(p + is_pair, &unused);
        if (p != NULL && is_pair)
            p = *p == ',' && (p = scan_number(p + 1, &unused)) != NULL && *p == ']' ? p + 1 : NULL;
    } while (p != NULL && *p == ',');
    return p != NULL && *p == ']' ? p + 1 : NULL;
}

/* Past the value at p. A number is also told in *out, which is NaN for everything else. */
static const char *scan_value(const char *p, double *out)
{
    *out = (double)NAN;
    if (*p == '"')
        return scan_string(p);
    if (*p == '[')
        return scan_samples(p);
    if (strncmp(p, "null", 4) == 0)
        return p + 4;
    return scan_number(p, out);
}

/* Which member the name of n bytes is, looked for from `hint` on, because members stand in the order of the table;
 * TR_COUNT_OF(reals): none of them. */
static size_t real_named(const char *name, size_t n, size_t hint)
{
    for (size_t k = 0; k < TR_COUNT_OF(reals); k++) {
        size_t i = (hint + k) % TR_COUNT_OF(reals);
        if (reals[i].name[0] == name[0] && strncmp(reals[i].name, name, n) == 0 && reals[i].name[n] == '\0')
            return i;
    }
    return TR_COUNT_OF(reals);
}

/* A step as this program writes it: one flat object without blanks. False: it is not, and the parser decides. */
static bool scan_step(const char *line, size_t n, struct tr_event *e)
{
    static const char head[] = "{\"event\":\"step\"";
    const char *p = line + sizeof head - 1;
    uint64_t seen = 0; /* a bit a member: what is given twice is not for us */
    size_t hint = 0;
    if (n < sizeof head || memcmp(line, head, sizeof head - 1) != 0)
        return false;
    *e = no_event(line, n);
    while (p != NULL && p[0] == ',' && p[1] == '"') {
        const char *name = p + 2, *end = scan_string(p + 1);
        double x;
        p = end != NULL && *end == ':' ? scan_value(end + 1, &x) : NULL;
        if (p == NULL)
            return false;
        size_t n_name = (size_t)(end - 1 - name), i = real_named(name, n_name, hint);
        bool is_step = n_name == 4 && memcmp(name, "step", 4) == 0;
        if (i == TR_COUNT_OF(reals) && !is_step)
            continue;
        hint = i + 1;
        if (seen & (1u << i) || (is_step && !(x >= 0 && x < 0x1p53 && x == floor(x))))
            return false;
        seen |= 1u << i;
        if (is_step)
            e->step = (int64_t)x;
        else
            set_real(e, i, x);
    }
    return p == line + n - 1 && *p == '}' && e->step >= 0;
}

bool tr_events_next(struct tr_events *r, struct tr_event *out)
{
    enum tr_tail_line found;
    char *line;
    size_t n;
    while (r != NULL && (found = tr_tail_next(r->tail, &line, &n)) != TR_TAIL_NONE) {
        if (n == 0)
            continue; /* the newline that closed a torn line */
        cJSON_Delete(r->json);
        r->json = NULL;
        if (found == TR_TAIL_LINE && ((r->is_brief && scan_step(line, n, out)) || read_event(r, line, n, out)))
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

enum tr_status tr_events_failed(const struct tr_events *r)
{
    return tr_tail_failed(r->tail);
}
