/* search.c - all layouts of a model on a number of chips, the fastest first.
 *
 * Two rounds. The first prices every layout without its pipeline schedule: this gives its bytes, and the work of the
 * busiest rank, a time that no schedule beats. The second plays schedules in the sequence of those bounds, none whose
 * own bound is too slow, and stops when the next bound is slower than the last layout of the list. Legality is the
 * trainer's (config/legal.c); nothing here knows a rule of its own. Schedules are made once and played again (pipes.c).
 * Rejected: annealing and the like; a hundred thousand bounds take less than a second and miss nothing.
 */
#include "plan/plan.h"
#include "adapter/adapter.h"
#include "optim/optim.h"
#include "plan/forecast_impl.h"
#include <math.h>
#include <stdlib.h>

enum { MOST_MICRO = 64, MOST_STAGES = 1024 };
static const enum tr_keep keeps[] = { TR_KEEP_ALL, TR_KEEP_OP, TR_KEEP_INPUT };
static const int chunk_counts[] = { 2, 3, 4, 5, 6, 8, 10 };

void tr_pins_clear(struct tr_pins *p)
{
    *p = (struct tr_pins){ .zero = -1, .sp = -1, .keep = -1, .sync = -1 };
}

static int pin(const struct tr_config *cfg, const char *name, int64_t value, int free_value)
{
    return tr_config_is_set(cfg, name) ? (int)value : free_value;
}

static void set_pins(const struct tr_config *cfg, struct tr_pins *p)
{
    static const enum tr_keep keep_of[] = { TR_KEEP_ALL, TR_KEEP_OP, TR_KEEP_INPUT };
    *p = (struct tr_pins){ .dp = pin(cfg, "dp", cfg->dp, 0),
                           .tp = pin(cfg, "tp", cfg->tp, 0),
                           .pp = pin(cfg, "pp", cfg->pp, 0),
                           .cp = pin(cfg, "cp", cfg->cp, 0),
                           .chunks = pin(cfg, "pp_chunks", cfg->pp_chunks, 0),
                           .micro = pin(cfg, "per_device_train_batch_size", cfg->per_device_train_batch_size, 0),
                           .shard = pin(cfg, "hybrid_shard", cfg->hybrid_shard, 0),
                           .zero = pin(cfg, "zero", cfg->zero, -1),
                           .sp = pin(cfg, "sp", cfg->sp, -1),
                           .keep = -1,
                           .sync = pin(cfg, "sync", cfg->sync == TR_SYNC_LAST, -1),
                           .schedule = tr_config_is_set(cfg, "pp_schedule") ? cfg->pp_schedule : NULL };
    if (cfg->reproducible == TR_REPRODUCIBLE_LAYOUT) /* the tree add needs whole gradients */
        p->sync = 1;
    if (tr_config_is_set(cfg, "recompute") && cfg->recompute != TR_RECOMPUTE_AUTO)
        p->keep = (int)keep_of[cfg->recompute];
}

/* An adapter learns: gradients and states are those of its parameters. A packed base has the bytes of its grains in
 * layers, and decodes its largest matrix while a product reads it. */
static enum tr_status add_adapter(const struct tr_config *cfg, const struct tr_model *m, struct tr_forecast_query *q)
{
    const struct tr_shape_cost *s = &q->shape;
    double all = tr_shape_params(s), tables = (s->is_tied ? 1 : 2) * s->vocab * s->hidden, base = q->param_bytes;
    struct tr_adapter *a = NULL;
    struct tr_adapter_choice c = { 0 };
    enum tr_status st = TR_OK;
    TR_TRY(tr_adapter_open(cfg, &a));
    if (!a)
        goto out;
    TR_TRY(tr_adapter_choose(a, m, &c));
    q->is_frozen = true;
    q->adapter_share = (double)c.n_trained / all;
    if (tr_config_packed(cfg)) {
        double grain = tr_packed_format(tr_config_packed(cfg))->grain;
        double packed = (double)tr_packed_grain_bytes(tr_config_packed(cfg)) / grain;
        base = (packed * (all - tables) + q->param_bytes * tables) / all;
    }
    q->param_bytes = q->gather_bytes = base + q->adapter_share * q->param_bytes;
out:
    free(c.module);
    tr_adapter_close(a);
    return st;
}

static bool has_blocks(const struct tr_optim *o)
{
    bool any = false;
    for (; o; o = o->rest)
        for (int k = 0; k < o->n_states; k++)
            any |= o->state[k].block > 1;
    return any;
}

/* Which numbers of tensor ranks the states of the optimizer do not allow. */
static enum tr_status find_broken_blocks(const struct tr_config *cfg, const struct tr_model *m,
                                         struct tr_search_query *out)
{
    const struct tr_optim *o = out->optim;
    bool *is_frozen = NULL;
    if (out->base.is_frozen || !has_blocks(o))
        return TR_OK;
    TR_PASS(TR_ALLOC(is_frozen, (size_t)m->n_params, "a search"));
    for (int i = 0; i < m->n_params; i++)
        is_frozen[i] = !tr_param_learns(cfg, m->param[i].name);
    for (int tp = 2; tp < TR_SEARCH_TP && tp <= m->hp.n_heads_q; tp++)
        if (m->hp.n_heads_q % tp == 0 && tr_optim_check_blocks(m, o, is_frozen, tp) != TR_OK)
            out->breaks_blocks[tp / 64] |= UINT64_C(1) << tp % 64;
    tr_error_clear();
    free(is_frozen);
    return TR_OK;
}

enum tr_status tr_search_query_of(const struct tr_config *cfg, const struct tr_model *m,
                                  const struct tr_machine *machine, int gpus, struct tr_search_query *out)
{
    struct tr_state_dtypes dtypes = { cfg->dtype, cfg->grad_dtype, cfg->master_dtype, cfg->moment_dtype };
    struct tr_states states;
    tr_states_of(tr_optim_row(cfg->optim), &dtypes, &states);
    *out =
        (struct tr_search_query){ .machine = *machine,
                                  .model = m,
                                  .cp_mode = cfg->cp_mode,
                                  .in_order = cfg->reproducible == TR_REPRODUCIBLE_LAYOUT,
                                  .reduce_dtype = cfg->reduce_dtype,
                                  .offloads_params = cfg->offload_param != TR_OFFLOAD_NONE,
                                  .optim = tr_optim_row(cfg->optim),
                                  .block = tr_config_packed(cfg) ? tr_packed_format(tr_config_packed(cfg))->grain : 0,
                                  .gpus = gpus,
                                  .room_bytes = 0.96 * machine->chip.memory_bytes };
    out->base = tr_forecast_query_of_one(&out->machine);
    out->base.seq = (double)m->sequence_length;
    out->base.global = (double)cfg->train_batch_size;
    out->base.precision = cfg->dtype == TR_F32 ? TR_PRECISION_FP32 : TR_PRECISION_16;
    out->base.param_bytes = out->base.gather_bytes = (double)tr_dtype_bytes(cfg->dtype);
    out->base.grad_bytes = (double)tr_dtype_bytes(cfg->grad_dtype);
    out->base.state_bytes = tr_states_bytes(&states);
    tr_shape_of_model(m, &out->base.shape);
    TR_PASS(add_adapter(cfg, m, &out->base));
    if (machine->is_shared) {
        double n = gpus < machine->node ? gpus : machine->node;
        out->room_bytes /= n;
        out->machine.chip = tr_chip_part(&machine->chip, n);
    }
    if (cfg->memory_budget > 0)
        out->room_bytes = fmin(out->room_bytes, (double)cfg->memory_budget);
    set_pins(cfg, &out->pins);
    return find_broken_blocks(cfg, m, out);
}

/* ---- what is legal ---- */

static struct tr_legal_query legal_query(const struct tr_search_query *q, int pp, int dp, int cp, int tp)
{
    struct tr_legal_query out = { .pp = pp,
                                  .dp = dp,
                                  .cp = cp,
                                  .tp = tp,
                                  .pp_chunks = 1,
                                  .cp_mode = q->cp_mode,
                                  .in_order = q->in_order,
                                  .block = q->block,
                                  .reduce_dtype = q->reduce_dtype };
    tr_legal_add_model(q->model, &out);
    return out;
}

static bool breaks_blocks(const struct tr_search_query *q, int tp)
{
    return tp >= TR_SEARCH_TP || q->breaks_blocks[tp / 64] >> tp % 64 & 1;
}

bool tr_search_is_legal(const struct tr_search_query *q, const struct tr_forecast_query *a)
{
    struct tr_legal_query l = legal_query(q, a->pp, a->dp, a->cp, a->tp);
    l.hybrid_shard = a->zero > 0 ? a->shard : 0;
    l.pp_chunks = a->chunks;
    l.zero = a->zero;
    l.offloads_params = q->offloads_params;
    l.pp_schedule = a->schedule;
    l.sp = a->has_sp;
    l.train_batch_size = (int64_t)a->global;
    l.micro_rows = (int64_t)a->micro;
    l.n_micro = l.train_batch_size / a->dp / tr_max64(1, l.micro_rows);
    if (!tr_legal_holds(&l) || breaks_blocks(q, a->tp))
        return false;
    bool fits = tr_legal_add_schedule(&l) == TR_OK && tr_legal_holds(&l);
    tr_error_clear();
    return fits;
}

enum tr_status tr_search_check_pins(const struct tr_search_query *q)
{
    const struct tr_pins *p = &q->pins;
    struct tr_legal_query l =
        legal_query(q, p->pp ? p->pp : 1, p->dp ? p->dp : 1, p->cp ? p->cp : 1, p->tp ? p->tp : 1);
    l.n_micro = 1;
    TR_PASS(tr_legal_check(&l));
    return breaks_blocks(q, (int)l.tp) ? tr_optim_check_blocks(q->model, q->optim, NULL, (int)l.tp) : TR_OK;
}

/* Do the stages have equal work? The layers, or the layers with embedding and head, must spread evenly over the stages.
 * Uneven stages are legal, but the search takes them only when nothing else is legal: the forecast spreads layers
 * evenly and would underestimate their time. */
static bool is_even(const struct tr_search_query *q, int stages)
{
    int layers = (int)q->base.shape.layers;
    return layers % stages == 0 || (layers + 2) % stages == 0;
}

static bool is_free(int pinned, int value)
{
    return pinned == 0 || pinned == value;
}

/* ---- distance from the given layout ---- */

enum { SMALL_CHANGES = 2, MOST_CHANGES = 3 };

static int mesh_changes(const struct tr_forecast_query *was, const struct tr_forecast_query *a)
{
    return (a->tp != was->tp) + (a->pp != was->pp) + (a->cp != was->cp);
}

static int changes(const struct tr_forecast_query *was, const struct tr_forecast_query *a)
{
    bool is_sharded_anew = a->zero > 0 && a->zero == was->zero && a->dp == was->dp && a->shard != was->shard;
    return mesh_changes(was, a) + (a->zero != was->zero) + is_sharded_anew + (a->keep != was->keep) +
           (a->micro != was->micro) + (a->sync_last != was->sync_last) + (a->has_sp > was->has_sp) +
           (a->has_sp < was->has_sp && a->tp > 1 ? MOST_CHANGES + 1 : 0);
}

/* ---- bytes, corrected by those of layouts that were compiled ---- */

static int kind_of(const struct tr_forecast_query *a)
{
    if (a->pp == 1)
        return 0;
    return a->schedule && strcmp(a->schedule, "zb") == 0 ? 3 : a->chunks > 1 ? 2 : 1;
}

static double bytes_of(const struct tr_search_query *q, const struct tr_forecast_query *a, const struct tr_forecast *f)
{
    double grow = q->grow[kind_of(a)][a->keep], library = f->bytes[TR_BYTES_LIBRARY];
    return grow > 1 ? library + grow * (f->total_bytes - library) : f->total_bytes;
}

void tr_search_learn(struct tr_search_query *q, const struct tr_search_result *x, double compiled_bytes)
{
    double forecast = x->f.total_bytes - x->f.bytes[TR_BYTES_LIBRARY];
    q->grow[kind_of(&x->query)][x->query.keep] = compiled_bytes / forecast;
}

/* ---- first round: bounds ---- */

struct candidate {
    struct tr_forecast_query query;
    double bound;
};

struct round {
    bool takes_uneven;
    const struct tr_search_query *q;
    struct tr_search *out;
    struct tr_pipes *pipes;
    struct candidate *all;
    size_t n, n_cap;
};

static enum tr_status keep_candidate(struct round *r, const struct tr_forecast_query *a, double bound)
{
    TR_PASS(TR_ROOM(r->all, r->n + 1, &r->n_cap, "a search"));
    r->all[r->n++] = (struct candidate){ *a, bound };
    return TR_OK;
}

/* From everything saved to everything recomputed. Once a mode fits with room to spare, more recompute is only slower.
 */
static enum tr_status try_keeps(struct round *r, struct tr_forecast_query *a)
{
    struct tr_search *s = r->out;
    struct tr_forecast f;
    for (size_t i = 0; i < TR_COUNT_OF(keeps); i++) {
        if (r->q->pins.keep >= 0 && (int)keeps[i] != r->q->pins.keep)
            continue;
        a->keep = keeps[i];
        if (r->q->near && changes(r->q->near, a) > MOST_CHANGES)
            continue;
        TR_PASS(tr_forecast(a, &f));
        s->n_legal++;
        f.total_bytes = bytes_of(r->q, a, &f);
        if (s->least.f.step_s == 0 || f.total_bytes < s->least.f.total_bytes)
            s->least = (struct tr_search_result){ *a, f };
        if (f.total_bytes > r->q->room_bytes) {
            s->n_over++;
            continue;
        }
        TR_PASS(keep_candidate(r, a, f.step_s));
        if (f.total_bytes < 0.7 * r->q->room_bytes)
            break;
    }
    return TR_OK;
}

/* Tries to reduce gradients once a step. With zero 2 that equals zero 1, so it is tried only when zero 2 is pinned;
 * with one micro-batch it makes no difference. */
static enum tr_status try_syncs(struct round *r, struct tr_forecast_query *a)
{
    enum tr_status st = TR_OK;
    int said = r->q->pins.sync;
    bool has_choice = a->micro < a->global / a->dp && (a->zero == 3 || (a->zero == 2 && r->q->pins.zero == 2));
    for (int last = 0; last <= 1; last++) {
        a->sync_last = last;
        if (said >= 0 ? last == said : last == 0 || has_choice)
            TR_TRY(try_keeps(r, a));
    }
out:
    a->sync_last = false;
    return st;
}

/* Is the layout legal with any schedule? The second round tries the named ones; a schedule from a file is the only
 * choice. */
static bool is_legal_somehow(const struct tr_search_query *q, const struct tr_forecast_query *a)
{
    struct tr_forecast_query b = *a;
    if (q->pins.schedule && !tr_pipe_is_named(q->pins.schedule)) {
        b.schedule = q->pins.schedule;
        b.chunks = q->pins.chunks ? q->pins.chunks : 1;
    }
    return tr_search_is_legal(q, &b);
}

/* Tries the ways to shard: none; over all data ranks; over those of one, 4 or 16 fast domains. */
static enum tr_status try_zeros(struct round *r, struct tr_forecast_query *a)
{
    const struct tr_pins *pins = &r->q->pins;
    for (int zero = 0; zero <= 3; zero++) {
        if ((pins->zero >= 0 && zero != pins->zero) || (zero > 0 && a->dp == 1 && pins->zero < 0))
            continue;
        a->zero = zero;
        a->shard = zero > 0 ? a->dp : 0;
        for (int times = 0; times <= 16; times = times ? 4 * times : 1) {
            int inside = r->q->base.machine->domain * times / (a->tp * a->cp);
            if (times > 0)
                a->shard = inside;
            if (times > 0 && (zero == 0 || inside <= 1 || inside >= a->dp || a->dp % inside != 0))
                continue;
            if (pins->shard > 0 && zero > 0 && a->shard != pins->shard)
                continue;
            if (is_legal_somehow(r->q, a))
                TR_PASS(try_syncs(r, a));
        }
    }
    return TR_OK;
}

static enum tr_status try_mesh(struct round *r, struct tr_forecast_query *a)
{
    const struct tr_pins *pins = &r->q->pins;
    double rows = a->global / a->dp;
    for (int micro = 1; micro <= rows && micro <= (pins->micro ? pins->micro : MOST_MICRO); micro++) {
        if (fmod(rows, micro) != 0 || !is_free(pins->micro, micro))
            continue;
        a->micro = micro;
        for (int sp = 0; sp <= (a->tp > 1); sp++) {
            if (a->tp > 1 && pins->sp >= 0 && sp != pins->sp)
                continue;
            a->has_sp = sp;
            TR_PASS(try_zeros(r, a));
        }
    }
    return TR_OK;
}

static enum tr_status first_round(struct round *r)
{
    const struct tr_search_query *q = r->q;
    const struct tr_pins *pins = &q->pins;
    struct tr_forecast_query a = q->base;
    a.is_bound = true;
    for (a.tp = 1; a.tp <= q->gpus && a.tp <= (int)a.shape.heads; a.tp++) {
        if (q->gpus % a.tp != 0 || !is_free(pins->tp, a.tp))
            continue;
        for (a.pp = 1; a.pp <= q->gpus / a.tp && a.pp <= MOST_STAGES; a.pp++) {
            if (q->gpus % (a.tp * a.pp) != 0 || !is_free(pins->pp, a.pp) ||
                (!pins->pp && !r->takes_uneven && !is_even(q, a.pp)))
                continue;
            for (a.cp = 1; a.cp <= q->gpus / a.tp / a.pp && a.cp <= (int)a.seq; a.cp++) {
                int rest = q->gpus / a.tp / a.pp;
                a.dp = rest / a.cp;
                bool is_near = !q->near || mesh_changes(q->near, &a) < MOST_CHANGES;
                if (rest % a.cp == 0 && is_free(pins->cp, a.cp) && is_free(pins->dp, a.dp) &&
                    fmod(a.global, a.dp) == 0 && is_near)
                    TR_PASS(try_mesh(r, &a));
            }
        }
    }
    return TR_OK;
}

/* ---- second round: pipeline schedules ---- */

static bool is_same_mesh(const struct tr_forecast_query *a, const struct tr_forecast_query *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->cp == b->cp;
}

/* The list has one entry for each mesh; in a search near a given layout, one for each layout. */
static int place_of_mesh(const struct tr_search_query *q, const struct tr_search *s, const struct tr_forecast_query *a)
{
    int i = q->near ? s->n : 0;
    while (i < s->n && !is_same_mesh(&s->top[i].query, a))
        i++;
    return i;
}

static bool is_before(const struct tr_search_query *q, const struct tr_search_result *x,
                      const struct tr_search_result *y)
{
    bool is_small[2] = { !q->near || changes(q->near, &x->query) <= SMALL_CHANGES,
                         !q->near || changes(q->near, &y->query) <= SMALL_CHANGES };
    return is_small[0] != is_small[1] ? is_small[0] : x->f.step_s < y->f.step_s;
}

static void rank(const struct tr_search_query *q, struct tr_search *s, const struct tr_forecast_query *a,
                 const struct tr_forecast *f)
{
    struct tr_search_result x = { *a, *f };
    int at = place_of_mesh(q, s, a);
    x.query.is_bound = false;
    if (at == TR_SEARCH_TOP) /* the list is full: it replaces the last entry when it is better */
        at = TR_SEARCH_TOP - 1;
    if (at < s->n && !is_before(q, &x, &s->top[at]))
        return;
    s->n += at == s->n;
    for (; at > 0 && is_before(q, &x, &s->top[at - 1]); at--)
        s->top[at] = s->top[at - 1];
    s->top[at] = x;
}

/* Can a layout whose step takes this long, or longer, not enter the list? */
static bool is_too_slow(const struct round *r, const struct tr_forecast_query *a, double step_s)
{
    const struct tr_search *s = r->out;
    int at = place_of_mesh(r->q, s, a);
    if (r->q->near || (at == s->n && s->n < TR_SEARCH_TOP))
        return false;
    return step_s >= s->top[at < s->n ? at : s->n - 1].f.step_s;
}

/* Plays the schedule, unless its bytes or its bound rule it out. */
static enum tr_status play_one(struct round *r, struct tr_forecast_query *a, const char *schedule, int chunks)
{
    enum tr_status st = TR_OK;
    struct tr_forecast f;
    a->schedule = schedule;
    a->chunks = chunks;
    if (!is_free(r->q->pins.chunks, chunks) || !tr_search_is_legal(r->q, a))
        return TR_OK;
    a->is_bound = true;
    st = tr_forecast(a, &f);
    a->is_bound = false;
    if (st != TR_OK || bytes_of(r->q, a, &f) > r->q->room_bytes || is_too_slow(r, a, f.step_s))
        return st;
    st = tr_forecast_again(a, r->pipes, &f);
    r->out->n_played++;
    f.total_bytes = bytes_of(r->q, a, &f);
    if (st == TR_OK && f.total_bytes <= r->q->room_bytes)
        rank(r->q, r->out, a, &f);
    return st;
}

static enum tr_status play_orders(struct round *r, const struct tr_forecast_query *from)
{
    struct tr_forecast_query a = *from;
    const char *said = r->q->pins.schedule;
    a.is_bound = false;
    if (a.pp == 1 || (said && strcmp(said, "interleaved") != 0))
        return play_one(r, &a, said ? said : "1f1b", r->q->pins.chunks && said ? r->q->pins.chunks : 1);
    if (!said)
        TR_PASS(play_one(r, &a, "1f1b", 1));
    if (!said)
        TR_PASS(play_one(r, &a, "zb", 1));
    for (size_t i = 0; i < TR_COUNT_OF(chunk_counts); i++)
        if (is_even(r->q, a.pp * chunk_counts[i]))
            TR_PASS(play_one(r, &a, "interleaved", chunk_counts[i]));
    return TR_OK;
}

static int by_bound(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return (x->bound > y->bound) - (x->bound < y->bound);
}

static enum tr_status second_round(struct round *r)
{
    const struct tr_search *s = r->out;
    if (r->n > 0)
        qsort(r->all, r->n, sizeof *r->all, by_bound);
    for (size_t i = 0; i < r->n; i++) {
        double bound = r->all[i].bound;
        if (!r->q->near && s->n == TR_SEARCH_TOP && bound >= s->top[s->n - 1].f.step_s)
            break;
        if (is_too_slow(r, &r->all[i].query, bound))
            continue;
        TR_PASS(play_orders(r, &r->all[i].query));
    }
    return TR_OK;
}

enum tr_status tr_search_run(const struct tr_search_query *q, struct tr_search *out)
{
    struct round r = { .q = q, .out = out };
    *out = (struct tr_search){ 0 };
    enum tr_status st = first_round(&r);
    r.takes_uneven = st == TR_OK && out->n_legal == 0;
    if (r.takes_uneven)
        st = first_round(&r);
    if (st == TR_OK)
        st = tr_pipes_open(&r.pipes);
    if (st == TR_OK)
        st = second_round(&r);
    tr_pipes_close(r.pipes);
    free(r.all);
    return st;
}

/* ---- numbers of chips for which a legal mesh exists ---- */

static bool has_mesh(const struct tr_search_query *q, int gpus)
{
    struct tr_forecast_query a = q->base;
    for (a.tp = 1; a.tp <= gpus && a.tp <= (int)a.shape.heads; a.tp++)
        for (a.pp = 1; gpus % a.tp == 0 && a.pp <= gpus / a.tp && a.pp <= (int)a.shape.layers + 2; a.pp++)
            for (a.cp = 1; gpus % (a.tp * a.pp) == 0 && a.cp <= gpus / a.tp / a.pp && a.cp <= (int)a.seq; a.cp++) {
                if (gpus / a.tp / a.pp % a.cp != 0 || !is_free(q->pins.tp, a.tp) || !is_free(q->pins.pp, a.pp) ||
                    !is_free(q->pins.cp, a.cp))
                    continue;
                a.dp = gpus / a.tp / a.pp / a.cp;
                if (is_free(q->pins.dp, a.dp) && tr_search_is_legal(q, &a))
                    return true;
            }
    return false;
}

void tr_search_nearest(const struct tr_search_query *q, int *below, int *above)
{
    enum { REACH = 4096 };
    int low = q->gpus - 1, high = q->gpus + 1;
    while (low > 0 && low > q->gpus - REACH && !has_mesh(q, low))
        low--;
    while (high < q->gpus + REACH && !has_mesh(q, high))
        high++;
    *below = low > 0 && has_mesh(q, low) ? low : 0;
    *above = high < q->gpus + REACH ? high : 0;
}
