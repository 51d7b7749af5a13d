/* weights.c - weights of targets in the loss: as records give them, as shards hold them, as batches have them.
 *
 * A weight is a whole number of units of 2^-24, so that the sum over a batch, by which its loss is divided, has one
 * value for every order of additions. Weights of a record, a message, a segment and a token multiply. A weight of 0 is
 * no target. Rejected: floats in shards, whose sum would depend on the layout.
 */
#include "data/encode.h"

#include <math.h>
#include <string.h>

enum tr_status tr_weight_read(const struct tr_record_rules *r, const cJSON *x, const char *what, uint32_t *out)
{
    bool is_plain = cJSON_IsBool(x) || (cJSON_IsNumber(x) && (x->valuedouble == 0 || x->valuedouble == 1));
    double w = cJSON_IsBool(x) ? cJSON_IsTrue(x) : cJSON_IsNumber(x) ? x->valuedouble : -1;
    if (!is_plain && !r->reads_weights)
        return tr_fail(TR_USAGE, "%s is neither 0 nor 1%s", what,
                       w > 0 ? "; with --loss_weights tokens may have other weights" : "");
    if (!(w >= 0 && w <= TR_WEIGHT_MOST))
        return tr_fail(TR_USAGE, "%s is no weight from 0 to %d", what, TR_WEIGHT_MOST);
    *out = (uint32_t)llrint(w * TR_WEIGHT_ONE);
    return TR_OK;
}

enum tr_status tr_weight_times(uint32_t a, uint32_t b, uint32_t *out)
{
    uint64_t w = ((uint64_t)a * b + TR_WEIGHT_ONE / 2) / TR_WEIGHT_ONE;
    if (w > (uint64_t)TR_WEIGHT_MOST * TR_WEIGHT_ONE)
        return tr_fail(TR_USAGE, "weights of a token are %g together, above %d", (double)w / TR_WEIGHT_ONE,
                       TR_WEIGHT_MOST);
    *out = (uint32_t)w;
    return TR_OK;
}

enum tr_status tr_doc_weigh(struct tr_doc *doc, uint32_t weight)
{
    while (doc->weight.n < doc->ids.n * sizeof weight && tr_str_ok(&doc->weight))
        tr_str_add(&doc->weight, (const char *)&weight, sizeof weight);
    return tr_str_check(&doc->weight, "weights of tokens");
}

uint32_t tr_doc_get_weight(const struct tr_doc *doc, size_t i)
{
    uint32_t w;
    memcpy(&w, doc->weight.p + i * sizeof w, sizeof w);
    return w;
}

void tr_doc_put_weight(struct tr_doc *doc, size_t i, uint32_t weight)
{
    memcpy(doc->weight.p + i * sizeof weight, &weight, sizeof weight);
}

enum tr_status tr_doc_finish_weights(const struct tr_record_rules *r, const cJSON *record, size_t first,
                                     struct tr_doc *doc)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(record, "loss_weight");
    uint32_t factor = TR_WEIGHT_ONE;
    if (!r->reads_weights)
        return own && !cJSON_IsNull(own)
                   ? tr_fail(TR_USAGE, "the record has a \"loss_weight\", which counts with --loss_weights only")
                   : TR_OK;
    if (own && !cJSON_IsNull(own))
        TR_PASS(tr_weight_read(r, own, "\"loss_weight\"", &factor));
    TR_PASS(tr_doc_weigh(doc, TR_WEIGHT_ONE));
    for (size_t i = first; i < doc->ids.n; i++) {
        uint32_t w = tr_doc_get_weight(doc, i);
        if (doc->mask.p[i])
            TR_PASS(tr_weight_times(w, factor, &w));
        doc->mask.p[i] = doc->mask.p[i] && w > 0;
        tr_doc_put_weight(doc, i, w);
    }
    return TR_OK;
}
