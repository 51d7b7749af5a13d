/* library.cuh - cuBLASLt and cuDNN as opened at run time, and their state for each device. */
#ifndef TR_OPS_CUDA_LIBRARY_CUH
#define TR_OPS_CUDA_LIBRARY_CUH

#include "ops/cuda/cuda.cuh"
#include <cublasLt.h>
#include <cudnn.h>
extern "C" {
#include "ops/cuda/gemm_memory.h"
}

/* Functions taken from each library: one row each, types from its header. */
#define TR_LT_LIST(X)                                                                                                  \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtGetStatusString)
#define TR_DNN_LIST(X)                                                                                                 \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

/* One shape of matrix product and how it runs. */
struct lt_plan {
    uint64_t key[6];
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algo;
    bool is_tuned, is_plain; /* is_plain: the library has no algorithm for it */
};

struct dnn_plan;

enum { MAX_GEMMS = 1024, MAX_ATTENTIONS = 64 };

struct tr_cuda_library {
    void *lt_so, *dnn_so;
    cublasLtHandle_t lt;
    cudnnHandle_t dnn; /* NULL: there is no cuDNN; attention runs on our kernel */
    struct {
#define X(f) decltype(&::f) f;
        TR_LT_LIST(X) TR_DNN_LIST(X)
#undef X
    } fn;
    bool may_choose; /* algorithms of products may be chosen by timing */
    struct tr_gemm_memory memory;
    struct lt_plan gemm[MAX_GEMMS];
    int n_gemms;
    struct dnn_plan *attention[MAX_ATTENTIONS];
    int n_attentions;
    cudaEvent_t start, stop; /* for choosing between algorithms */
};

void tr_cudnn_plan_close(struct tr_cuda_library *l, struct dnn_plan *p);

#endif
