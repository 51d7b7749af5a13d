/* report.c - the memory report: one line for each arena with its share, and every slice on request. */
#include "plan/plan.h"

static const char *const what[TR_A_COUNT] = {
    "parameters as the kernels read them",
    "gradients",
    "optimizer state and master weights",
    "activations kept for backward",
    "values inside one action, kernel scratch",
    "keys and values of past tokens",
    "batches read ahead",
    "checkpoint write buffer",
    "a checkpoint while it is written",
    "what lives on the host: optimizer state, frozen parameters, activations",
    "what lives in a file: optimizer state, frozen parameters; no memory",
};

static const char *human_flops(double x, char *buf, size_t n)
{
    static const char *const units[] = { "", " k", " M", " G", " T", " P", " E" };
    size_t u = 0;
    for (; x >= 1000 && u + 1 < TR_COUNT_OF(units); u++)
        x /= 1000;
    (void)tr_format(buf, n, "%.1f%s", x, units[u]);
    return buf;
}

static const char *recompute_name(const struct tr_compiled *c, char *buf, size_t n)
{
    static const char *const names[] = { "none", "op", "block" };
    int count[TR_COUNT_OF(names)] = { 0 };
    for (int g = 0; g < c->place.model->n_segments; g++)
        count[c->recompute_of[g]]++;
    struct tr_str s = { 0 };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++)
        if (count[i])
            tr_str_addf(&s, "%s%s in %d", s.n ? ", " : "", names[i], count[i]);
    (void)tr_format(buf, n, "%s", s.p ? s.p : "none");
    tr_str_release(&s);
    return buf;
}

/* Prints the stages of the pipeline, with this rank's in brackets. */
static void add_stages(const struct tr_compiled *c, struct tr_str *out)
{
    const struct tr_placement *p = &c->place;
    if (p->n_stages == 1)
        return;
    int n_ranks = p->layout->size[TR_AXIS_PP];
    tr_str_addf(out, "pipeline rank %d of %d; stages of segments", p->layout->coord[TR_AXIS_PP], n_ranks);
    for (int g = 0, first = 0; g < p->model->n_segments; g++)
        if (g + 1 == p->model->n_segments || p->stage_of[g + 1] != p->stage_of[g]) {
            bool is_here = tr_segment_is_here(p, g);
            tr_str_addf(out, is_here ? " [%d-%d]" : " %d-%d", first, g);
            first = g + 1;
        }
    tr_str_addf(out, "; bubble of the %s order %.1f %%\n", c->opt.pp_schedule ? c->opt.pp_schedule : "1f1b",
                100 * c->pipe->bubble);
}

static void add_slices(const struct tr_memory_map *m, enum tr_arena_id a, struct tr_str *out)
{
    char human[32];
    for (int i = 0; i < m->n_slices; i++)
        if (m->slice[i].arena == a)
            tr_str_addf(out, "      %14zu  %10s  %s\n", m->slice[i].bytes,
                        tr_human_bytes(m->slice[i].bytes, human, sizeof human), m->slice[i].name);
}

static int64_t trained(const struct tr_placement *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->model->n_params; i++)
        n += p->is_frozen[i] ? 0 : p->model->param[i].n;
    return n;
}

void tr_plan_text(const struct tr_compiled *c, bool with_slices, struct tr_str *out)
{
    const struct tr_model *m = c->place.model;
    char a[32], b[32], modes[96];
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    size_t total = tr_compiled_bytes(c), beside;
    struct tr_forecast_query query;
    tr_forecast_query_of_compiled(c, NULL, &query);
    beside = (size_t)tr_library_bytes(&query);
    tr_str_addf(out, "%s: %s parameters in %d tensors, %d segments", m->arch->model_type,
                tr_human_count((double)m->n_elements, a, sizeof a), m->n_params, m->n_segments);
    if (trained(&c->place) < m->n_elements)
        tr_str_addf(out, "; %s of them learn", tr_human_count((double)trained(&c->place), a, sizeof a));
    tr_str_addf(out, "\n");
    tr_str_addf(out,
                "micro-batch %" PRId64 " rows x %" PRId64
                " tokens, %d per step; compute %s, gradients %s, master %s, moments %s\n",
                m->n_tokens / m->sequence_length, m->sequence_length, c->opt.n_micro,
                tr_dtype_name(c->opt.compute_dtype), tr_dtype_name(c->opt.grad_dtype),
                tr_dtype_name(c->opt.master_dtype), tr_dtype_name(c->opt.moment_dtype));
    if (c->opt.layout.data_size > 1)
        tr_str_addf(out, "each of %d ranks: zero %d, state in %d shards\n", c->opt.layout.data_size, c->opt.layout.zero,
                    c->opt.layout.shard_size);
    if (tr_layout_splits(&c->opt.layout, TR_ON(TR_AXIS_TP)))
        tr_str_addf(out, "tensor rank %d of %d%s\n", c->opt.layout.coord[TR_AXIS_TP], c->opt.layout.size[TR_AXIS_TP],
                    c->opt.layout.sp ? "; rows are split between products" : "");
    add_stages(c, out);
    tr_str_addf(out, "recompute: %s segments\n", recompute_name(c, modes, sizeof modes));
    tr_str_addf(out, "%sflop per token, %sflop per step", human_flops(tr_flops_per_token(&c->place), a, sizeof a),
                human_flops(s->flops, b, sizeof b));
    if (s->recompute_flops > 0.5)
        tr_str_addf(out, " (%.1f %% of it recompute)", 100 * s->recompute_flops / s->flops);
    tr_str_addf(out, "\n\n  arena            bytes       human\n");
    for (int i = 0; i < TR_A_COUNT; i++) {
        if (c->memory.bytes[i] == 0)
            continue;
        double share = 100.0 * (double)c->memory.bytes[i] / (double)total;
        (void)tr_format(b, sizeof b, "%5.1f %%", share);
        tr_str_addf(out, "  %-7s %14zu  %10s  %s  %s\n", tr_arena_row((enum tr_arena_id)i)->name, c->memory.bytes[i],
                    tr_human_bytes(c->memory.bytes[i], a, sizeof a), i == TR_A_DISK ? "       " : b, what[i]);
        if (with_slices)
            add_slices(&c->memory, (enum tr_arena_id)i, out);
    }
    tr_str_addf(out, "  total   %14zu  %10s  reserved before step 0; nothing is allocated after\n", total,
                tr_human_bytes(total, a, sizeof a));
    if (c->opt.has_own_memory)
        tr_str_addf(out, "  beside  %14zu  %10s  what the GPU holds for its context and libraries, about\n", beside,
                    tr_human_bytes(beside, a, sizeof a));
}

static void json_slices(const struct tr_memory_map *m, enum tr_arena_id a, struct tr_str *out)
{
    const char *sep = "";
    tr_str_addf(out, ", \"slices\": [");
    for (int k = 0; k < m->n_slices; k++)
        if (m->slice[k].arena == a) {
            tr_str_addf(out, "%s{\"name\": ", sep);
            tr_str_json(out, m->slice[k].name);
            tr_str_addf(out, ", \"offset\": %zu, \"bytes\": %zu}", m->slice[k].offset, m->slice[k].bytes);
            sep = ", ";
        }
    tr_str_addf(out, "]");
}

/* The plan of a rank. Pipeline ranks vary slowest. When the vocabulary does not divide, the first tensor ranks hold one
 * row more than the others; everything else is equal. */
static const struct tr_compiled *plan_of(const struct tr_compiled *const *c, int n_ranks, int rank)
{
    const int *size = c[0]->opt.layout.size;
    int stage = rank / (n_ranks / size[TR_AXIS_PP]), tp = size[TR_AXIS_TP];
    bool is_less = rank % tp >= c[0]->place.model->hp.vocab % tp;
    return tp == 1 ? c[stage] : c[2 * stage + is_less];
}

void tr_plan_json(const struct tr_compiled *const *c, int n_ranks, bool with_slices, const char *forecast,
                  const char *known, struct tr_str *out)
{
    int n_alike = n_ranks / c[0]->opt.layout.size[TR_AXIS_PP];
    size_t most = 0;
    double recompute = 0;
    tr_str_addf(out, "{\"ranks\": [");
    for (int r = 0; r < n_ranks; r++) {
        const struct tr_compiled *one = plan_of(c, n_ranks, r);
        size_t total = tr_compiled_bytes(one);
        most = total > most ? total : most;
        recompute += r % n_alike == 0 ? one->schedule[TR_FOR_TRAIN].recompute_flops : 0;
        tr_str_addf(out, "%s{\"rank\": %d, \"total_bytes\": %zu, \"arenas\": [", r ? ", " : "", r, total);
        for (int i = 0; i < TR_A_COUNT; i++) {
            tr_str_addf(out, "%s{\"name\": \"%s\", \"bytes\": %zu", i ? ", " : "",
                        tr_arena_row((enum tr_arena_id)i)->name, one->memory.bytes[i]);
            if (with_slices && r % n_alike == 0)
                json_slices(&one->memory, (enum tr_arena_id)i, out);
            tr_str_addf(out, "}");
        }
        tr_str_addf(out, "]}");
    }
    tr_str_addf(out,
                "], \"flops_per_token\": %.17g, \"parameters\": %" PRId64 ", \"parameters_trained\": %" PRId64
                ", \"recompute_flops\": %.17g, \"bubble\": %.17g, \"total_bytes\": %zu",
                tr_flops_per_token(&c[0]->place), c[0]->place.model->n_elements, trained(&c[0]->place), recompute,
                c[0]->pipe->bubble, most);
    if (known)
        tr_str_addf(out, ", \"model\": %s", known);
    if (forecast)
        tr_str_addf(out, ", \"forecast\": %s", forecast);
    tr_str_addf(out, "}\n");
}
