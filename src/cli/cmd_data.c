/* cmd_data.c - trireme data check | show: what a model will see in training, and what it saw in a step. */
#include "cli/cli.h"
#include <stdio.h>
#include <unistd.h>

enum { SHOWN_ROWS = 3, SHOWN_TOKENS = 160, LOOKED_AT = 64 /* batches */ };

struct view {
    const struct tr_config *cfg;
    struct tr_setup *s;
    struct tr_tokenizer *tok;
    struct tr_data *d;
    bool has_color;
};

static enum tr_status open_view(const struct tr_config *cfg, bool is_training, struct view *v)
{
    char cache[TR_PATH_MAX];
    *v = (struct view){ .cfg = cfg, .has_color = tr_term_detect(STDOUT_FILENO).has_color };
    TR_PASS(tr_setup_open(cfg, TR_USE_PROOF, &v->s));
    TR_PASS(tr_reader_cache(cfg, cache));
    return tr_open_data(cfg, v->s, &cfg->data, is_training, cache, &v->tok, &v->d);
}

static void close_view(struct view *v)
{
    tr_data_close(v->d);
    tr_tokenizer_close(v->tok);
    tr_setup_close(v->s);
}

static enum tr_status print_samples(const struct view *v, uint64_t first, uint64_t last)
{
    for (uint64_t g = first; g <= last; g++) {
        struct tr_proof_row row;
        TR_PASS(tr_data_prove(v->d, v->tok, g, &row));
        struct tr_str out = { 0 };
        tr_proof_row_show(&row, v->has_color, SHOWN_TOKENS, &out);
        cli_print(tr_str_ok(&out) ? out.p : "");
        tr_str_release(&out);
        tr_proof_row_release(&row);
    }
    return TR_OK;
}

/* A batch that has two documents in one row, if one of the first batches does. */
static enum tr_status fill_batch(const struct view *v, const struct tr_batch *b)
{
    uint64_t n_rows = tr_data_rows(v->d), n_batches = tr_data_steps(n_rows, TR_PROOF_ROWS);
    int64_t length = v->s->sequence_length, n_targets;
    for (uint64_t k = 0; k < n_batches && k < LOOKED_AT; k++) {
        TR_PASS(tr_data_fill(v->d, k * TR_PROOF_ROWS, TR_PROOF_ROWS, n_rows, b, &n_targets));
        if (tr_proof_has_pair(b, TR_PROOF_ROWS * length, length))
            return TR_OK;
    }
    return tr_data_fill(v->d, 0, TR_PROOF_ROWS, n_rows, b, &n_targets);
}

/* The proof that needs weights; a model without weights yet is checked with random ones. */
static enum tr_status prove(const struct view *v, struct tr_proof *out)
{
    enum tr_status st = TR_OK;
    struct tr_pool *pool = NULL;
    struct tr_exec *e = NULL;
    struct tr_device dev;
    TR_TRY(tr_pool_open((int)v->cfg->threads, &pool));
    TR_TRY(tr_device_open("cpu", &dev));
    TR_TRY(tr_exec_open(v->s->compiled, &dev, pool, NULL, 0, &e));
    struct tr_store store = tr_exec_store(e);
    float *buf = (float *)(void *)tr_exec_arena(e, TR_A_SAVE);
    if (tr_dirs_load(&v->s->from, &store, buf) != TR_OK) {
        tr_error_clear();
        TR_TRY(tr_load_random(&store, 1, pool, buf));
    }
    int64_t length = v->s->sequence_length, n_tokens = TR_PROOF_ROWS * length;
    struct tr_batch batch = tr_batch_in(tr_exec_arena(e, TR_A_DATA), n_tokens);
    TR_TRY(fill_batch(v, &batch));
    struct tr_proof_batch b = { .e = e, .micro = &batch, .n_micro = 1, .n_tokens = n_tokens, .row_tokens = length };
    TR_TRY(tr_prove(&b, out));
out:
    tr_exec_close(e);
    tr_pool_close(pool);
    return st;
}

static enum tr_status data_check(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct view v;
    struct tr_proof proof;
    struct tr_str text = { 0 }, json = { 0 };
    struct tr_config whole = *cfg; /* both sides of a split are checked */
    whole.eval_split = 0;
    TR_TRY(open_view(&whole, false, &v));
    TR_TRY(tr_data_summary(v.d, &text, &json));
    TR_TRY(tr_check_turns(v.s, v.d, v.tok, &text));
    tr_setup_note_positions(v.s, &text);
    tr_note_idle_data(cfg, v.d, &text);
    if (!cfg->json) {
        uint64_t n_rows = tr_data_rows(v.d);
        cli_print(text.p);
        TR_TRY(print_samples(&v, 0, n_rows < SHOWN_ROWS ? n_rows - 1 : SHOWN_ROWS - 1));
    }
    TR_TRY(prove(&v, &proof));
    if (!cfg->json) {
        tr_str_clear(&text);
        tr_proof_show(&proof, &text);
        cli_print(tr_str_ok(&text) ? text.p : "");
    } else {
        printf("{%s,\"isolated\":%s,\"pairs\":%" PRId64 ",\"split_error\":%.3g}\n", json.p,
               !proof.is_finite    ? "null"
               : proof.is_isolated ? "true"
                                   : "false",
               proof.n_pairs, proof.is_finite ? proof.split_error : 0);
    }
out:
    tr_str_release(&text);
    tr_str_release(&json);
    close_view(&v);
    return st;
}

/* The sample range of a step, from the run's events. */
static enum tr_status find_step(const char *output, int64_t step, uint64_t *first, uint64_t *last)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    struct tr_events *events = NULL;
    struct tr_event e = { 0 };
    bool found = false;
    TR_TRY(tr_path_join(path, output, TR_NAME_EVENTS));
    if (tr_events_open(path, 0, &events) != TR_OK)
        TR_TRY(tr_fail(TR_USAGE, "%s: cannot be read; --output names the run", path));
    while (!found && tr_events_next(events, &e))
        found = e.kind == TR_EVENT_STEP && e.step == step && e.has_samples;
    if (!found)
        TR_TRY(tr_fail(TR_USAGE, "%s: no step %" PRId64, path, step));
    *first = (uint64_t)e.first_sample;
    *last = (uint64_t)e.last_sample;
out:
    tr_events_close(events);
    return st;
}

static enum tr_status data_show(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct view v = { 0 };
    uint64_t first = 0, last = 0;
    TR_TRY(find_step(cfg->output, cfg->step, &first, &last));
    TR_TRY(open_view(cfg, true, &v));
    if (cfg->json)
        printf("{\"step\": %" PRId64 ", \"samples\": [%" PRIu64 ", %" PRIu64 "]}\n", cfg->step, first, last);
    else
        printf("step %" PRId64 ": samples %" PRIu64 " to %" PRIu64 "\n", cfg->step, first, last);
    if (!cfg->json)
        TR_TRY(print_samples(&v, first, last));
out:
    close_view(&v);
    return st;
}

enum tr_status cmd_data(const struct tr_config *cfg)
{
    const char *sub = cfg->args.n ? cfg->args.item[0] : "";
    if (strcmp(sub, "check") == 0 && cfg->model && cfg->data.n)
        return data_check(cfg);
    if (strcmp(sub, "show") == 0 && cfg->model && cfg->data.n && cfg->output && cfg->step > 0)
        return data_show(cfg);
    return tr_verb_misused(TR_VERB_DATA);
}
