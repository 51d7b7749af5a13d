/* open.c - files of other tools: which tool's they are, those that they name, and one list of items of them all.
 *
 * Two files that give one option the same value agree (HF's Trainer wants its DeepSpeed file to agree with its
 * arguments); two values are refused. Defaults of a tool that are not ours are applied last, where no file says
 * anything.
 */
#include "import/import_impl.h"

const struct tool *const tr_tools[] = {
    &tr_tool_deepspeed, &tr_tool_accelerate, &tr_tool_torchtune, &tr_tool_llamafactory,
    &tr_tool_axolotl,   &tr_tool_trl,        &tr_tool_hf,
};
const char *const tr_import_tools[] = { "deepspeed", "accelerate", "torchtune", "llamafactory",
                                        "axolotl",   "trl",        "hf",        NULL };
_Static_assert(TR_COUNT_OF(tr_tools) + 1 == TR_COUNT_OF(tr_import_tools), "one name a tool");

enum { PARTS_DEPTH_MAX = 4, PARENTS_MAX = 6 };

const struct tool *tr_tool_find(const char *name)
{
    for (size_t i = 0; i < TR_COUNT_OF(tr_tools); i++)
        if (strcmp(tr_tools[i]->name, name) == 0)
            return tr_tools[i];
    return NULL;
}

static const char *keep(struct tr_import *im, const char *text)
{
    const char *p = text != NULL ? tr_keep(&im->kept, text, strlen(text) + 1) : NULL;
    if (text != NULL && p == NULL)
        im->is_nomem = true;
    return p;
}

static bool is_same(const char *a, const char *b)
{
    double x = 0, y = 1;
    bool is_number = tr_parse_real(a, &x) == TR_OK && tr_parse_real(b, &y) == TR_OK;
    tr_error_clear();
    return is_number ? x == y : strcmp(a, b) == 0;
}

const struct tr_import_item *tr_import_given(const struct tr_import *im, const char *option)
{
    for (size_t i = 0; i < im->n_items; i++)
        if (im->items[i].is_given && strcmp(im->items[i].option, option) == 0)
            return &im->items[i];
    return NULL;
}

static const char OUTRANKED[] = "the scheduler of the DeepSpeed file counts, as in the Trainer";

/* The scheduler of a DeepSpeed file takes the place of the Trainer's, whichever is read first. */
static bool is_outranked(const char *option, const char *key, const char *by)
{
    static const char theirs[] = "*scheduler.type";
    return strcmp(option, "lr_scheduler_type") == 0 && tr_text_like(theirs, sizeof theirs - 1, by) &&
           !tr_text_like(theirs, sizeof theirs - 1, key);
}

void tr_import_add(struct tr_import *im, const struct tree *t, const struct leaf *leaf, enum tr_import_verdict verdict,
                   const char *option, const char *set, const char *why)
{
    struct tr_import_item item = { .verdict = verdict, .line = leaf->line, .option = option, .set = set, .why = why };
    char text[512], shown[256];
    bool is_run = option != NULL && set != NULL && strncmp(option, "launch ", 7) != 0;
    const struct tr_import_item *other = is_run ? tr_import_given(im, option) : NULL;
    if (other != NULL && is_outranked(option, other->key, leaf->key) && !is_same(other->set, set)) {
        im->items[other - im->items] = (struct tr_import_item){ .verdict = TR_IMPORT_DIFFERS,
                                                                .file = other->file,
                                                                .line = other->line,
                                                                .key = other->key,
                                                                .value = other->value,
                                                                .why = OUTRANKED };
        other = NULL;
    }
    item.is_more = other != NULL && im->target->is_list(im->target->ctx, option);
    item.is_given = is_run && (other == NULL || item.is_more);
    if (other != NULL && is_outranked(option, leaf->key, other->key) && !is_same(other->set, set)) {
        item = (struct tr_import_item){ .verdict = TR_IMPORT_DIFFERS, .line = leaf->line, .why = OUTRANKED };
    } else if (other != NULL && !item.is_more && !is_same(other->set, set)) {
        snprintf(text, sizeof text, "%s is %s, but %s:%zu (%s) makes it %s; they must agree", option,
                 tr_escape(set, shown, sizeof shown), other->file, other->line, other->key, other->set);
        item = (struct tr_import_item){ .verdict = TR_IMPORT_CANNOT, .line = leaf->line, .why = text };
    }
    if (!TR_GROW(im->items, im->n_items + 1, &im->n_cap)) {
        im->is_nomem = true;
        return;
    }
    item.file = keep(im, t->path);
    item.key = keep(im, leaf->key);
    item.value = keep(im, leaf->text);
    item.option = keep(im, item.option);
    item.set = keep(im, item.set);
    item.why = keep(im, item.why);
    if (!im->is_nomem)
        im->items[im->n_items++] = item;
}

static struct tree *new_tree(struct tr_import *im, const char *path, const struct tool *tool)
{
    bool has_room = im->n_trees < TR_COUNT_OF(im->trees);
    struct tree *t = has_room ? calloc(1, sizeof *t) : NULL;
    if (t == NULL) {
        im->is_nomem |= has_room;
        return NULL;
    }
    t->path = keep(im, path);
    t->tool = tool;
    t->kept = &im->kept;
    im->trees[im->n_trees++] = t;
    return t;
}

/* ---- whose file it is ---- */

static const struct import_row *row_of(const struct tool *tool, const char *path)
{
    for (; tool != NULL; tool = tool->base)
        for (const struct import_row *row = tool->rows; row->key != NULL; row++)
            if (tr_row_has_key(row, path))
                return row;
    return NULL;
}

enum tr_import_verdict tr_import_verdict_of(const char *tool, const char *key)
{
    const struct import_row *row = row_of(tr_tool_find(tool), key);
    if (row == NULL && tr_rows_have_section(tr_tool_find(tool), key))
        return TR_IMPORT_DECIDED;
    return row != NULL ? row->verdict : TR_IMPORT_UNKNOWN;
}

/* An option, or a key below one whose value is a map. */
static bool is_ours(const struct tr_import_target *target, const char *path)
{
    char head[IMPORT_KEY_MAX];
    snprintf(head, sizeof head, "%.*s", (int)strcspn(path, ".["), path);
    return target->is_option(target->ctx, path) || target->is_option(target->ctx, head);
}

/* Keys that are no options of ours and that the tool has. */
static size_t count_foreign(const struct tree *t, const struct tool *tool, const struct tr_import_target *target)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_leaves; i++)
        n += !is_ours(target, t->leaves[i].path) && row_of(tool, t->leaves[i].path) != NULL;
    return n;
}

static size_t count_not_ours(const struct tree *t, const struct tr_import_target *target)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_leaves; i++)
        n += !target->is_option(target->ctx, t->leaves[i].path);
    return n;
}

/* A run file of ours has options as keys; with one that we lack it is a file of Trainer arguments, or a slip, which the
 * reader of run files explains. */
static const struct tool *detect(const struct tree *t, const struct tr_import_target *target)
{
    if (count_not_ours(t, target) == 0)
        return NULL;
    for (size_t i = 0; i < TR_COUNT_OF(tr_tools); i++)
        if (tr_tools[i]->is_mine != NULL && tr_tools[i]->is_mine(t))
            return tr_tools[i];
    return count_foreign(t, &tr_tool_hf, target) > 0 ? &tr_tool_hf : NULL;
}

enum tr_status tr_import_detect(const char *path, const char *text, size_t n, const struct tr_import_target *target,
                                const char **tool)
{
    struct tr_owned *kept = NULL;
    struct tree t = { .path = path, .kept = &kept };
    const struct tool *found = NULL;
    enum tr_status st = tr_tree_read(&t, text, n);
    if (st == TR_OK)
        found = detect(&t, target);
    if (st == TR_OK)
        *tool = found != NULL ? found->name : NULL;
    tr_owned_release(&kept);
    free(t.leaves);
    return st;
}

/* ---- files ---- */

bool tr_import_locate(const struct tree *t, const char *name, char out[TR_PATH_MAX])
{
    char dir[TR_PATH_MAX];
    const char *last = NULL;
    bool is_found = strlen(name) < TR_PATH_MAX && (tr_file_exists(name) || tr_dir_exists(name));
    if (is_found)
        memcpy(out, name, strlen(name) + 1);
    if (is_found || name[0] == '/' || tr_path_split(t->path, dir, &last) != TR_OK)
        return is_found;
    for (int i = 0; i < PARENTS_MAX && !is_found; i++) {
        char above[TR_PATH_MAX];
        is_found = tr_path_join(out, dir, name) == TR_OK && (tr_file_exists(out) || tr_dir_exists(out));
        if (tr_path_join(above, dir, "..") != TR_OK)
            break;
        memcpy(dir, above, sizeof dir);
    }
    tr_error_clear();
    return is_found;
}

static enum tr_status take_file(struct tr_import *im, const char *path, const struct tool *tool)
{
    enum tr_status st = TR_OK;
    char *text = NULL;
    size_t n = 0;
    struct tree *t = new_tree(im, path, tool);
    if (t == NULL)
        return tr_fail(TR_USAGE, "%s: more than %zu files", path, TR_COUNT_OF(im->trees));
    TR_TRY(tr_file_read(path, IMPORT_FILE_MAX, &text, &n));
    TR_TRY(tr_tree_read(t, text, n));
    if (t->tool == NULL)
        t->tool = detect(t, im->target);
    if (t->tool == NULL && count_not_ours(t, im->target) < t->n_leaves)
        t->tool = &tr_tool_hf; /* names of ours are those of the Trainer */
    if (t->tool == NULL) {
        st = tr_fail(TR_USAGE,
                     "%s: not a file of a tool that is known; --from deepspeed, accelerate, hf, trl, llamafactory, "
                     "axolotl or torchtune says which it is",
                     path);
        goto out;
    }
    for (size_t i = 0; i < t->n_leaves; i++)
        tr_import_leaf(im, t, &t->leaves[i]);
out:
    free(text);
    return st;
}

/* A map in the place of a file: its keys are read as a file of the tool. */
static void take_inner(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct tool *tool)
{
    size_t n = strcspn(leaf->path, ".");
    struct tree *inner = NULL;
    for (const struct leaf *l = t->leaves; l < leaf; l++)
        if (strncmp(l->path, leaf->path, n + 1) == 0)
            return; /* the first of them took all */
    inner = new_tree(im, t->path, tool);
    if (inner == NULL) {
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, "too many files that name files");
        return;
    }
    inner->leaves = calloc(t->n_leaves, sizeof *inner->leaves);
    if (inner->leaves == NULL) {
        im->is_nomem = true;
        return;
    }
    for (size_t i = 0; i < t->n_leaves; i++)
        if (strncmp(t->leaves[i].path, leaf->path, n + 1) == 0) {
            inner->leaves[inner->n_leaves] = t->leaves[i];
            inner->leaves[inner->n_leaves++].path += n + 1;
        }
    for (size_t i = 0; i < inner->n_leaves; i++)
        tr_import_leaf(im, inner, &inner->leaves[i]);
}

/* Tools publish DeepSpeed files under names that say their stage: zero3_bf16.json, ds_z2_config.json. What such a file
 * holds besides is "auto", or how ranks talk. */
static bool take_stage(struct tr_import *im, const struct tree *t, const struct leaf *leaf)
{
    const char *base = strrchr(leaf->text, '/');
    base = base != NULL ? base + 1 : leaf->text;
    for (char stage[] = "0"; stage[0] <= '3'; stage[0]++) {
        char words[64];
        snprintf(words, sizeof words, "zero%s*.json ds_zero%s*.json ds_z%s_*.json", stage, stage, stage);
        if (tr_words_match(words, &(struct leaf){ .text = base })) {
            tr_import_add(im, t, leaf, TR_IMPORT_DIFFERS, "zero", stage,
                          "there is no such file here, and its name says the stage; give it too where it says more");
            return true;
        }
    }
    return false;
}

void tr_import_part(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct tool *tool)
{
    char path[TR_PATH_MAX], why[TR_PATH_MAX + 64];
    const char *last = strrchr(leaf->path, '.');
    bool is_inner = last != NULL && !tr_text_like("*_file", 6, leaf->path);
    if (is_inner) {
        take_inner(im, t, leaf, tool);
        return;
    }
    if (!tr_import_locate(t, leaf->text, path)) {
        if (tool == &tr_tool_deepspeed && take_stage(im, t, leaf))
            return;
        snprintf(why, sizeof why, "there is no such file here; give it too: config import FILE %s", leaf->text);
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, why);
        return;
    }
    for (size_t i = 0; i < im->n_trees; i++)
        if (strcmp(im->trees[i]->path, path) == 0) {
            tr_import_add(im, t, leaf, TR_IMPORT_TAKEN, NULL, NULL, "read as a file of its own");
            return;
        }
    if (im->depth >= PARTS_DEPTH_MAX) {
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, "too many files that name files");
        return;
    }
    tr_import_add(im, t, leaf, TR_IMPORT_TAKEN, NULL, NULL, "read as a file of its own");
    im->depth++;
    if (take_file(im, path, tool) != TR_OK)
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, tr_error_text());
    im->depth--;
}

enum tr_status tr_import_open(const char *const *files, size_t n_files, const char *from, const char *const *skip,
                              size_t n_skip, const struct tr_import_target *target, struct tr_import **out)
{
    enum tr_status st = TR_OK;
    struct tr_import *im = calloc(1, sizeof *im);
    const struct tool *tool = from != NULL ? tr_tool_find(from) : NULL;
    if (im == NULL)
        return tr_fail(TR_NOMEM, "no memory to import");
    im->target = target;
    im->skip = skip;
    im->n_skip = n_skip;
    if (from != NULL && tool == NULL) {
        st = tr_fail(TR_USAGE,
                     "--from %s: deepspeed, accelerate, hf, trl, llamafactory, axolotl and torchtune are known", from);
        goto out;
    }
    /* --from says whose the first file is; the others show it by their keys */
    for (size_t i = 0; i < n_files; i++) {
        bool is_read = false;
        for (size_t k = 0; k < im->n_trees; k++)
            is_read |= strcmp(im->trees[k]->path, files[i]) == 0;
        if (!is_read)
            TR_TRY(take_file(im, files[i], i == 0 ? tool : NULL));
    }
    for (size_t i = 0; i < im->n_trees; i++)
        tr_import_absent(im, im->trees[i]);
    if (im->is_nomem)
        st = tr_fail(TR_NOMEM, "no memory to import");
out:
    if (st == TR_OK)
        *out = im;
    else
        tr_import_close(im);
    return st;
}

void tr_import_close(struct tr_import *im)
{
    if (im == NULL)
        return;
    for (size_t i = 0; i < im->n_trees; i++) {
        free(im->trees[i]->leaves);
        free(im->trees[i]);
    }
    tr_owned_release(&im->kept);
    free(im->items);
    free(im);
}

size_t tr_import_count(const struct tr_import *im)
{
    return im->n_items;
}

const struct tr_import_item *tr_import_at(const struct tr_import *im, size_t i)
{
    return &im->items[i];
}

void tr_import_drop(struct tr_import *im, const char *option, const char *why)
{
    const char *kept = keep(im, why);
    for (size_t i = 0; i < im->n_items; i++) {
        struct tr_import_item *it = &im->items[i];
        if (it->option == NULL || strcmp(it->option, option) != 0)
            continue;
        *it = (struct tr_import_item){
            TR_IMPORT_DIFFERS, it->file, it->line, it->key, it->value, NULL, NULL, kept, false, false
        };
    }
}

bool tr_import_is_done(const struct tr_import *im)
{
    for (size_t i = 0; i < im->n_items; i++)
        if (im->items[i].verdict >= TR_IMPORT_CANNOT)
            return false;
    return true;
}
