/* agent_policy.c - what follows a failed generation: another one, after how long, or which exit code.
 *
 * Pure: the agent and the simulator (T7) run the same code. Bad input (2) and "do not requeue" (78) are never repeated.
 * A job that fails OWN_LIMIT times by itself at the same step with the same newest checkpoint would do so for ever and
 * ends with 78 (A21). Ranks that were killed from outside or lost a peer prove less about the program: they count only
 * towards STUCK_LIMIT. The wait before a restart grows only while there is no progress. Rejected: a limit of restarts
 * per hour (it does not look at progress).
 */
#include "launch/agent.h"
#include <signal.h>

enum { OWN_LIMIT = 3, STUCK_LIMIT = 10, BACK_OFF_US = 100 * 1000, BACK_OFF_MAX_US = 10 * 1000 * 1000 };

void tr_policy_init(struct policy *p, int max_restarts, struct progress now)
{
    *p = (struct policy){ .max_restarts = max_restarts, .reached = now };
}

static bool has_moved(const struct progress *from, const struct progress *to)
{
    return to->checkpoint > from->checkpoint || to->step != from->step;
}

struct verdict tr_policy_judge(struct policy *p, int exit_code, int sig, bool has_output, struct progress now)
{
    struct verdict v = { .exit_code = exit_code };
    if (exit_code == TR_EXIT_NO || exit_code == TR_EXIT_USAGE || exit_code == TR_EXIT_STOP)
        return v;
    if (has_moved(&p->reached, &now))
        p->n_stuck = p->n_own = 0;
    p->reached = now;
    bool is_outside = sig == SIGKILL || (sig == 0 && (exit_code == TR_EXIT_RETRY || exit_code == TR_EXIT_UNSAVED));
    if (has_output && (p->n_stuck >= STUCK_LIMIT || (!is_outside && p->n_own >= OWN_LIMIT))) {
        v.exit_code = TR_EXIT_STOP;
        v.is_crash_loop = true;
        return v;
    }
    if (p->n_restarts >= p->max_restarts)
        return v;
    v.restart = true;
    v.wait_us = tr_min64((int64_t)BACK_OFF_US << tr_min64(p->n_stuck, 10), BACK_OFF_MAX_US);
    p->n_stuck++;
    p->n_own += !is_outside;
    p->n_restarts++;
    return v;
}
