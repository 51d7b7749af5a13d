/* rules.h - one line per op: its rule in each level-1 pass that treats ops differently, or why it has none.
 *
 * A pass expands its own column: the word `linear` in the column `grad` is `rule_linear` in grad.c. The words later,
 * backward, constant, in_combine, in_pair, inference and update are not rules but reasons (TR_WHY_...). An op that
 * reaches a pass where it has a reason is a bug, which is reported with that reason. The other passes look for patterns
 * (side, fuse), at one op (cache) or at the rows of ops (recompute, layout). A new op does not compile without a line
 * here.
 */
#ifndef TR_PARALLEL_RULES_H
#define TR_PARALLEL_RULES_H

#include "program/program.h"

/*    op                 tensor      context     grad          fp8 */
#define TR_RULE_LIST(X)                                                                                                \
    X(EMBED, embed, rows, embed, same)                                                                                 \
    X(EMBED_DW, later, later, backward, same)                                                                          \
    X(LINEAR, linear, rows, linear, linear)                                                                            \
    X(LINEAR_DX, later, later, backward, linear_dx)                                                                    \
    X(LINEAR_DW, later, later, backward, linear_dw)                                                                    \
    X(LINEAR_ADD, later, later, later, later)                                                                          \
    X(LINEAR_ACT, later, later, later, later)                                                                          \
    X(LINEAR_DX_ACT, later, later, later, later)                                                                       \
    X(DEQUANT, later, later, later, later)                                                                             \
    X(LAYERNORM, norm, rows, norm, same)                                                                               \
    X(LAYERNORM_BWD, later, later, backward, same)                                                                     \
    X(RMSNORM, norm, rows, norm, same)                                                                                 \
    X(RMSNORM_BWD, later, later, backward, same)                                                                       \
    X(ROPE, same, rows, self, same)                                                                                    \
    X(REGROUP, same, rows, self, same)                                                                                 \
    X(ATTENTION, attention, attention, attention, same)                                                                \
    X(ATTENTION_BWD, later, later, backward, same)                                                                     \
    X(CACHE_PUT, later, later, inference, inference)                                                                   \
    X(ATTENTION_CACHED, later, later, inference, inference)                                                            \
    X(RING_ATTENTION, later, later, attention, same)                                                                   \
    X(RING_ATTENTION_BWD, later, later, backward, same)                                                                \
    X(ACT, same, rows, act, same)                                                                                      \
    X(ACT_BWD, later, later, backward, same)                                                                           \
    X(GLU, add, rows, glu, same)                                                                                       \
    X(GLU_BWD, later, later, backward, same)                                                                           \
    X(ADD, add, rows, add, same)                                                                                       \
    X(SCALE, same, rows, self, same)                                                                                   \
    X(NOISE, dropout, rows, through, same)                                                                             \
    X(DROPOUT, dropout, rows, self, same)                                                                              \
    X(CAST, later, later, inference, inference)                                                                        \
    X(ZERO, later, later, backward, same)                                                                              \
    X(ROW_SQUARES, squares, rows, constant, same)                                                                      \
    X(COL_SCALE, col_scale, rows, col_scale, same)                                                                     \
    X(COL_SCALE_BWD, later, later, backward, same)                                                                     \
    X(HEAD_LOSS, head, rows, head, same)                                                                               \
    X(HEAD_LOSS_GRAD, later, later, backward, same)                                                                    \
    X(HEAD_STATS, later, rows, in_combine, same)                                                                       \
    X(HEAD_COMBINE, later, rows, head_combine, same)                                                                   \
    X(HEAD_GRAD, later, later, backward, same)                                                                         \
    X(SUM, sum, rows, sum, same)                                                                                       \
    X(DFT_LOSS, sum, rows, dft_loss, same)                                                                             \
    X(WEIGH_LOSS, sum, rows, weigh_loss, same)                                                                         \
    X(DOC_SUMS, sum, doc_sums, in_pair, same)                                                                          \
    X(PAIR_LOSS, sum, rows, pair_loss, same)                                                                           \
    X(SUMSQ, update, update, update, update)                                                                           \
    X(ADAMW, update, update, update, update)                                                                           \
    X(ADAMW8, update, update, update, update)                                                                          \
    X(LION, update, update, update, update)                                                                            \
    X(LION8, update, update, update, update)                                                                           \
    X(SGD, update, update, update, update)                                                                             \
    X(MUON, update, update, update, update)                                                                            \
    X(ORTHOGONAL, update, update, update, update)                                                                      \
    X(MUON_APPLY, update, update, update, update)                                                                      \
    X(ADAFACTOR_SUMS, update, update, update, update)                                                                  \
    X(ADAFACTOR_FACTORS, update, update, update, update)                                                               \
    X(ADAFACTOR_NORM, update, update, update, update)                                                                  \
    X(ADAFACTOR_APPLY, update, update, update, update)                                                                 \
    X(QUANT, later, later, later, later)                                                                               \
    X(MATMUL8, later, later, later, later)                                                                             \
    X(ALL_REDUCE, later, rows, collective, same)                                                                       \
    X(ALL_GATHER, later, rows, collective, same)                                                                       \
    X(REDUCE_SCATTER, later, rows, collective, same)                                                                   \
    X(ALL_TO_ALL, later, later, self, same)                                                                            \
    X(COPY, later, rows, collective, same)

/* Why an op has no rule in a pass. */
#define TR_WHY_LATER      "only this pass or a later one makes it"
#define TR_WHY_BACKWARD   "it is part of a backward itself"
#define TR_WHY_CONSTANT   "its result is a constant in the backward"
#define TR_WHY_IN_COMBINE "the gradient of head_combine covers it"
#define TR_WHY_IN_PAIR    "the gradient of pair_loss covers it"
#define TR_WHY_INFERENCE  "it is made for inference only"
#define TR_WHY_UPDATE     "it runs on buckets after the backward and is never a node of a program"

/* For the static_assert of each column. With -Woverride-init a second line for one op does not compile either. */
#define TR_COUNT_RULE(...) +1
enum { TR_N_RULES = 0 TR_RULE_LIST(TR_COUNT_RULE) };

/* Aborts: names pass, program, op and reason. */
TR_NORETURN void tr_no_rule(const char *pass, const struct tr_program *p, enum tr_opcode op, const char *reason);

#endif
