/* agent_disk.h - private to launch: claims and the key on the disk that all nodes share. */
#ifndef TR_LAUNCH_AGENT_DISK_H
#define TR_LAUNCH_AGENT_DISK_H

#include "launch/agent.h"

struct agent_disk {
    char output[TR_PATH_MAX], dir[TR_PATH_MAX]; /* dir: output/generations, to read */
};

enum tr_status tr_disk_open(const char *output, struct agent_disk *d);
enum tr_status tr_disk_claim(struct agent_disk *d, const struct disk_view *claim, bool *won);
void tr_disk_beat(struct agent_disk *d, int64_t beat);
void tr_disk_over(struct agent_disk *d, int64_t generation, int code);
void tr_disk_read(struct agent_disk *d, struct disk_view *v); /* fields that cannot be read keep their values */

/* The hash of a key of at least 16 bytes. A key file must belong to this user and be readable by no other (H4). */
enum tr_status tr_key_from_fd(int fd, const char *name, unsigned char out[TR_SHA256_BYTES]);
enum tr_status tr_key_from_file(const char *path, unsigned char out[TR_SHA256_BYTES]);
enum tr_status tr_key_from_disk(struct agent_disk *d, unsigned char out[TR_SHA256_BYTES]);

#endif
