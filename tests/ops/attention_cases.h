/* attention_cases.h - attention as training calls it: 16 bits, the number of documents known. For the kernels of a GPU,
 * and for the same kernels on a CPU (tests/emulate). */
#ifndef TR_TESTS_OPS_ATTENTION_CASES_H
#define TR_TESTS_OPS_ATTENTION_CASES_H

#include "ops/case_check.h"
#include <stdio.h>

static const struct op_case attentions[] = {
    { TR_OP_ATTENTION, "whole rows", .n = 512, .pack = 128,
      .attr = { HEADS(3, 3, 64), .scale = 0.125f, .seq_len = 128 } },
    { TR_OP_ATTENTION, "whole rows, grouped 128", .n = 512, .pack = 256,
      .attr = { HEADS(4, 2, 128), .scale = 0.09f, .seq_len = 256 } },
    { TR_OP_ATTENTION, "whole rows, window", .n = 512, .pack = 256,
      .attr = { HEADS(2, 2, 64), .scale = 0.125f, .seq_len = 256, .window = 100 } },
    { TR_OP_ATTENTION, "documents", .n = 512, .pack = 64,
      .attr = { HEADS(3, 3, 64), .scale = 0.125f, .seq_len = 256 } },
    { TR_OP_ATTENTION, "documents, grouped", .n = 512, .pack = 32,
      .attr = { HEADS(4, 2, 64), .scale = 0.125f, .seq_len = 256 } },
    { TR_OP_ATTENTION, "documents, window", .n = 512, .pack = 128,
      .attr = { HEADS(2, 1, 128), .scale = 0.09f, .seq_len = 256, .window = 64 } },
    { TR_OP_ATTENTION, "documents of one token", .n = 200, .pack = 1,
      .attr = { HEADS(2, 1, 64), .scale = 0.125f, .seq_len = 100 } },
    { TR_OP_ATTENTION, "documents across rows", .n = 512, .pack = 100,
      .attr = { HEADS(2, 1, 64), .scale = 0.125f, .seq_len = 256 } },
    { TR_OP_ATTENTION, "ragged, heads of 16", .n = 333, .pack = RAGGED,
      .attr = { HEADS(2, 1, 16), .scale = 0.25f, .seq_len = 333 } },
    { TR_OP_ATTENTION, "ragged, grouped 64", .n = 402, .pack = RAGGED,
      .attr = { HEADS(4, 1, 64), .scale = 0.125f, .seq_len = 201 } },
    { TR_OP_ATTENTION, "ragged, 80", .n = 333, .pack = RAGGED,
      .attr = { HEADS(2, 2, 80), .scale = 0.11f, .seq_len = 333 } },
    { TR_OP_ATTENTION, "ragged, 96, window", .n = 333, .pack = RAGGED,
      .attr = { HEADS(2, 1, 96), .scale = 0.1f, .seq_len = 333, .window = 50 } },
    { TR_OP_ATTENTION, "ragged, 128", .n = 402, .pack = RAGGED,
      .attr = { HEADS(4, 2, 128), .scale = 0.09f, .seq_len = 201 } },
    { TR_OP_ATTENTION, "192", .n = 266, .pack = 133, .attr = { HEADS(2, 2, 192), .scale = 0.07f, .seq_len = 133 } },
    { TR_OP_ATTENTION, "256", .n = 266, .pack = 133, .attr = { HEADS(2, 1, 256), .scale = 0.06f, .seq_len = 133 } },
    { TR_OP_ATTENTION, "160, window", .n = 512, .pack = 256,
      .attr = { HEADS(4, 2, 160), .scale = 0.08f, .seq_len = 256, .window = 100 } },
    { TR_OP_ATTENTION, "ragged, 256, window", .n = 333, .pack = RAGGED,
      .attr = { HEADS(4, 1, 256), .scale = 0.06f, .seq_len = 333, .window = 100 } },
    { TR_OP_ATTENTION, "capped, 256", .n = 266, .pack = 133,
      .attr = { HEADS(2, 1, 256), .scale = 0.3f, .seq_len = 133, .softcap = 2 } },
    { TR_OP_ATTENTION, "capped, ragged, 64, window", .n = 333, .pack = RAGGED,
      .attr = { HEADS(2, 1, 64), .scale = 0.5f, .seq_len = 333, .softcap = 2, .window = 50 } },
    { TR_OP_ATTENTION, "dropout, 64", .n = 266, .pack = 133,
      .attr = { HEADS(3, 3, 64), .scale = 0.125f, .seq_len = 133, .dropout_p = 0.1f, .key = 77, .first = 4 } },
    { TR_OP_ATTENTION, "dropout, ragged, 128", .n = 333, .pack = RAGGED,
      .attr = { HEADS(2, 1, 128), .scale = 0.09f, .seq_len = 333, .dropout_p = 0.3f, .key = 78 } },
    { TR_OP_ATTENTION, "dropout, documents, 64", .n = 512, .pack = RAGGED,
      .attr = { HEADS(3, 3, 64), .scale = 0.125f, .seq_len = 256, .dropout_p = 0.1f, .key = 80, .first = 4 } },
    { TR_OP_ATTENTION, "dropout, one document a row, 64", .n = 384, .pack = 192,
      .attr = { HEADS(4, 2, 64), .scale = 0.125f, .seq_len = 192, .dropout_p = 0.1f, .key = 81 } },
    { TR_OP_ATTENTION, "dropout, documents, 128", .n = 512, .pack = RAGGED,
      .attr = { HEADS(4, 2, 128), .scale = 0.09f, .seq_len = 256, .dropout_p = 0.2f, .key = 82 } },
    { TR_OP_ATTENTION, "dropout, documents, 256", .n = 512, .pack = RAGGED,
      .attr = { HEADS(2, 1, 256), .scale = 0.06f, .seq_len = 256, .dropout_p = 0.1f, .key = 83 } },
    { TR_OP_ATTENTION, "dropout, capped, 256, window", .n = 333, .pack = 333,
      .attr = { HEADS(2, 1, 256), .scale = 0.3f, .seq_len = 333, .dropout_p = 0.2f, .key = 79, .softcap = 2,
                .window = 99 } },
};

/* |x - ref| / |ref|, a ref whose elements are below 1e-3 taken as that large. Probabilities are rounded to 16 bits
 * inside, once, and results once more: 2^-9 each in bf16, of both signs; 1e-2 is 2.5 times their sum, and a wrong mask
 * or scale is off by 1e-1 or more. float16 has an eighth of it. */
static inline void assert_near(struct built *got, const struct tr_view *x, const struct tr_view *ref, const char *what)
{
    double diff = 0, size = 0;
    for (int64_t row = 0; row < ref->rows; row++)
        for (int64_t col = 0; col < ref->cols; col++) {
            double a = tr_ref_get(x, row, col), b = tr_ref_get(ref, row, col);
            diff += (a - b) * (a - b);
            size += fmax(b * b, 1e-6);
        }
    double error = sqrt(diff / size);
    printf("    %-44s %-3s %.2e\n", got->label, what, error);
    if (!(error <= (x->dtype == TR_F16 ? 1.25e-3 : 1e-2)))
        fail_msg("%s: %s is off by %.3g of its size", got->label, what, error);
}

/* As training counts them: 0 when a document crosses the end of a row of tokens. */
static inline int64_t documents_of(const struct op_case *row)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < row->n; i++) {
        if (i % row->attr.seq_len == 0 && document_of(row, i) != i)
            return 0;
        sum += document_of(row, i) == i;
    }
    return sum;
}

#endif
