/* yaml.c - the run file: a mapping of options, or of groups of options, with scalars or lists of scalars as values.
 *
 * Invariant: at most 1 MiB and two levels of mapping are looked at; anchors, aliases, tags and a second document are
 * refused, so no text can expand. A bad value is recorded and reading goes on; bad grammar ends it. Rejected: the
 * document API of libyaml (builds the tree first, and loses the places of scalars).
 */
#include "config/config_impl.h"

#include <yaml.h>

enum { FILE_MAX = 1 << 20, DEPTH_MAX = 32 };

struct yaml_reader {
    struct loader *l;
    yaml_parser_t parser;
    const char *name;
    bool is_broken;        /* grammar: nothing more can be read */
    unsigned seen_groups;  /* bit per tr_groups row */
    char where[WHERE_MAX]; /* of the last event */
};

static const char *set_where(struct yaml_reader *r, yaml_mark_t at)
{
    char shown[WHERE_MAX - 64];
    snprintf(r->where, sizeof r->where, "%s:%zu:%zu", tr_escape(r->name, shown, sizeof shown), at.line + 1,
             at.column + 1);
    return r->where;
}

static void break_off(struct yaml_reader *r, const char *why)
{
    if (!r->is_broken)
        tr_loader_error(r->l, "%s: %s", r->where, why);
    r->is_broken = true;
}

/* The next event, with what is never allowed already refused; false when there is nothing more to read. */
static bool next_event(struct yaml_reader *r, yaml_event_t *e)
{
    if (r->is_broken)
        return false;
    if (!yaml_parser_parse(&r->parser, e)) {
        set_where(r, r->parser.problem_mark);
        break_off(r, r->parser.problem != NULL ? r->parser.problem : "not YAML");
        return false;
    }
    set_where(r, e->start_mark);
    bool is_marked = e->type == YAML_ALIAS_EVENT || (e->type == YAML_SCALAR_EVENT && e->data.scalar.anchor != NULL) ||
                     (e->type == YAML_SEQUENCE_START_EVENT && e->data.sequence_start.anchor != NULL) ||
                     (e->type == YAML_MAPPING_START_EVENT && e->data.mapping_start.anchor != NULL);
    bool is_tagged = (e->type == YAML_SCALAR_EVENT && e->data.scalar.tag != NULL) ||
                     (e->type == YAML_SEQUENCE_START_EVENT && e->data.sequence_start.tag != NULL) ||
                     (e->type == YAML_MAPPING_START_EVENT && e->data.mapping_start.tag != NULL);
    if (is_marked)
        break_off(r, "anchors and aliases are refused; write the value out");
    else if (is_tagged)
        break_off(r, "tags are refused; write the plain value");
    if (r->is_broken)
        yaml_event_delete(e);
    return !r->is_broken;
}

static bool is_start(const yaml_event_t *e)
{
    return e->type == YAML_SEQUENCE_START_EVENT || e->type == YAML_MAPPING_START_EVENT;
}

static bool is_end(const yaml_event_t *e)
{
    return e->type == YAML_SEQUENCE_END_EVENT || e->type == YAML_MAPPING_END_EVENT;
}

/* Reads past the rest of a node whose start was just read. */
static void skip_node(struct yaml_reader *r)
{
    yaml_event_t e;
    for (int depth = 1; depth > 0 && next_event(r, &e); yaml_event_delete(&e)) {
        depth += is_start(&e) ? 1 : is_end(&e) ? -1 : 0;
        if (depth > DEPTH_MAX)
            break_off(r, "nested too deeply");
    }
}

/* A scalar as a C string owned by the event, or NULL after an error. */
static const char *text_of(struct yaml_reader *r, const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    if (strlen(text) == e->data.scalar.length)
        return text;
    tr_loader_error(r->l, "%s: a NUL byte in a value", r->where);
    return NULL;
}

static bool is_null(const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    return e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (strcmp(text, "null") == 0 || strcmp(text, "~") == 0);
}

static void give_scalar(struct yaml_reader *r, const char *key, const yaml_event_t *e, bool is_more)
{
    const char *text = text_of(r, e);
    bool is_plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (text != NULL && text[0] == '\0' && is_plain)
        tr_loader_error(r->l, "%s: %s: a value is missing; write null for the default", r->where, key);
    else if (text != NULL && !is_null(e))
        tr_loader_give(r->l, &(struct given){ LEVEL_FILE, key, text, r->where, is_more });
}

/* A plain scalar that reads as true, false, null or a number is that; all else is a text. */
static void add_scalar(struct yaml_reader *r, const yaml_event_t *e, struct tr_str *out)
{
    const char *text = text_of(r, e);
    bool is_plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE, is_on;
    double number;
    bool is_number = is_plain && text != NULL && tr_parse_real(text, &number) == TR_OK;
    tr_error_clear();
    if (text == NULL)
        return;
    if (is_plain && (text[0] == '\0' || is_null(e)))
        tr_str_addf(out, "null");
    else if (is_plain && !is_number && tr_bool_parse(text, &is_on))
        tr_str_addf(out, is_on ? "true" : "false");
    else if (is_number)
        tr_str_addf(out, "%.17g", number);
    else
        tr_str_json(out, text);
}

/* The node whose first event this is, as JSON. */
static void add_json(struct yaml_reader *r, const yaml_event_t *start, int depth, struct tr_str *out)
{
    bool is_map = start->type == YAML_MAPPING_START_EVENT, is_over = false;
    yaml_event_t e;
    if (!is_start(start)) {
        add_scalar(r, start, out);
        return;
    }
    if (depth > DEPTH_MAX)
        break_off(r, "nested too deeply");
    tr_str_addf(out, is_map ? "{" : "[");
    for (size_t i = 0; !is_over && next_event(r, &e); i++) {
        is_over = is_end(&e);
        if (!is_over && i != 0)
            tr_str_addf(out, is_map && i % 2 == 1 ? ":" : ",");
        if (!is_over && is_map && i % 2 == 0 && e.type == YAML_SCALAR_EVENT)
            tr_str_json(out, text_of(r, &e) != NULL ? (const char *)e.data.scalar.value : "");
        else if (!is_over)
            add_json(r, &e, depth + 1, out);
        yaml_event_delete(&e);
    }
    tr_str_addf(out, is_map ? "}" : "]");
}

/* A map where a JSON object is wanted. */
static void give_object(struct yaml_reader *r, const char *key, const yaml_event_t *start, bool is_more)
{
    struct tr_str text = { 0 };
    char where[WHERE_MAX];
    memcpy(where, r->where, sizeof where);
    add_json(r, start, 0, &text);
    if (!tr_str_ok(&text))
        r->l->is_nomem = true;
    else if (!r->is_broken)
        tr_loader_give(r->l, &(struct given){ LEVEL_FILE, key, text.p, where, is_more });
    tr_str_release(&text);
}

static void give_sequence(struct yaml_reader *r, const char *key)
{
    const struct option *opt = tr_option_find_any(key);
    bool is_list = opt != NULL && tr_option_is_list(opt);
    if (opt != NULL && !is_list) {
        tr_loader_error(r->l, "%s: %s takes one value, not a list", r->where, key);
        skip_node(r);
        return;
    }
    yaml_event_t e;
    bool is_more = false, is_over = false;
    while (!is_over && next_event(r, &e)) {
        is_over = is_end(&e);
        if (e.type == YAML_SCALAR_EVENT) {
            give_scalar(r, key, &e, is_more);
            is_more = true;
        } else if (e.type == YAML_MAPPING_START_EVENT && opt != NULL && opt->type == OPTION_DATA) {
            give_object(r, key, &e, is_more);
            is_more = true;
        } else if (is_start(&e)) {
            tr_loader_error(r->l, "%s: items of %s are plain values", r->where, key);
            skip_node(r);
        }
        yaml_event_delete(&e);
    }
}

/* One value of a list whose items are NAME=VALUE. */
static void give_named(struct yaml_reader *r, const char *key, const char *name, const yaml_event_t *e, bool is_more)
{
    const char *text = text_of(r, e);
    struct tr_str item = { 0 };
    if (text == NULL)
        return;
    tr_str_addf(&item, "%s=%s", name, text);
    if (!tr_str_ok(&item))
        r->l->is_nomem = true;
    else
        tr_loader_give(r->l, &(struct given){ LEVEL_FILE, key, item.p, r->where, is_more });
    tr_str_release(&item);
}

/* The value of a name: one, or a list of them. */
static void give_values(struct yaml_reader *r, const char *key, const char *name, bool *is_more)
{
    yaml_event_t e;
    bool is_list = false, is_over = false;
    while (!is_over && next_event(r, &e)) {
        is_over = !is_list || e.type == YAML_SEQUENCE_END_EVENT;
        if (e.type == YAML_SCALAR_EVENT) {
            give_named(r, key, name, &e, *is_more);
            *is_more = true;
        } else if (e.type == YAML_SEQUENCE_START_EVENT && !is_list) {
            is_list = true;
            is_over = false;
        } else if (is_start(&e)) {
            tr_loader_error(r->l, "%s: values of %s are plain values or lists of them", r->where, key);
            skip_node(r);
        }
        yaml_event_delete(&e);
    }
}

/* NAME: VALUE, or NAME: [VALUE, ...] */
static void give_names(struct yaml_reader *r, const char *key)
{
    yaml_event_t e;
    bool is_more = false, is_over = false;
    while (!is_over && next_event(r, &e)) {
        char name[KEY_MAX];
        const char *text = e.type == YAML_SCALAR_EVENT ? text_of(r, &e) : NULL;
        int n = text != NULL ? snprintf(name, sizeof name, "%s", text) : 0;
        is_over = e.type == YAML_MAPPING_END_EVENT;
        if (n > 0 && (size_t)n < sizeof name)
            give_values(r, key, name, &is_more);
        else if (!is_over)
            break_off(r, "a key must be a plain name");
        yaml_event_delete(&e);
    }
}

static bool has_names(const char *key)
{
    const struct option *opt = tr_option_find_any(key);
    return opt != NULL && opt->has_names;
}

static bool is_object(const char *key)
{
    const struct option *opt = tr_option_find_any(key);
    return opt != NULL && opt->type == OPTION_OBJECT;
}

static int group_of(const char *key)
{
    for (int i = 0; tr_groups[i] != NULL; i++)
        if (strcmp(tr_groups[i], key) == 0)
            return i;
    return -1;
}

/* True when `key` (inside no group) names a group that was not there before. */
static bool open_group(struct yaml_reader *r, const char *group, const char *key)
{
    int i = group == NULL ? group_of(key) : -1;
    char shown[KEY_MAX];
    tr_escape(key, shown, sizeof shown);
    if (i < 0) {
        struct tr_str names = { 0 };
        for (int k = 0; tr_groups[k] != NULL; k++)
            tr_str_addf(&names, "%s%s", k != 0 ? ", " : "", tr_groups[k]);
        tr_loader_error(r->l, "%s: %s is not a group; groups are %s", r->where, shown, names.p != NULL ? names.p : "");
        tr_str_release(&names);
        return false;
    }
    if ((r->seen_groups >> i & 1u) != 0) {
        tr_loader_error(r->l, "%s: group %s is there twice", r->where, shown);
        return false;
    }
    r->seen_groups |= 1u << i;
    return true;
}

static void read_mapping(struct yaml_reader *r, const char *group);

static void read_value(struct yaml_reader *r, const char *group, const char *name)
{
    char key[KEY_MAX], where[WHERE_MAX];
    yaml_event_t e;
    memcpy(where, r->where, sizeof where);
    int n = snprintf(key, sizeof key, "%s%s%s", group != NULL ? group : "", group != NULL ? "." : "", name);
    for (char *p = key; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
    if (n < 0 || (size_t)n >= sizeof key)
        break_off(r, "a key is too long");
    if (!next_event(r, &e))
        return;
    if (e.type == YAML_SCALAR_EVENT) {
        memcpy(r->where, where, sizeof where); /* an option is found by its name */
        give_scalar(r, key, &e, false);
    } else if (e.type == YAML_SEQUENCE_START_EVENT) {
        give_sequence(r, key);
    } else if (e.type == YAML_MAPPING_START_EVENT && is_object(key)) {
        give_object(r, key, &e, false);
    } else if (e.type == YAML_MAPPING_START_EVENT && has_names(key)) {
        give_names(r, key);
    } else if (e.type == YAML_MAPPING_START_EVENT) {
        if (open_group(r, group, name))
            read_mapping(r, name);
        else
            skip_node(r);
    }
    yaml_event_delete(&e);
}

/* After MAPPING-START. Recursion ends at two levels: a group holds no groups. */
static void read_mapping(struct yaml_reader *r, const char *group)
{
    yaml_event_t e;
    bool is_over = false;
    while (!is_over && next_event(r, &e)) {
        is_over = is_end(&e);
        if (e.type == YAML_SCALAR_EVENT) {
            const char *name = text_of(r, &e);
            if (name != NULL)
                read_value(r, group, name);
            else
                r->is_broken = true;
        } else if (!is_over) {
            break_off(r, "a key must be a plain name");
        }
        yaml_event_delete(&e);
    }
}

void tr_loader_yaml(struct loader *l, const char *name, const char *text, size_t n)
{
    struct yaml_reader r = { .l = l, .name = name };
    if (n > FILE_MAX) {
        tr_loader_error(l, "%s: more than %d bytes", name, FILE_MAX);
        return;
    }
    if (!yaml_parser_initialize(&r.parser)) {
        l->is_nomem = true;
        return;
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    yaml_event_t e;
    int n_documents = 0;
    bool is_over = false;
    while (!is_over && next_event(&r, &e)) {
        is_over = e.type == YAML_STREAM_END_EVENT;
        if (e.type == YAML_DOCUMENT_START_EVENT && n_documents++ != 0)
            break_off(&r, "a second document; one file, one run");
        else if (e.type == YAML_MAPPING_START_EVENT)
            read_mapping(&r, NULL);
        else if (e.type == YAML_SCALAR_EVENT || e.type == YAML_SEQUENCE_START_EVENT)
            break_off(&r, "expected a mapping like learning_rate: 5e-5");
        yaml_event_delete(&e);
    }
    l->is_file_cut = r.is_broken;
    yaml_parser_delete(&r.parser);
}

void tr_loader_file(struct loader *l, const char *path)
{
    char *text = NULL;
    const char *tool = l->c->pub.from;
    size_t n = 0;
    l->is_file_cut = tr_file_read(path, FILE_MAX, &text, &n) != TR_OK;
    if (l->is_file_cut)
        tr_loader_error(l, "--config: %s", tr_error_text());
    else if (tool == NULL && tr_import_detect(path, text, n, tr_loader_target(l), &tool) != TR_OK)
        tr_error_clear(); /* the reader of run files says what is wrong with it */
    if (tool != NULL && !l->is_file_cut)
        tr_loader_foreign(l, &path, 1);
    else if (!l->is_file_cut)
        tr_loader_yaml(l, path, text, n);
    free(text);
}
