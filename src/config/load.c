/* load.c - the loader: values from defaults, environment, file, --set and command line become one const struct.
 *
 * Invariant: every value that is given is checked, even when a higher level overrides it; all errors are collected and
 * returned together.
 */
#include "config/config_impl.h"

#include <stdarg.h>

/* How many errors are kept as text. No more are shown, and the nearest name of a key that is unknown takes longest. */
enum { KEPT_ERRORS = 100 };

void tr_loader_error(struct loader *l, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (l->n_errors >= KEPT_ERRORS) {
        l->n_errors++;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    tr_str_addf(&l->errors, "%s%s", l->n_errors++ != 0 ? "\n" : "", line);
}

void tr_loader_notice(struct loader *l, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    tr_str_addf(&l->c->notices, "%s\n", line);
}

void *tr_loader_keep(struct loader *l, const void *bytes, size_t n_bytes)
{
    void *p = tr_keep(&l->c->kept, bytes, n_bytes);
    l->is_nomem |= p == NULL;
    return p;
}

/* What leads a message: "--lr", "environment TRIREME_LR", "run.yaml:3:5: lr". */
static const char *place_of(const struct given *g, char buf[WHERE_MAX])
{
    char shown[KEY_MAX];
    if (g->level == LEVEL_FILE)
        snprintf(buf, WHERE_MAX, "%s: %s", g->where, tr_escape(g->key, shown, sizeof shown));
    else
        snprintf(buf, WHERE_MAX, "%s", g->where);
    return buf;
}

/* Nearest name among everything this verb knows. */
static const char *nearest(enum tr_verb verb, const char *key, char *buf, size_t n_buf)
{
    const char *names[512];
    char words[256][64];
    size_t n = 0, n_words = 0;
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        if (!tr_option_is_for(opt, verb))
            continue;
        names[n++] = opt->name;
        for (size_t k = 0; n_words < TR_COUNT_OF(words) && tr_word_at(opt->aliases, k, words[n_words], 64); k++) {
            names[n++] = words[n_words];
            n_words++;
        }
    }
    for (const struct old_option *r = tr_rewrites; r->name != NULL; r++)
        if (r->target == NULL || tr_option_find(verb, r->target) != NULL)
            names[n++] = r->name;
    const char *found = tr_nearest(key, names, n);
    if (found != NULL)
        snprintf(buf, n_buf, "%s", found);
    return found != NULL ? buf : NULL;
}

static void fail_unknown(struct loader *l, const struct given *g)
{
    char near[64], place[WHERE_MAX];
    enum tr_verb verb = l->c->pub.verb;
    const char *dot = strrchr(g->key, '.'), *name = dot != NULL ? dot + 1 : g->key;
    bool is_kept = l->n_errors < KEPT_ERRORS;
    const char *hint = tr_hint_find(name), *best = is_kept ? nearest(verb, name, near, sizeof near) : NULL;
    place_of(g, place);
    if (hint != NULL)
        tr_loader_error(l, "%s: no such option; %s", place, hint);
    else if (best != NULL)
        tr_loader_error(l, "%s: unknown option; did you mean %s?", place, best);
    else
        tr_loader_error(l, "%s: unknown option; see trireme %s --help", place, tr_verb_word(verb));
}

/* Same option twice at one level: an error, but a list may be repeated, and on the command line the last one wins as
 * long as the name is the same (scripts append overrides); two names for one thing are a mistake. */
static bool check_repeat(struct loader *l, const struct given *g, const struct option *opt)
{
    const char **seen = &l->seen[g->level][opt - tr_options];
    bool is_list = opt->type == OPTION_DATA || opt->type == OPTION_WORDS;
    bool is_cli = g->level == LEVEL_CLI || g->level == LEVEL_SET;
    if (g->is_more || g->level == LEVEL_DEFAULT)
        return true;
    if (*seen != NULL && !(is_cli && (is_list || strcmp(*seen, g->key) == 0))) {
        char place[WHERE_MAX];
        tr_loader_error(l, "%s: %s was already given as %s", place_of(g, place), opt->name, *seen);
        return false;
    }
    *seen = tr_loader_keep(l, g->key, strlen(g->key) + 1);
    return true;
}

static void clear_list(const struct option *opt, struct tr_config *cfg)
{
    if (opt->type == OPTION_DATA)
        *(struct tr_data_list *)((char *)cfg + opt->at) = (struct tr_data_list){ 0 };
    if (opt->type == OPTION_WORDS)
        *(struct tr_words *)((char *)cfg + opt->at) = (struct tr_words){ 0 };
    if (opt->type == OPTION_SUM)
        *(const char **)(void *)((char *)cfg + opt->at) = NULL;
}

static void store(struct loader *l, const struct given *g, const struct option *opt)
{
    struct origin *origin = &l->c->origins[opt - tr_options];
    struct tr_config *dst = g->level >= origin->level ? &l->c->pub : &l->scratch;
    if (g->level > origin->level || dst == &l->scratch || (opt->type == OPTION_SUM && !g->is_more))
        clear_list(opt, dst);
    l->level = (int)g->level;
    enum tr_status st = tr_value_parse(l, opt, g->value, dst);
    char text[WHERE_MAX + 16];
    if (st == TR_NOMEM) {
        l->is_nomem = true;
    } else if (st != TR_OK) {
        tr_loader_error(l, "%s: %s", place_of(g, text), tr_error_text());
    } else if (dst == &l->c->pub) {
        snprintf(text, sizeof text, "%s%s", g->level == LEVEL_CLI ? "command line " : "", g->where);
        *origin = (struct origin){ g->level, tr_loader_keep(l, text, strlen(text) + 1) };
    }
}

/* Turns `bf16=true` into `dtype=bfloat16`; false: nothing is left to store. */
static bool apply_rewrite(struct loader *l, struct given *g, const struct old_option *r, const char **target)
{
    bool is_on = false;
    double share = 0;
    char place[WHERE_MAX];
    if (r->is_share ? tr_parse_real(g->value, &share) != TR_OK : !tr_bool_parse(g->value, &is_on)) {
        char shown[KEY_MAX];
        tr_loader_error(l, "%s: \"%s\" is not %s", place_of(g, place), tr_escape(g->value, shown, sizeof shown),
                        r->is_share ? "a number" : "true or false");
        return false;
    }
    if (r->is_share && !(share >= 0 && share < 1)) {
        tr_loader_error(l, "%s: %s is outside 0 to 1 (the end excluded)", place_of(g, place), g->value);
        return false;
    }
    if (r->notice != NULL)
        tr_loader_notice(l, "%s: %s", place_of(g, place), r->notice);
    *target = r->target;
    if (!r->is_share)
        g->value = is_on ? r->if_true : r->if_false;
    return r->target != NULL && g->value != NULL;
}

void tr_loader_give(struct loader *l, const struct given *given)
{
    struct given g = *given;
    char place[WHERE_MAX];
    enum tr_verb verb = l->c->pub.verb;
    const struct old_option *r = tr_rewrite_find(g.key);
    const char *key = r != NULL && r->target != NULL ? r->target : g.key;
    const struct option *opt = tr_option_find(verb, key);
    if (opt == NULL && !(r != NULL && r->target == NULL)) {
        bool is_shared =
            g.level == LEVEL_ENV ||
            g.level ==
                LEVEL_FILE; /* a file and the environment are shared by all verbs, so they may name options of others */
        if (tr_option_find_any(key) == NULL)
            fail_unknown(l, &g);
        else if (!is_shared)
            tr_loader_error(l, "%s: not an option of %s", place_of(&g, place), tr_verb_word(verb));
        return;
    }
    if (r != NULL && !apply_rewrite(l, &g, r, &key))
        return;
    if (opt->is_cli_only && (g.level == LEVEL_FILE || g.level == LEVEL_SET))
        tr_loader_error(l, "%s: belongs on the command line", place_of(&g, place));
    else if (check_repeat(l, &g, opt))
        store(l, &g, opt);
}

static void give_defaults(struct loader *l)
{
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        l->c->origins[i] = (struct origin){ LEVEL_DEFAULT, "default" };
        if (opt->def != NULL && tr_value_parse(l, opt, opt->def, &l->c->pub) != TR_OK)
            TR_BUG_ON(!l->is_nomem);
    }
}

/* The error text of a thread has a limit: keep whole lines and say how many are missing. */
static enum tr_status fail_all(const struct loader *l)
{
    tr_fail(TR_USAGE, "%s", l->errors.p != NULL ? l->errors.p : "");
    size_t n_fit = strlen(tr_error_text());
    if ((n_fit >= l->errors.n && l->n_errors <= KEPT_ERRORS) || n_fit < 64)
        return TR_USAGE;
    size_t n_shown = 1;
    n_fit -= 40; /* room for the last line */
    while (n_fit > 0 && l->errors.p[n_fit] != '\n')
        n_fit--;
    for (size_t i = 0; i < n_fit; i++)
        n_shown += l->errors.p[i] == '\n';
    return tr_fail(TR_USAGE, "%.*s\n... and %zu more", (int)n_fit, l->errors.p, l->n_errors - n_shown);
}

enum tr_status tr_config_load(enum tr_verb verb, int argc, char *const *argv, char *const *envp,
                              const struct tr_config **out)
{
    enum tr_status st = TR_OK;
    struct loader *l = calloc(1, sizeof *l);
    struct config_full *c = calloc(1, sizeof *c);
    if (l == NULL || c == NULL) {
        st = tr_fail(TR_NOMEM, "no memory for the configuration");
        goto out;
    }
    l->c = c;
    c->pub.full = c;
    c->pub.verb = verb;
    give_defaults(l);
    tr_loader_arguments(l, argc, argv);
    tr_loader_environment(l, envp);
    l->is_import = verb == TR_VERB_CONFIG && c->pub.args.n != 0 && strcmp(c->pub.args.item[0], "import") == 0;
    if (l->is_import && !c->pub.help)
        tr_loader_foreign(l, c->pub.args.item + 1, c->pub.args.n - 1);
    else if (c->pub.config != NULL)
        tr_loader_file(l, c->pub.config);
    if (!c->pub.help && !l->is_nomem)
        tr_loader_of_run(l);
    if (!c->pub.help && !l->is_nomem && !l->is_import)
        tr_loader_hub(l, envp);
    if (!c->pub.help && !l->is_nomem)
        tr_loader_recorded(l);
    if (!c->pub.help && !l->is_nomem &&
        !l->is_import) /* after a failed allocation a missing value would be reported as not given */
        tr_loader_check(l);
    if (l->is_nomem || !tr_str_ok(&l->errors) || !tr_str_ok(&c->notices))
        st = tr_fail(TR_NOMEM, "no memory for the configuration");
    else if (l->n_errors != 0 && !c->pub.help)
        st = fail_all(l);
out:
    if (l != NULL)
        tr_str_release(&l->errors);
    free(l);
    if (st == TR_OK)
        *out = &c->pub;
    else if (c != NULL)
        tr_config_close(&c->pub);
    return st;
}

void tr_config_close(const struct tr_config *cfg)
{
    struct config_full *c = (struct config_full *)(uintptr_t)cfg;
    if (c == NULL)
        return;
    tr_owned_release(&c->kept);
    tr_import_close(c->foreign.import);
    tr_str_release(&c->notices);
    free(c);
}
