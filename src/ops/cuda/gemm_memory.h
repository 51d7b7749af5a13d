/* gemm_memory.h - a file with the fastest algorithm found for each matrix product.
 *
 * The algorithm decides the last bits of a product, and timing decides the algorithm: without this file a restarted run
 * could continue with other bits. There is one file for each library version and chip, below the user's cache
 * directory. Records are appended whole. The first record of a key counts, also for ranks that time the same product at
 * the same moment.
 */
#ifndef TR_OPS_CUDA_GEMM_MEMORY_H
#define TR_OPS_CUDA_GEMM_MEMORY_H

#include "base/base.h"

enum { TR_GEMM_KEY = 6, TR_GEMM_ALGO = 8, TR_GEMM_RECORDS = 1024 };

struct tr_gemm_record {
    uint64_t key[TR_GEMM_KEY], algo[TR_GEMM_ALGO]; /* algo: the opaque words of the library */
    uint64_t check;
};

struct tr_gemm_memory {
    int fd; /* < 0: there is no file */
    int n;
    struct tr_gemm_record record[TR_GEMM_RECORDS];
};

/* Never fails: when no file can be written, is_open is false. */
void tr_gemm_memory_open(struct tr_gemm_memory *m, size_t library_version, int capability, int n_units);
void tr_gemm_memory_close(struct tr_gemm_memory *m);
bool tr_gemm_memory_is_open(const struct tr_gemm_memory *m);
const struct tr_gemm_record *tr_gemm_memory_find(const struct tr_gemm_memory *m, const uint64_t key[TR_GEMM_KEY]);
/* Returns the record that counts: this one, or the earlier one of another process; NULL: there is no file. */
const struct tr_gemm_record *tr_gemm_memory_add(struct tr_gemm_memory *m, const uint64_t key[TR_GEMM_KEY],
                                                const uint64_t algo[TR_GEMM_ALGO]);

#endif
