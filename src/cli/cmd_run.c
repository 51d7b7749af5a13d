/* cmd_run.c - init, train, eval, generate: the verbs that compute. */
#include "cli/cli.h"
#include "plan/plan.h"
#include <stdio.h>
#include <stdlib.h>

static enum tr_status need(const char *what, const char *option, const char *verb)
{
    return what ? TR_OK : tr_fail(TR_USAGE, "%s needs %s; see trireme %s --help", verb, option, verb);
}

enum tr_status cmd_init(const struct tr_config *cfg)
{
    enum tr_status st = need(cfg->model_config, "--config config.json", "init");
    if (st == TR_OK)
        st = need(cfg->output, "--out DIR", "init");
    if (st == TR_OK)
        st = tr_init_model(cfg);
    if (st == TR_OK && !cfg->quiet)
        printf("wrote %s with random weights (seed %" PRId64 ")\n", cfg->output, cfg->seed);
    return st;
}

enum tr_status cmd_train(const struct tr_config *cfg)
{
    enum tr_status st = need(cfg->model, "--model DIR", "train");
    if (st == TR_OK)
        st = need(cfg->data.n ? "data" : NULL, "--data PATH", "train");
    if (st == TR_OK)
        st = need(cfg->output, "--output DIR", "train");
    if (st == TR_OK)
        st = tr_train(cfg);
    return st;
}

enum tr_status cmd_eval(const struct tr_config *cfg)
{
    struct tr_eval_result r;
    enum tr_status st = need(cfg->model, "--model DIR", "eval");
    if (st == TR_OK)
        st = need(cfg->data.n || cfg->eval_data.n ? "data" : NULL, "--data PATH", "eval");
    if (st == TR_OK)
        st = tr_eval(cfg, &r);
    if (st != TR_OK)
        return st;
    if (cfg->json)
        printf("{\"loss\": %.17g, \"perplexity\": %.17g, \"tokens\": %" PRId64 "}\n", r.loss, r.perplexity, r.tokens);
    else
        printf("loss %.6f  perplexity %.4f  over %" PRId64 " tokens\n", r.loss, r.perplexity, r.tokens);
    return TR_OK;
}

struct written {
    struct tr_str text, ids;
};

static void print_piece(void *ctx, int32_t id, const char *text, size_t n)
{
    struct written *w = ctx;
    if (!w) {
        fwrite(text, 1, n, stdout);
        fflush(stdout);
        return;
    }
    tr_str_add(&w->text, text, n);
    if (id >= 0)
        tr_str_addf(&w->ids, "%s%d", w->ids.n ? ", " : "", id);
}

enum tr_status cmd_generate(const struct tr_config *cfg)
{
    struct written w = { 0 };
    struct tr_str line = { 0 };
    enum tr_status st = need(cfg->model, "--model DIR", "generate");
    if (st != TR_OK)
        return st;
    if (!cfg->json) {
        if (cfg->prompt)
            cli_print(cfg->prompt);
        st = tr_generate(cfg, print_piece, NULL);
        cli_print("\n");
        return st;
    }
    st = tr_generate(cfg, print_piece, &w);
    if (st == TR_OK) {
        tr_str_addf(&line, "{\"text\": ");
        tr_str_json(&line, w.text.p ? w.text.p : "");
        tr_str_addf(&line, ", \"ids\": [%s]}\n", w.ids.p ? w.ids.p : "");
        cli_print(tr_str_ok(&line) ? line.p : "");
    }
    tr_str_release(&w.text);
    tr_str_release(&w.ids);
    tr_str_release(&line);
    return st;
}

static enum tr_status print_legal(const struct tr_config *cfg)
{
    struct tr_str out = { 0 };
    enum tr_status st = tr_setup_legal(cfg, &out);
    if (st == TR_OK && tr_str_ok(&out))
        cli_print(out.p);
    tr_str_release(&out);
    return st;
}

static void show(const struct tr_config *cfg, const struct tr_setup *s, struct tr_str *out)
{
    if (cfg->show == TR_SHOW_PROGRAM)
        for (int i = 0; i < s->compiled->train.n_programs; i++)
            tr_program_print(s->compiled->train.program[i], out);
    else if (cfg->show == TR_SHOW_SCHEDULE)
        tr_schedule_print(s->compiled, out);
    else if (!cfg->json)
        tr_plan_text(s->compiled, cfg->show == TR_SHOW_MEMORY, out);
}

enum tr_status cmd_plan(const struct tr_config *cfg)
{
    struct tr_setup **s = NULL; /* one for each pipeline rank, or two: of its first and last tensor rank */
    const struct tr_compiled **c = NULL;
    struct tr_str out = { 0 };
    int n_each = cfg->tp > 1 ? 2 : 1, n = (int)cfg->pp * n_each, n_ranks = 1;
    if (cfg->legal)
        return print_legal(cfg);
    enum tr_status st = need(cfg->model, "--model DIR or config.json", "plan");
    if (st != TR_OK)
        return st;
    s = calloc((size_t)n, sizeof *s);
    c = calloc((size_t)n, sizeof *c);
    if (!s || !c)
        TR_TRY(tr_fail(TR_NOMEM, "plan: out of memory"));
    for (int k = 0; k < n; k++) {
        int first = k / n_each * (n_ranks / (int)cfg->pp), last = first + (int)cfg->tp - 1;
        TR_TRY(tr_setup_open_rank(cfg, TR_USE_TRAIN, k % n_each ? last : first, &s[k]));
        c[k] = s[k]->compiled;
        for (int a = 0; k == 0 && a < TR_AXES; a++)
            n_ranks *= s[0]->axis[a];
        if (k % n_each == 0)
            show(cfg, s[k], &out);
    }
    if (cfg->json)
        tr_plan_json(c, n_ranks, cfg->show == TR_SHOW_MEMORY, &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    for (int k = 0; s && k < n; k++)
        tr_setup_close(s[k]);
    free(s);
    free(c);
    tr_str_release(&out);
    return st;
}
