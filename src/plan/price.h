/* price.h - the seconds of one op of a compiled program, and of a whole step, played on all pipeline ranks. */
#ifndef TR_PLAN_PRICE_H
#define TR_PLAN_PRICE_H

#include "parallel/parallel.h"
#include "plan/forecast.h"

struct tr_price {
    const struct tr_machine *machine;
    const struct tr_impl *impl;
    int size[TR_AXES];
    struct tr_chip chip; /* this rank's part of the chip, because CPU ranks share a host */
    enum tr_dtype dtype; /* precision of the products */
};

void tr_price_open(const struct tr_compiled *c, const struct tr_machine *m, struct tr_price *out);
/* Seconds of the kernels of a node, and of its traffic with other ranks. */
double tr_price_node(const struct tr_price *p, const struct tr_program *program, const struct tr_node *n);
double tr_price_call(const struct tr_price *p, const struct tr_call *c);
double tr_price_traffic(const struct tr_price *p, const struct tr_program *program, const struct tr_node *n);
/* Seconds in which an optimizer with sums adds up those of a bucket over the ranks of an axis. */
double tr_price_sums(const struct tr_price *p, const struct tr_compiled *c, int bucket, enum tr_axis axis);
/* Seconds of a step that a rank spends in each kernel. */
void tr_price_kernels(const struct tr_compiled *c, const struct tr_machine *m, double out[TR_OP_COUNT]);
/* The ranks along an axis, as a group of chips of the machine. */
struct tr_group tr_price_group(const struct tr_price *p, enum tr_axis axis);

/* Plays the step of compiled runs, one for each pipeline rank: every action in order on every rank, with the messages
 * between them. Fills the times of a forecast; the compiler itself gives the bytes. */
enum tr_status tr_play_compiled(const struct tr_compiled *const *c, int n_ranks, const struct tr_machine *m,
                                struct tr_forecast *out);

#endif
