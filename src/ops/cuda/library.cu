/* library.cu - the CUDA column of the op table, and the libraries behind it.
 *
 * cuBLASLt and cuDNN are opened by name when a GPU is opened: the module can be opened without them, and names a
 * missing one only when it is needed. Without cuDNN attention runs on our kernels, which are slower for rows of one
 * document.
 */
#include "ops/cuda/library.cuh"
#include "ops/cuda/optim.cuh"
#include <dlfcn.h>
#include <stdlib.h>

static tr_kernel kernel_of(enum tr_opcode op)
{
    static const tr_kernel kernels[] = {
#define X(id, name) tr_cuda_##id,
        TR_OP_LIST(X)
#undef X
    };
    static_assert(TR_COUNT_OF(kernels) == TR_OP_COUNT, "one kernel per op");
    TR_BUG_ON((unsigned)op >= TR_OP_COUNT);
    return kernels[op];
}

static bool load_lt(struct tr_cuda_library *l)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };
    l->lt_so = tr_library_nvidia(names);
    bool is_whole = l->lt_so != NULL;
#define X(f) is_whole = is_whole && (l->fn.f = (decltype(l->fn.f))dlsym(l->lt_so, #f)) != NULL;
    TR_LT_LIST(X)
#undef X
    return is_whole;
}

static bool load_dnn(struct tr_cuda_library *l)
{
    static const char *const names[] = { "libcudnn.so.9", "libcudnn_graph.so.9", NULL };
    l->dnn_so = tr_library_nvidia(names);
    bool is_whole = l->dnn_so != NULL;
#define X(f) is_whole = is_whole && (l->fn.f = (decltype(l->fn.f))dlsym(l->dnn_so, #f)) != NULL;
    TR_DNN_LIST(X)
#undef X
    return is_whole;
}

static void close_library(struct tr_device *d)
{
    struct tr_cuda_library *l = (struct tr_cuda_library *)d->library;
    if (!l)
        return;
    tr_gemm_memory_close(&l->memory);
    for (int i = 0; i < l->n_attentions; i++)
        tr_cudnn_plan_close(l, l->attention[i]);
    for (int i = 0; i < l->n_gemms; i++) {
        struct lt_plan *p = &l->gemm[i];
        (void)l->fn.cublasLtMatmulDescDestroy(p->desc);
        cublasLtMatrixLayout_t all[] = { p->a, p->b, p->c, p->d };
        for (size_t k = 0; k < TR_COUNT_OF(all); k++)
            (void)l->fn.cublasLtMatrixLayoutDestroy(all[k]);
    }
    if (l->dnn)
        (void)l->fn.cudnnDestroy(l->dnn);
    if (l->lt)
        (void)l->fn.cublasLtDestroy(l->lt);
    if (l->start)
        (void)cudaEventDestroy(l->start);
    if (l->stop)
        (void)cudaEventDestroy(l->stop);
    /* the libraries stay loaded: they hold thread-local state that must not outlive their code */
    free(l);
    d->library = NULL;
}

static enum tr_status open_library(struct tr_device *d, bool may_choose)
{
    struct tr_cuda_library *l = (struct tr_cuda_library *)calloc(1, sizeof *l);
    if (!l)
        return tr_fail(TR_NOMEM, "device cuda: out of memory");
    l->memory.fd = -1;
    l->may_choose = may_choose;
    d->library = l;
    if (!load_lt(l)) {
        close_library(d);
        return tr_fail(TR_USAGE, "device cuda: libcublasLt.so is missing or too old; put the CUDA toolkit's lib64 into "
                                 "LD_LIBRARY_PATH");
    }
    if (l->fn.cublasLtCreate(&l->lt) != CUBLAS_STATUS_SUCCESS || cudaEventCreate(&l->start) != cudaSuccess ||
        cudaEventCreate(&l->stop) != cudaSuccess || tr_cuda_updates8_open() != cudaSuccess) {
        close_library(d);
        return tr_fail(TR_IO, "device cuda: cuBLASLt could not start");
    }
    tr_gemm_memory_open(&l->memory, l->fn.cublasLtGetVersion(), d->capability, d->n_units);
    if (load_dnn(l) && l->fn.cudnnCreate(&l->dnn) == CUDNN_STATUS_SUCCESS)
        (void)l->fn.cudnnSetStream(l->dnn, (cudaStream_t)tr_device_stream(d, TR_STREAM_COMPUTE));
    return TR_OK;
}

extern "C" TR_EXPORT const struct tr_column_code tr_column_of_module = { kernel_of, tr_cuda_updates, open_library,
                                                                         close_library };
