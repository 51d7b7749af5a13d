/* nvml.h - the GPUs of this host as their driver reports them. NVML comes with the driver; it is opened at run time, so
 * a host without GPUs needs nothing. */
#ifndef TR_BASE_NVML_H
#define TR_BASE_NVML_H

#include "base/status.h"

struct tr_gpu {
    char name[96];
    /* NaN: the GPU does not report it */
    double utilization; /* share of the last moments with a kernel running, 0..1 */
    double memory_used_bytes, memory_total_bytes;
    double power_w, temperature_c, clock_mhz, memory_clock_mhz;
};

struct tr_nvml;
/* Never fails: without a driver library there are no GPUs, and tr_nvml_why says what is missing. NULL: no memory. */
struct tr_nvml *tr_nvml_open(void);
void tr_nvml_close(struct tr_nvml *n);               /* NULL is fine */
int tr_nvml_count(const struct tr_nvml *n);          /* NULL: 0 */
const char *tr_nvml_why(const struct tr_nvml *n);    /* "": all is well */
const char *tr_nvml_driver(const struct tr_nvml *n); /* version, "": unknown */
bool tr_nvml_read(const struct tr_nvml *n, int gpu, struct tr_gpu *out);

#endif
