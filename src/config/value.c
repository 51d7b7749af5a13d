/* value.c - one value: text -> field and field -> text.
 *
 * Invariant: tr_value_print of a field, parsed again, gives the same field (reals print the fewest digits that do).
 * A cause written here names the value; the caller puts the place in front.
 */
#include "config/config_impl.h"

#include <strings.h>

enum { LIST_MAX = 4096 };

static void *field_of(struct tr_config *cfg, const struct option *opt)
{
    return (char *)cfg + opt->at;
}

bool tr_bool_parse(const char *text, bool *out)
{
    static const char *const words[][2] = { { "false", "true" }, { "no", "yes" }, { "off", "on" }, { "0", "1" } };
    for (size_t i = 0; i < TR_COUNT_OF(words); i++)
        for (int v = 0; v < 2; v++)
            if (strcasecmp(text, words[i][v]) == 0) {
                *out = v != 0;
                return true;
            }
    return false;
}

static enum tr_status parse_real(const struct option *opt, const char *text, double *out)
{
    double v = 0;
    TR_PASS(tr_parse_real(text, &v));
    if (v < opt->lo || v > opt->hi || (opt->is_open && v == opt->hi))
        return tr_fail(TR_USAGE, "%s is outside %g to %g%s", text, opt->lo, opt->hi,
                       opt->is_open ? " (the end excluded)" : "");
    *out = v;
    return TR_OK;
}

/* The length of a word up to the DIR that it ends in; 0: it does not. */
static size_t before_dir(const struct option *opt, const char *word)
{
    size_t n = strlen(word);
    return opt->at_dir != 0 && n > 4 && strcmp(word + n - 4, ":DIR") == 0 ? n - 3 : 0;
}

static bool is_word(struct loader *l, const struct option *opt, const char *word, const char *text)
{
    size_t n = before_dir(opt, word);
    if (n == 0 || strncmp(word, text, n) != 0 || text[n] == '\0')
        return n == 0 && strcmp(word, text) == 0;
    *(const char **)(void *)((char *)&l->c->pub + opt->at_dir) = tr_loader_keep(l, text + n, strlen(text + n) + 1);
    return true;
}

static enum tr_status parse_choice(struct loader *l, const struct option *opt, const char *text, int *out)
{
    struct tr_str legal = { 0 };
    int last = -1;
    for (const struct choice *c = opt->choices; c->word != NULL; c++) {
        if (is_word(l, opt, c->word, text)) {
            *out = c->value;
            tr_str_release(&legal);
            return TR_OK;
        }
        if (c->value > last) /* canonical words come first, in the order of their values, so this skips aliases */
            tr_str_addf(&legal, "%s%s", last < 0 ? "" : ", ", c->word);
        last = c->value > last ? c->value : last;
    }
    char shown[64];
    tr_fail(TR_USAGE, "\"%s\" is none of %s", tr_escape(text, shown, sizeof shown), legal.p != NULL ? legal.p : "");
    tr_str_release(&legal);
    return TR_USAGE;
}

/* A copy of the array with room for one more, made when n is a power of two or 0. */
static void *grow(struct loader *l, const void *item, size_t n, size_t n_item_bytes)
{
    if (n != 0 && (n & (n - 1)) != 0)
        return (void *)(uintptr_t)item;
    void *p = tr_loader_keep(l, NULL, (n == 0 ? 1 : 2 * n) * n_item_bytes);
    if (p != NULL && n != 0)
        memcpy(p, item, n * n_item_bytes);
    return p;
}

/* The colon that starts a weight: the last one, when what follows looks like a number and is no slice (train[:5%]). */
static const char *weight_of(const char *text)
{
    const char *colon = strrchr(text, ':');
    if (colon == NULL || colon[1] == '\0' || strchr("0123456789.+-", colon[1]) == NULL || strpbrk(colon, "/]") != NULL)
        return NULL;
    return colon;
}

static enum tr_status bad_weight(const char *text)
{
    char shown[64];
    return tr_fail(TR_USAGE, "weight \"%s\" is not a number above 0; for a path that ends so, add :1",
                   tr_escape(text, shown, sizeof shown));
}

/* The letters of the name at the beginning of a text. */
static size_t name_letters(const char *text)
{
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
}

/* src: its weight, and map and name, which are copied; path has n_path bytes. */
static enum tr_status add_one_source(struct loader *l, const char *path, size_t n_path, struct tr_data_source src,
                                     struct tr_data_list *list)
{
    if (n_path == 0)
        return tr_fail(TR_USAGE, "no path is given");
    if (list->n >= LIST_MAX)
        return tr_fail(TR_USAGE, "more than %d sources", LIST_MAX);
    char *copy = tr_loader_keep(l, NULL, n_path + 1);
    struct tr_data_source *item = grow(l, list->item, list->n, sizeof *item);
    if (copy == NULL || item == NULL)
        return TR_NOMEM;
    memcpy(copy, path, n_path);
    copy[n_path] = '\0';
    src.path = copy;
    if (src.map != NULL && (src.map = tr_loader_keep(l, src.map, strlen(src.map) + 1)) == NULL)
        return TR_NOMEM;
    if (src.name != NULL && (src.name = tr_loader_keep(l, src.name, strlen(src.name) + 1)) == NULL)
        return TR_NOMEM;
    item[list->n] = src;
    *list = (struct tr_data_list){ item, list->n + 1 };
    return TR_OK;
}

/* PATH#train+test are two sources; their share of a weight is not known here, so there the reader of splits refuses it.
 */
static enum tr_status add_source(struct loader *l, const char *path, size_t n_path, struct tr_data_source src,
                                 struct tr_data_list *list)
{
    enum tr_status st = TR_OK;
    struct tr_str part = { 0 };
    const char *hash = memchr(path, '#', n_path), *end = path + n_path;
    const char *plus = hash != NULL ? memchr(hash, '+', (size_t)(end - hash)) : NULL;
    if (plus == NULL || src.weight != 1)
        return add_one_source(l, path, n_path, src, list);
    for (const char *at = hash + 1; at <= end && st == TR_OK; at = plus + 1) {
        plus = memchr(at, '+', (size_t)(end - at));
        plus = plus != NULL ? plus : end;
        tr_str_clear(&part);
        tr_str_addf(&part, "%.*s#%.*s", (int)(hash - path), path, (int)(plus - at), at);
        st = tr_str_ok(&part) ? add_one_source(l, part.p, part.n, src, list) : TR_NOMEM;
    }
    tr_str_release(&part);
    return st;
}

/* {"path": ..., "weight": ..., and how its records are read}, which the data room checks. */
static enum tr_status parse_source(struct loader *l, const char *text, struct tr_data_list *list)
{
    enum tr_status st = TR_OK;
    const char *path = "", *split = NULL;
    struct tr_data_source src = { .weight = 1 };
    cJSON *doc = NULL;
    char *map = NULL;
    struct tr_str whole = { 0 };
    TR_TRY(tr_json_parse(text, strlen(text), "a source of data", &doc));
    TR_TRY(tr_json_str(doc, "path", true, &path));
    TR_TRY(tr_json_real(doc, "weight", false, &src.weight));
    TR_TRY(tr_json_str(doc, "split", false, &split));
    TR_TRY(tr_json_str(doc, "name", false, &src.name));
    if (!(src.weight > 0))
        TR_TRY(tr_fail(TR_USAGE, "weight %g is not a number above 0", src.weight));
    if (src.name != NULL && (src.name[0] == '\0' || src.name[name_letters(src.name)] != '\0'))
        TR_TRY(tr_fail(TR_USAGE, "the name of %s is not of letters, digits, - and _", path));
    cJSON *name = cJSON_DetachItemFromObjectCaseSensitive(doc, "name"); /* is src.name */
    tr_str_addf(&whole, "%s%s%s", path, split != NULL ? "#" : "", split != NULL ? split : "");
    cJSON_DeleteItemFromObjectCaseSensitive(doc, "path");
    cJSON_DeleteItemFromObjectCaseSensitive(doc, "split");
    cJSON_DeleteItemFromObjectCaseSensitive(doc, "weight");
    src.map = map = doc->child != NULL ? cJSON_PrintUnformatted(doc) : NULL;
    st = (doc->child != NULL && map == NULL) || !tr_str_ok(&whole) ? TR_NOMEM
                                                                   : add_source(l, whole.p, whole.n, src, list);
    cJSON_Delete(name);
out:
    tr_str_release(&whole);
    cJSON_free(map);
    cJSON_Delete(doc);
    return st;
}

/* PATH or PATH:WEIGHT; has_names: also NAME=PATH, where a path of such letters is written ./NAME=PATH. */
static enum tr_status parse_data(struct loader *l, const char *text, bool has_names, struct tr_data_list *list)
{
    struct tr_data_source src = { .weight = 1 };
    char name[64];
    if (text[0] == '{')
        return parse_source(l, text, list);
    size_t n_name = has_names ? name_letters(text) : 0;
    if (n_name > 0 && n_name < sizeof name && text[n_name] == '=') {
        memcpy(name, text, n_name);
        name[n_name] = '\0';
        src.name = name;
        text += n_name + 1;
    }
    const char *colon = weight_of(text);
    if (colon != NULL && (tr_parse_real(colon + 1, &src.weight) != TR_OK || !(src.weight > 0)))
        return bad_weight(colon + 1);
    return add_source(l, text, colon != NULL ? (size_t)(colon - text) : strlen(text), src, list);
}

static enum tr_status parse_words(struct loader *l, const struct option *opt, const char *text, struct tr_words *list)
{
    for (int unused;;) {
        size_t n = strcspn(text, ",");
        if (n == 0)
            return tr_fail(TR_USAGE, "an item of the list is empty");
        if (list->n >= LIST_MAX)
            return tr_fail(TR_USAGE, "more than %d items", LIST_MAX);
        char *word = tr_loader_keep(l, NULL, n + 1);
        const char **item = grow(l, list->item, list->n, sizeof *item);
        int *position = grow(l, list->position, list->n, sizeof *position);
        if (word == NULL || item == NULL || position == NULL)
            return TR_NOMEM;
        memcpy(word, text, n);
        word[n] = '\0';
        if (opt->choices != NULL && parse_choice(l, opt, word, &unused) != TR_OK)
            return TR_USAGE;
        item[list->n] = word;
        position[list->n] = l->level << 20 | l->n_items++; /* a higher level counts as later */
        *list = (struct tr_words){ item, list->n + 1, position };
        if (text[n] == '\0')
            return TR_OK;
        text += n + 1;
    }
}

/* One word of the sum, which is added to those that are there. */
static enum tr_status check_term(struct loader *l, const struct option *opt, const char *text)
{
    char word[64];
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    double weight = 1;
    int unused;
    TR_PASS(tr_format(word, sizeof word, "%.*s", (int)n, text));
    TR_PASS(parse_choice(l, opt, word, &unused));
    if (colon != NULL && (tr_parse_real(colon + 1, &weight) != TR_OK || !(weight > 0)))
        return tr_fail(TR_USAGE, "%s: the weight is not a number above 0", text);
    return TR_OK;
}

static enum tr_status parse_sum(struct loader *l, const struct option *opt, const char *text, const char **out)
{
    struct tr_str all = { 0 };
    char item[128];
    enum tr_status st = TR_OK;
    tr_str_addf(&all, "%s%s%s", *out != NULL ? *out : "", *out != NULL ? "," : "", text);
    for (const char *at = text; st == TR_OK; at++) {
        size_t n = strcspn(at, ",");
        st = tr_format(item, sizeof item, "%.*s", (int)n, at);
        st = st == TR_OK ? check_term(l, opt, item) : st;
        at += n;
        if (*at == '\0')
            break;
    }
    char *copy = st == TR_OK && tr_str_ok(&all) ? tr_loader_keep(l, all.p, all.n + 1) : NULL;
    if (copy != NULL)
        *out = copy;
    tr_str_release(&all);
    return st == TR_OK && copy == NULL ? TR_NOMEM : st;
}

static enum tr_status check_object(const char *text)
{
    cJSON *doc = NULL;
    enum tr_status st = tr_json_parse(text, strlen(text), "the value", &doc);
    if (st == TR_OK && !cJSON_IsObject(doc))
        st = tr_fail(TR_USAGE, "the value is not a JSON object like {\"name\": true}");
    cJSON_Delete(doc);
    return st;
}

enum tr_status tr_value_parse(struct loader *l, const struct option *opt, const char *text, struct tr_config *cfg)
{
    void *at = field_of(cfg, opt);
    bool is_word = opt->word != NULL && strcmp(opt->word, text) == 0;
    switch (opt->type) {
    case OPTION_BOOL:
        if (tr_bool_parse(text, at))
            return TR_OK;
        char shown[64];
        return tr_fail(TR_USAGE, "\"%s\" is neither true nor false", tr_escape(text, shown, sizeof shown));
    case OPTION_INT:
        if (is_word)
            *(int64_t *)at = -1;
        return is_word ? TR_OK : tr_parse_int(text, (int64_t)opt->lo, (int64_t)opt->hi, at);
    case OPTION_REAL:
        if (is_word)
            *(double *)at = -1;
        return is_word ? TR_OK : parse_real(opt, text, at);
    case OPTION_BYTES:
        return tr_parse_bytes(text, at);
    case OPTION_OBJECT:
    case OPTION_STR:
        if (opt->type == OPTION_OBJECT && check_object(text) != TR_OK)
            return TR_USAGE;
        if (text[0] == '\0')
            return tr_fail(TR_USAGE, "the value is empty");
        char *copy = tr_loader_keep(l, text, strlen(text) + 1);
        if (copy != NULL)
            *(const char **)at = copy;
        return copy != NULL ? TR_OK : TR_NOMEM;
    case OPTION_CHOICE:
        return parse_choice(l, opt, text, at);
    case OPTION_DATA:
        return parse_data(l, text, at == &l->c->pub.eval_data, at);
    case OPTION_WORDS:
        return parse_words(l, opt, text, at);
    case OPTION_SUM:
        return parse_sum(l, opt, text, at);
    case OPTION_SET:
        break;
    }
    TR_BUG_ON(true);
}

static void print_real(double x, struct tr_str *out)
{
    char buf[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, x);
        if (strtod(buf, NULL) == x)
            break;
    }
    tr_str_addf(out, "%s", buf);
}

static void print_text(const char *text, bool as_json, struct tr_str *out)
{
    if (as_json)
        tr_str_json(out, text);
    else
        tr_str_addf(out, "%s", text);
}

static void print_source(const struct tr_data_source *src, struct tr_str *out)
{
    bool has_weight = src->weight != 1.0 || weight_of(src->path) != NULL;
    if (src->map == NULL && src->name == NULL) {
        tr_str_addf(out, "%s%s", src->path, has_weight ? ":" : "");
        if (has_weight)
            print_real(src->weight, out);
        return;
    }
    tr_str_member(out, "{\"path\":", src->path);
    if (src->weight != 1.0) {
        tr_str_addf(out, ",\"weight\":");
        print_real(src->weight, out);
    }
    if (src->name != NULL)
        tr_str_member(out, ",\"name\":", src->name);
    tr_str_addf(out, "%s%s", src->map != NULL ? "," : "}",
                src->map != NULL ? src->map + 1 : ""); /* the members of an object that is not empty */
}

static void print_data(const struct tr_data_list *list, bool as_json, struct tr_str *out)
{
    struct tr_str one = { 0 };
    for (size_t i = 0; i < list->n; i++) {
        tr_str_clear(&one);
        print_source(&list->item[i], &one);
        tr_str_addf(out, "%s", i != 0 ? "," : "");
        if (as_json && (list->item[i].map != NULL || list->item[i].name != NULL))
            tr_str_addf(out, "%s", one.p != NULL ? one.p : "null");
        else
            print_text(one.p != NULL ? one.p : "", as_json, out);
    }
    tr_str_release(&one);
}

static const char *choice_word(const struct option *opt, int value)
{
    for (const struct choice *c = opt->choices; c->word != NULL; c++)
        if (c->value == value)
            return c->word;
    return "?";
}

const char *tr_config_word(const char *name, int value)
{
    const struct option *opt = tr_option_find_any(name);
    TR_BUG_ON(opt == NULL || !tr_option_has_words(opt));
    return choice_word(opt, value);
}

static void print_list(const void *at, const struct option *opt, bool as_json, struct tr_str *out)
{
    tr_str_addf(out, "%s", as_json ? "[" : "");
    if (opt->type == OPTION_DATA)
        print_data(at, as_json, out);
    const struct tr_words *words = at;
    for (size_t i = 0; opt->type == OPTION_WORDS && i < words->n; i++) {
        tr_str_addf(out, "%s", i != 0 ? "," : "");
        print_text(words->item[i], as_json, out);
    }
    tr_str_addf(out, "%s", as_json ? "]" : "");
}

static void print_choice(const struct tr_config *cfg, const struct option *opt, const char *word, bool as_json,
                         struct tr_str *out)
{
    const char *dir = *(const char *const *)(const void *)((const char *)cfg + opt->at_dir);
    struct tr_str text = { 0 };
    size_t n = before_dir(opt, word);
    tr_str_addf(&text, "%.*s%s", n ? (int)n : (int)strlen(word), word, n && dir ? dir : "");
    print_text(text.p != NULL ? text.p : word, as_json, out);
    tr_str_release(&text);
}

void tr_value_print(const struct tr_config *cfg, const struct option *opt, bool as_json, struct tr_str *out)
{
    const void *at = (const char *)cfg + opt->at;
    switch (opt->type) {
    case OPTION_BOOL:
        tr_str_addf(out, "%s", *(const bool *)at ? "true" : "false");
        break;
    case OPTION_INT:
    case OPTION_BYTES:
        if (opt->word != NULL && *(const int64_t *)at < 0)
            print_text(opt->word, as_json, out);
        else
            tr_str_addf(out, "%" PRId64, *(const int64_t *)at);
        break;
    case OPTION_REAL:
        if (opt->word != NULL && *(const double *)at < 0)
            print_text(opt->word, as_json, out);
        else
            print_real(*(const double *)at, out);
        break;
    case OPTION_OBJECT:
        tr_str_addf(out, "%s", *(const char *const *)at != NULL ? *(const char *const *)at : as_json ? "null" : "");
        break;
    case OPTION_STR:
    case OPTION_SUM:
        if (*(const char *const *)at != NULL)
            print_text(*(const char *const *)at, as_json, out);
        else
            tr_str_addf(out, "%s", as_json ? "null" : "");
        break;
    case OPTION_CHOICE:
        print_choice(cfg, opt, choice_word(opt, *(const int *)at), as_json, out);
        break;
    case OPTION_DATA:
    case OPTION_WORDS:
        print_list(at, opt, as_json, out);
        break;
    case OPTION_SET:
        break;
    }
}
