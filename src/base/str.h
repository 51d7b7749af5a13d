/* str.h - growing byte string, safe formatting, nearest match for misspelt names. */
#ifndef TR_BASE_STR_H
#define TR_BASE_STR_H

#include "base/status.h"

struct tr_str {
    char *p; /* NUL-terminated when n_cap > 0 */
    size_t n, n_cap;
};

void tr_str_release(struct tr_str *s);
void tr_str_clear(struct tr_str *s);
/* Appending never fails visibly: out of memory sets p to NULL and n_cap to SIZE_MAX; check tr_str_ok() once at the end.
 */
void tr_str_add(struct tr_str *s, const char *bytes, size_t n);
void tr_str_addf(struct tr_str *s, const char *fmt, ...) TR_PRINTF(2, 3);
void tr_str_json(struct tr_str *s, const char *text); /* quoted, escaped; bytes that are not UTF-8 become U+FFFD */
void tr_str_member(struct tr_str *s, const char *before, const char *text); /* tr_str_json after `before`, as it is */
void tr_str_shell(struct tr_str *s, const char *word); /* quoted for a shell where that is needed */
bool tr_str_ok(const struct tr_str *s);
/* TR_OK, or TR_NOMEM: "no memory for " and the text, which names the thing. */
enum tr_status tr_str_check(const struct tr_str *s, const char *fmt, ...) TR_PRINTF(2, 3);

/* snprintf that reports truncation as TR_USAGE. */
enum tr_status tr_format(char *buf, size_t n_buf, const char *fmt, ...) TR_PRINTF(3, 4);
/* Copies text with control bytes, quotes-safe, for messages and logs: "\x1b" becomes "\\x1b". Always terminates. */
const char *tr_escape(const char *text, char *buf, size_t n_buf);
/* The same for a text of ours that has names from files in it: line ends and backslashes stay. */
const char *tr_escape_lines(const char *text, char *buf, size_t n_buf);

/* Bytes of the well-formed UTF-8 sequence at p (1..4), or 0: overlong, surrogate, above U+10FFFF, cut off, n = 0. */
size_t tr_utf8_len(const char *p, size_t n);

/* Strict numbers: the whole text, no blanks, no hex, finite, inside the range. */
enum tr_status tr_parse_int(const char *text, int64_t lo, int64_t hi, int64_t *out);
enum tr_status tr_parse_real(const char *text, double *out);
enum tr_status tr_parse_bytes(const char *text, int64_t *out); /* 512, 10K = 10KiB, 1.5GiB, 2GB = 2e9 */

/* Edit distance with transpositions, capped at 32 bytes each; nearest returns NULL when nothing is close enough. */
int tr_edit_distance(const char *a, const char *b);
const char *tr_nearest(const char *name, const char *const *names, size_t n_names);

/* Human form into buf: "1.50 GiB", "124.4 M". */
const char *tr_human_bytes(uint64_t bytes, char *buf, size_t n_buf);
const char *tr_human_count(double x, char *buf, size_t n_buf);

#endif
