/* lines.c - see lines.h. */
#include "data/lines.h"

#include <stdlib.h>
#include <string.h>

#define BATCH "a batch of lines" /* in messages */

enum { BATCH_BYTES = 8 << 20, BATCH_ROWS = 1 << 16, TASK_BYTES = 64 << 10 };
/* Ids of a batch, and for each byte of it. A template may put a few hundred around a record, never a few thousand
 * around each of many. */
enum { BATCH_IDS = 4 << 20, BYTE_IDS = 32 };

void tr_lines_release(struct tr_lines *l)
{
    for (size_t i = 0; i < l->n_rows; i++)
        free(l->rows[i].why);
    for (size_t i = 0; i < l->n_tasks_cap; i++)
        tr_doc_release(&l->tasks[i].doc);
    free(l->rows);
    free(l->tasks);
    tr_str_release(&l->text);
    *l = (struct tr_lines){ 0 };
}

bool tr_lines_is_full(const struct tr_lines *l)
{
    return l->text.n >= BATCH_BYTES || l->n_rows >= BATCH_ROWS;
}

static enum tr_status add_task(struct tr_lines *l)
{
    size_t n_was = l->n_tasks_cap;
    TR_PASS(TR_ROOM(l->tasks, l->n_tasks + 1, &l->n_tasks_cap, BATCH));
    memset(l->tasks + n_was, 0, (l->n_tasks_cap - n_was) * sizeof *l->tasks);
    l->tasks[l->n_tasks].first = l->tasks[l->n_tasks].end = l->n_rows;
    l->n_tasks++;
    return TR_OK;
}

enum tr_status tr_lines_add(struct tr_lines *l, const char *line, size_t n, int64_t number, const char *why)
{
    TR_PASS(TR_ROOM(l->rows, l->n_rows + 1, &l->n_rows_cap, BATCH));
    if (l->n_tasks == 0 || l->text.n - l->rows[l->tasks[l->n_tasks - 1].first].at >= TASK_BYTES)
        TR_PASS(add_task(l));
    struct tr_line_row row = { .at = l->text.n, .n = why ? 0 : n, .number = number, .why = why ? strdup(why) : NULL };
    if (why && !row.why)
        return tr_fail(TR_NOMEM, "no memory for " BATCH);
    l->rows[l->n_rows++] = row;
    l->tasks[l->n_tasks - 1].end = l->n_rows;
    tr_str_add(&l->text, line, row.n);
    return tr_str_check(&l->text, BATCH);
}

/* Whether the batch may go on: its file has taken too much work, or the batch has made too many ids. */
static enum tr_status check_cost(struct tr_lines *l)
{
    enum tr_status st = tr_work_check(&l->work);
    if (st == TR_OK && atomic_load(&l->n_made) / BYTE_IDS > l->text.n + BATCH_IDS / BYTE_IDS)
        st = tr_fail(TR_USAGE,
                     "the chat template or the tokenizer makes more than %d tokens of each byte; use another one",
                     BYTE_IDS);
    return st == TR_OK ? st : tr_fail_at(st, "%s: ", l->path);
}

static void encode_task(void *ctx, int64_t i_task, int worker)
{
    struct tr_lines *l = ctx;
    struct tr_line_task *t = &l->tasks[i_task];
    (void)worker;
    t->doc.ids.n = 0;
    tr_str_clear(&t->doc.mask);
    tr_str_clear(&t->doc.weight);
    t->failed = TR_OK;
    for (size_t i = t->first; i < t->end && t->failed == TR_OK && check_cost(l) == TR_OK; i++) {
        struct tr_line_row *row = &l->rows[i];
        size_t n_before = t->doc.ids.n;
        if (row->why)
            continue;
        struct tr_work_scope work = tr_work_record(row->n);
        enum tr_status st = tr_record_encode(l->rules, l->text.p + row->at, row->n, &t->doc);
        tr_work_book(&l->work, work);
        row->n_ids = t->doc.ids.n - n_before;
        atomic_fetch_add(&l->n_made, row->n_ids);
        if (st == TR_USAGE && (row->why = strdup(tr_error_text())) == NULL)
            st = tr_fail(TR_NOMEM, "no memory for " BATCH);
        if (st != TR_OK && st != TR_USAGE) {
            t->failed = st;
            (void)tr_format(t->why, sizeof t->why, "%s", tr_error_text()); /* a long message is truncated */
        }
    }
}

static enum tr_status give_task(struct tr_lines *l, const struct tr_line_task *t, tr_give_fn *give, void *ctx)
{
    size_t at = 0;
    for (size_t i = t->first; i < t->end; i++) {
        const struct tr_line_row *row = &l->rows[i];
        const uint8_t *mask = t->doc.mask.n ? (const uint8_t *)t->doc.mask.p + at : NULL;
        const uint32_t *weight = t->doc.weight.n ? (const uint32_t *)(const void *)t->doc.weight.p + at : NULL;
        TR_PASS(give(ctx, row->number, t->doc.ids.p + at, mask, weight, row->n_ids, row->why));
        at += row->n_ids;
    }
    return TR_OK;
}

enum tr_status tr_lines_encode(struct tr_lines *l, const struct tr_record_rules *rules, struct tr_pool *pool,
                               tr_give_fn *give, void *ctx)
{
    enum tr_status st = TR_OK;
    l->rules = rules;
    l->work.n_bytes += l->text.n;
    atomic_store(&l->n_made, 0);
    tr_pool_run(pool, (int64_t)l->n_tasks, encode_task, l);
    TR_TRY(check_cost(l));
    for (size_t i = 0; i < l->n_tasks; i++) {
        if (l->tasks[i].failed != TR_OK)
            TR_TRY(tr_fail(l->tasks[i].failed, "%s", l->tasks[i].why));
        TR_TRY(give_task(l, &l->tasks[i], give, ctx));
    }
out:
    for (size_t i = 0; i < l->n_rows; i++)
        free(l->rows[i].why);
    l->n_rows = l->n_tasks = 0;
    tr_str_clear(&l->text);
    return st;
}
