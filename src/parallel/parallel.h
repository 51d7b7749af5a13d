/* parallel.h - room header of parallel: passes over programs (level 1) and the schedule of a rank (level 2).
 *
 * tr_compile() turns a model and a few options into everything a step needs to know: rewritten programs, the list of
 * actions, and an offset for every byte. `train` runs the result and `plan` prints it; both use the same one.
 */
#ifndef TR_PARALLEL_PARALLEL_H
#define TR_PARALLEL_PARALLEL_H

#include "parallel/placement.h"
#include "parallel/legal.h"
#include "parallel/schedule.h"

/* ---- level 1 ---- */

struct tr_pass_ctx {
    enum tr_dtype compute_dtype, grad_dtype;
    bool is_training, splits_backward; /* input and weight parts of the backward run at different times */
    bool skips_din, skips_dout;        /* no gradient of the segment's input is wanted; none of its output comes */
    enum tr_recompute recompute;
    int64_t cache_rows; /* generation: attention over a cache of this many positions a sequence; 0 = none */
    int n_threads;
    struct tr_layout layout;
    const struct tr_column *column; /* kernels of the device: their scratch sizes and the calls they refuse */
    bool fuses, any_order, fp8, fp8_e5m2, fp8_history;
};

/* context.c: where in a row this rank's runs of tokens begin, and the length of each; returns the number of runs. */
enum { TR_MAX_RUNS = 2 };
int tr_context_runs(const struct tr_layout *l, int64_t row_tokens, int64_t first[TR_MAX_RUNS], int64_t *n);

/* Passes rewrite a program in place, in the order of this table. A pass with nothing to do leaves the program
 * unchanged. */
struct tr_pass {
    const char *name;
    enum tr_status (*run)(struct tr_program *p, const struct tr_pass_ctx *ctx);
};
extern const struct tr_pass tr_passes[];
extern const size_t tr_n_passes;
enum tr_status tr_run_passes(struct tr_program *p, const struct tr_pass_ctx *ctx);

enum tr_status tr_pass_tensor(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_context(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_precision(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_cache(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_grad(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_fp8(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_recompute(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_side(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_fuse(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_dequant(struct tr_program *p, const struct tr_pass_ctx *ctx);
enum tr_status tr_pass_layout(struct tr_program *p, const struct tr_pass_ctx *ctx); /* lifetimes -> offsets */

enum tr_arena_id {
    TR_A_PARAMS,
    TR_A_GRADS,
    TR_A_OPTIM,
    TR_A_ACTS,
    TR_A_WORK,
    TR_A_CACHE,
    TR_A_DATA,
    TR_A_SAVE,
    TR_A_STAGING,
    TR_A_HOST,
    TR_A_DISK,
    TR_A_COUNT
};

struct tr_arena_row {
    const char *name;
    enum tr_space space;
};
const struct tr_arena_row *tr_arena_row(enum tr_arena_id a);

struct tr_slice {
    char name[TR_NAME_MAX];
    enum tr_arena_id arena;
    size_t offset, bytes;
};

static inline enum tr_arena_id tr_state_arena(const struct tr_placement *p, int row, int bucket)
{
    if (row == TR_S_VALUE)
        return !p->is_value_on_host[bucket] ? TR_A_PARAMS : p->has_values_on_disk ? TR_A_DISK : TR_A_HOST;
    return row == TR_S_GRAD         ? (p->is_grad_on_host[bucket] ? TR_A_HOST : TR_A_GRADS)
           : !p->is_on_host[bucket] ? TR_A_OPTIM
           : p->has_states_on_disk  ? TR_A_DISK
                                    : TR_A_HOST;
}

struct tr_compile_options {
    enum tr_dtype compute_dtype, grad_dtype, master_dtype, moment_dtype;
    enum tr_dtype reduce_dtype;   /* dtype of gradients between data ranks, where it is narrower than grad_dtype */
    const struct tr_optim *optim; /* NULL: no gradients and no state: inference */
    const bool *is_frozen;        /* by parameter; NULL: all learn */
    /* by parameter, enum tr_packed: matrices of linears that do not learn and are held packed; NULL: none */
    const uint8_t *packed_of;
    bool nests_scales; /* loading rounds the scales of weights that it packs by double quantisation */
    /* by parameter: how many tensors of a checkpoint, which is one file, hold its weights; NULL: one, in several files
     */
    const uint8_t *n_saved;
    struct tr_param_groups groups;
    /* The share of optimizer state and master weights that lives on the host, and the share of frozen parameters. Below
     * 0: the smallest share with which the run fits the budget. Where all parameters learn, the second is only asked
     * whether it is above 0: then parameters live where their states do. */
    double offload_share, offload_param_share;
    bool offloads_to_disk, offloads_params_to_disk; /* what is offloaded lives in a file in offload_dir */
    const char *offload_dir;
    bool offloads_grads;    /* gradients of buckets whose states live on the host rest there too */
    bool updates_on_host;   /* the host updates the buckets of which it holds all */
    bool stows_activations; /* inputs of segments rest on the host between forward and backward */
    struct tr_layout layout;
    const char *pp_schedule; /* NULL: 1f1b */
    int pp_chunks;           /* stages a rank holds; 0: one */
    int n_micro;
    enum tr_recompute recompute; /* AUTO: the cheapest set that fits memory_budget */
    uint64_t memory_budget;      /* of the device's space; 0 = none */
    int n_threads;
    /* kernels of the device: their scratch sizes and the calls they refuse; NULL: the CPU's */
    const struct tr_column *column;
    bool has_own_memory; /* the device does not see host memory: batches are copied to it */
    bool fuses;          /* its kernels combine several ops: passes side and fuse */
    bool fp8;            /* products of linears in 8-bit floats */
    /* gradients in e5m2, otherwise e4m3; scales from the amax history, otherwise from the current value */
    bool fp8_e5m2, fp8_history;
    bool any_order;                /* kernels may sum in an order that changes from run to run, where the column does */
    size_t data_bytes, save_bytes; /* held by the loader and by saving: host memory */
    size_t pages_bytes;            /* of the file that saving writes: host memory */
    bool stages_saves;             /* a checkpoint is copied into the staging arena and written from there */
    size_t part_bytes;             /* weights that are worth a file and a writer of their own; 0: all of a stage's */
    enum tr_dtype save_dtype;      /* of the weights in a checkpoint */
    size_t batch_bytes;            /* one micro-batch on a device that does not see host memory; else 0 */
    bool is_inference;             /* set by tr_compile: no model to train, so no gradients and no optimizer state */
    /* generation: positions that the key/value cache holds of each sequence, and sequences; 0 = no cache */
    int64_t cache_rows, cache_sequences;
};

/* Where a bucket is in the arenas. */
struct tr_bucket_offsets {
    size_t host;                 /* host or disk arena: where its states begin */
    size_t levels;               /* in_order, grads arena: n_levels sums of 1, 2, 4 ... leaves, whole */
    size_t state[TR_STATES_MAX]; /* by state row, in the arena of that row: whole, or this rank's shard */
};

/* An offset for every byte. */
struct tr_memory_map {
    size_t bytes[TR_A_COUNT];
    struct tr_slice *slice; /* every byte of every arena, by arena and offset */
    int n_slices;
    size_t n_slices_cap;
    struct tr_bucket_offsets *bucket; /* by bucket */
    size_t constant[TR_C_COUNT];      /* params arena */
    /* grads arena: a reduced shard before it is added (zero 2 and 3); in_order: one part from every rank */
    size_t staging;
    size_t gathered;                         /* params arena: slots of parameters that come and go */
    size_t unreduced;                        /* grads arena: buffers of whole gradients (zero 2 and 3) */
    size_t wire;                             /* grads arena: a bucket's gradients in reduce_dtype */
    size_t states;                           /* optim arena: slots for states that live on the host */
    size_t disk_buffers, disk_buffer;        /* host arena: buffers between disk and device; bytes of each */
    size_t resting;                          /* host arena: slots for activations between forward and backward */
    size_t direction;                        /* params arena: the direction of the update of a bucket */
    size_t sums;                             /* params arena: sums of the update of a bucket */
    size_t matrix;                           /* params arena: a matrix of all tensor ranks, as they sent it and whole */
    size_t *cache, cache_bytes;              /* by segment; bytes of the keys of all sequences, values follow */
    size_t step, loss, norm, temps, scratch; /* work arena */
    size_t step_before;                      /* work arena: step values of updates that wait for the next step */
    size_t batch;                            /* work arena: micro-batches on the device */
    /* work arena: for each segment n_amax pairs of F32, the largest elements before and in this step (fp8) */
    size_t amax;
    int n_amax;
    size_t local, local_bytes; /* work arena: this rank's tokens of a micro-batch; bytes of each part */
    size_t logits, get;        /* save arena: logits and parameters for the host */
    size_t pages, copy;        /* staging arena: pages of the file that is being written; copy of the checkpoint */
};

/* Three parts, made in this order; each is constant once it is made, and a reader takes the part it needs. */
struct tr_compiled {
    struct tr_compile_options opt; /* with every default filled in */
    struct tr_placement place;
    struct tr_pipe *pipe;            /* order of the pipeline's training schedule (pipe.h); NULL: no training */
    enum tr_recompute *recompute_of; /* by segment: of its training program */
    struct tr_schedule schedule[TR_PURPOSES]; /* without actions where there is no model for the purpose */
    struct tr_memory_map memory;
};

/* Do gradients travel between ranks in the narrower reduce_dtype? */
static inline bool tr_has_wire(const struct tr_compile_options *o)
{
    return tr_dtype_bytes(o->reduce_dtype) < tr_dtype_bytes(o->grad_dtype) && !o->layout.in_order &&
           o->layout.data_size * o->layout.size[TR_AXIS_CP] > 1 && !o->is_inference;
}

/* ---- compiling ---- */

/* The models are one architecture, each with the batch of its purpose; NULL: not needed. Evaluation has no dropout,
 * decoding is one token with the cache. Without a model to train the run is inference. */
enum tr_status tr_compile(const struct tr_model *const model[TR_PURPOSES], const struct tr_compile_options *opt,
                          struct tr_compiled **out);
void tr_compiled_close(struct tr_compiled *c);
/* Memory of all arenas; what is on a disk does not count. */
size_t tr_compiled_bytes(const struct tr_compiled *c);
/* Bytes of the arenas in one space. A device without its own memory uses the host's, so every space counts all arenas.
 */
size_t tr_compiled_bytes_in(const struct tr_compiled *c, enum tr_space space);
/* Bytes of what the head of a schedule puts out: logits, or sums of documents; 0: a loss alone, or another stage has
 * the head. */
size_t tr_head_bytes(const struct tr_schedule *s);
/* Are the logits of a schedule parts of the vocabulary, one for each tensor rank, that the host puts together? */
static inline bool tr_logits_are_parts(const struct tr_compiled *c)
{
    return c->opt.layout.size[TR_AXIS_TP] > 1;
}
/* The model whose constant table is the longest: all schedules read that one table. */
const struct tr_model *tr_constant_model(const struct tr_compiled *c, int constant);
/* Bytes of the gradients of a bucket that live on the host, in front of all that lives there; 0: they do not. */
size_t tr_bucket_grad_bytes_on_host(const struct tr_placement *p, int bucket);
/* Do updates of a step wait for the next step? */
bool tr_defers_updates(const struct tr_schedule *s);
/* Prints the pipeline schedule, then this rank's training actions. */
void tr_schedule_print(const struct tr_compiled *c, struct tr_str *out);

#include "parallel/pipe.h"

#endif
