/* work.c - see work.h. */
#include "base/work.h"

static _Thread_local int64_t left = INT64_MAX;

struct tr_work_scope tr_work_enter(int64_t n_steps)
{
    struct tr_work_scope s = { left, n_steps < left ? n_steps : left };
    left = s.own;
    return s;
}

int64_t tr_work_leave(struct tr_work_scope s)
{
    int64_t n_taken = s.own - left;
    left = s.outer == INT64_MAX ? s.outer : s.outer - n_taken;
    return n_taken;
}

int64_t tr_work_left(void)
{
    return left;
}

bool tr_work_take(int64_t n_steps)
{
    if (left == INT64_MAX)
        return true;
    bool is_enough = n_steps <= left;
    left = is_enough ? left - n_steps : 0;
    return is_enough;
}

int64_t tr_work_of(int64_t n_free, int64_t a_byte, uint64_t n_bytes)
{
    uint64_t most = (uint64_t)(INT64_MAX - 1 - n_free) / (uint64_t)a_byte;
    return n_free + a_byte * (int64_t)(n_bytes < most ? n_bytes : most);
}

struct tr_work_scope tr_work_record(size_t n_bytes)
{
    return tr_work_enter(tr_work_of(TR_WORK_RECORD, TR_WORK_BYTE, n_bytes));
}

void tr_work_book(struct tr_work *w, struct tr_work_scope s)
{
    __atomic_fetch_add(&w->n_used, tr_work_leave(s), __ATOMIC_RELAXED);
}

enum tr_status tr_work_check(struct tr_work *w)
{
    if (__atomic_load_n(&w->n_used, __ATOMIC_RELAXED) <= tr_work_of(TR_WORK_FILE, TR_WORK_BYTE, w->n_bytes))
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "the chat template and the patterns of the tokenizer take more than %d steps for each of the first "
                   "%" PRIu64 " bytes, and %d million; use others",
                   TR_WORK_BYTE, w->n_bytes, TR_WORK_FILE / 1000000);
}
