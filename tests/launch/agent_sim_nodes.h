/* agent_sim_nodes.h - T7: the network, and nodes whose agents are those of src/launch. */
#ifndef TR_TESTS_AGENT_SIM_NODES_H
#define TR_TESTS_AGENT_SIM_NODES_H

#include "launch/agent_sim_world.h"

/* ---- network ---- */

static inline void hang_up(struct world *w, int l, int side)
{
    struct wire *x = &w->w[l];
    if (!x->is_open)
        return;
    x->fin[side] = true;
    x->n[side] = 0; /* what was not read is gone */
}

static inline void post(struct world *w, int i, int link, const struct msg *m)
{
    struct wire *x = link >= 0 ? &w->w[link] : NULL;
    if (!x || !x->is_open)
        return;
    int d = x->from == i ? 0 : 1;
    if (x->n[d] == QUEUE) { /* nobody reads: the socket is full */
        hang_up(w, link, d);
        return;
    }
    int64_t at = tr_max64(w->now + between(w, MS, chance(w, 20000) ? SEC : 40 * MS), x->last_us[d]);
    x->last_us[d] = at;
    x->q[d][x->n[d]].at_us = at;
    x->q[d][x->n[d]++].m = *m;
}

/* ---- agents ---- */

static inline void obey(struct world *w, int i)
{
    struct vnode *v = &w->v[i];
    for (int k = 0; k < v->a.n_acts; k++) {
        const struct act *x = &v->a.acts[k];
        switch (x->kind) {
        case ACT_SEND:
            post(w, i, x->link, &x->msg);
            break;
        case ACT_CLOSE:
            if (x->link >= 0 && w->w[x->link].is_open)
                hang_up(w, x->link, w->w[x->link].from == i ? 0 : 1);
            break;
        case ACT_CONNECT:
            v->connect_us = w->now + between(w, 5 * MS, 60 * MS);
            v->connect_to = x->msg.addr[0] - '0';
            break;
        case ACT_CLAIM:
            v->claim_us = w->now + between(w, MS, chance(w, 50000) ? 2 * SEC : 40 * MS);
            v->claim_generation = x->msg.generation;
            break;
        case ACT_READ:
            if (!v->read_us)
                v->read_us = w->now + between(w, MS, chance(w, 5000) ? SEC : 30 * MS);
            break;
        case ACT_BEAT:
            w->disk.beat++;
            break;
        case ACT_OVER:
            w->disk.over_generation = v->a.generation;
            w->disk.over_code = x->msg.code;
            break;
        case ACT_SPAWN:
            spawn(w, i, &x->msg);
            break;
        case ACT_STOP:
            v->g.is_soft = x->msg.is_soft;
            if (!x->msg.is_soft)
                end_group(w, i, between(w, 10 * MS, 200 * MS), -1, 75, 0, false);
            break;
        case ACT_REPORT:
            if (w->is_loud)
                printf("%7.2f node %d: %s\n", (double)w->now * 1e-6, i, x->msg.text);
            break;
        }
    }
    v->a.n_acts = 0;
}

static inline void begin_life(struct world *w, int i)
{
    struct vnode *v = &w->v[i];
    struct agent_options o = { .id = roll(w) | 1,
                               .job = 7,
                               .n_min = w->n_min,
                               .n_max = w->n,
                               .n_local = 1,
                               .order = i,
                               .has_disk = true,
                               .has_output = true,
                               .max_restarts = 100000,
                               .join_us = 3600 * SEC,
                               .over_seen = w->disk.over_generation };
    o.addr[0] = (char)('0' + i);
    o.rdzv[0] = '0';
    int life = v->life + 1;
    memset(v, 0, sizeof *v);
    v->life = life;
    v->is_up = true;
    tr_agent_init(&v->a, &o, w->now);
}

static inline void serve_disk(struct world *w, struct vnode *v)
{
    if (v->claim_us && w->now >= v->claim_us) {
        bool won = v->claim_generation == w->disk.generation + 1 || w->plant == PLANT_SHARED_CLAIM;
        v->claim_us = 0;
        if (won) {
            w->disk.generation = tr_max64(w->disk.generation, v->claim_generation);
            w->disk.leader = v->a.o.id;
            w->disk.job = v->a.o.job;
            w->disk.addr[0] = v->a.o.addr[0];
            w->disk.beat++;
            w->n_claims++;
        }
        tr_agent_claimed(&v->a, w->now, v->claim_generation, won);
    }
    if (v->read_us && w->now >= v->read_us) {
        v->read_us = 0;
        tr_agent_disk(&v->a, w->now, &w->disk);
    }
}

static inline void serve_connect(struct world *w, int i)
{
    struct vnode *v = &w->v[i];
    if (!v->connect_us || w->now < v->connect_us)
        return;
    v->connect_us = 0;
    int to = (int)v->connect_to, l = 0;
    while (l < LINKS && w->w[l].is_open)
        l++;
    if (l == LINKS)
        broken(w, "out of links", to, 0);
    if (l == LINKS || to < 0 || to >= w->n || to == i || !w->v[to].is_up || is_cut(w, i, to) || is_cut(w, to, i) ||
        w->v[to].a.role == ROLE_OVER) {
        tr_agent_link_down(&v->a, w->now, -1);
        return;
    }
    struct wire *x = &w->w[l];
    x->from = i;
    x->to = to;
    x->from_life = v->life;
    x->to_life = w->v[to].life;
    x->fin[0] = x->fin[1] = false;
    x->n[0] = x->n[1] = 0;
    x->last_us[0] = x->last_us[1] = 0;
    x->is_open = true;
    w->n_links = l >= w->n_links ? l + 1 : w->n_links;
    tr_agent_link_up(&v->a, w->now, l);
}

static inline void serve_links(struct world *w, int i)
{
    struct vnode *v = &w->v[i];
    for (int l = 0; l < w->n_links; l++) {
        struct wire *x = &w->w[l];
        if (!x->is_open)
            continue;
        int d = x->to == i && x->to_life == v->life ? 0 : x->from == i && x->from_life == v->life ? 1 : -1;
        if (d < 0 || is_cut(w, d ? x->to : x->from, i))
            continue;
        while (x->n[d] && x->q[d][0].at_us <= w->now && !x->fin[!d]) {
            struct msg m = x->q[d][0].m;
            memmove(&x->q[d][0], &x->q[d][1], (size_t)--x->n[d] * sizeof x->q[d][0]);
            tr_agent_message(&v->a, w->now, l, &m);
            obey(w, i);
        }
        if (x->fin[d] && !x->fin[!d]) {
            x->fin[!d] = true;
            tr_agent_link_down(&v->a, w->now, l);
        }
    }
}

static inline void serve_group(struct world *w, int i)
{
    struct vnode *v = &w->v[i];
    struct group *g = &v->g;
    if (!g->runs || !g->end_us || w->now < g->end_us)
        return;
    g->runs = false;
    bool is_ordered = v->a.group_stops;
    int rank = is_ordered && g->end_echo ? -1 : g->end_rank;
    struct group_end e = {
        .rank = rank, .code = g->end_code, .sig = g->end_sig, .is_echo = g->end_echo, .how = "ended"
    };
    if (rank >= 0)
        tr_agent_failed(&v->a, w->now, &e);
    tr_agent_ended(&v->a, w->now, &e);
}

static inline void step_node(struct world *w, int i)
{
    struct vnode *v = &w->v[i];
    if (!v->is_up || v->sleeps_until > w->now)
        return;
    serve_disk(w, v);
    obey(w, i);
    serve_connect(w, i);
    obey(w, i);
    serve_links(w, i);
    obey(w, i);
    serve_group(w, i);
    obey(w, i);
    if (w->now >= v->next_tick) {
        v->next_tick = w->now + 50 * MS;
        tr_agent_tick(&v->a, w->now);
        obey(w, i);
    }
    if (v->a.role == ROLE_OVER && !v->g.runs) {
        v->is_up = false;
        for (int l = 0; l < LINKS; l++) { /* what it said still arrives, then the end of it */
            struct wire *x = &w->w[l];
            if (x->is_open && ((x->from == i && x->from_life == v->life) || (x->to == i && x->to_life == v->life)))
                x->fin[x->from == i ? 0 : 1] = true;
        }
    }
}

#endif
