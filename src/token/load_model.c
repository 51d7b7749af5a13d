/* load_model.c - loads the model and the added tokens of a tokenizer.json.
 *
 * Files are not trusted. Ids are bounded, and an id or a text that appears twice is refused. A merge must join known
 * tokens into a known token; it cannot be cyclic, because texts only grow. An added token must have the id that the
 * library would give it, because the library ignores the id in the file.
 */
#include "token/token_impl.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_absent(const cJSON *x)
{
    return !x || cJSON_IsNull(x);
}

enum tr_status tr_tok_load_id(const cJSON *x, const char *what, int32_t *out)
{
    char buf[96];
    double v = x ? x->valuedouble : -1;
    if (!cJSON_IsNumber(x) || !(v >= 0 && v < TR_TOK_VOCAB_MAX) || v != floor(v))
        return tr_fail(TR_USAGE, "the id of \"%s\" is not a whole number from 0 to %d",
                       tr_escape(what, buf, sizeof buf), TR_TOK_VOCAB_MAX - 1);
    *out = (int32_t)v;
    return TR_OK;
}

static enum tr_status copy_affix(const cJSON *model, const char *key, char **out)
{
    const char *s = "";
    TR_PASS(tr_json_str(model, key, false, &s));
    *out = strdup(s);
    return *out ? TR_OK : tr_fail(TR_NOMEM, "no memory for %s", key);
}

/* {"token": id, ...} */
static enum tr_status load_vocab(struct tr_tokenizer *t, const cJSON *model)
{
    enum tr_status st = TR_OK;
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab"), *x;
    if (!cJSON_IsObject(vocab))
        return tr_fail(TR_USAGE, "model.vocab is missing or not an object");
    cJSON_ArrayForEach(x, vocab)
    {
        int32_t id;
        size_t n = strlen(x->string);
        TR_TRY(tr_tok_load_id(x, x->string, &id));
        TR_TRY(tr_tok_vocab_add(&t->vocab, x->string, n, id, false));
        if (n > t->n_longest)
            t->n_longest = n;
    }
    if (t->vocab.n_tokens == 0)
        return tr_fail(TR_USAGE, "model.vocab is empty");
out:
    return st == TR_OK ? st : tr_fail_at(st, "model.vocab: ");
}

static enum tr_status load_unk(struct tr_tokenizer *t, const cJSON *model, bool required)
{
    const char *text = NULL;
    char buf[96];
    enum tr_status st = tr_json_str(model, "unk_token", required, &text);
    if (st != TR_OK || !text)
        return st;
    t->unk = tr_tok_vocab_find(&t->vocab, text, strlen(text));
    return t->unk >= 0 || !required
               ? TR_OK
               : tr_fail(TR_USAGE, "unk_token \"%s\" is not in model.vocab", tr_escape(text, buf, sizeof buf));
}

/* ---- BPE ---- */

/* "a b" or ["a", "b"] */
static enum tr_status split_merge(const cJSON *x, int rank, const char **a, size_t *n_a, const char **b)
{
    if (cJSON_IsArray(x) && cJSON_GetArraySize(x) == 2 && cJSON_IsString(x->child) && cJSON_IsString(x->child->next)) {
        *a = x->child->valuestring;
        *n_a = strlen(*a);
        *b = x->child->next->valuestring;
    } else if (cJSON_IsString(x)) {
        const char *space = strchr(x->valuestring, ' ');
        if (!space || strchr(space + 1, ' '))
            return tr_fail(TR_USAGE, "merge %d is not two tokens with one space between them", rank);
        *a = x->valuestring;
        *n_a = (size_t)(space - x->valuestring);
        *b = space + 1;
    } else {
        return tr_fail(TR_USAGE, "merge %d is neither \"a b\" nor [\"a\", \"b\"]", rank);
    }
    return *n_a && **b ? TR_OK : tr_fail(TR_USAGE, "merge %d has an empty side", rank);
}

static enum tr_status find_token(const struct tr_tokenizer *t, const char *p, size_t n, int rank, int32_t *out)
{
    char shown[64], buf[96];
    *out = tr_tok_vocab_find(&t->vocab, p, n);
    if (*out >= 0)
        return TR_OK;
    snprintf(shown, sizeof shown, "%.*s", (int)(n < 60 ? n : 60), p);
    return tr_fail(TR_USAGE, "merge %d: \"%s\" is not in model.vocab", rank, tr_escape(shown, buf, sizeof buf));
}

static enum tr_status add_merge(struct tr_tokenizer *t, const cJSON *x, int rank, struct tr_str *text)
{
    const char *a = "", *b = "";
    size_t n_a = 0, n_prefix = strlen(t->prefix);
    int32_t left, right, made;
    TR_PASS(split_merge(x, rank, &a, &n_a, &b));
    TR_PASS(find_token(t, a, n_a, rank, &left));
    TR_PASS(find_token(t, b, strlen(b), rank, &right));
    if (strlen(b) < n_prefix)
        return tr_fail(TR_USAGE, "merge %d: the right token is shorter than continuing_subword_prefix", rank);
    tr_str_clear(text);
    tr_str_add(text, a, n_a);
    tr_str_add(text, b + n_prefix, strlen(b) - n_prefix);
    TR_PASS(tr_str_check(text, "a merge"));
    TR_PASS(find_token(t, text->p, text->n, rank, &made));
    tr_tok_merges_put(&t->merges, (uint32_t)left, (uint32_t)right, (uint32_t)rank, (uint32_t)made);
    return TR_OK;
}

static enum tr_status load_merges(struct tr_tokenizer *t, const cJSON *model)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    const cJSON *merges = cJSON_GetObjectItemCaseSensitive(model, "merges"), *x;
    int n = cJSON_GetArraySize(merges), rank = 0;
    if (!cJSON_IsArray(merges))
        return tr_fail(TR_USAGE, "model.merges is missing or not a list");
    if (n > TR_TOK_VOCAB_MAX)
        return tr_fail(TR_USAGE, "model.merges has %d entries; at most %d are accepted", n, TR_TOK_VOCAB_MAX);
    TR_TRY(tr_tok_merges_reserve(&t->merges, (size_t)n));
    cJSON_ArrayForEach(x, merges) TR_TRY(add_merge(t, x, rank++, &text));
out:
    tr_str_release(&text);
    return st;
}

/* Whether the byte-level step is the last one: then the model may work on bytes instead of byte characters. */
static bool is_raw(const struct tr_tokenizer *t)
{
    for (size_t i = 0; i < t->n_norms; i++)
        if (t->norms[i].kind == TR_TOK_NORM_BYTES)
            return false;
    for (size_t i = 0; i + 1 < t->n_splits; i++)
        if (t->splits[i].kind == TR_TOK_SPLIT_BYTES)
            return false;
    return t->n_splits && t->splits[t->n_splits - 1].kind == TR_TOK_SPLIT_BYTES && !*t->prefix && !*t->suffix;
}

static enum tr_status load_bpe(struct tr_tokenizer *t, const cJSON *model)
{
    double dropout = 0;
    TR_PASS(tr_json_real(model, "dropout", false, &dropout));
    if (dropout != 0)
        return tr_fail(TR_USAGE, "model.dropout %g is not supported; ids would differ from run to run", dropout);
    TR_PASS(copy_affix(model, "continuing_subword_prefix", &t->prefix));
    TR_PASS(copy_affix(model, "end_of_word_suffix", &t->suffix));
    TR_PASS(tr_json_bool(model, "fuse_unk", false, &t->fuse_unk));
    TR_PASS(tr_json_bool(model, "byte_fallback", false, &t->byte_fallback));
    TR_PASS(tr_json_bool(model, "ignore_merges", false, &t->ignore_merges));
    TR_PASS(load_vocab(t, model));
    TR_PASS(load_unk(t, model, false));
    TR_PASS(load_merges(t, model));
    if (is_raw(t)) {
        t->is_raw = true;
        t->n_splits--;
    }
    return TR_OK;
}

/* ---- the others ---- */

static enum tr_status build_pieces(struct tr_tokenizer *t)
{
    size_t n = t->vocab.n_ids;
    struct tr_tok_trie_key *keys = NULL;
    TR_PASS(TR_ALLOC(keys, n + 1, "%zu pieces", n));
    for (size_t i = 0; i < n; i++) {
        keys[i].text = tr_tok_vocab_text(&t->vocab, (int64_t)i, &keys[i].n);
        keys[i].value = (int32_t)i;
    }
    enum tr_status st = tr_tok_trie_build(&t->pieces, keys, n);
    free(keys);
    if (st == TR_OK && !t->pieces.nodes)
        return tr_fail(TR_USAGE, "model.vocab holds no text");
    return st;
}

/* The score as the library reads it: all digits as one 64-bit number, divided by a power of ten. The result may differ
 * from the nearest double in the last bit. Paths with equal scores are common ("---" and "-" in a run of dashes), and
 * there that bit decides. The digits are the fewest that give v, because all writers of these files print those. */
static double library_score(double v)
{
    char text[40], power[16];
    int n_digits = 15;
    do
        snprintf(text, sizeof text, "%.*e", n_digits - 1, fabs(v));
    while (strtod(text, NULL) != fabs(v) && ++n_digits <= 17);
    const char *e = strchr(text, 'e');
    int exponent = e ? (int)strtol(e + 1, NULL, 10) - (n_digits - 1) : 0;
    if (n_digits == 15 || exponent >= 0 || exponent < -300)
        return v; /* both ways are exact, or v is not a score that a model has */
    uint64_t digits = (uint64_t)(text[0] - '0');
    for (const char *p = text + 2; p < e; p++)
        digits = digits * 10 + (uint64_t)(*p - '0');
    snprintf(power, sizeof power, "1e%d", -exponent);
    return copysign((double)digits / strtod(power, NULL), v);
}

/* [["piece", score], ...] */
static enum tr_status load_unigram(struct tr_tokenizer *t, const cJSON *model)
{
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab"), *x;
    int64_t unk = -1, id = 0;
    double lowest = DBL_MAX;
    int n = cJSON_GetArraySize(vocab);
    if (!cJSON_IsArray(vocab) || n == 0 || n > TR_TOK_VOCAB_MAX)
        return tr_fail(TR_USAGE, "model.vocab is not a list of 1 to %d pieces", TR_TOK_VOCAB_MAX);
    TR_PASS(TR_ALLOC(t->scores, (size_t)n, "%d scores", n));
    cJSON_ArrayForEach(x, vocab)
    {
        const cJSON *piece = cJSON_IsArray(x) ? x->child : NULL, *score = piece ? piece->next : NULL;
        if (!cJSON_IsString(piece) || !cJSON_IsNumber(score) || !isfinite(score->valuedouble))
            return tr_fail(TR_USAGE, "model.vocab entry %" PRId64 " is not [\"piece\", score]", id);
        TR_PASS(tr_tok_vocab_add(&t->vocab, piece->valuestring, strlen(piece->valuestring), id, true));
        t->scores[id] = library_score(score->valuedouble);
        lowest = fmin(lowest, t->scores[id++]);
    }
    TR_PASS(tr_json_int(model, "unk_id", false, 0, n - 1, &unk));
    TR_PASS(tr_json_bool(model, "byte_fallback", false, &t->byte_fallback));
    t->unk = (int32_t)unk;
    t->unk_score = lowest - 10; /* SentencePiece's penalty */
    return build_pieces(t);
}

static enum tr_status load_wordpiece(struct tr_tokenizer *t, const cJSON *model)
{
    t->word_max_chars = 100;
    TR_PASS(copy_affix(model, "continuing_subword_prefix", &t->prefix));
    TR_PASS(tr_json_int(model, "max_input_chars_per_word", false, 0, 1 << 20, &t->word_max_chars));
    TR_PASS(load_vocab(t, model));
    return load_unk(t, model, true);
}

static enum tr_status load_wordlevel(struct tr_tokenizer *t, const cJSON *model)
{
    enum tr_status st = load_vocab(t, model);
    return st == TR_OK ? load_unk(t, model, false) : st;
}

/* Old files have no "type". Their members decide it, as in the library. */
static const char *guess_type(const cJSON *model)
{
    if (cJSON_GetObjectItemCaseSensitive(model, "merges"))
        return "BPE";
    if (cJSON_GetObjectItemCaseSensitive(model, "max_input_chars_per_word"))
        return "WordPiece";
    return cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(model, "vocab")) ? "Unigram" : "WordLevel";
}

enum tr_status tr_tok_load_model(struct tr_tokenizer *t, const cJSON *root)
{
    static const struct {
        const char *name;
        enum tr_tok_model_kind kind;
        enum tr_status (*load)(struct tr_tokenizer *t, const cJSON *model);
    } models[] = {
        { "BPE", TR_TOK_MODEL_BPE, load_bpe },
        { "Unigram", TR_TOK_MODEL_UNIGRAM, load_unigram },
        { "WordPiece", TR_TOK_MODEL_WORDPIECE, load_wordpiece },
        { "WordLevel", TR_TOK_MODEL_WORDLEVEL, load_wordlevel },
    };
    char buf[96];
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    if (!cJSON_IsObject(model))
        return tr_fail(TR_USAGE, "model is missing or not an object");
    const char *type = guess_type(model);
    TR_PASS(tr_json_str(model, "type", false, &type));
    t->unk = -1;
    for (size_t i = 0; i < TR_COUNT_OF(models); i++)
        if (strcmp(models[i].name, type) == 0) {
            t->model = models[i].kind;
            TR_PASS(models[i].load(t, model));
            return tr_tok_bpe_prepare(t);
        }
    return tr_fail(TR_USAGE,
                   "model.type \"%s\" is not supported; the supported types are BPE, Unigram, WordPiece and WordLevel",
                   tr_escape(type, buf, sizeof buf));
}

/* ---- added tokens ---- */

/* The id that the library gives: that of the model's vocabulary, or the next free one. */
static int64_t library_id(const struct tr_tokenizer *t, const char *text, size_t n)
{
    int64_t id = tr_tok_vocab_find(&t->vocab, text, n);
    size_t next = t->added_vocab.n_ids > t->vocab.n_tokens ? t->added_vocab.n_ids : t->vocab.n_tokens;
    return id >= 0 ? id : (int64_t)next;
}

static enum tr_status load_added_one(struct tr_tokenizer *t, const cJSON *x)
{
    const char *text = NULL;
    char buf[96];
    struct tr_tok_added a = { 0 };
    TR_PASS(tr_json_str(x, "content", true, &text));
    if (!*text)
        return TR_OK;
    TR_PASS(tr_tok_load_id(cJSON_GetObjectItemCaseSensitive(x, "id"), text, &a.id));
    TR_PASS(tr_json_bool(x, "special", false, &a.is_special));
    TR_PASS(tr_json_bool(x, "normalized", false, &a.is_normalized));
    TR_PASS(tr_json_bool(x, "lstrip", false, &a.lstrip));
    TR_PASS(tr_json_bool(x, "rstrip", false, &a.rstrip));
    TR_PASS(tr_json_bool(x, "single_word", false, &a.single_word));
    a.n = strlen(text);
    int64_t id = library_id(t, text, a.n);
    if (id != a.id && tr_tok_vocab_find(&t->added_vocab, text, a.n) < 0)
        return tr_fail(TR_USAGE,
                       "\"%s\" has id %d, but the tokenizers library would give it %" PRId64 "; write that id",
                       tr_escape(text, buf, sizeof buf), a.id, id);
    TR_PASS(tr_tok_vocab_add(&t->added_vocab, text, a.n, a.id, false));
    a.text = strdup(text);
    if (!a.text)
        return tr_fail(TR_NOMEM, "no memory for an added token");
    t->added[t->n_added++] = a;
    return TR_OK;
}

/* The form of a normalised token in normalised text. */
static enum tr_status normalize_added(struct tr_tokenizer *t, struct tr_tok_encoder *e)
{
    for (size_t i = 0; i < t->n_added; i++) {
        struct tr_tok_added *a = &t->added[i];
        const char *p = a->text;
        size_t n = a->n;
        bool at_start = true;
        if (a->is_normalized)
            TR_PASS(tr_tok_normalize(e, p, n, true, &at_start, &p, &n));
        a->normal = malloc(n + 1);
        if (!a->normal)
            return tr_fail(TR_NOMEM, "no memory for an added token");
        memcpy(a->normal, p, n);
        a->normal[n] = 0;
        a->n_normal = n;
    }
    return TR_OK;
}

static enum tr_status build_tries(struct tr_tokenizer *t)
{
    enum tr_status st = TR_OK;
    struct tr_tok_trie_key *keys = calloc(t->n_added + 1, sizeof *keys);
    if (!keys)
        return tr_fail(TR_NOMEM, "no memory for added tokens");
    for (int is_normalized = 0; is_normalized < 2; is_normalized++) {
        size_t n = 0;
        for (size_t i = 0; i < t->n_added; i++)
            if (t->added[i].is_normalized == is_normalized)
                keys[n++] = (struct tr_tok_trie_key){ t->added[i].normal, t->added[i].n_normal, (int32_t)i };
        TR_TRY(tr_tok_trie_build(is_normalized ? &t->added_normal : &t->added_raw, keys, n));
    }
out:
    free(keys);
    return st;
}

static enum tr_status index_ids(struct tr_tokenizer *t)
{
    t->n_ids = t->vocab.n_ids;
    for (size_t i = 0; i < t->n_added; i++)
        if ((size_t)t->added[i].id >= t->n_ids)
            t->n_ids = (size_t)t->added[i].id + 1;
    TR_PASS(TR_ALLOC(t->added_of_id, t->n_ids, "%zu ids", t->n_ids));
    memset(t->added_of_id, 0xFF, t->n_ids * sizeof *t->added_of_id);
    for (size_t i = 0; i < t->n_added; i++)
        t->added_of_id[t->added[i].id] = (int32_t)i;
    return TR_OK;
}

enum tr_status tr_tok_load_added(struct tr_tokenizer *t, const cJSON *root)
{
    enum tr_status st = TR_OK;
    struct tr_tok_encoder *e = NULL;
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "added_tokens"), *x;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (!is_absent(list) && !cJSON_IsArray(list))
        return tr_fail(TR_USAGE, "added_tokens is not an array");
    if (n > TR_TOK_ADDED_MAX)
        return tr_fail(TR_USAGE, "added_tokens has %d entries; at most %d are accepted", n, TR_TOK_ADDED_MAX);
    t->added = calloc((size_t)n + 1, sizeof *t->added);
    if (!t->added)
        return tr_fail(TR_NOMEM, "no memory for added tokens");
    cJSON_ArrayForEach(x, list)
    {
        st = load_added_one(t, x);
        if (st != TR_OK)
            return tr_fail_at(st, "added_tokens: ");
    }
    TR_TRY(tr_tok_encoder_open(t, &e));
    TR_TRY(normalize_added(t, e));
    TR_TRY(build_tries(t));
    TR_TRY(index_ids(t));
out:
    tr_tok_encoder_close(e);
    return st;
}
