/* launch.h - room header of launch: starts the ranks of a job, watches them, and ends them together.
 *
 * A group of ranks starts and ends as one. The first rank that fails is the root cause: it is reported once, the others
 * are stopped, and if restarts are left the next generation starts from the newest checkpoint. Whatever ends the
 * launcher ends the ranks, kill -9 included. With several nodes there is one launcher per node, and they are agents of
 * one job: docs/adr/0004-launch-and-generations.md.
 */
#ifndef TR_LAUNCH_LAUNCH_H
#define TR_LAUNCH_LAUNCH_H

#include "base/base.h"

enum { TR_LAUNCH_RANKS_MAX = 1024, TR_LAUNCH_NODES_MAX = 64 };

/* `trireme launch` flags: torchrun's names, dashes and underscores alike, with defaults from PET_NAME. */
struct tr_launch_flags {
    int n_ranks, max_restarts, log_rank;
    int n_nodes_min, n_nodes_max;
    int node_rank;              /* -1: not given */
    const char *rdzv, *rdzv_id; /* host:port where node 0 listens; NULL: one node */
    const char *local_addr;     /* NULL: the address from which a packet to rdzv leaves */
    const char *key_file;       /* NULL: generations/key in the output directory */
    int key_fd;                 /* -1: none */
    bool any_interface;
    int64_t join_s;           /* 0: 600 */
    const char *log_dir;      /* NULL: not given */
    const char *metrics_port; /* [ADDR:]PORT; NULL: not given */
    char endpoint[64];        /* of --master-addr and --master-port */
    int master_port;
    bool is_standalone;
    const char *where;     /* the scheduler whose environment gave defaults; NULL: none */
    int where_rank;        /* the node that it says this is */
    bool help;             /* the other flags were not checked */
    int n_words;           /* words of argv that were flags; the verb is argv[n_words] */
    struct tr_str notices; /* one line for each flag that has no effect here */
};
enum tr_status tr_launch_flags_init(int argc, char *const *argv, char *const *envp, struct tr_launch_flags *out);
void tr_launch_flags_release(struct tr_launch_flags *f);
void tr_launch_help(struct tr_str *out);

struct tr_launch {
    const char *program;       /* started as it is: no search, no shell */
    char *const *argv;         /* of every rank, NULL at the end */
    char *const *restart_argv; /* of later generations; NULL: argv */
    char *const *envp;
    int n_ranks, max_restarts;               /* max_restarts: of the job; n_ranks: of this node */
    int n_nodes_min, n_nodes_max, node_rank; /* as in tr_launch_flags; n_nodes_max <= 1: no other nodes */
    const char *rdzv, *rdzv_id, *local_addr, *key_file;
    const char *metrics_port; /* [ADDR:]PORT where the agent answers probes; NULL: nowhere */
    int key_fd;
    bool any_interface;
    int64_t join_us;
    int log_rank; /* the rank whose output is shown unchanged */
    int64_t
        threads; /* threads of a rank, as the user has set them; 0: its share of the cores, passed in TRIREME_THREADS */
    bool has_mpi;        /* the ranks use MPI: serve them PMI-1 (MPICH) */
    bool is_last;        /* the process ends when the job does */
    const char *output;  /* directory of the run: errors/, events.jsonl, checkpoint-N; NULL: none */
    const char *log_dir; /* of rank-NNNN.log; NULL: output/logs, made after the run has made output */
    int out_fd, err_fd;  /* where the shown rank's output and the launcher's own lines go */
    /* 0 means the default: 5 s, 2 s, 300 s. */
    int64_t exit_grace_us; /* after a rank has ended with 0: how long the others may still run */
    int64_t kill_grace_us; /* after a failure: from SIGTERM to SIGKILL */
    int64_t stop_grace_us; /* after SIGINT, SIGTERM or SIGHUP to the launcher: until SIGKILL */
};

struct tr_launch_end {
    int exit_code;        /* of the job */
    int rank;             /* the root cause of the last generation; -1: none */
    int code, sig;        /* its exit code, or its signal */
    int n_restarts;       /* that were used */
    bool has_lost_output; /* out_fd did not take all that the ranks printed, as a full disk does */
};

/* Returns when every rank has ended and is reaped. TR_OK: the job was started and watched to its end, and *end has how
 * it ended. While it runs it handles SIGINT, SIGTERM, SIGHUP and SIGUSR1: the first is passed on to all ranks, others
 * do nothing; Ctrl-C twice at a terminal kills them. Call it from a process with one thread. */
enum tr_status tr_launch_run(const struct tr_launch *l, struct tr_launch_end *end);

/* The environment of a rank: envp with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, TR_JOB and TR_GENERATION, and
 * without the address of another launcher. threads > 0 adds TRIREME_THREADS, has_mpi adds PMI_FD, PMI_RANK, PMI_SIZE.
 */
struct tr_launch_place {
    int rank, n_ranks, local_rank, n_local;
    const char *secret; /* TR_MEET, of this generation's ranks on this host; NULL: none */
};
enum tr_status tr_launch_env(char *const *envp, const struct tr_launch_place *at, const char *job, int generation,
                             int threads, bool has_mpi, char ***out);
void tr_launch_env_free(char **env);

/* In a rank, before anything else: sets the variables above from those of mpirun (MPICH, Open MPI) or srun. Does
 * nothing where RANK or WORLD_SIZE is set. */
void tr_launch_adopt(void);

#endif
