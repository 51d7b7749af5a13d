/* long.c - see long.h. One pass over the mask of the document, in pieces. */
#include "data/long.h"
#include "data/data.h"

#include <string.h>

enum { PIECE = 4096 };

void tr_long_share(uint64_t s, uint64_t t, uint64_t c, uint64_t out[2])
{
    uint64_t most = 2 * t < c ? t : 2 * s < c ? c - s : (uint64_t)((double)c * ((double)t / ((double)s + (double)t)));
    out[1] = most < t ? most : t;
    out[0] = c - out[1] < s ? c - out[1] : s;
}

struct turns {
    uint64_t room;      /* places left in the row */
    uint64_t begin;     /* of the turn that is being read */
    uint64_t s, t;      /* its tokens so far */
    uint64_t n_targets; /* of the turns before it, all of which fit */
    bool is_full;
    struct tr_kept kept;
};

static void end_turn(struct turns *x)
{
    uint64_t share[2] = { x->s, x->t };
    x->is_full = x->s + x->t > x->room;
    if (x->is_full)
        tr_long_share(x->s, x->t, x->room, share);
    if (x->is_full && x->n_targets + share[1] == 0 && x->t > 0 && share[0] > 1) {
        share[0]--;
        share[1]++;
    }
    bool is_joined = share[0] < x->s && share[1] > 0;
    x->kept.n = x->begin + share[0] + (is_joined ? 0 : share[1]);
    if (is_joined) {
        x->kept.then = x->begin + x->s;
        x->kept.n_then = share[1];
    }
    x->room -= share[0] + share[1];
    x->n_targets += share[1];
    x->begin += x->s + x->t;
    x->s = x->t = 0;
}

static void add_token(struct turns *x, bool is_target)
{
    if (!is_target && x->t > 0 && !x->is_full)
        end_turn(x);
    x->s += !is_target;
    x->t += is_target;
}

enum tr_status tr_long_keep(const struct tr_shard *s, int fd, uint64_t first, uint64_t n_doc, uint64_t row_tokens,
                            enum tr_long how, struct tr_kept *out)
{
    int32_t mask[PIECE];
    struct turns x = { .room = row_tokens };
    uint64_t n_all = 0, n_first = 0; /* targets of the document, and of its first row */
    bool starts_trained = false;     /* the first token is a target, but no token predicts it */
    bool has_labels = tr_shard_get_info(s)->has_labels;
    for (uint64_t at = 0; at < n_doc; at += PIECE) {
        uint64_t n = n_doc - at < PIECE ? n_doc - at : PIECE;
        int64_t n_targets;
        memset(mask, 0, sizeof mask);
        TR_PASS(tr_shard_mask(s, fd, first + at, n, mask, &n_targets));
        for (uint64_t i = 0; i < n; i++) {
            bool is_label = has_labels && at + i == 0;
            bool is_target = mask[i] != TR_TARGET_NONE && !is_label, counts = is_target && at + i > 0;
            n_all += counts;
            n_first += counts && at + i < row_tokens;
            starts_trained |= is_target && !counts;
            add_token(&x, is_target);
        }
    }
    if (!x.is_full)
        end_turn(&x);
    if (how == TR_LONG_CUT)
        x.kept = (struct tr_kept){ .n = row_tokens };
    uint64_t n_left = how == TR_LONG_CUT ? n_first : x.n_targets - starts_trained;
    *out = x.kept;
    if (n_left == 0)
        out->n = out->n_then = 0;
    out->n_targets_lost = n_all - n_left;
    return TR_OK;
}

/* ---- pairs ---- */

/* The halves of a pair, told by its mask: where each has its first target, where the second begins, and where a mask
 * that is none of a pair goes wrong. */
struct halves {
    uint64_t target[2], begin, at;
    int n_changes; /* of the mask so far: 0 1 0 1 */
};

static void add_to_halves(struct halves *h, bool is_target)
{
    if (is_target != (h->n_changes % 2 == 1)) {
        h->n_changes++;
        if (h->n_changes == 2)
            h->begin = h->at;
        else if (h->n_changes <= 3)
            h->target[h->n_changes / 2] = h->at;
    }
    h->at++;
}

enum tr_status tr_long_keep_pair(const struct tr_shard *s, int fd, uint64_t first, uint64_t n_doc, uint64_t row_tokens,
                                 struct tr_kept *out)
{
    int32_t mask[PIECE];
    struct halves h = { 0 };
    for (uint64_t at = 0; at < n_doc; at += PIECE) {
        uint64_t n = n_doc - at < PIECE ? n_doc - at : PIECE;
        int64_t n_targets;
        memset(mask, 0, sizeof mask);
        TR_PASS(tr_shard_mask(s, fd, first + at, n, mask, &n_targets));
        for (uint64_t i = 0; i < n; i++)
            add_to_halves(&h, mask[i] != TR_TARGET_NONE);
    }
    *out = (struct tr_kept){ 0 };
    uint64_t n[2] = { h.begin, n_doc - h.begin }, keep[2] = { row_tokens / 2, row_tokens - row_tokens / 2 };
    if (h.n_changes != 3)
        return TR_OK;
    for (int i = 0; i < 2; i++)
        if (n[i] <= keep[i]) { /* the other one is longer: the two do not fit into a row */
            keep[i] = n[i];
            keep[!i] = row_tokens - n[i];
            break;
        }
    bool is_left = keep[0] > h.target[0] && keep[1] > h.target[1] - h.begin;
    *out = (struct tr_kept){ .n = is_left ? keep[0] : 0, .then = h.begin, .n_then = is_left ? keep[1] : 0 };
    out->n_targets_lost = is_left ? n_doc - row_tokens : n[0] - h.target[0] + n_doc - h.target[1];
    return TR_OK;
}
