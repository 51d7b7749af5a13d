/* Passes and the memory plan: identity where there is nothing to do, no two live values share a byte, recompute trades
 * bytes for flops, the budget search finds a set that fits. */
#include "base/base.h"
#include "parallel/parallel.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":32,\"n_layer\":3,\"n_head\":4,\"n_positions\":16}",
    "{\"model_type\":\"opt\",\"vocab_size\":64,\"hidden_size\":32,\"ffn_dim\":64,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"do_layer_norm_before\":false}",
    "{\"model_type\":\"gemma3_text\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_"
    "layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"sliding_window\":4,\"sliding_window_"
    "pattern\":2}",
};

static enum tr_status compile(const struct tr_model *m, const struct tr_compile_options *opt, struct tr_compiled **out)
{
    return tr_compile((const struct tr_model *[TR_PURPOSES]){ [TR_FOR_TRAIN] = m }, opt, out);
}

static struct tr_model *open_model(size_t i)
{
    cJSON *j = NULL;
    struct tr_model *m = NULL;
    struct tr_model_options opt = { .rows = 2, .sequence_length = 16, .dropout = 0.1 };
    assert_int_equal(tr_json_parse(configs[i], strlen(configs[i]), "config.json", &j), TR_OK);
    assert_int_equal(tr_model_from_json(j, &opt, &m), TR_OK);
    return m;
}

static struct tr_compile_options options(enum tr_recompute r)
{
    return (struct tr_compile_options){
        .compute_dtype = TR_BF16, .optim = &tr_adamw, .n_micro = 2, .recompute = r, .n_threads = 2
    };
}

static char *print(const struct tr_program *p)
{
    struct tr_str s = { 0 };
    tr_program_print(p, &s);
    assert_true(tr_str_ok(&s));
    return s.p;
}

static void passes_with_nothing_to_do_change_nothing(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0);
    struct tr_pass_ctx ctx = {
        .compute_dtype = TR_F32, .is_training = false, .n_threads = 1, .column = tr_column_of("cpu")
    };
    for (int a = 0; a < TR_AXES; a++)
        ctx.layout.size[a] = 1;
    for (int i = 0; i < m->n_programs; i++) {
        char *before = print(m->program[i]);
        assert_int_equal(tr_pass_tensor(m->program[i], &ctx), TR_OK);
        assert_int_equal(tr_pass_context(m->program[i], &ctx), TR_OK);
        assert_int_equal(tr_pass_precision(m->program[i], &ctx), TR_OK);
        assert_int_equal(tr_pass_grad(m->program[i], &ctx), TR_OK);
        assert_int_equal(tr_pass_recompute(m->program[i], &ctx), TR_OK);
        char *after = print(m->program[i]);
        assert_string_equal(before, after);
        free(before);
        free(after);
    }
    tr_model_close(m);
}

/* The scratch of a node is its own while its kernel runs. */
static void check_scratch(const struct tr_program *p, int node, const struct tr_column *column, const int *first,
                          const int *last)
{
    struct tr_call c;
    tr_node_call(p, &p->node[node], &c);
    size_t n = column->scratch(&c, 1), at = p->node[node].scratch;
    assert_true(at % 64 == 0 && at + n <= p->work_bytes);
    for (int v = 0; n > 0 && v < p->n_values; v++) {
        const struct tr_value *x = &p->value[v];
        if (x->kind != TR_V_TEMP || x->base != TR_NONE || v == p->out || v == p->din || x->is_saved ||
            first[v] > node || last[v] < node)
            continue;
        if (x->offset < at + n && at < x->offset + (size_t)(x->rows * x->cols) * tr_dtype_bytes(x->dtype))
            fail_msg("%s: the scratch of node %d lies in %s, which is alive", p->name, node, x->name);
    }
}

/* Plays the nodes and checks that what a node writes overlaps no value that somebody still reads later. */
static void check_overlap(const struct tr_program *p, const struct tr_column *column)
{
    int *last = calloc((size_t)p->n_values, sizeof *last), *first = calloc((size_t)p->n_values, sizeof *first);
    for (int v = 0; v < p->n_values; v++)
        first[v] = last[v] = -1;
    for (int i = 0; i < p->n_nodes; i++)
        for (int k = 0; k < TR_MAX_IN + TR_MAX_OUT; k++) {
            tr_val v = tr_value_root(p, k < TR_MAX_IN ? p->node[i].in[k] : p->node[i].out[k - TR_MAX_IN]);
            if (v == TR_NONE)
                continue;
            if (first[v] < 0)
                first[v] = i;
            last[v] = i;
        }
    for (int i = 0; i < p->n_nodes; i++)
        check_scratch(p, i, column, first, last);
    for (int a = 0; a < p->n_values; a++)
        for (int b = a + 1; b < p->n_values; b++) {
            const struct tr_value *x = &p->value[a], *y = &p->value[b];
            bool are_local = x->kind == TR_V_TEMP && y->kind == TR_V_TEMP && x->base == TR_NONE && y->base == TR_NONE &&
                             a != p->out && b != p->out && a != p->din && b != p->din;
            if (!are_local || first[a] < 0 || first[b] < 0 || x->is_saved != y->is_saved)
                continue;
            size_t nx = (size_t)(x->rows * x->cols) * tr_dtype_bytes(x->dtype);
            size_t ny = (size_t)(y->rows * y->cols) * tr_dtype_bytes(y->dtype);
            bool share = x->offset < y->offset + ny && y->offset < x->offset + nx;
            bool together =
                x->is_saved || (first[a] < last[b] && first[b] < last[a]); /* touching ends: written in place */
            if (share && together)
                fail_msg("%s: %s and %s share bytes while both are alive", p->name, x->name, y->name);
        }
    free(first);
    free(last);
}

static void live_values_never_share_a_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(configs); i++)
        for (int r = TR_RECOMPUTE_NONE; r <= TR_RECOMPUTE_BLOCK; r++)
            for (int tp = 0; tp < 3; tp++) { /* one rank; the second of two; the third of four with split rows */
                struct tr_model *m = open_model(i);
                struct tr_compile_options opt = options((enum tr_recompute)r);
                struct tr_compiled *c = NULL;
                opt.n_threads = 1;
                opt.column = tr_column_of(r == TR_RECOMPUTE_BLOCK ? "cuda" : "cpu");
                opt.layout = (struct tr_layout){ .data_size = 1, .shard_size = 1, .sp = tp == 2 };
                opt.layout.size[TR_AXIS_TP] = 1 << tp;
                opt.layout.coord[TR_AXIS_TP] = tp;
                assert_int_equal(compile(m, &opt, &c), TR_OK);
                for (int k = 0; k < c->schedule[TR_FOR_TRAIN].n_programs; k++)
                    check_overlap(c->schedule[TR_FOR_TRAIN].program[k], opt.column);
                tr_compiled_close(c);
                tr_model_close(m);
            }
}

static void recompute_trades_bytes_for_flops(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(configs); i++) {
        struct tr_model *m = open_model(i);
        size_t acts[3];
        double flops[3];
        for (int r = TR_RECOMPUTE_NONE; r <= TR_RECOMPUTE_BLOCK; r++) {
            struct tr_compile_options opt = options((enum tr_recompute)r);
            struct tr_compiled *c = NULL;
            assert_int_equal(compile(m, &opt, &c), TR_OK);
            acts[r] = c->memory.bytes[TR_A_ACTS];
            flops[r] = c->schedule[TR_FOR_TRAIN].flops;
            tr_compiled_close(c);
        }
        assert_true(acts[1] < acts[0] && acts[2] < acts[1]);
        assert_true(flops[1] == flops[0] && flops[2] > flops[0]);
        tr_model_close(m);
    }
}

/* Accumulation is the pipeline with one stage: forward and back, micro-batch by micro-batch, whatever the schedule. */
static void one_stage_is_accumulation(void **state)
{
    (void)state;
    static const char *const schedules[] = { NULL, "gpipe", "1f1b", "zb" };
    struct tr_model *m = open_model(0);
    size_t bytes = 0;
    for (size_t k = 0; k < TR_COUNT_OF(schedules); k++) {
        struct tr_compile_options opt = options(TR_RECOMPUTE_NONE);
        struct tr_compiled *c = NULL;
        opt.pp_schedule = schedules[k];
        assert_int_equal(compile(m, &opt, &c), TR_OK);
        int n = m->n_segments, at = 0;
        for (int micro = 0; micro < opt.n_micro; micro++)
            for (int i = 0; i < 2 * n; i++) {
                const struct tr_action *a = &c->schedule[TR_FOR_TRAIN].action[at++];
                assert_int_equal(a->kind, i < n ? TR_DO_FORWARD : TR_DO_BACKWARD);
                assert_int_equal(a->segment, i < n ? i : 2 * n - 1 - i);
                assert_int_equal(a->micro, micro);
            }
        assert_int_equal(c->schedule[TR_FOR_TRAIN].action[at++].kind, TR_DO_NORM);
        assert_int_equal(c->schedule[TR_FOR_TRAIN].action[at++].kind, TR_DO_LOSS);
        assert_int_equal(c->schedule[TR_FOR_TRAIN].action[at++].kind, TR_DO_CLIP);
        for (int g = 0; g < n; g++)
            assert_int_equal(c->schedule[TR_FOR_TRAIN].action[at++].kind, TR_DO_UPDATE);
        assert_int_equal(c->schedule[TR_FOR_TRAIN].n_actions, at);
        assert_true(bytes == 0 || bytes == tr_compiled_bytes(c));
        bytes = tr_compiled_bytes(c);
        tr_compiled_close(c);
    }
    tr_model_close(m);
}

static int count_ops(const struct tr_compiled *c, enum tr_opcode op)
{
    int n = 0;
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    for (int i = 0; i < s->n_actions; i++) {
        const struct tr_action *a = &s->action[i];
        if (a->kind != TR_DO_BACKWARD)
            continue;
        const struct tr_program *p = s->program[s->program_of[a->segment]];
        for (int k = 0; k < p->n_nodes; k++)
            n += p->node[k].op == op;
    }
    return n;
}

/* Only the head learns: no other gradient is made, held, reduced or updated, and the flops per token say so. */
static void what_is_frozen_costs_no_gradient(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0);
    struct tr_compile_options opt = options(TR_RECOMPUTE_NONE);
    struct tr_compiled *all = NULL, *some = NULL;
    const struct tr_segment *head = &m->segment[m->n_segments - 1];
    bool *is_frozen = malloc((size_t)m->n_params * sizeof *is_frozen);
    int64_t n_learn = 0;
    assert_non_null(is_frozen);
    for (int i = 0; i < m->n_params; i++)
        is_frozen[i] = true;
    for (int k = 0; k < m->program[head->program]->n_params; k++) {
        is_frozen[head->param[k]] = false;
        n_learn += m->param[head->param[k]].n;
    }
    assert_int_equal(compile(m, &opt, &all), TR_OK);
    opt.is_frozen = is_frozen;
    assert_int_equal(compile(m, &opt, &some), TR_OK);
    assert_true(count_ops(all, TR_OP_LINEAR_DW) > 0);
    assert_int_equal(count_ops(some, TR_OP_LINEAR_DW), 0);
    assert_true(count_ops(all, TR_OP_LINEAR_DX) > 0);
    assert_int_equal(count_ops(some, TR_OP_LINEAR_DX) + count_ops(some, TR_OP_ATTENTION_BWD), 0);
    size_t bytes = (size_t)n_learn * tr_dtype_bytes(opt.grad_dtype);
    assert_true(some->memory.bytes[TR_A_GRADS] >= bytes && some->memory.bytes[TR_A_GRADS] < bytes + 4096);
    assert_true(some->memory.bytes[TR_A_OPTIM] < all->memory.bytes[TR_A_OPTIM]);
    assert_true(some->memory.bytes[TR_A_ACTS] < all->memory.bytes[TR_A_ACTS]);
    struct tr_compiled *const both[] = { all, some };
    for (int i = 0; i < 2; i++) {
        double tokens = (double)(m->n_tokens * opt.n_micro);
        assert_true(fabs(both[i]->schedule[TR_FOR_TRAIN].flops - tr_flops_per_token(&both[i]->place) * tokens) <=
                    1e-9 * both[i]->schedule[TR_FOR_TRAIN].flops);
    }
    assert_true(tr_flops_per_token(&all->place) - tr_model_flops_per_token(m) == 0);
    assert_int_equal(tr_schedule_check(&some->schedule[TR_FOR_TRAIN]), TR_OK);
    int n_updates = 0;
    for (int i = 0; i < some->schedule[TR_FOR_TRAIN].n_actions; i++)
        n_updates += some->schedule[TR_FOR_TRAIN].action[i].kind == TR_DO_UPDATE;
    assert_true(n_updates <= 2); /* the head's, and where its tied weights live */
    tr_compiled_close(all);
    tr_compiled_close(some);
    tr_model_close(m);
    free(is_frozen);
}

static struct tr_compiled *compile_stage(const struct tr_model *m, int pp, int rank, const char *schedule, int n_micro)
{
    struct tr_compile_options opt = options(TR_RECOMPUTE_NONE);
    struct tr_compiled *c = NULL;
    opt.layout = (struct tr_layout){ .data_size = 1, .shard_size = 1 };
    opt.layout.size[TR_AXIS_PP] = pp;
    opt.layout.coord[TR_AXIS_PP] = rank;
    opt.pp_schedule = schedule;
    opt.n_micro = n_micro;
    assert_int_equal(compile(m, &opt, &c), TR_OK);
    return c;
}

/* Every segment and every parameter is some rank's, shared ones are two ranks', and one of the two saves and counts it.
 */
static void stages_share_out_the_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(configs); i++)
        for (int pp = 2; pp <= 4; pp++) {
            struct tr_model *m = open_model(i);
            int n_segments = 0, n_first = 0, n_buckets = 0, n_shared = 0;
            double worst = 0, all = 0;
            for (int r = 0; r < pp; r++) {
                struct tr_compiled *c = compile_stage(m, pp, r, "1f1b", 4);
                for (int g = 0; g < m->n_segments; g++)
                    n_segments += tr_segment_is_here(&c->place, g);
                for (int k = 0; k < m->n_params; k++) {
                    n_first += tr_param_is_first(&c->place, k);
                    n_buckets += c->place.param[k].bucket >= 0;
                    n_shared += c->place.param[k].bucket == m->n_segments;
                    assert_true(!tr_param_is_first(&c->place, k) || c->place.param[k].bucket >= 0);
                }
                worst = c->schedule[TR_FOR_TRAIN].flops > worst ? c->schedule[TR_FOR_TRAIN].flops : worst;
                all += c->schedule[TR_FOR_TRAIN].flops;
                tr_compiled_close(c);
            }
            assert_int_equal(n_segments, m->n_segments);
            assert_int_equal(n_first, m->n_params);
            assert_int_equal(n_shared, m->hp.is_tied ? 2 : 0);
            assert_int_equal(n_buckets, m->n_params + (m->hp.is_tied ? 1 : 0));
            /* Three layers and a small head: no rank has more than its share rounded up to a whole layer. */
            assert_true(worst <= all / pp + all / 3);
            tr_model_close(m);
        }
}

/* 1f1b holds as many micro-batches as there are stages to come, gpipe all of them. */
static void activations_are_those_in_flight(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0);
    size_t acts[3][2];
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < 2; k++) {
            struct tr_compiled *few = compile_stage(m, 3, r, "1f1b", 4), *many = compile_stage(m, 3, r, "1f1b", 12);
            struct tr_compiled *gpipe = compile_stage(m, 3, r, "gpipe", k ? 12 : 4);
            assert_int_equal(few->memory.bytes[TR_A_ACTS], many->memory.bytes[TR_A_ACTS]);
            assert_true(gpipe->memory.bytes[TR_A_ACTS] > few->memory.bytes[TR_A_ACTS]);
            acts[r][k] = gpipe->memory.bytes[TR_A_ACTS];
            tr_compiled_close(few);
            tr_compiled_close(many);
            tr_compiled_close(gpipe);
        }
    for (int r = 0; r < 3; r++)
        assert_true(acts[r][1] > 2 * acts[r][0] && acts[r][1] <= 3 * acts[r][0]);
    tr_model_close(m);
}

/* A device with memory of its own pays for its arenas only; the host's memory is the same as a host device's. */
static void budgets_count_the_space_of_the_device(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0);
    struct tr_compile_options opt = options(TR_RECOMPUTE_NONE);
    opt.data_bytes = 1 << 20;
    for (int own = 0; own < 2; own++) {
        struct tr_compiled *c = NULL;
        opt.has_own_memory = own == 1;
        opt.memory_budget = 0;
        assert_int_equal(compile(m, &opt, &c), TR_OK);
        size_t all = tr_compiled_bytes(c), here = tr_compiled_bytes_in(c, TR_SPACE_DEVICE);
        size_t host = c->memory.bytes[TR_A_DATA] + c->memory.bytes[TR_A_SAVE] + c->memory.bytes[TR_A_STAGING];
        assert_true(host >= 1 << 20);
        assert_int_equal(here, own ? all - host : all);
        tr_compiled_close(c);
        opt.memory_budget = here;
        assert_int_equal(compile(m, &opt, &c), TR_OK);
        tr_compiled_close(c);
        opt.memory_budget = here - 1;
        assert_int_equal(compile(m, &opt, &c), TR_USAGE);
    }
    tr_model_close(m);
}

static void budget_picks_the_least_recompute_that_fits(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0);
    struct tr_compile_options none = options(TR_RECOMPUTE_NONE), block = options(TR_RECOMPUTE_BLOCK),
                              auto_ = options(TR_RECOMPUTE_AUTO);
    struct tr_compiled *a = NULL, *b = NULL, *c = NULL;
    assert_int_equal(compile(m, &none, &a), TR_OK);
    assert_int_equal(compile(m, &block, &b), TR_OK);
    size_t most = tr_compiled_bytes(a), least = tr_compiled_bytes(b);
    auto_.memory_budget = most;
    assert_int_equal(compile(m, &auto_, &c), TR_OK);
    assert_int_equal(tr_compiled_bytes(c), most); /* all of it fits: nothing is recomputed */
    tr_compiled_close(c);
    double flops = a->schedule[TR_FOR_TRAIN].flops;
    for (uint64_t budget = most; budget >= least; budget -= (most - least) / 8) {
        auto_.memory_budget = budget;
        assert_int_equal(compile(m, &auto_, &c), TR_OK);
        assert_true(tr_compiled_bytes(c) <= budget);
        assert_true(c->schedule[TR_FOR_TRAIN].flops >= flops); /* a smaller budget never computes less */
        flops = c->schedule[TR_FOR_TRAIN].flops;
        tr_compiled_close(c);
    }
    auto_.memory_budget = least / 2;
    assert_int_equal(compile(m, &auto_, &c), TR_USAGE);
    tr_compiled_close(a);
    tr_compiled_close(b);
    tr_model_close(m);
}

static void slices_cover_every_byte_of_every_arena(void **state)
{
    (void)state;
    struct tr_model *m = open_model(1);
    struct tr_compile_options opt = options(TR_RECOMPUTE_NONE);
    struct tr_compiled *c = NULL;
    assert_int_equal(compile(m, &opt, &c), TR_OK);
    size_t at[TR_A_COUNT] = { 0 };
    for (int i = 0; i < c->memory.n_slices; i++) {
        assert_int_equal(c->memory.slice[i].offset, at[c->memory.slice[i].arena]);
        at[c->memory.slice[i].arena] += c->memory.slice[i].bytes;
    }
    assert_memory_equal(at, c->memory.bytes, sizeof at);
    tr_compiled_close(c);
    tr_model_close(m);
}

/* x -> copy -> w -> all_reduce -> reduce_scatter -> all_gather: each backward is the other's. */
static void collectives_know_their_backward(void **state)
{
    (void)state;
    static const enum tr_opcode ops[] = { TR_OP_COPY, TR_OP_LINEAR, TR_OP_ALL_REDUCE, TR_OP_REDUCE_SCATTER,
                                          TR_OP_ALL_GATHER };
    static const char *const want[] = { "y:d_y3#8 = reduce_scatter(x:dout#7)", "y:d_y2#9 = all_gather(x:d_y3#8)",
                                        "dx:d_y0#10 = linear_dx(dy:d_y2#9, W:w#1)",
                                        "y:d_in#12 = all_reduce(x:d_y0#10)" };
    struct tr_program *p = NULL;
    assert_int_equal(tr_program_open("block", &p), TR_OK);
    tr_val x = p->in = tr_value_add(p, TR_V_IN, TR_F32, 8, 4, "in");
    tr_val w = tr_value_add(p, TR_V_PARAM, TR_F32, 4, 4, "w");
    for (size_t i = 0; i < TR_COUNT_OF(ops); i++) {
        char name[8];
        (void)tr_format(name, sizeof name, "y%zu", i);
        tr_val y = i == 0 ? tr_value_alias(p, x, name)
                          : tr_value_add(p, TR_V_TEMP, TR_F32, ops[i] == TR_OP_REDUCE_SCATTER ? 4 : 8, 4, name);
        struct tr_node *n = tr_node_add(p, ops[i], TR_FORWARD);
        n->in[0] = x;
        n->in[1] = ops[i] == TR_OP_LINEAR ? w : TR_NONE;
        n->out[0] = y;
        n->attr.axis = TR_AXIS_TP;
        x = y;
    }
    p->out = x;
    struct tr_pass_ctx ctx = { .is_training = true, .n_threads = 1, .column = tr_column_of("cpu") };
    assert_int_equal(tr_pass_grad(p, &ctx), TR_OK);
    assert_int_equal(tr_pass_layout(p, &ctx), TR_OK);
    check_overlap(p, ctx.column);
    char *text = print(p), *at = text;
    for (size_t i = 0; i < TR_COUNT_OF(want); i++) { /* in this order */
        at = strstr(at, want[i]);
        if (!at)
            fail_msg("no %s in\n%s", want[i], text);
    }
    for (int i = 0; i < p->n_nodes; i++)
        if (tr_op_is_collective(p->node[i].op))
            assert_int_equal(p->node[i].attr.axis, TR_AXIS_TP);
    free(text);
    tr_program_close(p);
}

static void an_illegal_mesh_is_refused_with_the_nearest_legal_ones(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0); /* 4 heads, 2 key heads, ffn 48, 32 tokens */
    static const struct {
        int tp;
        bool sp;
        const char *why; /* NULL: legal */
    } asks[] = {
        { 1, false, NULL },
        { 2, true, NULL },
        { 4, true, NULL },
        { 3, false, "tp 3: tp divides num_attention_heads, which is 4; try 2 or 4" },
        { 8, false, "tp 8: tp divides num_attention_heads, which is 4; try 4" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(asks); i++) {
        struct tr_legal_query a = tr_legal_mesh(m, (int[TR_AXES]){ 1, 1, 1, 1, asks[i].tp });
        a.sp = asks[i].sp;
        tr_error_clear();
        assert_int_equal(tr_legal_check(&a), asks[i].why ? TR_USAGE : TR_OK);
        if (asks[i].why && strncmp(tr_error_text(), asks[i].why, strlen(asks[i].why)) != 0)
            fail_msg("said: %s", tr_error_text());
    }
    tr_model_close(m);
}

static void an_illegal_context_is_refused_with_the_nearest_legal_ones(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0); /* 4 heads, 2 key heads, rows of 16 tokens */
    static const struct {
        int cp, tp;
        const char *why; /* NULL: legal */
        enum tr_cp_mode mode;
    } asks[] = {
        { 2, 1, NULL, TR_CP_ULYSSES },
        { 4, 1, NULL, TR_CP_ULYSSES }, /* two ranks a key head */
        { 2, 2, NULL, TR_CP_ULYSSES },
        { 8, 4, NULL, TR_CP_RING },
        { 16, 1, "cp 16: ring: 2 x cp divides sequence_length, which is 16; try 8", TR_CP_RING },
        { 3, 1, "cp 3: cp divides sequence_length, which is 16; try 2 or 4", TR_CP_ULYSSES },
        { 8, 1, "cp 8: ulysses: cp divides num_attention_heads / tp, which is 4; try 4", TR_CP_ULYSSES },
        { 4, 2, "cp 4: ulysses: cp divides num_attention_heads / tp, which is 2; try 2", TR_CP_ULYSSES },
    };
    for (size_t i = 0; i < TR_COUNT_OF(asks); i++) {
        struct tr_legal_query a = tr_legal_mesh(m, (int[TR_AXES]){ 1, 1, 1, asks[i].cp, asks[i].tp });
        a.cp_mode = asks[i].mode;
        tr_error_clear();
        assert_int_equal(tr_legal_check(&a), asks[i].why ? TR_USAGE : TR_OK);
        if (asks[i].why && strncmp(tr_error_text(), asks[i].why, strlen(asks[i].why)) != 0)
            fail_msg("said: %s", tr_error_text());
    }
    tr_model_close(m);
}

static void an_illegal_pipeline_is_refused_with_the_nearest_legal_ones(void **state)
{
    (void)state;
    struct tr_model *m = open_model(0); /* 3 layers */
    static const struct {
        int pp, chunks, n_micro;
        const char *why; /* NULL: legal */
    } asks[] = {
        { 5, 1, 1, NULL },
        { 2, 2, 4, NULL },
        { 6, 1, 1, "pp 6: pp is at most segments / pp_chunks (layers + 2 segments), which is 5; try 5" },
        { 2, 2, 3,
          "pp_chunks 2: interleaved needs gradient_accumulation_steps that pp 2 divides, and there are 3; try" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(asks); i++) {
        struct tr_legal_query a = tr_legal_mesh(m, (int[TR_AXES]){ asks[i].pp, 1, 1, 1, 1 });
        a.pp_chunks = asks[i].chunks, a.n_micro = asks[i].n_micro;
        tr_error_clear();
        assert_int_equal(tr_legal_check(&a), asks[i].why ? TR_USAGE : TR_OK);
        if (asks[i].why && strncmp(tr_error_text(), asks[i].why, strlen(asks[i].why)) != 0)
            fail_msg("said: %s", tr_error_text());
    }
    tr_model_close(m);
}

/* Ranks' parts cover every element once; runs and ranges name the same elements in the same order. */
static void check_cut(int64_t rows, int64_t cols, struct tr_split split, int size)
{
    int64_t n = rows * cols, n_seen = 0;
    int *seen = calloc((size_t)n, sizeof *seen);
    for (int rank = 0; rank < size; rank++) {
        struct tr_tp_shard c = tr_tp_shard_of(rows == 1 ? 1 : 2, rows, cols, split, size, rank);
        assert_true(c.n == c.rows * c.cols && c.n <= c.n_held);
        int64_t *global = malloc((size_t)c.n * sizeof *global), local, len;
        for (int64_t at = 0; at < n && (len = tr_tp_run(&c, &at, n, &local)) > 0; at += len)
            for (int64_t k = 0; k < len; k++, n_seen++) {
                seen[at + k]++;
                global[local + k] = at + k;
            }
        for (int64_t first = 0; first < c.n; first += 5)
            for (int64_t count = 1; first + count <= c.n; count += 7) {
                struct tr_range range[TR_MAX_RANGES];
                int n_ranges = tr_tp_ranges(&c, first, count, range), *hit = calloc((size_t)n, sizeof *hit);
                int64_t sum = 0;
                for (int b = 0; b < n_ranges; b++)
                    for (int64_t r = 0; r < range[b].rows; r++)
                        for (int64_t k = 0; k < range[b].cols; k++, sum++)
                            hit[range[b].first + r * cols + k]++;
                assert_int_equal(sum, count);
                for (int64_t k = first; k < first + count; k++)
                    assert_int_equal(hit[global[k]], 1);
                free(hit);
            }
        free(global);
    }
    bool is_split = tr_tp_shard_of(rows == 1 ? 1 : 2, rows, cols, split, size, 0).is_split;
    assert_int_equal(n_seen, is_split ? n : n * size);
    for (int64_t k = 0; k < n; k++)
        assert_int_equal(seen[k], is_split ? 1 : size);
    free(seen);
}

static void a_cut_gives_every_element_to_one_rank(void **state)
{
    (void)state;
    check_cut(11, 4, (struct tr_split){ 0, 1, 0, 1 }, 3); /* uneven vocabulary */
    check_cut(8, 6, (struct tr_split){ 1, 1, 0, 1 }, 2);  /* inputs of a row-parallel product */
    check_cut(8, 6, (struct tr_split){ 0, 1, 4, 1 }, 2);  /* heads */
    check_cut(8, 6, (struct tr_split){ 0, 1, 2, 1 }, 4);  /* heads that stay whole */
    check_cut(4, 24, (struct tr_split){ 1, 3, 4, 1 }, 2); /* q | k | v, stored (in, out) */
    check_cut(24, 4, (struct tr_split){ 0, 3, 4, 1 }, 4); /* the same, stored (out, in) */
    check_cut(1, 24, (struct tr_split){ 0, 3, 4, 1 }, 2); /* and their bias */
    check_cut(24, 4, (struct tr_split){ 0, 3, 2, 4 }, 2); /* 8 heads of q, 2 of k and of v */
    check_cut(5, 18, (struct tr_split){ 1, 3, 3, 4 }, 3); /* the same, as inputs */
    check_cut(1, 24, (struct tr_split){ 0, 3, 2, 4 }, 2); /* and their bias */
    check_cut(24, 4, (struct tr_split){ 0, 3, 2, 4 }, 4); /* heads that stay whole */
    check_cut(5, 7, (struct tr_split){ TR_WHOLE, 1, 0, 1 }, 2);
    check_cut(8, 6, (struct tr_split){ 0, 1, 0, 1 }, 1);
}

/* An op that a pass cannot treat stops there, with the reason. */
static void an_op_without_a_rule_is_named(void **state)
{
    (void)state;
    char text[512] = "";
    int fd[2], status;
    assert_int_equal(pipe(fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct tr_program *p;
        struct tr_pass_ctx ctx = { .is_training = true, .n_threads = 1 };
        (void)dup2(fd[1], STDERR_FILENO);
        if (tr_program_open("block", &p) != TR_OK)
            _exit(1);
        p->in = tr_value_add(p, TR_V_IN, TR_F32, 8, 4, "in");
        p->out = tr_value_like(p, p->in, "y");
        struct tr_node *n = tr_node_add(p, TR_OP_CAST, TR_FORWARD);
        n->in[0] = p->in;
        n->out[0] = p->out;
        (void)tr_pass_grad(p, &ctx);
        _exit(0);
    }
    (void)close(fd[1]);
    assert_true(read(fd[0], text, sizeof text - 1) > 0);
    (void)close(fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_non_null(strstr(text, "pass grad on block: op cast has no rule: it is made for inference only"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_with_nothing_to_do_change_nothing),
        cmocka_unit_test(collectives_know_their_backward),
        cmocka_unit_test(an_illegal_mesh_is_refused_with_the_nearest_legal_ones),
        cmocka_unit_test(an_illegal_context_is_refused_with_the_nearest_legal_ones),
        cmocka_unit_test(an_illegal_pipeline_is_refused_with_the_nearest_legal_ones),
        cmocka_unit_test(a_cut_gives_every_element_to_one_rank),
        cmocka_unit_test(live_values_never_share_a_byte),
        cmocka_unit_test(recompute_trades_bytes_for_flops),
        cmocka_unit_test(one_stage_is_accumulation),
        cmocka_unit_test(what_is_frozen_costs_no_gradient),
        cmocka_unit_test(stages_share_out_the_model),
        cmocka_unit_test(activations_are_those_in_flight),
        cmocka_unit_test(budget_picks_the_least_recompute_that_fits),
        cmocka_unit_test(budgets_count_the_space_of_the_device),
        cmocka_unit_test(slices_cover_every_byte_of_every_arena),
        cmocka_unit_test(an_op_without_a_rule_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
