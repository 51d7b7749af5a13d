/* split.c - what the engines share of splits and reservations: which ranks belong together, and where the next
 * reservation of an arena begins.
 */
#include "comm/comm_impl.h"

enum tr_status tr_split_exchange(struct tr_comm *c, int64_t *all, int n_each)
{
    return tr_comm_run(c, &(struct tr_coll){ .kind = TR_ALL_GATHER,
                                             .dtype = TR_I64,
                                             .in = all + (size_t)c->rank * (size_t)n_each,
                                             .out = all,
                                             .count = (size_t)c->size * (size_t)n_each,
                                             .site = "split" });
}

int tr_split_find_wrong(const struct tr_split_report *reports, int size, int64_t *n_right)
{
    for (int i = 0; i < size; i++) {
        *n_right = 0;
        for (int j = 0; j < size; j++)
            *n_right += reports[j].color == reports[i].color;
        if (reports[i].color >= 0 && *n_right != reports[i].n)
            return i;
    }
    return -1;
}

int tr_split_pick(const struct tr_split_report *reports, int size, int me, const int *from, int *ranks, int *leader)
{
    int place = 0;
    *leader = me;
    for (int i = 0; i < size; i++) {
        int before = 0;
        if (reports[i].color != reports[me].color)
            continue;
        for (int j = 0; j < size; j++)
            before += reports[j].color == reports[i].color &&
                      (reports[j].key < reports[i].key || (reports[j].key == reports[i].key && j < i));
        ranks[before] = from[i];
        if (before == 0)
            *leader = i;
        if (i == me)
            place = before;
    }
    return place;
}

enum tr_status tr_comm_carve(char *arena, size_t arena_bytes, size_t bytes, size_t *used, void **out)
{
    size_t room = arena_bytes - *used;
    char want[32], have[32];
    if (bytes > room || tr_round_up(bytes, TR_COMM_ALIGN) > room)
        return tr_fail(TR_NOMEM, "reservation of %s: only %s of the arena are left; raise env.arena_bytes",
                       tr_human_bytes(bytes, want, sizeof want), tr_human_bytes(room, have, sizeof have));
    *out = arena + *used;
    *used += tr_round_up(bytes, TR_COMM_ALIGN);
    return TR_OK;
}
