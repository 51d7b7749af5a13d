/* status.h - one status type, one propagation macro, one error text per thread.
 *
 * The first function that knows a cause calls tr_fail() once, with the value in the text; everyone above only passes
 * the status on. The library never prints and never exits; cli prints tr_error_text().
 */
#ifndef TR_BASE_STATUS_H
#define TR_BASE_STATUS_H

#include "base/compiler.h"
#include <stdarg.h>

#define TR_STATUS_LIST(X)                                                                                              \
    X(OK, "ok")                                                                                                        \
    X(USAGE, "bad input") /* the user's: option, config or file; nothing was written */                                \
    X(IO, "input/output error")                                                                                        \
    X(NOMEM, "out of memory")                                                                                          \
    X(PEER, "another rank failed")                                                                                     \
    X(TIMEOUT, "timed out")                                                                                            \
    X(STOPPED, "stopped by a signal") /* what was done is saved */                                                     \
    X(ENDED, "ended by a request")    /* what was done is saved; its user wants no more */                             \
    X(UNSAVED, "stopped by a signal without a save")                                                                   \
    X(NO, "the answer is no") /* to a question that a verb answers; its output says why */                             \
    X(NUMBERS, "non-finite numbers")                                                                                   \
    X(BUG, "a bug of this program")

enum tr_status {
#define X(name, text) TR_##name,
    TR_STATUS_LIST(X)
#undef X
        TR_STATUS_COUNT
};

const char *tr_status_str(enum tr_status st);

/* Writes the cause of this thread (replacing an older one) and returns st. Texts are lower case and name value and fix.
 */
enum tr_status tr_fail(enum tr_status st, const char *fmt, ...) TR_PRINTF(2, 3);
/* Puts context in front of the text that is there: "model.safetensors: " + cause. Returns st unchanged. */
enum tr_status tr_fail_at(enum tr_status st, const char *fmt, ...) TR_PRINTF(2, 3);
/* TR_NOMEM: "no memory for " and the text, which names the thing. */
enum tr_status tr_fail_memory(const char *fmt, va_list args);
const char *tr_error_text(void);
void tr_error_clear(void);

/* Sets `st` and goes to `out`. A function that uses it declares `enum tr_status st = TR_OK;` and has one label `out`.
 */
#define TR_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        st = (expr);                                                                                                   \
        if (TR_UNLIKELY(st != TR_OK))                                                                                  \
            goto out;                                                                                                  \
    } while (0)

/* Passes a failure on to the caller at once. For places where the function owns nothing: one that has something to
 * release by then uses TR_TRY, and a function never mixes the two (tools/lint). */
#define TR_PASS(expr)                                                                                                  \
    do {                                                                                                               \
        enum tr_status pass_st = (expr);                                                                               \
        if (TR_UNLIKELY(pass_st != TR_OK))                                                                             \
            return pass_st;                                                                                            \
    } while (0)

/* Our bug: prints file, line and text, then aborts. */
TR_NORETURN void tr_bug(const char *file, int line, const char *what);
#define TR_BUG_ON(cond)                                                                                                \
    do {                                                                                                               \
        if (TR_UNLIKELY(cond))                                                                                         \
            tr_bug(__FILE__, __LINE__, #cond);                                                                         \
    } while (0)

#endif
