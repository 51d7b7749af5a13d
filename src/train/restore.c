/* restore.c - compares a checkpoint with the state it was taken from, by loading it: the loader's `put` compares
 * instead of storing. It needs no second state and tests the same path as a restart.
 *
 * Files of weights may hold fewer bits than the state. They are compared with the state rounded to their dtype; the
 * optimizer files, which hold the full state, are compared bit for bit.
 */
#include "train/train.h"

struct compare {
    struct tr_store live;
    enum tr_dtype rounds_to; /* TR_DTYPE_COUNT: no rounding */
    int64_t n_compared;
};

enum { ROUND_MAX = 4096 };

/* The elements in memory, in the dtype of the file. */
static const char *as_saved(struct compare *c, enum tr_dtype d, const char *live, int64_t n, char *wide, char *narrow)
{
    if (c->rounds_to == TR_DTYPE_COUNT || tr_dtype_bytes(c->rounds_to) >= tr_dtype_bytes(d))
        return live;
    tr_convert(live, d, narrow, c->rounds_to, (size_t)n);
    tr_convert(narrow, c->rounds_to, wide, d, (size_t)n);
    return wide;
}

/* Compares elements [first, first + n) of the whole state, as far as this rank holds them, run by run. */
static enum tr_status compare_put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src)
{
    struct compare *c = ctx;
    struct tr_exec *e = c->live.ctx;
    struct tr_tp_shard shard = tr_exec_tp_shard(e, what, param);
    enum tr_dtype d = c->live.states.row[what].dtype;
    size_t size = tr_dtype_bytes(d);
    int64_t own_first = 0, own_n = 0, local = 0, len;
    (void)tr_exec_part(e, what, param, &own_first, &own_n);
    for (int64_t at = first; at < first + n && (len = tr_tp_run(&shard, &at, first + n, &local)) > 0; at += len) {
        int64_t begin = tr_max64(local, own_first), end = tr_min64(local + len, own_first + own_n);
        for (int64_t k = begin, m; k < end; k += m) {
            char wide[ROUND_MAX * 4], narrow[ROUND_MAX * 4];
            const void *live = NULL;
            m = tr_min64(ROUND_MAX, end - k);
            int64_t global = at + k - local;
            TR_PASS(c->live.get(e, what, param, global, m, &live));
            if (tr_failpoint("restore.flip") != TR_OK || /* a fault that tests plant */
                memcmp(as_saved(c, d, live, m, wide, narrow), (const char *)src + (size_t)(global - first) * size,
                       (size_t)m * size) != 0)
                return tr_fail(TR_NUMBERS,
                               "verify_restore: %s, elements from %" PRId64 ": memory is not what was saved",
                               c->live.model->param[param].name, global);
            c->n_compared += m;
        }
    }
    return TR_OK;
}

static bool compare_wants(void *ctx, enum tr_state what, int param, int64_t first, int64_t n)
{
    const struct compare *c = ctx;
    return c->live.wants(c->live.ctx, what, param, first, n);
}

enum tr_status tr_compare_checkpoint(struct tr_exec *e, const char *dir, enum tr_dtype save_dtype)
{
    struct compare c = { .live = tr_exec_store(e), .rounds_to = save_dtype };
    struct tr_store s = c.live;
    float *buf = (float *)(void *)tr_exec_arena(e, TR_A_SAVE);
    s.ctx = &c;
    s.put = compare_put;
    s.wants = compare_wants;
    TR_PASS(tr_model_has_adapter(s.model) ? tr_load_adapter(&s, NULL, dir, buf) : tr_load_weights(&s, dir, buf, NULL));
    c.rounds_to = TR_DTYPE_COUNT;
    TR_PASS(tr_load_optim(&s, dir, buf, NULL));
    TR_BUG_ON(c.n_compared == 0);
    return TR_OK;
}
