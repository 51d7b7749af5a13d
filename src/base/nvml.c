/* nvml.c - NVML by dlopen. The prototypes are those of nvml.h (version 2 of the calls that have versions), which NVIDIA
 * keeps stable; return value 0 is success. Rejected: the `nvidia-smi` program (a process and a parser a sample). */
#include "base/nvml.h"
#include "base/base.h"

#include <math.h>

typedef void *nvml_device;
struct nvml_share {
    unsigned gpu, memory; /* percent */
};
struct nvml_memory {
    unsigned long long total, free, used;
};
enum { SENSOR_GPU = 0, CLOCK_GRAPHICS = 0, CLOCK_MEMORY = 2, N_GPUS_MAX = 64 };

struct tr_nvml {
    bool is_started;
    int n;
    char why[256], driver[96];
    nvml_device device[N_GPUS_MAX];
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned i, nvml_device *out);
    int (*system_driver)(char *out, unsigned n);
    int (*name)(nvml_device d, char *out, unsigned n);
    int (*utilization)(nvml_device d, struct nvml_share *out);
    int (*memory)(nvml_device d, struct nvml_memory *out);
    int (*power)(nvml_device d, unsigned *milliwatt);
    int (*temperature)(nvml_device d, int sensor, unsigned *out);
    int (*clock)(nvml_device d, int kind, unsigned *mhz);
    const char *(*text)(int code);
};

static bool find_all(struct tr_nvml *n)
{
    const struct tr_symbol symbols[] = {
        { "nvmlInit_v2", &n->init },
        { "nvmlShutdown", &n->shutdown },
        { "nvmlDeviceGetCount_v2", &n->count },
        { "nvmlDeviceGetHandleByIndex_v2", &n->handle },
        { "nvmlSystemGetDriverVersion", &n->system_driver },
        { "nvmlDeviceGetName", &n->name },
        { "nvmlDeviceGetUtilizationRates", &n->utilization },
        { "nvmlDeviceGetMemoryInfo", &n->memory },
        { "nvmlDeviceGetPowerUsage", &n->power },
        { "nvmlDeviceGetTemperature", &n->temperature },
        { "nvmlDeviceGetClockInfo", &n->clock },
        { "nvmlErrorString", &n->text },
    };
    return tr_library_find("libnvidia-ml.so.1", symbols, TR_COUNT_OF(symbols), n->why, sizeof n->why);
}

static void start(struct tr_nvml *n)
{
    unsigned count = 0;
    int code;
    if (!find_all(n))
        return;
    code = n->init();
    n->is_started = code == 0;
    if (code == 0)
        code = n->count(&count);
    if (code != 0) {
        (void)snprintf(n->why, sizeof n->why, "libnvidia-ml.so.1: %s", n->text(code));
        return;
    }
    (void)n->system_driver(n->driver, (unsigned)sizeof n->driver - 1);
    for (unsigned i = 0; i < count && i < N_GPUS_MAX; i++)
        if (n->handle(i, &n->device[n->n]) == 0)
            n->n++;
}

struct tr_nvml *tr_nvml_open(void)
{
    struct tr_nvml *n = calloc(1, sizeof *n);
    if (n)
        start(n);
    return n;
}

void tr_nvml_close(struct tr_nvml *n)
{
    if (!n)
        return;
    if (n->is_started)
        (void)n->shutdown();
    free(n);
}

int tr_nvml_count(const struct tr_nvml *n)
{
    return n ? n->n : 0;
}

const char *tr_nvml_why(const struct tr_nvml *n)
{
    return n ? n->why : "no memory to open libnvidia-ml.so.1";
}

const char *tr_nvml_driver(const struct tr_nvml *n)
{
    return n ? n->driver : "";
}

bool tr_nvml_read(const struct tr_nvml *n, int gpu, struct tr_gpu *out)
{
    const double none = (double)NAN;
    unsigned x = 0;
    struct nvml_share share = { 0, 0 };
    struct nvml_memory memory = { 0, 0, 0 };
    if (gpu < 0 || gpu >= tr_nvml_count(n))
        return false;
    nvml_device d = n->device[gpu];
    *out = (struct tr_gpu){ .name = "" };
    (void)n->name(d, out->name, (unsigned)sizeof out->name - 1);
    out->utilization = n->utilization(d, &share) == 0 ? share.gpu / 100.0 : none;
    bool has_memory = n->memory(d, &memory) == 0;
    out->memory_used_bytes = has_memory ? (double)memory.used : none;
    out->memory_total_bytes = has_memory ? (double)memory.total : none;
    out->power_w = n->power(d, &x) == 0 ? x / 1000.0 : none;
    out->temperature_c = n->temperature(d, SENSOR_GPU, &x) == 0 ? x : none;
    out->clock_mhz = n->clock(d, CLOCK_GRAPHICS, &x) == 0 ? x : none;
    out->memory_clock_mhz = n->clock(d, CLOCK_MEMORY, &x) == 0 ? x : none;
    return true;
}
