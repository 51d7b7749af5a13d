/* launch_impl.h - private to launch: a job, its ranks, and where their output goes. */
#ifndef TR_LAUNCH_LAUNCH_IMPL_H
#define TR_LAUNCH_LAUNCH_IMPL_H

#include "launch/agent.h"
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <time.h>

enum { TAIL_BYTES = 4096, LINE_BYTES = 4096 };

/* A terminal, pipe or file of the caller. Text waits here while its reader is slow, so that the launcher never does. */
struct sink {
    int fd;
    bool is_dead; /* the reader left: what comes is dropped */
    struct tr_str held;
};

/* rank-NNNN.log: both streams of a rank in the order they were read, over all generations. */
struct rank_log {
    int fd; /* -1: not open yet, or given up */
    bool is_lost;
    struct tr_str held; /* until the directory may be made */
};

/* The reading end of one stream of one rank. */
struct tap {
    int fd; /* -1: closed */
    bool is_err, is_prefixed;
    bool is_in_bar; /* inside a line that a terminal overwrites: no business of the log */
    char last;
    struct sink *sink; /* NULL: not shown */
    char line[LINE_BYTES];
    size_t n_line; /* of an unfinished line; prefixed streams only */
};

struct rank {
    int rank;
    pid_t pid;
    int pidfd; /* -1: not running */
    int order; /* of its end among the ranks of its generation, from 1 */
    int code, sig;
    bool is_killed; /* by us: no news */
    struct tap out, err;
    char tail[2 * TAIL_BYTES]; /* of stderr */
    size_t n_tail;
    struct rank_log log;
};

enum order { ORDER_NONE, ORDER_SAVE, ORDER_STOP };

struct job {
    const struct tr_launch *l;
    char id[33], host[64];
    int generation, n_running, n_ended;
    int first_rank, n_world; /* of this node's ranks; of all */
    struct nodes *nodes;     /* NULL: this is the only one */
    enum order order;        /* of the coordinator to the running group */
    bool is_ordered;         /* and obeyed: how ranks end is no news */
    struct rank *ranks;
    struct pollfd *polls;
    struct sink out, err;
    char log_dir[TR_PATH_MAX]; /* "" = no logs */
    bool has_log_dir;          /* it exists, or may be made */
    struct hang *hang;
    struct pmi *pmi; /* NULL: the ranks do not speak MPI */
    cpu_set_t cores;
    int n_cores; /* 0: unknown */

    int signal_fd;
    sigset_t old_mask;
    struct sigaction old_pipe;
    int n_signals, stop_sig; /* that came to the launcher; what was passed on */

    /* One generation. Times are 0 until set. */
    const struct rank *root; /* NULL: nothing failed */
    bool is_early;           /* root ended with 0 before the others */
    int64_t settle_us;       /* until when a better root cause may turn up */
    int64_t early_us;        /* when exit 0 of some becomes a failure */
    int64_t kill_us, give_up_us;
    int64_t blamed_us; /* when the root cause was known */
};

/* logs.c */
void tr_sink_flush(struct sink *s);                 /* what can be written without waiting */
void tr_sink_drain(struct sink *s, int64_t max_us); /* all of it, unless nothing moves for so long */
bool tr_tap_is_open(const struct tap *t);           /* and its text has somewhere to go */
void tr_tap_read(struct job *j, struct rank *r, struct tap *t);
void tr_tap_finish(struct job *j, struct rank *r, struct tap *t); /* what is left, then closed */
void tr_logs_place(struct job *j, struct rank *r, int rank);      /* which rank it is in the next generation */
void tr_logs_begin(struct job *j, struct rank *r);                /* a heading for this generation */
void tr_logs_retry(struct job *j);                                /* is the directory there by now? */
void tr_logs_close(struct job *j, bool may_make_dir);
void tr_say(struct job *j, const char *fmt, ...) TR_PRINTF(2, 3); /* "trireme: ..." in the order of things */
const char *tr_tail(const struct rank *r);                        /* whole lines where possible */

/* spawn.c */
void tr_cores_find(struct job *j);
enum tr_status tr_rank_spawn(struct job *j, struct rank *r);
void tr_rank_signal(const struct rank *r, int sig);

enum { N_POLLS_FIXED = 4, N_POLLS_RANK = 4 };

/* pmi.c: through which MPICH ranks of this host find each other. */
struct pmi;
enum tr_status tr_pmi_open(int n_ranks, const char *job, struct pmi **out);
void tr_pmi_close(struct pmi *p);             /* NULL is fine */
void tr_pmi_clear(struct pmi *p);             /* a new generation knows nothing of the last */
int tr_pmi_connect(struct pmi *p, int rank);  /* the rank's end, the caller's to close; -1: errno says why */
int tr_pmi_fd(const struct pmi *p, int rank); /* to poll; -1: none */
void tr_pmi_serve(struct pmi *p, int rank);   /* reads what is there, and answers */

/* Several nodes: ranks are numbered from first_rank on, and a barrier ends with tr_pmi_release. */
void tr_pmi_begin(struct pmi *p, int first_rank, const uint16_t *sizes, int n_nodes);
bool tr_pmi_is_waiting(const struct pmi *p);         /* all ranks of this node are in a barrier, and nobody was told */
void tr_pmi_news(struct pmi *p, struct tr_str *out); /* what they put since the last one; now somebody is told */
void tr_pmi_learn(struct pmi *p, const char *text, size_t n); /* what ranks of other nodes put */
void tr_pmi_release(struct pmi *p);

/* shm_files.c: removes what MPI left in /dev/shm since then, of ranks that are dead; how many files. */
int tr_shm_sweep(const char *dir, struct timespec since);

/* launch.c */
int tr_quiet_exit_code(const struct job *j); /* of a group in which nothing failed: done, or stopped because asked */

/* watch.c: one generation, from the first rank's start to the last one's end. */
enum tr_status tr_group_run(struct job *j);
bool tr_signals_take(struct job *j, int64_t wait_us); /* true: the launcher was asked to stop, now or before */

/* hang.c: which rank hangs, and where each of them is. */
struct hang;
enum { TR_LOOK_US = 100 * 1000 };
enum tr_status tr_hang_open(int n_ranks, struct hang **out);
void tr_hang_close(struct hang *h);                                          /* NULL is fine */
void tr_hang_clear(struct job *j);                                           /* a new generation */
const struct rank *tr_hang_look(struct job *j, int64_t now);                 /* every TR_LOOK_US; NULL: all move */
const char *tr_hang_text(const struct job *j);                               /* of what was found; NULL: nothing */
void tr_hang_where(struct job *j, const struct rank *r, struct tr_str *out); /* JSON members: phase, step, collective */
void tr_hang_flight(struct job *j, struct tr_str *out); /* the last actions of all ranks, a line each */

/* agent_run.c: this launcher as one of several nodes. Without nodes all but tr_nodes_open do nothing. */
enum tr_status tr_nodes_open(struct job *j);
void tr_nodes_close(struct job *j);
enum tr_status tr_nodes_run(struct job *j, struct tr_launch_end *end);
int tr_nodes_fd(const struct job *j);
int64_t tr_nodes_due_us(const struct job *j);
void tr_nodes_pump(struct job *j);
void tr_nodes_failed(struct job *j);

/* record.c */
void tr_record_event(struct job *j, int rank, const char *phase, const char *action, const char *cause);
const char *tr_ended_how(const struct job *j, const struct rank *r, char *buf, size_t n_buf);
void tr_record_root(struct job *j, int exit_code);

/* progress.c */
struct progress tr_progress_of(const char *output); /* NULL: none */

#endif
