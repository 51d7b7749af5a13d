/* launch_impl.h - private to launch: a job, its ranks, and where their output goes. */
#ifndef TR_LAUNCH_LAUNCH_IMPL_H
#define TR_LAUNCH_LAUNCH_IMPL_H

#include "base/show.h"
#include "launch/agent.h"
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <time.h>

enum { TAIL_BYTES = 4096, LINE_BYTES = 4096 };

/* where.c: defaults of flags from the environment of a scheduler. set gets a flag's name and its value; *name: of the
 * scheduler, NULL: none was found. */
typedef enum tr_status tr_launch_set_fn(void *ctx, const char *flag, const char *value);
enum tr_status tr_launch_where(char *const *envp, tr_launch_set_fn *set, void *ctx, const char **name);
/* The first node of Slurm's list: "n[07-9,12],m1" gives n07. */
enum tr_status tr_launch_first_node(const char *list, char *out, size_t n_out);

/* A terminal, pipe or file of the caller. Text is held here while its reader is slow, so that the launcher never waits.
 */
struct text_sink {
    int fd;
    bool is_dead;           /* the reader has closed it, or its disk is full: further text is dropped */
    bool has_lost;          /* a write failed although there is a reader */
    bool is_term, has_bars; /* a terminal, which must not obey the text of ranks but for their progress lines */
    struct tr_str held;
};

/* rank-NNNN.log: both streams of a rank in the order they were read, over all generations. */
struct rank_log {
    int fd; /* -1: not open yet, or lost */
    bool is_lost;
    struct tr_str held; /* text, until the directory may be made */
};

/* The reading end of one stream of one rank. */
struct tap {
    int fd; /* -1: closed */
    bool is_err, is_prefixed;
    bool is_in_bar; /* inside a progress line, which a terminal overwrites and the log leaves out */
    char last;
    struct text_sink *sink; /* NULL: not shown */
    char line[LINE_BYTES];
    size_t n_line;         /* bytes of an unfinished line; prefixed streams only */
    char cut[TR_SHOW_CUT]; /* of a character whose rest has not been read yet; terminals only */
    size_t n_cut;
};

struct rank {
    int rank;
    pid_t pid;
    int pidfd; /* -1: not running */
    int order; /* its place among the ends of ranks in this generation, from 1; 0: it runs */
    int code, sig;
    bool is_killed; /* by the launcher: how it ended is no failure */
    bool is_oom;    /* the kernel killed it because memory ran out */
    struct tap out, err;
    char tail[2 * TAIL_BYTES]; /* the last bytes of stderr */
    size_t n_tail;
    struct rank_log log;
};

enum order { ORDER_NONE, ORDER_SAVE, ORDER_STOP };

struct launch_job {
    const struct tr_launch *l;
    char id[33], host[64];
    char
        secret[33]; /* of generation secret_of - 1: names the place where its ranks meet, which others must not guess */
    int secret_of;
    int generation, n_running, n_ended;
    int first_rank, n_world; /* the first rank of this node; ranks of all nodes */
    struct nodes *nodes;     /* NULL: this is the only node */
    enum order order;        /* what the coordinator orders the running group to do */
    bool is_ordered;         /* an order was carried out: how ranks end is no failure */
    struct rank *ranks;
    struct pollfd *polls;
    struct text_sink out, err;
    char log_dir[TR_PATH_MAX];          /* "" = no logs */
    const char *log_root, *log_beneath; /* log_dir as the directory that the user has named, and ours in it or "" */
    bool has_log_dir;                   /* the directory exists, or may be made */
    struct hang *hang;
    struct pmi *pmi;     /* NULL: the ranks do not use MPI */
    struct probe *probe; /* NULL: nobody may ask */
    cpu_set_t cores;
    int n_cores; /* 0: unknown */

    int signal_fd;
    sigset_t old_mask;
    struct sigaction old_pipe;
    int n_signals, stop_sig; /* signals that the launcher received; the one it passed on */
    int n_ctrl_c;            /* those that a terminal sent for Ctrl-C */
    bool is_unsaved;         /* the last generation ended with steps that no checkpoint holds */

    /* State of one generation. Times are 0 until set. */
    const struct rank *root; /* NULL: nothing failed */
    uint64_t n_oom_kills;    /* that the kernel has counted so far and that have been told; UINT64_MAX: unknown */
    bool is_early;           /* root has ended with 0 before the others */
    int64_t settle_us;       /* until when a better root cause may appear */
    int64_t early_us;        /* when exit 0 of some ranks becomes a failure */
    int64_t kill_us, give_up_us;
    int64_t blamed_us; /* when the root cause became known */
};

/* logs.c */
void tr_sink_flush(struct text_sink *s);                 /* writes what can be written without waiting */
void tr_sink_drain(struct text_sink *s, int64_t max_us); /* writes all, unless nothing moves for max_us */
bool tr_tap_is_open(const struct tap *t);                /* and its text has a place to go to */
void tr_tap_read(struct launch_job *j, struct rank *r, struct tap *t);
void tr_tap_finish(struct launch_job *j, struct rank *r, struct tap *t); /* reads what is left, then closes it */
void tr_logs_place(struct launch_job *j, struct rank *r, int rank);      /* sets its rank in the next generation */
void tr_logs_begin(struct launch_job *j, struct rank *r);                /* writes a heading for this generation */
void tr_logs_retry(struct launch_job *j);                                /* opens the logs once the directory exists */
void tr_logs_close(struct launch_job *j, bool may_make_dir);
void tr_report(struct launch_job *j, const char *fmt, ...) TR_PRINTF(2, 3); /* prints a line "trireme: ..." */
const char *tr_tail(const struct rank *r);                                  /* the last lines of its stderr */

/* spawn.c */
void tr_cores_find(struct launch_job *j);
enum tr_status tr_rank_spawn(struct launch_job *j, struct rank *r);
void tr_rank_signal(const struct rank *r, int sig);

enum { N_POLLS_FIXED = 5, N_POLLS_RANK = 4 };

/* pmi.c: the service through which MPICH ranks find each other. */
struct pmi;
enum tr_status tr_pmi_open(int n_ranks, const char *job, struct pmi **out);
void tr_pmi_close(struct pmi *p);             /* NULL is fine */
void tr_pmi_clear(struct pmi *p);             /* forgets everything of the last generation */
int tr_pmi_connect(struct pmi *p, int rank);  /* the rank's end, which the caller closes; -1: see errno */
int tr_pmi_fd(const struct pmi *p, int rank); /* to poll; -1: none */
void tr_pmi_serve(struct pmi *p, int rank);   /* reads what has arrived, and replies */

/* With several nodes: ranks are numbered from first_rank on, and tr_pmi_release ends a barrier. */
void tr_pmi_begin(struct pmi *p, int first_rank, const uint16_t *sizes, int n_nodes);
bool tr_pmi_is_waiting(
    const struct pmi *p); /* all ranks of this node are in a barrier, which tr_pmi_take_new has not passed on yet */
void tr_pmi_take_new(struct pmi *p, struct tr_str *out); /* what they have put since the last barrier, to pass on */
void tr_pmi_merge(struct pmi *p, const char *text, size_t n); /* adds what ranks of other nodes have put */
void tr_pmi_release(struct pmi *p);

/* shm_files.c: removes files that dead ranks have left in /dev/shm through MPI since then; returns how many. */
int tr_shm_sweep(const char *dir, struct timespec since);

/* launch.c */
int tr_quiet_exit_code(
    const struct launch_job *j); /* of a group in which no rank failed: it is done, or was stopped on request */
int tr_stop_exit_code(const struct launch_job *j); /* after a stop request: "retry me", or that steps are lost */

/* watch.c: one generation, from the start of the first rank to the end of the last. */
enum tr_status tr_group_run(struct launch_job *j);
bool tr_signals_take(struct launch_job *j,
                     int64_t wait_us); /* true: the launcher has received a request to stop, now or before */

/* probe.c: answers of the agent over HTTP. Without a probe all but tr_probe_open do nothing. */
struct probe;
enum tr_status tr_probe_open(struct launch_job *j); /* where the user wants none: none */
void tr_probe_close(struct launch_job *j);
int tr_probe_fd(const struct launch_job *j); /* to poll; -1: none */
void tr_probe_serve(struct launch_job *j);   /* answers what has arrived; never waits */

/* watch.c */
bool tr_group_has_failure(const struct launch_job *j); /* has a rank ended with a failure, be it another's? */

/* hang.c: which rank hangs, and what each rank does. */
struct hang;
enum { TR_LOOK_US = 100 * 1000 };
enum tr_status tr_hang_open(int n_ranks, struct hang **out);
void tr_hang_close(struct hang *h);                                 /* NULL is fine */
void tr_hang_clear(struct launch_job *j);                           /* before a new generation */
const struct rank *tr_hang_look(struct launch_job *j, int64_t now); /* every TR_LOOK_US; NULL: all ranks move */
bool tr_hang_is_work_done(struct launch_job *j);                  /* is every rank that still runs in its last phase? */
bool tr_hang_is_stop(struct launch_job *j, const struct rank *r); /* did it end as it was asked to? */
const char *tr_hang_text(const struct launch_job *j);             /* describes the rank that hangs; NULL: none does */
int64_t tr_hang_step(struct launch_job *j, const struct rank *r); /* the step that a rank is in; -1: none yet */
void tr_hang_where(struct launch_job *j, const struct rank *r,
                   struct tr_str *out);                        /* JSON members: phase, step, collective */
void tr_hang_flight(struct launch_job *j, struct tr_str *out); /* the last actions of all ranks, one line per rank */

/* agent_run.c: this launcher as one of several nodes. Without nodes all but tr_nodes_open do nothing. */
enum tr_status tr_nodes_open(struct launch_job *j);
void tr_nodes_close(struct launch_job *j);
enum tr_status tr_nodes_run(struct launch_job *j, struct tr_launch_end *end);
int tr_nodes_fd(const struct launch_job *j);
int64_t tr_nodes_due_us(const struct launch_job *j);
void tr_nodes_pump(struct launch_job *j);
void tr_nodes_failed(struct launch_job *j);

/* record.c */
void tr_record_event(struct launch_job *j, int rank, const char *phase, const char *action, const char *cause);
const char *tr_ended_how(const struct launch_job *j, const struct rank *r, char *buf, size_t n_buf);
void tr_record_root(struct launch_job *j, int exit_code);

/* progress.c */
struct progress tr_progress_of(const char *output); /* NULL: none */

#endif
