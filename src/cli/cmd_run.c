/* cmd_run.c - init, train, eval, generate: the verbs that compute. */
#include "cli/cli.h"
#include "plan/plan.h"
#include <stdio.h>

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

static void print_piece(void *ctx, const char *text, size_t n)
{
    struct tr_str *all = ctx;
    if (all) {
        tr_str_add(all, text, n);
        return;
    }
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

enum tr_status cmd_generate(const struct tr_config *cfg)
{
    struct tr_str all = { 0 }, line = { 0 };
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
    st = tr_generate(cfg, print_piece, &all);
    if (st == TR_OK) {
        tr_str_addf(&line, "{\"text\": ");
        tr_str_json(&line, all.p ? all.p : "");
        tr_str_addf(&line, "}\n");
        cli_print(tr_str_ok(&line) ? line.p : "");
    }
    tr_str_release(&all);
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

enum tr_status cmd_plan(const struct tr_config *cfg)
{
    struct tr_setup *s = NULL;
    struct tr_str out = { 0 };
    if (cfg->legal)
        return print_legal(cfg);
    enum tr_status st = need(cfg->model, "--model DIR or config.json", "plan");
    if (st == TR_OK)
        st = tr_setup_open(cfg, TR_USE_TRAIN, &s);
    if (st != TR_OK)
        return st;
    if (cfg->show == TR_SHOW_PROGRAM)
        for (int i = 0; i < s->compiled->train.n_programs; i++)
            tr_program_print(s->compiled->train.program[i], &out);
    else if (cfg->show == TR_SHOW_SCHEDULE)
        tr_schedule_print(&s->compiled->train, s->model, &out);
    if (cfg->json)
        tr_plan_json(s->compiled, s->compiled->opt.layout.data_size, cfg->show == TR_SHOW_MEMORY, &out);
    else if (cfg->show == TR_SHOW_NONE || cfg->show == TR_SHOW_MEMORY)
        tr_plan_text(s->compiled, cfg->show == TR_SHOW_MEMORY, &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
    tr_str_release(&out);
    tr_setup_close(s);
    return TR_OK;
}
