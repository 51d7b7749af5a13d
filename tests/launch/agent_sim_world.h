/* agent_sim_world.h - the world of T7: dice, disk and ranks around the agents of src/launch/agent*.c.
 *
 * Time moves in steps of 10 ms. Links are TCP: in order, held back while cut, broken by a crash. Agents crash, sleep
 * and come back; ranks fail; the disk is slow. The oracle stands at the disk: checkpoints form one line, each written
 * by the newest generation, upon the one before.
 */
#ifndef TR_TESTS_AGENT_SIM_WORLD_H
#define TR_TESTS_AGENT_SIM_WORLD_H

#include "launch/agent.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS  INT64_C(1000)
#define SEC (1000 * MS)

enum { N_MAX = 8, LINKS = 128, QUEUE = 64, STEP_US = 10000, TOTAL_STEPS = 150, SAVE_EVERY = 3, GENERATIONS = 256 };
enum plant { PLANT_NONE, PLANT_NO_FENCE, PLANT_NO_SWEEP, PLANT_SHARED_CLAIM, PLANTS };

struct wire {
    int from, to, from_life, to_life; /* node indices, and which life of them */
    bool is_open, fin[2];
    struct {
        int64_t at_us;
        struct msg m;
    } q[2][QUEUE]; /* [0]: from -> to */
    int n[2];
    int64_t last_us[2];
};

struct group { /* the ranks of one node */
    bool runs;
    int64_t generation, end_us;
    int index, n_nodes;
    int end_rank, end_code, end_sig;
    bool end_echo, is_soft;
};

struct vnode {
    bool is_up;
    int life;
    int64_t sleeps_until, next_tick, back_us;
    struct agent a;
    struct group g;
    int64_t claim_us, claim_generation, read_us, connect_us, connect_to;
};

struct commit {
    int64_t generation, step;
};

struct vrun { /* a generation's training, as its rank 0 sees it */
    int node[N_MAX], n_nodes, n_spawned;
    int life[N_MAX];
    int64_t base, step, saved, boot_us, next_us, commit_us, stall_us;
    bool has_booted, has_tmp, is_over, is_final;
};

struct world {
    uint64_t seed, rng;
    enum plant plant;
    bool is_loud;
    int n, n_min;
    int64_t now, calm_us, end_us;
    struct vnode v[N_MAX];
    int64_t cut_until[N_MAX][N_MAX];
    /* disk */
    struct disk_view disk;
    struct commit commits[1024];
    int n_commits;
    struct vrun runs[GENERATIONS];
    int n_claims, n_faults, n_links; /* n_links: no open one from here on */
    char failed[256];
    struct wire w[LINKS]; /* last: kept from seed to seed but for is_open */
};

static inline uint64_t roll(struct world *w)
{
    uint64_t z = (w->rng += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline int64_t between(struct world *w, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(roll(w) % (uint64_t)(hi - lo + 1));
}

static inline bool chance(struct world *w, int per_million)
{
    return (int64_t)(roll(w) % 1000000) < per_million;
}

static inline void broken(struct world *w, const char *what, int64_t x, int64_t y)
{
    if (!w->failed[0])
        snprintf(w->failed, sizeof w->failed, "seed %" PRIu64 " at %.2f s: %s (%" PRId64 ", %" PRId64 ")", w->seed,
                 (double)w->now * 1e-6, what, x, y);
}

static inline bool is_cut(const struct world *w, int from, int to)
{
    return w->cut_until[from][to] > w->now;
}

/* ---- ranks ---- */

static inline struct vrun *run_of(struct world *w, int64_t generation)
{
    return &w->runs[generation % GENERATIONS];
}

static inline void spawn(struct world *w, int i, const struct msg *m)
{
    struct vrun *r = run_of(w, m->generation);
    w->v[i].g = (struct group){ .runs = true, .generation = m->generation, .index = m->index, .n_nodes = m->n_nodes };
    if (r->n_nodes == 0)
        *r = (struct vrun){ .n_nodes = m->n_nodes, .base = -1 };
    if (r->n_nodes != m->n_nodes || m->index < 0 || m->index >= m->n_nodes || m->n_nodes < w->n_min)
        broken(w, "START disagrees within a generation, or has too few nodes", m->generation, m->n_nodes);
    if (r->n_spawned && m->index < N_MAX && r->life[m->index])
        broken(w, "a place in a generation is taken twice", m->generation, m->index);
    r->node[m->index] = i;
    r->life[m->index] = w->v[i].life;
    r->n_spawned++;
    r->boot_us = w->now + between(w, 100 * MS, 600 * MS);
}

static inline void end_group(struct world *w, int i, int64_t after, int rank, int code, int sig, bool is_echo)
{
    struct group *g = &w->v[i].g;
    if (!g->runs || (g->end_us && g->end_us <= w->now + after))
        return;
    if (rank >= 0 && !g->end_us)
        g->end_rank = rank;
    else if (!g->end_us)
        g->end_rank = -1;
    g->end_code = code;
    g->end_sig = sig;
    g->end_echo = is_echo;
    g->end_us = w->now + after;
}

static inline bool is_alive(const struct world *w, const struct vrun *r, int k)
{
    const struct vnode *v = &w->v[r->node[k]];
    return r->life[k] && v->is_up && v->life == r->life[k] && v->g.runs &&
           run_of((struct world *)(uintptr_t)w, v->g.generation) == r;
}

static inline void fail_run(struct world *w, struct vrun *r, int64_t within)
{
    r->is_over = true;
    for (int k = 0; k < r->n_nodes; k++)
        if (is_alive(w, r, k))
            end_group(w, r->node[k], between(w, 10 * MS, within), k, 75, 0, true);
}

static inline void commit(struct world *w, int64_t generation, struct vrun *r)
{
    const struct commit *last = w->n_commits ? &w->commits[w->n_commits - 1] : NULL;
    if (last && generation < last->generation)
        broken(w, "a commit of an old generation after a newer one", generation, last->generation);
    if ((last ? last->step : 0) != r->saved)
        broken(w, "a commit upon another one than the newest: lost or forked", last ? last->step : 0, r->saved);
    if (w->n_commits < (int)TR_COUNT_OF(w->commits))
        w->commits[w->n_commits++] = (struct commit){ generation, r->step };
    r->saved = r->step;
    w->disk.progress.checkpoint = r->step;
}

/* mkdir of the temp directory, then a look at the claims; the rename comes later and needs the directory. */
static inline bool begin_commit(struct world *w, int64_t generation, struct vrun *r)
{
    r->has_tmp = true;
    if (w->plant != PLANT_NO_FENCE && w->disk.generation > generation)
        return false;
    r->commit_us =
        w->now + (w->now < w->calm_us && chance(w, 30000) ? between(w, SEC, 25 * SEC) : between(w, 20 * MS, 300 * MS));
    return true;
}

static inline void boot(struct world *w, struct vrun *r)
{
    r->has_booted = true;
    if (w->plant != PLANT_NO_SWEEP && w->plant != PLANT_NO_FENCE)
        for (int g = 0; g < GENERATIONS; g++)
            if (&w->runs[g] != r)
                w->runs[g].has_tmp = false;
    r->base = r->saved = r->step = w->n_commits ? w->commits[w->n_commits - 1].step : 0;
    r->next_us = w->now + 100 * MS;
}

/* One generation's training goes on, stalls or falls apart. Sleep of an agent does not stop its ranks. */
static inline void train(struct world *w, int64_t generation)
{
    struct vrun *r = run_of(w, generation);
    bool all = r->n_spawned == r->n_nodes, is_linked = true, is_soft = false;
    if (!r->n_nodes || r->is_over)
        return;
    for (int k = 0; k < r->n_nodes; k++) {
        if (r->life[k] && !is_alive(w, r, k)) {
            fail_run(w, r, chance(w, 200000) ? 5 * SEC : 300 * MS);
            return;
        }
        is_soft = is_soft || (is_alive(w, r, k) && w->v[r->node[k]].g.is_soft);
        for (int j = 0; all && j < r->n_nodes; j++)
            is_linked = is_linked && !is_cut(w, r->node[k], r->node[j]);
    }
    if (!all || !is_linked) {
        if (!r->stall_us)
            r->stall_us = w->now;
        if (w->now - r->stall_us > (all ? 5 : 10) * SEC)
            fail_run(w, r, SEC);
        return;
    }
    r->stall_us = 0;
    if (!r->has_booted && w->now >= r->boot_us)
        boot(w, r);
    if (!r->has_booted || w->now < r->next_us)
        return;
    if (r->commit_us) {
        if (w->now < r->commit_us)
            return;
        r->commit_us = 0;
        if (!r->has_tmp) { /* swept: this generation is over, and knows it now */
            fail_run(w, r, 300 * MS);
            return;
        }
        r->has_tmp = false;
        commit(w, generation, r);
        if (r->step == TOTAL_STEPS || r->is_final) {
            r->is_over = true;
            for (int k = 0; k < r->n_nodes; k++)
                end_group(w, r->node[k], between(w, 10 * MS, 200 * MS), -1, 0, 0, false);
        }
        return;
    }
    if (r->step == TOTAL_STEPS && r->saved == r->step) { /* resumed from the end */
        r->is_over = true;
        for (int k = 0; k < r->n_nodes; k++)
            end_group(w, r->node[k], between(w, 10 * MS, 200 * MS), -1, 0, 0, false);
        return;
    }
    if (r->step < TOTAL_STEPS)
        r->step++;
    w->disk.progress.step = r->step;
    r->next_us = w->now + 100 * MS;
    r->is_final = is_soft;
    if ((r->step % SAVE_EVERY == 0 || is_soft || r->step == TOTAL_STEPS) && !begin_commit(w, generation, r))
        fail_run(w, r, 300 * MS);
}

#endif
