/* shm.c - the engine for the ranks of one host: opening the world, splitting it, and the hooks.
 *
 * Communicators of one process share a struct shm_world; closing the last one ends it. A split is two small collectives
 * on the parent. Its seats come from a table in the segment, where the seats of closed groups are used again.
 */
#include "comm/shm_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { HELPER_SLICE_US = 1000 * 1000 };

static const char *can_use(const struct tr_comm_env *env)
{
    if (env->size > SHM_RANKS_MAX)
        return "it takes at most 1024 ranks of one host";
    if (env->n_local && env->n_local != env->size)
        return "its ranks must be on one host, and these are on several; use mpi";
    return env->job && env->job[0] ? NULL : "the job has no name, by which its ranks find each other; set TR_JOB";
}

/* A communicator of the ranks of `g`; ranks NULL: the world. */
static enum tr_status open_group(struct shm_world *w, struct shm_group *g, const int *ranks, int rank,
                                 struct tr_front_comm **out)
{
    TR_PASS(tr_front_open_comm(&w->front, sizeof(struct shm_comm), ranks, rank, g->n, out));
    struct tr_front_comm *c = *out;
    atomic_uint_fast64_t *pairs = at_offset(w, g->pairs_at);
    int n = g->n;
    ((struct shm_comm *)c)->group = g;
    ((struct shm_channel *)tr_front_all(c))->seats = at_offset(w, g->seats_at);
    for (int i = 0; i < n; i++) {
        ((struct shm_channel *)tr_front_to(c, i))->pair_at = &pairs[rank * n + i];
        ((struct shm_channel *)tr_front_from(c, i))->pair_at = &pairs[i * n + rank];
    }
    return TR_OK;
}

static void close_world(struct shm_world *w)
{
    if (w->front.has_helper) {
        tr_front_enter(&w->front);
        w->front.is_closing = true;
        tr_front_leave(&w->front);
        tr_shm_ring(w, w->front.rank); /* the helper may sleep on it */
        tr_front_stop_helper(&w->front);
    }
    if (w->h) {
        atomic_store(&my_slot(w)->is_closed, 1);
        tr_shm_unmap(w->h, w->is_local);
    }
    tr_front_release(&w->front);
    free(w);
}

/* Faults in the pages of the arena now rather than in the first step; huge pages if the kernel has them. */
static enum tr_status fill_arena(struct shm_world *w)
{
    struct shm_slot *s = my_slot(w);
    char *base = at_offset(w, s->arena_at), human[32];
    size_t bytes = tr_round_up(s->arena_bytes, 4096);
    if (!bytes)
        return TR_OK;
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    if (madvise(base, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno != EINVAL)
            return tr_front_raise(&w->front, TR_NOMEM, "rank %d: the machine refused an arena of %s: %s", w->front.rank,
                                  tr_human_bytes(bytes, human, sizeof human), strerror(errno));
        for (size_t i = 0; i < bytes; i += 4096) /* a kernel before 5.14 */
            ((volatile char *)base)[i] = 0;
    }
    (void)madvise(base, bytes, MADV_COLLAPSE);
    return TR_OK;
}

static enum tr_status start_world(struct shm_world *w, struct tr_front_comm **world)
{
    w->front.fault = &w->h->fault;
    w->front.arena = at_offset(w, my_slot(w)->arena_at);
    w->front.arena_bytes = my_slot(w)->arena_bytes;
    TR_PASS(open_group(w, &w->h->groups[0], NULL, w->front.rank, world));
    TR_PASS(tr_shm_open_peers(w));
    TR_PASS(fill_arena(w));
    TR_PASS(tr_front_start_helper(&w->front));
    return tr_comm_run(&(*world)->base, &(struct tr_coll){ .kind = TR_BARRIER, .site = "open" });
}

static const struct tr_front_hooks hooks;

static enum tr_status open_shm(const struct tr_comm_env *env, struct tr_comm **world)
{
    struct shm_world *w = calloc(1, sizeof *w);
    struct tr_front_comm *first = NULL;
    if (!w)
        return tr_fail(TR_NOMEM, "rank %d: no memory for a world of %d ranks", env->rank, env->size);
    enum tr_status st = tr_front_init(&w->front, &hooks, &tr_comm_shm, env);
    w->front.small_bytes = SHM_SMALL_BYTES;
    w->front.rest_us = TR_FRONT_SLICE_US;
    w->front.help_us = HELPER_SLICE_US;
    w->has_cores = env->size <= sysconf(_SC_NPROCESSORS_ONLN);
    w->n_spins = 40;
    if (st == TR_OK)
        st = tr_shm_join(env, &w->h, &w->is_local);
    if (st == TR_OK)
        st = start_world(w, &first);
    if (st == TR_OK)
        *world = &first->base;
    else if (first)
        tr_comm_close(&first->base);
    else
        close_world(w);
    return st;
}

static void reset_seats(struct shm_seat *seats, int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < 2; j++)
            atomic_store(&seats[i].head[j].seq, 0);
        for (int p = 0; p < SHM_PHASES; p++)
            atomic_store(&seats[i].did[p], 0);
    }
}

/* Index of a group of n seats that no communicator uses, or 0. Only the rank that has taken an entry reads its fields.
 */
static int take_group(struct shm_world *w, int n)
{
    for (int pass = 0; pass < 2; pass++) /* first those that were used before */
        for (int i = 1; i < SHM_GROUPS_MAX; i++) {
            struct shm_group *g = &w->h->groups[i];
            int none = 0;
            if (!atomic_compare_exchange_strong(&g->n_open, &none, n))
                continue;
            if (pass == 0 && g->n == n) {
                atomic_uint_fast64_t *pairs = at_offset(w, g->pairs_at);
                reset_seats(at_offset(w, g->seats_at), n);
                for (int p = 0; p < n * n; p++)
                    if (pairs[p])
                        reset_seats(at_offset(w, pairs[p]), 2);
                return i;
            }
            if (pass == 1 && g->n == 0) {
                g->n = n;
                g->seats_at = tr_shm_alloc(w, (size_t)n * sizeof(struct shm_seat));
                g->pairs_at = tr_shm_alloc(w, (size_t)n * (size_t)n * sizeof(uint64_t));
                return g->seats_at && g->pairs_at ? i : 0;
            }
            atomic_store(&g->n_open, 0);
        }
    return 0;
}

/* The first rank of each color takes a group from the table in the segment; all ranks learn which. */
static enum tr_status split(struct tr_front_comm *c, const struct tr_front_group *g, struct tr_front_comm **out)
{
    enum tr_status st = TR_OK;
    struct shm_world *w = (struct shm_world *)c->w;
    bool is_shared = g->color >= 0 && g->n > 1;
    tr_front_enter(c->w);
    if (is_shared && g->leader == c->base.rank && (g->values[g->leader] = take_group(w, g->n)) == 0)
        st = tr_front_raise(c->w, TR_NOMEM, "split: %d communicators are open, the most that shm holds; close some",
                            SHM_GROUPS_MAX);
    tr_front_leave(c->w);
    if (st == TR_OK)
        st = tr_split_exchange(&c->base, g->values, 1);
    if (st != TR_OK || !is_shared)
        return st;
    tr_front_enter(c->w);
    st = open_group(w, &w->h->groups[g->values[g->leader]], g->ranks, g->rank, out);
    tr_front_leave(c->w);
    return st;
}

static void close_shm(struct tr_front_comm *c, bool is_last)
{
    struct shm_world *w = (struct shm_world *)c->w;
    atomic_fetch_sub(&((struct shm_comm *)c)->group->n_open, 1);
    tr_front_free_comm(c);
    if (is_last)
        close_world(w);
}

static const struct tr_front_hooks hooks = { .channel_bytes = sizeof(struct shm_channel),
                                             .announce = tr_shm_announce,
                                             .advance = tr_shm_advance,
                                             .spin = tr_shm_spin,
                                             .rest = tr_shm_rest,
                                             .look = tr_shm_look,
                                             .publish = tr_shm_publish,
                                             .fault = tr_shm_fault,
                                             .raise = tr_shm_raise,
                                             .split = split,
                                             .close = close_shm };

const struct tr_comm_ops tr_comm_shm = { "shm", can_use, open_shm, TR_FRONT_OPS };
