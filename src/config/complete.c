/* complete.c - completion for bash, zsh and fish, from the option table: verbs, the words behind them, options with
 * their help, the values of choices, directories and files. `launch` is completed like the verb that it starts. */
#include "config/config_impl.h"

#include <ctype.h>

/* ---- what there is ---- */

/* The words that may stand behind a verb: those of `words` that a bar joins, or that begin a form. */
static void add_subs(enum tr_verb verb, const char *between, struct tr_str *out)
{
    const char *all = tr_verb_words(verb), *sep = "";
    for (const char *p = all; *p != '\0';) {
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyz");
        bool begins = p == all || p[-1] == '|' || (p - all >= 2 && strncmp(p - 2, ", ", 2) == 0) ||
                      (p - all >= 5 && strncmp(p - 5, ", or ", 5) == 0);
        bool ends = p[n] == '\0' || p[n] == '|' || p[n] == ' ';
        if (n > 0 && ends && (begins || p[n] == '|') && strncmp(p, "or ", 3) != 0) {
            tr_str_addf(out, "%s%.*s", sep, (int)n, p);
            sep = between;
        }
        p += n > 0 ? n : 1;
    }
}

static void add_choices(const struct option *opt, struct tr_str *out)
{
    for (const struct choice *c = opt->choices; c->word != NULL; c++)
        tr_str_addf(out, "%s%s", c == opt->choices ? "" : " ", c->word);
}

enum value { VALUE_NONE, VALUE_WORDS, VALUE_DIR, VALUE_FILE, VALUE_ANY };

static enum value value_of(const struct option *opt)
{
    if (opt->type == OPTION_BOOL)
        return VALUE_NONE;
    if (tr_option_has_words(opt))
        return VALUE_WORDS;
    if (opt->arg != NULL && (strcmp(opt->arg, "DIR") == 0 || strcmp(opt->arg, "RUN") == 0))
        return VALUE_DIR;
    bool is_path =
        opt->type == OPTION_DATA || (opt->arg != NULL && (strstr(opt->arg, "FILE") || strstr(opt->arg, "DIR")));
    return is_path ? VALUE_FILE : VALUE_ANY;
}

/* Two verbs may have an option of the same name; its values are those of the first row. */
static bool is_first_of_name(size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(tr_options[k].name, tr_options[i].name) == 0)
            return false;
    return true;
}

/* Text inside single quotes. `special`: characters that get a backslash. */
static void add_quoted(const char *text, const char *special, const char *quote, struct tr_str *out)
{
    for (; *text != '\0'; text++)
        if (*text == '\'')
            tr_str_addf(out, "%s", quote);
        else if (strchr(special, *text) != NULL)
            tr_str_addf(out, "\\%c", *text);
        else
            tr_str_add(out, text, 1);
}

static void add_verbs(const char *between, struct tr_str *out)
{
    for (int v = 0; v < TR_VERB_COUNT; v++)
        tr_str_addf(out, "%s%s", tr_verb_word((enum tr_verb)v), between);
}

/* ---- bash ---- */

static void bash_values(struct tr_str *out)
{
    tr_str_addf(out, "    case $before in\n");
    for (size_t i = 0; i < tr_option_count(); i++) {
        enum value kind = value_of(&tr_options[i]);
        if (kind == VALUE_NONE || kind == VALUE_ANY || !is_first_of_name(i))
            continue;
        tr_str_addf(out, "    --%s) ", tr_options[i].name);
        if (kind == VALUE_WORDS) {
            tr_str_addf(out, "_trireme_words '");
            add_choices(&tr_options[i], out);
            tr_str_addf(out, "'; return ;;\n");
        } else {
            tr_str_addf(out, "_trireme_paths -%c; return ;;\n", kind == VALUE_DIR ? 'd' : 'f');
        }
    }
    tr_str_addf(out, "    esac\n");
}

/* bash breaks words at ':' and '=': a value with a colon is put together before it is compared, and what bash has
 * already is taken off again. Paths come one a line, because blanks may be in them, and are quoted by readline. */
static const char bash_helpers[] = "_trireme_words()\n{\n"
                                   "    COMPREPLY=($(compgen -W \"$1\" -- \"$cur\"))\n"
                                   "    ((at == COMP_CWORD)) || COMPREPLY=(\"${COMPREPLY[@]#\"${cur%:*}:\"}\")\n}\n"
                                   "_trireme_paths()\n{\n"
                                   "    mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$cur\")\n"
                                   "    compopt -o filenames 2>/dev/null\n}\n";

static void complete_bash(struct tr_str *out)
{
    tr_str_addf(out, "%s", bash_helpers);
    tr_str_addf(out,
                "_trireme()\n{\n"
                "    local at=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} before verb= words= i\n"
                "    COMPREPLY=()\n"
                "    while ((at > 1)) && [[ $cur == :* || ${COMP_WORDS[at-1]} == : ]]; do\n"
                "        ((--at)); cur=${COMP_WORDS[at]}$cur\n    done\n"
                "    before=${COMP_WORDS[at-1]}\n"
                "    if [ \"$cur\" = = ]; then cur=; elif [ \"$before\" = = ]; then before=${COMP_WORDS[at-2]}; fi\n"
                "    before=${before//-/_}; before=--${before#__}\n"
                "    for ((i = 1; i < COMP_CWORD; i++)); do\n        case ${COMP_WORDS[i]} in\n        ");
    for (int v = 0; v < TR_VERB_COUNT; v++)
        tr_str_addf(out, "%s%s", v ? "|" : "", tr_verb_word((enum tr_verb)v));
    tr_str_addf(out, ") verb=${COMP_WORDS[i]}; break ;;\n        esac\n    done\n");
    bash_values(out);
    tr_str_addf(out, "    case $verb in\n    '') words='");
    add_verbs(" ", out);
    tr_str_addf(out, "launch --help --version' ;;\n");
    for (int v = 0; v < TR_VERB_COUNT; v++) {
        tr_str_addf(out, "    %s) words='", tr_verb_word((enum tr_verb)v));
        add_subs((enum tr_verb)v, " ", out);
        for (size_t i = 0; i < tr_option_count(); i++)
            if (tr_option_is_for(&tr_options[i], (enum tr_verb)v))
                tr_str_addf(out, " --%s", tr_options[i].name);
        tr_str_addf(out, "' ;;\n");
    }
    tr_str_addf(out, "    esac\n    _trireme_words \"$words\"\n"
                     "    [ -n \"${COMPREPLY[*]}\" ] || _trireme_paths -f\n}\n"
                     "complete -F _trireme trireme\n");
}

/* ---- zsh ---- */

static void zsh_option(const struct option *opt, struct tr_str *out)
{
    static const char *const actions[] = { "", "", ":dir:_files -/", ":file:_files", ":value: " };
    enum value kind = value_of(opt);
    tr_str_addf(out, " \\\n            '*--%s%s[", opt->name, value_of(opt) == VALUE_NONE ? "" : "=");
    add_quoted(opt->help, "[]:", "'\\''", out);
    tr_str_addf(out, "]%s", actions[kind]);
    if (kind == VALUE_WORDS) {
        tr_str_addf(out, ":value:(");
        for (const struct choice *c = opt->choices; c->word != NULL; c++) {
            add_quoted(c->word, ":", "", out);
            tr_str_addf(out, c[1].word != NULL ? " " : ")");
        }
    }
    tr_str_addf(out, "'");
}

static void complete_zsh(struct tr_str *out)
{
    tr_str_addf(out, "#compdef trireme\n\n_trireme() {\n    local -a verbs\n    local verb= at\n    verbs=(\n");
    for (int v = 0; v < TR_VERB_COUNT; v++) {
        tr_str_addf(out, "        '%s:", tr_verb_word((enum tr_verb)v));
        add_quoted(tr_verb_what((enum tr_verb)v), ":", "'\\''", out);
        tr_str_addf(out, "'\n");
    }
    tr_str_addf(out, "        'launch:start several ranks of a verb'\n    )\n"
                     "    for ((at = 2; at < CURRENT; at++)); do\n        case $words[at] in\n        ");
    for (int v = 0; v < TR_VERB_COUNT; v++)
        tr_str_addf(out, "%s%s", v ? "|" : "", tr_verb_word((enum tr_verb)v));
    tr_str_addf(out, ") verb=$words[at]; break ;;\n        esac\n    done\n"
                     "    if [[ -z $verb ]]; then\n        _describe verb verbs\n        return\n    fi\n"
                     "    shift $((at - 1)) words\n    ((CURRENT -= at - 1))\n    case $verb in\n");
    for (int v = 0; v < TR_VERB_COUNT; v++) {
        struct tr_str subs = { 0 };
        add_subs((enum tr_verb)v, " ", &subs);
        tr_str_addf(out, "    %s)\n        _arguments", tr_verb_word((enum tr_verb)v));
        for (size_t i = 0; i < tr_option_count(); i++)
            if (tr_option_is_for(&tr_options[i], (enum tr_verb)v))
                zsh_option(&tr_options[i], out);
        if (subs.n > 0) /* before the paths or behind them: ckpt verify DIR, ctl DIR save */
            tr_str_addf(out,
                        " \\\n            '*:word or path:{_alternative \"words:word:(%s)\" \"paths:path:_files\"}'",
                        subs.p);
        else
            tr_str_addf(out, " \\\n            '*:path:_files'");
        tr_str_addf(out, "\n        ;;\n");
        tr_str_release(&subs);
    }
    tr_str_addf(out, "    esac\n}\n\n_trireme \"$@\"\n");
}

/* ---- fish ---- */

static void fish_option(enum tr_verb verb, const struct option *opt, struct tr_str *out)
{
    enum value kind = value_of(opt);
    tr_str_addf(out, "complete -c trireme -n '__fish_seen_subcommand_from %s' -l %s", tr_verb_word(verb), opt->name);
    if (kind == VALUE_WORDS) {
        tr_str_addf(out, " -x -a '");
        add_choices(opt, out);
        tr_str_addf(out, "'");
    } else if (kind != VALUE_NONE) {
        tr_str_addf(out, "%s",
                    kind == VALUE_DIR    ? " -x -a '(__fish_complete_directories)'"
                    : kind == VALUE_FILE ? " -r -F"
                                         : " -x");
    }
    tr_str_addf(out, " -d '");
    add_quoted(opt->help, "\\", "\\'", out);
    tr_str_addf(out, "'\n");
}

static void complete_fish(struct tr_str *out)
{
    tr_str_addf(out, "set -l verbs ");
    add_verbs(" ", out);
    tr_str_addf(out, "\n");
    for (int v = 0; v < TR_VERB_COUNT; v++) {
        tr_str_addf(out, "complete -c trireme -f -n \"not __fish_seen_subcommand_from $verbs\" -a %s -d '",
                    tr_verb_word((enum tr_verb)v));
        add_quoted(tr_verb_what((enum tr_verb)v), "\\", "\\'", out);
        tr_str_addf(out, "'\n");
    }
    tr_str_addf(out, "complete -c trireme -f -n __fish_use_subcommand -a launch -d 'start several ranks of a verb'\n");
    for (int v = 0; v < TR_VERB_COUNT; v++) {
        struct tr_str subs = { 0 };
        add_subs((enum tr_verb)v, " ", &subs);
        if (subs.n > 0)
            tr_str_addf(out, "complete -c trireme -n '__fish_seen_subcommand_from %s' -a '%s'\n",
                        tr_verb_word((enum tr_verb)v), subs.p);
        tr_str_release(&subs);
        for (size_t i = 0; i < tr_option_count(); i++)
            if (tr_option_is_for(&tr_options[i], (enum tr_verb)v))
                fish_option((enum tr_verb)v, &tr_options[i], out);
    }
}

enum tr_status tr_config_completion(const char *shell, struct tr_str *out)
{
    static const struct {
        const char *name;
        void (*print)(struct tr_str *out);
    } shells[] = { { "bash", complete_bash }, { "zsh", complete_zsh }, { "fish", complete_fish } };
    for (size_t i = 0; i < TR_COUNT_OF(shells); i++)
        if (strcmp(shells[i].name, shell) == 0) {
            shells[i].print(out);
            return TR_OK;
        }
    char shown[64];
    return tr_fail(TR_USAGE, "config completion: no completion for %s; there are bash, zsh and fish",
                   tr_escape(shell, shown, sizeof shown));
}
