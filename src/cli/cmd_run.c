/* cmd_run.c - init, train, eval, generate: the verbs that compute. What each needs, config has checked. */
#include "cli/cli.h"
#include "plan/plan.h"
#include <math.h>
#include <stdio.h>

enum tr_status cmd_init(const struct tr_config *cfg)
{
    enum tr_status st = tr_init_model(cfg);
    if (st == TR_OK && cfg->json)
        cli_print_path(cfg->output);
    else if (st == TR_OK && !cfg->quiet)
        cli_printf("wrote %s with random weights (seed %" PRId64 ")\n", cfg->output, cfg->seed);
    return st;
}

enum tr_status cmd_train(const struct tr_config *cfg)
{
    struct tr_config run;
    TR_PASS(tr_find_batch(cfg, &run));
    return tr_train(&run);
}

/* A line every few seconds of a long evaluation; and what it says of choices. */
struct eval_clock {
    int64_t start_us, next_us;
    struct tr_str items; /* --json: a list of log-likelihoods for each item */
};

static void tell_eval(void *ctx, uint64_t n_done, uint64_t n_all, double loss)
{
    enum { EVERY_US = 5000000 };
    struct eval_clock *c = ctx;
    int64_t now = tr_clock_us();
    if (now < c->next_us || n_done == n_all)
        return;
    double left_s = (double)(now - c->start_us) * 1e-6 / (double)n_done * (double)(n_all - n_done);
    fprintf(stderr, "batch %" PRIu64 " of %" PRIu64 ", loss %.4f so far, %.0f s left\n", n_done, n_all, loss, left_s);
    c->next_us = now + EVERY_US;
}

static void add_item(void *ctx, const double *ll, size_t n)
{
    struct eval_clock *c = ctx;
    for (size_t i = 0; i < n; i++)
        tr_str_addf(&c->items, "%s%.9g", i ? ", " : c->items.n ? "], [" : "[", ll[i]);
}

/* JSON has no word for a number that is not finite. */
static void add_number(struct tr_str *out, const char *name, double x)
{
    if (isfinite(x))
        tr_str_addf(out, "\"%s\": %.17g, ", name, x);
    else
        tr_str_addf(out, "\"%s\": null, ", name);
}

/* The standard error of a share of n items. */
static double stderr_of(double share, int64_t n)
{
    return n > 1 ? sqrt(share * (1 - share) / (double)(n - 1)) : 0;
}

static void add_pairs(struct tr_str *out, const struct tr_event_pairs *p)
{
    struct tr_named_number x[TR_PAIRS_NUMBERS];
    for (int i = 0, n = tr_pairs_numbers(p, x); i < n; i++)
        add_number(out, x[i].name, x[i].value);
    tr_str_addf(out, "\"%s\": %" PRId64 ", ", p->has_labels ? "answers" : "pairs", p->n);
    if (p->has_labels)
        tr_str_addf(out, "\"desirable\": %" PRId64 ", ", p->n_chosen);
}

static void print_eval_json(const struct tr_eval_result *r, const struct tr_str *items)
{
    struct tr_str line = { 0 };
    const struct tr_event_choices *c = &r->choices;
    const struct {
        const char *name, *error;
        double share;
    } rows[] = { { "acc", "acc_stderr", c->acc },
                 { "acc_norm", "acc_norm_stderr", c->acc_norm },
                 { "acc_bytes", "acc_bytes_stderr", c->acc_bytes } };
    tr_str_addf(&line, "{");
    for (size_t i = 0; c->n > 0 && i < TR_COUNT_OF(rows); i++) {
        add_number(&line, rows[i].name, rows[i].share);
        add_number(&line, rows[i].error, stderr_of(rows[i].share, c->n));
    }
    if (c->n > 0)
        tr_str_addf(&line, "\"choices\": %" PRId64 ", \"log_likelihoods\": [%s]], ", c->n, items->p ? items->p : "");
    if (r->tokens > 0)
        add_number(&line, "loss", r->loss);
    if (r->pairs.has)
        add_pairs(&line, &r->pairs);
    else if (r->tokens > 0)
        add_number(&line, "perplexity", r->perplexity);
    if (!r->pairs.has)
        tr_str_addf(&line, "\"tokens\": %" PRId64 ", ", r->tokens);
    tr_str_addf(&line, "\"finite\": %s}\n", isfinite(r->loss) ? "true" : "false");
    cli_print(tr_str_ok(&line) ? line.p : "");
    tr_str_release(&line);
}

static void print_eval(const struct tr_eval_result *r)
{
    const struct tr_event_choices *c = &r->choices;
    char of_pairs[160];
    if (r->pairs.has && tr_pairs_text(&r->pairs, r->loss, of_pairs, sizeof of_pairs) > 0)
        printf("%s\n", of_pairs);
    else if (r->tokens > 0)
        printf("loss %.6f  perplexity %.4f  over %" PRId64 " tokens\n", r->loss, r->perplexity, r->tokens);
    if (c->n > 0)
        printf("acc %.4f +- %.4f  acc_norm %.4f +- %.4f  acc_bytes %.4f +- %.4f  over %" PRId64 " items\n", c->acc,
               stderr_of(c->acc, c->n), c->acc_norm, stderr_of(c->acc_norm, c->n), c->acc_bytes,
               stderr_of(c->acc_bytes, c->n), c->n);
}

enum tr_status cmd_eval(const struct tr_config *cfg)
{
    struct tr_eval_result r;
    struct eval_clock clock = { tr_clock_us(), tr_clock_us() + 2000000, { 0 } };
    struct tr_eval_watch watch = { cfg->quiet ? NULL : tell_eval, cfg->json ? add_item : NULL, &clock };
    enum tr_status st = tr_eval(cfg, &watch, &r);
    if (st == TR_OK && r.is_first && r.note[0])
        fprintf(stderr, "%s", r.note);
    if (st == TR_OK && cfg->json && r.is_first)
        print_eval_json(&r, &clock.items);
    else if (st == TR_OK && r.is_first)
        print_eval(&r);
    tr_str_release(&clock.items);
    if (st == TR_OK && !isfinite(r.loss))
        st = tr_fail(TR_NUMBERS, "the loss is not finite: weights of %s overflow, or are not finite", cfg->model);
    return st;
}

struct written {
    const struct tr_config *cfg;
    bool is_begun; /* the prompt is written */
    size_t n_texts;
    struct tr_str text, ids, list;
};

/* One object a text: with --prompts a member of a list, else the whole answer. */
static void end_text(struct written *w, const char *prompt)
{
    tr_str_addf(&w->list, "%s{", w->n_texts++ ? ", " : "");
    if (w->cfg->prompts) {
        tr_str_member(&w->list, "\"prompt\": ", prompt);
        tr_str_addf(&w->list, ", ");
    }
    tr_str_member(&w->list, "\"text\": ", w->text.p ? w->text.p : "");
    tr_str_addf(&w->list, ", \"ids\": [%s]}", w->ids.p ? w->ids.p : "");
    tr_str_clear(&w->text);
    tr_str_clear(&w->ids);
}

static void print_piece(void *ctx, const char *prompt, int32_t id, const char *text, size_t n)
{
    struct written *w = ctx;
    if (w->cfg->json) {
        tr_str_add(&w->text, text, n);
        if (id >= 0)
            tr_str_addf(&w->ids, "%s%d", w->ids.n ? ", " : "", id);
        else
            end_text(w, prompt);
        return;
    }
    if (!w->is_begun)
        cli_print_foreign(prompt, strlen(prompt));
    cli_print_foreign(text, n);
    cli_print(id < 0 ? "\n" : "");
    w->is_begun = id >= 0;
}

enum tr_status cmd_generate(const struct tr_config *cfg)
{
    struct written w = { .cfg = cfg };
    struct tr_str line = { 0 };
    enum tr_status st = tr_generate(cfg, print_piece, &w);
    const char *list = tr_str_ok(&w.list) && w.list.p ? w.list.p : "";
    if (st == TR_OK && w.n_texts > 0) {
        if (cfg->prompts)
            tr_str_addf(&line, "{\"texts\": [%s]}\n", list);
        else
            tr_str_addf(&line, "%s\n", list);
        cli_print(tr_str_ok(&line) ? line.p : "");
    }
    tr_str_release(&w.text);
    tr_str_release(&w.ids);
    tr_str_release(&w.list);
    tr_str_release(&line);
    return st;
}
