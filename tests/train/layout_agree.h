/* layout_agree.h - how far a layout may end from the same steps on one rank. Bugs can be planted in the schedule, the
 * mesh or the scale. */
#ifndef TR_TESTS_TRAIN_LAYOUT_AGREE_H
#define TR_TESTS_TRAIN_LAYOUT_AGREE_H

#include "layout_rig.h"

/* What is left out or wrong; TR_PLANT names one for a whole test program. */
enum plant { NOTHING, NO_REDUCE, WRONG_GROUP, NO_SCALE, NO_TIE, NO_TREE_ADD, NO_GATHER, EARLY_RECV, N_PLANTS };
static const char *const plant_names[N_PLANTS] = { "nothing", "no_reduce", "wrong_group", "no_scale",
                                                   "no_tie",  "no_fold",   "no_gather",   "early_recv" };

struct reference { /* the same global batch on one rank */
    struct run run;
    float *start; /* its weights before the first step, parameter after parameter */
};

/* One rank, all micro-batches of the step. */
static inline void train_one(struct reference *ref, const struct layout *like)
{
    struct layout l = { .model = like->model,
                        .dtype = like->dtype,
                        .n_micro = like->n_micro * (like->dp ? like->dp : 1),
                        .frozen = like->frozen,
                        .packed = like->packed,
                        .in_order = like->in_order };
    struct tr_compile_options opt = options(&l);
    opt.layout = (struct tr_layout){ .data_size = 1, .shard_size = 1, .in_order = l.in_order };
    open_run(&ref->run, &l, &opt);
    const struct tr_model *m = ref->run.m;
    ref->start = calloc((size_t)m->n_elements, sizeof *ref->start);
    CHECK(ref->start);
    int64_t at = 0;
    train(&ref->run, &l, NULL, 0, l.n_micro, l.n_micro);
    for (int i = 0; i < m->n_params; at += m->param[i++].n)
        memcpy(ref->start + at, start_of(&l)[i], (size_t)m->param[i].n * sizeof(float));
}

static inline void close_reference(struct reference *ref)
{
    close_run(&ref->run);
    free(ref->start);
}

static inline enum tr_state weights(const struct tr_exec *e, int param)
{
    return tr_exec_holds(e, TR_S_MASTER, param) ? TR_S_MASTER : TR_S_VALUE;
}

/* Are the grains of a packed parameter on this rank those of one rank? */
static inline bool same_grains(const struct run *one, const struct run *r, int param)
{
    int64_t first = 0, n = 0, all = 0, zero = 0, local = 0, len = 0;
    size_t size = tr_exec_element(r->e, TR_S_VALUE, param).bytes;
    struct tr_tp_shard shard = tr_exec_tp_shard(r->e, TR_S_VALUE, param);
    const char *a = tr_exec_at(r->e, TR_S_VALUE, param, &first, &n);
    const char *b = tr_exec_at(one->e, TR_S_VALUE, param, &zero, &all);
    for (int64_t at = 0; n > 0 && (len = tr_tp_run(&shard, &at, all, &local)) > 0; at += len)
        for (int64_t k = 0; k < len; k++)
            if (local + k >= first && local + k < first + n &&
                memcmp(a + (size_t)(local + k) * size, b + (size_t)(at + k) * size, size) != 0)
                return false;
    return true;
}

/* How far the weights of this rank are from those of one rank, as a share of how far they moved. */
static inline double distance(const struct reference *ref, const struct run *r, bool *is_same)
{
    double diff = 0, moved = 0;
    int64_t before = 0;
    *is_same = true;
    for (int i = 0; i < r->m->n_params; before += r->m->param[i++].n) {
        int64_t first = 0, n = 0, all = 0, zero = 0, local = 0, len = 0;
        CHECK_OK(tr_exec_drain(r->e));
        if (r->c->place.packed_of[i]) {
            diff = same_grains(&ref->run, r, i) ? diff : INFINITY;
            continue;
        }
        const float *a = (const float *)(void *)tr_exec_at(r->e, weights(r->e, i), i, &first, &n);
        const float *b = (const float *)(void *)tr_exec_at(ref->run.e, weights(ref->run.e, i), i, &zero, &all);
        for (int64_t at = 0; n > 0 && (len = tr_tp_run(&r->c->place.param[i].tp, &at, all, &local)) > 0; at += len)
            for (int64_t k = 0; k < len; k++) {
                if (local + k < first || local + k >= first + n)
                    continue;
                float x = a[local + k], y = b[at + k];
                double d = (double)x - (double)y, m = (double)y - (double)ref->start[before + at + k];
                diff += d * d;
                moved += m * m;
                *is_same = *is_same && memcmp(&x, &y, sizeof x) == 0;
                if (r->c->place.is_frozen[i] && memcmp(&x, &ref->start[before + at + k], sizeof x) != 0)
                    diff = INFINITY; /* it is not what it was */
            }
    }
    return moved > 0 ? sqrt(diff / moved) : sqrt(diff);
}

/* Sums of the same terms in another order: n terms of relative error 2^-24 each (of a batch's tokens; with tensor and
 * context ranks also of a product's columns and of the vocabulary); a step multiplies what the one before left, and the
 * loss is as smooth as a few layers are: a factor of 8 covers both. bf16 rounds every activation alike on all layouts,
 * so that its error is that of the weights it is given, whose last bit may flip: 2^-8 of a weight's move (2^-11 in
 * float16); gradients that travel in bf16 are rounded to that as well. */
static inline double bound(const struct layout *l)
{
    double terms = (double)l->dp * l->n_micro * N_TOKENS + (l->tp * l->cp > 1 ? WIDEST : 0);
    bool is_bf16 = l->dtype == TR_BF16 || l->reduce_dtype == TR_BF16;
    return 8 * N_STEPS * (is_bf16 ? 0x1p-8 : l->dtype == TR_F16 ? 0x1p-11 : terms * 0x1p-24);
}

static inline void plant_in_schedule(struct tr_compiled *c, enum plant plant)
{
    static const enum tr_action_kind kinds[N_PLANTS] = {
        [NO_TIE] = TR_DO_TIE, [NO_REDUCE] = TR_DO_REDUCE, [NO_TREE_ADD] = TR_DO_TREE_ADD, [NO_GATHER] = TR_DO_GATHER
    };
    struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    enum tr_action_kind gone = kinds[plant] ? kinds[plant] : TR_ACTION_KINDS;
    for (int i = 0; i < s->n_actions; i++)
        if (s->action[i].kind == gone)
            s->action[i].kind = TR_DO_WAIT;                       /* which does nothing itself */
    for (int i = 0; plant == EARLY_RECV && i < s->n_actions; i++) /* the receiver looks in the wrong place */
        if (s->action[i].kind == TR_DO_RECV)
            s->action[i].out += 64;
}

/* Gradients go to the tensor-parallel neighbours, and their partial products to those with other tokens. */
static inline void plant_in_mesh(struct tr_mesh *m, enum plant plant)
{
    if (plant != WRONG_GROUP)
        return;
    struct tr_comm **tp = NULL, **tokens = NULL;
    for (int i = 0; i < m->n_groups; i++) {
        tp = m->group[i].key.axes == TR_ON(TR_AXIS_TP) ? &m->group[i].comm : tp;
        tokens = m->group[i].key.axes == TR_ON_TOKENS ? &m->group[i].comm : tokens;
    }
    struct tr_comm *swapped = *tp;
    *tp = *tokens;
    *tokens = swapped;
}

static inline int ranks_of(const struct layout *l)
{
    return l->pp * l->dp * l->cp * l->tp;
}

static inline void fill_ones(struct layout *l)
{
    int *const sizes[] = { &l->pp, &l->dp, &l->cp, &l->tp, &l->chunks };
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++)
        *sizes[i] = *sizes[i] ? *sizes[i] : 1;
    l->schedule = l->schedule ? l->schedule : "1f1b";
}

static inline void axes_of(const struct layout *l, int size[TR_AXES])
{
    int shard = l->zero ? (l->shard ? l->shard : l->dp) : 1;
    size[TR_AXIS_PP] = l->pp;
    size[TR_AXIS_DP] = l->dp / shard;
    size[TR_AXIS_SHARD] = shard;
    size[TR_AXIS_CP] = l->cp;
    size[TR_AXIS_TP] = l->tp;
}

static inline struct tr_layout layout_of(const struct layout *l, int rank)
{
    struct tr_layout x = { .data_size = l->dp,
                           .zero = l->zero,
                           .sp = l->sp,
                           .cp_mode = l->cp_mode,
                           .sync_last = l->sync_last,
                           .in_order = l->in_order };
    axes_of(l, x.size);
    tr_mesh_coords(rank, x.size, x.coord);
    x.shard_size = x.size[TR_AXIS_SHARD];
    x.shard_rank = x.coord[TR_AXIS_SHARD];
    x.data_rank = x.coord[TR_AXIS_DP] * x.shard_size + x.shard_rank;
    return x;
}

/* Every field of l is set. As one rank of the layout: are loss, norm and this rank's weights those of one rank? */
static inline bool agrees(const struct layout *l, const struct tr_comm_env *env, const struct reference *ref,
                          bool is_exact, enum plant plant)
{
    struct run *r = calloc(1, sizeof *r);
    struct tr_mesh *mesh = NULL;
    CHECK(r);
    struct tr_compile_options opt = options(l);
    opt.layout = layout_of(l, env->rank);
    open_run(r, l, &opt);
    plant_in_schedule(r->c, plant);
    struct tr_comm_env with_arena = *env;
    with_arena.arena_bytes = tr_exec_shared_bytes(r->c);
    with_arena.device = &r->dev;
    CHECK_OK(tr_mesh_open("shm", &with_arena, opt.layout.size, &mesh));
    plant_in_mesh(mesh, plant);
    int n_global = l->dp * l->n_micro;
    train(r, l, mesh, opt.layout.data_rank * l->n_micro, l->n_micro, plant == NO_SCALE ? l->n_micro : n_global);
    bool is_same = false;
    double d = distance(ref, r, &is_same), most = bound(l), loss = ref->run.loss, norm = ref->run.norm;
    bool is_near = d <= most && fabs(r->loss - loss) <= most * loss && fabs(r->norm - norm) <= most * norm;
    if (is_exact)
        is_near = is_same && memcmp(&r->loss, &loss, sizeof loss) == 0 && r->norm == norm;
    if (!is_near && plant == NOTHING)
        fprintf(stderr, "rank %d: off by %.3g of %.3g, loss %.17g for %.17g, norm %.17g for %.17g\n", env->rank, d,
                most, r->loss, loss, r->norm, norm);
    close_run(r);
    tr_mesh_close(mesh);
    free(r);
    return is_near;
}

static inline const char *layout_text(const struct layout *l, char *buf, size_t n)
{
    (void)snprintf(buf, n,
                   "model %d, frozen %d: pp %d %s chunks %d, dp %d zero %d shard %d, cp %d %s, tp %d%s, %d "
                   "micro-batches, recompute %d, "
                   "%s%s",
                   l->model, l->frozen, l->pp, l->schedule, l->chunks, l->dp, l->zero, l->shard, l->cp,
                   l->cp_mode == TR_CP_RING ? "ring" : "ulysses", l->tp, l->sp ? " sp" : "", l->n_micro,
                   (int)l->recompute, tr_dtype_name(l->dtype),
                   l->in_order    ? ", in order"
                   : l->sync_last ? ", sync last"
                                  : "");
    return buf;
}

#endif
