/* adapter_keys.c - what PEFT calls a parameter. Parameters of an adapter carry PEFT's key without its constant prefix
 * as their name, so only those of the base are translated. */
#include "ckpt/adapter_keys.h"

#define TOKENS_ORIGINAL ".token_adapter.trainable_tokens_original"
#define TOKENS_PICK     ".token_adapter.token_indices"

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), n_tail = strlen(tail);
    return n > n_tail && strcmp(name + n - n_tail, tail) == 0;
}

bool tr_adapter_owns(const char *name)
{
    static const char *const tails[] = { ".lora_A.weight",
                                         ".lora_B.weight",
                                         ".lora_B.bias",
                                         ".lora_magnitude_vector",
                                         ".lora_start_A.weight",
                                         ".lora_start_B.weight",
                                         ".lora_embedding_A",
                                         ".lora_embedding_B",
                                         ".token_adapter.trainable_tokens_delta",
                                         TOKENS_ORIGINAL,
                                         TOKENS_PICK };
    for (size_t i = 0; i < TR_COUNT_OF(tails); i++)
        if (ends_with(name, tails[i]))
            return true;
    return false;
}

bool tr_adapter_is_fixed(const char *name)
{
    return ends_with(name, ".lora_start_A.weight") || ends_with(name, ".lora_start_B.weight") ||
           ends_with(name, TOKENS_ORIGINAL) || ends_with(name, TOKENS_PICK);
}

bool tr_adapter_joins_columns(const char *name)
{
    return ends_with(name, ".lora_B.weight");
}

bool tr_adapter_learns(const struct tr_model *m, int param)
{
    return m->param[param].in_adapter && !tr_adapter_is_fixed(m->param[param].name);
}

int tr_adapter_start_of(const struct tr_model *m, int param)
{
    static const struct {
        const char *tail, *start;
    } rows[] = { { ".lora_A.weight", ".lora_start_A.weight" }, { ".lora_B.weight", ".lora_start_B.weight" } };
    const struct tr_param *p = &m->param[param];
    char name[TR_NAME_MAX];
    bool has_start = p->init == TR_INIT_PISSA || p->init == TR_INIT_OLORA;
    for (size_t k = 0; has_start && k < TR_COUNT_OF(rows); k++) {
        if (!ends_with(p->name, rows[k].tail) ||
            tr_format(name, sizeof name, "%.*s%s", (int)(strlen(p->name) - strlen(rows[k].tail)), p->name,
                      rows[k].start) != TR_OK)
            continue;
        for (int i = param + 1; i < m->n_params; i++)
            if (strcmp(m->param[i].name, name) == 0)
                return i;
    }
    return -1;
}

static bool is_target(const struct tr_model *m, const char *module, int n_module)
{
    return tr_model_sibling(m, module, n_module, ".lora_A.weight") >= 0 ||
           tr_model_sibling(m, module, n_module, ".lora_embedding_A") >= 0;
}

/* PEFT has the names of the network, where the head is always lm_head; files of GPT-NeoX call it otherwise. */
enum tr_status tr_adapter_key(const struct tr_model *m, int param, char *out, size_t n)
{
    static const char head[] = "lm_head";
    bool is_head = !m->hp.is_tied && param == tr_model_head(m);
    const char *name = is_head ? "lm_head.weight" : m->param[param].name, *tail = strrchr(name, '.');
    int n_module = tail ? (int)(tail - name) : 0;
    if (tr_adapter_owns(name) || !tail)
        return tr_format(out, n, TR_ADAPTER_PREFIX "%s", name);
    if (is_target(m, name, n_module))
        return tr_format(out, n, TR_ADAPTER_PREFIX "%.*s.base_layer%s", n_module, name, tail);
    /* A tied head has no matrix of its own: the one it uses is the embedding's. */
    if (param == 0 && m->hp.is_tied && is_target(m, head, sizeof head - 1))
        return tr_format(out, n, TR_ADAPTER_PREFIX "%s.base_layer%s", head, tail);
    return tr_format(out, n, TR_ADAPTER_PREFIX "%s", name);
}

bool tr_adapter_second_key(const struct tr_model *m, int param, char *out, size_t n)
{
    return param == 0 && m->hp.is_tied && tr_model_has_adapter(m) && m->param[param].in_adapter &&
           tr_format(out, n, TR_ADAPTER_PREFIX "lm_head.weight") == TR_OK;
}

bool tr_adapter_saves(const struct tr_model *m, int param)
{
    const struct tr_param *p = &m->param[param];
    char key[TR_ADAPTER_KEY_MAX];
    if (p->in_adapter || !tr_model_has_adapter(m))
        return true;
    if (m->vocab_was > 0 && p->dim[0] == m->hp.vocab && !tr_adapter_owns(p->name)) /* no directory of a base has it */
        return true;
    /* PEFT saves no table beside single rows, nor beside a start that was converted */
    if (m->n_rows > 0 || tr_model_sibling(m, "lm_head", 7, ".lora_start_A.weight") >= 0)
        return false;
    return tr_adapter_key(m, param, key, sizeof key) == TR_OK &&
           (ends_with(key, ".embed_tokens.base_layer.weight") || ends_with(key, ".lm_head.base_layer.weight"));
}
