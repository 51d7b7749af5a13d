/* load.c - opens the tokenizer of a model directory.
 *
 * The files are read in this order: tokenizer.json (or vocab.json and merges.txt, converted to the same layout),
 * tokenizer_config.json, special_tokens_map.json, config.json. The last three give only the special tokens and
 * add_prefix_space, with which transformers overrides a byte-level pre-tokenizer.
 */
#include "token/load.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_MAX_BYTES = 256 << 20, CONFIG_MAX_BYTES = 16 << 20 };

static bool is_absent(const cJSON *x)
{
    return !x || cJSON_IsNull(x);
}

/* Reads the JSON object of a file. *out stays NULL when the file is optional and absent. */
static enum tr_status load_object(const char *dir, const char *name, size_t max_bytes, bool required, cJSON **out)
{
    char path[TR_PATH_MAX];
    TR_PASS(tr_path_join(path, dir, name));
    if (!required && !tr_file_exists(path))
        return TR_OK;
    TR_PASS(tr_json_load(path, max_bytes, out));
    if (!cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        return tr_fail(TR_USAGE, "%s: the file is not a JSON object", path);
    }
    return TR_OK;
}

/* ---- special tokens ---- */

/* "eos_token": "<x>" or {"content": "<x>"}. NULL: the file does not give it. */
static enum tr_status special_text(const cJSON *root, const char *key, const char **out)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, key);
    *out = NULL;
    if (cJSON_IsObject(x))
        return tr_json_str(x, "content", true, out);
    return root ? tr_json_str(root, key, false, out) : TR_OK;
}

static enum tr_status load_special(const struct tr_tokenizer *t, const cJSON *root, const char *key, int32_t *out)
{
    const char *text;
    char buf[96];
    enum tr_status st = special_text(root, key, &text);
    if (st != TR_OK || !text || *out >= 0)
        return st;
    *out = tr_tokenizer_find(t, text);
    return *out >= 0 ? TR_OK
                     : tr_fail(TR_USAGE, "%s \"%s\" is not in the vocabulary", key, tr_escape(text, buf, sizeof buf));
}

/* The fallback is eos_token_id of the model's config: a number, or a list whose first entry ends a document. */
static enum tr_status load_model_config(struct tr_tokenizer *t, const cJSON *root)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id");
    int32_t id = 0;
    if (cJSON_IsArray(x))
        x = cJSON_GetArrayItem(x, 0);
    if (is_absent(x))
        return TR_OK;
    TR_PASS(tr_tok_load_id(x, "eos_token_id", &id));
    size_t n;
    bool is_known = (size_t)id < t->n_ids && (t->added_of_id[id] >= 0 || tr_tok_vocab_text(&t->vocab, id, &n));
    if (!is_known)
        return tr_fail(TR_USAGE, "eos_token_id %d is not in the vocabulary", id);
    t->eos = id;
    return TR_OK;
}

/* ---- vocab.json and merges.txt ---- */

static enum tr_status merges_of_text(const char *text, cJSON *list)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n"), n_line = n && p[n - 1] == '\r' ? n - 1 : n;
        bool is_comment = strncmp(p, "#version", 8) == 0;
        if (n_line && !is_comment) {
            char *line = strndup(p, n_line);
            cJSON *x = line ? cJSON_CreateString(line) : NULL;
            free(line);
            if (!x || !cJSON_AddItemToArray(list, x)) {
                cJSON_Delete(x);
                return tr_fail(TR_NOMEM, "no memory for merges");
            }
        }
        p += n + (p[n] == '\n');
    }
    return TR_OK;
}

static bool has_added(const cJSON *list, const char *text)
{
    const cJSON *x;
    cJSON_ArrayForEach(x, list)
    {
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(x, "content");
        if (cJSON_IsString(content) && strcmp(content->valuestring, text) == 0)
            return true;
    }
    return false;
}

/* A special token becomes an added token. Its id is that of the vocabulary, or the next free one. */
static enum tr_status add_added(cJSON *list, const cJSON *vocab, const char *text, size_t *n_new)
{
    const cJSON *known = cJSON_GetObjectItemCaseSensitive(vocab, text);
    if (has_added(list, text))
        return TR_OK;
    cJSON *x = cJSON_CreateObject();
    double id = cJSON_IsNumber(known) ? known->valuedouble : (double)cJSON_GetArraySize(vocab) + (double)(*n_new)++;
    bool is_ok = x && cJSON_AddStringToObject(x, "content", text) && cJSON_AddNumberToObject(x, "id", id) &&
                 cJSON_AddBoolToObject(x, "special", true) && cJSON_AddItemToArray(list, x);
    if (!is_ok)
        cJSON_Delete(x);
    return is_ok ? TR_OK : tr_fail(TR_NOMEM, "no memory for special tokens");
}

static enum tr_status add_specials(cJSON *list, const cJSON *vocab, const cJSON *config, const cJSON *map)
{
    static const char *const keys[] = { "bos_token", "eos_token", "unk_token", "pad_token" };
    size_t n_new = 0;
    for (size_t i = 0; i < TR_COUNT_OF(keys); i++) {
        const char *text = NULL;
        TR_PASS(special_text(map, keys[i], &text));
        if (!text)
            TR_PASS(special_text(config, keys[i], &text));
        if (text && *text)
            TR_PASS(add_added(list, vocab, text, &n_new));
    }
    return TR_OK;
}

/* Converts the files of GPT-2 and OPT to the equivalent tokenizer.json. */
static enum tr_status from_vocab_and_merges(const char *dir, const cJSON *config, const cJSON *map, cJSON **out)
{
    static const char shape[] =
        "{\"added_tokens\": [], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
        " \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": []}}";
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], *text = NULL;
    size_t n;
    cJSON *root = NULL, *vocab = NULL;
    TR_TRY(load_object(dir, "vocab.json", TOKENIZER_MAX_BYTES, true, &vocab));
    TR_TRY(tr_path_join(path, dir, "merges.txt"));
    TR_TRY(tr_file_read(path, TOKENIZER_MAX_BYTES, &text, &n));
    if (strlen(text) != n || !tr_utf8_is_valid(text, n))
        TR_TRY(tr_fail(TR_USAGE, "%s: not UTF-8 text", path));
    TR_TRY(tr_json_parse(shape, sizeof shape - 1, "vocab.json and merges.txt", &root));
    cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    TR_TRY(merges_of_text(text, cJSON_GetObjectItemCaseSensitive(model, "merges")));
    TR_TRY(add_specials(cJSON_GetObjectItemCaseSensitive(root, "added_tokens"), vocab, config, map));
    if (!cJSON_AddItemToObject(model, "vocab", vocab))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a vocabulary"));
    vocab = NULL;
    *out = root;
    root = NULL;
out:
    free(text);
    cJSON_Delete(root);
    cJSON_Delete(vocab);
    return st;
}

/* OPT puts the beginning-of-text token before every text; in a tokenizer.json that is a post-processor. */
static enum tr_status load_add_bos(struct tr_tokenizer *t, const cJSON *config)
{
    bool add_bos = false;
    enum tr_status st = config ? tr_json_bool(config, "add_bos_token", false, &add_bos) : TR_OK;
    return st == TR_OK && add_bos && t->bos >= 0 ? tr_ids_add(&t->before, t->bos) : st;
}

/* ---- the whole ---- */

/* As in transformers, tokenizer_config.json overrides a byte-level pre_tokenizer that is not part of a Sequence. */
static enum tr_status override_prefix(cJSON *root, const cJSON *config)
{
    cJSON *pre = cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(pre, "type");
    const cJSON *want = cJSON_GetObjectItemCaseSensitive(config, "add_prefix_space");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "ByteLevel") != 0 || is_absent(want))
        return TR_OK;
    if (!cJSON_IsBool(want))
        return tr_fail(TR_USAGE, "add_prefix_space is not true or false");
    cJSON *x = cJSON_CreateBool(cJSON_IsTrue(want));
    if (!x || !cJSON_ReplaceItemInObjectCaseSensitive(pre, "add_prefix_space", x)) {
        cJSON_Delete(x);
        return tr_fail(
            TR_USAGE,
            "tokenizer_config.json sets add_prefix_space, but pre_tokenizer has no add_prefix_space to override");
    }
    return TR_OK;
}

static enum tr_status hash_all(struct tr_tokenizer *t, const cJSON *root)
{
    static const char *const stages[] = { "normalizer", "pre_tokenizer", "post_processor",
                                          "decoder",    "model",         "added_tokens" };
    struct tr_hasher *h = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(tr_hasher_open(&h));
    for (size_t i = 0; i < TR_COUNT_OF(stages); i++) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, stages[i]);
        char *text = x ? cJSON_PrintUnformatted(x) : NULL;
        if (x && !text)
            TR_TRY(tr_fail(TR_NOMEM, "no memory for the hash of a tokenizer"));
        tr_hasher_add(h, stages[i], strlen(stages[i]) + 1);
        if (text)
            tr_hasher_add(h, text, strlen(text) + 1);
        cJSON_free(text);
    }
    int32_t ends[2] = { t->eos, t->bos };
    tr_hasher_add(h, ends, sizeof ends);
    t->hash = tr_hasher_get(h);
out:
    tr_hasher_close(h);
    return st;
}

static enum tr_status load_tokenizer(struct tr_tokenizer *t, const cJSON *root)
{
    TR_PASS(tr_tok_load_input(t, root));
    TR_PASS(tr_tok_load_output(t, root));
    TR_PASS(tr_tok_load_model(t, root));
    t->takes_bytes = t->is_raw && t->n_norms == 0;
    for (size_t i = 0; i < t->n_splits; i++)
        if (t->splits[i].kind == TR_TOK_SPLIT_PATTERN && t->splits[i].pattern.re.code)
            t->takes_bytes = false;
    TR_PASS(tr_tok_load_added(t, root));
    tr_tok_find_cuts(t);
    return TR_OK;
}

static enum tr_status load_all(struct tr_tokenizer *t, const char *dir)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    cJSON *root = NULL, *config = NULL, *map = NULL, *model = NULL;
    TR_TRY(load_object(dir, "tokenizer_config.json", CONFIG_MAX_BYTES, false, &config));
    TR_TRY(load_object(dir, "special_tokens_map.json", CONFIG_MAX_BYTES, false, &map));
    TR_TRY(tr_path_join(path, dir, "vocab.json"));
    bool is_old = tr_file_exists(path);
    TR_TRY(tr_path_join(path, dir, "tokenizer.json"));
    is_old = is_old && !tr_file_exists(path);
    if (is_old)
        TR_TRY(from_vocab_and_merges(dir, config, map, &root));
    else if (!tr_file_exists(path) && tr_dir_exists(dir))
        TR_TRY(tr_fail(TR_USAGE,
                       "%s: no tokenizer: neither tokenizer.json nor vocab.json with merges.txt; transformers writes "
                       "one: AutoTokenizer.from_pretrained(NAME).save_pretrained(\"%s\")",
                       dir, dir));
    else
        TR_TRY(load_object(dir, "tokenizer.json", TOKENIZER_MAX_BYTES, true, &root));
    TR_TRY(override_prefix(root, config));
    st = load_tokenizer(t, root);
    if (st != TR_OK)
        TR_TRY(tr_fail_at(st, "%s: ", path));
    TR_TRY(load_special(t, config, "eos_token", &t->eos));
    TR_TRY(load_special(t, config, "bos_token", &t->bos));
    if (!cJSON_GetObjectItemCaseSensitive(config, "eos_token")) /* an explicit null means that there is none */
        TR_TRY(load_special(t, map, "eos_token", &t->eos));
    if (!cJSON_GetObjectItemCaseSensitive(config, "bos_token"))
        TR_TRY(load_special(t, map, "bos_token", &t->bos));
    if (is_old)
        TR_TRY(load_add_bos(t, config));
    if (t->eos < 0) {
        TR_TRY(load_object(dir, "config.json", CONFIG_MAX_BYTES, false, &model));
        if (model)
            TR_TRY(load_model_config(t, model));
    }
    TR_TRY(hash_all(t, root));
out:
    cJSON_Delete(root);
    cJSON_Delete(config);
    cJSON_Delete(map);
    cJSON_Delete(model);
    return st;
}

enum tr_status tr_tokenizer_open(const char *model_dir, struct tr_tokenizer **out)
{
    enum tr_status st = TR_OK;
    struct tr_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "no memory for a tokenizer");
    t->eos = t->bos = -1;
    t->table = tr_tok_unicode_new();
    if (!t->table)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a Unicode table"));
    TR_TRY(tr_tok_pool_list_open(&t->pool));
    TR_TRY(load_all(t, model_dir));
    *out = t;
    t = NULL;
out:
    tr_tokenizer_close(t);
    return st;
}
