/* sources.c - values from the command line and from the environment.
 *
 * Forms: --name value, --name=value, --flag, --set group.name=value; dashes and underscores in names are the same.
 * Rejected: getopt_long (no origins, no nearest match, prints on its own).
 */
#include "config/config_impl.h"

#include <ctype.h>

/* --set group.name=value */
static void give_set(struct loader *l, const char *text)
{
    const char *eq = strchr(text, '=');
    char key[KEY_MAX], where[WHERE_MAX], shown[KEY_MAX];
    if (eq == NULL || eq == text || (size_t)(eq - text) >= sizeof key) {
        tr_loader_error(l, "--set %s: write group.name=value", tr_escape(text, shown, sizeof shown));
        return;
    }
    for (size_t i = 0; i <= (size_t)(eq - text); i++)
        key[i] = text + i == eq ? '\0' : (char)(text[i] == '-' ? '_' : text[i]);
    snprintf(where, sizeof where, "--set %s", tr_escape(key, shown, sizeof shown));
    tr_loader_give(l, &(struct given){ LEVEL_SET, key, eq + 1, where, false });
}

/* One `--name`, `--name=value` or `--name value`; returns how many words were used. */
static int give_argument(struct loader *l, const char *word, const char *next)
{
    char key[KEY_MAX], where[WHERE_MAX], shown[KEY_MAX];
    enum tr_verb verb = l->c->pub.verb;
    const char *eq = strchr(word, '=');
    size_t n_key = (eq != NULL ? (size_t)(eq - word) : strlen(word)) - 2;
    snprintf(where, sizeof where, "command line");
    if (n_key == 0 || n_key >= sizeof key) {
        tr_loader_error(l, "%s: unknown option \"%s\"", where, tr_escape(word, shown, sizeof shown));
        return 1;
    }
    for (size_t i = 0; i < n_key; i++)
        key[i] = (char)(word[2 + i] == '-' ? '_' : word[2 + i]);
    key[n_key] = '\0';
    snprintf(where, sizeof where, "--%s", tr_escape(key, shown, sizeof shown));

    const struct old_option *r = tr_rewrite_find(key);
    const struct option *opt = tr_option_find(verb, key);
    bool unused, is_switch = r != NULL ? !r->is_share : opt != NULL && opt->type == OPTION_BOOL;
    const char *bare = is_switch ? "true" : opt != NULL ? opt->bare : NULL;
    const char *value = eq != NULL ? eq + 1 : NULL;
    int n_used = 1;
    if (value == NULL && next != NULL && strncmp(next, "--", 2) != 0 && (!is_switch || tr_bool_parse(next, &unused))) {
        value = next;
        n_used = 2;
    }
    if (value == NULL)
        value = bare;
    if (value == NULL && (opt != NULL || r != NULL))
        tr_loader_error(l, "%s: a value is missing", where);
    else if (opt != NULL && opt->type == OPTION_SET)
        give_set(l, value);
    else
        tr_loader_give(l, &(struct given){ LEVEL_CLI, key, value != NULL ? value : "", where, false });
    return n_used;
}

static bool takes_words(enum tr_verb verb)
{
    return verb == TR_VERB_DATA || verb == TR_VERB_CKPT || verb == TR_VERB_CHECK || verb == TR_VERB_BENCH ||
           verb == TR_VERB_WATCH || verb == TR_VERB_CTL || verb == TR_VERB_RUNS || verb == TR_VERB_DOCTOR ||
           verb == TR_VERB_CONFIG || verb == TR_VERB_REPLAY || verb == TR_VERB_EXPLAIN;
}

void tr_loader_arguments(struct loader *l, int argc, char *const *argv)
{
    struct tr_config *cfg = &l->c->pub;
    const char **words = argc > 0 ? tr_loader_keep(l, NULL, (size_t)argc * sizeof *words) : NULL;
    bool is_over = false; /* after a lone -- */
    for (int i = 0; i < argc && words != NULL;) {
        const char *word = argv[i];
        if (!is_over && strcmp(word, "--") == 0) {
            is_over = true;
            i++;
        } else if (!is_over && strcmp(word, "-h") == 0) {
            cfg->help = true;
            i++;
        } else if (!is_over && strncmp(word, "--", 2) == 0) {
            i += give_argument(l, word, i + 1 < argc ? argv[i + 1] : NULL);
        } else if (takes_words(cfg->verb) && (is_over || word[0] != '-')) {
            words[cfg->args.n++] = tr_loader_keep(l, word, strlen(word) + 1);
            i++;
        } else {
            char shown[KEY_MAX];
            tr_loader_error(l, "command line: \"%s\" is no option; %s", tr_escape(word, shown, sizeof shown),
                            tr_file_exists(word) ? "a run file is given by --config" : "options start with --");
            i++;
        }
    }
    cfg->args.item = words;
}

/* Lists in the environment are comma separated; an empty variable is not set. */
void tr_loader_environment(struct loader *l, char *const *envp)
{
    static const char prefix[] = "TRIREME_";
    size_t n_prefix = sizeof prefix - 1;
    for (; envp != NULL && *envp != NULL; envp++) {
        if (strncmp(*envp, "WORLD_SIZE=", 11) == 0)
            l->world_size = *envp + 11;
        if (strncmp(*envp, "TRIREME_MODULES=", 16) == 0) /* where the program's own modules are: no option of a run */
            continue;
        const char *eq = strchr(*envp, '=');
        size_t n_key = eq != NULL ? (size_t)(eq - *envp) : 0;
        if (n_key <= n_prefix || strncmp(*envp, prefix, n_prefix) != 0 || eq[1] == '\0')
            continue;
        char key[KEY_MAX], where[WHERE_MAX], shown[KEY_MAX];
        snprintf(shown, sizeof shown, "%.*s", (int)tr_min64((int64_t)n_key, KEY_MAX - 1), *envp);
        snprintf(where, sizeof where, "environment ");
        tr_escape(shown, where + strlen(where), sizeof where - strlen(where));
        n_key = (size_t)tr_min64((int64_t)(n_key - n_prefix), KEY_MAX - 1);
        for (size_t i = 0; i < n_key; i++)
            key[i] = (char)tolower((unsigned char)(*envp)[n_prefix + i]);
        key[n_key] = '\0';
        const struct option *opt = tr_option_find(l->c->pub.verb, key);
        struct given g = { LEVEL_ENV, key, eq + 1, where, false };
        if (opt == NULL || opt->type != OPTION_DATA || eq[1] == '{') { /* an object is one source */
            tr_loader_give(l, &g);
            continue;
        }
        struct tr_str item = { 0 };
        for (const char *p = eq + 1; p != NULL; p = *p == ',' ? p + 1 : NULL, g.is_more = true) {
            tr_str_clear(&item);
            tr_str_add(&item, p, strcspn(p, ","));
            p += strcspn(p, ",");
            g.value = item.p != NULL ? item.p : "";
            tr_loader_give(l, &g);
        }
        tr_str_release(&item);
    }
}
