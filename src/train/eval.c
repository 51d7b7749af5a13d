/* eval.c - loss over a data set: the sum over valid targets divided by their count. The batch size does not change it.
 */
#include "train/room.h"
#include "train/train.h"
#include <math.h>

struct tr_event_pairs tr_pairs_of(const double sum[TR_METRICS], int64_t n)
{
    double each = n > 0 ? 1 / (double)n : 0;
    return (struct tr_event_pairs){ .has = true,
                                    .rewards_chosen = sum[TR_METRIC_REWARD_CHOSEN] * each,
                                    .rewards_rejected = sum[TR_METRIC_REWARD_REJECTED] * each,
                                    .rewards_accuracy = sum[TR_METRIC_WIN] * each,
                                    .logps_chosen = sum[TR_METRIC_LOGP_CHOSEN] * each,
                                    .logps_rejected = sum[TR_METRIC_LOGP_REJECTED] * each,
                                    .n = n };
}

enum tr_status tr_evaluate(struct tr_exec *e, const struct tr_data *d, int64_t rows, void *batch_mem,
                           const struct tr_eval_watch *watch, struct tr_eval_result *out)
{
    uint64_t n_rows = tr_data_rows(d);
    struct tr_batch b = tr_batch_in(batch_mem, rows * tr_data_row_tokens(d));
    double total[TR_METRICS] = { 0 };
    size_t n_sums = (size_t)tr_exec_compiled(e)->place.model->n_losses;
    int64_t count = 0;
    uint64_t n_ranks = (uint64_t)tr_mesh_group(tr_exec_mesh(e), TR_ON_DATA)->size,
             rank = (uint64_t)tr_mesh_group(tr_exec_mesh(e), TR_ON_DATA)->rank;
    uint64_t n_batches = tr_data_steps(n_rows, (uint64_t)rows);
    /* every rank runs the same number of batches, because gathers are collective */
    for (uint64_t k = 0; k < n_batches; k += n_ranks) {
        double sum[TR_METRICS];
        int64_t n = 0;
        uint64_t at = (k + rank) * (uint64_t)rows; /* rows past the end are padding */
        enum tr_status st = tr_data_fill(d, at, rows, n_rows, &b, &n);
        if (st == TR_OK)
            st = tr_exec_eval(e, &b, sum);
        if (st == TR_OK && tr_mesh_is_alone(tr_exec_mesh(e)) && tr_stop_wanted())
            st = tr_fail(TR_STOPPED, "evaluation stopped by a signal");
        if (st != TR_OK)
            return st;
        for (size_t i = 0; i < n_sums && st == TR_OK; i++)
            st = tr_exec_add_in_order(e, "evaluation loss", sum[i], &total[i]);
        if (st != TR_OK)
            return st;
        count += n;
        if (watch)
            watch->tell(watch->ctx, (uint64_t)tr_min64((int64_t)(k + n_ranks), (int64_t)n_batches), n_batches,
                        total[TR_METRIC_LOSS] / (double)tr_max64(1, count));
    }
    double n_all = (double)count;
    enum tr_status st = tr_exec_from_last_stage(e, "evaluation loss", total, n_sums);
    if (st == TR_OK)
        st = tr_exec_total(e, "evaluation tokens", &n_all);
    if (st != TR_OK)
        return st;
    count = (int64_t)n_all;
    if (count == 0)
        return tr_fail(TR_USAGE, "evaluation data has no target tokens");
    double loss = total[TR_METRIC_LOSS] / (double)count;
    *out = (struct tr_eval_result){ .loss = loss, .perplexity = exp(loss), .tokens = count };
    if (n_sums > 1)
        out->pairs = tr_pairs_of(total, count);
    return TR_OK;
}

enum tr_status tr_eval(const struct tr_config *cfg, const struct tr_eval_watch *watch, struct tr_eval_result *out)
{
    enum tr_status st = TR_OK;
    struct tr_setup *s = NULL;
    struct tr_pool *pool = NULL;
    struct tr_exec *e = NULL;
    struct tr_tokenizer *tok = NULL;
    struct tr_data *data = NULL;
    struct tr_device dev = { 0 };
    enum tr_gemm_choice got;
    char cache[TR_PATH_MAX];
    const struct tr_data_list *list = cfg->data.n ? &cfg->data : &cfg->eval_data;
    if (tr_pair_needs_reference(tr_config_pair(cfg).loss))
        TR_TRY(tr_fail(TR_USAGE,
                       "eval asks no reference, so it cannot tell rewards; give --eval_data to the training, or "
                       "a --loss_type without a reference (orpo, simpo, cpo, sft)"));
    TR_TRY(tr_setup_open(cfg, TR_USE_EVAL, &s));
    TR_TRY(tr_room_check(s->compiled, NULL, "lower --per_device_eval_batch_size or --sequence_length"));
    TR_TRY(tr_gemm_select(cfg->gemm, &got));
    TR_TRY(tr_reader_cache(cfg, cache));
    TR_TRY(tr_open_data(cfg, s, list, false, cache, &tok, &data));
    TR_TRY(tr_pool_open((int)cfg->threads, &pool));
    TR_TRY(tr_device_open(s->device->name, &dev));
    TR_TRY(tr_exec_open(s->compiled, &dev, pool, NULL, 0, &e));
    struct tr_store store = tr_exec_store(e);
    TR_TRY(tr_dirs_load(&s->from, &store, (float *)(void *)tr_exec_arena(e, TR_A_SAVE)));
    tr_stop_soon_on_signals();
    TR_TRY(tr_evaluate(e, data, cfg->per_device_eval_batch_size, tr_exec_arena(e, TR_A_DATA), watch, out));
out:
    tr_exec_close(e);
    tr_device_close(&dev);
    tr_pool_close(pool);
    tr_data_close(data);
    tr_tokenizer_close(tok);
    tr_setup_close(s);
    return st;
}
