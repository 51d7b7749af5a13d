/* system.c - one sample of the machine as fields of a `system` event. Shares are 0..1, rates are per second since the
 * sample before; a number that this host does not report is left out. */
#include "base/host.h"
#include "observe/system.h"

#include <math.h>

static void add(struct tr_str *s, const char *comma, const char *name, double x)
{
    if (isfinite(x))
        tr_str_addf(s, "%s\"%s\":%.15g", comma, name, x);
}

static void add_gpus(const struct tr_nvml *nvml, struct tr_str *out)
{
    struct tr_gpu g;
    tr_str_addf(out, ",\"gpus\":[");
    for (int i = 0; i < tr_nvml_count(nvml); i++) {
        if (!tr_nvml_read(nvml, i, &g))
            continue;
        tr_str_addf(out, "%s{\"gpu\":%d", i ? "," : "", i);
        add(out, ",", "utilization", g.utilization);
        add(out, ",", "memory_used_bytes", g.memory_used_bytes);
        add(out, ",", "memory_total_bytes", g.memory_total_bytes);
        add(out, ",", "power_w", g.power_w);
        add(out, ",", "temperature_c", g.temperature_c);
        add(out, ",", "clock_mhz", g.clock_mhz);
        add(out, ",", "memory_clock_mhz", g.memory_clock_mhz);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]");
}

void tr_system_fields(const struct tr_usage *before, const struct tr_usage *now, const struct tr_nvml *nvml,
                      const char *output, struct tr_str *out)
{
    double s = now->at_s - before->at_s;
    tr_str_addf(out, "\"interval_s\":%.3f", s);
    add(out, ",", "cpu", (now->cpu_busy_s - before->cpu_busy_s) / (now->cpu_all_s - before->cpu_all_s));
    add(out, ",", "process_cores", (now->process_cpu_s - before->process_cpu_s) / s);
    add(out, ",", "process_memory_bytes", now->rss_bytes);
    add(out, ",", "memory_used", now->memory_used_bytes / now->memory_total_bytes);
    add(out, ",", "memory_used_bytes", now->memory_used_bytes);
    add(out, ",", "disk_read_bytes_per_s", (now->disk_read_bytes - before->disk_read_bytes) / s);
    add(out, ",", "disk_written_bytes_per_s", (now->disk_written_bytes - before->disk_written_bytes) / s);
    add(out, ",", "disk_free_bytes", (double)tr_host_disk_room(output));
    add(out, ",", "network_received_bytes", now->network_received_bytes);
    add(out, ",", "network_sent_bytes", now->network_sent_bytes);
    if (tr_nvml_count(nvml) > 0)
        add_gpus(nvml, out);
}
