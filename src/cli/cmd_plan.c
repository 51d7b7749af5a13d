/* cmd_plan.c - plan: what a run holds and takes, without running it. */
#include "cli/cli.h"
#include "plan/plan.h"
#include <stdio.h>
#include <stdlib.h>

static enum tr_status print_legal(const struct tr_config *cfg)
{
    struct tr_str out = { 0 };
    enum tr_status st = tr_setup_legal(cfg, &out);
    if (st == TR_OK && tr_str_ok(&out))
        cli_print(out.p);
    tr_str_release(&out);
    return st;
}

static enum tr_status print_cases(const struct tr_config *cfg)
{
    struct tr_cases c = { 0 };
    struct tr_str out = { 0 };
    enum tr_status st = tr_cases_read(cfg->cases, &c);
    for (size_t i = 0; st == TR_OK && i < c.n; i++) {
        tr_case_resolve(&c.row[i]);
        tr_case_predict(&c.row[i]);
    }
    if (st == TR_OK)
        tr_cases_print(&c, cfg->json, &out);
    if (st == TR_OK && tr_str_ok(&out))
        cli_print(out.p);
    tr_cases_release(&c);
    tr_str_release(&out);
    return st;
}

static enum tr_status print_machines(void)
{
    struct tr_str out = { 0 };
    tr_machine_list(&out);
    if (tr_str_ok(&out))
        cli_print(out.p);
    tr_str_release(&out);
    return TR_OK;
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

/* Time: the schedule itself, played, where it was compiled for that kind of machine; else the layout's forecast. */
static enum tr_status add_forecast(const struct tr_config *cfg, const struct tr_compiled *const *c, int n_each,
                                   struct tr_str *out)
{
    struct tr_machine machine;
    struct tr_forecast f;
    struct tr_ask ask;
    enum tr_status st = TR_OK;
    const struct tr_compiled **stage = calloc((size_t)cfg->pp, sizeof *stage);
    if (!stage)
        return tr_fail(TR_NOMEM, "plan: out of memory");
    TR_TRY(tr_machine_open(cfg->machine, &machine));
    tr_ask_of_compiled(c[0], &machine, &ask);
    for (int r = 0; r < (int)cfg->pp; r++)
        stage[r] = c[r * n_each];
    if (c[0]->opt.is_cuda == !machine.is_shared)
        TR_TRY(tr_play_compiled(stage, (int)cfg->pp, &machine, &f));
    else
        TR_TRY(tr_forecast(&ask, &f));
    if (cfg->json)
        tr_forecast_json(&ask, &f, out);
    else
        tr_forecast_text(&ask, &f, out);
out:
    free(stage);
    return st;
}

enum tr_status cmd_plan(const struct tr_config *cfg)
{
    struct tr_setup **s = NULL; /* one for each pipeline rank, or two: of its first and last tensor rank */
    const struct tr_compiled **c = NULL;
    struct tr_str out = { 0 }, time = { 0 };
    int n_each = cfg->tp > 1 ? 2 : 1, n = (int)cfg->pp * n_each, n_ranks = 1;
    if (cfg->legal)
        return print_legal(cfg);
    if (cfg->cases)
        return print_cases(cfg);
    if (cfg->machine && strcmp(cfg->machine, "list") == 0)
        return print_machines();
    if (!cfg->model)
        return tr_fail(TR_USAGE, "plan needs --model DIR or config.json; see trireme plan --help");
    enum tr_status st = TR_OK;
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
    if (cfg->machine)
        TR_TRY(add_forecast(cfg, c, n_each, &time));
    if (cfg->json)
        tr_plan_json(c, n_ranks, cfg->show == TR_SHOW_MEMORY, time.p, &out);
    else if (time.n)
        tr_str_add(&out, time.p, time.n);
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    for (int k = 0; s && k < n; k++)
        tr_setup_close(s[k]);
    free(s);
    free(c);
    tr_str_release(&out);
    tr_str_release(&time);
    return st;
}
