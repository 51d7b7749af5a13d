/* gemm_memory.h - what was found fastest for each matrix product, remembered on disk.
 *
 * The choice of an algorithm decides the last bits of a product, and timing decides the choice: without a memory a run
 * that starts again would go on with other bits. One file per library version and chip below the user's cache
 * directory; records are appended whole as they are found, and the first record of a key holds: for ranks that look for
 * the same product at the same time too.
 */
#ifndef TR_OPS_CUDA_GEMM_MEMORY_H
#define TR_OPS_CUDA_GEMM_MEMORY_H

#include "base/base.h"

enum { TR_GEMM_KEY = 6, TR_GEMM_ALGO = 8, TR_GEMM_RECORDS = 1024 };

struct tr_gemm_record {
    uint64_t key[TR_GEMM_KEY], algo[TR_GEMM_ALGO]; /* the library's own words, as it gave them */
    uint64_t check;
};

struct tr_gemm_memory {
    int fd; /* < 0: nothing can be remembered */
    int n;
    struct tr_gemm_record record[TR_GEMM_RECORDS];
};

/* Never fails: without a place to write, is_open is false. */
void tr_gemm_memory_open(struct tr_gemm_memory *m, size_t library_version, int capability, int n_units);
void tr_gemm_memory_close(struct tr_gemm_memory *m);
bool tr_gemm_memory_is_open(const struct tr_gemm_memory *m);
const struct tr_gemm_record *tr_gemm_memory_find(const struct tr_gemm_memory *m, const uint64_t key[TR_GEMM_KEY]);
/* The record that holds: this one, or another process's that was first; NULL: nothing is remembered. */
const struct tr_gemm_record *tr_gemm_memory_add(struct tr_gemm_memory *m, const uint64_t key[TR_GEMM_KEY],
                                                const uint64_t algo[TR_GEMM_ALGO]);

#endif
