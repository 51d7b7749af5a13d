/* table.c - models beside strategies: memory and speed of each model under each way to use a cluster. A cell is a
 * search with the sizes of the strategy pinned, so micro-batch and recompute are the best of that strategy; bytes are
 * the forecast's, as in a search.
 */
#include "plan/plan.h"

enum { ALL = -1, NODE = -2 }; /* sizes that the cluster gives */

/* 0 (zero: -1): the search chooses. */
static const struct {
    const char *name;
    int dp, tp, pp, zero;
} strategies[] = {
    { "dp", ALL, 1, 1, 0 },   { "zero 1", ALL, 1, 1, 1 }, { "zero 2", ALL, 1, 1, 2 }, { "zero 3", ALL, 1, 1, 3 },
    { "tp", 0, NODE, 1, -1 }, { "pp", 0, 1, NODE, -1 },   { "best", 0, 0, 0, -1 },
};
_Static_assert(TR_COUNT_OF(strategies) == TR_STRATEGIES, "one name for each cell of a row");

static int size_of(int rule, const struct tr_search_query *q, int given)
{
    int node = q->machine.node < q->gpus ? q->machine.node : q->gpus;
    return rule == ALL ? q->gpus : rule == NODE ? node : rule ? rule : given;
}

enum tr_status tr_table_find(const struct tr_search_query *q, const struct tr_machine *machine, struct tr_search *s,
                             struct tr_table_row *row)
{
    for (int i = 0; i < TR_STRATEGIES; i++) {
        struct tr_search_query one = *q;
        struct tr_scale_point *p = &row->cell[i];
        bool is_best = i + 1 == TR_STRATEGIES;
        one.base.machine = &one.machine;
        one.pins.dp = size_of(strategies[i].dp, q, is_best ? q->pins.dp : 0);
        one.pins.tp = size_of(strategies[i].tp, q, q->pins.tp);
        one.pins.pp = size_of(strategies[i].pp, q, q->pins.pp);
        one.pins.cp = is_best ? q->pins.cp : 1;
        one.pins.zero = strategies[i].zero >= 0 ? strategies[i].zero : q->pins.zero;
        TR_PASS(tr_search_run(&one, s));
        *p = (struct tr_scale_point){
            .gpus = q->gpus, .has_layout = s->n > 0, .n_legal = s->n_legal, .least_bytes = s->least.f.total_bytes
        };
        if (s->n > 0) {
            p->best = s->top[0];
            p->best.query.machine = machine; /* that of `one` ends here */
        }
    }
    return TR_OK;
}

static void add_cell(const struct tr_scale_point *p, struct tr_str *out)
{
    char tokens[32];
    if (p->n_legal == 0)
        tr_str_addf(out, "  %7s %7s", "", "illegal");
    else if (!p->has_layout)
        tr_str_addf(out, "  %7.1f %7s", p->least_bytes / 1073741824.0, "-");
    else
        tr_str_addf(out, "  %7.1f %7s", p->best.f.total_bytes / 1073741824.0,
                    tr_human_count(p->best.f.tokens_per_s, tokens, sizeof tokens));
}

void tr_table_text(const struct tr_table_row *row, int n, const struct tr_search_query *q, struct tr_str *out)
{
    char count[32];
    tr_str_addf(
        out,
        "%d x %s, %.0f rows of %.0f tokens a step. GiB a chip, of %.1f that fit, and tokens/s of all chips; - does "
        "not fit\n\n%-20s %9s",
        q->gpus, q->machine.name, q->base.global, q->base.seq, q->room_bytes / 1073741824.0, "model", "size");
    for (int i = 0; i < TR_STRATEGIES; i++)
        tr_str_addf(out, "  %15s", strategies[i].name);
    tr_str_addf(out, "  layout of the best\n");
    for (int r = 0; r < n; r++) {
        const struct tr_scale_point *best = &row[r].cell[TR_STRATEGIES - 1];
        tr_str_addf(out, "%-20s %9s", row[r].model, tr_human_count(row[r].parameters, count, sizeof count));
        for (int i = 0; i < TR_STRATEGIES; i++)
            add_cell(&row[r].cell[i], out);
        tr_str_addf(out, "  ");
        if (best->has_layout)
            tr_layout_words(&best->best.query, out);
        tr_str_addf(out, "\n");
    }
}

void tr_table_json(const struct tr_table_row *row, int n, const struct tr_search_query *q, struct tr_str *out)
{
    tr_str_member(out, "{\"machine\": ", q->machine.name);
    tr_str_addf(out, ", \"gpus\": %d, \"rows\": %.0f, \"sequence_length\": %.0f, \"room_bytes\": %.0f, \"models\": [",
                q->gpus, q->base.global, q->base.seq, q->room_bytes);
    for (int r = 0; r < n; r++) {
        tr_str_addf(out, "%s{\"model\": ", r ? ", " : "");
        tr_str_json(out, row[r].model);
        tr_str_addf(out, ", \"parameters\": %.0f, \"strategies\": [", row[r].parameters);
        for (int i = 0; i < TR_STRATEGIES; i++) {
            const struct tr_scale_point *p = &row[r].cell[i];
            tr_str_addf(out, "%s{\"strategy\": \"%s\", \"legal\": %.0f, \"fits\": %s", i ? ", " : "",
                        strategies[i].name, p->n_legal, p->has_layout ? "true" : "false");
            if (p->has_layout) {
                tr_str_addf(out, ", \"options\": \"");
                tr_layout_options(&p->best.query, out);
                tr_str_addf(out, "\", \"forecast\": ");
                tr_forecast_json(&p->best.query, &p->best.f, out);
            } else if (p->n_legal > 0) {
                tr_str_addf(out, ", \"least_bytes\": %.0f", p->least_bytes);
            }
            tr_str_addf(out, "}");
        }
        tr_str_addf(out, "]}");
    }
    tr_str_addf(out, "]}\n");
}
