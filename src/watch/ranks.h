/* ranks.h - part of the room header: the pages of a run's ranks (observe/phase.h) as a table. */
#ifndef TR_WATCH_RANKS_H
#define TR_WATCH_RANKS_H

#include "observe/observe.h"

enum { TR_RANKS_MAX = 1 << 16 };

struct tr_rank_row { /* of a rank: what of its page is shown */
    int pid, kind, place;
    bool is_ended, is_waiting, is_alive;
    int64_t step, since_us, n_slow;
    double busy_us; /* of a step, without waits */
    uint64_t n_collectives;
    char host[64], site[TR_PHASE_SITE];
};

struct tr_ranks {
    struct tr_rank_row *row;
    double *sorted; /* room to find the median */
    int n, holder;  /* the rank that holds up the others; -1: none */
    double median_us;
    bool is_here; /* all ranks run on this host */
    int64_t generation;
};
/* The number of ranks is what the page of rank 0 says. TR_USAGE: there is no such page. */
enum tr_status tr_ranks_open(const char *run, struct tr_ranks *out);
void tr_ranks_release(struct tr_ranks *w);
/* Reads all pages again, one at a time: a rank costs a row of the table and not a page. */
void tr_ranks_read(const char *run, struct tr_ranks *w);

double tr_rank_seconds(const struct tr_ranks *w, int r);    /* in its action; -1: not known (dead, or another host) */
const char *tr_rank_state(const struct tr_ranks *w, int r); /* "runs", "waits", "stopped", "dead", "done", "failed" */
double tr_rank_score(const struct tr_ranks *w, int r);      /* its busy time of a step beside the median rank's */
bool tr_ranks_have_ended(const struct tr_ranks *w);

#endif
