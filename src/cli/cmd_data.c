/* cmd_data.c - trireme data check | show: what the model will see, before it sees it, and after. */
#include "cli/cli.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHOWN_ROWS = 3, SHOWN_TOKENS = 160 };

struct view {
    const struct tr_config *cfg;
    struct tr_setup *s;
    struct tr_tokenizer *tok;
    struct tr_data *d;
    bool has_color;
};

static enum tr_status open_view(const struct tr_config *cfg, bool is_training, struct view *v)
{
    enum tr_status st = TR_OK;
    char cache[TR_PATH_MAX];
    *v = (struct view){ .cfg = cfg, .has_color = tr_term_detect(STDOUT_FILENO).has_color };
    TR_TRY(tr_setup_open(cfg, TR_USE_PROOF, &v->s));
    TR_TRY(tr_path_join(cache, cfg->output ? cfg->output : cfg->model, ".cache"));
    TR_TRY(tr_open_data(cfg, v->s, &cfg->data, is_training, cache, &v->tok, &v->d));
out:
    return st;
}

static void close_view(struct view *v)
{
    tr_data_close(v->d);
    tr_tokenizer_close(v->tok);
    tr_setup_close(v->s);
}

/* Trained tokens green, the others dim; without colour trained runs stand in [brackets]. A document begins with a bar.
 */
static void print_row(const struct view *v, const struct tr_proof_row *r)
{
    struct tr_str out = { 0 };
    bool was_target = false;
    char esc[256];
    tr_str_addf(&out,
                "sample %" PRIu64 " (epoch %" PRIu64 "): %" PRId64 " tokens in %" PRId64 " documents, %" PRId64
                " trained\n",
                r->sample, r->epoch, r->n_tokens, r->n_docs, r->n_targets);
    for (int64_t i = 0; i < r->n_tokens && i < SHOWN_TOKENS; i++) {
        const struct tr_proof_token *t = &r->tokens[i];
        char text[200];
        size_t n = t->n_text < sizeof text ? t->n_text : sizeof text - 1;
        memcpy(text, t->text, n);
        text[n] = 0;
        if (t->position == 0 && i > 0)
            tr_str_addf(&out, v->has_color ? "\x1b[0m\x1b[1;34m|\x1b[0m" : "%s|",
                        was_target && !v->has_color ? "]" : "");
        if (t->position == 0)
            was_target = false;
        if (v->has_color)
            tr_str_addf(&out, "%s", t->is_target ? "\x1b[32m" : "\x1b[0;2m");
        else if (t->is_target != was_target)
            tr_str_addf(&out, "%s", t->is_target ? "[" : "]");
        was_target = t->is_target;
        tr_str_addf(&out, "%s", tr_escape(text, esc, sizeof esc));
    }
    tr_str_addf(&out, "%s%s\n",
                v->has_color ? "\x1b[0m"
                : was_target ? "]"
                             : "",
                r->n_tokens > SHOWN_TOKENS ? " ..." : "");
    cli_print(tr_str_ok(&out) ? out.p : "");
    tr_str_release(&out);
}

static enum tr_status print_samples(const struct view *v, uint64_t first, uint64_t last)
{
    for (uint64_t g = first; g <= last; g++) {
        struct tr_proof_row row;
        enum tr_status st = tr_data_prove(v->d, v->tok, g, &row);
        if (st != TR_OK)
            return st;
        print_row(v, &row);
        tr_proof_row_release(&row);
    }
    return TR_OK;
}

static void print_counts(const struct view *v)
{
    struct tr_data_info i;
    size_t n = 0;
    char esc[400];
    tr_data_get_info(v->d, &i);
    const struct tr_data_file *f = tr_data_files(v->d, &n);
    for (size_t k = 0; k < n; k++)
        printf("%s: %s records, %s packing, %" PRIu64 " tokens in %" PRIu64 " documents, %" PRIu64 " skipped%s\n",
               tr_escape(f[k].path, esc, sizeof esc), tr_shape_name(f[k].shape), tr_packing_name(f[k].packing),
               f[k].n_tokens, f[k].n_docs, f[k].n_skipped, f[k].was_cached ? " (cached)" : "");
    const struct tr_data_skip *skip = tr_data_skips(v->d, &n);
    for (size_t k = 0; k < n; k++)
        printf("  skipped %s:%" PRId64 ": %s\n", tr_escape(skip[k].path, esc, sizeof esc), skip[k].line, skip[k].why);
    printf("%" PRIu64 " rows of %" PRId64 " tokens, %.1f %% filled; %" PRIu64
           " documents go on in further rows, %" PRIu64 " lost their end (%" PRIu64 " tokens)\n",
           i.n_rows, v->s->sequence_length,
           100.0 * (double)i.n_row_tokens / ((double)i.n_rows * (double)v->s->sequence_length), i.n_split, i.n_cut,
           i.n_tokens_lost);
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
    float *buf = (float *)(void *)e->base[TR_A_SAVE];
    if (tr_load_weights(&store, v->cfg->model, buf, NULL) != TR_OK) {
        tr_error_clear();
        TR_TRY(tr_load_random(&store, 1, pool, buf));
    }
    TR_TRY(tr_prove(e, v->d, e->base[TR_A_DATA], out));
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
    struct tr_data_info i;
    TR_TRY(open_view(cfg, false, &v));
    TR_TRY(prove(&v, &proof));
    tr_data_get_info(v.d, &i);
    if (!cfg->json) {
        print_counts(&v);
        TR_TRY(print_samples(&v, 0, i.n_rows < SHOWN_ROWS ? i.n_rows - 1 : SHOWN_ROWS - 1));
        printf("isolation: %" PRId64 " neighbouring documents changed, %s\n", proof.n_pairs,
               proof.n_pairs == 0  ? "no row holds two"
               : proof.is_isolated ? "no loss moved by a bit"
                                   : "LOSS MOVED");
        printf("loss of a batch against the sum over its rows: %.1e apart\n", proof.split_error);
    } else {
        printf("{\"tokens\": %" PRIu64 ", \"documents\": %" PRIu64 ", \"rows\": %" PRIu64 ", \"row_tokens\": %" PRIu64
               ", \"skipped\": %" PRIu64 ", \"split\": %" PRIu64 ", \"cut\": %" PRIu64
               ", \"isolated\": %s, \"pairs\": %" PRId64 ", \"split_error\": %.3g}\n",
               i.n_tokens, i.n_docs, i.n_rows, i.n_row_tokens, i.n_skipped, i.n_split, i.n_cut,
               proof.is_isolated ? "true" : "false", proof.n_pairs, proof.split_error);
    }
    if (!proof.is_isolated)
        st = tr_fail(TR_NUMBERS, "a document changed the loss of its neighbour");
out:
    close_view(&v);
    return st;
}

/* The sample range of a step, from the run's events. */
static enum tr_status find_step(const char *output, int64_t step, uint64_t *first, uint64_t *last)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], *line = NULL;
    size_t cap = 0;
    ssize_t n;
    bool found = false;
    FILE *f = NULL;
    TR_TRY(tr_path_join(path, output, "events.jsonl"));
    f = fopen(path, "re");
    if (!f)
        TR_TRY(tr_fail(TR_USAGE, "%s: cannot be read; --output names the run", path));
    while (!found && (n = getline(&line, &cap, f)) > 0) {
        cJSON *j = NULL;
        if (tr_json_parse(line, (size_t)n, path, &j) == TR_OK) {
            const cJSON *kind = cJSON_GetObjectItemCaseSensitive(j, "event"),
                        *at = cJSON_GetObjectItemCaseSensitive(j, "step");
            const cJSON *r = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(j, "samples"), 0);
            const cJSON *a = cJSON_GetArrayItem(r, 0), *b = cJSON_GetArrayItem(r, 1);
            found = cJSON_IsString(kind) && strcmp(kind->valuestring, "step") == 0 && cJSON_IsNumber(at) &&
                    (int64_t)at->valuedouble == step && cJSON_IsNumber(a) && cJSON_IsNumber(b);
            if (found) {
                *first = (uint64_t)a->valuedouble;
                *last = (uint64_t)b->valuedouble;
            }
        }
        tr_error_clear();
        cJSON_Delete(j);
    }
    if (!found)
        st = tr_fail(TR_USAGE, "%s: no step %" PRId64, path, step);
out:
    if (f)
        fclose(f);
    free(line);
    return st;
}

static enum tr_status data_show(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct view v = { 0 };
    uint64_t first = 0, last = 0;
    TR_TRY(find_step(cfg->output, cfg->step, &first, &last));
    TR_TRY(open_view(cfg, true, &v));
    printf("step %" PRId64 ": samples %" PRIu64 " to %" PRIu64 "\n", cfg->step, first, last);
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
    return tr_fail(TR_USAGE,
                   "usage: trireme data check --model DIR --data PATH, or trireme data show --step N --output RUN "
                   "--model DIR --data PATH with the run's options");
}
