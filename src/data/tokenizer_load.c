/* tokenizer_load.c - reads tokenizer.json, tokenizer_config.json and config.json into a tokenizer.
 *
 * Every part of the HF pipeline that would change an id is checked and refused by name when it is not the identity.
 * Parts that cannot matter without merges (the word-splitting regex, ignore_merges, offsets) are allowed to differ.
 */
#include "data/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_MAX_BYTES = 64 << 20, CONFIG_MAX_BYTES = 16 << 20, ID_MAX = (1 << 28) - 1 };

uint32_t tr_byte_char(unsigned b)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255))
        return b;
    if (b <= 32)
        return 256 + b;
    return b == 173 ? 256 + 67 : 256 + 33 + (b - 127); /* 127..160 follow 0..32; 173 is the last */
}

/* The byte that a one-character vocabulary entry stands for, or -1. All these characters are below U+0800. */
static int byte_of_entry(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    uint32_t c = u[0];
    if (c >= 0x80 && (u[1] & 0xC0) == 0x80 && u[2] == 0)
        c = (c & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    else if (c == 0 || c >= 0x80 || u[1] != 0)
        return -1;
    for (unsigned b = 0; b < TR_BYTES; b++)
        if (tr_byte_char(b) == c)
            return (int)b;
    return -1;
}

static enum tr_status unsupported(const char *what, const char *value)
{
    char buf[96];
    return tr_fail(TR_USAGE, "%s \"%s\" is not supported; byte-level BPE without merges is", what,
                   tr_escape(value, buf, sizeof buf));
}

static bool is_absent(const cJSON *x)
{
    return !x || cJSON_IsNull(x);
}

/* A pipeline stage: absent (where that is allowed) or of the one type we know. */
static enum tr_status check_stage(const cJSON *root, const char *key, const char *type, bool may_be_absent)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, key);
    if (is_absent(x))
        return may_be_absent ? TR_OK : tr_fail(TR_USAGE, "%s is missing; %s is needed", key, type);
    const char *got = NULL;
    enum tr_status st = tr_json_str(x, "type", true, &got);
    if (st != TR_OK)
        return tr_fail_at(st, "%s: ", key);
    return type && strcmp(got, type) == 0 ? TR_OK : unsupported(key, got);
}

static enum tr_status check_no(const cJSON *obj, const char *key)
{
    bool on = false;
    enum tr_status st = tr_json_bool(obj, key, false, &on);
    if (st != TR_OK)
        return st;
    return on ? unsupported(key, "true") : TR_OK;
}

static enum tr_status check_empty_str(const cJSON *obj, const char *key)
{
    const char *s = "";
    enum tr_status st = tr_json_str(obj, key, false, &s);
    if (st != TR_OK)
        return st;
    return *s ? unsupported(key, s) : TR_OK;
}

static enum tr_status check_pipeline(const cJSON *root)
{
    static const char *const must_be_null[] = { "normalizer", "truncation", "padding" };
    enum tr_status st = TR_OK;
    for (size_t i = 0; i < TR_COUNT_OF(must_be_null); i++)
        if (!is_absent(cJSON_GetObjectItemCaseSensitive(root, must_be_null[i])))
            return tr_fail(TR_USAGE, "a %s is not supported; it must be null", must_be_null[i]);
    TR_TRY(check_stage(root, "pre_tokenizer", "ByteLevel", false));
    TR_TRY(check_no(cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer"), "add_prefix_space"));
    TR_TRY(check_stage(root, "post_processor", "ByteLevel", true));
    TR_TRY(check_stage(root, "decoder", "ByteLevel", false));
out:
    return st;
}

static enum tr_status check_model(const cJSON *model)
{
    enum tr_status st = TR_OK;
    const char *type = NULL;
    TR_TRY(tr_json_str(model, "type", true, &type));
    if (strcmp(type, "BPE") != 0)
        return unsupported("model.type", type);
    const cJSON *merges = cJSON_GetObjectItemCaseSensitive(model, "merges");
    int n_merges = cJSON_IsArray(merges) ? cJSON_GetArraySize(merges) : 0;
    if (n_merges > 0)
        return tr_fail(TR_USAGE, "model.merges has %d entries; byte-level BPE without merges is supported", n_merges);
    double dropout = 0;
    TR_TRY(tr_json_real(model, "dropout", false, &dropout));
    if (dropout > 0)
        return tr_fail(TR_USAGE, "model.dropout %g is not supported", dropout);
    TR_TRY(check_empty_str(model, "continuing_subword_prefix"));
    TR_TRY(check_empty_str(model, "end_of_word_suffix"));
out:
    return st;
}

static enum tr_status get_id(const cJSON *x, const char *name, int32_t *out)
{
    if (!cJSON_IsNumber(x) || !(x->valuedouble >= 0 && x->valuedouble <= ID_MAX) ||
        x->valuedouble != (double)(int32_t)x->valuedouble) {
        char buf[96];
        return tr_fail(TR_USAGE, "the id of \"%s\" is not a whole number in [0, %d]", tr_escape(name, buf, sizeof buf),
                       ID_MAX);
    }
    *out = (int32_t)x->valuedouble;
    return TR_OK;
}

static enum tr_status load_added_one(struct tr_tokenizer *t, const cJSON *x)
{
    static const char *const flags[] = { "single_word", "lstrip", "rstrip" };
    enum tr_status st = TR_OK;
    const char *text = NULL;
    struct tr_added *a = &t->added[t->n_added];
    TR_TRY(tr_json_str(x, "content", true, &text));
    if (!*text)
        return tr_fail(TR_USAGE, "an added token has an empty content");
    TR_TRY(get_id(cJSON_GetObjectItemCaseSensitive(x, "id"), text, &a->id));
    for (size_t i = 0; i < TR_COUNT_OF(flags); i++)
        TR_TRY(check_no(x, flags[i]));
    a->n = strlen(text);
    a->text = strdup(text);
    if (!a->text)
        return tr_fail(TR_NOMEM, "no memory for an added token");
    t->n_added++;
out:
    return st;
}

/* By first byte, then longest first, then text. */
static int compare_texts(const char *a, size_t n_a, const char *b, size_t n_b)
{
    unsigned char first_a = (unsigned char)a[0], first_b = (unsigned char)b[0];
    if (first_a != first_b)
        return first_a < first_b ? -1 : 1;
    if (n_a != n_b)
        return n_a > n_b ? -1 : 1;
    return memcmp(a, b, n_a);
}

static int compare_added(const void *pa, const void *pb)
{
    const struct tr_added *a = pa, *b = pb;
    return compare_texts(a->text, a->n, b->text, b->n);
}

static int compare_key(const void *key, const void *pb)
{
    const struct tr_added *b = pb;
    return compare_texts(key, strlen(key), b->text, b->n);
}

/* HF matches tokens with normalized = false first, then the others; one pass is the same only when all agree. */
static enum tr_status load_added(struct tr_tokenizer *t, const cJSON *root)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "added_tokens"), *x;
    if (is_absent(list))
        return TR_OK;
    if (!cJSON_IsArray(list))
        return tr_fail(TR_USAGE, "added_tokens is not an array");
    t->added = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *t->added);
    if (!t->added)
        return tr_fail(TR_NOMEM, "no memory for added tokens");
    bool first = false, normalized = false;
    cJSON_ArrayForEach(x, list)
    {
        enum tr_status st = load_added_one(t, x);
        if (st == TR_OK)
            st = tr_json_bool(x, "normalized", false, &normalized);
        if (st != TR_OK)
            return tr_fail_at(st, "added_tokens: ");
        if (t->n_added == 1)
            first = normalized;
        if (normalized != first)
            return tr_fail(TR_USAGE, "added_tokens mix normalized true and false, which is not supported");
    }
    qsort(t->added, t->n_added, sizeof *t->added, compare_added);
    for (size_t i = 0, b = 0; b < TR_BYTES; b++) {
        t->added_first[b] = i;
        while (i < t->n_added && (unsigned char)t->added[i].text[0] == b)
            i++;
        t->added_first[b + 1] = i;
    }
    return TR_OK;
}

static const struct tr_added *find_added(const struct tr_tokenizer *t, const char *text)
{
    return t->n_added ? bsearch(text, t->added, t->n_added, sizeof *t->added, compare_key) : NULL;
}

static enum tr_status load_vocab(struct tr_tokenizer *t, const cJSON *model)
{
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab"), *x;
    char buf[96];
    if (!cJSON_IsObject(vocab))
        return tr_fail(TR_USAGE, "model.vocab is missing or not an object");
    for (int b = 0; b < TR_BYTES; b++)
        t->id_of_byte[b] = -1;
    cJSON_ArrayForEach(x, vocab)
    {
        int32_t id;
        enum tr_status st = get_id(x, x->string, &id);
        if (st != TR_OK)
            return tr_fail_at(st, "model.vocab: ");
        int b = byte_of_entry(x->string);
        const struct tr_added *a = b < 0 ? find_added(t, x->string) : NULL;
        if (b < 0 && (!a || a->id != id))
            return tr_fail(
                TR_USAGE,
                "model.vocab entry \"%s\" is neither a byte character nor an added token of the same id; only "
                "byte-level vocabularies without merges are supported",
                tr_escape(x->string, buf, sizeof buf));
        if (b >= 0)
            t->id_of_byte[b] = id;
    }
    for (int b = 0; b < TR_BYTES; b++)
        if (t->id_of_byte[b] < 0)
            return tr_fail(TR_USAGE, "model.vocab has no entry for byte %d (U+%04X)", b, tr_byte_char((unsigned)b));
    return TR_OK;
}

static int compare_rows(const void *a, const void *b)
{
    int32_t x = ((const struct tr_id_row *)a)->id, y = ((const struct tr_id_row *)b)->id;
    return (x > y) - (x < y);
}

static enum tr_status build_rows(struct tr_tokenizer *t)
{
    t->n_rows = TR_BYTES + t->n_added;
    t->rows = calloc(t->n_rows, sizeof *t->rows);
    if (!t->rows)
        return tr_fail(TR_NOMEM, "no memory for %zu vocabulary rows", t->n_rows);
    for (size_t i = 0; i < TR_BYTES; i++)
        t->rows[i] = (struct tr_id_row){ t->id_of_byte[i], -1, (uint8_t)i };
    for (size_t i = 0; i < t->n_added; i++)
        t->rows[TR_BYTES + i] = (struct tr_id_row){ t->added[i].id, (int32_t)i, 0 };
    qsort(t->rows, t->n_rows, sizeof *t->rows, compare_rows);
    for (size_t i = 1; i < t->n_rows; i++)
        if (t->rows[i].id == t->rows[i - 1].id)
            return tr_fail(TR_USAGE, "token id %d is given twice", t->rows[i].id);
    return TR_OK;
}

/* "eos_token": "<x>" or {"content": "<x>"}; options that make transformers add tokens around a text are refused. */
static enum tr_status load_tokenizer_config(struct tr_tokenizer *t, const cJSON *root)
{
    static const char *const flags[] = { "add_bos_token", "add_eos_token", "add_prefix_space" };
    enum tr_status st = TR_OK;
    const char *eos = NULL;
    for (size_t i = 0; i < TR_COUNT_OF(flags); i++)
        TR_TRY(check_no(root, flags[i]));
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, "eos_token");
    if (cJSON_IsObject(x))
        TR_TRY(tr_json_str(x, "content", true, &eos));
    else
        TR_TRY(tr_json_str(root, "eos_token", false, &eos));
    if (eos) {
        const struct tr_added *a = find_added(t, eos);
        char buf[96];
        if (!a)
            return tr_fail(TR_USAGE, "eos_token \"%s\" is not an added token", tr_escape(eos, buf, sizeof buf));
        t->eos = a->id;
    }
out:
    return st;
}

/* The fallback: eos_token_id of the model's config, a number or a list whose first entry ends a document. */
static enum tr_status load_model_config(struct tr_tokenizer *t, const cJSON *root)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id");
    if (cJSON_IsArray(x))
        x = cJSON_GetArrayItem(x, 0);
    int32_t id = 0;
    if (is_absent(x))
        return TR_OK;
    enum tr_status st = get_id(x, "eos_token_id", &id);
    if (st != TR_OK)
        return st;
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].id == id)
            t->eos = id;
    return t->eos == id ? TR_OK : tr_fail(TR_USAGE, "eos_token_id %d is not in the vocabulary", id);
}

typedef enum tr_status load_fn(struct tr_tokenizer *t, const cJSON *root);

static enum tr_status load_file(struct tr_tokenizer *t, const char *dir, const char *name, size_t max_bytes,
                                bool required, load_fn *fn)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    cJSON *root = NULL;
    TR_TRY(tr_path_join(path, dir, name));
    if (!required && !tr_file_exists(path))
        return TR_OK;
    TR_TRY(tr_json_load(path, max_bytes, &root));
    st = cJSON_IsObject(root) ? fn(t, root) : tr_fail(TR_USAGE, "not a JSON object");
    if (st != TR_OK)
        tr_fail_at(st, "%s: ", path);
out:
    cJSON_Delete(root);
    return st;
}

static enum tr_status load_tokenizer(struct tr_tokenizer *t, const cJSON *root)
{
    enum tr_status st = TR_OK;
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    if (!cJSON_IsObject(model))
        return tr_fail(TR_USAGE, "model is missing or not an object");
    TR_TRY(check_model(model));
    TR_TRY(check_pipeline(root));
    TR_TRY(load_added(t, root));
    TR_TRY(load_vocab(t, model));
    TR_TRY(build_rows(t));
out:
    return st;
}

enum tr_status tr_tokenizer_open(const char *model_dir, struct tr_tokenizer **out)
{
    enum tr_status st = TR_OK;
    struct tr_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "no memory for a tokenizer");
    t->eos = -1;
    TR_TRY(load_file(t, model_dir, "tokenizer.json", TOKENIZER_MAX_BYTES, true, load_tokenizer));
    TR_TRY(load_file(t, model_dir, "tokenizer_config.json", CONFIG_MAX_BYTES, false, load_tokenizer_config));
    if (t->eos < 0)
        TR_TRY(load_file(t, model_dir, "config.json", CONFIG_MAX_BYTES, false, load_model_config));
    *out = t;
    t = NULL;
out:
    tr_tokenizer_close(t);
    return st;
}
