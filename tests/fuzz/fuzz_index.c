/* fuzz_index.c - model.safetensors.index.json: accepted maps hold plain names only, sorted and unique. */
#include <string.h>
#include "ckpt/hfdir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tr_hf_index ix;
    if (tr_hf_parse_index((const char *)data, n, &ix) != TR_OK)
        return 0;
    for (size_t i = 0; i < ix.n_map; i++)
        TR_BUG_ON(i > 0 && strcmp(ix.map[i - 1].name, ix.map[i].name) >= 0);
    for (size_t i = 0; i < ix.n_shards; i++)
        TR_BUG_ON(!tr_name_is_plain(ix.shards[i]) || (i > 0 && strcmp(ix.shards[i - 1], ix.shards[i]) >= 0));
    tr_hf_index_release(&ix);
    return 0;
}
