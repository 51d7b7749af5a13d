/* record.c - see record.h. Every decision depends only on the bytes of the line and the rules, so all runs agree. */
#include "data/encode.h"

#include <string.h>

void tr_doc_release(struct tr_doc *doc)
{
    tr_ids_release(&doc->ids);
    tr_str_release(&doc->mask);
    tr_str_release(&doc->weight);
    tr_str_release(&doc->line);
}

/* Cleans the line and parses it into *out. A line of white space alone is refused. */
static enum tr_status parse_line(const char *line, size_t n, bool keeps_numbers, struct tr_str *clean, cJSON **out)
{
    size_t n_used;
    tr_str_clear(clean);
    tr_utf8_clean(line, n, true, clean, &n_used);
    TR_PASS(tr_str_check(clean, "a line of %zu bytes", n));
    if (clean->n == 0 || strspn(clean->p, " \t\r") == clean->n)
        return tr_fail(TR_USAGE, "the line is empty");
    enum tr_status st = keeps_numbers ? tr_chat_parse(clean->p, clean->n, "record", out)
                                      : tr_json_parse(clean->p, clean->n, "record", out);
    if (st == TR_OK && !cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        st = tr_fail(TR_USAGE, "the record is not a JSON object");
    }
    return st;
}

enum tr_status tr_record_detect(const struct tr_source_map *map, bool wants_pairs, const char *line, size_t n,
                                bool *is_object, enum tr_shape *out)
{
    enum tr_status st = TR_OK;
    struct tr_str clean = { 0 };
    cJSON *record = NULL;
    *is_object = false;
    TR_TRY(parse_line(line, n, false, &clean, &record));
    *is_object = true;
    if (map)
        TR_TRY(tr_map_apply(map, record));
    TR_TRY(tr_shape_find(record, map, wants_pairs, out));
out:
    cJSON_Delete(record);
    tr_str_release(&clean);
    return st;
}

enum tr_status tr_record_encode(const struct tr_record_rules *r, const char *line, size_t n, struct tr_doc *doc)
{
    enum tr_status st = TR_OK;
    const struct tr_shape_row *row = tr_shape_row(r->shape);
    cJSON *record = NULL;
    size_t n_ids = doc->ids.n, n_mask = doc->mask.n, n_weight = doc->weight.n;
    TR_TRY(parse_line(line, n, row->chat != TR_CHAT_NOT_USED, &doc->line, &record));
    if (r->map)
        TR_TRY(tr_map_apply(r->map, record));
    TR_TRY(row->encode(r, record, doc));
    if (doc->ids.n == n_ids)
        TR_TRY(tr_fail(TR_USAGE, "the record has no tokens"));
    if (!row->is_text)
        TR_TRY(tr_doc_finish_weights(r, record, n_ids, doc));
    /* The first token cannot be a target, because no token before it could predict it. */
    if (!row->is_text && !memchr(doc->mask.p + n_mask + 1, 1, doc->mask.n - n_mask - 1))
        TR_TRY(tr_fail(TR_USAGE, "no token of the record has a loss"));
out:
    cJSON_Delete(record);
    if (st != TR_OK) {
        doc->ids.n = n_ids;
        if (tr_str_ok(&doc->mask))
            doc->mask.n = n_mask;
        if (tr_str_ok(&doc->weight))
            doc->weight.n = n_weight;
    }
    return st;
}
