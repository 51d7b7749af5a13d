/* agent_sim.h - T7: faults, and one run from a seed to its verdict. */
#ifndef TR_TESTS_AGENT_SIM_H
#define TR_TESTS_AGENT_SIM_H

#include "launch/agent_sim_nodes.h"

/* ---- faults ---- */

static inline void crash(struct world *w, int i, bool is_power)
{
    struct vnode *v = &w->v[i];
    v->is_up = false;
    v->g.runs = false;
    v->back_us = w->now + between(w, 100 * MS, tr_max64(200 * MS, w->calm_us - w->now));
    for (int l = 0; l < LINKS; l++) {
        struct wire *x = &w->w[l];
        if (!x->is_open || is_power)
            continue;
        if (x->from == i && x->from_life == v->life)
            x->fin[0] = true, x->n[0] = 0;
        if (x->to == i && x->to_life == v->life)
            x->fin[1] = true, x->n[1] = 0;
    }
}

static inline void hurt(struct world *w)
{
    int i = (int)between(w, 0, w->n - 1), j = (int)between(w, 0, w->n - 1);
    struct vnode *v = &w->v[i];
    w->n_faults++;
    switch (between(w, 0, 6)) {
    case 0:
    case 1:
        if (v->is_up && v->g.runs)
            end_group(w, i, 10 * MS, v->g.index, 0, 9, false);
        break;
    case 2:
        if (v->is_up && v->a.role != ROLE_OVER)
            crash(w, i, chance(w, 500000));
        break;
    case 3: /* the agent is stopped; its ranks are not */
        v->sleeps_until = w->now + between(w, 100 * MS, 20 * SEC);
        break;
    case 4: /* a cut, one way or both */
        w->cut_until[i][j] = w->now + between(w, 200 * MS, 15 * SEC);
        if (chance(w, 500000))
            w->cut_until[j][i] = w->cut_until[i][j];
        break;
    case 5: /* a node is alone */
        for (int k = 0; k < w->n; k++)
            w->cut_until[i][k] = w->cut_until[k][i] = w->now + between(w, SEC, 15 * SEC);
        break;
    default: /* the network falls into two halves */
        for (int a = 0; a < w->n; a++)
            for (int b = 0; b < w->n; b++)
                if ((a < w->n / 2) != (b < w->n / 2))
                    w->cut_until[a][b] = w->now + between(w, SEC, 10 * SEC);
        break;
    }
    w->cut_until[i][i] = 0;
}

static inline void calm_down(struct world *w)
{
    memset(w->cut_until, 0, sizeof w->cut_until);
    for (int i = 0; i < w->n; i++)
        w->v[i].sleeps_until = 0;
}

/* Closed on both sides, or between lives that are over. */
static inline void sweep_links(struct world *w)
{
    for (int l = 0; l < w->n_links; l++) {
        struct wire *x = &w->w[l];
        bool from_lives = w->v[x->from].is_up && w->v[x->from].life == x->from_life;
        bool to_lives = w->v[x->to].is_up && w->v[x->to].life == x->to_life;
        if (x->is_open && ((x->fin[0] && x->fin[1]) || (!from_lives && !to_lives)))
            x->is_open = false;
    }
    while (w->n_links > 0 && !w->w[w->n_links - 1].is_open)
        w->n_links--;
}

/* false: w->failed says why. */
static inline bool simulate(struct world *w, uint64_t seed, enum plant plant, bool is_loud)
{
    memset(w, 0, offsetof(struct world, w));
    for (int l = 0; l < LINKS; l++)
        w->w[l].is_open = false;
    w->seed = seed;
    w->rng = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    w->plant = plant;
    w->is_loud = is_loud;
    w->n = (int)between(w, 2, N_MAX);
    w->n_min = (int)between(w, 1, w->n);
    w->now = SEC;
    w->calm_us = between(w, 5, 40) * SEC;
    w->end_us = w->calm_us + 60 * SEC;
    w->disk.progress = (struct progress){ -1, -1 };
    int rate = (int)between(w, 500, 12000); /* faults a million steps of 10 ms: one in 0.8 to 20 s */
    for (int i = 0; i < w->n; i++)
        w->v[i].back_us = w->now + between(w, 0, 3 * SEC);
    bool is_calm = false, all_over = false;
    for (; w->now < w->end_us && !all_over && !w->failed[0]; w->now += STEP_US) {
        if (!is_calm && w->now >= w->calm_us) {
            is_calm = true;
            calm_down(w);
        }
        if (!is_calm && chance(w, rate))
            hurt(w);
        all_over = true;
        for (int i = 0; i < w->n; i++) {
            struct vnode *v = &w->v[i];
            if (!v->is_up && v->back_us && w->now >= v->back_us && !w->disk.over_generation)
                begin_life(w, i);
            step_node(w, i);
            all_over = all_over && !v->is_up;
        }
        for (int64_t g = tr_max64(1, w->disk.generation - 20); g <= w->disk.generation; g++)
            train(w, g);
        if (w->now % (100 * MS) == 0)
            sweep_links(w);
        all_over = all_over && w->disk.over_generation;
    }
    if (!w->failed[0] && !w->disk.over_generation)
        broken(w, "no end 60 s after the last fault", w->disk.generation, w->n_commits);
    if (!w->failed[0] && w->disk.over_code != 0)
        broken(w, "the job failed", w->disk.over_code, w->disk.generation);
    if (!w->failed[0] && !all_over)
        broken(w, "an agent outlives the job", w->disk.generation, w->n);
    if (!w->failed[0] && (w->n_commits == 0 || w->commits[w->n_commits - 1].step != TOTAL_STEPS))
        broken(w, "the last step is not on disk", w->n_commits, 0);
    for (int i = 0; is_loud && i < w->n; i++) {
        const struct agent *a = &w->v[i].a;
        printf("node %d: up %d role %d phase %d generation %" PRId64 " ranks %d of %" PRId64 "\n", i, w->v[i].is_up,
               (int)a->role, (int)a->phase, a->generation, a->group_runs, a->group_generation);
    }
    return !w->failed[0];
}

#endif
