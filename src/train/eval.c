/* eval.c - loss over a data set: the sum over valid targets divided by their count. The batch size does not change it.
 */
#include "train/choices.h"
#include "train/engine.h"
#include "train/reference.h"
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

static double mean(double sum, double n)
{
    return n > 0 ? sum / n : 0;
}

struct tr_event_pairs tr_pairs_of(const struct tr_pair_rule *k, const double sum[TR_METRICS], int64_t n, double kl)
{
    bool has_labels = tr_pair_has_labels(k);
    double n_chosen = has_labels ? sum[TR_METRIC_DESIRABLE] : (double)n;
    double n_rejected = has_labels ? (double)n - n_chosen : (double)n;
    return (struct tr_event_pairs){ .has = true,
                                    .has_labels = has_labels,
                                    .rewards_chosen = mean(sum[TR_METRIC_REWARD_CHOSEN], n_chosen),
                                    .rewards_rejected = mean(sum[TR_METRIC_REWARD_REJECTED], n_rejected),
                                    .rewards_accuracy = mean(sum[TR_METRIC_WIN], (double)n),
                                    .logps_chosen = mean(sum[TR_METRIC_LOGP_CHOSEN], n_chosen),
                                    .logps_rejected = mean(sum[TR_METRIC_LOGP_REJECTED], n_rejected),
                                    .kl = kl,
                                    .n = n,
                                    .n_chosen = (int64_t)n_chosen };
}

enum tr_status tr_stop_together(struct tr_exec *e, const char *what)
{
    double n_told = tr_stop_wanted();
    TR_PASS(tr_exec_total_ranks(e, "stop?", &n_told, 1));
    return n_told > 0 ? tr_fail(TR_STOPPED, "%s stopped by a signal", what) : TR_OK;
}

struct rows {
    const struct tr_data *d;
    uint64_t first, end;
    bool are_mismatched, is_step; /* is_step: what a step measures, which is short and not cut */
    int64_t n;                    /* of a batch */
    void *mem;
    const struct tr_eval_watch *watch; /* may be NULL */
    const struct tr_match *match; /* of a loss of transport, which are known; NULL: there is none, or they are not */
};

static enum tr_status fill(const struct rows *r, uint64_t at, const struct tr_batch *b, int64_t *n)
{
    if (r->are_mismatched)
        return tr_data_fill_mismatched(r->d, at, r->n, r->end, b, n);
    TR_PASS(tr_data_fill(r->d, at, r->n, r->end, b, n));
    if (r->match)
        tr_match_set(r->match, b, r->n * tr_data_row_tokens(r->d));
    return TR_OK;
}

/* Runs the eval schedule over rows. total: what the losses of all ranks add up to; count: what they are divided by. */
static enum tr_status sum_rows(struct tr_exec *e, const struct rows *r, double total[TR_METRICS], int64_t *count)
{
    struct tr_batch b = tr_batch_in(r->mem, r->n * tr_data_row_tokens(r->d));
    size_t n_sums = (size_t)tr_exec_compiled(e)->place.model->n_losses;
    const struct tr_comm *group = tr_mesh_group(tr_exec_mesh(e), TR_ON_DATA);
    uint64_t n_batches = tr_data_steps(r->end - r->first, (uint64_t)r->n), n_ranks = (uint64_t)group->size;
    int64_t here = 0;
    /* every rank runs the same number of batches, because gathers are collective */
    for (uint64_t k = 0; k < n_batches; k += n_ranks) {
        double sum[TR_METRICS];
        int64_t n = 0;
        uint64_t at = r->first + (k + (uint64_t)group->rank) * (uint64_t)r->n; /* rows past the end are padding */
        TR_PASS(fill(r, at, &b, &n));
        TR_PASS(tr_exec_eval(e, &b, sum));
        if (!r->is_step)
            TR_PASS(tr_stop_together(e, "evaluation"));
        for (size_t i = 0; i < n_sums; i++)
            TR_PASS(tr_exec_add_in_order(e, "evaluation loss", sum[i], &total[i]));
        here += n;
        if (r->watch && r->watch->tell)
            r->watch->tell(r->watch->ctx, (uint64_t)tr_min64((int64_t)(k + n_ranks), (int64_t)n_batches), n_batches,
                           total[TR_METRIC_LOSS] / (double)tr_max64(1, here));
    }
    double n_all = (double)here;
    TR_PASS(tr_exec_from_last_stage(e, "evaluation loss", total, n_sums));
    TR_PASS(tr_exec_total(e, "evaluation tokens", &n_all));
    *count = (int64_t)n_all;
    return TR_OK;
}

/* A mismatched document counts as a desirable answer, so that the sum of its rewards is what is wanted, times beta. */
static enum tr_status measure_kl(struct tr_exec *e, struct rows r, double *kl)
{
    const struct tr_pair_rule *k = &tr_exec_compiled(e)->place.model->pair;
    double total[TR_METRICS] = { 0 };
    int64_t count = 0;
    *kl = 0;
    if (k->term[0].loss != TR_PAIR_KTO)
        return TR_OK;
    r.are_mismatched = true;
    TR_PASS(sum_rows(e, &r, total, &count));
    *kl = fmax(0, mean(total[TR_METRIC_REWARD_CHOSEN] / (double)k->beta, (double)count));
    return TR_OK;
}

enum tr_status tr_measure_kl(struct tr_exec *e, const struct tr_data *d, uint64_t first, uint64_t end, int64_t rows,
                             void *batch_mem, double *kl)
{
    struct rows r = { .d = d, .first = first, .end = end, .is_step = true, .n = rows, .mem = batch_mem };
    return measure_kl(e, r, kl);
}

/* Every rank has the numbers of the pairs that it ran, and zeros for the others. */
static enum tr_status share_lists(struct tr_exec *e, struct tr_match *m)
{
    enum { AT_ONCE = 4096 };
    uint64_t n = tr_match_pairs(m);
    for (int k = 0; k < 2; k++)
        for (uint64_t at = 0; at < n; at += AT_ONCE)
            TR_PASS(tr_exec_total_rows(e, "log-ratios of pairs", m->list[k] + at,
                                       (size_t)(n - at < AT_ONCE ? n - at : AT_ONCE)));
    return TR_OK;
}

/* Runs the pairs of rows forward, and finds what a loss of transport compares them with. mem: tr_setup_match_bytes. */
static enum tr_status measure_match(struct tr_exec *e, const struct rows *r, void *mem, struct tr_match *m)
{
    const struct tr_pair_rule *k = &tr_exec_compiled(e)->place.model->pair;
    const struct tr_comm *group = tr_mesh_group(tr_exec_mesh(e), TR_ON_DATA);
    int64_t n_tokens = r->n * tr_data_row_tokens(r->d);
    uint64_t n_batches = tr_data_steps(r->end - r->first, (uint64_t)r->n);
    struct tr_batch b = tr_batch_in(r->mem, n_tokens);
    float *sums = (float *)(void *)((char *)mem + tr_match_bytes(r->end - r->first, tr_data_row_tokens(r->d)));
    TR_PASS(tr_match_init(m, tr_pair_transport(k) == TR_PAIR_AOT, r->d, r->first, r->end, mem));
    for (uint64_t i = 0; i < n_batches; i += (uint64_t)group->size) {
        int64_t n;
        TR_PASS(fill(r, r->first + (i + (uint64_t)group->rank) * (uint64_t)r->n, &b, &n));
        TR_PASS(tr_exec_documents(e, &b, sums));
        tr_match_take(m, &b, n_tokens, sums, k->weighs_tokens ? TR_DOC_WEIGHED : TR_DOC_LOSS, TR_DOC_REF,
                      tr_doc_sums(k));
        if (!r->is_step)
            TR_PASS(tr_stop_together(e, "evaluation"));
    }
    TR_PASS(share_lists(e, m));
    tr_match_sort(m);
    return TR_OK;
}

enum tr_status tr_match_step(struct tr_exec *e, const struct tr_data *d, const struct tr_step_batch *b, int64_t rows,
                             const struct tr_loader_shape *shape, void *batch_mem, void *match_mem)
{
    struct rows r = { .d = d, .first = b->first_sample, .end = b->first_sample + b->n_samples };
    struct tr_match m;
    if (!tr_exec_compiled(e)->place.model->pair.is_matched)
        return TR_OK;
    r.is_step = true, r.n = rows, r.mem = batch_mem;
    TR_PASS(measure_match(e, &r, match_mem, &m));
    for (int64_t i = 0; i < b->n_micro; i++)
        tr_match_set(&m, &b->micro[i], shape->micro_rows * shape->row_tokens);
    return TR_OK;
}

/* The whole of the data is one batch for a loss of transport. */
static enum tr_status sum_matched(struct tr_exec *e, struct rows *all, double total[TR_METRICS], int64_t *count)
{
    enum tr_status st = TR_OK;
    struct tr_match m;
    void *mem = NULL;
    size_t bytes = tr_setup_match_bytes(&tr_exec_compiled(e)->place.model->pair, tr_data_row_tokens(all->d), all->n,
                                        all->end - all->first);
    if (bytes > 0) {
        if (!(mem = malloc(bytes)))
            return tr_fail(TR_NOMEM, "evaluation: no memory for the log-ratios of pairs");
        TR_TRY(measure_match(e, all, mem, &m));
        all->match = &m;
    }
    TR_TRY(sum_rows(e, all, total, count));
out:
    free(mem);
    return st;
}

enum tr_status tr_evaluate(struct tr_exec *e, const struct tr_data *d, int64_t rows, void *batch_mem,
                           const struct tr_eval_watch *watch, struct tr_eval_result *out)
{
    const struct tr_model *m = tr_exec_compiled(e)->place.model;
    struct rows all = { .d = d, .end = tr_data_rows(d), .n = rows, .mem = batch_mem };
    double total[TR_METRICS] = { 0 }, kl;
    int64_t count = 0;
    TR_PASS(measure_kl(e, all, &kl));
    if (tr_pair_has_labels(&m->pair))
        tr_exec_set_step(e, TR_STEP_KL, (float)kl);
    all.watch = watch;
    TR_PASS(sum_matched(e, &all, total, &count));
    if (count == 0)
        return tr_fail(TR_USAGE, "evaluation data has no target tokens");
    double loss = total[TR_METRIC_LOSS] / (double)count;
    *out = (struct tr_eval_result){ .loss = loss, .perplexity = exp(loss), .tokens = count };
    if (m->n_losses > 1)
        out->pairs = tr_pairs_of(&m->pair, total, count, kl);
    return TR_OK;
}

static enum tr_status load_model(const struct tr_engine *g)
{
    struct tr_store store = tr_exec_store(g->e);
    return tr_dirs_load(&g->s->from, &store, (float *)(void *)tr_exec_arena(g->e, TR_A_SAVE));
}

/* What the reference says of the pairs; its weights lie where those of the model will be loaded again. */
static enum tr_status ask_reference(const struct tr_engine *g, const char *cache, struct tr_data *data)
{
    struct tr_reference r = { g->s, g->e, g->pool, cache };
    struct tr_str notes = { 0 };
    bool has_loaded = false;
    if (!tr_config_needs_reference(g->s->cfg))
        return TR_OK;
    enum tr_status st = tr_reference_fill(&r, data, tr_data_rows(data), &has_loaded, &notes);
    tr_str_release(&notes);
    return st == TR_OK && has_loaded ? load_model(g) : st;
}

static enum tr_status eval_data(const struct tr_config *cfg, const struct tr_engine *g,
                                const struct tr_eval_watch *watch, struct tr_eval_result *out)
{
    enum tr_status st = TR_OK;
    struct tr_tokenizer *tok = NULL;
    struct tr_data *data = NULL;
    char cache[TR_PATH_MAX];
    const struct tr_data_list *list = cfg->data.n ? &cfg->data : &cfg->eval_data;
    if (list->n == 0)
        return TR_OK;
    TR_TRY(tr_reader_cache(cfg, cache));
    TR_TRY(tr_open_data(cfg, g->s, list, false, cache, &tok, &data));
    TR_TRY(ask_reference(g, cache, data));
    TR_TRY(tr_evaluate(g->e, data, cfg->per_device_eval_batch_size, tr_exec_arena(g->e, TR_A_DATA),
                       tr_mesh_is_first(g->mesh) ? watch : NULL, out));
out:
    tr_data_close(data);
    tr_tokenizer_close(tok);
    return st;
}

static enum tr_status eval_choices(const struct tr_config *cfg, const struct tr_engine *g,
                                   const struct tr_eval_watch *watch, struct tr_event_choices *out)
{
    enum tr_status st = TR_OK;
    struct tr_choices *c = NULL;
    size_t n = 0;
    if (!cfg->eval_choices)
        return TR_OK;
    TR_TRY(tr_choices_open(cfg->eval_choices, g->s, NULL, &c));
    TR_TRY(tr_choices_run(c, g->e, tr_exec_arena(g->e, TR_A_DATA), out));
    for (size_t i = 0; watch && watch->on_item && tr_mesh_is_first(g->mesh) && i < tr_choices_count(c); i++) {
        const double *ll = tr_choices_of(c, i, &n);
        watch->on_item(watch->ctx, ll, n);
    }
out:
    tr_choices_close(c);
    return st;
}

enum tr_status tr_eval(const struct tr_config *cfg, const struct tr_eval_watch *watch, struct tr_eval_result *out)
{
    enum tr_status st = TR_OK;
    struct tr_setup *s = NULL;
    struct tr_engine g = { 0 };
    struct tr_str note = { 0 };
    *out = (struct tr_eval_result){ 0 };
    if (tr_config_needs_reference(cfg) && !cfg->ref_model)
        TR_TRY(tr_fail(TR_USAGE, "rewards compare a model with its reference; give --ref_model DIR, the model that the "
                                 "training began with"));
    TR_TRY(tr_setup_open(cfg, TR_USE_EVAL, &s));
    TR_TRY(tr_engine_open(s,
                          "lower --per_device_eval_batch_size or --sequence_length, or share the model with --tp, "
                          "--pp or --zero 3",
                          &g));
    TR_TRY(load_model(&g));
    tr_stop_soon_on_signals();
    TR_TRY(eval_data(cfg, &g, watch, out));
    TR_TRY(eval_choices(cfg, &g, watch, &out->choices));
    out->is_first = tr_mesh_is_first(g.mesh);
    tr_setup_note_positions(s, &note);
    (void)snprintf(out->note, sizeof out->note, "%s", note.n && tr_str_ok(&note) ? note.p : "");
out:
    tr_str_release(&note);
    tr_engine_close(&g);
    return st;
}
