/* doctor.h - private to doctor: what a check of this machine may say. */
#ifndef TR_CLI_DOCTOR_H
#define TR_CLI_DOCTOR_H

#include "cli/cli.h"

/* What a machine can be ready for; a problem takes one of them away, or only costs speed. */
enum ready {
    READY_CPU,
    READY_GPU,
    READY_RANKS,
    READY_HOSTS,
    READY_CHECKPOINTS,
    READY_COUNT,
    READY_ALL = -1,
    READY_ANY = -2
};

struct doctor {
    const char *root; /* where /proc, /sys and /dev are found; "": the machine itself */
    const char *dir;  /* whose disk is looked at */
    bool has[READY_COUNT];
    bool is_tight; /* so little memory that loading libraries or writing a file could end this process */
    struct tr_str facts, facts_json, problems, problems_json;
    int n_facts, n_problems;
};

void doctor_fact(struct doctor *d, const char *what, const char *fmt, ...) TR_PRINTF(3, 4);
/* takes: what the machine is not ready for because of it; READY_ANY: nothing, it is slower or harder to follow;
 * READY_ALL: nothing works. */
void doctor_problem(struct doctor *d, int takes, const char *what, const char *value, const char *fix);

void doctor_cpu(struct doctor *d);
void doctor_memory(struct doctor *d);
void doctor_limits(struct doctor *d);
void doctor_shm(struct doctor *d);
void doctor_gpus(struct doctor *d);
void doctor_libraries(struct doctor *d);
void doctor_modules(struct doctor *d);
void doctor_network(struct doctor *d);
void doctor_clock(struct doctor *d);
void doctor_disk(struct doctor *d);

#endif
