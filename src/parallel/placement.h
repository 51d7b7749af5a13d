/* placement.h - part of the room header: which rank holds what. The layout, buckets, and a place for every parameter.
 */
#ifndef TR_PARALLEL_PLACEMENT_H
#define TR_PARALLEL_PLACEMENT_H

#include "config/config.h"
#include "mesh/mesh.h"
#include "model/model.h"
#include "optim/optim.h"
#include "parallel/tp_shard.h"

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

/* Each fate has as many buckets as there are segments and two more, in the order of enum tr_fate. */

/* The bucket of another fate, of a bucket of parameters that learn. */
static inline int tr_fate_bucket(const struct tr_model *m, enum tr_fate fate, int bucket)
{
    return (int)fate * (m->n_segments + 2) + bucket;
}
static inline enum tr_fate tr_bucket_fate(const struct tr_model *m, int bucket)
{
    return (enum tr_fate)(bucket / (m->n_segments + 2));
}
static inline bool tr_bucket_is_frozen(const struct tr_model *m, int bucket)
{
    return tr_bucket_fate(m, bucket) >= TR_FROZEN;
}
/* The segment of a bucket. n_segments: the bucket of parameters that several stages hold; n_segments + 1: the bucket of
 * their second use. */
static inline int tr_bucket_segment(const struct tr_model *m, int bucket)
{
    return bucket % (m->n_segments + 2);
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
    int64_t n;             /* elements, padded so that shards are equal */
    enum tr_packed packed; /* VALUE is held in grains of this format; TR_NOT_PACKED: in the compute dtype */
    int64_t n_partial;     /* the first elements: their gradients are sums over the tensor axis */
    int n_hops;            /* the sums over ranks; their order decides the bits of the result */
    struct tr_hop hop[TR_MAX_HOPS];
    int64_t n_by[TR_PER_COL + 1]; /* elements of its states by row and by column */
    int64_t shard_first, shard_n; /* this rank's shard (the whole bucket when nothing is sharded) */
};

/* Where a parameter is in its bucket, and which of its elements this rank updates. Elements are those of the local
 * matrix, which is the shard that the tensor axis leaves on this rank. */
struct tr_param_place {
    int bucket; /* -1: only another stage holds it */
    int stage;  /* the first stage that uses it: its rank saves it and counts it in norms */
    int writer; /* the rank that writes it, whole, into a file of weights */
    struct tr_tp_shard tp;
    bool is_partial;               /* its gradient is summed over the tensor axis */
    int64_t at;                    /* in the bucket */
    int64_t at_by[TR_PER_COL + 1]; /* in its states by row and by column */
    int64_t first, n;              /* elements [first, first + n) of the parameter; n may be 0 */
};

/* Which rank holds what: the stages, the buckets, and this rank's part of every parameter. */
struct tr_placement {
    const struct tr_model *model;   /* its segments and parameters are those of every schedule */
    const struct tr_layout *layout; /* that of tr_compiled.opt */
    bool matrices_first;            /* in buckets: weights that fused kernels use together lie side by side */
    struct tr_states states;        /* what is held of each parameter */
    struct tr_param_place *param;   /* by parameter */
    bool *is_frozen;                /* by parameter: no gradient, no state, no update */
    uint8_t *fate_of;               /* by parameter: enum tr_fate, which says which states it has */
    uint8_t *packed_of;             /* by parameter: enum tr_packed */
    bool *is_on_host;               /* by bucket: its MASTER and the states of its optimizer live on the host */
    bool has_states_on_disk, has_values_on_disk; /* what would live on the host lives in a file */
    /* by bucket: its parameters live on the host; those that learn lie in front of their states there, and travel with
     * them to an update */
    bool *is_value_on_host;
    bool *is_grad_on_host;    /* by bucket: its gradients rest there between micro-batches and until the update */
    uint8_t *group_of;        /* by parameter: its group, and its row of the step buffer */
    int *norm_first;          /* by parameter: its first slot of `norm`; one past the last: how many there are */
    int n_stages, *stage_of;  /* by segment; stage k is pipeline rank k % pp's */
    struct tr_bucket *bucket; /* by bucket */
    int n_buckets;            /* segments, the shared one, its second: as many for each fate that occurs */
    /* in_order: levels of the tree over this rank's micro-batches; level 0 is the leaf that is being summed */
    int n_levels;
};

/* Does this rank hold the segment? */
bool tr_segment_is_here(const struct tr_placement *p, int segment);
/* May this parameter be held packed when it does not learn? A matrix that only linears of layers read may: embeddings
 * and heads are read by other ops. Adapters are never packed. */
bool tr_param_may_pack(const struct tr_model *m, int param);
/* Is it a table that tokens or positions are looked up in? */
bool tr_param_is_table(const struct tr_model *m, int param);
/* Do only layers use it? */
bool tr_param_is_hidden(const struct tr_model *m, int param);
/* Is it a matrix (in, out), as GPT-2's Conv1D has it? Packed, its elements lie in the order of (out, in): bitsandbytes
 * packs the transpose. */
bool tr_param_is_in_out(const struct tr_model *m, int param);
/* TR_USAGE: so many tensor ranks cut a parameter that learns (is_frozen NULL: all do) inside a block of a state of its
 * optimizer, which two ranks cannot share. */
enum tr_status tr_optim_check_blocks(const struct tr_model *m, const struct tr_optim *o, const bool *is_frozen, int tp);
/* Bytes of the VALUE of n elements of a bucket. A packed one holds whole grains. */
size_t tr_bucket_bytes(const struct tr_placement *p, int bucket, int64_t n);
/* What an optimizer means by a matrix: parts that lie side by side in one parameter (q | k | v) are matrices of their
 * own. Returns how many there are. */
struct tr_matrix {
    int64_t row, rows, col, cols;
};
enum { TR_MAX_MATRICES = 4 };
int tr_param_matrices(const struct tr_param *p, struct tr_matrix out[TR_MAX_MATRICES]);
/* The rank of the shard axis that runs the phases on whole matrices for this parameter; 0 where nothing is sharded. */
int tr_whole_owner(const struct tr_placement *p, int param);
/* Has it states by row? And how many sums has it in phases with sums: one of all elements, and then one for each row
 * and column of a matrix. */
bool tr_param_has_rows(const struct tr_placement *p, int param);
int64_t tr_param_sums(const struct tr_placement *p, int param);
/* Does this rank count a parameter that it holds in norms? A tensor that several ranks hold is counted
 * once, a frozen one never. */
bool tr_param_is_counted(const struct tr_placement *p, int param);
/* Is this the rank of the first stage that uses the parameter? That stage saves it and counts it in norms. */
bool tr_param_is_first(const struct tr_placement *p, int param);
/* Forward and backward flops of one token, without recompute. Unlike tr_model_flops_per_token it leaves out the
 * products that make gradients of frozen weights. */
double tr_flops_per_token(const struct tr_placement *p);

#endif
