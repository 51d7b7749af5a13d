/* test_packed.c - frozen weights that are held packed: the bits of the same weights decoded, on every layout. */
#include "layout_agree.h"

static const struct layout layouts[] = {
    { .dp = 2 },
    { .dp = 2, .zero = 1 },
    { .dp = 2, .zero = 2, .n_micro = 2 },
    { .dp = 2, .zero = 3 },
    { .dp = 2, .zero = 3, .n_micro = 3, .recompute = TR_RECOMPUTE_BLOCK },
    { .dp = 2, .zero = 3, .n_micro = 2, .sync_last = true },
    { .dp = 4, .zero = 3, .shard = 2 },
    { .dp = 4, .zero = 2, .shard = 2, .n_micro = 2 },
    { .tp = 2 },
    { .tp = 2, .sp = true, .recompute = TR_RECOMPUTE_OP },
    { .tp = 4 },
    { .tp = 4, .sp = true, .recompute = TR_RECOMPUTE_BLOCK },
    { .tp = 2, .dp = 2, .zero = 3, .sp = true },
    { .tp = 4, .dp = 2, .zero = 3, .n_micro = 2 },
    { .pp = 2, .n_micro = 2 },
    { .pp = 2, .n_micro = 4, .schedule = "gpipe" },
    { .pp = 2, .n_micro = 4, .schedule = "zb" },
    { .pp = 2, .n_micro = 4, .schedule = "interleaved", .chunks = 2 },
    { .pp = 4, .n_micro = 4 },
    { .pp = 2, .dp = 2, .zero = 3, .n_micro = 2 },
    { .pp = 2, .tp = 2, .sp = true, .n_micro = 2 },
    { .pp = 2, .dp = 2, .tp = 2, .zero = 3, .n_micro = 2, .recompute = TR_RECOMPUTE_BLOCK },
    { .cp = 2 },
    { .cp = 2, .cp_mode = TR_CP_ULYSSES, .recompute = TR_RECOMPUTE_OP },
    { .cp = 2, .tp = 2 },
    { .cp = 2, .dp = 2, .zero = 3 },
};
static const struct layout in_order[] = {
    { .dp = 2, .in_order = true, .n_micro = 2 },
    { .dp = 2, .zero = 3, .in_order = true, .n_micro = 2 },
    { .pp = 2, .in_order = true, .n_micro = 4 },
    { .pp = 2, .dp = 2, .zero = 2, .in_order = true, .n_micro = 2 },
};

/* The table's layout with everything else filled in. */
static struct layout filled(struct layout l, size_t i)
{
    fill_ones(&l);
    l.model = WIDE + (int)((2 * i + i / 5) % (N_CONFIGS - WIDE));
    l.n_micro = l.n_micro ? l.n_micro : 1;
    l.recompute = l.recompute ? l.recompute : TR_RECOMPUTE_NONE;
    l.dtype = TR_F32;
    /* not all but norms: their weights are near 1 and hardly move, so that rounding is a large part of that */
    static const int frozen[] = { FREEZE_ALL_BUT_ADAPTER, FREEZE_ALL_BUT_V, FREEZE_ALL_BUT_ADAPTER, FREEZE_ALL_BUT_HEAD,
                                  FREEZE_FIRST };
    l.frozen = frozen[i % TR_COUNT_OF(frozen)];
    l.packed = i % 4 == 3 ? TR_PACKED_FP4 : i % 8 == 1 && l.tp == 1 ? TR_PACKED_FP8 : TR_PACKED_NF4;
    return l;
}

struct job {
    struct layout l;
    struct reference *ref;
};

static void rank_main(const struct tr_comm_env *env, void *ctx)
{
    const struct job *j = ctx;
    char text[256];
    alarm(600);
    if (agrees(&j->l, env, j->ref, j->l.in_order, NOTHING))
        return;
    fprintf(stderr, "rank %d: not the model of one rank: %s\n", env->rank, layout_text(&j->l, text, sizeof text));
    _exit(3);
}

static void run_table(const struct layout *table, size_t n)
{
    for (size_t i = 0; i < n; i += IS_SLOW ? 3 : 1) {
        struct job j = { .l = filled(table[i], i), .ref = calloc(1, sizeof *j.ref) };
        assert_non_null(j.ref);
        train_one(j.ref, &j.l);
        run_ranks(ranks_of(&j.l), rank_main, &j);
        close_reference(j.ref);
        free(j.ref);
    }
}

static void every_layout_trains_the_model_of_one_rank(void **state)
{
    (void)state;
    run_table(layouts, TR_COUNT_OF(layouts));
}

static void in_order_every_layout_has_the_bits_of_one_rank(void **state)
{
    (void)state;
    run_table(in_order, TR_COUNT_OF(in_order));
}

/* ---- one rank: packed and decoded ---- */

static void train_alone(struct run *r, const struct layout *l)
{
    struct tr_compile_options opt = options(l);
    opt.layout = (struct tr_layout){ .data_size = 1, .shard_size = 1 };
    open_run(r, l, &opt);
    train(r, l, NULL, 0, l->n_micro, l->n_micro);
}

/* Of the program of the first block. */
static int n_dequants(const struct tr_compiled *c)
{
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    const struct tr_program *p = s->program[s->program_of[1]];
    int n = 0;
    for (int i = 0; i < p->n_nodes; i++)
        n += p->node[i].op == TR_OP_DEQUANT;
    return n;
}

static void same_weights(const struct run *a, const struct run *b)
{
    for (int i = 0; i < a->m->n_params; i++) {
        int64_t first = 0, n = 0;
        if (a->c->place.packed_of[i])
            continue;
        enum tr_state what = weights(a->e, i);
        const char *x = tr_exec_at(a->e, what, i, &first, &n), *y = tr_exec_at(b->e, what, i, &first, &n);
        assert_memory_equal(x, y, (size_t)n * tr_dtype_bytes(tr_exec_dtype(a->e, what)));
    }
}

static void packed_weights_give_the_bits_of_decoded_ones(void **state)
{
    static const enum tr_dtype dtypes[] = { TR_F32, TR_BF16 };
    (void)state;
    static const int frozen[] = { FREEZE_ALL_BUT_NORMS, FREEZE_ALL_BUT_ADAPTER, FREEZE_ALL_BUT_V, FREEZE_ALL_BUT_DORA };
    for (int i = 0; i < 2 * 3 * 4; i += IS_SLOW ? 5 : 1) {
        struct layout l = filled((struct layout){ .n_micro = 2 }, (size_t)i);
        struct run *packed = calloc(1, sizeof *packed), *decoded = calloc(1, sizeof *decoded);
        assert_true(packed && decoded);
        l.dtype = dtypes[i % 2];
        l.recompute = (enum tr_recompute)(TR_RECOMPUTE_NONE + i / 2 % 3);
        l.frozen = frozen[i / 6];
        train_alone(packed, &l);
        l.is_decoded = true;
        train_alone(decoded, &l);
        assert_true(n_dequants(packed->c) > 0);
        assert_int_equal(n_dequants(decoded->c), 0);
        assert_memory_equal(&packed->loss, &decoded->loss, sizeof packed->loss);
        assert_memory_equal(&packed->norm, &decoded->norm, sizeof packed->norm);
        same_weights(packed, decoded);
        assert_true(packed->c->memory.bytes[TR_A_PARAMS] < decoded->c->memory.bytes[TR_A_PARAMS]);
        close_run(packed);
        close_run(decoded);
        free(packed);
        free(decoded);
    }
}

static void a_split_inside_a_block_is_refused(void **state)
{
    struct layout l = filled((struct layout){ .tp = 8 }, 1);
    struct run *r = calloc(1, sizeof *r);
    (void)state;
    assert_non_null(r);
    l.frozen = FREEZE_ALL_BUT_NORMS;
    struct tr_compile_options opt = options(&l);
    opt.layout = layout_of(&l, 0);
    r->m = open_model(WIDE);
    for (int i = 0; i < r->m->n_params; i++) {
        r->is_frozen[i] = freezes(r->m, l.frozen, i);
        r->packed_of[i] = r->is_frozen[i] && tr_param_may_pack(r->m, i) ? TR_PACKED_NF4 : TR_NOT_PACKED;
    }
    opt.is_frozen = r->is_frozen;
    opt.packed_of = r->packed_of;
    assert_int_equal(tr_compile((const struct tr_model *[TR_PURPOSES]){ r->m }, &opt, &r->c), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "tp 8 cuts model.layers.0.self_attn.o_proj.weight (256 x 256) inside a "
                                            "block of 64 elements of nf4"));
    tr_model_close(r->m);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_weights_give_the_bits_of_decoded_ones),
        cmocka_unit_test(a_split_inside_a_block_is_refused),
        cmocka_unit_test(every_layout_trains_the_model_of_one_rank),
        cmocka_unit_test(in_order_every_layout_has_the_bits_of_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
