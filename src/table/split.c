/* split.c - see table.h: parts of a split in the words of `datasets`. */
#include "table/table.h"

#include <math.h>
#include <string.h>

/* A boundary, digits with underscores: -1_000 or 5%. Stops at the first byte that is none of it. */
static bool take_bound(const char **p, bool *has, bool *is_percent, int64_t *out)
{
    char digits[24];
    size_t n = 0;
    const char *at = *p;
    if (*at == '-')
        digits[n++] = *at++;
    for (; strchr("0123456789_", *at) && *at; at++)
        if (*at != '_' && n < sizeof digits - 1)
            digits[n++] = *at;
    digits[n] = 0;
    *has = at > *p;
    if (*has && tr_parse_int(digits, -INT64_C(1000000000000000), INT64_C(1000000000000000), out) != TR_OK)
        return false;
    if (*has && *at == '%') {
        *is_percent = true;
        at++;
    }
    *p = at;
    return true;
}

enum tr_status tr_table_split_parse(const char *text, struct tr_table_split *out)
{
    struct tr_table_split s = { 0 };
    char shown[160];
    bool is_percent = false;
    size_t n = strcspn(text, "[");
    const char *p = text + n;
    if ((n == 0 && *p != '[') || n >= sizeof s.name)
        goto bad;
    memcpy(s.name, text, n);
    if (strchr(text, '+') || strpbrk(s.name, "/:;() "))
        goto bad;
    if (*p == '[') {
        p++;
        if (!take_bound(&p, &s.has_from, &is_percent, &s.from) || *p++ != ':' ||
            !take_bound(&p, &s.has_to, &is_percent, &s.to) || *p++ != ']' || *p)
            goto bad;
    }
    s.is_percent = is_percent; /* one boundary in percent makes both so */
    if (is_percent && (s.from < -100 || s.from > 100 || s.to < -100 || s.to > 100))
        goto bad;
    *out = s;
    return TR_OK;
bad:
    tr_error_clear();
    return tr_fail(TR_USAGE,
                   "split \"%s\" is not a name with a slice of records or percent, such as train, train[:5%%], "
                   "train[100:200], train[-10%%:] or [:1000]; for several parts give the source several times",
                   tr_escape(text, shown, sizeof shown));
}

bool tr_table_split_is_all(const struct tr_table_split *s)
{
    return !s->has_from && !s->has_to;
}

static uint64_t bound_of(const struct tr_table_split *s, int64_t x, uint64_t n)
{
    int64_t k = n < INT64_MAX ? (int64_t)n : INT64_MAX;
    if (s->is_percent)
        x = (int64_t)rint((double)x * (double)k / 100.0); /* half to even, as Python's round */
    if (x < 0)
        x = tr_max64(k + x, 0);
    return (uint64_t)tr_min64(x, k);
}

void tr_table_split_of(const struct tr_table_split *s, uint64_t n, uint64_t *first, uint64_t *end)
{
    *first = s->has_from ? bound_of(s, s->from, n) : 0;
    *end = s->has_to ? bound_of(s, s->to, n) : n;
    if (*end < *first)
        *end = *first;
}
