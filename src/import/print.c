/* print.c - what an import gave: a run file, the lists for people, one JSON object; and the page of all rows. */
#include "import/import_impl.h"

static const struct {
    const char *word, *title;
} lists[] = {
    [TR_IMPORT_TAKEN] = { "taken", "taken" },       [TR_IMPORT_DECIDED] = { "decided", "decided here" },
    [TR_IMPORT_DIFFERS] = { "differs", "differs" }, [TR_IMPORT_CANNOT] = { "cannot", "cannot" },
    [TR_IMPORT_UNKNOWN] = { "unknown", "unknown" },
};
_Static_assert(TR_COUNT_OF(lists) == TR_IMPORT_COUNT, "one list a verdict");

static bool is_plain(const char *text)
{
    static const char *const words[] = { "null", "~", "true", "false", "yes", "no", "on", "off" };
    double unused;
    bool is_number = tr_parse_real(text, &unused) == TR_OK;
    tr_error_clear();
    if (is_number)
        return true;
    for (size_t i = 2; i < 4; i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return text[0] != '\0' && !TR_ROW(words, text) &&
           text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./")] == '\0' &&
           strchr("./", text[0]) == NULL;
}

/* A number as JSON spells it: 007, .5 and inf are texts. */
static bool is_json_number(const char *text)
{
    double unused;
    const char *p = text + (*text == '-');
    bool is_number = tr_parse_real(text, &unused) == TR_OK;
    tr_error_clear();
    return is_number && *p >= '0' && *p <= '9' && !(p[0] == '0' && p[1] >= '0' && p[1] <= '9') &&
           strspn(p, "0123456789.eE+-") == strlen(p) && p[strlen(p) - 1] != '.' && strstr(p, ".e") == NULL &&
           strstr(p, ".E") == NULL;
}

/* A source of data, or a map: JSON's objects are YAML's too. A chat template begins with a brace as well. */
static bool is_json_object(const char *text)
{
    cJSON *doc = text[0] == '{' ? cJSON_Parse(text) : NULL;
    cJSON_Delete(doc);
    return doc != NULL;
}

/* JSON's quotes are YAML's double quotes. */
static void add_value(const char *text, bool is_json, struct tr_str *out)
{
    bool is_bool = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
    if (is_json_number(text) || is_bool || is_json_object(text) || (!is_json && is_plain(text)))
        tr_str_addf(out, "%s", text);
    else
        tr_str_json(out, text);
}

static bool is_first_of(const struct tr_import *im, size_t i)
{
    return im->items[i].is_given && !im->items[i].is_more;
}

static void add_options(const struct tr_import *im, bool is_json, struct tr_str *out)
{
    const char *comma = "";
    for (size_t i = 0; i < im->n_items; i++) {
        const struct tr_import_item *it = &im->items[i];
        if (!is_first_of(im, i))
            continue;
        bool is_list = im->target->is_list(im->target->ctx, it->option);
        tr_str_addf(out, is_json ? "%s\"%s\":%s" : "%s%s: %s", is_json ? comma : "", it->option, is_list ? "[" : "");
        add_value(it->set, is_json, out);
        for (size_t k = i + 1; k < im->n_items && is_list; k++)
            if (im->items[k].is_more && im->items[k].is_given && strcmp(im->items[k].option, it->option) == 0) {
                tr_str_addf(out, is_json ? "," : ", ");
                add_value(im->items[k].set, is_json, out);
            }
        tr_str_addf(out, "%s", is_list ? "]" : "");
        if (!is_json) {
            char file[256], key[IMPORT_KEY_MAX];
            tr_escape(it->file, file, sizeof file);
            if (it->line != 0)
                tr_str_addf(out, "  # %s:%zu %s\n", file, it->line, tr_escape(it->key, key, sizeof key));
            else
                tr_str_addf(out, "  # default of %s for %s\n", file, tr_escape(it->key, key, sizeof key));
        }
        comma = ",";
    }
}

void tr_import_yaml(const struct tr_import *im, struct tr_str *out)
{
    add_options(im, false, out);
    for (size_t i = 0; i < im->n_items; i++)
        if (im->items[i].option != NULL && strncmp(im->items[i].option, "launch ", 7) == 0 && im->items[i].set != NULL)
            tr_str_addf(out, "# trireme %s %s\n", im->items[i].option, im->items[i].set);
}

static void add_line(const struct tr_import_item *it, struct tr_str *out)
{
    char file[256], key[IMPORT_KEY_MAX], value[128], set[256];
    tr_str_addf(out, "  %s", tr_escape(it->file, file, sizeof file));
    if (it->line != 0)
        tr_str_addf(out, ":%zu", it->line);
    tr_str_addf(out, " %s", tr_escape(it->key, key, sizeof key));
    if (it->line == 0)
        tr_str_addf(out, " (not given)");
    else if (it->value[0] != '\0')
        tr_str_addf(out, " %s", tr_escape(it->value, value, sizeof value));
    if (it->option != NULL && it->set != NULL)
        tr_str_addf(out, " -> %s %s", it->option, tr_escape(it->set, set, sizeof set));
    else if (it->option != NULL)
        tr_str_addf(out, " -> %s, its own value", it->option);
    tr_str_addf(out, "%s%s\n", it->why != NULL ? ": " : "", it->why != NULL ? it->why : "");
}

void tr_import_report(const struct tr_import *im, struct tr_str *out)
{
    for (int v = 0; v < TR_IMPORT_COUNT; v++) {
        bool is_first = true;
        for (size_t i = 0; i < im->n_items; i++)
            if ((int)im->items[i].verdict == v) {
                if (is_first)
                    tr_str_addf(out, "%s\n", lists[v].title);
                is_first = false;
                add_line(&im->items[i], out);
            }
    }
}

static void add_member(const char *name, const char *text, struct tr_str *out)
{
    tr_str_addf(out, ",\"%s\":", name);
    tr_str_json(out, text);
}

void tr_import_json(const struct tr_import *im, void (*own)(void *ctx, const char *option, struct tr_str *out),
                    struct tr_str *out)
{
    tr_str_addf(out, "{\"tool\":\"%s\",\"files\":[", im->n_trees != 0 ? im->trees[0]->tool->name : "");
    for (size_t i = 0; i < im->n_trees; i++) {
        tr_str_addf(out, "%s{\"tool\":\"%s\",\"file\":", i != 0 ? "," : "", im->trees[i]->tool->name);
        tr_str_json(out, im->trees[i]->path);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]");
    for (int v = 0; v < TR_IMPORT_COUNT; v++) {
        const char *comma = "";
        tr_str_addf(out, ",\"%s\":[", lists[v].word);
        for (size_t i = 0; i < im->n_items; i++) {
            const struct tr_import_item *it = &im->items[i];
            if ((int)it->verdict != v)
                continue;
            tr_str_addf(out, "%s{\"file\":", comma);
            tr_str_json(out, it->file);
            tr_str_addf(out, ",\"line\":%zu", it->line);
            add_member("key", it->key, out);
            add_member("value", it->value, out);
            if (it->option != NULL) {
                add_member("option", it->option, out);
                tr_str_addf(out, ",\"set\":");
                if (it->set != NULL)
                    add_value(it->set, true, out);
                else
                    own(im->target->ctx, it->option, out);
            }
            if (it->why != NULL)
                add_member("why", it->why, out);
            tr_str_addf(out, "}");
            comma = ",";
        }
        tr_str_addf(out, "]");
    }
    tr_str_addf(out, ",\"config\":{");
    add_options(im, true, out);
    tr_str_addf(out, "}}");
}

/* A cell of a table in Markdown: a bar ends a cell. */
static void add_cell(const char *text, const char *quote, struct tr_str *out)
{
    tr_str_addf(out, "%s", quote);
    for (; *text != '\0'; text++)
        if (*text == '|')
            tr_str_addf(out, "\\|");
        else
            tr_str_add(out, text, 1);
    tr_str_addf(out, "%s", quote);
}

void tr_import_page(struct tr_str *out)
{
    tr_str_addf(out,
                "# Keys of other trainers\n\n"
                "What `trireme config import` and `--config` make of every key that they know, as the tables of "
                "`src/import` have it; the test `import/test_import`\nwrites this page. A value in the second column "
                "is a condition; `@off` is false, no, none, 0 or empty, `@on` anything else, `@share` a number "
                "between 0\nand 1, `@many` one of 1 or more, `@absent` a key that is not there. Rows of a key are "
                "tried from top to bottom. An option that the build does not\nhave makes its row a cannot.\n");
    for (size_t i = 0; tr_import_tools[i] != NULL; i++) {
        const struct tool *tool = tr_tools[i];
        tr_str_addf(out, "\n## %s\n\n", tool->title);
        if (tool->base != NULL)
            tr_str_addf(out, "Keys without a row here are looked up under %s.\n\n", tool->base->title);
        tr_str_addf(out, "| key | value | verdict | here |\n|---|---|---|---|\n");
        for (const struct import_row *row = tool->rows; row->key != NULL; row++) {
            tr_str_addf(out, "| ");
            add_cell(row->key, "`", out);
            tr_str_addf(out, " | ");
            if (row->value != NULL)
                add_cell(row->value, "`", out);
            if (row->when != NULL) {
                tr_str_addf(out, " with ");
                add_cell(row->when, "`", out);
            }
            tr_str_addf(out, " | %s | ", row->part != NULL ? "taken" : lists[row->verdict].title);
            if (row->sets != NULL)
                add_cell(row->sets, "`", out);
            if (row->part != NULL)
                tr_str_addf(out, "a file of %s, or its keys", row->part);
            tr_str_addf(out, "%s", row->sets != NULL && row->why != NULL ? "; " : "");
            if (row->why != NULL)
                add_cell(row->why, "", out);
            tr_str_addf(out, "%s |\n", row->or_next ? "; where that is not possible, the next row" : "");
        }
    }
}
