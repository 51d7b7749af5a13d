/* rows.c - one leaf of a file and the rows of its tool: which row it is, and what becomes of it.
 *
 * Rows of a key are tried in order; the first whose words match the value counts. An option that does not exist here,
 * or does not take the value, turns "taken" into "cannot" with the reason, so no table can promise what the build
 * lacks.
 */
#include "import/import_impl.h"

#include <ctype.h>
#include <math.h>
#include <strings.h>

static char lower(char c)
{
    return (char)tolower((unsigned char)c);
}

/* Iterative, with the last star remembered: linear in practice, at most n x m. */
bool tr_text_like(const char *pattern, size_t n_pattern, const char *text)
{
    size_t p = 0, star = SIZE_MAX;
    const char *from = text;
    while (*text != '\0') {
        if (p < n_pattern && pattern[p] == '*') {
            star = p++;
            from = text;
        } else if (p < n_pattern && lower(pattern[p]) == lower(*text)) {
            p++;
            text++;
        } else if (star != SIZE_MAX) {
            p = star + 1;
            text = ++from;
        } else {
            return false;
        }
    }
    while (p < n_pattern && pattern[p] == '*')
        p++;
    return p == n_pattern;
}

static bool is_off(const struct leaf *leaf)
{
    static const char *const words[] = { "", "false", "no", "none", "off", "null" };
    double v = 1;
    for (size_t i = 0; i < TR_COUNT_OF(words); i++)
        if (strcasecmp(leaf->text, words[i]) == 0)
            return true;
    bool is_number = !leaf->is_list && tr_parse_real(leaf->text, &v) == TR_OK;
    tr_error_clear();
    return leaf->is_null || (is_number && v == 0);
}

static bool is_class(const char *word, size_t n, const char *name)
{
    return strlen(name) == n && strncmp(word, name, n) == 0;
}

static bool word_matches(const char *word, size_t n, const struct leaf *leaf)
{
    double v = 0;
    if (is_class(word, n, "@absent"))
        return leaf == NULL;
    if (leaf == NULL)
        return false;
    if (is_class(word, n, "@off"))
        return is_off(leaf);
    if (is_class(word, n, "@on"))
        return !is_off(leaf);
    if (is_class(word, n, "@share") || is_class(word, n, "@many")) {
        bool is_number = tr_parse_real(leaf->text, &v) == TR_OK;
        tr_error_clear();
        return is_number && (word[1] == 's' ? v > 0 && v < 1 : v >= 1);
    }
    if (leaf->is_list) { /* any item */
        for (size_t i = 0; i < leaf->n_items; i++)
            if (tr_text_like(word, n, leaf->items[i]))
                return true;
        return false;
    }
    return tr_text_like(word, n, leaf->text);
}

bool tr_words_match(const char *words, const struct leaf *leaf)
{
    if (words == NULL)
        return leaf != NULL;
    for (size_t n; words += strspn(words, " "), n = strcspn(words, " "), n != 0; words += n)
        if (word_matches(words, n, leaf))
            return true;
    return false;
}

bool tr_row_has_key(const struct import_row *row, const char *path)
{
    const char *keys = row->key;
    for (size_t n; keys += strspn(keys, " "), n = strcspn(keys, " "), n != 0; keys += n)
        if (tr_text_like(keys, n, path))
            return true;
    return false;
}

/* "a.b=x y;!c=@on": all must hold. */
static bool holds(const char *when, const struct tree *t)
{
    char part[IMPORT_KEY_MAX];
    for (; when != NULL && *when != '\0'; when += strcspn(when, ";"), when += *when == ';') {
        size_t n = strcspn(when, ";");
        TR_BUG_ON(n >= sizeof part);
        memcpy(part, when, n);
        part[n] = '\0';
        bool is_not = part[0] == '!';
        char *eq = strchr(part, '=');
        TR_BUG_ON(eq == NULL);
        *eq = '\0';
        if (tr_words_match(eq + 1, tr_tree_find(t, part + is_not)) == is_not)
            return false;
    }
    return true;
}

/* 500_000, as YAML 1.1 reads it. */
static bool has_groups(const char *text)
{
    size_t n = strlen(text);
    return n != 0 && strspn(text, "0123456789_") == n && text[0] != '_' && text[n - 1] != '_' && strchr(text, '_');
}

/* 5e8, 8.0 and 500_000 are whole numbers for options that want those. Any other text stays as it is. */
static const char *plain_number(const char *text, char *out, size_t n_out)
{
    double v = 0;
    if (has_groups(text)) {
        size_t n = 0;
        for (; *text != '\0' && n + 1 < n_out; text++)
            if (*text != '_')
                out[n++] = *text;
        out[n] = '\0';
        return out;
    }
    bool is_number = strpbrk(text, "eE.") != NULL && tr_parse_real(text, &v) == TR_OK;
    tr_error_clear();
    if (!is_number || v != (double)(int64_t)(fabs(v) < 1e15 ? v : 0.5) || fabs(v) >= 1e15)
        return text;
    snprintf(out, n_out, "%" PRId64, (int64_t)v);
    return out;
}

struct set_pair {
    char option[64], text[TR_PATH_MAX];
    const char *value;    /* text, or the leaf's own: a chat template may be longer */
    bool is_own, is_each; /* the option's own value; one value an item of the list */
};

/* The next "name=value" of sets. */
static bool next_pair(const char **sets, const struct leaf *leaf, const char *converted, struct set_pair *out)
{
    *sets += strspn(*sets, " ");
    size_t n = strcspn(*sets, " "), n_name = 0;
    if (n == 0)
        return false;
    const char *eq = memchr(*sets, '=', n), *value = eq != NULL ? eq + 1 : "$";
    size_t n_value = eq != NULL ? n - (size_t)(eq - *sets) - 1 : 1;
    n_name = eq != NULL ? (size_t)(eq - *sets) : n;
    snprintf(out->option, sizeof out->option, "%.*s", (int)n_name, *sets);
    out->is_own = is_class(value, n_value, "@own");
    out->is_each = is_class(value, n_value, "$") && leaf->is_list && converted == NULL;
    out->value = out->text;
    if (is_class(value, n_value, "$"))
        out->value = plain_number(converted != NULL ? converted : leaf->text, out->text, sizeof out->text);
    else if (n_value == 2 && value[0] == '$' && (size_t)(value[1] - '0') < leaf->n_items)
        out->value = plain_number(leaf->items[value[1] - '0'], out->text, sizeof out->text);
    else
        snprintf(out->text, sizeof out->text, "%.*s", (int)n_value, value);
    *sets += n;
    return true;
}

/* Options of the launcher are lines for a shell, not options of a run. `launch_--nnodes` stands for `launch --nnodes`.
 */
static bool is_launch(const char *option)
{
    return strncmp(option, "launch_", 7) == 0;
}

static bool can_set(const struct tr_import *im, const struct set_pair *p, const struct leaf *leaf, char *why,
                    size_t n_why)
{
    const struct tr_import_target *to = im->target;
    if (is_launch(p->option))
        return true;
    if (!to->is_option(to->ctx, p->option)) {
        snprintf(why, n_why, "there is no option %s here", p->option);
        return false;
    }
    if (p->is_own)
        return true;
    for (size_t i = 0; p->is_each && i < leaf->n_items; i++)
        if (!to->can_set(to->ctx, p->option, leaf->items[i], why, n_why))
            return false;
    return p->is_each || to->can_set(to->ctx, p->option, p->value, why, n_why);
}

static void add_pair(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row,
                     const struct set_pair *p)
{
    char option[80];
    snprintf(option, sizeof option, "%s", p->option);
    if (is_launch(option))
        option[6] = ' ';
    if (!p->is_each)
        tr_import_add(im, t, leaf, row->verdict, option, p->is_own ? NULL : p->value, row->why);
    for (size_t i = 0; p->is_each && i < leaf->n_items; i++) {
        struct leaf one = *leaf; /* reported by itself: the whole list, once for each, would be its length squared */
        one.text = leaf->items[i];
        tr_import_add(im, t, &one, row->verdict, option, leaf->items[i], row->why);
    }
}

/* False: the row does not fit after all, and the next may. */
static bool apply_row(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row)
{
    char why[512] = "", text[TR_PATH_MAX];
    const char *converted = NULL, *sets = row->sets;
    struct set_pair *p = NULL;
    bool is_fit = true;
    if (row->convert != NULL && !row->convert(t, leaf, text, sizeof text))
        return false;
    if (row->convert != NULL)
        converted = text;
    if (row->apply != NULL) {
        row->apply(im, t, leaf, row);
        return true;
    }
    if (row->part != NULL) {
        tr_import_part(im, t, leaf, tr_tool_find(row->part));
        return true;
    }
    if (sets == NULL) {
        tr_import_add(im, t, leaf, row->verdict, NULL, NULL, row->why);
        return true;
    }
    p = malloc(sizeof *p);
    if (p == NULL) {
        im->is_nomem = true;
        return true;
    }
    while (is_fit && next_pair(&sets, leaf, converted, p))
        is_fit = can_set(im, p, leaf, why, sizeof why);
    if (is_fit)
        for (sets = row->sets; next_pair(&sets, leaf, converted, p);)
            add_pair(im, t, leaf, row, p);
    else if (!row->or_next)
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, why);
    free(p);
    return is_fit || !row->or_next;
}

void tr_import_row(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row)
{
    (void)apply_row(im, t, leaf, row);
}

bool tr_rows_have_section(const struct tool *tool, const char *path)
{
    size_t n = strlen(path);
    for (; tool != NULL; tool = tool->base)
        for (const struct import_row *row = tool->rows; row->key != NULL; row++)
            for (const char *key = row->key; *key != '\0'; key += strcspn(key, " "), key += *key == ' ')
                if (strncmp(key, path, n) == 0 && (key[n] == '.' || key[n] == '['))
                    return true;
    return false;
}

static void add_unknown(struct tr_import *im, const struct tree *t, const struct leaf *leaf)
{
    enum { NAMES = 1024 };
    const char **names = malloc(NAMES * sizeof *names);
    size_t n = 0;
    struct tr_owned *kept = NULL;
    char why[128] = "";
    for (const struct tool *tool = t->tool; tool != NULL && names != NULL; tool = tool->base)
        for (const struct import_row *row = tool->rows; row->key != NULL; row++)
            for (const char *key = row->key; *key != '\0'; key += strcspn(key, " "), key += *key == ' ') {
                size_t n_key = strcspn(key, " ");
                char *name = n < NAMES ? tr_keep(&kept, NULL, n_key + 1) : NULL;
                if (name != NULL) {
                    memcpy(name, key, n_key);
                    names[n++] = name;
                }
            }
    const char *near = names != NULL ? tr_nearest(leaf->path, names, n) : NULL;
    if (near != NULL)
        snprintf(why, sizeof why, "did you mean %s?", near);
    tr_import_add(im, t, leaf, TR_IMPORT_UNKNOWN, NULL, NULL, near != NULL ? why : NULL);
    tr_owned_release(&kept);
    free(names);
}

static bool is_skipped(const struct tr_import *im, const struct leaf *leaf)
{
    for (size_t i = 0; i < im->n_skip; i++)
        if (tr_text_like(im->skip[i], strlen(im->skip[i]), leaf->key) ||
            tr_text_like(im->skip[i], strlen(im->skip[i]), leaf->path))
            return true;
    return false;
}

void tr_import_leaf(struct tr_import *im, const struct tree *t, const struct leaf *leaf)
{
    bool has_key = false;
    if (is_skipped(im, leaf)) {
        tr_import_add(im, t, leaf, TR_IMPORT_DECIDED, NULL, NULL, "left out, as --skip says");
        return;
    }
    for (const struct tool *tool = t->tool; tool != NULL; tool = tool->base)
        for (const struct import_row *row = tool->rows; row->key != NULL; row++) {
            if (!tr_row_has_key(row, leaf->path))
                continue;
            has_key = true;
            if (!leaf->is_null && tr_words_match(row->value, leaf) && holds(row->when, t) &&
                apply_row(im, t, leaf, row))
                return;
        }
    const struct tool *last = t->tool;
    while (last->base != NULL)
        last = last->base;
    if (!has_key && !leaf->is_null && last->takes_ours && im->target->is_option(im->target->ctx, leaf->path)) {
        struct import_row ours = { .key = leaf->path, TAKEN, .sets = leaf->path };
        (void)apply_row(im, t, leaf, &ours);
    } else if (leaf->is_null && (has_key || tr_rows_have_section(t->tool, leaf->path) ||
                                 im->target->is_option(im->target->ctx, leaf->path)))
        tr_import_add(im, t, leaf, TR_IMPORT_DECIDED, NULL, NULL, "empty: not given");
    else if (has_key && is_off(leaf))
        tr_import_add(im, t, leaf, TR_IMPORT_DECIDED, NULL, NULL, "off");
    else if (has_key)
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, "there is nothing like this value here");
    else
        add_unknown(im, t, leaf);
}

/* Defaults give way to what any file says. */
static bool is_decided_elsewhere(const struct tr_import *im, const char *sets)
{
    char name[64];
    for (size_t n; sets += strspn(sets, " "), n = strcspn(sets, " "), n != 0; sets += n) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(sets, " ="), sets);
        if (tr_import_given(im, name) != NULL)
            return true;
    }
    return false;
}

void tr_import_absent(struct tr_import *im, const struct tree *t)
{
    for (const struct tool *tool = t->tool; tool != NULL; tool = tool->base)
        for (const struct import_row *row = tool->rows; row->key != NULL; row++) {
            char key[IMPORT_KEY_MAX];
            bool is_there = row->value == NULL || strcmp(row->value, "@absent") != 0;
            for (const char *keys = row->key; !is_there && *keys != '\0';
                 keys += strcspn(keys, " "), keys += *keys == ' ') {
                snprintf(key, sizeof key, "%.*s", (int)strcspn(keys, " "), keys);
                is_there = tr_tree_find(t, key) != NULL;
            }
            snprintf(key, sizeof key, "%.*s", (int)strcspn(row->key, " "), row->key);
            struct leaf leaf = { .path = key, .key = key, .text = "" };
            if (!is_there && holds(row->when, t) && !is_skipped(im, &leaf) &&
                (row->sets == NULL || !is_decided_elsewhere(im, row->sets)))
                (void)apply_row(im, t, &leaf, row);
        }
}
