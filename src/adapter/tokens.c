/* tokens.c - trainable_token_indices: rows of an embedding, or of the head, that are trained by themselves.
 *
 * PEFT's rules. A list is of the input embedding; an object names tables by the ends of their names. Where embedding
 * and head are one matrix, rows of the embedding are rows of the head too, unless the head has a list of its own that
 * differs.
 */
#include "adapter/adapter_impl.h"

#include <stdlib.h>
#include <string.h>

enum { TABLES_MAX = 8 };
static const char key[] = "trainable_token_indices";

void tr_adapter_free_tokens(struct tr_adapter *a)
{
    for (size_t i = 0; i < a->n_tokens; i++) {
        free(a->tokens[i].module);
        free(a->tokens[i].id);
    }
    free(a->tokens);
}

/* null, a list of ids, or {"embed_tokens": [ids], ...} */
enum tr_status tr_adapter_read_tokens(const cJSON *config, struct tr_adapter *a)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, key);
    bool is_object = cJSON_IsObject(v);
    enum tr_status st = TR_OK;
    if (!v || cJSON_IsNull(v) || (is_object && !v->child))
        return TR_OK;
    TR_PASS(TR_ALLOC(a->tokens, TABLES_MAX, "\"%s\"", key));
    for (v = is_object ? v->child : v; v && st == TR_OK; v = is_object ? v->next : NULL) {
        char shown[96];
        if (a->n_tokens == TABLES_MAX)
            return tr_fail(TR_USAGE, "\"%s\" names more than %d modules", key, TABLES_MAX);
        struct tr_adapter_tokens *t = &a->tokens[a->n_tokens++];
        if (is_object && (!v->string[0] || !(t->module = strdup(v->string))))
            return v->string[0] ? tr_fail(TR_NOMEM, "no memory for \"%s\"", key)
                                : tr_fail(TR_USAGE, "\"%s\" has a module without a name", key);
        st = tr_adapter_read_ints(v, key, &t->id, &t->n);
        if (st == TR_OK && t->n == 0)
            st = tr_fail(TR_USAGE, "\"%s\"%s%s is an empty list; name token ids, or write null", key,
                         is_object ? " of " : "", is_object ? tr_escape(v->string, shown, sizeof shown) : "");
    }
    return st;
}

/* The list of a table, which is made when it is named first. */
static enum tr_status list_of(struct tr_adapter *a, const char *name, size_t n_name, size_t n_most,
                              struct tr_adapter_tokens **out)
{
    for (size_t i = 0; i < a->n_tokens; i++) {
        const char *module = a->tokens[i].module;
        if (n_name == 0 ? !module : module && strlen(module) == n_name && memcmp(module, name, n_name) == 0) {
            *out = &a->tokens[i];
            return TR_OK;
        }
    }
    if (a->n_tokens == TABLES_MAX)
        return tr_fail(TR_USAGE, "%s names more than %d modules", key, TABLES_MAX);
    struct tr_adapter_tokens *t = &a->tokens[a->n_tokens];
    TR_PASS(TR_ALLOC(t->id, n_most, "%s", key));
    a->n_tokens++;
    if (n_name && !(t->module = strndup(name, n_name)))
        return tr_fail(TR_NOMEM, "no memory for %s", key);
    *out = t;
    return TR_OK;
}

enum tr_status tr_adapter_take_tokens(const struct tr_words *w, struct tr_adapter *a)
{
    if (w->n == 0)
        return TR_OK;
    TR_PASS(TR_ALLOC(a->tokens, TABLES_MAX, "%s", key));
    for (size_t i = 0; i < w->n; i++) {
        struct tr_adapter_tokens *t = NULL;
        const char *item = w->item[i], *eq = strrchr(item, '=');
        char shown[96];
        int64_t id;
        if ((eq == NULL) != (strrchr(w->item[0], '=') == NULL) || eq == item)
            return tr_fail(TR_USAGE, "%s: \"%s\": give either ids, or NAME=ID for each of them", key,
                           tr_escape(item, shown, sizeof shown));
        if (tr_parse_int(eq ? eq + 1 : item, 0, INT32_MAX, &id) != TR_OK)
            return tr_fail_at(TR_USAGE, "%s: ", key);
        TR_PASS(list_of(a, item, eq ? (size_t)(eq - item) : 0, w->n, &t));
        t->id[t->n++] = id;
    }
    return TR_OK;
}

static cJSON *ids_json(const struct tr_adapter_tokens *t)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; list && i < t->n; i++)
        if (!cJSON_AddItemToArray(list, cJSON_CreateNumber((double)t->id[i]))) {
            cJSON_Delete(list);
            list = NULL;
        }
    return list;
}

cJSON *tr_adapter_tokens_json(const struct tr_adapter *a)
{
    if (a->n_tokens == 0)
        return cJSON_CreateNull();
    if (!a->tokens[0].module)
        return ids_json(&a->tokens[0]);
    cJSON *obj = cJSON_CreateObject();
    for (size_t i = 0; obj && i < a->n_tokens; i++) {
        cJSON *list = ids_json(&a->tokens[i]);
        if (!list || !cJSON_AddItemToObject(obj, a->tokens[i].module, list)) {
            cJSON_Delete(list);
            cJSON_Delete(obj);
            obj = NULL;
        }
    }
    return obj;
}

/* ---- which modules ---- */

static struct tr_adapter_module *first_of(struct module_list *l, enum tr_module_kind kind)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->module[i].kind == kind)
            return &l->module[i];
    return NULL;
}

/* PEFT asks for no dot in front of the end of a name here. */
static bool has_end(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

static int by_id(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static enum tr_status check_ids(const struct tr_adapter_tokens *t, const char *module, int64_t n_rows)
{
    enum tr_status st = TR_OK;
    int64_t *sorted = malloc(t->n * sizeof *sorted);
    if (!sorted)
        return tr_fail(TR_NOMEM, "no memory for \"%s\"", key);
    memcpy(sorted, t->id, t->n * sizeof *sorted);
    qsort(sorted, t->n, sizeof *sorted, by_id);
    if (sorted[t->n - 1] >= n_rows)
        TR_TRY(tr_fail(TR_USAGE, "%s: token %" PRId64 " is outside the vocabulary of %" PRId64 " (%s)", key,
                       sorted[t->n - 1], n_rows, module));
    for (size_t i = 1; i < t->n; i++)
        if (sorted[i] == sorted[i - 1])
            TR_TRY(tr_fail(TR_USAGE, "%s: token %" PRId64 " is there twice", key, sorted[i]));
out:
    free(sorted);
    return st;
}

static enum tr_status give(struct tr_adapter_module *mod, const struct tr_adapter_tokens *t)
{
    if (mod->kind != TR_MODULE_EMBEDDING && mod->kind != TR_MODULE_HEAD)
        return tr_fail(TR_USAGE, "%s: %s is neither an embedding nor the head; name one of these", key,
                       mod->target.module);
    if (mod->target.tokens)
        return tr_fail(TR_USAGE, "%s: two lists are for %s; join them", key, mod->target.module);
    mod->target.tokens = t;
    return check_ids(t, mod->target.module, mod->kind == TR_MODULE_HEAD ? mod->n_out : mod->n_in);
}

static enum tr_status give_by_name(struct module_list *l, const struct tr_adapter_tokens *t)
{
    size_t n = 0;
    char shown[96];
    for (size_t i = 0; i < l->n; i++)
        if (has_end(l->module[i].target.module, t->module)) {
            TR_PASS(give(&l->module[i], t));
            n++;
        }
    if (n == 0)
        return tr_fail(TR_USAGE, "%s: %s is no embedding of this model, nor its head; it has %s and lm_head", key,
                       tr_escape(t->module, shown, sizeof shown), first_of(l, TR_MODULE_EMBEDDING)->target.module);
    return TR_OK;
}

static bool are_same(const struct tr_adapter_tokens *a, const struct tr_adapter_tokens *b)
{
    return a->n == b->n && memcmp(a->id, b->id, a->n * sizeof *a->id) == 0;
}

/* Embedding and head are one matrix. */
static enum tr_status tie(const struct tr_adapter *a, struct tr_adapter_target *table, struct tr_adapter_target *head)
{
    if (!table->tokens)
        return TR_OK;
    if (!head->tokens || are_same(table->tokens, head->tokens)) {
        head->tokens = table->tokens;
        head->shares_tokens = true;
    } else if (a->ensures_tying) {
        return tr_fail(TR_USAGE,
                       "%s: %s and %s have other tokens each, which ensure_weight_tying does not allow; give both the "
                       "same list, or drop ensure_weight_tying",
                       key, table->module, head->module);
    }
    return TR_OK;
}

enum tr_status tr_adapter_choose_tokens(const struct tr_adapter *a, const struct tr_model *m, struct module_list *l,
                                        int64_t *n_trained)
{
    struct tr_adapter_module *table = first_of(l, TR_MODULE_EMBEDDING), *head = first_of(l, TR_MODULE_HEAD);
    TR_BUG_ON(!table || !head);
    for (size_t i = 0; i < a->n_tokens; i++)
        TR_PASS(a->tokens[i].module ? give_by_name(l, &a->tokens[i]) : give(table, &a->tokens[i]));
    if (m->hp.is_tied)
        TR_PASS(tie(a, &table->target, &head->target));
    for (size_t i = 0; i < l->n; i++) {
        const struct tr_adapter_target *t = &l->module[i].target;
        if (t->tokens && (t->is_target || t->is_saved))
            return tr_fail(TR_USAGE, "%s: %s %s already; drop one of them", key, t->module,
                           t->is_saved ? "is trained whole (modules_to_save)" : "has an adapter (target_modules)");
        if (t->tokens && !t->shares_tokens)
            *n_trained += (int64_t)t->tokens->n * (m->hp.token_cols ? m->hp.token_cols : m->hp.hidden);
    }
    return TR_OK;
}
