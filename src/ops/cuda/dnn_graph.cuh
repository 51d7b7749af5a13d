/* dnn_graph.cuh - builds a cuDNN operation graph from C calls, one line an operation.
 *
 * The plan owns every descriptor that was made and frees it. After the first failure the functions do nothing, so a
 * graph is written without checks and tested once, at the end.
 */
#ifndef TR_OPS_CUDA_DNN_GRAPH_CUH
#define TR_OPS_CUDA_DNN_GRAPH_CUH

#include "ops/cuda/library.cuh"

enum { MAX_DESCS = 192, MAX_OPS = 48, MAX_BOUND = 32 };

typedef cudnnBackendDescriptor_t dnn_desc;

/* A tensor of the graph: what the next operation needs to know about it. */
struct dnn_tensor {
    dnn_desc desc;
    int64_t uid, dim[4], stride[4];
    cudnnDataType_t type;
};

struct dnn_plan {
    uint64_t key[20];
    dnn_desc descs[MAX_DESCS], ops[MAX_OPS], plan;
    int n_descs, n_ops;
    int64_t n_uids, workspace_bytes;
    bool is_ok;     /* false: cuDNN does not cover this call; our kernel runs it */
    float value[8]; /* scalars of the graph, by value */
    int n_values;
    int64_t uid[MAX_BOUND]; /* the tensors that get a pointer at each run */
    void *at[MAX_BOUND];
    int n_bound;
};

struct dnn_graph {
    struct tr_cuda_library *l;
    struct dnn_plan *p;
    cudnnDataType_t io; /* type of the tensors of the call */
};

struct dnn_shape {
    int64_t dim[4], stride[4];
};

static inline struct dnn_shape shape4(int64_t b, int64_t h, int64_t s, int64_t d, int64_t sb, int64_t sh, int64_t ss,
                                      int64_t sd)
{
    return dnn_shape{ { b, h, s, d }, { sb, sh, ss, sd } };
}
static inline struct dnn_shape packed4(int64_t b, int64_t h, int64_t s, int64_t d)
{
    return shape4(b, h, s, d, h * s * d, s * d, d, 1);
}

/* A virtual tensor exists only inside the kernel. */
struct dnn_tensor dnn_tensor_of(struct dnn_graph *g, const struct dnn_shape &s, cudnnDataType_t type, bool is_virtual);
struct dnn_tensor dnn_scalar(struct dnn_graph *g, float x);
/* y = mode(x, b, t); b, t may be NULL. y takes x's shape. axis >= 0: for indices. */
struct dnn_tensor dnn_pointwise(struct dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math,
                                const struct dnn_tensor &x, const struct dnn_tensor *b, const struct dnn_tensor *t,
                                cudnnDataType_t out, int axis);
void dnn_pointwise_to(struct dnn_graph *g, cudnnPointwiseMode_t mode, const struct dnn_tensor &x,
                      const struct dnn_tensor *b, const struct dnn_tensor &y);
void dnn_reduce_to(struct dnn_graph *g, cudnnReduceTensorOp_t op, const struct dnn_tensor &x,
                   const struct dnn_tensor &y);
void dnn_matmul_to(struct dnn_graph *g, const struct dnn_tensor &a, const struct dnn_tensor &b,
                   const struct dnn_tensor &c);
void dnn_reshape_to(struct dnn_graph *g, const struct dnn_tensor &x, const struct dnn_tensor &y);

/* Takes the first plan of the library's own ranking whose workspace fits. */
void dnn_finish(struct dnn_graph *g, size_t workspace_limit);
/* dnn_bind appoints a tensor of the call; a run takes pointers in the order of these calls. */
void dnn_bind(struct dnn_plan *p, const struct dnn_tensor &t);
bool dnn_run(const struct tr_call *c, struct dnn_plan *p, void *const *at, int n, void *workspace);

#endif
