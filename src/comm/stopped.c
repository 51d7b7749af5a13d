/* stopped.c - whether a signal has stopped a process of this host, and for how long a waiting rank has seen that. */
#include "comm/comm_impl.h"

bool tr_is_stopped(int pid)
{
    return tr_process_state(pid) == 'T'; /* not 't': a stop by a debugger is no failure */
}

bool tr_stopped_too_long(struct tr_stopped *s, int pid, int64_t now_us)
{
    int64_t passed_us = s->last_us ? tr_min64(now_us - s->last_us, TR_STOPPED_STEP_US) : 0;
    bool is_same =
        s->pid == pid && now_us - s->last_us < 10 * TR_STOPPED_STEP_US; /* else this is another wait, or another stop */
    s->last_us = now_us;
    s->pid = pid;
    if (!is_same || !tr_is_stopped(pid))
        s->us = 0;
    else
        s->us += passed_us;
    return s->us >= TR_STOPPED_US;
}
