/* optim.h - room header of optim: what a run holds of each parameter (state rows), the optimizers, and the learning
 * rate.
 *
 * An optimizer is one file with one row: its states, and its update as a list of ops. Buckets, arenas, checkpoints, the
 * replica check and the plan read state rows; none of them knows the name of a state.
 */
#ifndef TR_OPTIM_OPTIM_H
#define TR_OPTIM_OPTIM_H

#include "config/config.h"
#include "ops/ops.h"

/* ---- state rows ---- */

/* Index of a state row of a run. The rows of the optimizer begin at TR_S_OPTIM. */
enum tr_state { TR_S_VALUE, TR_S_GRAD, TR_S_MASTER, TR_S_OPTIM };

/* An update has an output slot for the parameter, one for its rounded copy, and then one for each state. */
enum {
    TR_OPTIM_STATES = 4,
    TR_OPTIM_COPY = 1,
    TR_OPTIM_STATE = 2,
    TR_OPTIM_SUMS = 4,                               /* where an optimizer with sums has them */
    TR_STATES_MAX = TR_S_OPTIM + 2 * TR_OPTIM_STATES /* of an optimizer and of its `rest` */
};

/* What happens to a parameter, and how it is held. The optimizer of the run updates what learns, and the optimizer that
 * it names as its `rest` what learns apart. */
enum tr_fate { TR_LEARNS, TR_LEARNS_APART, TR_FROZEN, TR_PACKED, TR_FATES };

/* What one element of a state belongs to: a block of elements, a row, or a column. Every rank that holds a part of a
 * matrix holds its states of rows and columns whole. */
enum tr_state_shape { TR_PER_BLOCK, TR_PER_ROW, TR_PER_COL };
enum { TR_NEVER_SHARDED = 4 };

/* One tensor that is held for every parameter of some fates. The row of an optimizer leaves is_held, is_sharded and
 * fates unset: they belong to a run. */
struct tr_state_row {
    const char *name;    /* name in files and in the plan: "m"; NULL: never saved */
    const char *title;   /* name in messages: "first moment" */
    bool is_moment;      /* its dtype is the option moment_dtype */
    enum tr_dtype dtype; /* otherwise this one */
    enum tr_state_shape shape;
    int32_t block; /* TR_PER_BLOCK: elements of the flattened whole tensor that share one element of the state; a power
                      of 2 */
    int zero;      /* sharded from this ZeRO level on */
    bool is_held, is_sharded;
    uint8_t fates; /* a bit for each enum tr_fate: parameters of these fates have this state */
};

struct tr_states {
    int n;
    struct tr_state_row row[TR_STATES_MAX];
};

struct tr_state_dtypes {
    enum tr_dtype value, grad, master, moment;
};

struct tr_optim;
struct tr_optim_param;
/* The rows of a run. MASTER is held where its dtype differs from VALUE. The rows of the optimizer's `rest` follow those
 * of the optimizer. Without an optimizer there is only VALUE. */
void tr_states_of(const struct tr_optim *o, const struct tr_state_dtypes *d, struct tr_states *out);
/* Elements of a state for a matrix; the last block may be short. */
static inline int64_t tr_state_count(const struct tr_state_row *r, int64_t rows, int64_t cols)
{
    return r->shape == TR_PER_ROW ? rows : r->shape == TR_PER_COL ? cols : (rows * cols + r->block - 1) / r->block;
}
/* The largest block of all rows: shards and parameters begin on multiples of it. */
int32_t tr_states_grain(const struct tr_states *s);
/* Does a parameter of this fate have this state? */
static inline bool tr_states_has(const struct tr_states *s, int row, enum tr_fate fate)
{
    return row < s->n && s->row[row].is_held && s->row[row].fates >> fate & 1;
}
/* Bytes of MASTER and of the optimizer's rows for one element of a parameter that learns. */
double tr_states_bytes(const struct tr_states *s);
/* Bytes that an update reads and writes for one element of a parameter of this fate. */
double tr_update_bytes(const struct tr_states *s, enum tr_fate fate);
/* True when the weights file holds fewer bits than VALUE and no MASTER keeps the others. Then VALUE is saved under the
 * name of MASTER, beside the optimizer's states. */
bool tr_states_save_value(const struct tr_states *s, enum tr_dtype weights);
/* The row with this name (n bytes) in files, or -1. */
int tr_states_find(const struct tr_states *s, const char *name, size_t n);

/* ---- optimizers ---- */

/* What a phase does with the sums of a parameter (tr_optim.has_sums). Ranks that share the parameter each sum their own
 * elements; the executor adds the sums of these ranks. */
enum tr_phase_sums {
    TR_SUMS_NONE,
    TR_SUMS_ALL,   /* the phase writes all sums but the last; they are added after it */
    TR_SUMS_WHOLE, /* the phase runs once, on the added sums of the whole matrix, also on ranks without an element */
    TR_SUMS_LAST,  /* the phase writes the last sum; it is added after it */
    TR_SUMS_READ   /* the phase reads sums */
};

/* A phase of the update: one call for each parameter of a bucket; then the next phase follows. Slots: in[0] gradient,
 * in[1] step buffer, out[0] the parameter (MASTER where it is held), out[TR_OPTIM_COPY] VALUE where MASTER is held,
 * out[TR_OPTIM_STATE + k] state k of the optimizer. */
struct tr_update_phase {
    enum tr_opcode op; /* what runs, and what the plan and the profile count it as */
    tr_kernel kernel;  /* runs instead of the op, only on the host; NULL: the op runs */
    /* One call for each whole matrix, whatever the layout: in[1] step buffer, out[0] the matrix of its direction. Ranks
     * that share the parameters of a bucket share its matrices; afterwards each has its elements of the result. */
    bool is_whole;
    enum tr_phase_sums sums;
};

enum { TR_OPTIM_PHASES = 4 };

struct tr_optim {
    const char *name;
    int n_states, n_phases;
    struct tr_state_row state[TR_OPTIM_STATES];
    struct tr_update_phase phase[TR_OPTIM_PHASES];
    /* The phases share a tensor in BF16, the direction of the update, which lasts as long as the update of a bucket. It
     * has the slot behind the states. */
    bool has_direction;
    /* The phases share sums in F64: one of all elements, one for each row and one for each column of a matrix (none of
     * a vector), in out[TR_OPTIM_SUMS], and one more of all elements in the slot behind it. */
    bool has_sums;
    /* Slots of the step buffer that this optimizer alone reads, for the update after which n_updates are done. */
    void (*step_values)(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT]);
    /* The optimizer of the parameters that this one does not take; NULL: it takes all. Its states have other names. */
    const struct tr_optim *rest;
    bool (*takes)(const struct tr_optim_param *p);
};
/* What an optimizer may ask about a parameter. It does not depend on the layout. */
struct tr_optim_param {
    int n_dims;
    int64_t n;
    bool is_embedding; /* a table that tokens or positions are looked up in */
    bool is_hidden;    /* only layers use it: neither the embedding nor the head does */
};
/* The fate of a parameter that learns. */
enum tr_fate tr_optim_fate(const struct tr_optim *o, const struct tr_optim_param *p);
extern const struct tr_optim tr_adafactor, tr_adamw, tr_adamw8, tr_lion, tr_lion8, tr_muon, tr_sgd;
/* Does an optimizer with moments of 8 bits take this parameter? */
bool tr_optim_takes_8bit(const struct tr_optim_param *p);
const struct tr_optim *tr_optim_row(enum tr_optim_kind kind);
/* Adds an optimizer to the table and to the words of --optim; *row must live until the process ends. Call it before
 * options are parsed, in the same way in every process (docs/guide/add-an-optimizer.md). Refuses a row that the buckets
 * cannot hold. */
enum tr_status tr_optim_add(const struct tr_optim *row, enum tr_optim_kind *out);
/* The row of any optimizer that has this name (n bytes) in files, or NULL. */
const struct tr_state_row *tr_optim_state(const char *name, size_t n);

/* ---- which parameters learn ---- */

/* Decided by the options trainable and frozen: the last pattern that matches the name counts. A name that no pattern
 * matches learns, unless only trainable was given. */
bool tr_param_learns(const struct tr_config *cfg, const char *name);
bool tr_pattern_matches(const char *pattern, const char *name); /* * and ? as in a shell; dots are not special */

/* ---- groups of parameters ---- */

/* Group 0 holds the parameters that no pattern matches. Each group has a row of the step buffer, so groups never split
 * a bucket. */
enum { TR_GROUPS_MAX = 16, TR_PATTERN_MAX = 128 };
struct tr_param_group {
    char pattern[TR_PATTERN_MAX];
    int n_dims; /* only parameters with this many dims; 0: any */
    double lr_factor;
    bool has_decay; /* the group has its own weight_decay, which applies to all of its parameters */
    double weight_decay;
};
struct tr_param_groups {
    int n; /* 0: only group 0 exists */
    struct tr_param_group group[TR_GROUPS_MAX];
};
/* Loads the file of the option optim_groups; n is 0 without one. */
enum tr_status tr_groups_load(const char *path, struct tr_param_groups *out);
/* Adds a group behind those of the file. */
enum tr_status tr_groups_add(struct tr_param_groups *g, const char *pattern, int n_dims, double lr_factor);
int tr_param_group_of(const struct tr_param_groups *g, const char *name, int n_dims); /* the first that matches */
/* The group's row of the step buffer, from that of group 0. */
void tr_group_values(const struct tr_param_groups *g, int group, const float values[TR_STEP_COUNT],
                     float out[TR_STEP_COUNT]);

/* ---- values of a step ---- */

/* Learning rate of optimizer step `step` (0 = the first) of `total`, as transformers computes it. */
double tr_lr_at(const struct tr_config *cfg, int64_t step, int64_t total);

/* The step buffer of `step`: everything the kernels read that changes per step. Clip is 1 until the norm is known. */
void tr_step_values(const struct tr_config *cfg, int64_t step, int64_t total, int64_t n_targets,
                    float out[TR_STEP_COUNT]);

/* Adapts the values to a loss that is multiplied by `scale`, after n_skipped steps without an update, which the moments
 * have not seen. */
void tr_step_scale(const struct tr_config *cfg, int64_t step, double scale, int64_t n_skipped,
                   float out[TR_STEP_COUNT]);

/* BETA1, BETA2, EPS and the bias corrections: what optimizers with decaying averages read. */
void tr_step_averages(const struct tr_config *cfg, double beta1, int64_t n_updates, float out[TR_STEP_COUNT]);

/* Factor on all gradients so that their norm is at most max_norm (0 = off); torch's clip_grad_norm_. */
float tr_clip_factor(double norm, double max_norm);

#endif
