/* marks.cu - events of a GPU as marks in time (marks.c), and ranges for NVIDIA's tools, which cost nothing unless one
 * of them is attached: the header looks for it when the first range begins. */
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
extern "C" {
#include "device/device_impl.h"
}

extern "C" bool tr_cuda_event_open(void **out)
{
    cudaEvent_t e = NULL;
    bool is_ok = cudaEventCreate(&e) == cudaSuccess;
    *out = is_ok ? e : NULL;
    return is_ok;
}

extern "C" void tr_cuda_event_close(void *event)
{
    (void)cudaEventDestroy((cudaEvent_t)event);
}

extern "C" void tr_cuda_event_set(struct tr_device *d, void *event, void *stream)
{
    (void)cudaEventRecord((cudaEvent_t)event, (cudaStream_t)(stream ? stream : d->stream));
}

extern "C" double tr_cuda_event_us(void *from, void *to)
{
    float ms = 0;
    return cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to) == cudaSuccess ? (double)ms * 1e3 : 0.0;
}

extern "C" void tr_cuda_range(const char *name)
{
    if (name)
        (void)nvtxRangePushA(name);
    else
        (void)nvtxRangePop();
}
