/* line.c - formats text into memory of the caller, so that a training step writes its line without allocating.
 *
 * Invariant: p is terminated and n < n_cap. Rejected: tr_str (it may allocate), and cJSON printing (it allocates, and
 * its numbers do not keep all bits).
 */
#include "observe/observe_impl.h"

#include <math.h>
#include <stdarg.h>

void tr_line_addf(struct line *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(s->p + s->n, s->n_cap - s->n, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= s->n_cap - s->n) {
        s->p[s->n] = '\0'; /* all or nothing, so that a cut never splits a character or a number */
        s->is_cut = true;
    } else {
        s->n += (size_t)n;
    }
}

void tr_line_json(struct line *s, const char *text)
{
    enum { TEXT_MAX = 4096 }; /* no single text may crowd out the rest of its line */
    size_t n = strnlen(text, TEXT_MAX);
    tr_line_addf(s, "\"");
    for (size_t i = 0; i < n;) {
        size_t len = tr_utf8_len(text + i, n - i);
        unsigned char c = (unsigned char)text[i];
        if (len == 0)
            tr_line_addf(s, "\\ufffd");
        else if (c == '"' || c == '\\')
            tr_line_addf(s, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            tr_line_addf(s, "\\u%04x", c);
        else if (len == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0) /* C1: terminals obey these too */
            tr_line_addf(s, "\\u00%02x", (unsigned)(unsigned char)text[i + 1]);
        else
            tr_line_addf(s, "%.*s", (int)len, text + i);
        i += len != 0 ? len : 1;
    }
    tr_line_addf(s, "\"");
}

void tr_line_real(struct line *s, const char *key, double x, int n_digits)
{
    if (isfinite(x))
        tr_line_addf(s, ",\"%s\":%.*g", key, n_digits, x);
    else
        tr_line_addf(s, ",\"%s\":null", key);
}
