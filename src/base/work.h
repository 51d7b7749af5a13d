/* work.h - how much work a text may cost, counted in steps, never in time.
 *
 * A step is about what 16 bytes take to be searched, or one backtrack of a pattern. Whoever reads a file of somebody
 * else gives the thread an allowance for each record; templates, patterns and tokenizers narrow it to their own bound,
 * take from it what they do, and give up when it is gone. The same record takes the same steps on any machine, so that
 * what is dropped does not depend on a pause. Beside it stands an account of the whole file, which threads share.
 *
 * The allowance belongs to the thread, as the error text does. Rejected: a pointer through the signatures of chat,
 * template, tokenizer, normalizer and matcher, which would all know of a rule of data's.
 */
#ifndef TR_BASE_WORK_H
#define TR_BASE_WORK_H

#include "base/status.h"

struct tr_work_scope {
    int64_t outer, own;
};
/* The calling thread may do at most n_steps, and not more than it could before. */
struct tr_work_scope tr_work_enter(int64_t n_steps);
/* The steps that were taken since. They are gone from what the thread could do before, too. */
int64_t tr_work_leave(struct tr_work_scope s);
int64_t tr_work_left(void); /* INT64_MAX: without a bound, as outside of all scopes */
/* False: less than that was left; then nothing is left. */
bool tr_work_take(int64_t n_steps);
/* n_free + n_bytes * a_byte, at most INT64_MAX - 1. */
int64_t tr_work_of(int64_t n_free, int64_t a_byte, uint64_t n_bytes);

/* The account of a file; {0} is empty. Not more than FILE steps, and BYTE for each byte that was read. */
enum { TR_WORK_RECORD = 60 * 1000 * 1000, TR_WORK_FILE = 200 * 1000 * 1000, TR_WORK_BYTE = 200 };
struct tr_work {
    int64_t n_used; /* threads add to it at once */
    uint64_t n_bytes;
};
/* A record of so many bytes: not more than RECORD steps, and BYTE for each byte; then they are booked. */
struct tr_work_scope tr_work_record(size_t n_bytes);
void tr_work_book(struct tr_work *w, struct tr_work_scope s);
/* TR_USAGE when the file has taken more than its bytes allow. Steps only grow, so that all threads come to the same
 * answer about a batch whatever the order of its records. */
enum tr_status tr_work_check(struct tr_work *w);

#endif
