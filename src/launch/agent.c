/* agent.c - an agent that seeks a coordinator, follows one, or becomes one.
 *
 * The disk that all nodes share decides which node coordinates: a generation is claimed by one exclusive create, and
 * its coordinator writes a beat to disk while it can work. An agent claims the next generation only when that beat has
 * not changed for a lease plus a delay by its place in line, so that a node cut off from the others cannot take the job
 * from them, and any node can take it over. Invariant: ranks start only in a generation newer than any that this agent
 * knew. Rejected: majority votes (two nodes could not lose one), a fixed coordinator (a single point of failure).
 */
#include "launch/agent.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { RETRY_US = 300 * 1000, FIRST_BEATS = 4 };

struct act *tr_agent_act(struct agent *a, enum act_kind kind, int link)
{
    TR_BUG_ON(a->n_acts == ACTS_MAX);
    struct act *x = &a->acts[a->n_acts++];
    *x = (struct act){ .kind = kind, .link = link };
    return x;
}

void tr_agent_send(struct agent *a, int link, enum msg_kind kind, const struct msg *m)
{
    struct act *x = tr_agent_act(a, ACT_SEND, link);
    if (m)
        x->msg = *m;
    x->msg.kind = (int32_t)kind;
    x->msg.id = a->o.id;
    if (!m || kind == MSG_JOIN || kind == MSG_BEAT)
        x->msg.generation = a->generation;
}

void tr_agent_report(struct agent *a, const char *fmt, ...)
{
    va_list ap;
    struct act *x = tr_agent_act(a, ACT_REPORT, -1);
    va_start(ap, fmt);
    (void)vsnprintf(x->msg.text, sizeof x->msg.text, fmt, ap);
    va_end(ap);
}

void tr_agent_stop_group(struct agent *a, bool is_soft)
{
    if (!a->group_runs || (a->group_stops && is_soft))
        return;
    a->group_stops = true;
    tr_agent_act(a, ACT_STOP, -1)->msg.is_soft = is_soft;
}

void tr_agent_spawn(struct agent *a, const struct msg *start)
{
    TR_BUG_ON(a->group_runs || start->generation <= a->group_generation);
    a->group_runs = true;
    a->group_stops = false;
    a->group_generation = start->generation;
    a->index = start->index;
    tr_agent_act(a, ACT_SPAWN, -1)->msg = *start;
}

void tr_agent_over(struct agent *a, int code)
{
    a->role = ROLE_OVER;
    a->exit_code = code;
    tr_agent_stop_group(a, false);
}

void tr_agent_claim(struct agent *a)
{
    if (a->is_claiming)
        return;
    a->is_claiming = true;
    tr_agent_act(a, ACT_CLAIM, -1)->msg.generation = a->generation + 1;
}

void tr_agent_init(struct agent *a, const struct agent_options *o, int64_t now_us)
{
    memset(a, 0, sizeof *a);
    a->o = *o;
    a->up = a->index = -1;
    a->since_us = a->beat_seen_us = a->led_us = now_us;
    for (int i = 0; i < NODES_MAX; i++)
        a->members[i].link = -1;
    tr_policy_init(&a->policy, o->max_restarts, (struct progress){ -1, -1 });
}

/* This agent knows of no coordinator any more; its ranks end at once. */
static void seek(struct agent *a, int64_t now_us)
{
    for (int i = 0; i < NODES_MAX; i++) {
        struct member *m = &a->members[i];
        if (m->is_used && m->link >= 0)
            tr_agent_act(a, ACT_CLOSE, m->link);
        *m = (struct member){ .link = -1 };
    }
    if (a->up >= 0)
        tr_agent_act(a, ACT_CLOSE, a->up);
    a->up = -1;
    a->is_connecting = false;
    a->role = ROLE_SEEK;
    a->since_us = now_us;
    tr_agent_stop_group(a, false);
}

/* How long the beat must not have changed before this agent takes over. */
static int64_t patience(const struct agent *a)
{
    bool is_first = a->index < 0 && a->o.order == 0;
    if (is_first)
        return a->disk.generation ? (int64_t)FIRST_BEATS * AGENT_BEAT_US : 0;
    int place = a->index >= 0 ? a->index : a->o.order;
    return AGENT_LEASE_US + (int64_t)place * AGENT_STAGGER_US;
}

static void seek_tick(struct agent *a, int64_t now_us)
{
    bool is_led = a->disk.generation > 0 && a->disk.leader != a->o.id && a->disk.job == a->o.job;
    if (a->group_runs || !a->has_read)
        return;
    if (a->is_leaving || now_us - a->led_us >= a->o.join_us) {
        if (!a->is_leaving)
            tr_agent_report(
                a, "no coordinator was found within %.0f s; is node 0 up, and --output on a disk that all nodes share?",
                (double)a->o.join_us * 1e-6);
        tr_agent_over(a, TR_EXIT_RETRY);
        return;
    }
    if (a->disk.generation > 0 && a->disk.job != a->o.job && a->disk.beat && a->beat_seen_us > a->first_read_us) {
        tr_agent_report(a, "another job runs in this output directory; its coordinator is %s", a->disk.addr);
        tr_agent_over(a, TR_EXIT_USAGE);
        return;
    }
    if (now_us >= a->retry_us && !a->is_connecting && (is_led || (a->o.order != 0 && a->o.rdzv[0]))) {
        a->retry_us = now_us + RETRY_US;
        a->is_connecting = true;
        struct act *x = tr_agent_act(a, ACT_CONNECT, -1);
        memcpy(x->msg.addr, is_led ? a->disk.addr : a->o.rdzv, ADDR_BYTES);
    }
    int64_t still_us = now_us - tr_max64(a->led_us, a->beat_seen_us);
    if (a->index < 0 &&
        a->o.order == 0) /* at a first start it is enough to know that no other coordinator is at work */
        still_us = now_us - a->beat_seen_us;
    if (still_us >= patience(a) && (a->o.has_disk || a->o.order == 0))
        tr_agent_claim(a);
}

void tr_agent_tick(struct agent *a, int64_t now_us)
{
    if (a->role == ROLE_OVER)
        return;
    if (now_us >= a->next_beat_us) {
        a->next_beat_us = now_us + AGENT_BEAT_US;
        tr_agent_act(a, ACT_READ, -1);
        if (a->up >= 0)
            tr_agent_send(a, a->up, MSG_BEAT, NULL);
    }
    if (a->role == ROLE_FOLLOW && now_us - a->up_last_us >= AGENT_LOST_US) {
        tr_agent_report(a, "no message from the coordinator for %d s: this node looks for another",
                        (int)(AGENT_LOST_US / 1000000));
        seek(a, now_us);
    }
    if (a->role == ROLE_FOLLOW && a->is_leaving && !a->group_runs)
        tr_agent_over(a, TR_EXIT_RETRY);
    if (a->role == ROLE_SEEK)
        seek_tick(a, now_us);
    else if (a->role == ROLE_LEAD)
        tr_lead_tick(a, now_us);
}

void tr_agent_disk(struct agent *a, int64_t now_us, const struct disk_view *v)
{
    if (a->role == ROLE_OVER)
        return;
    if (v->beat != a->disk.beat || v->generation != a->disk.generation)
        a->beat_seen_us = now_us;
    if (!a->has_read) {
        a->first_read_us = a->beat_seen_us = now_us;
        tr_policy_init(&a->policy, a->o.max_restarts, v->progress);
    }
    a->has_read = true;
    a->disk = *v;
    if (v->over_generation > a->o.over_seen && v->job == a->o.job) {
        tr_agent_over(a, v->over_code);
        return;
    }
    if (v->generation <= a->generation)
        return;
    bool is_mine = v->leader == a->o.id && v->job == a->o.job; /* our own claim, read before its result came */
    a->generation = v->generation;
    if (a->role == ROLE_LEAD && !is_mine) { /* this node slept, or was cut off: its generation is fenced (B8) */
        tr_agent_report(a, "generation %" PRId64 " was claimed by another node; this node follows it", v->generation);
        seek(a, now_us);
    }
}

void tr_agent_claimed(struct agent *a, int64_t now_us, int64_t generation, bool won)
{
    a->is_claiming = false;
    if (a->role == ROLE_OVER || a->role == ROLE_FOLLOW)
        return;
    if (won && generation >= a->generation) {
        if (a->up >= 0)
            tr_agent_act(a, ACT_CLOSE, a->up);
        a->up = -1;
        tr_lead_begin(a, now_us, generation);
    } else if (a->role == ROLE_LEAD) {
        seek(a, now_us);
    }
}

void tr_agent_link_up(struct agent *a, int64_t now_us, int link)
{
    a->is_connecting = false;
    if (a->role != ROLE_SEEK || a->group_runs) {
        tr_agent_act(a, ACT_CLOSE, link);
        return;
    }
    struct msg m = { .order = a->o.order, .n_local = a->o.n_local };
    memcpy(m.addr, a->o.addr, sizeof m.addr);
    memcpy(m.text, a->o.name, sizeof m.text);
    memcpy(m.digest, a->o.digest, sizeof m.digest);
    a->up = link;
    a->up_last_us = now_us;
    a->role = ROLE_FOLLOW;
    a->since_us = now_us;
    tr_agent_send(a, link, MSG_JOIN, &m);
}

void tr_agent_link_down(struct agent *a, int64_t now_us, int link)
{
    if (link < 0 || (a->role == ROLE_FOLLOW && link == a->up)) {
        a->is_connecting = false;
        if (link >= 0) {
            a->up = -1;
            seek(a, now_us);
        }
    } else if (a->role == ROLE_LEAD) {
        tr_lead_link_down(a, now_us, link);
    }
}

static void follow(struct agent *a, int64_t now_us, const struct msg *m)
{
    a->up_last_us = a->led_us = now_us;
    if (m->kind == MSG_BYE) {
        if (m->text[0])
            tr_agent_report(a, "%.*s", TEXT_BYTES - 1, m->text);
        tr_agent_over(a, m->code);
    } else if (m->generation < a->generation && m->kind != MSG_BEAT) {
        tr_agent_report(a, "an order of generation %" PRId64 " arrived in generation %" PRId64 ": ignored",
                        m->generation, a->generation);
    } else if (m->kind == MSG_START && !a->group_runs && m->generation > a->group_generation && !a->is_leaving) {
        a->generation = m->generation;
        tr_agent_spawn(a, m);
    } else if (m->kind == MSG_STOP && m->generation == a->group_generation) {
        if (a->group_runs)
            tr_agent_stop_group(a, m->is_soft != 0);
    }
}

void tr_agent_message(struct agent *a, int64_t now_us, int link, const struct msg *m)
{
    if (a->role == ROLE_FOLLOW && link == a->up)
        follow(a, now_us, m);
    else if (a->role == ROLE_LEAD)
        tr_lead_message(a, now_us, link, m);
    else if (a->role != ROLE_OVER) /* this node is no coordinator: the sender must read the disk again */
        tr_agent_act(a, ACT_CLOSE, link);
}

static struct msg report_of(const struct agent *a, int kind, const struct group_end *e)
{
    struct msg m = { .kind = kind,
                     .generation = a->group_generation,
                     .rank = e->rank,
                     .code = e->code,
                     .sig = e->sig,
                     .is_soft = e->is_echo,
                     .is_oom = e->is_oom };
    snprintf(m.text, sizeof m.text, "%s", e->how);
    return m;
}

static void send_report(struct agent *a, int64_t now_us, const struct msg *m)
{
    if (a->role == ROLE_LEAD)
        tr_lead_own(a, now_us, m);
    else if (a->role == ROLE_FOLLOW)
        tr_agent_send(a, a->up, (enum msg_kind)m->kind, m);
}

void tr_agent_failed(struct agent *a, int64_t now_us, const struct group_end *e)
{
    struct msg m = report_of(a, MSG_FAILED, e);
    a->group_stops = true;
    send_report(a, now_us, &m);
}

void tr_agent_ended(struct agent *a, int64_t now_us, const struct group_end *e)
{
    struct msg m = report_of(a, MSG_ENDED, e);
    a->group_runs = a->group_stops = false;
    send_report(a, now_us, &m);
}

void tr_agent_leave(struct agent *a, int64_t now_us)
{
    bool was_leaving = a->is_leaving;
    a->is_leaving = true;
    tr_agent_stop_group(a, !was_leaving);
    if (a->role == ROLE_LEAD)
        tr_lead_leave(a, now_us);
    tr_agent_tick(a, now_us);
}
