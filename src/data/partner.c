/* partner.c - see partner.h. */
#include "data/partner.h"
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 4096 };

struct prompt {
    uint64_t hash, n, n_answer;
};

/* The tokens of a document in front of its first target; its first token, whose mask is the label, is always one. */
static enum tr_status prompt_length(const struct tr_shard *s, int fd, uint64_t first, uint64_t n_doc, uint64_t *out)
{
    int32_t mask[PIECE];
    for (uint64_t at = 1; at < n_doc; at += PIECE) {
        uint64_t n = n_doc - at < PIECE ? n_doc - at : PIECE;
        int64_t n_targets;
        memset(mask, 0, sizeof mask);
        TR_PASS(tr_shard_mask(s, fd, first + at, n, mask, &n_targets));
        for (uint64_t i = 0; i < n; i++)
            if (mask[i] != TR_TARGET_NONE) {
                *out = at + i;
                return TR_OK;
            }
    }
    return tr_fail(TR_IO, "%s: the document at token %" PRIu64 " has no answer; make the file again", tr_shard_path(s),
                   first);
}

static enum tr_status hash_tokens(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, uint64_t *out)
{
    int32_t ids[PIECE];
    *out = n;
    for (uint64_t at = 0; at < n; at += PIECE) {
        uint64_t count = n - at < PIECE ? n - at : PIECE;
        TR_PASS(tr_shard_read(s, fd, first + at, count, ids));
        *out = tr_rng_key(*out ^ tr_hash(ids, (size_t)count * sizeof *ids).lo, "prompt", at);
    }
    return TR_OK;
}

static enum tr_status read_prompts(const struct tr_shard *s, int fd, uint64_t n_docs, struct prompt *out)
{
    for (uint64_t i = 0; i < n_docs; i++) {
        uint64_t bounds[2];
        TR_PASS(tr_shard_doc_starts(s, fd, i, 2, bounds));
        TR_PASS(prompt_length(s, fd, bounds[0], bounds[1] - bounds[0], &out[i].n));
        TR_PASS(hash_tokens(s, fd, bounds[0], out[i].n, &out[i].hash));
        out[i].n_answer = bounds[1] - bounds[0] - out[i].n;
    }
    return TR_OK;
}

enum tr_status tr_partners_find(const struct tr_shard *s, int fd, uint32_t *partner, uint64_t *n_mismatched)
{
    enum tr_status st = TR_OK;
    uint64_t n = tr_shard_get_info(s)->n_docs, last = n - 1;
    struct prompt *p = calloc((size_t)n, sizeof *p);
    if (!p)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for the partners of %" PRIu64 " records", n));
    if (n < 2)
        TR_TRY(tr_fail(TR_USAGE,
                       "%s: a file of one record has no other answer to compare with; put the records of "
                       "several files into one",
                       tr_shard_path(s)));
    TR_TRY(read_prompts(s, fd, n, p));
    while (last > 0 && p[last].hash == p[0].hash)
        last--;
    for (uint64_t i = 0; i < n; i++) {
        if (last == 0) /* all prompts are the same */
            partner[i] = (uint32_t)(i == 0 ? n - 1 : i - 1);
        else if (i == 0)
            partner[i] = (uint32_t)last;
        else
            partner[i] = p[i].hash == p[i - 1].hash ? partner[i - 1] : (uint32_t)(i - 1);
        n_mismatched[i] = p[i].n + p[partner[i]].n_answer;
    }
out:
    free(p);
    return st;
}

enum tr_status tr_partner_answer(const struct tr_shard *s, int fd, uint64_t doc, uint64_t *first, uint64_t *n)
{
    uint64_t bounds[2], n_prompt;
    if (doc >= tr_shard_get_info(s)->n_docs)
        return tr_fail(TR_IO, "%s: document %" PRIu64 " is not there", tr_shard_path(s), doc);
    TR_PASS(tr_shard_doc_starts(s, fd, doc, 2, bounds));
    if (bounds[1] <= bounds[0] || bounds[1] > tr_shard_get_info(s)->n_tokens)
        return tr_fail(TR_IO, "%s: document %" PRIu64 " has moved since the file was verified; put the file back",
                       tr_shard_path(s), doc);
    TR_PASS(prompt_length(s, fd, bounds[0], bounds[1] - bounds[0], &n_prompt));
    *first = bounds[0] + n_prompt;
    *n = bounds[1] - *first;
    return TR_OK;
}
