/* chunks.c - see chunks.h. */
#include "data/chunks.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH_BYTES = 8 << 20, TASK_BYTES = 128 << 10 };
enum { WHOLE_BYTES = 256 << 20 }; /* that are kept because there is no place to cut them */

void tr_chunks_release(struct tr_chunks *c)
{
    for (size_t i = 0; i < c->n_tasks_cap; i++)
        tr_ids_release(&c->tasks[i].ids);
    free(c->tasks);
    tr_str_release(&c->text);
    *c = (struct tr_chunks){ 0 };
}

bool tr_chunks_is_full(const struct tr_chunks *c)
{
    return c->text.n - c->n_left >= (c->n_batch && c->n_batch < BATCH_BYTES ? c->n_batch : BATCH_BYTES);
}

static enum tr_status add_task(struct tr_chunks *c, size_t begin, size_t end)
{
    size_t n_was = c->n_tasks_cap;
    TR_PASS(TR_ROOM(c->tasks, c->n_tasks + 1, &c->n_tasks_cap, "a batch of text"));
    memset(c->tasks + n_was, 0, (c->n_tasks_cap - n_was) * sizeof *c->tasks);
    struct tr_chunk *t = &c->tasks[c->n_tasks++];
    t->begin = begin;
    t->end = end;
    return TR_OK;
}

/* Makes the tasks of a batch. *n_used is where the last task ends. */
static enum tr_status cut(struct tr_chunks *c, bool is_last, size_t *n_used)
{
    size_t n = c->text.n, begin = 0, end = 0;
    size_t seen = c->n_left ? c->n_left - 1 : 0; /* a cut can be judged only when the character after it is known */
    c->n_tasks = 0;
    for (;; begin = end) {
        end = tr_tokenizer_cut(c->tokenizer, c->text.p, n, begin + TASK_BYTES > seen ? begin + TASK_BYTES : seen);
        if (end - begin > WHOLE_BYTES)
            return tr_fail(TR_USAGE,
                           "%s: %zu bytes without a place where this tokenizer lets a text be cut, which is over the "
                           "limit of %d MiB; make records of a .jsonl file of it",
                           c->path, end - begin, WHOLE_BYTES >> 20);
        if (end == n && !is_last)
            break;
        TR_PASS(add_task(c, begin, end));
        if (end == n)
            break;
    }
    *n_used = is_last ? n : begin;
    return TR_OK;
}

static void encode_task(void *ctx, int64_t i_task, int worker)
{
    struct tr_chunks *c = ctx;
    struct tr_chunk *t = &c->tasks[i_task];
    (void)worker;
    t->ids.n = 0;
    struct tr_work_scope work = tr_work_record(t->end - t->begin);
    t->failed = tr_work_check(&c->work);
    if (t->failed == TR_OK)
        t->failed = tr_tokenizer_encode_part(c->tokenizer, c->text.p + t->begin, t->end - t->begin,
                                             i_task == 0 && !c->is_inside, &t->ids);
    tr_work_book(&c->work, work);
    if (t->failed != TR_OK)
        (void)tr_format(t->why, sizeof t->why, "%s", tr_error_text()); /* a long message is truncated */
}

enum tr_status tr_chunks_encode(struct tr_chunks *c, bool is_last, struct tr_pool *pool, tr_take_fn *take, void *ctx)
{
    size_t n_used = 0;
    TR_PASS(cut(c, is_last, &n_used));
    c->work.n_bytes += n_used;
    if (take)
        tr_pool_run(pool, (int64_t)c->n_tasks, encode_task, c);
    enum tr_status st = tr_work_check(&c->work);
    if (st != TR_OK)
        return tr_fail_at(st, "%s: ", c->path);
    for (size_t i = 0; take && i < c->n_tasks; i++) {
        if (c->tasks[i].failed != TR_OK)
            return tr_fail(c->tasks[i].failed, "%s: %s", c->path, c->tasks[i].why);
        TR_PASS(take(ctx, c->tasks[i].ids.p, c->tasks[i].ids.n));
    }
    c->is_inside = !is_last && (c->is_inside || n_used > 0);
    c->n_left = c->text.n - n_used;
    if (n_used > 0)
        memmove(c->text.p, c->text.p + n_used, c->n_left);
    c->text.n = c->n_left;
    return TR_OK;
}
