/* engine.h - a compiled setup on its ranks: mesh, device, threads and memory, for verbs that do not train. */
#ifndef TR_TRAIN_ENGINE_H
#define TR_TRAIN_ENGINE_H

#include "build/build.h"
#include "exec/exec.h"

struct tr_engine {
    struct tr_setup *s;
    struct tr_pool *pool;
    struct tr_device dev;
    struct tr_mesh *mesh;
    struct tr_exec *e;
    struct tr_str notes; /* what was odd when the ranks met */
};
/* Takes s over, also when it fails. advice: what to change where memory is short. The caller loads the weights. Close
 * it also when open fails. */
enum tr_status tr_engine_open(struct tr_setup *s, const char *advice, struct tr_engine *g);
void tr_engine_close(struct tr_engine *g);

/* Chooses the CPU's matrix products: the engine, and whether last bits may be those of this processor's own
 * instructions. */
enum tr_status tr_choose_products(const struct tr_config *cfg, enum tr_gemm_choice *got);

/* The ranks meet, and agree on n named numbers and on all options. One rank meets nobody. */
enum tr_status tr_join_ranks(const struct tr_setup *s, struct tr_device *dev, const char *const *names,
                             const int64_t *values, int n, struct tr_str *notes, struct tr_mesh **out);

#endif
