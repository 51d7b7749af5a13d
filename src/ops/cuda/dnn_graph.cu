/* dnn_graph.cu - cuDNN's graph API: descriptors with attributes, finalized one by one (dnn_graph.cuh). */
#include "ops/cuda/dnn_graph.cuh"
#include <stdlib.h>

static dnn_desc make(struct dnn_graph *g, cudnnBackendDescriptorType_t type)
{
    struct dnn_plan *p = g->p;
    dnn_desc d = NULL;
    if (p->is_ok && p->n_descs < MAX_DESCS && g->l->fn.cudnnBackendCreateDescriptor(type, &d) == CUDNN_STATUS_SUCCESS)
        p->descs[p->n_descs++] = d;
    else
        p->is_ok = false;
    return d;
}

static void set(struct dnn_graph *g, dnn_desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *v)
{
    g->p->is_ok = g->p->is_ok && g->l->fn.cudnnBackendSetAttribute(d, name, type, n, v) == CUDNN_STATUS_SUCCESS;
}

static void set_desc(struct dnn_graph *g, dnn_desc d, cudnnBackendAttributeName_t name, dnn_desc v)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &v);
}

static void finalize(struct dnn_graph *g, dnn_desc d)
{
    g->p->is_ok = g->p->is_ok && g->l->fn.cudnnBackendFinalize(d) == CUDNN_STATUS_SUCCESS;
}

static void add_op(struct dnn_graph *g, dnn_desc d)
{
    finalize(g, d);
    if (g->p->n_ops == MAX_OPS)
        g->p->is_ok = false;
    else
        g->p->ops[g->p->n_ops++] = d;
}

static struct dnn_tensor tensor(struct dnn_graph *g, const struct dnn_shape &s, cudnnDataType_t type, bool is_virtual,
                                bool is_value)
{
    struct dnn_tensor t = { make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR), ++g->p->n_uids, {}, {}, type };
    int64_t align = is_value ? 4 : 16;
    for (int i = 0; i < 4; i++)
        t.dim[i] = s.dim[i], t.stride[i] = s.stride[i];
    set(g, t.desc, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t.desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t.dim);
    set(g, t.desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t.stride);
    set(g, t.desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t.uid);
    set(g, t.desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set(g, t.desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(g, t.desc, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_value);
    finalize(g, t.desc);
    return t;
}

struct dnn_tensor dnn_tensor_of(struct dnn_graph *g, const struct dnn_shape &s, cudnnDataType_t type, bool is_virtual)
{
    return tensor(g, s, type, is_virtual, false);
}

struct dnn_tensor dnn_scalar(struct dnn_graph *g, float x)
{
    struct dnn_plan *p = g->p;
    struct dnn_tensor t = tensor(g, packed4(1, 1, 1, 1), CUDNN_DATA_FLOAT, false, true);
    TR_BUG_ON(p->n_values == (int)TR_COUNT_OF(p->value) || p->n_bound == MAX_BOUND);
    p->value[p->n_values] = x;
    p->uid[p->n_bound] = t.uid;
    p->at[p->n_bound++] = &p->value[p->n_values++];
    return t;
}

static void pointwise(struct dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, const struct dnn_tensor &x,
                      const struct dnn_tensor *b, const struct dnn_tensor *t, const struct dnn_tensor &y, int axis)
{
    dnn_desc d = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
             op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    int64_t a = axis;
    set(g, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    if (axis >= 0)
        set(g, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &a);
    finalize(g, d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.desc);
    if (b)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->desc);
    if (t)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.desc);
    add_op(g, op);
}

struct dnn_tensor dnn_pointwise(struct dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math,
                                const struct dnn_tensor &x, const struct dnn_tensor *b, const struct dnn_tensor *t,
                                cudnnDataType_t out, int axis)
{
    struct dnn_tensor y =
        tensor(g, shape4(x.dim[0], x.dim[1], x.dim[2], x.dim[3], x.stride[0], x.stride[1], x.stride[2], x.stride[3]),
               out, true, false);
    pointwise(g, mode, math, x, b, t, y, axis);
    return y;
}

void dnn_pointwise_to(struct dnn_graph *g, cudnnPointwiseMode_t mode, const struct dnn_tensor &x,
                      const struct dnn_tensor *b, const struct dnn_tensor &y)
{
    pointwise(g, mode, CUDNN_DATA_FLOAT, x, b, NULL, y, -1);
}

void dnn_reduce_to(struct dnn_graph *g, cudnnReduceTensorOp_t op, const struct dnn_tensor &x,
                   const struct dnn_tensor &y)
{
    dnn_desc d = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
             node = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    set(g, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(g, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finalize(g, d);
    set_desc(g, node, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.desc);
    set_desc(g, node, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.desc);
    set_desc(g, node, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
    add_op(g, node);
}

void dnn_matmul_to(struct dnn_graph *g, const struct dnn_tensor &a, const struct dnn_tensor &b,
                   const struct dnn_tensor &c)
{
    dnn_desc d = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR), op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    set(g, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finalize(g, d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
    add_op(g, op);
}

void dnn_reshape_to(struct dnn_graph *g, const struct dnn_tensor &x, const struct dnn_tensor &y)
{
    dnn_desc op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.desc);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.desc);
    add_op(g, op);
}

/* ---- choosing and running ---- */

static bool try_config(struct dnn_graph *g, dnn_desc config, size_t limit)
{
    struct tr_cuda_library *l = g->l;
    dnn_desc plan = NULL;
    int64_t n = 0, bytes = 0;
    if (l->fn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS)
        return false;
    bool is_ok = l->fn.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                                &l->dnn) == CUDNN_STATUS_SUCCESS &&
                 l->fn.cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config) == CUDNN_STATUS_SUCCESS &&
                 l->fn.cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS &&
                 l->fn.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                                &bytes) == CUDNN_STATUS_SUCCESS &&
                 (size_t)bytes <= limit;
    if (is_ok) {
        g->p->plan = plan;
        g->p->workspace_bytes = bytes;
    } else {
        (void)l->fn.cudnnBackendDestroyDescriptor(plan);
    }
    return is_ok;
}

void dnn_finish(struct dnn_graph *g, size_t limit)
{
    enum { MAX_CONFIGS = 8 };
    struct dnn_plan *p = g->p;
    dnn_desc graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->l->dnn);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, p->n_ops, p->ops);
    finalize(g, graph);
    dnn_desc rank = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), config[MAX_CONFIGS];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    set_desc(g, rank, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, rank, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(g, rank);
    for (int i = 0; i < MAX_CONFIGS; i++)
        config[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t n = 0;
    p->is_ok = p->is_ok &&
               g->l->fn.cudnnBackendGetAttribute(rank, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                 MAX_CONFIGS, &n, config) == CUDNN_STATUS_SUCCESS;
    for (int i = 0; p->is_ok && i < n && i < MAX_CONFIGS && !p->plan; i++)
        (void)try_config(g, config[i], limit);
    p->is_ok = p->is_ok && p->plan;
}

void dnn_bind(struct dnn_plan *p, const struct dnn_tensor &t)
{
    TR_BUG_ON(p->n_bound == MAX_BOUND);
    p->uid[p->n_bound] = t.uid;
    p->at[p->n_bound++] = NULL;
}

bool dnn_run(const struct tr_call *c, struct dnn_plan *p, void *const *at, int n, void *workspace)
{
    struct tr_cuda_library *l = library_of(c);
    for (int i = 0, k = 0; i < p->n_bound; i++) /* a scalar already points into the plan */
        if ((char *)p->at[i] < (char *)p->value || (char *)p->at[i] >= (char *)(p->value + TR_COUNT_OF(p->value))) {
            TR_BUG_ON(k == n);
            p->at[i] = at[k++];
        }
    /* A variant pack can be filled only once, so each run needs a new one. */
    dnn_desc pack = NULL;
    bool is_ok =
        l->fn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack) == CUDNN_STATUS_SUCCESS &&
        l->fn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, p->n_bound,
                                       p->uid) == CUDNN_STATUS_SUCCESS &&
        l->fn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, p->n_bound,
                                       p->at) == CUDNN_STATUS_SUCCESS &&
        l->fn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace) ==
            CUDNN_STATUS_SUCCESS &&
        l->fn.cudnnBackendFinalize(pack) == CUDNN_STATUS_SUCCESS;
    cudnnStatus_t st = is_ok ? l->fn.cudnnBackendExecute(l->dnn, p->plan, pack) : CUDNN_STATUS_INTERNAL_ERROR;
    if (pack)
        (void)l->fn.cudnnBackendDestroyDescriptor(pack);
    if (st != CUDNN_STATUS_SUCCESS)
        tr_device_note(c->dev, TR_IO, "device cuda: op %s: cudnn: %s", tr_op_row(c->op)->name,
                       l->fn.cudnnGetErrorString(st));
    return true;
}

void tr_cudnn_plan_close(struct tr_cuda_library *l, struct dnn_plan *p)
{
    if (!p)
        return;
    if (p->plan)
        (void)l->fn.cudnnBackendDestroyDescriptor(p->plan);
    while (p->n_descs > 0)
        (void)l->fn.cudnnBackendDestroyDescriptor(p->descs[--p->n_descs]);
    free(p);
}
