/* batch.c - per_device_train_batch_size auto: the most rows at once that fit into memory. The rows of a step are given,
 * so the choice changes speed and memory, not what is learnt. Every candidate is compiled, and its bytes are counted,
 * as the run itself would be; of a pipeline every stage is. A pipeline is idle for (pp - 1) / (m + pp - 1) of a step of
 * m micro-batches, so there the most rows are those that leave four micro-batches for each stage. */
#include "base/host.h"
#include "build/build.h"
#include "plan/plan.h"

enum { MICRO_A_STAGE = 4 };

/* What one rank may have: the run's budget, or what the machine has, but of a host not more than is free now. */
static enum tr_status find_room(const struct tr_config *cfg, uint64_t *out)
{
    struct tr_setup *s = NULL;
    struct tr_host h;
    if ((*out = (uint64_t)cfg->memory_budget) > 0)
        return TR_OK;
    TR_PASS(tr_setup_open_rank(cfg, TR_USE_TRAIN, 0, &s));
    *out = tr_setup_memory(s);
    tr_host_read("", &h);
    if (s->device->is_host && h.available_bytes != UINT64_MAX) {
        uint64_t n = s->env.n_local > 0 ? (uint64_t)s->env.n_local : 1, now = h.available_bytes / n / 10 * 8;
        *out = *out == 0 || now < *out ? now : *out;
    }
    tr_setup_close(s);
    if (*out == 0)
        return tr_fail(TR_USAGE, "per_device_train_batch_size auto: the memory of the device is not known; give "
                                 "--memory_budget");
    return TR_OK;
}

/* Compiles every stage. TR_USAGE: it does not fit. */
static enum tr_status try_rows(const struct tr_config *run)
{
    int axis[TR_AXES], n_ranks = 1;
    tr_setup_axes(run, axis);
    for (int a = 0; a < TR_AXES; a++)
        n_ranks *= axis[a];
    for (int stage = 0; stage < (int)run->pp; stage++) {
        struct tr_setup *s = NULL;
        TR_PASS(tr_setup_open_rank(run, TR_USE_TRAIN, stage * (n_ranks / (int)run->pp), &s));
        tr_setup_close(s);
    }
    return TR_OK;
}

enum tr_status tr_find_batch(const struct tr_config *cfg, struct tr_config *out)
{
    struct tr_config run = *cfg;
    int64_t share = cfg->train_batch_size / cfg->dp;
    int64_t most = cfg->pp > 1 ? (share + MICRO_A_STAGE * cfg->pp - 1) / (MICRO_A_STAGE * cfg->pp) : share;
    uint64_t room = 0;
    enum tr_status st = TR_USAGE;
    if (!cfg->finds_batch) {
        *out = *cfg;
        return TR_OK;
    }
    run.per_device_train_batch_size = 1;
    run.gradient_accumulation_steps = share;
    TR_PASS(find_room(&run, &room));
    run.memory_budget = (int64_t)room;
    for (int64_t rows = most; rows >= 1 && st == TR_USAGE; rows--) {
        if (share % rows != 0)
            continue;
        run.per_device_train_batch_size = rows;
        run.gradient_accumulation_steps = share / rows;
        st = try_rows(&run);
    }
    if (st != TR_OK)
        return st;
    tr_error_clear(); /* of what did not fit */
    *out = run;
    out->memory_budget = cfg->memory_budget;
    return TR_OK;
}
