/* run.h - what the processes of a run agree on: exit codes, how long they wait for each other, and the names of files
 * under the output directory. Each stands here once, because rooms that do not see each other read them. */
#ifndef TR_BASE_RUN_H
#define TR_BASE_RUN_H

/* Exit codes of a rank and of the job; any other code of a rank counts as TR_EXIT_BUG. */
enum {
    TR_EXIT_DONE = 0,
    TR_EXIT_NO = 1,       /* the answer is no: checkpoints differ, a plan does not fit */
    TR_EXIT_USAGE = 2,    /* bad input: the same again fails again */
    TR_EXIT_BUG = 70,     /* a bug, or the world's fault */
    TR_EXIT_RETRY = 75,   /* start it again; after a stop signal: a checkpoint holds every step that was made */
    TR_EXIT_STOP = 78,    /* do not start it again */
    TR_EXIT_UNSAVED = 143 /* a stop signal ended it before it could save: start it again, from an older checkpoint */
};

/* A rank that a signal stopped: stops of up to 4 s are survived. The launcher gives a rank up first, because it can
 * name it; its peers do 0.1 s later. */
enum { TR_STOPPED_LAUNCHER_US = 4200 * 1000, TR_STOPPED_US = TR_STOPPED_LAUNCHER_US + 100 * 1000 };

/* How long a rank that waits for no peer may be without a move in what it does: three times what 99 of 100 such actions
 * took, and at least MIN; DISK where a disk is involved; UNKNOWN where no such action has ended yet. */
enum { TR_HANG_MIN_US = 5000000, TR_HANG_DISK_US = 60000000, TR_HANG_UNKNOWN_US = 300000000 };

/* Under the output directory. */
#define TR_NAME_EVENTS        "events.jsonl"     /* every event of the run */
#define TR_NAME_GRAD_NORMS    "grad_norms.jsonl" /* --grad_norm_steps */
#define TR_NAME_LOGS          "logs"             /* output of ranks: rank-NNNN.log */
#define TR_NAME_ERRORS        "errors"           /* root causes, stacks, the flight record */
#define TR_NAME_FLIGHT        "flight.jsonl"     /* in errors */
#define TR_NAME_PROFILE       "profile"          /* --profile: rank-NNNN.json */
#define TR_NAME_PHASES        ".trireme"         /* pages of ranks: phase-NNNN */
#define TR_NAME_RUNS          "runs"             /* --report_to tensorboard: a directory for each run name */
#define TR_NAME_WANDB         "wandb"            /* --report_to wandb: offline-run-... */
#define TR_NAME_GENERATIONS   "generations"      /* claims of the nodes of a job */
#define TR_NAME_LOCK          ".trireme.lock"    /* held by the one writer */
#define TR_NAME_CONTROL       "control.json"     /* values that were set while the run went on */
#define TR_NAME_LATEST        "latest"           /* names the newest checkpoint */
#define TR_NAME_CHECKPOINT    "checkpoint-"      /* and the step */
#define TR_NAME_TRAINER_STATE "trainer_state.json"
#define TR_NAME_CACHE         ".cache"     /* token shards of the data */
#define TR_NAME_OF_RANK       "rank-%04d"  /* format; a suffix follows */
#define TR_NAME_OF_PHASE      "phase-%04d" /* format */
/* What a run writes into without replacing it: none of these may be a link. */
#define TR_NAMES_KEPT                                                                                                  \
    TR_NAME_EVENTS, TR_NAME_GRAD_NORMS, TR_NAME_LOGS, TR_NAME_ERRORS, TR_NAME_PROFILE, TR_NAME_PHASES, TR_NAME_LOCK,   \
        TR_NAME_CACHE, TR_NAME_GENERATIONS, TR_NAME_RUNS, TR_NAME_WANDB

/* Under the directory of an adapter: what makes it one, and which base it belongs to. */
#define TR_ADAPTER_CONFIG "adapter_config.json"
#define TR_ADAPTER_BASE   "trireme/base.json"

#endif
