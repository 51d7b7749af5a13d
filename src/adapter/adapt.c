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
#include "adapter/adapt_impl.h"
#include "adapter/adapter_impl.h"
#include <math.h>
#include <stdlib.h>

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

/* What is decided of the module of a parameter ("model.norm.weight" is of "model.norm"). The head is the module
 * lm_head, also where it reads the parameter of the embedding, and where files call it otherwise. */
static const struct tr_adapter_target *target_of(const struct adapting *x, int param, bool is_head)
{
    char name[TR_NAME_MAX];
    memcpy(name, x->m->param[param].name, sizeof name);
    char *dot = strrchr(name, '.');
    TR_BUG_ON(!dot);
    *dot = 0;
    const char *key = is_head ? "lm_head" : name;
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

/* What the head cannot have. The loss reads the head's matrix tile by tile and takes u and B beside it
 * (ops/row_head.c): there is no value that a magnitude, a bias of B or a second pair could be applied to. */
static enum tr_status check_site(const struct adapting *x, const struct tr_adapter_target *t, bool is_head,
                                 bool is_embedding)
{
    const struct {
        bool is_asked;
        const char *option;
    } rows[] = { { x->a->use_dora && is_head, "use_dora" },
                 { x->a->has_b_bias && is_head, "lora_bias (a bias of B)" },
                 { tr_adapter_changes_base(x->a) && is_head && x->m->hp.is_tied,
                   "init_lora_weights pissa or olora, which would change the embedding with it," } };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (rows[i].is_asked)
            return tr_fail(TR_USAGE, "target %s: %s takes no head; leave it out with exclude_modules", t->module,
                           rows[i].option);
    if (x->is_training && is_embedding && tr_adapter_changes_base(x->a))
        return tr_fail(
            TR_USAGE,
            "target %s: init_lora_weights %s takes no embedding, whose adapter PEFT's conversion of the file "
            "has no place for; leave it out with exclude_modules, or use another start",
            t->module, tr_adapter_start_name(x->a));
    if (x->a->ensures_tying && x->m->hp.is_tied && (is_head || is_embedding))
        return tr_fail(TR_USAGE,
                       "target %s: its embedding and head are one matrix, and one adapter for both "
                       "(ensure_weight_tying) is not built; drop ensure_weight_tying, or the target",
                       t->module);
    return TR_OK;
}

/* Tells the model which rows of a table learn by themselves. */
static enum tr_status note_rows(struct adapting *x, const struct tr_adapter_target *t, int table,
                                const struct tr_node *n)
{
    if (n->attr.index_offset != 0)
        return tr_fail(TR_USAGE,
                       "trainable_token_indices: %s adds an offset to its indices, which PEFT leaves out; train it "
                       "whole with modules_to_save",
                       t->module);
    return t->shares_tokens ? TR_OK : tr_model_add_rows(x->m, t->module, table, t->tokens->id, t->tokens->n);
}

/* Finds the targets of a segment, in the order of its nodes. */
static enum tr_status find_sites(struct adapting *x, int segment)
{
    const struct tr_segment *g = &x->m->segment[segment];
    const struct tr_program *p = x->m->program[g->program];
    x->n_sites = 0;
    for (int i = 0; i < p->n_nodes; i++) {
        const struct tr_node *n = &p->node[i];
        bool is_linear = n->op == TR_OP_LINEAR;
        if (!is_linear && n->op != TR_OP_EMBED && n->op != TR_OP_HEAD_LOSS)
            continue;
        if (p->value[n->in[1]].kind != TR_V_PARAM) /* generation picks a row of activations */
            continue;
        bool is_head = tr_adapter_is_head(x->m, segment, p->value[n->in[1]].slot);
        const struct tr_adapter_target *t = target_of(x, g->param[p->value[n->in[1]].slot], is_head);
        if (!t->is_target && !t->tokens)
            continue;
        TR_PASS(t->tokens ? note_rows(x, t, g->param[p->value[n->in[1]].slot], n)
                          : check_site(x, t, is_head, n->op == TR_OP_EMBED));
        TR_BUG_ON(x->n_sites == SITES_MAX);
        x->site[x->n_sites++] = (struct site){ .node = i,
                                               .is_head = is_head,
                                               .target = t,
                                               .a = TR_NONE,
                                               .b = TR_NONE,
                                               .bias = TR_NONE,
                                               .magnitude = TR_NONE,
                                               .start_a = TR_NONE,
                                               .start_b = TR_NONE,
                                               .rows = TR_NONE,
                                               .rows_minus = TR_NONE,
                                               .pick = TR_NONE };
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
    if (s->is_head) /* of a tied model too, whose matrix has the name of the embedding */
        (void)tr_format(z.w.name, sizeof z.w.name, "lm_head.weight");
    z.n_in = is_in_out ? z.w.rows : z.w.cols;
    z.n_out = is_in_out ? z.w.cols : z.w.rows;
    z.splits_outputs = z.w.split.dim == z.w.out_dim;
    z.splits_inputs = !z.splits_outputs && z.w.split.dim != TR_WHOLE;
    return z;
}

/* A of an embedding has a column for each token; it begins with zeros, and B as a new embedding does. Its magnitudes
 * are those of the columns of the table. */
static void add_embedding(const struct adapting *x, struct tr_program *p, struct site *s)
{
    struct tr_local_param w = p->param[p->value[p->node[s->node].in[1]].slot];
    struct tr_split whole = { TR_WHOLE, 1, 0, 1 }, by_token = { 1, 1, 0, 1 };
    struct start normal = { TR_INIT_NORMAL, 1 }, zeros = { TR_INIT_ZEROS, 0 };
    s->a = add_param(p, &w, ".lora_embedding_A", 2, s->target->r, w.rows, w.split.dim == TR_WHOLE ? whole : by_token,
                     x->a->init == TR_ADAPTER_DEFAULT ? normal : zeros);
    s->b = add_param(p, &w, ".lora_embedding_B", 2, w.cols, s->target->r, whole, normal);
    if (x->a->use_dora)
        s->magnitude =
            add_param(p, &w, ".lora_magnitude_vector", 1, 1, w.cols, whole, (struct start){ TR_INIT_ONES, 0 });
}

static void add_a(const struct adapting *x, struct tr_program *p, struct site *s)
{
    struct shape z = shape_of(p, s);
    struct tr_split split = { TR_WHOLE, 1, 0, 1 };
    if (z.splits_outputs)
        split = (struct tr_split){ 0, 1, 1, 1 };
    if (z.splits_inputs)
        split = (struct tr_split){ 1, z.w.split.n_parts, z.w.split.n_heads, z.w.split.lead };
    s->a = add_param(p, &z.w, ".lora_A.weight", 2, s->target->r, z.n_in, split, start_of_a(x, z.n_in, s));
}

static void add_b(const struct adapting *x, struct tr_program *p, struct site *s)
{
    struct shape z = shape_of(p, s);
    struct tr_split split = { TR_WHOLE, 1, 0, 1 };
    if (z.splits_outputs)
        split = (struct tr_split){ 0, z.w.split.n_parts, z.w.split.n_heads, z.w.split.lead };
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

/* Rows that learn by themselves. An embedding reads them by the token, the head as outputs, so there every rank of the
 * tensor axis computes with all of them and uses what it has of `pick`. */
static void add_rows(struct tr_program *p, struct site *s)
{
    static const char rows[] = ".token_adapter.trainable_tokens_delta",
                      minus[] = ".token_adapter.trainable_tokens_original", pick[] = ".token_adapter.token_indices";
    struct tr_local_param w = p->param[p->value[p->node[s->node].in[1]].slot];
    struct tr_split whole = { TR_WHOLE, 1, 0, 1 },
                    split = w.split.dim != TR_WHOLE && s->is_head ? (struct tr_split){ 0, 1, 1, 1 } : whole;
    int64_t n = (int64_t)s->target->tokens->n;
    if (s->is_head && !s->target->shares_tokens)
        w = shape_of(p, s).w; /* by the head's name */
    s->rows = add_param(p, &w, rows, 2, n, w.cols, split, (struct start){ TR_INIT_ROWS, 0 });
    s->rows_minus = add_param(p, &w, minus, 2, n, w.cols, split, (struct start){ TR_INIT_ROWS_MINUS, 0 });
    s->pick = add_param(p, &w, pick, 2, w.rows, n, w.split, (struct start){ TR_INIT_ROWS_PICK, 0 });
    if (p->failed == TR_OK && !s->is_head)
        p->param[p->value[s->rows].slot].out_dim = p->param[p->value[s->rows_minus].slot].out_dim = 1;
}

/* Adds the parameters of all sites: for each input its A's, then its B's. */
static void add_params(struct adapting *x, struct tr_program *p)
{
    for (int i = 0; i < x->n_sites; i++) {
        tr_val input = p->node[x->site[i].node].in[0];
        if (x->site[i].target->tokens) {
            add_rows(p, &x->site[i]);
            continue;
        }
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

static const struct site *site_at(const struct adapting *x, int node)
{
    for (int i = 0; i < x->n_sites; i++)
        if (x->site[i].node == node)
            return &x->site[i];
    return NULL;
}

static enum tr_status build_program(struct adapting *x, const struct tr_program *from, struct tr_program **out)
{
    struct tr_program *p = NULL;
    TR_PASS(tr_program_copy(from, &p));
    add_params(x, p);
    p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        const struct site *s = site_at(x, i);
        struct tr_node n = from->node[i];
        if (s)
            tr_adapt_emit(x, p, from, s);
        else
            *tr_node_add(p, n.op, n.phase) = n;
    }
    tr_program_check(p, "the adapter");
    enum tr_status st = p->failed;
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
    for (int i = 0; i < x->m->program[g->program]->n_params; i++) {
        struct tr_param *p = &x->m->param[g->param[i]];
        const struct tr_adapter_target *t = target_of(x, g->param[i], tr_adapter_is_head(x->m, segment, i));
        if (t->is_saved && x->m->hp.is_tied && g->param[i] == 0 && !x->a->ensures_tying) /* the table of tokens */
            return tr_fail(
                TR_USAGE,
                "modules_to_save %s: embedding and head of this model are one matrix, and training a copy "
                "would untie them; add --ensure_weight_tying to train both as one, or --untie to train it apart",
                t->module);
        p->in_adapter |= t->is_saved || (t->trains_bias && ends_with(p->name, ".bias"));
    }
    return TR_OK;
}

static enum tr_status adapt_segment(struct adapting *x, int segment)
{
    int program = -1;
    TR_PASS(find_sites(x, segment));
    TR_PASS(mark_base(x, segment));
    if (x->n_sites == 0)
        return TR_OK;
    TR_PASS(find_form(x, x->m->segment[segment].program, &program));
    return tr_model_use_program(x->m, segment, program);
}

enum tr_status tr_adapt(struct tr_model *m, const struct tr_adapter *a, bool is_training)
{
    struct adapting x = { .m = m, .a = a, .is_training = is_training };
    struct tr_adapter_choice choice = { 0 };
    enum tr_status st = TR_OK;
    TR_TRY(tr_adapter_choose(a, m, &choice));
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
