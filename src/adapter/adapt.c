/* adapt.c - rewrites a model for an adapter, before any pass sees its programs.
 *
 * A target y = linear(x, W, b) becomes
 *     base = linear(x, W, b)    u = linear(dropout(x), A)    d = linear(s u, B)    y = base + d
 * and with DoRA
 *     base = linear(x, W)    y = (base + d) m / |W + s B A| + b    where the norm of a row is a constant in the
 * backward; and with PiSSA and OLoRA, which take A0 and B0 out of the base,
 *     y = base + (d - linear(s linear(x, A0), B0))
 * where A0 and B0 are frozen, so that W is that of the base's directory. Value y keeps its number and its slices, and
 * everything that reads it stays as it is. The parameters of targets that read the same x lie side by side, A after A
 * and B after B, so that pass `side` can join their products. With dropout each of them draws a mask of its own, as in
 * PEFT, so there each reads another x. Segments of which the same is decided share one program. Under the tensor axis A
 * is one head, which no number of ranks divides: every rank computes all of u and uses it for its own columns. Behind
 * split inputs u and d are terms of the linear's own sum (tensor.c). Rejected: an op for the whole target (every pass
 * and column would need a rule for it); a program for each segment (compiling would take as many times longer as the
 * model has layers).
 */
#include "adapter/adapter.h"
#include <math.h>
#include <stdlib.h>

enum { SITES_MAX = 16, FIRST_DROPOUT = 16 /* models number their own dropouts from 1 */ };

/* A node whose module is a target. */
struct site {
    int node; /* of the program */
    const struct tr_adapter_target *target;
    tr_val a, b, bias, magnitude; /* new parameters; the last two, of B and of DoRA, may be TR_NONE */
    tr_val start_a, start_b;      /* A and B as they began, where the base is changed by them; else TR_NONE */
};

/* A program that was made, and from what. */
struct adapted_form {
    int from, program, n_sites;
    struct {
        int node;
        int64_t r;
        double scale;
    } of[SITES_MAX];
};

struct adapting {
    struct tr_model *m;
    const struct tr_adapter *a;
    bool is_training;
    const struct tr_adapter_module **module; /* of the model, by name */
    size_t n_modules;
    struct site site[SITES_MAX]; /* of the segment at hand */
    int n_sites;
    struct adapted_form *form;
    int n_forms;
};

/* ---- modules ---- */

static int by_name(const void *a, const void *b)
{
    const struct tr_adapter_module *const *x = a, *const *y = b;
    return strcmp((*x)->target.module, (*y)->target.module);
}

static int name_against(const void *name, const void *b)
{
    const struct tr_adapter_module *const *y = b;
    return strcmp(name, (*y)->target.module);
}

/* What is decided of the module of a parameter ("model.norm.weight" is of "model.norm"). The head of a model with tied
 * embeddings reads the parameter of the embedding and is a module of its own. */
static const struct tr_adapter_target *target_of(const struct adapting *x, int param, bool is_head)
{
    char name[TR_NAME_MAX];
    memcpy(name, x->m->param[param].name, sizeof name);
    char *dot = strrchr(name, '.');
    TR_BUG_ON(!dot);
    *dot = 0;
    const char *key = is_head && x->m->hp.is_tied ? "lm_head" : name;
    const struct tr_adapter_module *const *found =
        bsearch(key, x->module, x->n_modules, sizeof *x->module, name_against);
    TR_BUG_ON(!found);
    return &(*found)->target;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* Finds the targets of a segment, in the order of its nodes. */
static enum tr_status find_sites(struct adapting *x, int segment)
{
    const struct tr_segment *g = &x->m->segment[segment];
    const struct tr_program *p = x->m->program[g->program];
    x->n_sites = 0;
    for (int i = 0; i < p->n_nodes; i++) {
        const struct tr_node *n = &p->node[i];
        bool is_linear = n->op == TR_OP_LINEAR, is_head = segment == x->m->n_segments - 1;
        if (!is_linear && n->op != TR_OP_EMBED && n->op != TR_OP_HEAD_LOSS)
            continue;
        const struct tr_adapter_target *t = target_of(x, g->param[p->value[n->in[1]].slot], is_head);
        if (!t->is_target)
            continue;
        if (is_head)
            return tr_fail(TR_USAGE,
                           "target %s: the loss reads the head's matrix itself, so it takes no adapter; train "
                           "it whole with lora_modules_to_save, or leave it out",
                           t->module);
        if (!is_linear && x->a->use_dora)
            return tr_fail(TR_USAGE, "target %s: use_dora takes no embeddings; leave it out", t->module);
        TR_BUG_ON(x->n_sites == SITES_MAX);
        x->site[x->n_sites++] = (struct site){ .node = i,
                                               .target = t,
                                               .a = TR_NONE,
                                               .b = TR_NONE,
                                               .bias = TR_NONE,
                                               .magnitude = TR_NONE,
                                               .start_a = TR_NONE,
                                               .start_b = TR_NONE };
    }
    return TR_OK;
}

/* ---- parameters ---- */

/* How a new parameter of the linear with weight w begins. */
struct start {
    enum tr_init init;
    double size;
};

static struct start start_of_base(const struct adapting *x, const struct site *s)
{
    return (struct start){ x->a->init == TR_ADAPTER_PISSA ? TR_INIT_PISSA : TR_INIT_OLORA, s->target->scale };
}

static struct start start_of_a(const struct adapting *x, int64_t n_in, const struct site *s)
{
    int64_t r = s->target->r;
    if (tr_adapter_changes_base(x->a))
        return start_of_base(x, s);
    if (x->a->init == TR_ADAPTER_ORTHOGONAL)
        return (struct start){ TR_INIT_ORTHOGONAL_A, 0 };
    if (x->a->init == TR_ADAPTER_GAUSSIAN)
        return (struct start){ TR_INIT_NORMAL, 1.0 / (double)r };
    return (struct start){ TR_INIT_UNIFORM, 1.0 / sqrt((double)n_in) };
}

/* B begins with zeros, so that the first step sees the base; with init false it begins as a new linear does. */
static struct start start_of_b(const struct adapting *x, const struct site *s)
{
    int64_t r = s->target->r;
    if (tr_adapter_changes_base(x->a))
        return start_of_base(x, s);
    if (x->a->init == TR_ADAPTER_ORTHOGONAL)
        return (struct start){ TR_INIT_ORTHOGONAL_B, 0 };
    if (x->a->init == TR_ADAPTER_DEFAULT)
        return (struct start){ TR_INIT_UNIFORM, 1.0 / sqrt((double)r) };
    return (struct start){ TR_INIT_ZEROS, 0 };
}

static tr_val add_param(struct tr_program *p, const struct tr_local_param *w, const char *suffix, int n_dims,
                        int64_t rows, int64_t cols, struct tr_split split, struct start s)
{
    struct tr_local_param l = { .is_global = w->is_global,
                                .n_dims = n_dims,
                                .rows = rows,
                                .cols = cols,
                                .init = s.init,
                                .init_std = (float)s.size,
                                .split = split,
                                .in_adapter = true };
    int n = (int)(strlen(w->name) - strlen(".weight"));
    if (tr_format(l.name, sizeof l.name, "%.*s%s", n, w->name, suffix) != TR_OK)
        p->failed = TR_USAGE;
    return tr_param_add(p, &l);
}

/* The linear of a site, before it is rewritten. */
struct shape {
    struct tr_local_param w; /* a copy: adding parameters moves the list */
    int64_t n_in, n_out;
    bool splits_outputs, splits_inputs;
};

static struct shape shape_of(const struct tr_program *p, const struct site *s)
{
    struct shape z = { .w = p->param[p->value[p->node[s->node].in[1]].slot] };
    bool is_in_out = z.w.out_dim == 1;
    z.n_in = is_in_out ? z.w.rows : z.w.cols;
    z.n_out = is_in_out ? z.w.cols : z.w.rows;
    z.splits_outputs = z.w.split.dim == z.w.out_dim;
    z.splits_inputs = !z.splits_outputs && z.w.split.dim != TR_WHOLE;
    return z;
}

/* A of an embedding has a column for each token; it begins with zeros, and B as a new embedding does. */
static void add_embedding(const struct adapting *x, struct tr_program *p, struct site *s)
{
    struct tr_local_param w = p->param[p->value[p->node[s->node].in[1]].slot];
    struct tr_split whole = { TR_WHOLE, 1, 0 }, by_token = { 1, 1, 0 };
    struct start normal = { TR_INIT_NORMAL, 1 }, zeros = { TR_INIT_ZEROS, 0 };
    s->a = add_param(p, &w, ".lora_embedding_A", 2, s->target->r, w.rows, w.split.dim == TR_WHOLE ? whole : by_token,
                     x->a->init == TR_ADAPTER_DEFAULT ? normal : zeros);
    s->b = add_param(p, &w, ".lora_embedding_B", 2, w.cols, s->target->r, whole, normal);
}

static void add_a(const struct adapting *x, struct tr_program *p, struct site *s)
{
    struct shape z = shape_of(p, s);
    struct tr_split split = { TR_WHOLE, 1, 0 };
    if (z.splits_outputs)
        split = (struct tr_split){ 0, 1, 1 };
    if (z.splits_inputs)
        split = (struct tr_split){ 1, z.w.split.n_parts, z.w.split.n_heads };
    s->a = add_param(p, &z.w, ".lora_A.weight", 2, s->target->r, z.n_in, split, start_of_a(x, z.n_in, s));
}

static void add_b(const struct adapting *x, struct tr_program *p, struct site *s)
{
    struct shape z = shape_of(p, s);
    struct tr_split split = { TR_WHOLE, 1, 0 };
    if (z.splits_outputs)
        split = (struct tr_split){ 0, z.w.split.n_parts, z.w.split.n_heads };
    struct start start = start_of_b(x, s);
    s->b = add_param(p, &z.w, ".lora_B.weight", 2, z.n_out, s->target->r, split, start);
    if (x->a->has_b_bias)
        s->bias = add_param(p, &z.w, ".lora_B.bias", 1, 1, z.n_out, split,
                            start.init == TR_INIT_UNIFORM ? start : (struct start){ TR_INIT_ZEROS, 0 });
    if (x->a->use_dora) /* who loads the base sets it to the norms of its rows */
        s->magnitude =
            add_param(p, &z.w, ".lora_magnitude_vector", 1, 1, z.n_out, split, (struct start){ TR_INIT_ONES, 0 });
}

/* A parameter like another, which does not learn. */
static tr_val add_start(struct tr_program *p, const struct site *s, tr_val like, const char *suffix)
{
    struct shape z = shape_of(p, s);
    struct tr_local_param l = p->param[p->value[like].slot];
    return add_param(p, &z.w, suffix, 2, l.rows, l.cols, l.split, (struct start){ l.init, (double)l.init_std });
}

static void add_starts(const struct adapting *x, struct tr_program *p, struct site *s)
{
    if (!tr_adapter_changes_base(x->a) || p->failed != TR_OK)
        return;
    s->start_a = add_start(p, s, s->a, ".lora_start_A.weight");
    s->start_b = add_start(p, s, s->b, ".lora_start_B.weight");
}

/* Adds the parameters of all sites: for each input its A's, then its B's. */
static void add_params(struct adapting *x, struct tr_program *p)
{
    for (int i = 0; i < x->n_sites; i++) {
        tr_val input = p->node[x->site[i].node].in[0];
        if (p->node[x->site[i].node].op == TR_OP_EMBED)
            add_embedding(x, p, &x->site[i]);
        if (x->site[i].a != TR_NONE)
            continue;
        for (int k = i; k < x->n_sites; k++)
            if (p->node[x->site[k].node].in[0] == input)
                add_a(x, p, &x->site[k]);
        for (int k = i; k < x->n_sites; k++)
            if (p->node[x->site[k].node].in[0] == input)
                add_b(x, p, &x->site[k]);
        for (int k = i; k < x->n_sites; k++)
            if (p->node[x->site[k].node].in[0] == input)
                add_starts(x, p, &x->site[k]);
    }
}

/* ---- nodes ---- */

static tr_val new_value(struct tr_program *p, tr_val like, int64_t cols, const char *what)
{
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "%.80s.%s", p->value[like].name, what);
    tr_val v = tr_value_like(p, like, name);
    p->value[v].cols = cols;
    return v;
}

static tr_val emit(struct tr_program *p, enum tr_opcode op, tr_val a, tr_val b, tr_val c, tr_val out)
{
    struct tr_node *n = tr_node_add(p, op, TR_FORWARD);
    n->in[0] = a;
    n->in[1] = b;
    n->in[2] = c;
    n->out[0] = out;
    return out;
}

static tr_val emit_scale(struct tr_program *p, tr_val x, double factor)
{
    if ((float)factor == 1.0f)
        return x;
    tr_val y = new_value(p, x, p->value[x].cols, "scaled");
    (void)emit(p, TR_OP_SCALE, x, TR_NONE, TR_NONE, y);
    p->node[p->n_nodes - 1].attr.scale = (float)factor;
    return y;
}

/* The program's value of this kind and slot; makes it where there is none. */
static tr_val input_value(struct tr_program *p, enum tr_value_kind kind, int slot, enum tr_dtype dtype, int64_t rows,
                          int64_t cols, const char *name)
{
    for (tr_val v = 0; v < p->n_values; v++)
        if (p->value[v].kind == kind && p->value[v].slot == slot)
            return v;
    tr_val v = tr_value_add(p, kind, dtype, rows, cols, name);
    p->value[v].slot = slot;
    p->value[v].dtype_is_fixed = true;
    return v;
}

static tr_val batch_value(const struct adapting *x, struct tr_program *p, enum tr_batch_slot slot)
{
    return input_value(p, TR_V_BATCH, (int)slot, tr_batch_dtype(slot), x->m->n_tokens, 1, tr_batch_name(slot));
}

/* The number of a linear among those of its program, targets or not. */
static int linear_number(const struct tr_program *from, int node)
{
    int k = 0;
    for (int i = 0; i < node; i++)
        k += from->node[i].op == TR_OP_LINEAR;
    return k;
}

static tr_val emit_dropout(const struct adapting *x, struct tr_program *p, tr_val in, int number)
{
    tr_val sample = batch_value(x, p, TR_B_SAMPLE), position = batch_value(x, p, TR_B_POSITIONS);
    tr_val step = input_value(p, TR_V_STEP, 0, TR_F32, 1, TR_STEP_COUNT, "step");
    tr_val y = new_value(p, in, p->value[in].cols, "dropout");
    (void)emit(p, TR_OP_DROPOUT, in, sample, position, y);
    struct tr_node *n = &p->node[p->n_nodes - 1];
    n->in[3] = step;
    n->attr.dropout_p = (float)x->a->dropout;
    n->attr.key = (uint64_t)(FIRST_DROPOUT + number);
    return y;
}

static tr_val emit_add(struct tr_program *p, tr_val a, tr_val b, tr_val out)
{
    return emit(p, TR_OP_ADD, a, b, TR_NONE, out);
}

/* s B A of what A made. */
static tr_val emit_delta(struct tr_program *p, const struct site *s, tr_val u, tr_val y)
{
    bool has_bias = s->bias != TR_NONE; /* it is scaled too */
    u = has_bias ? u : emit_scale(p, u, s->target->scale);
    tr_val d = emit(p, TR_OP_LINEAR, u, s->b, s->bias, new_value(p, y, p->value[y].cols, "delta"));
    return has_bias ? emit_scale(p, d, s->target->scale) : d;
}

static tr_val emit_base(struct tr_program *p, struct tr_node n, tr_val x, tr_val bias, const char *what)
{
    n.in[0] = x;
    n.in[2] = bias;
    n.out[0] = new_value(p, n.out[0], p->value[n.out[0]].cols, what);
    *tr_node_add(p, n.op, n.phase) = n;
    return n.out[0];
}

/* x m / |W + s B A| + bias */
static tr_val emit_magnitude(struct tr_program *p, const struct site *s, const struct tr_node *n, tr_val x, tr_val bias,
                             tr_val out)
{
    tr_val squares = tr_value_add(p, TR_V_TEMP, TR_F32, 1, p->value[out].cols, "squares");
    p->value[squares].dtype_is_fixed = p->value[squares].is_of_weights = true;
    (void)emit(p, TR_OP_ROW_SQUARES, n->in[1], s->a, s->b, squares);
    p->node[p->n_nodes - 1].attr.scale = (float)s->target->scale;
    p->node[p->n_nodes - 1].attr.weight_is_in_out = n->attr.weight_is_in_out;
    (void)emit(p, TR_OP_COL_SCALE, x, s->magnitude, squares, out);
    p->node[p->n_nodes - 1].in[3] = bias;
    return out;
}

/* With dropout PEFT scales what the dropped input gives, and leaves the base as it is:
 * y = W x + b + (m / |W + s B A| (W x' + s B A x') - W x'). */
static void emit_dora(struct tr_program *p, const struct site *s, struct tr_node n, tr_val dropped)
{
    tr_val y = n.out[0], x = n.in[0], bias = n.in[2];
    bool has_dropout = dropped != x;
    tr_val u = emit(p, TR_OP_LINEAR, dropped, s->a, TR_NONE, new_value(p, dropped, s->target->r, "lora"));
    tr_val base = has_dropout ? emit_base(p, n, x, bias, "base") : TR_NONE;
    tr_val seen = emit_base(p, n, dropped, TR_NONE, "seen"), d = emit_delta(p, s, u, y);
    tr_val sum = emit_add(p, seen, d, new_value(p, y, p->value[y].cols, "adapted"));
    if (!has_dropout) {
        (void)emit_magnitude(p, s, &n, sum, bias, y);
        return;
    }
    tr_val scaled = emit_magnitude(p, s, &n, sum, TR_NONE, new_value(p, y, p->value[y].cols, "dora"));
    tr_val minus = emit_scale(p, seen, -1);
    (void)emit_add(p, base, emit_add(p, minus, scaled, new_value(p, y, p->value[y].cols, "more")), y);
}

static void emit_embedding(struct tr_program *p, const struct site *s, struct tr_node n)
{
    tr_val y = n.out[0], base = new_value(p, y, p->value[y].cols, "base");
    struct tr_node column = n;
    n.out[0] = base;
    *tr_node_add(p, n.op, n.phase) = n;
    column.in[1] = s->a;
    column.out[0] = new_value(p, y, s->target->r, "lora");
    column.attr.weight_is_in_out = true;
    *tr_node_add(p, n.op, n.phase) = column;
    (void)emit_add(p, base, emit_delta(p, s, column.out[0], y), y);
}

/* What A and B give beyond what they began with, which the base is without: s B A x' - s B0 A0 x. Where nothing has
 * been learnt this is exactly zero. */
static tr_val emit_change(struct tr_program *p, const struct site *s, tr_val x, tr_val y, tr_val delta)
{
    if (s->start_a == TR_NONE)
        return delta;
    tr_val u = emit(p, TR_OP_LINEAR, x, s->start_a, TR_NONE, new_value(p, x, s->target->r, "start"));
    u = emit_scale(p, u, -s->target->scale);
    tr_val d = emit(p, TR_OP_LINEAR, u, s->start_b, TR_NONE, new_value(p, y, p->value[y].cols, "started"));
    return emit_add(p, delta, d, new_value(p, y, p->value[y].cols, "change"));
}

/* Emits a linear that is a target. dropped: the input of its A. */
static void emit_linear(struct tr_program *p, const struct site *s, struct tr_node n, tr_val dropped)
{
    tr_val y = n.out[0], base = emit_base(p, n, n.in[0], n.in[2], "base");
    tr_val u = emit(p, TR_OP_LINEAR, dropped, s->a, TR_NONE, new_value(p, dropped, s->target->r, "lora"));
    (void)emit_add(p, base, emit_change(p, s, n.in[0], y, emit_delta(p, s, u, y)), y);
}

static const struct site *site_at(const struct adapting *x, int node)
{
    for (int i = 0; i < x->n_sites; i++)
        if (x->site[i].node == node)
            return &x->site[i];
    return NULL;
}

/* What A of a site reads. The mask has the number of the linear, so it does not depend on what is targeted. */
static tr_val input_of_a(const struct adapting *x, struct tr_program *p, const struct tr_program *from,
                         const struct site *s)
{
    tr_val in = from->node[s->node].in[0];
    bool drops = x->is_training && x->a->dropout > 0;
    return drops ? emit_dropout(x, p, in, linear_number(from, s->node)) : in;
}

static enum tr_status build_program(struct adapting *x, const struct tr_program *from, struct tr_program **out)
{
    struct tr_program *p = NULL;
    enum tr_status st = tr_program_copy(from, &p);
    if (st != TR_OK)
        return st;
    add_params(x, p);
    p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        const struct site *s = site_at(x, i);
        struct tr_node n = from->node[i];
        if (!s)
            *tr_node_add(p, n.op, n.phase) = n;
        else if (n.op == TR_OP_EMBED)
            emit_embedding(p, s, n);
        else
            (s->magnitude == TR_NONE ? emit_linear : emit_dora)(p, s, n, input_of_a(x, p, from, s));
    }
    tr_program_check(p, "the adapter");
    st = p->failed;
    if (st == TR_OK)
        *out = p;
    else
        tr_program_close(p);
    return st;
}

/* ---- segments ---- */

static bool is_form(const struct adapting *x, const struct adapted_form *f, int from)
{
    bool is_same = f->from == from && f->n_sites == x->n_sites;
    for (int i = 0; is_same && i < x->n_sites; i++)
        is_same = f->of[i].node == x->site[i].node && f->of[i].r == x->site[i].target->r &&
                  f->of[i].scale == x->site[i].target->scale;
    return is_same;
}

/* The program of a segment with these sites: one that was made before, or a new one. */
static enum tr_status find_form(struct adapting *x, int from, int *out)
{
    enum tr_status st = TR_OK;
    struct tr_program *p = NULL;
    for (int i = 0; i < x->n_forms; i++)
        if (is_form(x, &x->form[i], from)) {
            *out = x->form[i].program;
            return TR_OK;
        }
    struct adapted_form *f = &x->form[x->n_forms];
    *f = (struct adapted_form){ .from = from, .n_sites = x->n_sites };
    for (int i = 0; i < x->n_sites; i++) {
        f->of[i].node = x->site[i].node;
        f->of[i].r = x->site[i].target->r;
        f->of[i].scale = x->site[i].target->scale;
    }
    TR_TRY(build_program(x, x->m->program[from], &p));
    TR_TRY(tr_model_add_program(x->m, p, &f->program));
    p = NULL;
    x->n_forms++;
    *out = f->program;
out:
    tr_program_close(p);
    return st;
}

/* Marks the parameters of the base that are trained with the adapter. */
static enum tr_status mark_base(struct adapting *x, int segment)
{
    const struct tr_segment *g = &x->m->segment[segment];
    bool is_head = segment == x->m->n_segments - 1;
    for (int i = 0; i < x->m->program[g->program]->n_params; i++) {
        struct tr_param *p = &x->m->param[g->param[i]];
        bool is_shared = is_head && x->m->hp.is_tied && p->n_dims == 2;
        const struct tr_adapter_target *t = target_of(x, g->param[i], is_shared);
        if (t->is_saved && x->m->hp.is_tied && g->param[i] == 0) /* the table of tokens */
            return tr_fail(
                TR_USAGE,
                "modules_to_save %s: its embedding and head are one matrix. Training a copy would untie them, and "
                "both as one (ensure_weight_tying) cannot be saved for PEFT yet; leave it out",
                t->module);
        p->in_adapter |= t->is_saved || (t->trains_bias && ends_with(p->name, ".bias"));
    }
    return TR_OK;
}

static enum tr_status adapt_segment(struct adapting *x, int segment)
{
    enum tr_status st = TR_OK;
    int program = -1;
    TR_TRY(find_sites(x, segment));
    TR_TRY(mark_base(x, segment));
    if (x->n_sites == 0)
        goto out;
    TR_TRY(find_form(x, x->m->segment[segment].program, &program));
    TR_TRY(tr_model_use_program(x->m, segment, program));
out:
    return st;
}

enum tr_status tr_adapt(struct tr_model *m, const struct tr_adapter *a, bool is_training)
{
    struct adapting x = { .m = m, .a = a, .is_training = is_training };
    struct tr_adapter_choice choice = { 0 };
    enum tr_status st = TR_OK;
    TR_TRY(tr_adapter_choose(a, m, &choice));
    if (a->n_tokens)
        TR_TRY(tr_fail(TR_USAGE, "trainable_token_indices is not built yet; leave it out"));
    x.n_modules = choice.n;
    x.module = calloc(choice.n + 1, sizeof *x.module);
    x.form = calloc((size_t)m->n_segments, sizeof *x.form);
    if (!x.module || !x.form)
        TR_TRY(tr_fail(TR_NOMEM, "adapter: out of memory"));
    for (size_t i = 0; i < choice.n; i++)
        x.module[i] = &choice.module[i];
    qsort(x.module, choice.n, sizeof *x.module, by_name);
    for (int g = 0; g < m->n_segments; g++)
        TR_TRY(adapt_segment(&x, g));
out:
    free(x.module);
    free(x.form);
    free(choice.module);
    return st;
}
