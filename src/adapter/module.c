/* module.c - the modules of a model as HF names them, and what PEFT knows of each family.
 *
 * PEFT matches names of all modules, also of those that hold only others (self_attn) or have no parameters (act_fn). A
 * name that hits one of these is an error there, so it must be one here: a configuration that PEFT refuses is of no
 * use.
 */
#include "adapter/adapter_impl.h"

#include <stdlib.h>
#include <string.h>

#define LLAMA_LEAVES "model.rotary_emb", "mlp.act_fn"
/* PEFT's default targets (NULL: it has none); modules without parameters, of the model and of each layer (transformers
 * 5). */
static const struct family {
    const char *model_type, *targets, *leaves, *layer_leaves;
} families[] = {
    { "llama", "q_proj v_proj", LLAMA_LEAVES },
    { "mistral", "q_proj v_proj", LLAMA_LEAVES },
    { "ministral", NULL, LLAMA_LEAVES },
    { "qwen2", "q_proj v_proj", LLAMA_LEAVES },
    { "qwen3", "q_proj v_proj", LLAMA_LEAVES },
    { "gemma", "q_proj v_proj", LLAMA_LEAVES },
    { "gemma2", "q_proj v_proj", LLAMA_LEAVES },
    { "gemma3_text", "q_proj v_proj", LLAMA_LEAVES },
    { "granite", NULL, LLAMA_LEAVES },
    { "smollm3", NULL, LLAMA_LEAVES },
    { "olmo2", NULL, LLAMA_LEAVES },
    { "olmo3", NULL, LLAMA_LEAVES },
    { "phi3", NULL, "model.rotary_emb", "mlp.activation_fn resid_attn_dropout resid_mlp_dropout" },
    { "opt", "q_proj v_proj", "", "activation_fn" },
    { "gpt2", "c_attn", "transformer.drop", "attn.attn_dropout attn.resid_dropout mlp.act mlp.dropout" },
    { "gpt_neox", "query_key_value", "gpt_neox.emb_dropout gpt_neox.rotary_emb",
      "post_attention_dropout post_mlp_dropout mlp.act" },
    { "falcon", "query_key_value", "transformer.rotary_emb", "self_attention.attention_dropout mlp.act" },
    { "stablelm", "q_proj v_proj", "model.rotary_emb", "mlp.act_fn dropout" },
    { "starcoder2", NULL, "model.rotary_emb", "mlp.act" },
    { "cohere", NULL, LLAMA_LEAVES },
    { "cohere2", NULL, LLAMA_LEAVES },
    { "glm", NULL, "model.rotary_emb", "mlp.activation_fn" },
    { "glm4", NULL, "model.rotary_emb", "mlp.activation_fn" },
};

static const struct family *family_of(const char *model_type)
{
    return TR_ROW(families, model_type);
}

const char *tr_adapter_family_targets(const char *model_type)
{
    const struct family *f = family_of(model_type);
    return f ? f->targets : NULL;
}

/* ---- the list ---- */

static bool has_other(const struct module_list *l, const char *name, size_t n)
{
    for (size_t i = l->n_other; i-- > 0;)
        if (strlen(l->other[i]) == n && memcmp(l->other[i], name, n) == 0)
            return true;
    return false;
}

static enum tr_status add_other(struct module_list *l, const char *name, size_t n)
{
    TR_BUG_ON(n >= TR_NAME_MAX);
    if (has_other(l, name, n))
        return TR_OK;
    if ((l->n_other & (l->n_other - 1)) == 0) { /* full: the capacity is 1 or a power of two */
        void *mem = realloc(l->other, (l->n_other ? 2 * l->n_other : 1) * sizeof *l->other);
        if (!mem)
            return tr_fail(TR_NOMEM, "no memory for the names of modules");
        l->other = mem;
    }
    memcpy(l->other[l->n_other], name, n);
    l->other[l->n_other++][n] = 0;
    return TR_OK;
}

/* "model.layers.0.self_attn.q_proj" is held by model, model.layers, ... Those that hold `before` too are there. */
static enum tr_status add_holders(struct module_list *l, const char *name, const char *before)
{
    size_t n_same = 0;
    while (name[n_same] && name[n_same] == before[n_same])
        n_same++;
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
        if ((size_t)(dot - name) >= n_same)
            TR_PASS(add_other(l, name, (size_t)(dot - name)));
    return TR_OK;
}

static enum tr_status add_leaves(struct module_list *l, const char *prefix, const char *names)
{
    while (*(names += strspn(names, " "))) {
        char name[TR_NAME_MAX];
        int n = (int)strcspn(names, " ");
        TR_PASS(tr_format(name, sizeof name, "%s%.*s", prefix, n, names));
        TR_PASS(add_other(l, name, strlen(name)));
        names += n;
    }
    return TR_OK;
}

static struct tr_adapter_module *find_module(const struct module_list *l, size_t first, const char *name, size_t n)
{
    for (size_t i = first; i < l->n; i++)
        if (strlen(l->module[i].target.module) == n && memcmp(l->module[i].target.module, name, n) == 0)
            return &l->module[i];
    return NULL;
}

bool tr_adapter_is_head(const struct tr_model *m, int segment, int param)
{
    return segment == m->n_segments - 1 && m->segment[segment].param[param] == tr_model_head(m);
}

/* Does the segment look rows up in this parameter? */
static bool is_table(const struct tr_program *p, int param)
{
    for (int i = 0; i < p->n_nodes; i++) {
        const struct tr_value *v = p->node[i].op == TR_OP_EMBED ? &p->value[p->node[i].in[1]] : NULL;
        if (v && v->kind == TR_V_PARAM && v->slot == param)
            return true;
    }
    return false;
}

static void set_shape(struct tr_adapter_module *mod, const struct tr_local_param *p, bool is_table, bool is_head)
{
    mod->n_in = p->n_dims == 2 ? p->rows : 0;
    mod->n_out = p->cols;
    mod->kind = p->n_dims != 2 ? TR_MODULE_NORM : is_head ? TR_MODULE_HEAD : TR_MODULE_EMBEDDING;
    if (p->n_dims == 2 && !is_table && !is_head)
        mod->kind = p->out_dim ? TR_MODULE_CONV1D : TR_MODULE_LINEAR;
    if (mod->kind == TR_MODULE_LINEAR || mod->kind == TR_MODULE_HEAD) {
        mod->n_in = p->cols;
        mod->n_out = p->rows;
    }
}

/* A parameter that an adapter added to the model; it belongs to no module of HF's. */
static bool is_added(const char *name)
{
    return strstr(name, ".lora_") || strstr(name, ".token_adapter") || strstr(name, ".base_layer");
}

/* The modules of one segment. A head that reads the embedding's table is the module lm_head nevertheless. */
static enum tr_status add_segment(const struct tr_model *m, int segment, struct module_list *l)
{
    const struct tr_segment *g = &m->segment[segment];
    const struct tr_program *p = m->program[g->program];
    size_t first = l->n;
    for (int i = 0; i < p->n_params; i++) {
        bool is_head = tr_adapter_is_head(m, segment, i);
        char name[TR_NAME_MAX];
        memcpy(name, m->param[g->param[i]].name, sizeof name);
        char *dot = strrchr(name, '.');
        if (is_added(name) || !dot)
            continue;
        *dot = 0;
        if (is_head)
            TR_PASS(tr_format(name, sizeof name, "lm_head"));
        struct tr_adapter_module *mod = find_module(l, first, name, strlen(name));
        if (!mod) {
            mod = &l->module[l->n++];
            memcpy(mod->target.module, name, sizeof name);
            set_shape(mod, &p->param[i], is_table(p, i), is_head);
            TR_PASS(add_holders(l, name, l->n > 1 ? mod[-1].target.module : ""));
        }
        mod->has_bias = mod->has_bias || strcmp(dot + 1, "bias") == 0;
    }
    return TR_OK;
}

static enum tr_status add_family(const struct tr_model *m, struct module_list *l)
{
    const struct family *f = family_of(tr_arch_text(m->arch)->model_type);
    const char *format = m->arch->layer_prefix, *at = strstr(format, "%d"); /* a constant with one %d */
    if (!f)
        return TR_OK;
    TR_PASS(add_leaves(l, "", f->leaves));
    for (int64_t i = 0; i < m->hp.layers; i++) {
        char prefix[TR_NAME_MAX];
        TR_PASS(tr_format(prefix, sizeof prefix, "%.*s%" PRId64 "%s", (int)(at - format), format, i, at + 2));
        TR_PASS(add_leaves(l, prefix, f->layer_leaves));
    }
    return TR_OK;
}

enum tr_status tr_adapter_list(const struct tr_model *m, struct module_list *out)
{
    enum tr_status st = TR_OK;
    struct module_list l = { 0 };
    size_t n = 1;
    for (int s = 0; s < m->n_segments; s++)
        n += (size_t)m->program[m->segment[s].program]->n_params;
    l.module = calloc(n, sizeof *l.module);
    if (!l.module)
        return tr_fail(TR_NOMEM, "no memory for %zu modules", n);
    for (int s = 0; s < m->n_segments; s++)
        TR_TRY(add_segment(m, s, &l));
    TR_TRY(add_family(m, &l));
out:
    if (st == TR_OK)
        *out = l;
    else
        tr_adapter_list_release(&l);
    return st;
}

void tr_adapter_list_release(struct module_list *l)
{
    free(l->module);
    free(l->other);
    *l = (struct module_list){ 0 };
}
