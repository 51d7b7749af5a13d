/* str.c - growing strings, escaping, UTF-8, strict numbers, nearest names.
 *
 * Invariant: a tr_str is {NULL, 0, 0}, or terminated with n < n_cap, or failed with p NULL and n_cap SIZE_MAX; a failed
 * one swallows appends. Rejected: a status from every append (twenty checks a line for one cause).
 */
#include "base/str.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <strings.h>
#include "base/banned.h"

void tr_str_release(struct tr_str *s)
{
    free(s->p);
    *s = (struct tr_str){ 0 };
}

void tr_str_clear(struct tr_str *s)
{
    if (!tr_str_ok(s))
        *s = (struct tr_str){ 0 };
    s->n = 0;
    if (s->p)
        s->p[0] = 0;
}

bool tr_str_ok(const struct tr_str *s)
{
    return s->n_cap != SIZE_MAX;
}

enum tr_status tr_str_check(const struct tr_str *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    enum tr_status st = tr_str_ok(s) ? TR_OK : tr_fail_memory(fmt, args);
    va_end(args);
    return st;
}

/* Room for n_more bytes and the terminator; false once failed. */
static bool reserve(struct tr_str *s, size_t n_more)
{
    if (!tr_str_ok(s))
        return false;
    size_t need;
    char *p = NULL;
    if (tr_add_size(s->n, n_more, &need) && need < SIZE_MAX / 4) {
        if (need < s->n_cap)
            return true;
        size_t n_cap = s->n_cap ? s->n_cap : 64;
        while (n_cap <= need)
            n_cap *= 2;
        p = realloc(s->p, n_cap);
        if (p) {
            s->p = p;
            s->n_cap = n_cap;
            return true;
        }
    }
    free(s->p);
    *s = (struct tr_str){ .n_cap = SIZE_MAX };
    return false;
}

void tr_str_add(struct tr_str *s, const char *bytes, size_t n)
{
    if (!reserve(s, n))
        return;
    if (n)
        memcpy(s->p + s->n, bytes, n);
    s->n += n;
    s->p[s->n] = 0;
}

void tr_str_addf(struct tr_str *s, const char *fmt, ...)
{
    va_list args;
    if (!reserve(s, 0))
        return;
    size_t room = s->n_cap - s->n;
    va_start(args, fmt);
    int n = vsnprintf(s->p + s->n, room, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < room) {
        s->n += (size_t)n;
        return;
    }
    s->p[s->n] = 0; /* what did not fit is written again, or not at all */
    if (n < 0 || !reserve(s, (size_t)n))
        return;
    va_start(args, fmt);
    vsnprintf(s->p + s->n, (size_t)n + 1, fmt, args);
    va_end(args);
    s->n += (size_t)n;
}

size_t tr_utf8_len(const char *p, size_t n)
{
    if (n == 0)
        return 0;
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80)
        return 1;
    /* The second byte carries every exception of Unicode table 3-7: overlong, surrogate, above U+10FFFF. */
    size_t len = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    unsigned lo = u[0] == 0xe0 ? 0xa0 : u[0] == 0xf0 ? 0x90 : 0x80;
    unsigned hi = u[0] == 0xed ? 0x9f : u[0] == 0xf4 ? 0x8f : 0xbf;
    if (u[0] < 0xc2 || u[0] > 0xf4 || n < len || u[1] < lo || u[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

static bool is_plain(char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; /* false above ASCII whether char is signed or not */
}

void tr_str_shell(struct tr_str *s, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
    if (*word && word[strspn(word, plain)] == 0) {
        tr_str_addf(s, "%s", word);
        return;
    }
    tr_str_add(s, "'", 1);
    for (const char *p = word; *p; p++)
        tr_str_addf(s, *p == '\'' ? "'\\''" : "%c", *p);
    tr_str_add(s, "'", 1);
}

void tr_str_json(struct tr_str *s, const char *text)
{
    size_t n = strlen(text);
    tr_str_add(s, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t n_run = 0;
        while (i + n_run < n && is_plain(text[i + n_run]))
            n_run++;
        tr_str_add(s, text + i, n_run);
        i += n_run;
        if (i == n)
            break;
        size_t len = tr_utf8_len(text + i, n - i);
        if (len == 0)
            tr_str_add(s, "\\ufffd", 6);
        else if (len > 1)
            tr_str_add(s, text + i, len);
        else if (text[i] == '"' || text[i] == '\\')
            tr_str_addf(s, "\\%c", text[i]);
        else if (text[i] == '\n')
            tr_str_add(s, "\\n", 2);
        else
            tr_str_addf(s, "\\u%04x", (unsigned)text[i]);
        i += len ? len : 1;
    }
    tr_str_add(s, "\"", 1);
}

void tr_str_member(struct tr_str *s, const char *before, const char *text)
{
    tr_str_add(s, before, strlen(before));
    tr_str_json(s, text);
}

enum tr_status tr_format(char *buf, size_t n_buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(buf, n_buf, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < n_buf)
        return TR_OK;
    return tr_fail(TR_USAGE, "text of %d bytes is too long; the limit is %zu", n, n_buf ? n_buf - 1 : 0);
}

/* U+202A to U+202E and U+2066 to U+2069 turn the direction of what follows: "gnp.exe" reads "exe.png". */
static bool turns_direction(const unsigned char *u)
{
    return u[0] == 0xe2 &&
           ((u[1] == 0x80 && u[2] >= 0xaa && u[2] <= 0xae) || (u[1] == 0x81 && u[2] >= 0xa6 && u[2] <= 0xa9));
}

static const char *escape(const char *text, bool keeps_lines, char *buf, size_t n_buf)
{
    TR_BUG_ON(n_buf == 0);
    size_t n = strlen(text), at = 0;
    for (size_t i = 0; i < n;) {
        size_t len = tr_utf8_len(text + i, n - i);
        unsigned char c = (unsigned char)text[i];
        bool is_c1 = len == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0; /* terminals obey these too */
        char one[8];
        size_t n_one;
        if (!keeps_lines && (c == '\n' || c == '\t' || c == '\\')) {
            n_one = (size_t)snprintf(one, sizeof one, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : c);
        } else if (len == 0 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || is_c1) {
            n_one = (size_t)snprintf(one, sizeof one, "\\x%02x", (unsigned)c);
            len = 1;
        } else if (len == 3 && turns_direction((const unsigned char *)text + i)) {
            unsigned low = (unsigned char)text[i + 2] & 0x3fu;
            n_one = (size_t)snprintf(one, sizeof one, "\\u20%02x", text[i + 1] == '\x80' ? low : low + 0x40u);
        } else {
            memcpy(one, text + i, len);
            n_one = len;
        }
        if (n_one >= n_buf - at)
            break;
        memcpy(buf + at, one, n_one);
        at += n_one;
        i += len;
    }
    buf[at] = 0;
    return buf;
}

const char *tr_escape(const char *text, char *buf, size_t n_buf)
{
    return escape(text, false, buf, n_buf);
}

const char *tr_escape_lines(const char *text, char *buf, size_t n_buf)
{
    return escape(text, true, buf, n_buf);
}

static const char *digits(const char *p)
{
    while (*p >= '0' && *p <= '9')
        p++;
    return p;
}

enum tr_status tr_parse_int(const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char shown[64];
    const char *first = text + (text[0] == '-');
    const char *end = digits(first);
    if (end == first || *end)
        return tr_fail(TR_USAGE, "\"%s\" is not a whole number", tr_escape(text, shown, sizeof shown));
    errno = 0;
    long long v = strtoll(text, NULL, 10);
    if (errno || v < lo || v > hi)
        return tr_fail(TR_USAGE, "%s is outside %" PRId64 " to %" PRId64, tr_escape(text, shown, sizeof shown), lo, hi);
    *out = v;
    return TR_OK;
}

/* The end of a decimal number at p, or p when there is none. */
static const char *real_end(const char *p)
{
    const char *first = p + (*p == '-' || *p == '+');
    const char *q = digits(first);
    ptrdiff_t n_digits = q - first;
    if (*q == '.') {
        const char *fraction = q + 1;
        q = digits(fraction);
        n_digits += q - fraction;
    }
    if (n_digits == 0)
        return p;
    if (*q == 'e' || *q == 'E') {
        const char *e = q + 1 + (q[1] == '-' || q[1] == '+');
        if (digits(e) > e)
            q = digits(e);
    }
    return q;
}

enum tr_status tr_parse_real(const char *text, double *out)
{
    char shown[64];
    const char *end = real_end(text);
    double v = strtod(text, NULL);
    if (end == text || *end || !isfinite(v))
        return tr_fail(TR_USAGE, "\"%s\" is not a finite decimal number", tr_escape(text, shown, sizeof shown));
    *out = v;
    return TR_OK;
}

enum tr_status tr_parse_bytes(const char *text, int64_t *out)
{
    static const struct {
        const char *suffix;
        double bytes;
    } units[] = {
        { "", 1 },       { "b", 1 },        { "k", 0x1p10 },   { "m", 0x1p20 },   { "g", 0x1p30 },
        { "t", 0x1p40 }, { "kib", 0x1p10 }, { "mib", 0x1p20 }, { "gib", 0x1p30 }, { "tib", 0x1p40 },
        { "kb", 1e3 },   { "mb", 1e6 },     { "gb", 1e9 },     { "tb", 1e12 },
    };
    char shown[64];
    const char *end = real_end(text);
    double v = strtod(text, NULL);
    for (size_t i = 0; i < TR_COUNT_OF(units) && end != text && v >= 0; i++) {
        if (strcasecmp(end, units[i].suffix) != 0)
            continue;
        double bytes = v * units[i].bytes;
        if (bytes > 0x1p53) /* beyond this a double is not exact */
            return tr_fail(TR_USAGE, "%s is more than 8192 TiB", tr_escape(text, shown, sizeof shown));
        *out = (int64_t)llround(bytes);
        return TR_OK;
    }
    return tr_fail(TR_USAGE, "\"%s\" is not a size; write 512, 10K, 1.5GiB or 2GB",
                   tr_escape(text, shown, sizeof shown));
}

enum { EDIT_MAX = 32 };

static int min3(int a, int b, int c)
{
    int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

int tr_edit_distance(const char *a, const char *b)
{
    int d[EDIT_MAX + 1][EDIT_MAX + 1];
    int n_a = (int)strnlen(a, EDIT_MAX), n_b = (int)strnlen(b, EDIT_MAX);
    for (int i = 0; i <= n_a; i++)
        d[i][0] = i;
    for (int j = 0; j <= n_b; j++)
        d[0][j] = j;
    for (int i = 1; i <= n_a; i++) {
        for (int j = 1; j <= n_b; j++) {
            int differs = a[i - 1] != b[j - 1];
            d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + differs);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = min3(d[i][j], d[i - 2][j - 2] + 1, EDIT_MAX);
        }
    }
    return d[n_a][n_b];
}

const char *tr_nearest(const char *name, const char *const *names, size_t n_names)
{
    const char *best = NULL;
    int n = (int)strnlen(name, EDIT_MAX);
    int best_distance = min3(1 + (n + 1) / 3, 4, EDIT_MAX); /* about one slip in three letters, three at most */
    for (size_t i = 0; i < n_names; i++) {
        int distance = tr_edit_distance(name, names[i]);
        if (distance < best_distance) {
            best = names[i];
            best_distance = distance;
        }
    }
    return best;
}

const char *tr_human_bytes(uint64_t bytes, char *buf, size_t n_buf)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double x = (double)bytes;
    size_t unit = 0;
    for (; x >= 1024 && unit + 1 < TR_COUNT_OF(units); unit++)
        x /= 1024;
    snprintf(buf, n_buf, unit ? "%.2f %s" : "%.0f %s", x, units[unit]);
    return buf;
}

const char *tr_human_count(double x, char *buf, size_t n_buf)
{
    static const char *const units[] = { "", " K", " M", " B", " T" };
    size_t unit = 0;
    for (; fabs(x) >= 1000 && unit + 1 < TR_COUNT_OF(units); unit++)
        x /= 1000;
    snprintf(buf, n_buf, unit ? "%.1f%s" : "%.4g%s", x, units[unit]);
    return buf;
}
