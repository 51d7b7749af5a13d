/* parallel.h - room header of parallel: passes over programs (level 1) and the schedule of a rank (level 2).
 *
 * tr_compile() turns a model and a few options into everything a step needs to know: rewritten programs, the list of
 * actions, and an offset for every byte. `train` runs the result and `plan` prints it; both use the same one.
 */
#ifndef TR_PARALLEL_PARALLEL_H
#define TR_PARALLEL_PARALLEL_H

#include "config/config.h"
#include "mesh/mesh.h"
#include "model/model.h"
#include "optim/optim.h"
#include "parallel/tp_shard.h"
#include "parallel/legal.h"
#include "parallel/schedule.h"

/* How ranks share the data and the state; one rank: all sizes 1, zero 0. */
struct tr_layout {
    int data_size, data_rank;          /* ranks that read different rows */
    int shard_size, shard_rank;        /* of them, the ranks that share one copy of what `zero` shards */
    int size[TR_AXES], coord[TR_AXES]; /* the mesh, and this rank's place in it */
    enum tr_cp_mode cp_mode; /* how context-parallel ranks, which split the tokens of a row, share attention */
    bool sp;                 /* tensor-parallel ranks split the rows between their products */
    int zero;                /* 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters */
    bool sync_last;          /* zero 2 and 3: gradients stay whole until the last micro-batch, and travel once */
    /* gradients are summed along one tree over the micro-batches of all ranks: every layout gives the same bits */
    bool in_order;
    int32_t grain; /* elements: parameters and shards begin on multiples of it; set by tr_compile from the state rows */
};

enum { TR_NORM_PIECE = 4096 }; /* in_order: elements of a parameter that are one term of the gradient norm */

/* Do several ranks share the work along any of these axes? */
static inline bool tr_layout_splits(const struct tr_layout *l, tr_axes axes)
{
    for (int a = 0; a < TR_AXES; a++)
        if (axes >> a & 1 && l->size[a] > 1)
            return true;
    return false;
}

/* The number of micro-batches in one leaf of that tree: the odd part of n. So 2^k ranks hold whole leaves, for any n.
 */
static inline int tr_odd_part(int n)
{
    while (n > 1 && n % 2 == 0)
        n /= 2;
    return n;
}

/* The ZeRO level of gradients. It is at most 1 where gradients stay whole until the last micro-batch: in order, because
 * the tree adds whole gradients, and with sync_last. */
static inline int tr_grad_zero(const struct tr_layout *l)
{
    return (l->in_order || l->sync_last) && l->zero > 1 ? 1 : l->zero;
}

/* ---- level 1 ---- */

struct tr_pass_ctx {
    enum tr_dtype compute_dtype, grad_dtype;
    bool is_training, splits_backward; /* input and weight parts of the backward run at different times */
    enum tr_recompute recompute;
    int64_t cache_rows; /* inference: attention over a cache of this many positions; 0 = none */
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
enum tr_status tr_pass_layout(struct tr_program *p, const struct tr_pass_ctx *ctx); /* lifetimes -> offsets */

/* Frozen parameters lie in buckets of their own, behind all others: one for each segment that uses them first, and one
 * for shared parameters. These buckets hold VALUE only. */
static inline int tr_frozen_bucket(const struct tr_model *m, int bucket)
{
    return m->n_segments + 2 + bucket;
}
static inline bool tr_bucket_is_frozen(const struct tr_model *m, int bucket)
{
    return bucket >= m->n_segments + 2;
}
/* The segment of a bucket. n_segments: the bucket of parameters that several stages hold; n_segments + 1: the bucket of
 * their second use. */
static inline int tr_bucket_segment(const struct tr_model *m, int bucket)
{
    return tr_bucket_is_frozen(m, bucket) ? bucket - m->n_segments - 2 : bucket;
}

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

static inline enum tr_arena_id tr_state_arena(int row)
{
    return row == TR_S_VALUE ? TR_A_PARAMS : row == TR_S_GRAD ? TR_A_GRADS : TR_A_OPTIM;
}

/* How the gradients of a bucket are summed over ranks. A rank that saw other tokens has a part of the sum, and so has a
 * rank that holds a whole parameter which reads split data: (token axes & ~axes that shard it) | partial axes. */
enum { TR_MAX_HOPS = 3 };
struct tr_hop {
    tr_axes axes;    /* axes of the ranks whose gradients are summed */
    bool is_scatter; /* each rank keeps its shard; otherwise every rank gets the whole sum */
    int64_t n;       /* the sum covers the first n elements of the bucket */
};

/* A bucket is a set of parameters that lie side by side and are gathered, reduced and sharded at once. A parameter lies
 * in the bucket of the first segment of its rank that uses it. Parameters that several stages hold have a bucket of
 * their own, after the last segment. In order (tr_layout), one rank sums the gradients of the two uses separately, as
 * two stages would; those of the second use are in the bucket after that. Every arena holds the parameters of a bucket
 * in the same order, so an element has one index. */
struct tr_bucket {
    int64_t n;         /* elements, padded so that shards are equal */
    int64_t n_partial; /* the first elements: their gradients are sums over the tensor axis */
    int n_hops;        /* the sums over ranks; their order decides the bits of the result */
    struct tr_hop hop[TR_MAX_HOPS];
    int64_t shard_first, shard_n; /* this rank's shard (the whole bucket when nothing is sharded) */
    size_t levels;                /* in_order, grads arena: n_levels sums of 1, 2, 4 ... leaves, whole */
    size_t state[TR_STATES_MAX];  /* by state row, in the arena of that row: whole, or this rank's shard */
};

/* Where a parameter is in its bucket, and which of its elements this rank updates. Elements are those of the local
 * matrix, which is the shard that the tensor axis leaves on this rank. */
struct tr_param_place {
    int bucket; /* -1: only another stage holds it */
    int stage;  /* the first stage that uses it: its rank saves it and counts it in norms */
    int writer; /* the rank that writes it, whole, into a file of weights */
    struct tr_tp_shard tp;
    bool is_partial;  /* its gradient is summed over the tensor axis */
    int64_t at;       /* in the bucket */
    int64_t first, n; /* elements [first, first + n) of the parameter; n may be 0 */
};

struct tr_compile_options {
    enum tr_dtype compute_dtype, grad_dtype, master_dtype, moment_dtype;
    enum tr_dtype reduce_dtype;   /* dtype of gradients between data ranks, where it is narrower than grad_dtype */
    const struct tr_optim *optim; /* NULL: no gradients and no state: inference */
    const bool *is_frozen;        /* by parameter; NULL: all learn */
    struct tr_param_groups groups;
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
    bool is_inference;             /* eval and generate: no gradients, no optimizer state */
    int64_t cache_rows;            /* generate: positions that the key/value cache holds; 0 = no cache */
};

struct tr_compiled {
    struct tr_compile_options opt;
    struct tr_states states;                                  /* what is held of each parameter */
    const struct tr_model *model, *eval_model, *decode_model; /* of each schedule; the last two may be NULL */
    struct tr_schedule train, eval, decode;                   /* decode: generate's single token */
    enum tr_recompute *recompute_of;                          /* by segment */
    struct tr_param_place *place;                             /* by parameter */
    bool *is_frozen;                                          /* by parameter: no gradient, no state, no update */
    uint8_t *group_of;        /* by parameter: its group, and its row of the step buffer */
    struct tr_bucket *bucket; /* by bucket */
    int n_buckets;            /* segments, the shared one, its second */
    int n_stages, *stage_of;  /* by segment; stage k is pipeline rank k % pp's */
    struct tr_pipe *pipe;     /* of the pipeline (pipe.h); NULL: no training */
    double bubble;            /* share of idle time of that schedule, by the formula */
    /* grads arena: a reduced shard before it is added (zero 2 and 3); in_order: one part from every rank */
    size_t staging;
    size_t wire; /* grads arena: a bucket's gradients in reduce_dtype */
    bool has_wire;
    /* in_order: levels of the tree over this rank's micro-batches; level 0 is the leaf that is being summed */
    int n_levels;
    int *norm_first; /* by parameter: its first slot of `norm`; one past the last parameter: how many there are */
    size_t constant[TR_C_COUNT];             /* params arena */
    size_t *cache, cache_bytes;              /* by segment; bytes of the keys alone, values follow */
    size_t step, loss, norm, temps, scratch; /* work arena */
    size_t batch;                            /* work arena: micro-batches on the device */
    /* work arena: for each segment n_amax pairs of F32, the largest elements before and in this step (fp8) */
    size_t amax;
    int n_amax;
    size_t logits, get;        /* save arena: copies of device memory for the host */
    size_t pages, copy;        /* staging arena: pages of the file that is being written; copy of the checkpoint */
    size_t local, local_bytes; /* work arena: this rank's tokens of a micro-batch; bytes of each part */
    size_t bytes[TR_A_COUNT];
    struct tr_slice *slice; /* every byte of every arena, by arena and offset */
    int n_slices, n_slices_cap;
};

/* ---- compiling ---- */

/* eval_model: the same architecture without dropout and with its own batch. decode_model: the same for one token, with
 * the cache. NULL: not needed. */
enum tr_status tr_compile(const struct tr_model *m, const struct tr_model *eval_model,
                          const struct tr_model *decode_model, const struct tr_compile_options *opt,
                          struct tr_compiled **out);
void tr_compiled_close(struct tr_compiled *c);
size_t tr_compiled_bytes(const struct tr_compiled *c);
/* Bytes of the arenas in one space. A device without its own memory uses the host's, so every space counts all arenas.
 */
size_t tr_compiled_bytes_in(const struct tr_compiled *c, enum tr_space space);
/* Prints the pipeline schedule, then this rank's actions. */
void tr_schedule_print(const struct tr_compiled *c, struct tr_str *out);
/* Does this rank hold the segment? */
bool tr_segment_is_here(const struct tr_compiled *c, int segment);
/* Does this rank count a parameter that it holds in norms? A tensor that several ranks hold is counted
 * once, a frozen one never. */
bool tr_param_is_counted(const struct tr_compiled *c, int param);
/* Is this the rank of the first stage that uses the parameter? That stage saves it and counts it in norms. */
bool tr_param_is_first(const struct tr_compiled *c, int param);
/* Forward and backward flops of one token, without recompute. Unlike tr_model_flops_per_token it leaves out the
 * products that make gradients of frozen weights. */
double tr_flops_per_token(const struct tr_compiled *c);

#include "parallel/pipe.h"

#endif
