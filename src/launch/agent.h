/* agent.h - private to launch: the pure part of an agent. Nothing here reads a clock, a socket, a file or a process. */
#ifndef TR_LAUNCH_AGENT_H
#define TR_LAUNCH_AGENT_H

#include "launch/launch.h"

/* How far a run came: its newest checkpoint and the last step in its log; -1: none. */
struct progress {
    int64_t checkpoint, step;
};

struct policy {
    int max_restarts, n_restarts;
    int n_stuck; /* restarts since anything moved */
    struct progress reached;
};

struct verdict {
    bool restart; /* after wait_us; else the job ends with exit_code */
    bool is_crash_loop;
    int64_t wait_us;
    int exit_code;
};

void tr_policy_init(struct policy *p, int max_restarts, struct progress now);

/* A generation failed, with this exit code and signal of its root cause. */
struct verdict tr_policy_judge(struct policy *p, int exit_code, int sig, bool has_output, struct progress now);

#endif
