/* cmd_plan.c - plan: memory and time of a run, without running it. */
#include "cli/cli.h"
#include "plan/plan.h"
#include <math.h>
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

static enum tr_status print_list(enum tr_status (*list)(bool as_json, struct tr_str *out), bool as_json)
{
    struct tr_str out = { 0 };
    enum tr_status st = list(as_json, &out);
    if (st == TR_OK && tr_str_ok(&out))
        cli_print(out.p);
    tr_str_release(&out);
    return st;
}

static void show(const struct tr_config *cfg, const struct tr_setup *s, struct tr_str *out)
{
    if (cfg->show == TR_SHOW_PROGRAM)
        for (int i = 0; i < s->compiled->schedule[TR_FOR_TRAIN].n_programs; i++)
            tr_program_print(s->compiled->schedule[TR_FOR_TRAIN].program[i], out);
    else if (cfg->show == TR_SHOW_SCHEDULE)
        tr_schedule_print(s->compiled, out);
    else if (!cfg->json)
        tr_plan_text(s->compiled, cfg->show == TR_SHOW_MEMORY, out);
}

static bool shows_text(const struct tr_config *cfg)
{
    return !cfg->json && cfg->show != TR_SHOW_PROGRAM && cfg->show != TR_SHOW_SCHEDULE;
}

/* Which shape a name or a size stands for. */
static enum tr_status add_known(const struct tr_config *cfg, struct tr_str *out)
{
    struct tr_str about = { 0 };
    enum tr_status st = shows_text(cfg) ? tr_known_about(cfg->model, &about) : TR_OK;
    if (about.n)
        tr_str_addf(out, "model %s\n", about.p);
    tr_str_release(&about);
    return st;
}

/* What the adapter is, where the run trains one. */
static enum tr_status add_adapter(const struct tr_config *cfg, const struct tr_setup *s, struct tr_str *out)
{
    struct tr_str passed = { 0 };
    const struct tr_adapter *a = s->from.adapter;
    enum tr_status st = TR_OK;
    if (!a)
        return TR_OK;
    TR_TRY(tr_adapter_passed(a, s->model, &passed));
    if (passed.n) {
        tr_str_addf(&passed, "\n");
        cli_warn(passed.p);
    }
    if (shows_text(cfg)) {
        tr_str_addf(out, "adapter: ");
        TR_TRY(tr_adapter_summary(a, s->model, out));
        tr_str_addf(out, "\n");
    }
out:
    tr_str_release(&passed);
    return st;
}

/* Other changes than those of the layout: of what is kept where, of what learns. */
static void add_remedies(const struct tr_setup *s, const struct tr_forecast_query *query, double room_bytes,
                         struct tr_str *out)
{
    uint64_t bytes = (uint64_t)fmax(0, room_bytes - tr_library_bytes(query));
    bool is_host = query->machine->is_shared;
    tr_remedies_text(s, &(struct tr_room){ is_host ? bytes : UINT64_MAX, is_host ? UINT64_MAX : bytes }, out);
    tr_str_addf(out, "\nplan --search --objective fewest says how many chips it takes as it is\n");
}

/* When the given layout does not fit the chip: says so, and which changes would make it fit. */
static enum tr_status add_fit(const struct tr_config *cfg, const struct tr_setup *s,
                              const struct tr_forecast_query *query, double total, bool *fits, struct tr_str *out)
{
    struct tr_search_query q;
    struct tr_str changes = { 0 };
    TR_PASS(tr_search_query_of(cfg, s->compiled->place.model, query->machine,
                               query->tp * query->pp * query->cp * query->dp, &q));
    *fits = total <= q.room_bytes;
    if (*fits || cfg->json)
        return TR_OK;
    tr_str_addf(out, "\ndoes not fit: %.1f GiB with libraries, of %.1f GiB a chip", total / 1073741824.0,
                q.room_bytes / 1073741824.0);
    enum tr_status st = tr_fit_text(cfg, &q, query, &changes);
    if (changes.n)
        tr_str_addf(out, "\n%s", changes.p);
    else if (st == TR_OK)
        add_remedies(s, query, q.room_bytes, out);
    tr_str_release(&changes);
    return st;
}

/* Time: the schedule itself, played, where it was compiled for that kind of machine; else the layout's forecast.
 * stage: n pipeline ranks. */
static enum tr_status add_forecast(const struct tr_config *cfg, const struct tr_setup *s,
                                   const struct tr_compiled *const *stage, int n, const struct tr_machine *machine,
                                   bool *fits, struct tr_str *out)
{
    struct tr_forecast f;
    struct tr_forecast_query query;
    double most = 0;
    tr_forecast_query_of_compiled(stage[0], machine, &query);
    if (stage[0]->opt.has_own_memory == !machine->is_shared)
        TR_PASS(tr_play_compiled(stage, n, machine, &f));
    else
        TR_PASS(tr_forecast(&query, &f));
    for (int k = 0; k < n; k++)
        most = fmax(most, (double)tr_compiled_bytes_in(stage[k], TR_SPACE_DEVICE));
    if (cfg->timeline)
        TR_PASS(tr_timeline_write(cfg->timeline, &query));
    if (cfg->json)
        tr_forecast_json(&query, &f, out);
    else
        tr_forecast_text(&query, &f, out);
    TR_PASS(add_fit(cfg, s, &query, most + tr_library_bytes(&query), fits, out));
    return TR_OK;
}

static enum tr_status write_memory_picture(const char *path, const struct tr_compiled *const *stage, int n,
                                           double room_bytes)
{
    struct tr_str out = { 0 };
    const char *end = strrchr(path, '.');
    enum tr_status st = TR_OK;
    bool is_snapshot = end && strcmp(end, ".pickle") == 0;
    if (!is_snapshot && (!end || strcmp(end, ".svg") != 0))
        return tr_fail(TR_USAGE, "memory_picture %s: the name ends in .svg for bars or .pickle for a memory snapshot",
                       path);
    if (is_snapshot)
        TR_TRY(tr_memory_snapshot(stage, n, &out));
    else
        tr_memory_svg(stage, n, room_bytes, &out);
    TR_TRY(tr_str_check(&out, "a plan"));
    TR_TRY(tr_file_write_atomic(path, out.p, out.n));
out:
    tr_str_release(&out);
    return st;
}

static enum tr_status print_compare(const struct tr_config *cfg)
{
    struct tr_measured m;
    struct tr_machine machine;
    struct tr_forecast f;
    struct tr_str out = { 0 };
    enum tr_status st = TR_OK;
    TR_TRY(tr_measured_read(cfg->compare, &m));
    if (!cfg->machine && !m.machine[0])
        TR_TRY(tr_fail(TR_USAGE, "compare %s: the run named no machine; give --machine", cfg->compare));
    TR_TRY(tr_machine_open(cfg->machine ? cfg->machine : m.machine, &machine));
    m.query.machine = &machine;
    TR_TRY(tr_forecast(&m.query, &f));
    if (!cfg->machine && m.predicted_s > 0)
        f.step_s = m.predicted_s; /* by the run's own schedule */
    f.tokens_per_s = m.tokens / f.step_s;
    if (cfg->json)
        tr_compare_json(&m, &f, &out);
    else
        tr_compare_text(&m, &f, &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    tr_str_release(&out);
    return st;
}

static void add_conventions(const struct tr_config *cfg, const struct tr_compiled *c, struct tr_str *out)
{
    struct tr_machine any;
    struct tr_forecast_query query;
    if (cfg->json || cfg->conventions == TR_COUNT_OWN || tr_machine_find("A100-80GB", &any) != TR_OK)
        return;
    tr_forecast_query_of_compiled(c, &any, &query);
    tr_conventions_text(&query, cfg->conventions, out);
}

enum tr_status cmd_plan(const struct tr_config *cfg)
{
    struct tr_setup **s = NULL; /* one for each pipeline rank, or two: of its first and last tensor rank */
    const struct tr_compiled **c = NULL, **stage = NULL; /* of each; of the first of each stage */
    struct tr_str out = { 0 }, time = { 0 }, known = { 0 };
    int n_each = cfg->tp > 1 ? 2 : 1, n = (int)cfg->pp * n_each, n_ranks = 1;
    if (cfg->legal)
        return print_legal(cfg);
    if (cfg->machine && strcmp(cfg->machine, "list") == 0)
        return print_list(tr_machine_list, cfg->json);
    if (cfg->model && strcmp(cfg->model, "list") == 0 && !tr_dir_exists("list"))
        return print_list(tr_known_list, cfg->json);
    if (cfg->compare)
        return print_compare(cfg);
    if (cfg->json && (cfg->show == TR_SHOW_PROGRAM || cfg->show == TR_SHOW_SCHEDULE))
        return tr_fail(TR_USAGE, "--show program and --show schedule print text; leave --json out");
    if (cfg->timeline && !cfg->machine)
        return tr_fail(TR_USAGE, "--timeline needs --machine, which says how fast kernels and links are");
    if (cfg->search)
        return cmd_plan_search(cfg);
    if (cfg->scale)
        return cmd_plan_scale(cfg);
    if (cfg->table)
        return cmd_plan_table(cfg);
    if (!cfg->model)
        return tr_fail(TR_USAGE,
                       "plan needs --model: a directory, a config.json, a size like 7B or a name of --model list");
    struct tr_machine machine = { 0 };
    enum tr_status st = TR_OK;
    bool fits = true;
    struct tr_config asked;
    TR_TRY(tr_find_batch(cfg, &asked));
    if (cfg->machine)
        TR_TRY(tr_machine_open(cfg->machine, &machine));
    if (cfg->machine && cfg->device == TR_DEVICE_CHOICE_AUTO) /* the device of that machine, not of this host */
        asked.device = machine.is_shared ? TR_DEVICE_CHOICE_CPU : TR_DEVICE_CHOICE_CUDA;
    TR_TRY(TR_ALLOC(s, (size_t)n, "a plan"));
    TR_TRY(TR_ALLOC(c, (size_t)n, "a plan"));
    TR_TRY(TR_ALLOC(stage, (size_t)n, "a plan"));
    for (int k = 0; k < n; k++) {
        int first = k / n_each * (n_ranks / (int)cfg->pp), last = first + (int)cfg->tp - 1;
        TR_TRY(tr_setup_open_advised(&asked, k % n_each ? last : first, &s[k]));
        c[k] = s[k]->compiled;
        for (int a = 0; k == 0 && a < TR_AXES; a++)
            n_ranks *= s[0]->axis[a];
        if (k % n_each != 0)
            continue;
        stage[k / n_each] = c[k];
        if (k == 0) {
            TR_TRY(add_known(cfg, &out));
            TR_TRY(add_adapter(cfg, s[0], &out));
            if (!cfg->json && cfg->show == TR_SHOW_NONE)
                tr_setup_note_positions(s[0], &out);
        }
        show(cfg, s[k], &out);
        if (cfg->show == TR_SHOW_NONE && !cfg->json)
            tr_memory_bar(c[k], machine.chip.memory_bytes, &out);
    }
    if (cfg->machine)
        TR_TRY(add_forecast(cfg, s[0], stage, (int)cfg->pp, &machine, &fits, &time));
    if (cfg->memory_picture)
        TR_TRY(write_memory_picture(cfg->memory_picture, stage, (int)cfg->pp, machine.chip.memory_bytes));
    if (cfg->json) {
        TR_TRY(tr_known_json(cfg->model, &known));
        tr_plan_json(c, n_ranks, cfg->show == TR_SHOW_MEMORY, time.p, known.p, &out);
    } else if (time.n) {
        tr_str_add(&out, time.p, time.n);
    }
    add_conventions(cfg, c[0], &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
    st = fits ? TR_OK : TR_NO;
out:
    for (int k = 0; s && k < n; k++)
        tr_setup_close(s[k]);
    free(s);
    free(c);
    free(stage);
    tr_str_release(&out);
    tr_str_release(&time);
    tr_str_release(&known);
    return st;
}
