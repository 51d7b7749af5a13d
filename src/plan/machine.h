/* machine.h - what a cluster can do, in the few numbers that decide a step: the chip, the links that join chips, price.
 *
 * A machine has a name ("H100-80GB@nv-ndr": chip @ cluster; "H100-80GB": that chip in its usual cluster), whose numbers
 * are files of share/machines, or it is a file of a user with the same keys (docs/formats/machine.md), which `trireme
 * bench machine` writes. Shares are measured numbers over data sheet numbers, so that a file can be read beside the
 * data sheet.
 */
#ifndef TR_PLAN_MACHINE_H
#define TR_PLAN_MACHINE_H

#include "base/base.h"

enum tr_precision { TR_PRECISION_FP32, TR_PRECISION_16, TR_PRECISION_FP8, TR_PRECISION_FP4, TR_PRECISION_COUNT };

enum { TR_CURVE_MAX = 12 };
struct tr_curve { /* measured rates at ascending sizes; between two of them a straight line in log-log */
    int n;
    double at[TR_CURVE_MAX], rate[TR_CURVE_MAX];
};

/* Kernels of a CPU that are neither products nor messages: measured seconds of an element; of attention, of a flop. */
enum tr_op_cost {
    TR_COST_NORM,
    TR_COST_NORM_BWD,
    TR_COST_RMSNORM,
    TR_COST_RMSNORM_BWD,
    TR_COST_ACT,
    TR_COST_ACT_BWD,
    TR_COST_GLU,
    TR_COST_GLU_BWD,
    TR_COST_ROPE,
    TR_COST_ADD,
    TR_COST_SUMSQ,
    TR_COST_LOSS,      /* a logit, beside its three products */
    TR_COST_STATS,     /* where ranks split the vocabulary: beside its first product */
    TR_COST_STATS_BWD, /* and beside the other two */
    TR_COST_UPDATE,
    TR_COST_ATTENTION,
    TR_COST_ATTENTION_BWD,
    TR_COST_ATTENTION_ROW, /* an element of q, beside the flops: what short rows cost */
    TR_COST_ATTENTION_ROW_BWD,
    TR_OP_COSTS
};

struct tr_speed {             /* measured, of a rank on a CPU */
    struct tr_curve gemm;     /* flop/s by flops of a product, instead of shares of the peak; n 0: none */
    double op_s[TR_OP_COSTS]; /* 0: by bytes (a GPU's kernels stream) */
};

struct tr_chip {
    char name[40];
    double peak[TR_PRECISION_COUNT];  /* dense flop/s by the data sheet; 0: the chip has no such units */
    double memory_bytes, memory_rate; /* bytes; bytes/s */
    int n_units;                      /* multiprocessors: tiles of a product come in waves of so many */
    int generation;                   /* compute capability x 10: 70, 80, 89, 90, 100; 0: not NVIDIA's */
    double gemm_share, stream_share;  /* what a large product, and a kernel that streams, reach of the above */
    double held;                      /* share of gemm_share that the power limit leaves during a step; 0: all of it */
    double launch_s;                  /* from one kernel's end to the next one's start */
    struct tr_speed all;              /* of one rank that has all units */
    struct tr_speed one; /* of a rank with one unit while a busy rank has each of the others; may be empty */
    double price;        /* dollars an hour, on demand, rounded: for comparing, not for budgets */
};

/* time of a message of n bytes = latency + n / (rate * share) + ramp * n / (n + 64 MiB): pipelines fill slowly. */
struct tr_link {
    double rate, share; /* bytes/s, one direction, of one chip; what the best collective gets of it */
    double latency_s, ramp_s;
};

struct tr_machine {
    char name[64];
    struct tr_chip chip;
    int domain; /* chips that the fast link joins */
    int node;   /* chips of a host */
    struct tr_link fast, slow;
    bool is_shared;                    /* CPU ranks: those of one host divide its chip between them */
    double meet_share, meet_far_share; /* CPU ranks: share of the time lost by waiting for each other, when they do so
                                          after every few kernels; and some ten times a second */
    double host_rate, disk_rate;       /* bytes/s of a chip's link to its host; of a host's storage */
    double mttf_hours; /* of one chip with its part of the host: Llama 3's 419 failures in 54 days of 16,384 */
};

/* By name: CHIP@CLUSTER, or CHIP in its usual cluster. TR_USAGE names an unknown chip or cluster and the nearest one.
 */
enum tr_status tr_machine_find(const char *name, struct tr_machine *out);
/* The same with both names in full; cluster NULL: the usual one of the chip. */
enum tr_status tr_machine_join(const char *chip, const char *cluster, struct tr_machine *out);
/* The names there are, in order; NULL past the last. */
const char *tr_chip_name(size_t i);
const char *tr_cluster_name(size_t i);
/* The text of a user's file; it may start from `base: NAME`. `path` is for messages. */
enum tr_status tr_machine_read(const char *path, const char *text, struct tr_machine *out);
/* A file when there is one of this name, else a machine by name. */
enum tr_status tr_machine_open(const char *name_or_path, struct tr_machine *out);
void tr_machine_write(const struct tr_machine *m, struct tr_str *out); /* as such a file */
/* Every chip in its usual cluster, then every cluster; as_json: one object with both lists. */
enum tr_status tr_machine_list(bool as_json, struct tr_str *out);

double tr_curve_at(const struct tr_curve *c, double x);
/* The part of a chip that each of n ranks has when they divide it between them. */
struct tr_chip tr_chip_part(const struct tr_chip *c, double n);

/* ---- what it takes (cost.c); seconds ---- */

/* `count` products (m, k) x (k, n) in one kernel. */
double tr_cost_gemm(const struct tr_chip *c, enum tr_precision precision, double count, double m, double n, double k);
double tr_cost_stream(const struct tr_chip *c, double bytes); /* one kernel that moves so many bytes */

/* A group of n ranks, of which runs of `in` are joined by the fast link. */
struct tr_group {
    double n, in;
};
/* The ranks r, r + stride, ... of a machine whose ranks fill it in order. */
struct tr_group tr_group_of(const struct tr_machine *m, double n, double stride);
enum tr_collective { TR_COST_ALL_REDUCE, TR_COST_ALL_GATHER, TR_COST_REDUCE_SCATTER, TR_COST_ALL_TO_ALL, TR_COST_SEND };
/* bytes: of the whole vector (all_gather: gathered; all_to_all: what a rank holds; send: the message). */
double tr_cost_collective(const struct tr_machine *m, enum tr_collective kind, struct tr_group g, double bytes);

#endif
