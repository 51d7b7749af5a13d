/* memory.c - last level-2 pass: lifetimes -> offsets.
 *
 * A first-fit allocator for each region of slots replays the takes and frees of the list in order. Any later action may
 * reuse a freed slot, because the action that frees it runs on the compute stream or has been waited for
 * (tr_schedule_check proves it).
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

/* A simulated first-fit allocator: it computes offsets for blocks whose lifetimes are known. */
struct sim_block {
    size_t offset, bytes;
};
struct sim {
    struct sim_block *live; /* sorted by offset */
    int n_live;
    size_t n_cap;
    size_t peak;
    enum tr_status failed;
};

static size_t sim_alloc(struct sim *s, size_t bytes)
{
    size_t at = 0;
    int i = 0;
    bytes = tr_round_up(bytes ? bytes : 1, TR_ALIGN);
    for (; i < s->n_live && s->live[i].offset - at < bytes; i++)
        at = s->live[i].offset + s->live[i].bytes;
    if (TR_ROOM(s->live, (size_t)s->n_live + 1, &s->n_cap, "a plan of memory") != TR_OK) {
        s->failed = TR_NOMEM;
        return 0;
    }
    memmove(&s->live[i + 1], &s->live[i], (size_t)(s->n_live - i) * sizeof *s->live);
    s->live[i] = (struct sim_block){ at, bytes };
    s->n_live++;
    if (at + bytes > s->peak)
        s->peak = at + bytes;
    return at;
}

static void sim_free(struct sim *s, size_t offset)
{
    for (int i = 0; i < s->n_live; i++)
        if (s->live[i].offset == offset) {
            memmove(&s->live[i], &s->live[i + 1], (size_t)(s->n_live - i - 1) * sizeof *s->live);
            s->n_live--;
            return;
        }
    TR_BUG_ON(s->failed == TR_OK);
}

static void sim_release(struct sim *s)
{
    free(s->live);
    *s = (struct sim){ 0 };
}

enum tr_status tr_pass_memory(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct sim sim[TR_BUF_SLOTS] = { 0 };
    enum tr_status st = TR_OK;
    (void)c;
    for (int i = 0; i < s->n_actions; i++) {
        struct tr_action *a = &s->action[i];
        for (int k = 0; k < a->n_uses; k++) {
            struct tr_buffer *b = &s->buffer[a->use[k].buffer];
            if (a->use[k].takes)
                b->offset = sim_alloc(&sim[b->region], b->bytes);
        }
        for (int k = 0; k < a->n_uses; k++) {
            const struct tr_buffer *b = &s->buffer[a->use[k].buffer];
            if (a->use[k].frees)
                sim_free(&sim[b->region], b->offset);
        }
    }
    for (int r = 0; r < TR_BUF_SLOTS; r++) {
        s->region_bytes[r] = sim[r].peak;
        st = st != TR_OK ? st : sim[r].failed;
        sim_release(&sim[r]);
    }
    return st;
}
