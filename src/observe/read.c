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
    struct tr_event none; /* what an event is before its members are known */
};

static const char *const kind_names[] = { "step", "eval", "checkpoint", "sample", "grad_norms", "layout", "end" };
static_assert(TR_COUNT_OF(kind_names) == TR_EVENT_OTHER, "one name a kind");

static struct tr_event no_event(void);

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
    r->none = no_event();
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
#define REAL(name)                                                                                                     \
    {                                                                                                                  \
#name, sizeof #name - 1, offsetof(struct tr_event, name)                                                       \
    }
static const struct {
    const char *name;
    size_t n, at;
} reals[] = {
    REAL(time),        REAL(loss),           REAL(grad_norm),        REAL(lr),
    REAL(loss_scale),  REAL(tokens),         REAL(tokens_per_s),     REAL(mfu),
    REAL(data_wait_s), REAL(comm_exposed_s), REAL(bubble),           REAL(stall_s),
    REAL(acc),         REAL(acc_norm),       REAL(rewards_accuracy), REAL(rewards_margin),
};

static void set_real(struct tr_event *e, size_t i, double x)
{
    memcpy((char *)e + reals[i].at, &x, sizeof x);
}

static struct tr_event no_event(void)
{
    struct tr_event e = { .step = -1, .first_sample = -1, .last_sample = -1 };
    for (size_t i = 0; i < TR_COUNT_OF(reals); i++)
        set_real(&e, i, (double)NAN);
    return e;
}

static void begin_event(const struct tr_events *r, const char *line, size_t n, struct tr_event *e)
{
    *e = r->none;
    e->text = line;
    e->n = n;
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
    begin_event(r, line, n, e);
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

/* ---- a step, without a tree ----
 *
 * Lines end with a zero, so a scan that looks at one byte after the other stops there. */

/* Eight digits at once where p[0..7] are such: three multiplications instead of eight. The first digit is the lowest
 * byte, as on every machine that this program runs on. */
static bool scan_8_digits(const char *p, uint64_t *digits)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    x -= UINT64_C(0x3030303030303030);
    if ((x | (x + UINT64_C(0x7676767676767676))) & UINT64_C(0x8080808080808080))
        return false;
    x = x * 10 + (x >> 8); /* pairs, in every second byte */
    x = ((x & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064) +
         (x >> 16 & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001)) >>
        32;
    *digits = *digits * 100000000 + x;
    return true;
}

/* *digits continued by the digits at p; *n_used: how many of them it took. Those behind the 19th are read past. */
static const char *scan_digits(const char *p, const char *end, uint64_t *digits, ptrdiff_t *n_used)
{
    const char *from = p;
    while (end - p >= 8 && *digits < UINT64_C(100000000000) && scan_8_digits(p, digits))
        p += 8;
    for (; *p >= '0' && *p <= '9' && *digits < UINT64_C(1000000000000000000); p++)
        *digits = 10 * *digits + (uint64_t)(*p - '0');
    *n_used = p - from;
    while (*p >= '0' && *p <= '9')
        p++;
    return p;
}

/* Past a number of JSON's grammar; NULL: there is none. With a power of ten that a long double holds it is the quotient
 * of its first 18 or 19 digits: the nearest double, or in one of a thousand cases its neighbour. */
static const char *scan_number(const char *p, const char *end, double *out)
{
    static const long double tens[] = { 1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                        1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                        1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L };
    static const double exact[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    const char *from = p, *first = p += *p == '-';
    uint64_t digits = 0, power = 0;
    ptrdiff_t n_before, n_behind = 0, n_power;
    p = scan_digits(p, end, &digits, &n_before);
    if (p == first || (*first == '0' && p > first + 1))
        return NULL;
    bool is_plain = p == first + n_before; /* else it has more than 18 digits before its point */
    if (*p == '.') {
        const char *at = p + 1;
        p = scan_digits(at, end, &digits, &n_behind);
        if (p == at)
            return NULL;
    }
    if (*p == 'e' || *p == 'E') {
        bool is_below = *++p == '-';
        p += *p == '-' || *p == '+';
        const char *at = p;
        p = scan_digits(p, end, &power, &n_power);
        if (p == at)
            return NULL;
        is_plain &= p - at <= 4;
        n_behind += is_below ? (ptrdiff_t)(power % 100000) : -(ptrdiff_t)(power % 100000);
    }
    ptrdiff_t shift = n_behind < 0 ? -n_behind : n_behind;
    if (is_plain && n_behind >= 0 && shift < (ptrdiff_t)TR_COUNT_OF(exact) && digits <= UINT64_C(1) << 53) {
        double x = (double)digits / exact[shift]; /* of two exact numbers: the nearest double */
        *out = *from == '-' ? -x : x;
        return p;
    }
    if (is_plain && shift < (ptrdiff_t)TR_COUNT_OF(tens)) {
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

/* Past a whole number without a sign; NULL: there is none. */
static const char *scan_whole(const char *p)
{
    const char *first = p;
    while (*p >= '0' && *p <= '9')
        p++;
    return p == first || (*first == '0' && p > first + 1) ? NULL : p;
}

/* Past a list of whole numbers and pairs of them; NULL: it is something else. */
static const char *scan_samples(const char *p)
{
    if (p[1] == ']')
        return p + 2;
    do {
        bool is_pair = *++p == '[';
        p = scan_whole(p + is_pair);
        if (p != NULL && is_pair)
            p = *p == ',' && (p = scan_whole(p + 1)) != NULL && *p == ']' ? p + 1 : NULL;
    } while (p != NULL && *p == ',');
    return p != NULL && *p == ']' ? p + 1 : NULL;
}

/* Past the value at p. A number is also told in *out, which is NaN for everything else. */
static const char *scan_value(const char *p, const char *end, double *out)
{
    *out = (double)NAN;
    if (*p == '"')
        return scan_string(p);
    if (*p == '[')
        return scan_samples(p);
    if (strncmp(p, "null", 4) == 0)
        return p + 4;
    return scan_number(p, end, out);
}

static bool is_named(const char *name, const char *end, size_t i)
{
    return (size_t)(end - name) > reals[i].n && name[reals[i].n] == '"' && memcmp(name, reals[i].name, reals[i].n) == 0;
}

/* Which member has its name (and the quote behind it) at `name`, looked for from `hint` on, because members stand in
 * the order of the table; TR_COUNT_OF(reals): none of them. */
static size_t real_named(const char *name, const char *end, size_t hint)
{
    for (size_t k = 0; k < TR_COUNT_OF(reals); k++) {
        size_t i = hint + k < TR_COUNT_OF(reals) ? hint + k : hint + k - TR_COUNT_OF(reals);
        if (reals[i].name[0] == name[0] && is_named(name, end, i))
            return i;
    }
    return TR_COUNT_OF(reals);
}

/* A step as this program writes it: one flat object without blanks. False: it is not, and the parser decides. */
static bool scan_step(const struct tr_events *r, const char *line, size_t n, struct tr_event *e)
{
    static const char head[] = "{\"event\":\"step\"";
    const char *p = line + sizeof head - 1, *end = line + n;
    uint64_t seen = 0; /* a bit a member: what is given twice is not for us */
    size_t hint = 0;
    if (n < sizeof head || memcmp(line, head, sizeof head - 1) != 0)
        return false;
    begin_event(r, line, n, e);
    while (p != NULL && p[0] == ',' && p[1] == '"') {
        const char *name = p + 2;
        double x;
        size_t i = real_named(name, end, hint % TR_COUNT_OF(reals));
        bool is_real = i < TR_COUNT_OF(reals), is_step = !is_real && strncmp(name, "step\"", 5) == 0;
        p = is_real ? name + reals[i].n + 1 : scan_string(p + 1);
        p = p != NULL && *p == ':' ? scan_value(p + 1, end, &x) : NULL;
        if (p == NULL)
            return false;
        if (!is_real && !is_step)
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
    return p == end - 1 && *p == '}' && e->step >= 0;
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
        if (found == TR_TAIL_LINE && ((r->is_brief && scan_step(r, line, n, out)) || read_event(r, line, n, out)))
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
