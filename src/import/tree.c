/* tree.c - a YAML or JSON file as a list of leaves with paths and lines.
 *
 * Files of other tools have what run files of ours have not: maps in maps, lists of maps, anchors, empty values,
 * `${key}` of OmegaConf. A file has at most 1 MiB and 8,192 leaves and items of lists; an alias copies the leaves of
 * its anchor, so nothing expands beyond that. Rejected: a tree of nodes (rows match paths), and a second parser for
 * JSON (libyaml reads it, once tabs between its tokens are blanks).
 */
#include "import/import_impl.h"

#include <yaml.h>

enum { VALUES_MAX = 8192, DEPTH_MAX = 24, ANCHORS_MAX = 256, REFERENCE_MAX = 4096 };

struct anchor {
    const char *name;
    size_t first, last; /* leaves that the anchored node became */
    size_t n_path, n_key;
};

struct leaf_place {
    char path[IMPORT_KEY_MAX], key[IMPORT_KEY_MAX];
    size_t line;
};

struct tree_reader {
    struct tree *t;
    yaml_parser_t parser;
    struct anchor anchors[ANCHORS_MAX];
    size_t n_anchors;
    size_t n_values; /* leaves, and items of lists */
    int depth;
};

static enum tr_status fail_at(const struct tree *t, size_t line, const char *why)
{
    char shown[512];
    return tr_fail(TR_USAGE, "%s:%zu: %s", tr_escape(t->path, shown, sizeof shown), line, why);
}

static enum tr_status next_event(struct tree_reader *r, yaml_event_t *e)
{
    if (yaml_parser_parse(&r->parser, e))
        return TR_OK;
    return fail_at(r->t, r->parser.problem_mark.line + 1,
                   r->parser.problem != NULL ? r->parser.problem : "not YAML or JSON");
}

static const char *keep_text(struct tree *t, const char *text)
{
    return tr_keep(t->kept, text, strlen(text) + 1);
}

static enum tr_status count_value(struct tree_reader *r, size_t line)
{
    return ++r->n_values > VALUES_MAX ? fail_at(r->t, line, "more than 8,192 values") : TR_OK;
}

static enum tr_status add_leaf(struct tree_reader *r, const struct leaf_place *at, struct leaf leaf)
{
    struct tree *t = r->t;
    for (size_t i = 0; i < t->n_leaves; i++)
        if (strcmp(t->leaves[i].key, at->key) == 0) {
            char shown[IMPORT_KEY_MAX], why[IMPORT_KEY_MAX + 64];
            snprintf(why, sizeof why, "%s is there twice, first in line %zu", tr_escape(at->key, shown, sizeof shown),
                     t->leaves[i].line);
            return fail_at(t, at->line, why);
        }
    TR_PASS(count_value(r, at->line));
    TR_PASS(TR_ROOM(t->leaves, t->n_leaves + 1, &t->n_cap, "%s", t->path));
    leaf.path = keep_text(t, at->path);
    leaf.key = keep_text(t, at->key);
    leaf.line = at->line;
    if (leaf.path == NULL || leaf.key == NULL || leaf.text == NULL)
        return tr_fail(TR_NOMEM, "no memory for %s", t->path);
    t->leaves[t->n_leaves++] = leaf;
    return TR_OK;
}

/* `at` extended by ".name" (name NULL: by the index of an item). */
static enum tr_status enter(struct tree_reader *r, const struct leaf_place *at, const char *name, size_t index,
                            size_t line, struct leaf_place *out)
{
    const char *dot = at->path[0] != '\0' ? "." : "";
    int n, m;
    if (name != NULL) {
        n = snprintf(out->path, sizeof out->path, "%s%s%s", at->path, dot, name);
        m = snprintf(out->key, sizeof out->key, "%s%s%s", at->key, dot, name);
    } else {
        n = snprintf(out->path, sizeof out->path, "%s[]", at->path);
        m = snprintf(out->key, sizeof out->key, "%s[%zu]", at->key, index);
    }
    out->line = line;
    if (n < 0 || m < 0 || n >= IMPORT_KEY_MAX || m >= IMPORT_KEY_MAX)
        return fail_at(r->t, line, "a key is too long");
    return TR_OK;
}

static enum tr_status remember(struct tree_reader *r, const yaml_char_t *name, const struct leaf_place *at,
                               size_t first)
{
    if (name == NULL)
        return TR_OK;
    if (r->n_anchors == ANCHORS_MAX)
        return fail_at(r->t, at->line, "more than 256 anchors");
    const char *kept = keep_text(r->t, (const char *)name);
    if (kept == NULL)
        return tr_fail(TR_NOMEM, "no memory for %s", r->t->path);
    r->anchors[r->n_anchors++] = (struct anchor){ kept, first, r->t->n_leaves, strlen(at->path), strlen(at->key) };
    return TR_OK;
}

static const struct anchor *find_anchor(const struct tree_reader *r, const yaml_char_t *name)
{
    for (size_t i = r->n_anchors; i-- > 0;)
        if (strcmp(r->anchors[i].name, (const char *)name) == 0)
            return &r->anchors[i];
    return NULL;
}

/* `<<: *anchor` lays the leaves beside the keys of the map; those that are there stay. */
static enum tr_status copy_anchor(struct tree_reader *r, const yaml_event_t *e, const struct leaf_place *at,
                                  bool is_merge)
{
    const struct anchor *a = find_anchor(r, e->data.alias.anchor);
    if (a == NULL)
        return fail_at(r->t, at->line, "an alias without its anchor");
    for (size_t i = a->first; i < a->last; i++) {
        struct leaf leaf = r->t->leaves[i];
        struct leaf_place to = { .line = at->line };
        size_t drop = is_merge && at->path[0] == '\0' && leaf.path[a->n_path] == '.';
        int n = snprintf(to.path, sizeof to.path, "%s%s", at->path, leaf.path + a->n_path + drop);
        int m = snprintf(to.key, sizeof to.key, "%s%s", at->key, leaf.key + a->n_key + drop);
        if (n < 0 || m < 0 || n >= IMPORT_KEY_MAX || m >= IMPORT_KEY_MAX)
            return fail_at(r->t, at->line, "a key is too long");
        if (!is_merge || !tr_tree_has(r->t, to.path))
            TR_PASS(add_leaf(r, &to, leaf));
    }
    return TR_OK;
}

static bool is_null(const yaml_event_t *e)
{
    static const char *const words[] = { "", "~", "null", "Null", "NULL" };
    for (size_t i = 0; i < TR_COUNT_OF(words); i++)
        if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
            strcmp((const char *)e->data.scalar.value, words[i]) == 0)
            return true;
    return false;
}

static enum tr_status scalar_text(struct tree_reader *r, const yaml_event_t *e, const char **out)
{
    const char *text = (const char *)e->data.scalar.value;
    if (strlen(text) != e->data.scalar.length)
        return fail_at(r->t, e->start_mark.line + 1, "a NUL byte in a value");
    *out = keep_text(r->t, text);
    return *out != NULL ? TR_OK : tr_fail(TR_NOMEM, "no memory for %s", r->t->path);
}

static enum tr_status read_node(struct tree_reader *r, const yaml_event_t *e, const struct leaf_place *at);

static enum tr_status read_map(struct tree_reader *r, const struct leaf_place *at)
{
    enum tr_status st = TR_OK;
    yaml_event_t e, value;
    size_t n = 0;
    for (;; n++) {
        TR_TRY(next_event(r, &e));
        bool is_over = e.type == YAML_MAPPING_END_EVENT, is_name = e.type == YAML_SCALAR_EVENT;
        struct leaf_place below;
        size_t line = e.start_mark.line + 1;
        bool is_merge = is_name && strcmp((const char *)e.data.scalar.value, "<<") == 0;
        if (is_name)
            st = enter(r, at, (const char *)e.data.scalar.value, 0, line, &below);
        yaml_event_delete(&e);
        if (is_over || st != TR_OK)
            break;
        if (!is_name)
            return fail_at(r->t, line, "a key must be a plain name");
        TR_TRY(next_event(r, &value));
        st = is_merge && value.type == YAML_ALIAS_EVENT ? copy_anchor(r, &value, at, true)
                                                        : read_node(r, &value, &below);
        yaml_event_delete(&value);
        TR_TRY(st);
    }
    if (st == TR_OK && n == 0 && at->path[0] != '\0')
        st = add_leaf(r, at, (struct leaf){ .text = "", .is_null = true });
out:
    return st;
}

/* Plain items become one leaf; maps and lists in the list become leaves below it. */
static enum tr_status read_list(struct tree_reader *r, const struct leaf_place *at)
{
    enum tr_status st = TR_OK;
    struct tr_str joined = { 0 };
    const char **items = NULL;
    size_t n_items = 0, index = 0;
    for (;; index++) {
        yaml_event_t e;
        struct leaf_place below;
        TR_TRY(next_event(r, &e));
        bool is_over = e.type == YAML_SEQUENCE_END_EVENT;
        const char *text = NULL;
        if (e.type == YAML_SCALAR_EVENT) {
            st = count_value(r, e.start_mark.line + 1);
            if (st == TR_OK)
                st = scalar_text(r, &e, &text);
        } else if (!is_over) {
            st = enter(r, at, NULL, index, e.start_mark.line + 1, &below);
            if (st == TR_OK)
                st = read_node(r, &e, &below);
        }
        yaml_event_delete(&e);
        TR_TRY(st);
        if (is_over)
            break;
        if (text == NULL)
            continue;
        if ((n_items & (n_items - 1)) == 0) {
            const char **grown = tr_keep(r->t->kept, NULL, (n_items == 0 ? 1 : 2 * n_items) * sizeof *grown);
            if (grown == NULL) {
                st = tr_fail(TR_NOMEM, "no memory for %s", r->t->path);
                goto out;
            }
            if (n_items != 0)
                memcpy(grown, items, n_items * sizeof *grown);
            items = grown;
        }
        items[n_items++] = text;
        tr_str_addf(&joined, "%s%s", n_items != 1 ? "," : "", text);
    }
    if (n_items != 0 || index == 0)
        st = add_leaf(r, at,
                      (struct leaf){ .text = n_items != 0 && joined.p != NULL ? keep_text(r->t, joined.p) : "",
                                     .items = items,
                                     .n_items = n_items,
                                     .is_list = n_items != 0,
                                     .is_null = n_items == 0 });
out:
    tr_str_release(&joined);
    return st;
}

static enum tr_status read_node(struct tree_reader *r, const yaml_event_t *e, const struct leaf_place *at)
{
    size_t first = r->t->n_leaves;
    struct leaf leaf = { 0 };
    if (++r->depth > DEPTH_MAX)
        return fail_at(r->t, e->start_mark.line + 1, "nested too deeply");
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        leaf.is_null = is_null(e);
        TR_PASS(scalar_text(r, e, &leaf.text));
        if (leaf.is_null)
            leaf.text = "";
        TR_PASS(add_leaf(r, at, leaf));
        TR_PASS(remember(r, e->data.scalar.anchor, at, first));
        break;
    case YAML_MAPPING_START_EVENT:
        TR_PASS(read_map(r, at));
        TR_PASS(remember(r, e->data.mapping_start.anchor, at, first));
        break;
    case YAML_SEQUENCE_START_EVENT:
        TR_PASS(read_list(r, at));
        TR_PASS(remember(r, e->data.sequence_start.anchor, at, first));
        break;
    case YAML_ALIAS_EVENT:
        TR_PASS(copy_anchor(r, e, at, false));
        break;
    default:
        return fail_at(r->t, e->start_mark.line + 1, "expected a value");
    }
    r->depth--;
    return TR_OK;
}

const struct leaf *tr_tree_find(const struct tree *t, const char *path)
{
    for (size_t i = 0; i < t->n_leaves; i++)
        if (!t->leaves[i].is_null && strcmp(t->leaves[i].path, path) == 0)
            return &t->leaves[i];
    return NULL;
}

bool tr_tree_has(const struct tree *t, const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < t->n_leaves; i++) {
        const char *p = t->leaves[i].path;
        if (strncmp(p, path, n) == 0 && (p[n] == '\0' || p[n] == '.' || p[n] == '['))
            return true;
    }
    return false;
}

/* `${a.b}` becomes the text of a.b, which may hold references in turn; what names no leaf stays as it is. */
static enum tr_status resolve(struct tree *t, struct leaf *leaf)
{
    for (int round = 0; round < 8; round++) {
        const char *start = strstr(leaf->text, "${"), *end = start != NULL ? strchr(start, '}') : NULL;
        char path[IMPORT_KEY_MAX], text[REFERENCE_MAX];
        size_t n = end != NULL ? (size_t)(end - start) - 2 : 0;
        if (n == 0 || n >= sizeof path)
            return TR_OK;
        memcpy(path, start + 2, n);
        path[n] = '\0';
        const struct leaf *other = tr_tree_find(t, path);
        if (other == NULL || other == leaf)
            return TR_OK;
        int m = snprintf(text, sizeof text, "%.*s%s%s", (int)(start - leaf->text), leaf->text, other->text, end + 1);
        if (m < 0 || m >= REFERENCE_MAX)
            return fail_at(t, leaf->line, "a reference makes a text too long");
        leaf->text = keep_text(t, text);
        if (leaf->text == NULL)
            return tr_fail(TR_NOMEM, "no memory for %s", t->path);
    }
    return TR_OK;
}

static enum tr_status read_document(struct tree_reader *r)
{
    bool is_over = false;
    int n_documents = 0;
    while (!is_over) {
        yaml_event_t e;
        enum tr_status st = TR_OK;
        TR_PASS(next_event(r, &e));
        is_over = e.type == YAML_STREAM_END_EVENT;
        size_t line = e.start_mark.line + 1;
        if (e.type == YAML_DOCUMENT_START_EVENT && n_documents++ != 0)
            st = fail_at(r->t, line, "a second document; one file, one run");
        else if (e.type == YAML_MAPPING_START_EVENT)
            st = read_node(r, &e, &(struct leaf_place){ .line = line });
        else if (e.type == YAML_SCALAR_EVENT || e.type == YAML_SEQUENCE_START_EVENT || e.type == YAML_ALIAS_EVENT)
            st = fail_at(r->t, line, "expected a mapping like learning_rate: 5e-5");
        yaml_event_delete(&e);
        TR_PASS(st);
    }
    return TR_OK;
}

/* A copy in which tabs between the tokens of JSON are blanks; YAML has none there and stays as it is. */
static char *without_tabs(const char *text, size_t n)
{
    char *copy = malloc(n + 1);
    bool is_json = false, is_text = false;
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    is_json = copy[strspn(copy, " \t\r\n")] == '{';
    for (size_t i = 0; is_json && i < n; i++) {
        if (is_text && copy[i] == '\\' && i + 1 < n)
            i++;
        else if (copy[i] == '"')
            is_text = !is_text;
        else if (copy[i] == '\t' && !is_text)
            copy[i] = ' ';
    }
    return copy;
}

enum tr_status tr_tree_read(struct tree *t, const char *text, size_t n)
{
    enum tr_status st = TR_OK;
    struct tree_reader *r = calloc(1, sizeof *r);
    char *copy = NULL;
    if (n > IMPORT_FILE_MAX) {
        free(r);
        return tr_fail(TR_USAGE, "%s: more than %d bytes", t->path, IMPORT_FILE_MAX);
    }
    copy = without_tabs(text, n);
    if (r == NULL || copy == NULL || !yaml_parser_initialize(&r->parser)) {
        free(r);
        free(copy);
        return tr_fail(TR_NOMEM, "no memory for %s", t->path);
    }
    r->t = t;
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)copy, n);
    st = read_document(r);
    for (size_t i = 0; st == TR_OK && i < t->n_leaves; i++)
        st = resolve(t, &t->leaves[i]);
    yaml_parser_delete(&r->parser);
    free(r);
    free(copy);
    return st;
}

const struct leaf *tr_tree_beside(const struct tree *t, const struct leaf *leaf, const char *name)
{
    char key[IMPORT_KEY_MAX];
    const char *dot = strrchr(leaf->key, '.');
    snprintf(key, sizeof key, "%.*s.%s", dot != NULL ? (int)(dot - leaf->key) : 0, leaf->key, name);
    for (size_t i = 0; i < t->n_leaves; i++)
        if (!t->leaves[i].is_null && strcmp(t->leaves[i].key, key) == 0)
            return &t->leaves[i];
    return NULL;
}
