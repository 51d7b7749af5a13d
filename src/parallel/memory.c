/* memory.c - last level-2 pass: lifetimes -> offsets.
 *
 * A first-fit allocator for each region of slots replays the takes and frees of the list in order. Any later action may
 * reuse a freed slot, because the action that frees it runs on the compute stream or has been waited for
 * (tr_schedule_check proves it).
 */
#include "parallel/parallel_impl.h"

enum tr_status tr_pass_memory(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct tr_sim sim[TR_BUF_SLOTS] = { 0 };
    enum tr_status st = TR_OK;
    (void)c;
    for (int i = 0; i < s->n_actions; i++) {
        struct tr_action *a = &s->action[i];
        for (int k = 0; k < a->n_uses; k++) {
            struct tr_buffer *b = &s->buffer[a->use[k].buffer];
            if (a->use[k].takes)
                b->offset = tr_sim_alloc(&sim[b->region], b->bytes);
        }
        for (int k = 0; k < a->n_uses; k++) {
            const struct tr_buffer *b = &s->buffer[a->use[k].buffer];
            if (a->use[k].frees)
                tr_sim_free(&sim[b->region], b->offset);
        }
    }
    for (int r = 0; r < TR_BUF_SLOTS; r++) {
        s->region_bytes[r] = sim[r].peak;
        st = st != TR_OK ? st : sim[r].failed;
        tr_sim_release(&sim[r]);
    }
    return st;
}
