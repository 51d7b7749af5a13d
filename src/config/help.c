/* help.c - everything that is printed from the option table: help, man page, dump, JSON, the frozen list.
 */
#include "config/config_impl.h"

#include <limits.h>

static const struct {
    const char *word, *what, *words;
} verbs[] = {
#define X(name, word, what, words) { word, what, words },
    TR_VERB_LIST(X)
#undef X
};
_Static_assert(TR_COUNT_OF(verbs) == TR_VERB_COUNT, "one row a verb");

static const char *const type_words[] = { "bool", "int",   "real", "bytes",  "text", "choice",
                                          "data", "words", "sum",  "object", "set" };
_Static_assert(TR_COUNT_OF(type_words) == OPTION_SET + 1, "one word a type");

const char *tr_verb_word(enum tr_verb verb)
{
    return verbs[verb].word;
}

const char *tr_verb_what(enum tr_verb verb)
{
    return verbs[verb].what;
}

const char *tr_verb_words(enum tr_verb verb)
{
    return verbs[verb].words;
}

enum tr_status tr_verb_misused(enum tr_verb verb)
{
    return tr_fail(TR_USAGE, "usage: trireme %s %s", verbs[verb].word, verbs[verb].words);
}

bool tr_verb_parse(const char *word, enum tr_verb *out)
{
    for (int v = 0; v < TR_VERB_COUNT; v++)
        if (strcmp(verbs[v].word, word) == 0) {
            *out = (enum tr_verb)v;
            return true;
        }
    return false;
}

/* "none|op|block": the canonical words; aliases repeat a value that came before. */
static void print_words(const struct option *opt, struct tr_str *out)
{
    int last = -1;
    for (const struct choice *c = opt->choices; c->word != NULL; c++) {
        if (c->value > last)
            tr_str_addf(out, "%s%s", last < 0 ? "" : "|", c->word);
        last = c->value > last ? c->value : last;
    }
}

static void print_arg(const struct option *opt, struct tr_str *out)
{
    if (tr_option_has_words(opt))
        print_words(opt, out);
    else if (opt->arg != NULL)
        tr_str_addf(out, "%s", opt->arg);
}

typedef void row_fn(const struct option *opt, struct tr_str *out);

static void each_row(enum tr_verb verb, const char *group_format, row_fn *fn, struct tr_str *out)
{
    for (const char *const *group = tr_groups; *group != NULL; group++) {
        bool is_first = true;
        for (size_t i = 0; i < tr_option_count(); i++) {
            const struct option *opt = &tr_options[i];
            if (!tr_option_is_for(opt, verb) || strcmp(opt->group, *group) != 0)
                continue;
            if (is_first && group_format != NULL)
                tr_str_addf(out, "%s%s\n", group_format, *group);
            is_first = false;
            fn(opt, out);
        }
    }
}

static void help_row(const struct option *opt, struct tr_str *out)
{
    enum { COLUMN = 42 };
    size_t start = out->n;
    tr_str_addf(out, "  --%s ", opt->name);
    print_arg(opt, out);
    size_t n = out->n - start;
    if (n < COLUMN)
        tr_str_addf(out, "%*s", (int)(COLUMN - n), "");
    else
        tr_str_addf(out, "\n%*s", COLUMN, "");
    tr_str_addf(out, "%s", opt->help);
    if (opt->def != NULL && opt->type != OPTION_BOOL)
        tr_str_addf(out, " [%s]", opt->def);
    tr_str_add(out, "\n", 1);
}

void tr_config_help(enum tr_verb verb, struct tr_str *out)
{
    tr_str_addf(out, "trireme %s - %s\n\nusage: trireme %s %s%s[options]\n", tr_verb_word(verb), tr_verb_what(verb),
                tr_verb_word(verb), verbs[verb].words, verbs[verb].words[0] ? " " : "");
    each_row(verb, "\n", help_row, out);
    tr_str_addf(out, "\n");
    for (const struct old_option *r = tr_rewrites; r->name != NULL; r++)
        if (r->if_true != NULL && tr_option_find(verb, r->target) != NULL)
            tr_str_addf(out, "--%s is --%s %s.\n", r->name, r->target, r->if_true);
    tr_str_addf(out,
                "Options may also come from --set, a file (--config run.yaml) or the environment (TRIREME_SEED=1).\n"
                "man trireme-%s lists more names for them.\n",
                tr_verb_word(verb));
}

/* roff: a backslash is an escape, a plain dash a hyphen; a list of choices may be broken after each, else no line could
 * hold it. */
static void print_roff(const char *text, struct tr_str *out)
{
    for (; *text != '\0'; text++)
        if (*text == '-' || *text == '\\' || *text == '|')
            tr_str_addf(out, "%s", *text == '-' ? "\\-" : *text == '|' ? "|\\:" : "\\e");
        else
            tr_str_add(out, text, 1);
}

static void man_row(const struct option *opt, struct tr_str *out)
{
    struct tr_str arg = { 0 };
    print_arg(opt, &arg);
    tr_str_addf(out, ".TP\n\\fB\\-\\-%s\\fR%s", opt->name, arg.n != 0 ? " \\fI" : "");
    print_roff(arg.p != NULL ? arg.p : "", out);
    tr_str_addf(out, "%s\n", arg.n != 0 ? "\\fR" : "");
    tr_str_release(&arg);
    print_roff(opt->help, out);
    tr_str_addf(out, ".\n");
    if (opt->def != NULL && opt->type != OPTION_BOOL) {
        tr_str_addf(out, "Default: ");
        print_roff(opt->def, out);
        tr_str_addf(out, ".\n");
    }
    if (opt->aliases[0] != '\0')
        tr_str_addf(out, "Also: %s.\n", opt->aliases);
}

void tr_config_man(enum tr_verb verb, struct tr_str *out)
{
    tr_str_addf(out, ".TH TRIREME\\-%s 1\n.ad l\n.SH NAME\ntrireme\\-%s \\- %s\n", tr_verb_word(verb),
                tr_verb_word(verb), tr_verb_what(verb));
    tr_str_addf(out, ".SH SYNOPSIS\n.B trireme %s\n[\\fIoptions\\fR]\n.SH OPTIONS\n", tr_verb_word(verb));
    tr_str_addf(out,
                "Names may be written with dashes or underscores. The same names work in the file of "
                "\\fB\\-\\-config\\fR, in\n\\fB\\-\\-set\\fR \\fIgroup.name=value\\fR and as environment variables "
                "\\fBTRIREME_NAME\\fR.\n");
    each_row(verb, ".SS ", man_row, out);
    tr_str_addf(out, ".SH EXIT STATUS\n0 done; 2 usage or bad input; 75 retry; 70 bug; 78 do not requeue.\n");
}

/* trireme(1): what all verbs share. */
void tr_config_man_all(struct tr_str *out)
{
    tr_str_addf(out, ".TH TRIREME 1\n.ad l\n.SH NAME\ntrireme \\- trains transformer language models\n.SH SYNOPSIS\n"
                     ".B trireme\n\\fIVERB\\fR [\\fIoptions\\fR]\n.br\n.B trireme launch\n[\\fIflags\\fR] \\fIVERB\\fR "
                     "[\\fIoptions\\fR]\n.SH DESCRIPTION\nA Hugging Face directory goes in, a Hugging Face directory "
                     "comes out.\n\\fBtrireme launch\\fR starts several ranks of a verb; its flags are listed by\n"
                     "\\fBtrireme launch \\-\\-help\\fR.\n.SH VERBS\n");
    for (int v = 0; v < TR_VERB_COUNT; v++) {
        tr_str_addf(out, ".TP\n\\fB%s\\fR\n", verbs[v].word);
        print_roff(verbs[v].what, out);
        tr_str_addf(out, ": \\fBtrireme\\-%s\\fR(1).\n", verbs[v].word);
    }
    tr_str_addf(out,
                ".SH EXIT STATUS\n0 done; 1 no (ckpt diff: they differ; plan: it does not fit); 2 usage or bad input, "
                "and nothing was written;\n70 a bug or the fault of the machine; 75 retry: stopped by a signal, and "
                "saved; 78 do not requeue;\n143 stopped by a signal before it could save.\n.SH ENVIRONMENT\n.TP\n"
                "\\fBTRIREME_NAME\\fR\nThe option of that name, below the command line and files.\n.TP\n"
                "\\fBTRIREME_MODULES\\fR\nDirectory where modules (CUDA, MPI) are looked for first.\n.SH FILES\n.TP\n"
                "\\fIOUTPUT\\fR/events.jsonl\nWhat a run reported, one JSON object a line.\n.TP\n"
                "\\fIOUTPUT\\fR/checkpoint\\-\\fISTEP\\fR\nA checkpoint, which is a Hugging Face directory.\n");
}

static const struct origin *origin_of(const struct tr_config *cfg, const char *name)
{
    const struct option *opt = tr_option_find(cfg->verb, name);
    return opt != NULL && cfg->full != NULL ? &cfg->full->origins[opt - tr_options] : NULL;
}

const char *tr_config_origin(const struct tr_config *cfg, const char *name)
{
    const struct origin *o = origin_of(cfg, name);
    return o != NULL ? o->text : "default";
}

bool tr_config_is_set(const struct tr_config *cfg, const char *name)
{
    const struct origin *o = origin_of(cfg, name);
    return o != NULL && o->level > LEVEL_DERIVED;
}

const char *tr_config_notices(const struct tr_config *cfg)
{
    return cfg->full != NULL && cfg->full->notices.p != NULL ? cfg->full->notices.p : "";
}

/* Options that have a value worth showing: not --set and --help. */
static bool is_shown(const struct tr_config *cfg, const struct option *opt)
{
    return tr_option_is_for(opt, cfg->verb) && opt->type != OPTION_SET && strcmp(opt->name, "help") != 0;
}

void tr_config_dump(const struct tr_config *cfg, struct tr_str *out)
{
    struct tr_str value = { 0 };
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        if (!is_shown(cfg, opt))
            continue;
        char shown[1024];
        tr_str_clear(&value);
        tr_value_print(cfg, opt, false, &value);
        tr_escape(value.n != 0 ? value.p : "-", shown, sizeof shown);
        tr_str_addf(out, "%-9s %-28s %-20s %s\n", opt->group, opt->name, shown, cfg->full->origins[i].text);
    }
    tr_str_release(&value);
}

/* Options that may differ between ranks: how a rank computes and what it prints. */
static bool is_own(const char *name)
{
    static const char *const own[] = { "threads", "quiet", "json", "gemm", "logging_steps" };
    return TR_ROW(own, name) != NULL;
}

int tr_config_keys(const struct tr_config *cfg, int max, const char **names, int64_t *values)
{
    struct tr_str text = { 0 };
    int n = 0;
    for (size_t i = 0; i < tr_option_count() && n < max; i++) {
        const struct option *opt = &tr_options[i];
        if (!is_shown(cfg, opt) || is_own(opt->name))
            continue;
        tr_str_clear(&text);
        tr_value_print(cfg, opt, false, &text);
        names[n] = opt->name;
        if (opt->type != OPTION_INT || tr_parse_int(text.p, INT64_MIN + 1, INT64_MAX, &values[n]) != TR_OK)
            values[n] = (int64_t)(tr_hash(text.n ? text.p : "", text.n).lo >> 2);
        n++;
    }
    tr_str_release(&text);
    return n;
}

void tr_config_json(const struct tr_config *cfg, bool with_origin, struct tr_str *out)
{
    const char *comma = "";
    tr_str_addf(out, "{");
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        if (!is_shown(cfg, opt))
            continue;
        tr_str_addf(out, "%s\"%s\":%s", comma, opt->name, with_origin ? "{\"value\":" : "");
        tr_value_print(cfg, opt, true, out);
        if (with_origin) {
            tr_str_member(out, ",\"origin\":", cfg->full->origins[i].text);
            tr_str_addf(out, "}");
        }
        comma = ",";
    }
    tr_str_addf(out, "}");
}

static bool is_argument(const struct tr_config *cfg, const struct option *opt, enum tr_verb verb,
                        const char *const *except)
{
    bool is_given = cfg->full->origins[opt - tr_options].level > LEVEL_DERIVED;
    for (; *except != NULL; except++)
        if (strcmp(*except, opt->name) == 0)
            return false;
    return is_given && is_shown(cfg, opt) && tr_option_is_for(opt, verb);
}

static void add_argument(const char *name, const char *value, struct tr_str *out)
{
    tr_str_addf(out, " --%s ", name);
    tr_str_shell(out, value);
}

static void add_value(const struct tr_config *cfg, const struct option *opt, struct tr_str *out)
{
    struct tr_str value = { 0 };
    tr_value_print(cfg, opt, false, &value);
    if (opt->type == OPTION_BOOL && *(const bool *)((const char *)cfg + opt->at))
        tr_str_addf(out, " --%s", opt->name);
    else
        add_argument(opt->name, value.p != NULL ? value.p : "", out);
    tr_str_release(&value);
}

static void add_sources(const struct tr_config *cfg, const struct option *opt, struct tr_str *out)
{
    struct tr_config one = *cfg;
    struct tr_data_list *list = (struct tr_data_list *)(void *)((char *)&one + opt->at), all = *list;
    for (size_t i = 0; i < all.n; i++) {
        *list = (struct tr_data_list){ &all.item[i], 1 };
        add_value(&one, opt, out);
    }
}

/* The item of any list that was given first after position `last`; false: there is none. */
static bool next_word(const struct tr_config *cfg, enum tr_verb verb, const char *const *except, int *last,
                      const char **name, const char **word)
{
    int first = INT_MAX;
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        const struct tr_words *list = (const void *)((const char *)cfg + opt->at);
        if (opt->type != OPTION_WORDS || !is_argument(cfg, opt, verb, except))
            continue;
        for (size_t k = 0; k < list->n; k++)
            if (list->position[k] > *last && list->position[k] < first) {
                first = list->position[k];
                *name = opt->name;
                *word = list->item[k];
            }
    }
    *last = first;
    return first < INT_MAX;
}

/* Items of lists keep their order over all lists: of two patterns that match a parameter the last one counts. */
void tr_config_arguments(const struct tr_config *cfg, enum tr_verb verb, const char *const *except, struct tr_str *out)
{
    const char *name = NULL, *word = NULL;
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        if (opt->type == OPTION_WORDS || !is_argument(cfg, opt, verb, except))
            continue;
        if (opt->type == OPTION_DATA)
            add_sources(cfg, opt, out);
        else
            add_value(cfg, opt, out);
    }
    for (int last = -1; next_word(cfg, verb, except, &last, &name, &word);)
        add_argument(name, word, out);
}

void tr_config_list(struct tr_str *out)
{
    for (size_t i = 0; i < tr_option_count(); i++) {
        const struct option *opt = &tr_options[i];
        tr_str_addf(out, "%s.%s %s", opt->group, opt->name, type_words[opt->type]);
        if (tr_option_has_words(opt)) {
            tr_str_addf(out, " ");
            print_words(opt, out);
        }
        tr_str_addf(out, " default=%s aliases=%s verbs=", opt->def != NULL ? opt->def : "-", opt->aliases);
        for (int v = 0; v < TR_VERB_COUNT; v++)
            if (tr_option_is_for(opt, (enum tr_verb)v))
                tr_str_addf(out, " %s", verbs[v].word);
        tr_str_addf(out, "\n");
    }
    for (const struct old_option *r = tr_rewrites; r->name != NULL; r++)
        tr_str_addf(out, "%s -> %s\n", r->name, r->target != NULL ? r->target : "ignored");
}
