/* agent_run.c - carries out the orders of an agent (agent.c) with sockets, files and processes.
 *
 * One thread, one poll: tr_group_run (watch.c) calls tr_nodes_pump while ranks run, tr_nodes_run while none do. It also
 * relays PMI between nodes: what ranks put before a barrier goes to the coordinator, which sends it to all nodes when
 * the barrier ends.
 */
#include "launch/agent_disk.h"
#include "launch/agent_net.h"
#include "launch/launch_impl.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { TICK_US = 50 * 1000, LAST_SEND_US = 1000 * 1000 };

struct nodes {
    struct launch_job *j;
    struct agent a;
    struct net *net;
    struct agent_disk disk;
    struct disk_view view;
    int64_t tick_us, beat;
    bool wants_spawn;
    struct msg start;
    /* PMI of this generation, at the coordinator: which nodes are in the barrier, and what was put before it. */
    bool is_in[NODES_MAX];
    struct tr_str puts;
};

static void obey(struct nodes *n);

static bool is_leader(const struct nodes *n)
{
    return n->a.role == ROLE_LEAD;
}

/* ---- PMI ---- */

static void send_puts(struct nodes *n, int link, const char *text, size_t n_text)
{
    for (size_t at = 0; at < n_text;) { /* whole lines, as many as one frame holds */
        size_t len = (size_t)tr_min64((int64_t)(n_text - at), NET_FRAME_MAX);
        if (at + len < n_text)
            while (len > 0 && text[at + len - 1] != '\n')
                len--;
        if (len == 0)
            return;
        tr_net_send(n->net, link, NET_KVS, n->a.group_generation, text + at, len);
        at += len;
    }
}

/* When all nodes are in the barrier: every node gets what all ranks have put, then the ranks go on. */
static void end_barrier(struct nodes *n)
{
    for (int i = 0; i < NODES_MAX; i++)
        if (n->a.members[i].is_in_roster && !n->is_in[i])
            return;
    for (int i = 1; i < NODES_MAX; i++)
        if (n->a.members[i].is_in_roster) {
            send_puts(n, n->a.members[i].link, n->puts.p, n->puts.n);
            tr_net_send(n->net, n->a.members[i].link, NET_RELEASE, n->a.group_generation, "", 0);
        }
    memset(n->is_in, 0, sizeof n->is_in);
    tr_str_clear(&n->puts);
    tr_pmi_release(n->j->pmi);
}

static void exchange_puts(struct launch_job *j)
{
    struct nodes *n = j->nodes;
    struct tr_str fresh = { 0 };
    if (!n || !j->pmi || !tr_pmi_is_waiting(j->pmi))
        return;
    tr_pmi_take_new(j->pmi, &fresh);
    if (is_leader(n)) {
        tr_str_add(&n->puts, fresh.p, fresh.n);
        n->is_in[0] = true;
        end_barrier(n);
    } else if (n->a.role == ROLE_FOLLOW) {
        send_puts(n, n->a.up, fresh.p, fresh.n);
        tr_net_send(n->net, n->a.up, NET_BARRIER, n->a.group_generation, "", 0);
    }
    tr_str_release(&fresh);
}

static int member_of(const struct nodes *n, int link)
{
    for (int i = 1; i < NODES_MAX; i++)
        if (n->a.members[i].is_used && n->a.members[i].link == link && n->a.members[i].is_in_roster)
            return i;
    return -1;
}

static void relay(struct nodes *n, int link, int kind, int64_t generation, const void *p, size_t n_bytes)
{
    struct pmi *pmi = n->j->pmi;
    if (!pmi || generation != n->a.group_generation ||
        !n->a.group_runs) /* a message of another generation is dropped (B17) */
        return;
    int i = is_leader(n) ? member_of(n, link) : -1;
    if (kind == NET_KVS && (i > 0 || link == n->a.up)) {
        tr_pmi_merge(pmi, p, n_bytes);
        if (i > 0)
            tr_str_add(&n->puts, p, n_bytes);
    } else if (kind == NET_BARRIER && i > 0) {
        n->is_in[i] = true;
        end_barrier(n);
    } else if (kind == NET_RELEASE && !is_leader(n) && link == n->a.up) {
        tr_pmi_release(pmi);
    }
}

/* ---- events of the network ---- */

static void on_up(void *ctx, int link)
{
    struct nodes *n = ctx;
    tr_agent_link_up(&n->a, tr_clock_us(), link);
}

static void on_down(void *ctx, int link)
{
    struct nodes *n = ctx;
    tr_agent_link_down(&n->a, tr_clock_us(), link);
}

static void on_frame(void *ctx, int link, int kind, int64_t generation, const void *p, size_t n_bytes)
{
    struct nodes *n = ctx;
    struct msg m;
    if (kind != NET_MSG) {
        relay(n, link, kind, generation, p, n_bytes);
        return;
    }
    memcpy(&m, p, sizeof m);
    m.addr[ADDR_BYTES - 1] = m.text[TEXT_BYTES - 1] = 0;
    if (m.kind <= 0 || m.kind >= MSG_KINDS || m.n_nodes < 0 || m.n_nodes > NODES_MAX || m.generation != generation)
        return;
    tr_agent_message(&n->a, tr_clock_us(), link, &m);
    obey(n);
}

static void on_refused(void *ctx, const char *peer, const char *why, int64_t n_refused)
{
    struct nodes *n = ctx;
    tr_report(n->j, "control plane: refused %s: %s (%" PRId64 " so far)", peer, why, n_refused);
}

/* ---- orders ---- */

static void claim(struct nodes *n, int64_t generation)
{
    struct disk_view v = { .generation = generation, .leader = n->a.o.id, .job = n->a.o.job };
    bool won = !n->a.o.has_disk;
    memcpy(v.addr, n->a.o.addr, sizeof v.addr);
    if (n->a.o.has_disk && tr_disk_claim(&n->disk, &v, &won) != TR_OK)
        tr_report(n->j, "%s", tr_error_text());
    tr_agent_claimed(&n->a, tr_clock_us(), generation, won);
}

static void read_disk(struct nodes *n)
{
    if (n->a.o.has_disk)
        tr_disk_read(&n->disk, &n->view);
    if (!n->a.group_runs || n->a.group_stops)
        n->view.progress = tr_progress_of(n->j->l->output);
    tr_agent_disk(&n->a, tr_clock_us(), &n->view);
}

static void carry_out(struct nodes *n, const struct act *x)
{
    switch (x->kind) {
    case ACT_SEND:
        tr_net_send(n->net, x->link, NET_MSG, x->msg.generation, &x->msg, sizeof x->msg);
        break;
    case ACT_CONNECT:
        tr_net_connect(n->net, x->msg.addr);
        break;
    case ACT_CLOSE:
        tr_net_close_link(n->net, x->link);
        break;
    case ACT_CLAIM:
        claim(n, x->msg.generation);
        break;
    case ACT_BEAT:
        if (n->a.o.has_disk)
            tr_disk_beat(&n->disk, ++n->beat);
        break;
    case ACT_READ:
        read_disk(n);
        break;
    case ACT_OVER:
        if (n->a.o.has_disk)
            tr_disk_over(&n->disk, n->a.generation, x->msg.code);
        break;
    case ACT_SPAWN:
        n->start = x->msg;
        n->wants_spawn = true;
        memset(n->is_in, 0, sizeof n->is_in);
        tr_str_clear(&n->puts);
        break;
    case ACT_STOP:
        n->j->order = x->msg.is_soft ? ORDER_SAVE : ORDER_STOP;
        break;
    case ACT_REPORT:
        tr_report(n->j, "%s", x->msg.text);
        break;
    }
}

/* Carrying out an order may add orders. */
static void obey(struct nodes *n)
{
    while (n->a.n_acts > 0) {
        struct act x = n->a.acts[0];
        memmove(n->a.acts, n->a.acts + 1, (size_t)--n->a.n_acts * sizeof x);
        carry_out(n, &x);
    }
}

int tr_nodes_fd(const struct launch_job *j)
{
    return j->nodes ? tr_net_fd(j->nodes->net) : -1;
}

int64_t tr_nodes_due_us(const struct launch_job *j)
{
    return j->nodes ? j->nodes->tick_us : 0;
}

void tr_nodes_pump(struct launch_job *j)
{
    struct nodes *n = j->nodes;
    if (!n)
        return;
    int64_t now_us = tr_clock_us();
    tr_net_serve(n->net);
    obey(n);
    if (now_us >= n->tick_us) {
        n->tick_us = now_us + TICK_US;
        if (j->n_signals > 0 && !n->a.is_leaving)
            tr_agent_leave(&n->a, now_us);
        tr_agent_tick(&n->a, now_us);
        obey(n);
    }
    exchange_puts(j);
}

/* how: memory for the words. */
static struct group_end end_of(const struct launch_job *j, char *how, size_t n_how)
{
    const struct rank *r = j->root;
    if (!r)
        return (struct group_end){ .rank = -1, .code = tr_quiet_exit_code(j), .how = "" };
    return (struct group_end){ .rank = r->rank,
                               .code = r->code,
                               .sig = r->sig,
                               .is_echo = r->sig == 0 && r->code == TR_EXIT_RETRY,
                               .is_oom = r->is_oom,
                               .how = tr_ended_how(j, r, how, n_how) };
}

void tr_nodes_failed(struct launch_job *j)
{
    if (!j->nodes)
        return;
    char how[256];
    struct group_end e = end_of(j, how, sizeof how);
    tr_agent_failed(&j->nodes->a, tr_clock_us(), &e);
    obey(j->nodes);
}

/* ---- the job ---- */

static enum tr_status run_group(struct nodes *n)
{
    struct launch_job *j = n->j;
    const struct msg *m = &n->start;
    n->wants_spawn = false;
    j->generation = (int)m->generation;
    j->first_rank = m->first_rank;
    j->n_world = m->n_rank;
    j->order = ORDER_NONE;
    if (j->pmi)
        tr_pmi_begin(j->pmi, m->first_rank, m->sizes, m->n_nodes);
    TR_PASS(tr_group_run(j));
    const struct rank *r = j->root;
    if (r)
        tr_record_root(j, r->sig == 0 ? r->code : TR_EXIT_BUG);
    char how[256];
    struct group_end e = end_of(j, how, sizeof how);
    tr_agent_ended(&n->a, tr_clock_us(), &e);
    obey(n);
    return TR_OK;
}

enum tr_status tr_nodes_run(struct launch_job *j, struct tr_launch_end *end)
{
    struct nodes *n = j->nodes;
    enum tr_status st = TR_OK;
    while (st == TR_OK && (n->a.role != ROLE_OVER || n->wants_spawn)) {
        if (n->wants_spawn) {
            st = run_group(n);
            continue;
        }
        struct pollfd p[3] = { { .fd = j->signal_fd, .events = POLLIN },
                               { .fd = tr_net_fd(n->net), .events = POLLIN },
                               { .fd = tr_probe_fd(j), .events = POLLIN } };
        int64_t wait_us = n->tick_us - tr_clock_us();
        poll(p, 3, wait_us > 0 ? (int)(wait_us / 1000 + 1) : 0);
        tr_signals_take(j, 0);
        tr_nodes_pump(j);
        tr_probe_serve(j);
    }
    tr_net_drain(n->net, LAST_SEND_US);
    end->exit_code = j->stop_sig && n->a.exit_code == TR_EXIT_RETRY ? tr_stop_exit_code(j) : n->a.exit_code;
    end->n_restarts = n->a.policy.n_restarts;
    end->rank = j->root ? j->root->rank : -1;
    return st;
}

static enum tr_status find_key(struct nodes *n, const struct tr_launch *l, unsigned char key[TR_SHA256_BYTES])
{
    if (l->key_fd >= 0)
        return tr_key_from_fd(l->key_fd, "the key's descriptor", key);
    if (l->key_file)
        return tr_key_from_file(l->key_file, key);
    if (n->a.o.has_disk)
        return tr_key_from_disk(&n->disk, key);
    return tr_fail(
        TR_USAGE,
        "several nodes without --output have no place for the key of the job; give --rdzv-key-file FILE (mode 600)");
}

/* Sets the identity of this node from its flags: where it listens, its place in line, its name. */
static enum tr_status introduce(struct nodes *n, const struct tr_launch *l, char listen[ADDR_BYTES])
{
    struct agent_options *o = &n->a.o;
    bool is_host = false;
    TR_PASS(tr_format(o->rdzv, sizeof o->rdzv, "%s", l->rdzv));
    TR_PASS(tr_net_local(l->rdzv, listen, &is_host));
    if (l->local_addr)
        TR_PASS(tr_format(listen, ADDR_BYTES, strchr(l->local_addr, ':') ? "%s" : "%s:0", l->local_addr));
    if (getrandom(&o->id, sizeof o->id, 0) != (ssize_t)sizeof o->id)
        return tr_fail(TR_IO, "no random bytes for the id of this node");
    o->order = l->node_rank >= 0 ? l->node_rank : is_host ? 0 : 1 + (int)(o->id % (NODES_MAX - 1));
    if (o->order != 0 && is_host && !l->local_addr) { /* that port belongs to node 0, even if it runs on this host */
        char *colon = strrchr(listen, ':');
        snprintf(colon, ADDR_BYTES - (size_t)(colon - listen), ":0");
    }
    snprintf(o->name, sizeof o->name, "%s", n->j->host);
    return TR_OK;
}

static void digest_of(const struct tr_launch *l, unsigned char out[TR_SHA256_BYTES])
{
    struct tr_str s = { 0 };
    tr_str_addf(&s, "%s", TR_VERSION);
    for (char *const *w = l->argv; *w; w++)
        tr_str_add(&s, *w, strlen(*w) + 1);
    tr_sha256(s.p ? s.p : "", s.n, out);
    tr_str_release(&s);
}

enum tr_status tr_nodes_open(struct launch_job *j)
{
    const struct tr_launch *l = j->l;
    char listen[ADDR_BYTES];
    unsigned char key[TR_SHA256_BYTES], hash[TR_SHA256_BYTES];
    struct nodes *n = NULL;
    TR_PASS(TR_ALLOC(n, 1, "an agent"));
    j->nodes = n;
    n->j = j;
    n->view.progress = (struct progress){ -1, -1 };
    struct agent_options *o = &n->a.o;
    *o = (struct agent_options){ .n_min = l->n_nodes_min,
                                 .n_max = l->n_nodes_max,
                                 .n_local = l->n_ranks,
                                 .has_disk = l->output != NULL,
                                 .has_output = l->output != NULL,
                                 .max_restarts = l->max_restarts,
                                 .join_us = l->join_us > 0 ? l->join_us : INT64_C(600) * 1000000 };
    if (o->has_disk) {
        TR_PASS(tr_disk_open(l->output, &n->disk));
        tr_disk_read(&n->disk, &n->view);
        o->over_seen = n->view.over_generation;
    }
    TR_PASS(find_key(n, l, key));
    TR_PASS(introduce(n, l, listen));
    digest_of(l, o->digest);
    const struct tr_bytes parts[] = { { "job", 4 }, { l->rdzv_id, strlen(l->rdzv_id) } };
    tr_hmac_sha256(key, sizeof key, parts, TR_COUNT_OF(parts), hash);
    memcpy(&o->job, hash, sizeof o->job);
    for (int i = 0; i < 16; i++) /* one name for all nodes and generations, which only nodes with the key can compute */
        snprintf(j->id + 2 * i, 3, "%02x", hash[i]);
    const struct net_events on = { n, on_up, on_down, on_frame, on_refused };
    TR_PASS(tr_net_open(listen, l->any_interface, key, &on, &n->net));
    TR_PASS(tr_format(o->addr, sizeof o->addr, "%s", tr_net_addr(n->net)));
    struct agent_options copy = *o;
    tr_agent_init(&n->a, &copy, tr_clock_us());
    n->beat = tr_clock_us();
    tr_report(j, "agent of node %d at %s", copy.order, copy.addr);
    return TR_OK;
}

void tr_nodes_close(struct launch_job *j)
{
    if (!j->nodes)
        return;
    tr_net_close(j->nodes->net);
    tr_str_release(&j->nodes->puts);
    free(j->nodes);
    j->nodes = NULL;
}
