/* agent.h - private to launch: the pure part of an agent. No function here reads a clock, a socket, a file or a
 * process.
 *
 * Its caller feeds an agent with events (messages, links, claims on disk, its group of ranks, time). The agent leaves
 * orders in acts[], which the caller carries out: agent_run.c with sockets and processes, the simulator (T7) with
 * seeds. Design: docs/adr/0004-launch-and-generations.md.
 */
#ifndef TR_LAUNCH_AGENT_H
#define TR_LAUNCH_AGENT_H

#include "launch/launch.h"

/* How far a run has come: its newest checkpoint and the last step in its log; -1: none. */
struct progress {
    int64_t checkpoint, step;
};

struct policy {
    int max_restarts, n_restarts;
    int n_stuck, n_own; /* restarts since the last progress, and those of them whose cause was in the job itself */
    struct progress reached;
};

struct verdict {
    bool restart; /* restart after wait_us; else the job ends with exit_code */
    bool is_crash_loop;
    int64_t wait_us;
    int exit_code;
};

void tr_policy_init(struct policy *p, int max_restarts, struct progress now);

/* A generation has failed, with this exit code and signal of its root cause. */
struct verdict tr_policy_judge(struct policy *p, int exit_code, int sig, bool has_output, struct progress now);

enum { NODES_MAX = TR_LAUNCH_NODES_MAX, ADDR_BYTES = 64, TEXT_BYTES = 256, DIGEST_BYTES = 32, ACTS_MAX = 512 };

/* Times of the protocol, by the monotonic clock. */
enum {
    AGENT_BEAT_US = 250 * 1000,        /* between two beats, on every link and on disk */
    AGENT_LOST_US = 4 * 1000 * 1000,   /* a link without a message for this long is down */
    AGENT_LEASE_US = 3 * 1000 * 1000,  /* a coordinator whose beat on disk has not changed for this long is gone */
    AGENT_STAGGER_US = 1000 * 1000,    /* between successors */
    AGENT_SETTLE_US = 3 * 1000 * 1000, /* how long a coordinator with fewer nodes than MAX waits for the rest */
    AGENT_RESIGN_US =
        6 * 1000 * 1000, /* after this, a coordinator that cannot start stops its beat, so that another node can try */
    AGENT_ADMIT_US = 10 * 1000 * 1000, /* shortest run of a generation before new nodes end it */
    AGENT_DRAIN_US = 15 * 1000 * 1000, /* a node whose ranks do not end in time is dropped */
    AGENT_SAVE_US = 300 * 1000 * 1000, /* the same, where the ranks may save first */
};

enum msg_kind { MSG_JOIN = 1, MSG_BEAT, MSG_START, MSG_STOP, MSG_FAILED, MSG_ENDED, MSG_BYE, MSG_KINDS };

struct msg {
    int32_t kind;
    int32_t order, n_local;                     /* JOIN */
    int32_t index, n_nodes, first_rank, n_rank; /* START */
    int32_t rank, code, sig;                    /* FAILED, ENDED: rank -1 = none; BYE: code */
    int32_t is_soft; /* STOP: save first. FAILED, ENDED: the rank only followed the failure of another */
    int32_t is_oom;  /* FAILED, ENDED: the kernel killed it because memory ran out */
    int64_t generation;
    uint64_t id;               /* of the sender */
    uint16_t sizes[NODES_MAX]; /* START: ranks of each node */
    unsigned char digest[DIGEST_BYTES];
    char addr[ADDR_BYTES]; /* JOIN: where the node listens */
    char text[TEXT_BYTES]; /* JOIN: its host name. BYE: the reason. FAILED, ENDED: how the rank ended */
};

enum act_kind {
    ACT_SEND,    /* msg on link */
    ACT_CONNECT, /* to addr; result: tr_agent_link_up, or tr_agent_link_down with link -1 */
    ACT_CLOSE,   /* link */
    ACT_CLAIM,   /* generation of msg; result: tr_agent_claimed */
    ACT_BEAT,    /* on disk */
    ACT_READ,    /* the disk; result: tr_agent_disk */
    ACT_OVER,    /* write to disk that the job has ended, with the code of msg */
    ACT_SPAWN,   /* the ranks of msg, a START */
    ACT_STOP,    /* the ranks; msg.is_soft: they may save */
    ACT_REPORT,  /* print the text of msg */
};

struct act {
    enum act_kind kind;
    int link;
    struct msg msg;
};

/* The state on disk: the newest claim, and the beat of the coordinator that made it. */
struct disk_view {
    int64_t generation; /* 0: no claim */
    uint64_t leader;
    uint64_t job;
    char addr[ADDR_BYTES];
    int64_t beat;
    int64_t over_generation; /* the last generation of a job that has ended; 0: none */
    int over_code;
    struct progress progress;
};

struct agent_options {
    uint64_t id, job;
    int n_min, n_max, n_local;
    int order;     /* of this node among all, for ranks and succession */
    bool has_disk; /* else only the node of order 0 coordinates */
    bool has_output;
    int max_restarts;
    int64_t join_us;   /* how long to wait for n_min nodes */
    int64_t over_seen; /* over_generation when this agent started: an end that is not this job's */
    unsigned char digest[DIGEST_BYTES];
    char addr[ADDR_BYTES], rdzv[ADDR_BYTES], name[TEXT_BYTES];
};

struct member {
    int link; /* -1: free, or this agent itself (member 0) */
    bool is_used, is_joined, is_in_roster, has_ended;
    struct msg join, end;
    int end_order;
    int64_t last_us;
};

enum agent_role { ROLE_SEEK, ROLE_FOLLOW, ROLE_LEAD, ROLE_OVER };
enum lead_phase { LEAD_GATHER, LEAD_RUN, LEAD_DRAIN, LEAD_PAUSE, LEAD_CLAIM };

struct agent {
    struct agent_options o;
    enum agent_role role;
    enum lead_phase phase;
    struct disk_view disk;
    int64_t generation;   /* the newest that this agent knows of */
    int64_t since_us;     /* when role and phase began */
    int64_t beat_seen_us; /* when the beat on disk last changed */
    int64_t led_us;       /* when a coordinator last sent a message to this agent */
    int64_t next_beat_us, retry_us, pause_until_us, first_read_us, drain_until_us;
    bool has_read, is_claiming, is_connecting, is_leaving;

    int up; /* follower: link to the coordinator; -1: none */
    int64_t up_last_us;
    int index; /* in the last roster; -1: never in one */

    bool group_runs, group_stops;
    int64_t group_generation;

    struct member members[NODES_MAX]; /* coordinator: 0 is itself */
    int n_last, n_ended;
    bool is_budgeted; /* the generation ended by a failure of a rank, not by a change of members: it uses a restart */
    struct policy policy;

    struct act acts[ACTS_MAX];
    int n_acts;
    int exit_code;
};

void tr_agent_init(struct agent *a, const struct agent_options *o, int64_t now_us);
void tr_agent_tick(struct agent *a, int64_t now_us);
void tr_agent_disk(struct agent *a, int64_t now_us, const struct disk_view *v);
void tr_agent_claimed(struct agent *a, int64_t now_us, int64_t generation, bool won);
void tr_agent_link_up(struct agent *a, int64_t now_us, int link); /* to the coordinator */
void tr_agent_link_down(struct agent *a, int64_t now_us, int link);
void tr_agent_message(struct agent *a, int64_t now_us, int link, const struct msg *m);
/* How the ranks of a node ended: the rank to blame, and how it ended, in words too. */
struct group_end {
    int rank; /* -1: none is to blame */
    int code, sig;
    bool is_echo, is_oom;
    const char *how;
};
void tr_agent_failed(struct agent *a, int64_t now_us, const struct group_end *e);
void tr_agent_ended(struct agent *a, int64_t now_us, const struct group_end *e);
void tr_agent_leave(struct agent *a, int64_t now_us); /* this node has received a request to stop */

/* agent_lead.c */
void tr_lead_begin(struct agent *a, int64_t now_us, int64_t generation);
void tr_lead_tick(struct agent *a, int64_t now_us);
void tr_lead_message(struct agent *a, int64_t now_us, int link, const struct msg *m);
void tr_lead_leave(struct agent *a, int64_t now_us);
void tr_lead_link_down(struct agent *a, int64_t now_us, int link);
void tr_lead_own(struct agent *a, int64_t now_us, const struct msg *m); /* reports of this node's own ranks */

/* agent.c, for agent_lead.c */
struct act *tr_agent_act(struct agent *a, enum act_kind kind, int link);
void tr_agent_send(struct agent *a, int link, enum msg_kind kind, const struct msg *m);
void tr_agent_report(struct agent *a, const char *fmt, ...) TR_PRINTF(2, 3);
void tr_agent_stop_group(struct agent *a, bool is_soft);
void tr_agent_spawn(struct agent *a, const struct msg *start);
void tr_agent_over(struct agent *a, int code);
void tr_agent_claim(struct agent *a);

#endif
