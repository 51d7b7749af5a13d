/* cmd_plan_search.c - plan --search: the best layout of a cluster. The winner is compiled before it is printed, so what
 * is shown is what `train` takes, and its bytes are those of the run.
 */
#include "cli/cli.h"
#include "plan/plan.h"
#include <stdlib.h>

enum { MAX_TRIES = 16 };

/* The winner as a command line; offer: as that has it, or NULL. */
static void add_command(const struct tr_config *cfg, const struct tr_search_result *x, const struct tr_offer *offer,
                        struct tr_str *out)
{
    int n = (int)x->f.chips, node = x->query.machine->node;
    bool has_nodes = n > node;
    while (has_nodes && n % node != 0) /* as many of each node as divides them */
        node--;
    if (has_nodes)
        tr_str_addf(out, "trireme launch --nnodes %d --nproc_per_node %d train", n / node, node);
    else if (n > 1)
        tr_str_addf(out, "trireme launch --nproc_per_node %d train", n);
    else
        tr_str_addf(out, "trireme train");
    tr_str_addf(out, "%s%s", cfg->data.n ? "" : " --data DATA", cfg->output ? "" : " --output OUT");
    tr_given_options(cfg, &x->query, out);
    if (offer)
        tr_offer_options(offer, x, out);
    else
        tr_layout_options(&x->query, out);
    if (!x->query.machine->is_shared)
        tr_str_addf(out, " --device cuda");
}

/* ---- the search ---- */

/* What the least layout needs to fit, as the end of a message; nothing where it never does. */
static void add_way_out(const struct tr_config *cfg, const struct tr_search_query *q, const struct tr_search *s,
                        struct tr_str *out)
{
    struct tr_offer offer;
    char human[32];
    if (tr_search_offer(cfg, q, &s->least, false, &offer) != TR_OK)
        tr_error_clear();
    else if (offer.offloads) {
        tr_str_addf(out,
                    "; with %s of each chip's host it fits:", tr_human_bytes(offer.host_bytes, human, sizeof human));
        tr_offer_options(&offer, &s->least, out);
        tr_str_addf(out, ", %.4g s a step", offer.step_s);
    }
}

static enum tr_status fail_none(const struct tr_config *cfg, const struct tr_search_query *q, const struct tr_search *s,
                                double exact)
{
    int below = 0, above = 0;
    struct tr_str least = { 0 }, way = { 0 };
    char text[32];
    if (s->n_legal == 0 && tr_search_check_pins(q) != TR_OK)
        return TR_USAGE;
    if (s->n_legal == 0) {
        tr_search_nearest(q, &below, &above);
        struct tr_str near = { 0 };
        if (below)
            tr_str_addf(&near, "%d", below);
        if (above)
            tr_str_addf(&near, "%s%d", below ? " or " : "", above);
        enum tr_status st = tr_fail(
            TR_USAGE, "no legal layout of %.0f rows on %d gpus%s; try --gpus %s, or a batch that is a multiple of %d",
            q->base.global, q->gpus, q->pins.tp + q->pins.pp + q->pins.cp + q->pins.dp ? " with the sizes given" : "",
            near.n ? near.p : "1", q->gpus);
        tr_str_release(&near);
        return st;
    }
    tr_layout_words(&s->least.query, &least);
    add_way_out(cfg, q, s, &way);
    enum tr_status st = tr_fail(
        TR_USAGE, "does not fit: of %.0f layouts on %d gpus the smallest (%s) needs %s of %.1f GiB a chip; %s%s",
        s->n_legal, q->gpus, least.p ? least.p : "",
        tr_human_bytes((uint64_t)(exact + s->least.f.bytes[TR_BYTES_LIBRARY]), text, sizeof text),
        q->room_bytes / 1073741824.0,
        "add gpus (--objective fewest with a larger --gpus says how many), shorten --sequence_length, or take chips "
        "with more memory",
        way.p ? way.p : "");
    tr_str_release(&way);
    tr_str_release(&least);
    return st;
}

/* Nothing fits by the forecast: the layout of the fewest bytes is compiled, and taken where it fits after all. */
static enum tr_status take_least(const struct tr_config *cfg, const struct tr_search_query *q, struct tr_search *s,
                                 double *exact)
{
    struct tr_search_result *x = &s->least;
    if (s->n_legal == 0)
        return TR_OK;
    x->query.is_bound = false;
    TR_PASS(tr_forecast(&x->query, &x->f));
    TR_PASS(tr_search_exact(cfg, x, exact));
    if (*exact + x->f.bytes[TR_BYTES_LIBRARY] <= q->room_bytes)
        s->top[s->n++] = *x;
    return TR_OK;
}

/* Where the compile holds more than the forecast said, the search learns it and goes again. */
static enum tr_status search_exact(const struct tr_config *cfg, struct tr_search_query *q, struct tr_search *s,
                                   double *exact)
{
    for (int tries = 0;; tries++) {
        TR_PASS(tr_search_run(q, s));
        if (s->n == 0) {
            TR_PASS(take_least(cfg, q, s, exact));
            return s->n ? TR_OK : fail_none(cfg, q, s, *exact);
        }
        struct tr_search_result *first = &s->top[0];
        double library = first->f.bytes[TR_BYTES_LIBRARY];
        TR_PASS(tr_search_exact(cfg, first, exact));
        if (*exact + library <= q->room_bytes)
            break;
        if (tries == MAX_TRIES)
            return tr_fail(TR_USAGE, "does not fit: the best layouts hold %.1f GiB a chip when compiled, of %.1f GiB",
                           (*exact + library) / 1073741824.0, q->room_bytes / 1073741824.0);
        TR_PASS(tr_forecast(&first->query, &first->f)); /* as it was before it had learned */
        tr_search_learn(q, first, *exact);
    }
    return TR_OK;
}

/* cheapest, fewest: 1, 2, 4 ... and all of --gpus. */
static enum tr_status choose_count(const struct tr_config *cfg, const struct tr_machine *machine,
                                   struct tr_search_query *q, double tokens)
{
    enum tr_status st = TR_OK;
    struct tr_search *s = malloc(sizeof *s);
    int best = 0, all = q->gpus;
    double best_chip_s = 0, exact = 0;
    if (!s)
        return tr_fail(TR_NOMEM, "search: out of memory");
    for (int n = 1, is_last = 0; !is_last; n *= 2) {
        is_last = n >= all;
        TR_TRY(tr_search_query_of(cfg, q->model, machine, is_last ? all : n, q));
        st = search_exact(cfg, q, s, &exact);
        if (st == TR_USAGE) { /* not with so few */
            st = TR_OK;
            continue;
        }
        TR_TRY(st);
        double step = s->top[0].f.step_s, chip_s = step * q->gpus;
        double days = tokens / (q->base.global * q->base.seq) * step / 86400;
        if (cfg->days > 0 && tokens > 0 && days > cfg->days)
            continue;
        if (best == 0 || chip_s < 0.999 * best_chip_s) {
            best = q->gpus;
            best_chip_s = chip_s;
        }
        if (best && cfg->objective == TR_OBJECTIVE_FEWEST)
            break;
    }
    TR_TRY(tr_search_query_of(cfg, q->model, machine, best ? best : all, q));
    if (best == 0 && cfg->days > 0)
        TR_TRY(tr_fail(TR_USAGE, "no layout of up to %d gpus ends within %g days; raise --gpus or --days", all,
                       cfg->days));
out:
    free(s);
    return st;
}

static void add_offer_text(const struct tr_config *cfg, const struct tr_search_result *x, const struct tr_offer *o,
                           struct tr_str *out)
{
    char device[32], host[32];
    tr_str_addf(
        out,
        "\nwith optimizer state on the host: %.4g s a step, of which the copies take %.4g; %s of a chip and %s of "
        "its host:\n",
        o->step_s, o->exposed_s, tr_human_bytes(o->device_bytes, device, sizeof device),
        tr_human_bytes(o->host_bytes, host, sizeof host));
    add_command(cfg, x, o, out);
    tr_str_addf(out, "\n");
}

static void add_offer_json(const struct tr_config *cfg, const struct tr_search_result *x, const struct tr_offer *o,
                           struct tr_str *out)
{
    struct tr_str command = { 0 };
    add_command(cfg, x, o, &command);
    tr_str_addf(out, "{\"step_s\": %.9g, \"exposed_s\": %.9g, \"device_bytes\": %zu, \"host_bytes\": %zu", o->step_s,
                o->exposed_s, o->device_bytes, o->host_bytes);
    tr_str_member(out, ", \"command\": ", command.p ? command.p : "");
    tr_str_addf(out, "}");
    tr_str_release(&command);
}

static enum tr_status answer(const struct tr_config *cfg, struct tr_search_query *q, struct tr_search *s,
                             const struct tr_budget *budget, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    struct tr_str command = { 0 }, bill = { 0 }, offered = { 0 };
    struct tr_offer offer;
    double exact = 0;
    TR_TRY(search_exact(cfg, q, s, &exact));
    TR_TRY(tr_search_offer(cfg, q, &s->top[0], true, &offer));
    add_command(cfg, &s->top[0], NULL, &command);
    if (cfg->timeline)
        TR_TRY(tr_timeline_write(cfg->timeline, &s->top[0].query));
    if (cfg->json) {
        tr_budget_json(&s->top[0], budget, &bill);
        if (offer.offloads)
            add_offer_json(cfg, &s->top[0], &offer, &offered);
        tr_search_json(q, s, exact, command.p ? command.p : "", bill.p ? bill.p : "{}", offered.p ? offered.p : "null",
                       out);
    } else {
        tr_search_text(q, s, exact, out);
        tr_budget_text(&s->top[0], budget, out);
        tr_str_addf(out, "\nrun it:\n%s\n", command.p ? command.p : "");
        if (offer.offloads)
            add_offer_text(cfg, &s->top[0], &offer, out);
    }
out:
    tr_str_release(&command);
    tr_str_release(&bill);
    tr_str_release(&offered);
    return st;
}

/* The query that every answer about a cluster starts from. */
enum tr_status plan_query_open(const struct tr_config *cfg, struct tr_machine *machine, struct tr_model **model,
                               struct tr_search_query *out)
{
    enum tr_status st = TR_OK;
    struct tr_dirs from = { 0 };
    int64_t length = 0;
    if (!cfg->model || !cfg->machine)
        TR_TRY(
            tr_fail(TR_USAGE,
                    "plan --search, --scale and --table need --model and --machine; list shows what there is of each"));
    if (!cfg->table && !tr_config_is_set(cfg, "train_batch_size"))
        TR_TRY(tr_fail(TR_USAGE, "plan --search needs --train_batch_size: rows of a step over all gpus"));
    TR_TRY(tr_machine_open(cfg->machine, machine));
    TR_TRY(tr_setup_length(cfg, &length));
    struct tr_model_options opt = {
        .rows = 1,
        .sequence_length = length,
        .dropout = cfg->dropout,
        .ignore_keys = cfg->ignore_config_keys,
        .takes_names = true,
    };
    TR_TRY(tr_dirs_open(cfg, &from));
    TR_TRY(tr_model_open(from.base, &opt, model));
    TR_TRY(tr_search_query_of(cfg, *model, machine, cfg->gpus > 0 ? (int)cfg->gpus : machine->node, out));
out:
    tr_dirs_close(&from);
    return st;
}

static enum tr_status budget_of(const struct tr_config *cfg, struct tr_budget *out)
{
    *out = (struct tr_budget){ .price = cfg->price,
                               .mttf_hours = cfg->mttf_hours,
                               .restart_s = 60 * cfg->restart_minutes };
    if (cfg->days > 0 && !cfg->tokens)
        return tr_fail(TR_USAGE, "--days %g needs --tokens: how many to train on in that time", cfg->days);
    return cfg->tokens ? tr_tokens_parse(cfg->tokens, &out->tokens) : TR_OK;
}

enum tr_status cmd_plan_search(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct tr_machine machine;
    struct tr_model *model = NULL;
    struct tr_search_query q;
    struct tr_budget budget;
    struct tr_str out = { 0 };
    struct tr_search *s = malloc(sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "search: out of memory");
    if (cfg->memory_picture)
        TR_TRY(tr_fail(TR_USAGE, "--memory_picture draws one layout: give plan the options that --search prints"));
    TR_TRY(budget_of(cfg, &budget));
    TR_TRY(plan_query_open(cfg, &machine, &model, &q));
    if (cfg->objective != TR_OBJECTIVE_FASTEST)
        TR_TRY(choose_count(cfg, &machine, &q, budget.tokens));
    TR_TRY(answer(cfg, &q, s, &budget, &out));
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    tr_model_close(model);
    tr_str_release(&out);
    free(s);
    return st;
}

/* ---- the curve ---- */

static enum tr_status find_point(const struct tr_config *cfg, const struct tr_machine *machine,
                                 const struct tr_search_query *q, struct tr_search *s, struct tr_scale_point *p)
{
    struct tr_search_query one;
    TR_PASS(tr_search_query_of(cfg, q->model, machine, p->gpus, &one));
    enum tr_status st = tr_search_run(&one, s);
    p->has_layout = s->n > 0;
    p->n_legal = s->n_legal;
    p->least_bytes = s->least.f.total_bytes;
    if (s->n > 0) {
        p->best = s->top[0];
        p->best.query.machine = machine; /* that of `one` ends here */
    }
    return st;
}

enum tr_status cmd_plan_scale(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct tr_machine machine;
    struct tr_model *model = NULL;
    struct tr_scale_point *points = NULL;
    struct tr_search_query q;
    struct tr_budget budget;
    struct tr_str out = { 0 };
    int *counts = NULL, n = 0;
    struct tr_search *s = malloc(sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "scale: out of memory");
    TR_TRY(budget_of(cfg, &budget));
    TR_TRY(tr_scale_counts(cfg->scale, &counts, &n));
    TR_TRY(plan_query_open(cfg, &machine, &model, &q));
    TR_TRY(TR_ALLOC(points, (size_t)n, "a scaling table"));
    for (int i = 0; i < n; i++) {
        points[i].gpus = counts[i];
        TR_TRY(find_point(cfg, &machine, &q, s, &points[i]));
    }
    if (cfg->json)
        tr_scale_json(points, n, &budget, &out);
    else
        tr_scale_text(points, n, &budget, q.room_bytes, &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    tr_model_close(model);
    tr_str_release(&out);
    free(points);
    free(counts);
    free(s);
    return st;
}
