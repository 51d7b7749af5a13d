/* analyzer.h - put in front of every file that clang-tidy reads: tr_fail() returns the status it is given. The analyzer
 * does not see into status.c, and without this it follows every failure on into code that success alone reaches. */
#include "base/status.h"
#define tr_fail(st, ...)    (tr_fail(st, __VA_ARGS__), (st))
#define tr_fail_at(st, ...) (tr_fail_at(st, __VA_ARGS__), (st))
