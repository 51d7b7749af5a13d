/* fuzz_json.c - any bytes: the scan either refuses them or hands cJSON a document that it reads and that prints back to
 * a document the scan accepts again. */
#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    cJSON *tree = NULL, *again = NULL;
    enum tr_status st = tr_json_parse((const char *)data, n, "fuzz", &tree);
    if (st == TR_USAGE)
        return 0;
    TR_BUG_ON(st != TR_OK); /* TR_NOMEM would mean that cJSON refused what the scan let through */
    char *text = cJSON_PrintUnformatted(tree);
    TR_BUG_ON(!text);
    TR_BUG_ON(tr_json_parse(text, strlen(text), "again", &again) != TR_OK);
    cJSON_free(text);
    cJSON_Delete(tree);
    cJSON_Delete(again);
    return 0;
}
