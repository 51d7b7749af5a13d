/* status.c - the error text of each thread.
 *
 * Invariant: error_text is always terminated. Texts are built in a local buffer first, so an argument may be
 * tr_error_text() itself. Rejected: error objects that callers free (out of memory must be reportable too).
 */
#include "base/status.h"
#include <stdarg.h>
#include "base/banned.h"

enum { TEXT_MAX = 8192 };

static _Thread_local char error_text[TEXT_MAX];

const char *tr_status_str(enum tr_status st)
{
    static const char *const texts[] = {
#define X(name, text) text,
        TR_STATUS_LIST(X)
#undef X
    };
    _Static_assert(TR_COUNT_OF(texts) == TR_STATUS_COUNT, "one text a status");
    return (unsigned)st < TR_STATUS_COUNT ? texts[st] : "unknown status";
}

enum tr_status tr_fail(enum tr_status st, const char *fmt, ...)
{
    char text[TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(text, sizeof text, fmt, args) < 0)
        text[0] = 0;
    va_end(args);
    memcpy(error_text, text, strlen(text) + 1);
    return st;
}

enum tr_status tr_fail_at(enum tr_status st, const char *fmt, ...)
{
    char text[TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(text, sizeof text, fmt, args) < 0)
        text[0] = 0;
    va_end(args);

    size_t n_front = strlen(text);
    size_t n_old = strlen(error_text);
    if (n_old > TEXT_MAX - 1 - n_front)
        n_old = TEXT_MAX - 1 - n_front; /* the cause loses its tail, never the context */
    memcpy(text + n_front, error_text, n_old);
    text[n_front + n_old] = 0;
    memcpy(error_text, text, n_front + n_old + 1);
    return st;
}

enum tr_status tr_fail_memory(const char *fmt, va_list args)
{
    char what[256];
    vsnprintf(what, sizeof what, fmt, args);
    return tr_fail(TR_NOMEM, "no memory for %s", what);
}

const char *tr_error_text(void)
{
    return error_text;
}

void tr_error_clear(void)
{
    error_text[0] = 0;
}

void tr_bug(const char *file, int line, const char *what)
{
    fprintf(stderr, "trireme: bug at %s:%d: %s\n", file, line, what);
    abort();
}
