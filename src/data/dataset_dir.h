/* dataset_dir.h - the files of one split in a directory of a data set, as the tools of the hub make it. */
#ifndef TR_DATA_DATASET_DIR_H
#define TR_DATA_DATASET_DIR_H

#include "base/base.h"

struct tr_dataset_files {
    char **p; /* paths, in the order in which they are read */
    size_t n, n_cap;
};
void tr_dataset_files_release(struct tr_dataset_files *f);

/* split: its name, or "" for train, the only split, or all files of a directory that names none. *is_dataset false:
 * the directory is no data set, and out is empty. TR_USAGE: it is one, and has no such split. */
enum tr_status tr_dataset_find(const char *dir, const char *split, bool *is_dataset, struct tr_dataset_files *out);

#endif
