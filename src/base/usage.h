/* usage.h - what this host and this process use: CPU, memory, disk, network. Counters since boot, read from /proc; two
 * readings give rates. Numbers that cannot be read are NaN. */
#ifndef TR_BASE_USAGE_H
#define TR_BASE_USAGE_H

struct tr_usage {
    double at_s;                     /* monotonic */
    double cpu_busy_s, cpu_all_s;    /* all cores of the host */
    double process_cpu_s, rss_bytes; /* of this process */
    double memory_used_bytes, memory_total_bytes;
    double disk_read_bytes, disk_written_bytes;        /* whole disks, without partitions and stacked devices */
    double network_received_bytes, network_sent_bytes; /* without loopback */
};

/* root: where /proc and /sys are found; "" = the host itself. */
void tr_usage_read(const char *root, struct tr_usage *out);

#endif
