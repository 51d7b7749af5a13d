/* models.c - the table of architectures; it turns a config.json into segments, programs and named parameters. */
#include "model/model_impl.h"
#include <math.h>
#include <stdlib.h>

static const struct tr_arch *const archs[] = {
    &tr_arch_gpt2,       &tr_arch_opt,     &tr_arch_llama,    &tr_arch_mistral,       &tr_arch_ministral,
    &tr_arch_qwen2,      &tr_arch_qwen3,   &tr_arch_gemma,    &tr_arch_gemma2,        &tr_arch_gemma3,
    &tr_arch_granite,    &tr_arch_smollm3, &tr_arch_phi3,     &tr_arch_olmo2,         &tr_arch_olmo3,
    &tr_arch_gpt_neox,   &tr_arch_falcon,  &tr_arch_stablelm, &tr_arch_starcoder2,    &tr_arch_cohere,
    &tr_arch_cohere2,    &tr_arch_glm,     &tr_arch_glm4,     &tr_arch_gemma3_vision, &tr_arch_mistral3,
    &tr_arch_qwen2_5_vl,
};

const struct tr_arch *tr_arch_find(const char *model_type)
{
    for (size_t i = 0; i < TR_COUNT_OF(archs); i++)
        if (strcmp(archs[i]->model_type, model_type) == 0)
            return archs[i];
    return NULL;
}

void tr_arch_list(struct tr_str *out)
{
    for (size_t i = 0; i < TR_COUNT_OF(archs); i++)
        tr_str_addf(out, "%s%s", i ? " " : "", archs[i]->model_type);
}

bool tr_module_ends_with(const char *name, const char *part)
{
    size_t n = strlen(name), n_part = strlen(part);
    return n_part <= n && strcmp(name + n - n_part, part) == 0 && (n == n_part || name[n - n_part - 1] == '.');
}

/* Their split rules name all matrices. */
bool tr_arch_has_module(const char *name)
{
    for (size_t i = 0; i < TR_COUNT_OF(archs); i++)
        for (size_t k = 0; k < archs[i]->n_rules; k++) {
            const char *rule = archs[i]->rules[k].name, *base = archs[i]->base_prefix;
            const char *own = strncmp(rule, base, strlen(base)) == 0 ? rule + strlen(base) : rule;
            if (tr_module_ends_with(rule, name) || tr_module_ends_with(name, own))
                return true;
        }
    return false;
}

/* "self_attn.q_proj.weight" -> rule "self_attn.q_proj"; a bias is split when its weight is split along its outputs,
 * else stays whole. */
static struct tr_split split_of(const struct tr_model *m, const struct tr_local_param *l)
{
    const char *dot = strrchr(l->name, '.');
    size_t n = dot ? (size_t)(dot - l->name) : strlen(l->name);
    const int64_t n_q = m->hp.n_heads_q, n_kv = m->hp.n_heads_kv;
    const int64_t heads[] = { [TR_BY_HEAD] = n_q, [TR_BY_HEAD_KV] = n_kv, [TR_BY_QKV] = n_kv, [TR_BY_NORM] = 1 };
    const struct tr_arch *text = tr_arch_text(m->arch);
    for (size_t i = 0; i < text->n_rules; i++) {
        const struct tr_param_rule *r = &text->rules[i];
        if (strlen(r->name) != n || memcmp(r->name, l->name, n) != 0)
            continue;
        int dim = l->n_dims == 2 ? r->split_dim : r->split_dim == l->out_dim ? 0 : TR_WHOLE;
        return (struct tr_split){ dim, r->n_parts, heads[r->unit], r->unit == TR_BY_QKV ? n_q / n_kv : 1 };
    }
    return (struct tr_split){ TR_WHOLE, 1, 0, 1 };
}

static enum tr_status build_segment(struct tr_model *m, const struct tr_model_options *opt, const char *name, int kind,
                                    struct tr_program **out)
{
    struct tr_build b = { .hp = &m->hp,
                          .n_tokens = m->n_tokens,
                          .sequence_length = m->sequence_length,
                          .n_positions = m->n_positions,
                          .kind = kind,
                          .wants_logits = opt->wants_logits,
                          .wants_last = opt->wants_last,
                          .gives_sums = opt->gives_sums,
                          .pair = opt->pair,
                          .noise = opt->noise,
                          .is_dft = opt->is_dft,
                          .is_weighed = opt->is_weighed,
                          .label_smoothing = opt->label_smoothing,
                          .z_loss = opt->z_loss };
    TR_PASS(tr_program_open(name, &b.p));
    const struct tr_arch *text = tr_arch_text(m->arch);
    bool is_embed = strcmp(name, "embed") == 0, is_head = strcmp(name, "head") == 0;
    if (!is_embed)
        b.p->in = tr_value_add(b.p, TR_V_IN, TR_F32, m->n_tokens, m->hp.hidden, "in");
    if (is_embed)
        b.p->out = text->embed(&b);
    else if (is_head)
        text->head(&b, b.p->in);
    else
        b.p->out = text->block(&b, b.p->in);
    for (int i = 0; i < b.p->n_params; i++)
        b.p->param[i].split = split_of(m, &b.p->param[i]);
    tr_program_check(b.p, "the model file");
    enum tr_status st = b.p->failed;
    if (st == TR_OK)
        *out = b.p;
    else
        tr_program_close(b.p);
    return st;
}

int tr_model_param(const struct tr_model *m, const char *name)
{
    for (int i = 0; i < m->n_params; i++)
        if (strcmp(m->param[i].name, name) == 0)
            return i;
    return -1;
}

int tr_model_sibling(const struct tr_model *m, const char *module, int n_module, const char *tail)
{
    char name[TR_NAME_MAX];
    return tr_format(name, sizeof name, "%.*s%s", n_module, module, tail) == TR_OK ? tr_model_param(m, name) : -1;
}

static enum tr_status global_param(struct tr_model *m, const struct tr_local_param *l, int layer, int *out)
{
    struct tr_param q = { .n_dims = l->n_dims,
                          .rows = l->rows,
                          .cols = l->cols,
                          .n = l->rows * l->cols,
                          .init = l->init,
                          .init_std = l->init_std,
                          .split = l->split,
                          .has_decay = l->n_dims > 1,
                          .in_adapter = l->in_adapter };
    char prefix[64] = "";
    if (!l->is_global) { /* layer_prefix is a constant of the architecture with one %d */
        const char *f = m->arch->layer_prefix, *at = strstr(f, "%d");
        (void)tr_format(prefix, sizeof prefix, "%.*s%d%s", (int)(at - f), f, layer, at + 2);
    }
    const char *name = l->name, *base = tr_arch_text(m->arch)->base_prefix;
    if (l->is_global && m->arch->wrapper && strncmp(name, base, strlen(base)) == 0) {
        (void)tr_format(prefix, sizeof prefix, "%s", m->arch->base_prefix);
        name += strlen(base);
    }
    TR_PASS(tr_format(q.name, sizeof q.name, "%s%s", prefix, name));
    q.dim[0] = l->n_dims == 2 ? l->rows : l->cols;
    q.dim[1] = l->n_dims == 2 ? l->cols : 0;
    /* This finds tied weights. Only embed and head have global parameters, so only a few names are compared. */
    *out = l->is_global ? tr_model_param(m, q.name) : -1;
    if (*out >= 0)
        return TR_OK;
    m->param[m->n_params] = q;
    m->n_elements += q.n;
    *out = m->n_params++;
    return TR_OK;
}

static enum tr_status build_segments(struct tr_model *m, const struct tr_model_options *opt)
{
    static const char *const names[TR_LAYER_KINDS] = { "block", "block-sliding", "block-nope", "block-sliding-nope" };
    int n_params = 0, program_of[TR_LAYER_KINDS] = { 0 }; /* 0: no layer is of this kind */
    for (int64_t i = 0; i < m->hp.layers; i++)
        program_of[m->hp.kind_of[i]] = 1;
    TR_PASS(TR_ALLOC(m->program, TR_LAYER_KINDS + 2, "a model"));
    TR_PASS(TR_ALLOC(m->segment, (size_t)m->hp.layers + 2, "a model"));
    TR_PASS(build_segment(m, opt, "embed", -1, &m->program[m->n_programs]));
    m->n_programs++;
    for (int k = 0; k < TR_LAYER_KINDS; k++)
        if (program_of[k]) {
            TR_PASS(build_segment(m, opt, names[k], k, &m->program[m->n_programs]));
            program_of[k] = m->n_programs++;
        }
    TR_PASS(build_segment(m, opt, "head", -1, &m->program[m->n_programs]));
    m->n_programs++;

    m->n_segments = (int)m->hp.layers + 2;
    for (int s = 0; s < m->n_segments; s++) {
        struct tr_segment *g = &m->segment[s];
        bool is_block = s > 0 && s < m->n_segments - 1;
        g->layer = is_block ? s - 1 : -1;
        g->program = s == 0 ? 0 : is_block ? program_of[m->hp.kind_of[g->layer]] : m->n_programs - 1;
        n_params += m->program[g->program]->n_params;
    }
    TR_PASS(TR_ALLOC(m->param, (size_t)n_params, "a model"));
    for (int s = 0; s < m->n_segments; s++) {
        struct tr_segment *g = &m->segment[s];
        const struct tr_program *p = m->program[g->program];
        TR_PASS(TR_ALLOC(g->param, (size_t)p->n_params + 1, "a model"));
        for (int i = 0; i < p->n_params; i++)
            TR_PASS(global_param(m, &p->param[i], g->layer, &g->param[i]));
    }
    return TR_OK;
}

enum tr_status tr_model_add_program(struct tr_model *m, struct tr_program *p, int *out)
{
    struct tr_program **mem = realloc(m->program, ((size_t)m->n_programs + 1) * sizeof(struct tr_program *));
    if (!mem)
        return tr_fail(TR_NOMEM, "model: out of memory");
    m->program = mem;
    m->program[m->n_programs] = p;
    *out = m->n_programs++;
    return TR_OK;
}

enum tr_status tr_model_use_program(struct tr_model *m, int segment, int program)
{
    struct tr_segment *g = &m->segment[segment];
    const struct tr_program *p = m->program[program];
    int n_before = m->program[g->program]->n_params, n_more = p->n_params - n_before;
    TR_BUG_ON(n_more < 0);
    int *local = realloc(g->param, ((size_t)p->n_params + 1) * sizeof *local);
    if (local)
        g->param = local;
    struct tr_param *all = realloc(m->param, (size_t)(m->n_params + n_more + 1) * sizeof *all);
    if (all)
        m->param = all;
    if (!local || !all)
        return tr_fail(TR_NOMEM, "model: out of memory");
    for (int i = n_before; i < p->n_params; i++)
        TR_PASS(global_param(m, &p->param[i], g->layer, &g->param[i]));
    g->program = program;
    return TR_OK;
}

enum tr_status tr_model_add_rows(struct tr_model *m, const char *module, int table, const int64_t *id, size_t n)
{
    struct tr_model_rows r = { .table = table, .id = calloc(n, sizeof *id), .n = (int64_t)n };
    struct tr_model_rows *mem = realloc(m->rows, ((size_t)m->n_rows + 1) * sizeof *mem);
    enum tr_status st =
        mem && r.id ? tr_format(r.module, sizeof r.module, "%s", module) : tr_fail(TR_NOMEM, "model: out of memory");
    m->rows = mem ? mem : m->rows;
    if (st != TR_OK) {
        free(r.id);
        return st;
    }
    memcpy(r.id, id, n * sizeof *id);
    m->rows[m->n_rows++] = r;
    return TR_OK;
}

const struct tr_model_rows *tr_model_rows_of(const struct tr_model *m, int param)
{
    const char *name = m->param[param].name;
    for (int i = 0; i < m->n_rows; i++) {
        size_t n = strlen(m->rows[i].module);
        if (strncmp(name, m->rows[i].module, n) == 0 && strncmp(name + n, ".token_adapter.", 15) == 0)
            return &m->rows[i];
    }
    return NULL;
}

static void size_constants(struct tr_model *m)
{
    for (int i = 0; i < TR_C_COUNT; i++)
        if (m->hp.rope[i].type != TR_ROPE_NONE) {
            m->const_rows[i] = m->n_positions;
            m->const_cols[i] = m->hp.rope[i].dim;
        }
}

void tr_model_fill_constant(const struct tr_model *m, int slot, float *out)
{
    TR_BUG_ON(m->const_rows[slot] == 0);
    tr_rope_fill(&m->hp.rope[slot], m->hp.max_positions, m->n_context, m->n_positions, out);
}

/* Numbers that a model cannot compute with, whatever the architecture. */
static enum tr_status check_numbers(const struct tr_hparams *hp)
{
    const struct {
        const char *name;
        double value, low, high; /* low <= value < high */
    } rows[] = {
        { "dropout of embeddings", hp->dropout_embed, 0, 1 },
        { "dropout of attention", hp->dropout_attn, 0, 1 },
        { "dropout of residuals", hp->dropout_resid, 0, 1 },
        { "the norm's epsilon", hp->norm_eps, 0, 1 },
        { "initializer_range", hp->init_std, 0, 1e6 },
        { "the factor on embeddings", hp->embed_scale, -1e6, 1e6 },
        { "the factor on residuals", hp->residual_scale, -1e6, 1e6 },
        { "the factor on logits", hp->logit_scale, -1e6, 1e6 },
        { "attn_logit_softcapping", hp->attn_softcap, 0, 1e6 },
        { "final_logit_softcapping", hp->final_softcap, 0, 1e6 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (!(rows[i].value >= rows[i].low && rows[i].value < rows[i].high))
            return tr_fail(TR_USAGE, "config.json: %s is %g, outside [%g, %g)", rows[i].name, rows[i].value,
                           rows[i].low, rows[i].high);
    for (int i = 0; i < TR_C_COUNT; i++) {
        const struct tr_rope *r = &hp->rope[i];
        if (r->type != TR_ROPE_NONE && !(r->theta > 0))
            return tr_fail(TR_USAGE, "config.json: rope_theta %g must be positive; 10000 is usual", r->theta);
        if (r->type == TR_ROPE_LLAMA3 && !(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor))
            return tr_fail(TR_USAGE,
                           "config.json: high_freq_factor %g must be above low_freq_factor %g, and both above 0",
                           r->high_freq_factor, r->low_freq_factor);
        TR_PASS(r->type == TR_ROPE_LONGROPE ? tr_rope_check_factors(r) : TR_OK);
    }
    return TR_OK;
}

/* A model of text and images that vision.c does not have: its text model may be taken out. */
static enum tr_status refuse_vision(const char *type, const cJSON *text)
{
    const char *inner = NULL;
    char a[80], b[80];
    if (cJSON_IsObject(text))
        (void)tr_json_str(text, "model_type", false, &inner);
    return tr_fail(
        TR_USAGE,
        "config.json: model_type \"%s\" is a model of text and images, of which only a text model%s%s can be "
        "trained here; docs/guide/vision.md has the lines of Python that take it out and put it back",
        tr_escape(type, a, sizeof a), inner ? " of type " : "", inner ? tr_escape(inner, b, sizeof b) : "");
}

/* The tables of the vocabulary get rows for tokens that the weights do not know (ckpt/load_grown.c). */
static enum tr_status grow_vocab(struct tr_model *m, int64_t least)
{
    if (m->hp.vocab >= least)
        return TR_OK;
    m->vocab_was = m->hp.vocab;
    m->hp.vocab = least;
    cJSON *size = cJSON_GetObjectItemCaseSensitive(m->config, "vocab_size");
    if (!cJSON_IsNumber(size))
        return tr_fail(TR_USAGE, "resize_vocab: config.json has no vocab_size to be changed; write it there");
    cJSON_SetNumberValue(size, (double)least);
    return TR_OK;
}

static enum tr_status untie(struct tr_model *m)
{
    cJSON *both[] = { m->config, m->text };
    m->was_tied = m->hp.is_tied;
    m->hp.is_tied = false;
    for (size_t i = 0; m->was_tied && i < TR_COUNT_OF(both) && both[i]; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(both[i], "tie_word_embeddings");
        if (!cJSON_AddFalseToObject(both[i], "tie_word_embeddings"))
            return tr_fail(TR_NOMEM, "model: out of memory");
    }
    return TR_OK;
}

static enum tr_status configure(struct tr_model *m, const struct tr_model_options *opt)
{
    const char *type = NULL;
    char esc[80];
    TR_PASS(tr_json_str(m->config, "model_type", true, &type));
    m->arch = tr_arch_find(type);
    if (!m->arch) {
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(m->config, "text_config");
        if (cJSON_IsObject(text) || cJSON_GetObjectItemCaseSensitive(m->config, "vision_config"))
            return refuse_vision(type, text);
        struct tr_str known = { 0 };
        tr_arch_list(&known);
        enum tr_status st = tr_fail(TR_USAGE, "config.json: model_type \"%s\" is not implemented; known: %s",
                                    tr_escape(type, esc, sizeof esc), known.p ? known.p : "");
        tr_str_release(&known);
        return st;
    }
    const struct tr_arch *text = tr_arch_text(m->arch);
    if (m->arch->wrapper)
        TR_PASS(tr_vision_text(m->arch, m->config, &m->text));
    const cJSON *c = m->text ? m->text : m->config;
    TR_PASS(tr_hp_check_keys(c, text, opt->ignore_keys));
    m->hp.init_std = 0.02;
    m->hp.embed_scale = m->hp.residual_scale = m->hp.logit_scale = 1;
    TR_PASS(tr_json_real(c, "initializer_range", false, &m->hp.init_std));
    TR_PASS(tr_json_real(c, "init_std", false, &m->hp.init_std));
    TR_PASS(text->configure(c, &m->hp));
    TR_PASS(grow_vocab(m, opt->least_vocab));
    TR_PASS(opt->unties ? untie(m) : TR_OK);
    if (opt->dropout >= 0)
        m->hp.dropout_embed = m->hp.dropout_attn = m->hp.dropout_resid = opt->dropout;
    TR_PASS(check_numbers(&m->hp));
    bool has_table = m->hp.rope[TR_C_ROPE].type != TR_ROPE_NONE;
    if (!has_table && m->sequence_length > m->hp.max_positions)
        return tr_fail(TR_USAGE, "sequence_length %" PRId64 " is above the model's %" PRId64 " learned positions",
                       m->sequence_length, m->hp.max_positions);
    return TR_OK;
}

enum tr_status tr_model_from_json(cJSON *config, const struct tr_model_options *opt, struct tr_model **out)
{
    enum tr_status st = TR_OK;
    TR_BUG_ON(opt->rows < 1 || opt->sequence_length < 1);
    struct tr_model *m = calloc(1, sizeof *m);
    if (!m)
        return tr_fail(TR_NOMEM, "model: out of memory");
    m->config = config;
    m->sequence_length = opt->sequence_length;
    m->n_tokens = opt->rows * opt->sequence_length;
    m->pair = opt->pair;
    m->n_losses = tr_pair_is_on(&opt->pair) ? TR_METRICS : 1;
    m->n_positions = opt->n_positions ? opt->n_positions : opt->sequence_length;
    m->n_context = opt->n_context ? opt->n_context : m->n_positions;
    TR_TRY(configure(m, opt));
    TR_TRY(build_segments(m, opt));
    size_constants(m);
out:
    if (st == TR_OK) {
        *out = m;
    } else {
        m->config = NULL;
        tr_model_close(m);
    }
    return st;
}

/* Could this be a model of the hub, NAME or PUBLISHER/NAME? A slip in the name of a directory is none. */
static bool is_hub_name(const char *path)
{
    char first[TR_PATH_MAX];
    const char *slash = strchr(path, '/');
    bool is_plain = *path != '.' && *path != '/' && (!slash || (slash[1] && !strchr(slash + 1, '/')));
    return is_plain && (!slash || tr_format(first, sizeof first, "%.*s", (int)(slash - path), path) != TR_OK ||
                        !tr_dir_exists(first));
}

enum tr_status tr_model_missing(const char *path, const char *nearest)
{
    char esc[512];
    tr_escape(path, esc, sizeof esc);
    return is_hub_name(path) ? tr_fail(TR_USAGE,
                                       "model %s: no such directory%s; a model of the hub is fetched by: hf download "
                                       "%s --local-dir DIR",
                                       esc, nearest, esc)
                             : tr_fail(TR_USAGE, "model %s: no such directory%s", esc, nearest);
}

enum tr_status tr_model_open(const char *path, const struct tr_model_options *opt, struct tr_model **out)
{
    char file[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    cJSON *config = NULL;
    enum tr_status st = TR_OK;
    if (tr_dir_exists(path))
        TR_TRY(tr_path_join(file, path, "config.json"));
    else
        TR_TRY(tr_format(file, sizeof file, "%s", path));
    bool is_path = tr_file_exists(file) || tr_dir_exists(path);
    if (!is_path && !opt->takes_names)
        TR_TRY(tr_model_missing(path, ""));
    if (is_path)
        TR_TRY(tr_file_read(file, 1 << 20, &text, &n));
    else
        TR_TRY(tr_known_config(path, &text));
    n = is_path ? n : strlen(text);
    TR_TRY(tr_json_parse(text, n, file, &config));
    if (!cJSON_IsObject(config))
        TR_TRY(tr_fail(TR_USAGE, "%s: not a JSON object", file));
    st = tr_model_from_json(config, opt, out);
    if (st == TR_OK) {
        config = NULL;
        (*out)->config_text = text;
        text = NULL;
    } else {
        (void)tr_fail_at(st, "%s: ", path);
    }
out:
    cJSON_Delete(config);
    free(text);
    return st;
}

void tr_model_close(struct tr_model *m)
{
    if (!m)
        return;
    for (int i = 0; m->program && i < m->n_programs; i++)
        tr_program_close(m->program[i]);
    for (int i = 0; m->segment && i < m->n_segments; i++)
        free(m->segment[i].param);
    free(m->program);
    free(m->segment);
    free(m->param);
    for (int i = 0; i < m->n_rows; i++)
        free(m->rows[i].id);
    free(m->rows);
    cJSON_Delete(m->config);
    cJSON_Delete(m->text);
    free(m->config_text);
    free(m);
}

double tr_model_flops_per_token(const struct tr_model *m)
{
    double sum = 0;
    for (int s = 0; s < m->n_segments; s++)
        sum += tr_program_flops(m->program[m->segment[s].program], TR_FORWARD);
    return 3 * sum / (double)m->n_tokens; /* the backward of a product is two products of the same size */
}
