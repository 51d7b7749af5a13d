/* choose.c - decides for all modules of a model, and refuses an adapter that cannot be what its user meant. */
#include "adapter/adapter_impl.h"
#include "base/factor.h"

#include <stdlib.h>
#include <string.h>

/* ---- names for messages ---- */

/* The last n parts of a name; NULL: it has fewer. */
static const char *last_parts(const char *name, int n)
{
    const char *p = name + strlen(name);
    while (n > 0 && p > name)
        if (*--p == '.' && --n == 0)
            return p + 1;
    return n <= 1 ? name : NULL;
}

struct names {
    const char **item;
    size_t n;
};

/* The names that modules which can be targets end in, each once. */
static enum tr_status collect(const struct module_list *l, int n_parts, bool with_norms, struct names *out)
{
    TR_PASS(TR_ALLOC(out->item, l->n + 1, "%zu names", l->n));
    for (size_t i = 0; i < l->n; i++) {
        const char *name = last_parts(l->module[i].target.module, n_parts);
        bool is_new = name && (with_norms || l->module[i].kind != TR_MODULE_NORM);
        for (size_t k = 0; is_new && k < out->n; k++)
            is_new = strcmp(out->item[k], name) != 0;
        if (is_new)
            out->item[out->n++] = name;
    }
    return TR_OK;
}

/* "...: no module is called so; did you mean q_proj? The model has q_proj, k_proj, ..." */
static enum tr_status fail_unknown(const struct module_list *l, const char *option, const char *name, bool with_norms)
{
    enum tr_status st = TR_OK;
    struct names like = { 0 }, leaf = { 0 };
    struct tr_str all = { 0 };
    char shown[128], near[160] = "";
    int n_parts = 1;
    for (const char *p = name; *p; p++)
        n_parts += *p == '.';
    TR_TRY(collect(l, n_parts, with_norms, &like));
    TR_TRY(collect(l, 1, with_norms, &leaf));
    const char *best = tr_nearest(name, like.item, like.n);
    if (!best)
        best = tr_nearest(last_parts(name, 1), leaf.item, leaf.n);
    if (best)
        (void)tr_format(near, sizeof near, "; did you mean %s?", best);
    for (size_t i = 0; i < leaf.n; i++)
        tr_str_addf(&all, "%s%s", i ? ", " : "", leaf.item[i]);
    st = tr_fail(TR_USAGE, "%s %s: no module of this model has this name%s The model has %s", option,
                 tr_escape(name, shown, sizeof shown), best ? near : ".", all.p ? all.p : "");
out:
    free(like.item);
    free(leaf.item);
    tr_str_release(&all);
    return st;
}

/* ---- checks of the whole ---- */

/* PEFT passes over a name that no module has. Here only one that was not meant for this model: a file of PEFT's may be
 * of another model, a file of another trainer lists what many models have (peft_rules), and so do people whose list has
 * the names of another family. Any other name is a misspelling, which would train the wrong adapter for days. */
static bool may_pass(const struct tr_adapter *a, const char *name)
{
    return a->config || a->is_lenient || tr_arch_has_module(name);
}

/* The lists that are checked, and the names that were passed over. */
struct checking {
    const struct tr_adapter *a;
    const struct module_list *l;
    struct tr_str *passed; /* NULL: no caller asks */
};

static void add_passed(const struct checking *x, const char *option, const char *no_module, const struct tr_str *names)
{
    if (names->n && x->passed && !x->a->config)
        tr_str_addf(x->passed, "%s%s: no module %s is called %s: passed over, as PEFT does", x->passed->n ? "\n" : "",
                    option, no_module, names->p);
}

static void add_name(struct tr_str *names, const char *name)
{
    char shown[128];
    tr_str_addf(names, "%s%s", names->n ? ", " : "", tr_escape(name, shown, sizeof shown));
}

static bool is_a_module(const struct module_list *l, const char *name, bool is_saved)
{
    const struct tr_adapter one = { .saved = { .item = &name, .n = 1 } };
    bool is_there = false;
    for (size_t k = 0; k < l->n && !is_there; k++)
        is_there = is_saved ? tr_adapter_is_saved(&one, l->module[k].target.module)
                            : tr_module_ends_with(l->module[k].target.module, name);
    return is_there;
}

/* must_match: a list of which none matches is refused. */
static enum tr_status check_list(const struct checking *x, const struct tr_words *w, const char *option, bool is_saved,
                                 bool must_match)
{
    enum tr_status st = TR_OK;
    struct tr_str passed = { 0 };
    size_t n_there = 0;
    for (size_t i = 0; i < w->n; i++)
        n_there += is_a_module(x->l, w->item[i], is_saved);
    for (size_t i = 0; i < w->n; i++) {
        if (is_a_module(x->l, w->item[i], is_saved))
            continue;
        if ((n_there == 0 && must_match) || !may_pass(x->a, w->item[i]))
            TR_TRY(fail_unknown(x->l, option, w->item[i], is_saved));
        add_name(&passed, w->item[i]);
    }
    add_passed(x, option, "of this model", &passed);
out:
    tr_str_release(&passed);
    return st;
}

/* What is excluded of a model of text and images may be in a part that is not trained here. */
static enum tr_status check_names(const struct checking *x, const struct tr_model *m)
{
    const struct tr_adapter *a = x->a;
    if (!a->is_regex && !a->is_all_linear && !a->config)
        TR_PASS(check_list(x, &a->target, "lora_target_modules", false, true));
    if (!a->exclude_is_regex && !a->config && !m->arch->wrapper)
        TR_PASS(check_list(x, &a->exclude, "exclude_modules", false, false));
    return check_list(x, &a->saved, "modules_to_save", true, true);
}

/* Modules that hold others, or have no parameters: none of them may be a target, and a list of layers is no module that
 * could be saved. */
static enum tr_status check_others(const struct tr_adapter *a, const struct tr_model *m, const struct module_list *l)
{
    size_t n_layers = strcspn(m->arch->layer_prefix, "%") - 1; /* "model.layers" of "model.layers.%d." */
    for (size_t i = 0; i < l->n_other; i++) {
        struct tr_adapter_target t;
        TR_PASS(tr_adapter_decide(a, m, l->other[i], false, false, false, &t));
        if (t.is_saved && strlen(t.module) == n_layers && strncmp(t.module, m->arch->layer_prefix, n_layers) == 0)
            return tr_fail(TR_USAGE, "modules_to_save takes the whole list %s; name modules inside of it", t.module);
    }
    return TR_OK;
}

static enum tr_status fail_none(const struct tr_adapter *a, const struct module_list *l)
{
    char shown[128] = "";
    if (a->target.n && !a->is_all_linear && !a->is_regex && a->exclude.n + a->saved.n + a->n_layers == 0)
        return fail_unknown(l, "target_modules", a->target.item[0], false);
    if (a->is_regex)
        return tr_fail(TR_USAGE,
                       "target_modules \"%s\" matches no module; an expression must match a whole name like %s",
                       tr_escape(a->target.item[0], shown, sizeof shown), l->module[l->n / 2].target.module);
    return tr_fail(TR_USAGE,
                   "no module is targeted: exclude_modules, modules_to_save and layers_to_transform leave none "
                   "of target_modules; drop one of them");
}

static enum tr_status check_target(const struct tr_adapter *a, const struct tr_adapter_module *mod)
{
    int64_t side = tr_min64(mod->n_in, mod->n_out);
    if (a->has_b_bias && mod->kind == TR_MODULE_EMBEDDING)
        return tr_fail(TR_USAGE, "lora_bias (a bias of B) works on linears only; take %s out with exclude_modules",
                       mod->target.module);
    if (a->init == TR_ADAPTER_OLORA && mod->kind == TR_MODULE_CONV1D)
        return tr_fail(TR_USAGE,
                       "init_lora_weights olora: PEFT has none for %s, whose matrix is stored (in, out); use pissa",
                       mod->target.module);
    /* These are made from that many orthogonal vectors; any other start trains, as in PEFT. */
    if (a->init < TR_ADAPTER_ORTHOGONAL || mod->target.r <= side)
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "init_lora_weights: rank %" PRId64 " of %s is above its smaller side (%" PRId64 " x %" PRId64
                   "); use lora_r %" PRId64 " or less, or rank_pattern %s=%" PRId64,
                   mod->target.r, mod->target.module, mod->n_out, mod->n_in, side, last_parts(mod->target.module, 1),
                   side);
}

/* What was meant by the name of no module; NULL: it is that of one without an adapter, or like none. */
static const char *nearest_target(const char *text, const struct tr_adapter_choice *c)
{
    const char *best = NULL, *both[2];
    for (size_t k = 0; k < c->n; k++) {
        const char *leaf = last_parts(c->module[k].target.module, 1);
        if (tr_module_ends_with(c->module[k].target.module, text))
            return NULL;
        if (!c->module[k].target.is_target)
            continue;
        both[0] = best ? best : leaf;
        both[1] = leaf;
        best = tr_nearest(text, both, 2);
    }
    return best;
}

/* Like names of targets: a pattern of the options that matches no target is a misspelling. PEFT warns. */
static enum tr_status check_patterns(const struct checking *x, const char *option, const struct pattern *p, size_t n,
                                     const struct tr_adapter_choice *c)
{
    enum tr_status st = TR_OK;
    struct tr_str passed = { 0 };
    for (size_t i = 0; i < n; i++) {
        bool is_match = false;
        char shown[128];
        for (size_t k = 0; k < c->n && !is_match; k++)
            if (c->module[k].target.is_target)
                TR_TRY(tr_adapter_pattern_match(&p[i], c->module[k].target.module, &is_match, NULL));
        if (is_match)
            continue;
        if (may_pass(x->a, p[i].text) && (x->a->is_lenient || !is_a_module(x->l, p[i].text, false))) {
            add_name(&passed, p[i].text);
            continue;
        }
        const char *best = nearest_target(p[i].text, c);
        TR_TRY(tr_fail(TR_USAGE, "%s %s: no module that gets an adapter has this name; %s%s%s", option,
                       tr_escape(p[i].text, shown, sizeof shown), best ? "did you mean " : "",
                       best ? best : "drop it or target the module", best ? "?" : ""));
    }
    add_passed(x, option, "that gets an adapter", &passed);
out:
    tr_str_release(&passed);
    return st;
}

/* A rank above both sides of every matrix is a slip of the hand: it trains more than the matrices themselves hold. One
 * that is above those of some is as in PEFT, and so is one that was made for a larger model. */
static enum tr_status check_ranks(const struct checking *x, const struct tr_adapter_choice *c)
{
    const struct tr_adapter_module *widest = NULL;
    int64_t most = 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct tr_adapter_module *mod = &c->module[i];
        int64_t side = tr_max64(mod->n_in, mod->n_out);
        if (mod->target.is_target && mod->target.r <= side)
            return TR_OK;
        if (mod->target.is_target && side > most) {
            most = side;
            widest = mod;
        }
    }
    if (!widest)
        return TR_OK;
    if (!x->a->is_lenient)
        return tr_fail(TR_USAGE,
                       "lora_r %" PRId64 " is above both sides of every matrix that it would adapt, the widest is "
                       "%s (%" PRId64 " x %" PRId64 "); use %" PRId64 " or less",
                       widest->target.r, widest->target.module, widest->n_out, widest->n_in, most);
    if (x->passed)
        tr_str_addf(x->passed,
                    "%slora_r %" PRId64
                    " is above both sides of every matrix that it adapts, the widest is %s (%" PRId64 " x %" PRId64
                    "): it trains, as in PEFT",
                    x->passed->n ? "\n" : "", widest->target.r, widest->target.module, widest->n_out, widest->n_in);
    return TR_OK;
}

/* Elements of one module that are trained. */
static int64_t trained(const struct tr_adapter *a, const struct tr_adapter_module *mod)
{
    const struct tr_adapter_target *t = &mod->target;
    int64_t n = 0;
    if (t->is_target)
        n += t->r * (mod->n_in + mod->n_out) + (a->use_dora ? mod->n_out : 0) + (a->has_b_bias ? mod->n_out : 0);
    if (t->is_saved)
        n += mod->n_out * (mod->kind == TR_MODULE_NORM ? 1 : mod->n_in);
    if (mod->has_bias && (t->is_saved || t->trains_bias))
        n += mod->n_out;
    return n;
}

static enum tr_status choose(const struct tr_adapter *a, const struct tr_model *m, struct tr_str *passed,
                             struct tr_adapter_choice *out)
{
    enum tr_status st = TR_OK;
    struct module_list l = { 0 };
    const struct checking x = { a, &l, passed };
    struct tr_adapter_choice c = { 0 };
    TR_TRY(tr_adapter_list(m, &l));
    TR_TRY(check_others(a, m, &l));
    TR_TRY(check_names(&x, m));
    for (size_t i = 0; i < l.n; i++) {
        struct tr_adapter_module *mod = &l.module[i];
        char name[TR_NAME_MAX];
        memcpy(name, mod->target.module, sizeof name);
        bool is_head = mod->kind == TR_MODULE_HEAD, is_embedding = mod->kind == TR_MODULE_EMBEDDING;
        TR_TRY(tr_adapter_decide(a, m, name, mod->kind != TR_MODULE_NORM && !is_embedding, is_embedding, is_head,
                                 &mod->target));
        if (mod->target.is_target)
            TR_TRY(check_target(a, mod));
        c.n_targets += mod->target.is_target;
        c.n_saved += mod->target.is_saved;
        c.n_trained += trained(a, mod);
    }
    if (c.n_targets == 0)
        TR_TRY(fail_none(a, &l));
    TR_TRY(tr_adapter_choose_tokens(a, m, &l, &c.n_trained));
    c.module = l.module;
    c.n = l.n;
    if (!a->config) {
        TR_TRY(check_patterns(&x, "rank_pattern", a->regexes->rank, a->regexes->n_rank, &c));
        TR_TRY(check_patterns(&x, "alpha_pattern", a->regexes->alpha, a->regexes->n_alpha, &c));
        TR_TRY(check_ranks(&x, &c));
    }
    l.module = NULL;
    *out = c;
out:
    tr_adapter_list_release(&l);
    return st;
}

enum tr_status tr_adapter_choose(const struct tr_adapter *a, const struct tr_model *m, struct tr_adapter_choice *out)
{
    return choose(a, m, NULL, out);
}

enum tr_status tr_adapter_passed(const struct tr_adapter *a, const struct tr_model *m, struct tr_str *out)
{
    struct tr_adapter_choice c;
    TR_PASS(choose(a, m, out, &c));
    free(c.module);
    return tr_str_check(out, "names of modules");
}

bool tr_adapter_is_tied(const struct tr_model *m, const struct tr_adapter_module *mod)
{
    size_t n = strlen(mod->target.module);
    const char *table = m->param[0].name;
    return mod->kind == TR_MODULE_HEAD ||
           (strncmp(table, mod->target.module, n) == 0 && strcmp(table + n, ".weight") == 0);
}

enum tr_status tr_adapter_unties(const struct tr_adapter *a, const struct tr_model *m, bool *out)
{
    struct tr_adapter_choice c;
    *out = false;
    if (!m->hp.is_tied || !a->may_untie || a->ensures_tying || a->saved.n == 0)
        return TR_OK;
    TR_PASS(tr_adapter_choose(a, m, &c));
    for (size_t i = 0; i < c.n; i++)
        *out = *out || (c.module[i].target.is_saved && tr_adapter_is_tied(m, &c.module[i]));
    free(c.module);
    return TR_OK;
}

/* Host memory while the start of one module is made (ckpt/load_start.c, base/factor.h): W, A, B and V as floats, and
 * the vectors that are searched in double. */
static int64_t start_bytes(const struct tr_adapter_module *mod)
{
    int64_t in = mod->n_in, out = mod->n_out, r = mod->target.r, side = tr_min64(in, out);
    int64_t n_vectors = side <= TR_SVD_EXACT ? side : r + 8;
    return 4 * (in * out + r * (2 * in + out)) + 8 * 5 * n_vectors * (in + out);
}

enum tr_status tr_adapter_summary(const struct tr_adapter *a, const struct tr_model *m, struct tr_str *out)
{
    struct tr_adapter_choice c;
    int64_t least = INT64_MAX, most = 0;
    char human[32];
    TR_PASS(tr_adapter_choose(a, m, &c));
    for (size_t i = 0; i < c.n; i++) {
        const struct tr_adapter_target *t = &c.module[i].target;
        least = t->is_target ? tr_min64(least, t->r) : least;
        most = tr_max64(most, t->r);
    }
    tr_str_addf(out, "%s%s r %" PRId64, a->use_rslora ? "rank-stabilised " : "", a->use_dora ? "DoRA" : "LoRA", least);
    if (most > least)
        tr_str_addf(out, " to %" PRId64, most);
    tr_str_addf(out, " alpha %g on %zu modules", a->alpha, c.n_targets);
    if (c.n_saved)
        tr_str_addf(out, ", %zu modules whole", c.n_saved);
    for (size_t i = 0; i < c.n; i++)
        if (c.module[i].target.tokens && !c.module[i].target.shares_tokens)
            tr_str_addf(out, ", %zu token%s of %s", c.module[i].target.tokens->n,
                        c.module[i].target.tokens->n == 1 ? "" : "s", c.module[i].target.module);
    tr_str_addf(out, ": %s parameters", tr_human_count((double)c.n_trained, human, sizeof human));
    int64_t bytes = 0;
    for (size_t i = 0; tr_adapter_changes_base(a) && i < c.n; i++)
        if (c.module[i].target.is_target && c.module[i].kind != TR_MODULE_EMBEDDING)
            bytes = tr_max64(bytes, start_bytes(&c.module[i]));
    if (bytes > 0)
        tr_str_addf(out, "; its start takes %s of host memory on each rank before the first step",
                    tr_human_bytes((uint64_t)bytes, human, sizeof human));
    free(c.module);
    return TR_OK;
}
