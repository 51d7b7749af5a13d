/* jsonl.c - see jsonl.h. The decision depends on the bytes of the line alone: the same on every run. */
#include "data/jsonl.h"
#include "data/utf8.h"

#include <string.h>

enum tr_status tr_jsonl_text(const char *line, size_t n, const char *key, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    cJSON *record = NULL;
    const char *text = NULL;
    size_t n_used;
    tr_str_clear(out);
    tr_utf8_clean(line, n, true, out, &n_used);
    if (!tr_str_ok(out))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a line of %zu bytes", n));
    if (strspn(out->p, " \t\r") == out->n)
        TR_TRY(tr_fail(TR_USAGE, "the line is empty"));
    TR_TRY(tr_json_parse(out->p, out->n, "record", &record));
    TR_TRY(tr_json_str(record, key, true, &text));
    if (!*text)
        TR_TRY(tr_fail(TR_USAGE, "\"%s\" is empty", key));
    tr_str_clear(out);
    tr_str_add(out, text, strlen(text));
    if (!tr_str_ok(out))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a text"));
out:
    cJSON_Delete(record);
    return st;
}
