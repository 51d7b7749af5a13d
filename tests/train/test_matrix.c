/* Any legal layout trains the model of one rank: all meshes of 2, 4 and 8 ranks with every ZeRO stage, hybrid shards,
 * sequence parallel, every schedule, both context modes, accumulation and recompute, on three models and packed data.
 *
 * The product of all choices is too much for every day, so that a fixed sample of it runs: every pair of choices that
 * is legal together is in some layout of it (TR_MATRIX=3: every three, TR_MATRIX=all: the whole product). Both numbers
 * are printed. TR_PLANT=no_reduce, or another of plant_names, plants a bug: then this must fail. */
#include "layout_agree.h"

enum dim { MODEL, MESH, ZERO, SP, SCHEDULE, CP_MODE, MICRO, RECOMPUTE, N_DIMS };
enum { EVERY = IS_SLOW ? 16 : 1 }; /* of the sample: a layout takes a second there */
enum { N_VALUES_MAX = 40, N_LAYOUTS_MAX = 1 << 16 };
static const struct {
    int zero;
    bool is_hybrid, sync_last; /* over half of the data ranks, with a replica of each; reduced after the last only */
} zeros[] = {
    { .zero = 0 },
    { .zero = 1 },
    { .zero = 2 },
    { .zero = 3 },
    { .zero = 1, .is_hybrid = true },
    { .zero = 2, .is_hybrid = true },
    { .zero = 3, .is_hybrid = true },
    { .zero = 2, .sync_last = true },
    { .zero = 3, .sync_last = true },
};
static const char *const schedules[] = { "1f1b", "gpipe", "interleaved", "zb" };

struct mesh_row {
    int pp, dp, cp, tp;
};
static struct mesh_row meshes[N_VALUES_MAX];
static int n_meshes;

struct point {
    unsigned char v[N_DIMS];
};
static struct point *points; /* all legal ones */
static int n_points;

static struct tr_model *models[N_MODELS];
static struct reference *refs[2][N_FROZEN][N_MODELS][MAX_MICRO + 1]; /* by in_order, model, micro-batches of a step */
static bool has_frozen, has_adapter; /* every layout has frozen parameters; all but those of an adapter are */

static struct layout layout_at(const struct point *p, bool in_order)
{
    const struct mesh_row *m = &meshes[p->v[MESH]];
    return (struct layout){ .model = p->v[MODEL],
                            .pp = m->pp,
                            .dp = m->dp,
                            .cp = m->cp,
                            .tp = m->tp,
                            .zero = zeros[p->v[ZERO]].zero,
                            .shard = zeros[p->v[ZERO]].is_hybrid ? m->dp / 2 : 0,
                            .sync_last = zeros[p->v[ZERO]].sync_last,
                            .sp = p->v[SP],
                            .schedule = schedules[p->v[SCHEDULE]],
                            .chunks = p->v[SCHEDULE] == 2 ? 2 : 1,
                            .cp_mode = p->v[CP_MODE] ? TR_CP_ULYSSES : TR_CP_RING,
                            .n_micro = p->v[MICRO] + 1,
                            .recompute = (enum tr_recompute)(TR_RECOMPUTE_NONE + p->v[RECOMPUTE]),
                            .frozen = has_adapter ? FREEZE_ALL_BUT_ADAPTER + (p->v[MESH] + p->v[ZERO] + p->v[MICRO]) % 2
                                      : has_frozen ? 1 + (p->v[MESH] + p->v[ZERO] + p->v[MICRO]) % FREEZE_ALL_BUT_HEAD
                                                   : 0,
                            .in_order = in_order };
}

/* A choice that means nothing on this mesh is made once; the others must be legal. */
static bool is_legal(const struct point *p)
{
    const struct mesh_row *m = &meshes[p->v[MESH]];
    if ((m->dp == 1 && p->v[ZERO] > 0) || (m->dp < 4 && zeros[p->v[ZERO]].is_hybrid) ||
        (p->v[MICRO] == 0 && zeros[p->v[ZERO]].sync_last) || (m->tp == 1 && p->v[SP]) ||
        (m->pp == 1 && p->v[SCHEDULE]) || (m->cp == 1 && p->v[CP_MODE]))
        return false;
    struct layout l = layout_at(p, false);
    int size[TR_AXES];
    axes_of(&l, size);
    struct tr_legal_query q = tr_legal_mesh(models[l.model], size);
    q.sp = l.sp, q.cp_mode = l.cp_mode, q.pp_chunks = l.chunks, q.n_micro = l.n_micro;
    bool is_good = tr_legal_check(&q) == TR_OK;
    tr_error_clear();
    return is_good;
}

static void list_meshes(int n_ranks)
{
    for (int pp = 1; pp <= n_ranks; pp *= 2)
        for (int dp = 1; pp * dp <= n_ranks; dp *= 2)
            for (int cp = 1; pp * dp * cp <= n_ranks; cp *= 2) {
                assert_true(n_meshes < N_VALUES_MAX);
                meshes[n_meshes++] = (struct mesh_row){ pp, dp, cp, n_ranks / (pp * dp * cp) };
            }
}

/* The next point in the order of an odometer; false after the last. */
static bool next_point(struct point *p, const int size[N_DIMS])
{
    for (int d = 0; d < N_DIMS; d++) {
        if (++p->v[d] < size[d])
            return true;
        p->v[d] = 0;
    }
    return false;
}

static int list_all(void **state)
{
    (void)state;
    for (int n = 2; n <= 8; n *= 2)
        list_meshes(n);
    for (int i = 0; i < N_MODELS; i++)
        models[i] = open_model(i);
    points = calloc(N_LAYOUTS_MAX, sizeof *points);
    assert_non_null(points);
    const int size[N_DIMS] = { N_MODELS, n_meshes, (int)TR_COUNT_OF(zeros), 2, (int)TR_COUNT_OF(schedules), 2, 4, 3 };
    struct point p = { 0 };
    do {
        if (is_legal(&p)) {
            assert_true(n_points < N_LAYOUTS_MAX);
            points[n_points++] = p;
        }
    } while (next_point(&p, size));
    return 0;
}

/* ---- the sample ---- */

/* One bit for every `n_of` choices together (two, or three). */
static size_t bit_of(const struct point *p, const int *dim, int n_of)
{
    size_t x = 0;
    for (int i = 0; i < n_of; i++)
        x = (x * N_DIMS + (size_t)dim[i]) * N_VALUES_MAX + p->v[dim[i]];
    return x;
}

/* Marks what p covers; was some of it not covered before? */
static bool covers_more(const struct point *p, int n_of, unsigned char *seen)
{
    bool is_new = false;
    for (int a = 0; a < N_DIMS; a++)
        for (int b = a + 1; b < N_DIMS; b++)
            for (int c = n_of == 3 ? b + 1 : b; c < (n_of == 3 ? N_DIMS : b + 1); c++) {
                size_t bit = bit_of(p, (int[]){ a, b, c }, n_of);
                is_new |= !(seen[bit / 8] >> (bit % 8) & 1);
                seen[bit / 8] = (unsigned char)(seen[bit / 8] | 1u << (bit % 8));
            }
    return is_new;
}

/* In an order that mixes all choices and is always the same: i x (an odd number) modulo the next power of 2. */
static int take_sample(bool (*wants)(const struct point *p), bool *is_taken, int *n_all)
{
    const char *how = getenv("TR_MATRIX");
    bool is_whole = how && strcmp(how, "all") == 0;
    int n_of = how && strcmp(how, "3") == 0 ? 3 : 2, n_taken = 0, n_new = 0;
    size_t n_bits = 1;
    for (int i = 0; i < n_of; i++)
        n_bits *= N_DIMS * N_VALUES_MAX;
    unsigned char *seen = calloc(n_bits / 8 + 1, 1);
    assert_non_null(seen);
    *n_all = 0;
    for (uint32_t i = 0; i < N_LAYOUTS_MAX; i++) {
        uint32_t at = i * 40503u % N_LAYOUTS_MAX;
        if (at >= (uint32_t)n_points || !wants(&points[at]))
            continue;
        (*n_all)++;
        bool is_new = is_whole || covers_more(&points[at], n_of, seen);
        is_taken[at] = is_new && n_new++ % (has_frozen || has_adapter ? 2 * EVERY : EVERY) == 0;
        n_taken += is_taken[at];
    }
    free(seen);
    return n_taken;
}

/* ---- running it ---- */

struct job {
    const bool *is_taken;
    bool in_order;
    enum plant plant;
};

static void rank_main(const struct tr_comm_env *env, void *ctx)
{
    const struct job *j = ctx;
    struct tr_comm_env e = *env;
    char text[256];
    alarm(3600); /* for all of them */
    for (int i = 0; i < n_points; i++) {
        struct layout l = layout_at(&points[i], j->in_order);
        if (!j->is_taken[i] || ranks_of(&l) != env->size)
            continue;
        e.generation++; /* a meeting place of its own */
        if (agrees(&l, &e, refs[j->in_order][l.frozen][l.model][l.dp * l.n_micro], j->in_order, j->plant))
            continue;
        fprintf(stderr, "rank %d: not the model of one rank: %s\n", env->rank, layout_text(&l, text, sizeof text));
        _exit(3);
    }
}

static enum plant planted(void)
{
    const char *name = getenv("TR_PLANT");
    for (int i = 0; name && i < N_PLANTS; i++)
        if (strcmp(name, plant_names[i]) == 0)
            return (enum plant)i;
    return NOTHING;
}

static void run_sample(bool in_order, bool (*wants)(const struct point *p), const char *what)
{
    bool *is_taken = calloc(N_LAYOUTS_MAX, sizeof *is_taken);
    int n_all = 0, n_ranks[9] = { 0 };
    int64_t start = tr_clock_us();
    assert_non_null(is_taken);
    int n = take_sample(wants, is_taken, &n_all);
    for (int i = 0; i < n_points; i++) {
        struct layout l = layout_at(&points[i], in_order);
        struct reference **ref = &refs[in_order][l.frozen][l.model][l.dp * l.n_micro];
        if (is_taken[i] && !*ref) {
            *ref = calloc(1, sizeof **ref);
            assert_non_null(*ref);
            train_one(*ref, &l);
        }
        n_ranks[ranks_of(&l)] += is_taken[i];
    }
    struct job j = { is_taken, in_order, planted() };
    if (j.plant == NO_TREE_ADD && !in_order) /* has none */
        goto out;
    for (int size = 2; size <= 8; size *= 2)
        run_ranks(size, rank_main, &j);
    printf("%s: %d layouts run (%d on 2 ranks, %d on 4, %d on 8) of %d legal ones, in %.0f s\n", what, n, n_ranks[2],
           n_ranks[4], n_ranks[8], n_all, (double)(tr_clock_us() - start) * 1e-6);
out:
    free(is_taken);
}

static bool any(const struct point *p)
{
    (void)p;
    return true;
}

static bool has_whole_rows(const struct point *p)
{
    const struct mesh_row *m = &meshes[p->v[MESH]];
    return m->cp == 1 && m->tp == 1;
}

static void every_layout_trains_the_model_of_one_rank(void **state)
{
    (void)state;
    run_sample(false, any, "within rounding");
}

static void in_order_every_layout_has_the_bits_of_one_rank(void **state)
{
    (void)state;
    run_sample(true, has_whole_rows, "in order, bit for bit");
}

static void frozen_parameters_stay_and_the_others_learn_as_on_one_rank(void **state)
{
    (void)state;
    has_frozen = true;
    run_sample(false, any, "with frozen parameters, within rounding");
    run_sample(true, has_whole_rows, "with frozen parameters, in order, bit for bit");
    has_frozen = false;
}

static void adapters_learn_as_on_one_rank(void **state)
{
    (void)state;
    has_adapter = true;
    run_sample(false, any, "with an adapter, within rounding");
    run_sample(true, has_whole_rows, "with an adapter, in order, bit for bit");
    has_adapter = false;
}

static int close_all(void **state)
{
    (void)state;
    struct reference **ref = &refs[0][0][0][0];
    for (size_t i = 0; i < sizeof refs / sizeof *ref; i++)
        if (ref[i]) {
            close_reference(ref[i]);
            free(ref[i]);
        }
    for (int i = 0; i < N_MODELS; i++)
        tr_model_close(models[i]);
    free(points);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_trains_the_model_of_one_rank),
        cmocka_unit_test(in_order_every_layout_has_the_bits_of_one_rank),
        cmocka_unit_test(frozen_parameters_stay_and_the_others_learn_as_on_one_rank),
        cmocka_unit_test(adapters_learn_as_on_one_rank),
    };
    return cmocka_run_group_tests(tests, list_all, close_all);
}
