/* foreign.c - files of other trainers as a source of values: room import says what each key means, this file asks the
 * option table what exists and hands the values to the loader, at the level of a file, with their places.
 *
 * A run refuses a file of which a key cannot be had or is not known; `config import` reports it and goes on.
 */
#include "config/config_impl.h"

static bool is_option(void *ctx, const char *name)
{
    (void)ctx;
    char list[KEY_MAX];
    size_t n = strcspn(name, "[");
    if (name[n] == '[' && n < sizeof list) { /* a member of a source: data[].path */
        memcpy(list, name, n);
        list[n] = '\0';
        const struct option *opt = tr_option_find_any(list);
        return opt != NULL && opt->type == OPTION_DATA;
    }
    return tr_option_find_any(name) != NULL || tr_rewrite_find(name) != NULL;
}

static bool is_list(void *ctx, const char *name)
{
    const struct option *opt = tr_option_find_any(name);
    (void)ctx;
    return opt != NULL && (opt->type == OPTION_DATA || opt->type == OPTION_WORDS);
}

static bool can_set(void *ctx, const char *name, const char *value, char *why, size_t n_why)
{
    struct config_full *c = ctx;
    const struct option *opt = tr_option_find_any(name);
    struct tr_config unused = { 0 };
    if (opt == NULL || tr_value_parse(c->foreign.l, opt, value, &unused) == TR_OK)
        return true; /* names that set another option are checked when they are given */
    snprintf(why, n_why, "%s: %s", name, tr_error_text());
    tr_error_clear();
    return false;
}

/* Evaluations need something to evaluate on, which files of other tools often name elsewhere. */
static void drop_evaluation(struct loader *l, struct tr_import *im)
{
    static const char *const options[] = { "eval_steps",    "save_best",     "load_best_model_at_end",
                                           "eval_strategy", "eval_on_start", "early_stopping_patience" };
    const struct tr_config *c = &l->c->pub;
    bool has_data = c->eval_data.n != 0 || c->eval_split > 0;
    for (size_t i = 0; i < tr_import_count(im); i++) {
        const struct tr_import_item *it = tr_import_at(im, i);
        has_data |= it->is_given && (strcmp(it->option, "eval_data") == 0 ||
                                     (strcmp(it->option, "eval_split") == 0 && strcmp(it->set, "0") != 0));
    }
    for (size_t i = 0; i < TR_COUNT_OF(options) && !has_data; i++)
        tr_import_drop(im, options[i], "there is nothing to evaluate on; give eval_data or eval_split");
}

static void give_item(struct loader *l, const struct tr_import_item *it)
{
    char where[WHERE_MAX], shown[WHERE_MAX - 64], key[KEY_MAX];
    tr_escape(it->file, shown, sizeof shown);
    tr_escape(it->key, key, sizeof key);
    if (it->line != 0)
        snprintf(where, sizeof where, "%s:%zu", shown, it->line);
    else
        snprintf(where, sizeof where, "%s", shown);
    if (it->is_given)
        tr_loader_give(l, &(struct given){ LEVEL_FILE, it->option, it->set, where, it->is_more });
    if (l->is_import)
        return;
    if (it->verdict == TR_IMPORT_CANNOT)
        tr_loader_error(l, "%s: %s: %s; --skip %s leaves it out", where, key, it->why, key);
    else if (it->verdict == TR_IMPORT_UNKNOWN)
        tr_loader_error(l, "%s: %s: unknown key%s%s", where, key, it->why != NULL ? "; " : "",
                        it->why != NULL ? it->why : "");
    else if (it->verdict == TR_IMPORT_DIFFERS)
        tr_loader_notice(l, "%s: %s: %s", where, key, it->why);
}

const struct tr_import_target *tr_loader_target(struct loader *l)
{
    struct config_full *c = l->c;
    c->foreign.l = l;
    c->foreign.target = (struct tr_import_target){ c, is_option, is_list, can_set };
    return &c->foreign.target;
}

void tr_loader_foreign(struct loader *l, const char *const *files, size_t n_files)
{
    struct config_full *c = l->c;
    if (n_files == 0) {
        tr_loader_error(l, "config import: name the files to read");
        return;
    }
    if (tr_import_open(files, n_files, c->pub.from, c->pub.skip.item, c->pub.skip.n, tr_loader_target(l),
                       &c->foreign.import) != TR_OK) {
        tr_loader_error(l, "%s", tr_error_text());
        return;
    }
    drop_evaluation(l, c->foreign.import);
    for (size_t i = 0; i < tr_import_count(c->foreign.import); i++)
        give_item(l, tr_import_at(c->foreign.import, i));
}

const struct tr_import *tr_config_import(const struct tr_config *cfg)
{
    return cfg->full->foreign.import;
}

static void own_value(void *ctx, const char *name, struct tr_str *out)
{
    struct config_full *c = ctx;
    const struct option *opt = tr_option_find_any(name);
    if (opt != NULL)
        tr_value_print(&c->pub, opt, true, out);
    else
        tr_str_addf(out, "null");
}

void tr_config_import_json(const struct tr_config *cfg, struct tr_str *out)
{
    tr_import_json(cfg->full->foreign.import, own_value, out);
}
