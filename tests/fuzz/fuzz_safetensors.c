/* fuzz_safetensors.c - two bytes of data size, then a header. What is accepted must be whole and findable. */
#include <stdlib.h>
#include <string.h>
#include "ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 3)
        return 0;
    uint64_t data_bytes = (uint64_t)data[0] | (uint64_t)data[1] << 8, at = 0;
    char *json = malloc(n - 2);
    struct tr_st_header h;
    if (!json)
        return 0;
    memcpy(json, data + 2, n - 2);
    if (tr_st_parse_header(json, n - 2, data_bytes, &h) == TR_OK) {
        for (size_t i = 0; i < h.n_tensors; i++) {
            const struct tr_st_tensor *t = &h.tensors[i];
            TR_BUG_ON(t->begin != at || t->end < at || strlen(t->name) > TR_ST_MAX_NAME);
            TR_BUG_ON(i > 0 && strcmp(h.tensors[h.by_name[i - 1]].name, h.tensors[h.by_name[i]].name) >= 0);
            at = t->end;
        }
        TR_BUG_ON(at != data_bytes);
        tr_st_header_release(&h);
    }
    free(json);
    return 0;
}
