/* agent_lead.c - the coordinator of a generation: gathers nodes, starts their ranks, ends them together, and decides
 * what follows.
 *
 * Gather -> run -> drain -> pause -> claim the next number -> gather. A generation ends as a whole: at the first
 * failure, at the loss of a node, or after a save because a node has joined. Invariants: START is sent once per claimed
 * number; the next number is claimed only when no rank of the last generation runs on a node that is connected. Ranks
 * on other nodes are fenced by their number.
 */
#include "launch/agent.h"
#include <stdio.h>
#include <string.h>

void tr_lead_begin(struct agent *a, int64_t now_us, int64_t generation)
{
    bool is_new = a->role != ROLE_LEAD;
    a->role = ROLE_LEAD;
    a->phase = LEAD_GATHER;
    a->generation = generation;
    a->since_us = now_us;
    if (is_new)
        tr_agent_report(a, "this node coordinates, generation %" PRId64, generation);
    if (is_new)
        a->n_last = 0;
    struct member *me = &a->members[0];
    *me = (struct member){ .link = -1, .is_used = true, .is_joined = true };
    me->join = (struct msg){ .id = a->o.id, .order = a->o.order, .n_local = a->o.n_local };
    memcpy(me->join.text, a->o.name, sizeof me->join.text);
}

static struct member *member_of(struct agent *a, int link)
{
    for (int i = 1; i < NODES_MAX; i++)
        if (a->members[i].is_used && a->members[i].link == link)
            return &a->members[i];
    return NULL;
}

static int count(const struct agent *a, bool only_roster)
{
    int n = 0;
    for (int i = 0; i < NODES_MAX; i++)
        n += a->members[i].is_used && (only_roster ? a->members[i].is_in_roster : a->members[i].is_joined);
    return n;
}

static void drop(struct agent *a, struct member *m)
{
    if (m->link >= 0)
        tr_agent_act(a, ACT_CLOSE, m->link);
    *m = (struct member){ .link = -1 };
}

static void finish(struct agent *a, int code)
{
    tr_agent_act(a, ACT_OVER, -1)->msg.code = code;
    for (int i = 1; i < NODES_MAX; i++)
        if (a->members[i].is_used && a->members[i].link >= 0)
            tr_agent_send(a, a->members[i].link, MSG_BYE, &(struct msg){ .code = code });
    tr_agent_over(a, code);
}

static bool is_before(const struct member *x, const struct member *y)
{
    return x->join.order != y->join.order ? x->join.order < y->join.order : x->join.id < y->join.id;
}

/* Orders the nodes of the next generation as their ranks will be; at most n_max. */
static int make_roster(struct agent *a, struct member *roster[NODES_MAX])
{
    int n = 0;
    for (int i = 0; i < NODES_MAX; i++) {
        struct member *m = &a->members[i];
        m->is_in_roster = m->has_ended = false;
        m->end_order = 0;
        if (!m->is_used || !m->is_joined)
            continue;
        int at = n++;
        for (; at > 0 && is_before(m, roster[at - 1]); at--)
            roster[at] = roster[at - 1];
        roster[at] = m;
    }
    while (n > a->o.n_max) { /* the last ones wait for a later generation, but never the coordinator */
        n--;
        if (roster[n] == &a->members[0])
            roster[n - 1] = roster[n];
    }
    return n;
}

static void start(struct agent *a, int64_t now_us)
{
    struct member *roster[NODES_MAX];
    struct msg m = { .kind = MSG_START, .generation = a->generation, .n_nodes = make_roster(a, roster) };
    for (int i = 0; i < m.n_nodes; i++) {
        m.sizes[i] = (uint16_t)roster[i]->join.n_local;
        m.n_rank += roster[i]->join.n_local;
    }
    a->n_last = m.n_nodes;
    a->n_ended = 0;
    a->is_budgeted = true;
    a->phase = LEAD_RUN;
    a->since_us = now_us;
    tr_agent_report(a, "generation %" PRId64 ": %d nodes, %d ranks", a->generation, m.n_nodes, m.n_rank);
    for (int i = 0; i < m.n_nodes; i++, m.first_rank += m.sizes[m.index]) {
        m.index = i;
        roster[i]->is_in_roster = true;
        if (roster[i] == &a->members[0])
            tr_agent_spawn(a, &m);
        else
            tr_agent_send(a, roster[i]->link, MSG_START, &m);
    }
}

static void gather(struct agent *a, int64_t now_us)
{
    int n = count(a, false);
    int64_t waited_us = now_us - a->since_us;
    if (a->group_runs)
        return;
    if (a->is_leaving)
        tr_agent_over(a, TR_EXIT_RETRY);
    else if (n >= a->o.n_max || (n >= a->o.n_min && ((a->n_last && n >= a->n_last) || waited_us >= AGENT_SETTLE_US)))
        start(a, now_us);
    else if (waited_us >= a->o.join_us) {
        tr_agent_report(a,
                        "%d nodes after %.0f s, but at least %d are needed; start the others, or lower MIN of --nnodes",
                        n, (double)a->o.join_us * 1e-6, a->o.n_min);
        finish(a, TR_EXIT_RETRY);
    }
}

/* Ends the running generation. is_soft: the ranks may save. */
static void drain(struct agent *a, int64_t now_us, bool is_soft)
{
    struct msg stop = { .generation = a->generation, .is_soft = is_soft };
    if (a->phase != LEAD_RUN)
        return;
    a->phase = LEAD_DRAIN;
    a->since_us = now_us;
    a->drain_until_us = now_us + (is_soft ? AGENT_SAVE_US : AGENT_DRAIN_US);
    for (int i = 1; i < NODES_MAX; i++)
        if (a->members[i].is_in_roster && !a->members[i].has_ended)
            tr_agent_send(a, a->members[i].link, MSG_STOP, &stop);
    tr_agent_stop_group(a, is_soft);
}

/* A node was asked to leave, and its ranks save and stop. Ranks of other nodes that have not met them yet would wait
 * for them: they stop too. No rank has failed, so this uses no restart. */
void tr_lead_leave(struct agent *a, int64_t now_us)
{
    if (a->phase != LEAD_RUN)
        return;
    a->is_budgeted = false;
    drain(a, now_us, true);
}

/* The node whose rank failed first; those that only followed another failure come last. */
static const struct member *root_cause(const struct agent *a)
{
    const struct member *best = NULL;
    for (int i = 0; i < NODES_MAX; i++) {
        const struct member *m = &a->members[i];
        if (!m->is_in_roster || !m->end_order || m->end.rank < 0)
            continue;
        if (!best || best->end.is_soft > m->end.is_soft ||
            (best->end.is_soft == m->end.is_soft && m->end_order < best->end_order))
            best = m;
    }
    return best;
}

static int exit_code_of(const struct msg *end)
{
    bool is_known =
        end->sig == 0 && (end->code == TR_EXIT_NO || end->code == TR_EXIT_USAGE || end->code == TR_EXIT_RETRY ||
                          end->code == TR_EXIT_STOP || end->code == TR_EXIT_UNSAVED);
    return is_known ? end->code : TR_EXIT_BUG;
}

/* All ranks on connected nodes have ended: decides what follows. */
static void judge(struct agent *a, int64_t now_us)
{
    const struct member *root = root_cause(a);
    struct verdict v = { .restart = true, .wait_us = AGENT_BEAT_US };
    if (a->is_leaving) {
        tr_agent_over(a, TR_EXIT_RETRY);
        return;
    }
    if (root && a->is_budgeted) {
        /* A rank that the kernel killed for its memory needs the same again: its own failure. */
        v = tr_policy_judge(&a->policy, exit_code_of(&root->end), root->end.is_oom ? 0 : root->end.sig, a->o.has_output,
                            a->disk.progress);
        tr_agent_report(a, "rank %d (%.40s) %.130s%s", root->end.rank, root->join.text, root->end.text,
                        v.is_crash_loop ? "; no progress over the last restarts: do not requeue the job" : "");
    }
    if (!v.restart) {
        finish(a, v.exit_code);
        return;
    }
    if (root && a->is_budgeted)
        tr_agent_report(a, "restart %d of at most %d; step %" PRId64 ", checkpoint %" PRId64, a->policy.n_restarts,
                        a->policy.max_restarts, tr_max64(a->disk.progress.step, 0),
                        tr_max64(a->disk.progress.checkpoint, 0));
    a->phase = LEAD_PAUSE;
    a->pause_until_us = now_us + v.wait_us;
}

static void check_ends(struct agent *a, int64_t now_us)
{
    bool all_ended = true, all_well = true;
    for (int i = 0; i < NODES_MAX; i++) {
        const struct member *m = &a->members[i];
        if (!m->is_in_roster)
            continue;
        all_ended = all_ended && m->has_ended;
        all_well = all_well && m->has_ended && m->end.rank < 0 && m->end.code == 0;
    }
    if (a->phase == LEAD_RUN && all_ended && all_well)
        finish(a, 0);
    else if ((a->phase == LEAD_DRAIN || a->phase == LEAD_RUN) && all_ended)
        judge(a, now_us);
}

static void take_end(struct agent *a, int64_t now_us, struct member *m, const struct msg *report)
{
    if (!m->is_in_roster || report->generation != a->generation || m->has_ended)
        return;
    if (!m->end_order || m->end.rank < 0 || (m->end.is_soft && !report->is_soft && report->rank >= 0)) {
        m->end = *report;
        m->end_order = ++a->n_ended;
    }
    m->has_ended = report->kind == MSG_ENDED;
    if (report->rank >= 0)
        drain(a, now_us, false);
    else if (m->has_ended && report->code != 0)
        tr_lead_leave(a, now_us);
    check_ends(a, now_us);
}

void tr_lead_own(struct agent *a, int64_t now_us, const struct msg *m)
{
    take_end(a, now_us, &a->members[0], m);
}

/* Refuses a node, which will not try again. */
static void refuse(struct agent *a, int link, int code, const char *why)
{
    struct msg m = { .code = code };
    (void)snprintf(m.text, sizeof m.text, "%s", why);
    tr_agent_send(a, link, MSG_BYE, &m);
    tr_agent_act(a, ACT_CLOSE, link);
}

static void join(struct agent *a, int64_t now_us, int link, const struct msg *m)
{
    struct member *free_one = NULL;
    if (memcmp(m->digest, a->o.digest, sizeof m->digest) != 0) {
        refuse(a, link, TR_EXIT_USAGE,
               "this node has another command line or build than the coordinator; start all nodes the same way");
        return;
    }
    for (int i = NODES_MAX - 1; i > 0; i--) {
        struct member *x = &a->members[i];
        if (!x->is_used)
            free_one = x;
        else if (x->join.id == m->id && x->link != link) { /* it connects again before we saw that it was lost */
            bool was_in = x->is_in_roster && a->phase == LEAD_RUN;
            drop(a, x);
            free_one = x;
            a->is_budgeted = a->is_budgeted && !was_in;
            if (was_in)
                drain(a, now_us, false);
        } else if (x->join.order == m->order && a->o.n_min == a->o.n_max && x->link != link) {
            refuse(a, link, TR_EXIT_USAGE, "another live node has the same --node-rank; give each node its own");
            return;
        }
    }
    if (!free_one || m->n_local < 1 || m->n_local > TR_LAUNCH_RANKS_MAX) {
        tr_agent_act(a, ACT_CLOSE, link);
        return;
    }
    *free_one = (struct member){ .link = link, .is_used = true, .is_joined = true, .join = *m, .last_us = now_us };
    free_one->join.text[TEXT_BYTES - 1] = 0;
    tr_agent_send(a, link, MSG_BEAT, NULL);
}

void tr_lead_message(struct agent *a, int64_t now_us, int link, const struct msg *m)
{
    struct member *from = member_of(a, link);
    if (m->kind == MSG_JOIN && !from) {
        join(a, now_us, link, m);
        return;
    }
    if (!from) { /* it sends before it has joined */
        tr_agent_act(a, ACT_CLOSE, link);
        return;
    }
    from->last_us = now_us;
    if (m->kind == MSG_FAILED || m->kind == MSG_ENDED)
        take_end(a, now_us, from, m);
}

static void lose(struct agent *a, int64_t now_us, struct member *m)
{
    bool was_in = m->is_in_roster && !m->has_ended && (a->phase == LEAD_RUN || a->phase == LEAD_DRAIN);
    if (was_in)
        tr_agent_report(a, "node %.60s is lost: its connection is down", m->join.text);
    *m = (struct member){ .link = -1 };
    if (!was_in)
        return;
    const struct member *root = root_cause(a);
    if (!root || root->end.is_soft)
        a->is_budgeted = false; /* failures that follow from the loss use no restart */
    drain(a, now_us, false);
    check_ends(a, now_us);
}

void tr_lead_link_down(struct agent *a, int64_t now_us, int link)
{
    struct member *m = member_of(a, link);
    if (m)
        lose(a, now_us, m);
}

static void beat(struct agent *a, int64_t now_us)
{
    bool can_work = a->phase != LEAD_GATHER || count(a, false) >= a->o.n_min || now_us - a->since_us < AGENT_RESIGN_US;
    if (can_work && !a->is_leaving)
        tr_agent_act(a, ACT_BEAT, -1);
    for (int i = 1; i < NODES_MAX; i++)
        if (a->members[i].is_used)
            tr_agent_send(a, a->members[i].link, MSG_BEAT, NULL);
}

static void look_at_links(struct agent *a, int64_t now_us)
{
    for (int i = 1; i < NODES_MAX && a->role == ROLE_LEAD; i++) {
        struct member *m = &a->members[i];
        bool is_late = a->phase == LEAD_DRAIN && m->is_in_roster && !m->has_ended && now_us >= a->drain_until_us;
        if (!m->is_used || (now_us - m->last_us < AGENT_LOST_US && !is_late))
            continue;
        tr_agent_act(a, ACT_CLOSE, m->link);
        lose(a, now_us, m);
    }
}

void tr_lead_tick(struct agent *a, int64_t now_us)
{
    if (a->next_beat_us == now_us + AGENT_BEAT_US) /* set in this very tick */
        beat(a, now_us);
    look_at_links(a, now_us);
    if (a->role != ROLE_LEAD)
        return;
    int n_roster = count(a, true), n = count(a, false);
    if (a->phase == LEAD_GATHER) {
        gather(a, now_us);
    } else if (a->phase == LEAD_DRAIN) { /* the last node that was missing may have joined again as a new member */
        check_ends(a, now_us);
    } else if (a->phase == LEAD_RUN && n > n_roster && n_roster < a->o.n_max &&
               now_us - a->since_us >= AGENT_ADMIT_US) {
        tr_agent_report(a, "a node has joined: the ranks save, then all nodes go on together");
        a->is_budgeted = false;
        drain(a, now_us, true);
    } else if (a->phase == LEAD_PAUSE && now_us >= a->pause_until_us) {
        a->phase = LEAD_CLAIM;
        tr_agent_claim(a);
    }
}
