/* row_pair.c - rows of losses that weigh tokens. Of preference training: log-probabilities of documents, and the loss
 * of pairs of them. Tokens name documents by the element where these begin in the micro-batch, so no other number of
 * them is needed. */
#include "ops/ops.h"

/* Dynamic fine-tuning (arXiv 2508.05629): the loss of a token times its probability, which is a constant in the
 * backward: the weight of its gradient. parts: the loss of each token then. */
const struct tr_op_row tr_row_dft_loss = {
    .name = "dft_loss",
    .in = { { "loss", "(N, 1) F32" } },
    .out = { { "parts", "(N, 1) F32" }, { "weight", "(N, 1) F32" } },
};

/* Losses of tokens that have weights. In the backward the weight is that of the token's gradient. */
const struct tr_op_row tr_row_weigh_loss = {
    .name = "weigh_loss",
    .in = { { "loss", "(N, 1) F32" }, { "weight", "(N, 1) F32" } },
    .out = { { "parts", "(N, 1) F32" } },
};

/* Row b of sums: of the document that begins at element b, the loss of its tokens, what `ref` holds of them, the number
 * of its targets and, with TR_DOC_ALL_SUMS columns, of losses times `weight` (1 where it is absent), of `squares` and
 * of `match` (0) (enum tr_doc_sum). Rows where no document begins are 0. With context parallel a rank has some tokens
 * (N) of the micro-batch and sums for all of it (M); the sums are then added over ranks. */
const struct tr_op_row tr_row_doc_sums = {
    .name = "doc_sums",
    .in = { { "loss", "(N, 1) F32" },
            { "target", "(N, 1) I32" },
            { "begin", "(N, 1) I32" },
            { "ref", "(N, 1) F32" },
            { "weight", "(N, 1) F32", .is_optional = true },
            { "squares", "(N, 1) F32", .is_optional = true },
            { "match", "(N, 1) F32", .is_optional = true } },
    .out = { { "sums", "(M, C) F32" } },
};

/* parts: enum tr_metric. weight: the derivative of the loss of the pair by the loss of each token. attr: pair (the
 * rule), which says how many sums there are (tr_doc_sums). own: the weight of the token, 1 where it is absent. A token
 * without a pair has zeros in both. Of answers with labels `other` is begin + 1 for a desirable one and begin for
 * another, and step has the distance from the reference. */
const struct tr_op_row tr_row_pair_loss = {
    .name = "pair_loss",
    .in = { { "sums", "(M, C) F32" },
            { "begin", "(N, 1) I32" },
            { "position", "(N, 1) I32" },
            { "other", "(N, 1) I32" },
            { "step", "(1, S) F32", .is_optional = true },
            { "own", "(N, 1) F32", .is_optional = true } },
    .out = { { "parts", "(N, 6) F32" }, { "weight", "(N, 1) F32" } },
};
