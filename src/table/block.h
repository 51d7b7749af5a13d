/* block.h - decompresses one block into memory of known size: pages of parquet, buffers of Arrow. */
#ifndef TR_TABLE_BLOCK_H
#define TR_TABLE_BLOCK_H

#include "base/base.h"

enum tr_block {
    TR_BLOCK_PLAIN,
    TR_BLOCK_SNAPPY,
    TR_BLOCK_GZIP,
    TR_BLOCK_ZSTD,
    TR_BLOCK_LZ4, /* a block without a frame */
    TR_BLOCK_LZ4_FRAME,
};

/* Writes exactly n_out bytes. False: the input is not of this codec, is damaged, or holds another number of bytes. */
bool tr_block_unpack(enum tr_block codec, const void *in, size_t n_in, void *out, size_t n_out);

#endif
