/* regex.c - patterns of an adapter_config.json, which are Python's, with PCRE2.
 *
 * Both engines search in the same order and agree on most of the syntax. An escape or a group that means something else
 * in PCRE2, or nothing in Python, is refused by name: another set of modules would be another adapter. A pattern
 * without operators but the dot is compared without PCRE2, because files of real adapters list hundreds of names. The
 * others are bounded in number, length and steps of one match, so that no file can keep a run busy. Steps are counted,
 * not time, so that the answer does not depend on the machine.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "adapter/adapter_impl.h"

#include <assert.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_MAX = 4096, REGEXES_MAX = 256, STEPS_MAX = 100 * 1000, HEAP_KIB = 16 << 10 };

static const struct {
    const char *before, *after;
    uint32_t options;
} forms[] = {
    [PATTERN_WHOLE] = { "", "", PCRE2_ENDANCHORED },
    [PATTERN_SAVED] = { "(^|.*\\.)", "($|\\..*)", 0 },
    [PATTERN_SUFFIX] = { "(.*\\.)?(", ")$", 0 },
    [PATTERN_LAYER] = { "(?:^|.*?\\.)", "\\.(?P<idx>\\d+)\\.", 0 },
};
static_assert(TR_COUNT_OF(forms) == PATTERN_FORMS, "one row a form");

static enum tr_status refuse(const char *pattern, const char *what)
{
    char shown[128];
    return tr_fail(TR_USAGE, "the pattern \"%s\" uses %s, which is not supported; list the modules instead",
                   tr_escape(pattern, shown, sizeof shown), what);
}

/* A group that both engines read alike: (?:, (?=, (?!, (?<=, (?<!, (?>, (?P<name>, (?P=name) and (?i:. */
static bool is_same_group(const char *p)
{
    static const char *const same[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?P<", "(?P=", "(?i:" };
    if (p[1] != '?' && p[1] != '*')
        return true;
    for (size_t i = 0; i < TR_COUNT_OF(same); i++)
        if (strncmp(p, same[i], strlen(same[i])) == 0)
            return true;
    return false;
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Copies a pattern of Python in PCRE2's syntax. is_first: nothing stands in front of it. */
static enum tr_status translate(const char *pattern, bool is_first, struct tr_str *out)
{
    bool in_class = false;
    const char *class_start = NULL, *p = pattern;
    if (is_first && strncmp(p, "(?i)", 4) == 0) { /* Python has it at the start of an expression only */
        tr_str_addf(out, "(?i)");
        p += 4;
    }
    for (; *p; p++) {
        if (*p == '\\') {
            char name[3] = { '\\', p[1], 0 };
            if (p[1] == 0 || (is_alnum(p[1]) && !strchr("dDwWsSbBAZnrtfax0123456789", p[1])))
                return refuse(pattern, p[1] ? name : "a backslash at its end");
            tr_str_addf(out, "\\%c", p[1] == 'Z' ? 'z' : p[1]); /* Python's \Z is the very end */
            p++;
            continue;
        }
        if (in_class && *p == '[' && p[1] != 0 && strchr(":.=", p[1]))
            return refuse(pattern, "a named class");
        if (!in_class && *p == '(' && !is_same_group(p))
            return refuse(pattern, "a group of a kind that only one of Python and PCRE2 has");
        if (!in_class && strncmp(p, "{,", 2) == 0)
            return refuse(pattern, "{,N}");
        if (*p == '[' && !in_class) {
            in_class = true;
            class_start = p + 1 + (p[1] == '^');
        } else if (*p == ']' && in_class && p != class_start) {
            in_class = false;
        }
        tr_str_add(out, p, 1);
    }
    return TR_OK;
}

static bool is_literal(const char *text)
{
    for (; *text; text++)
        if (!is_alnum(*text) && *text != '_' && *text != '.' && *text != '-')
            return false;
    return true;
}

enum tr_status tr_adapter_pattern_init(struct pattern *p, enum pattern_form form, const char *text, int *n_regexes)
{
    enum tr_status st = TR_OK;
    struct tr_str s = { 0 };
    int error = 0;
    PCRE2_SIZE where = 0;
    *p = (struct pattern){ .text = text, .form = form };
    if (strlen(text) > PATTERN_MAX)
        return tr_fail(TR_USAGE, "a pattern has %zu bytes; at most %d are read", strlen(text), PATTERN_MAX);
    if (is_literal(text))
        return TR_OK;
    if (++*n_regexes > REGEXES_MAX)
        return tr_fail(TR_USAGE, "more than %d patterns with operators; list the modules instead", REGEXES_MAX);
    tr_str_addf(&s, "%s", forms[form].before);
    TR_TRY(translate(text, forms[form].before[0] == 0, &s));
    tr_str_addf(&s, "%s", forms[form].after);
    TR_TRY(tr_str_check(&s, "a pattern"));
    p->code = pcre2_compile((PCRE2_SPTR)s.p, s.n, PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | forms[form].options, &error,
                            &where, NULL);
    if (!p->code) {
        char why[128], shown[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        st = tr_fail(TR_USAGE, "the pattern \"%s\" is not accepted: %s", tr_escape(text, shown, sizeof shown), why);
    }
out:
    tr_str_release(&s);
    return st;
}

void tr_adapter_pattern_release(struct pattern *p)
{
    pcre2_code_free(p->code);
    *p = (struct pattern){ 0 };
}

/* The end of text at `at`, where a dot of the text stands for any character; NULL: it does not stand there. */
static const char *literal_end(const char *text, const char *at)
{
    for (; *text; text++, at++)
        if (*at == 0 || (*text != '.' && *text != *at))
            return NULL;
    return at;
}

/* The tail that each form wants behind the literal. */
static bool is_tail(enum pattern_form form, const char *end, int64_t *layer)
{
    if (form == PATTERN_WHOLE || form == PATTERN_SUFFIX)
        return *end == 0;
    if (form == PATTERN_SAVED)
        return *end == 0 || *end == '.';
    size_t n = *end == '.' ? strspn(end + 1, "0123456789") : 0;
    if (n == 0 || n > 9 || end[1 + n] != '.')
        return false;
    if (layer)
        *layer = strtoll(end + 1, NULL, 10);
    return true;
}

static bool match_literal(const struct pattern *p, const char *name, int64_t *layer)
{
    for (const char *at = name; *at; at++) {
        bool is_start = at == name || (p->form != PATTERN_WHOLE && at[-1] == '.');
        const char *end = is_start ? literal_end(p->text, at) : NULL;
        if (end && is_tail(p->form, end, layer))
            return true;
    }
    return false;
}

static int64_t found_layer(const struct pattern *p, pcre2_match_data *data, const char *name)
{
    int n = pcre2_substring_number_from_name(p->code, (PCRE2_SPTR) "idx");
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(data);
    bool is_set = n > 0 && at[2 * n] != PCRE2_UNSET && at[2 * n + 1] - at[2 * n] <= 9;
    return is_set ? strtoll(name + at[2 * n], NULL, 10) : -1;
}

enum tr_status tr_adapter_pattern_match(const struct pattern *p, const char *name, bool *is_match, int64_t *layer)
{
    *is_match = !p->code && match_literal(p, name, layer);
    if (!p->code)
        return TR_OK;
    enum tr_status st = TR_OK;
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(p->code, NULL);
    if (!context || !data)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a pattern"));
    pcre2_set_match_limit(context, STEPS_MAX);
    pcre2_set_heap_limit(context, HEAP_KIB);
    int rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, context);
    *is_match = rc >= 0;
    if (rc >= 0 && layer)
        *layer = found_layer(p, data, name);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        char why[128], shown[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        st = tr_fail(TR_USAGE, "the pattern \"%s\" gave up on the name %s: %s; write it with fewer repetitions",
                     tr_escape(p->text, shown, sizeof shown), name, why);
    }
out:
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    return st;
}

/* ---- all patterns of an adapter ---- */

static enum tr_status compile_list(enum pattern_form form, const char *const *text, size_t n, int *n_regexes,
                                   struct pattern **out, size_t *n_out)
{
    struct pattern *p = n ? calloc(n, sizeof *p) : NULL;
    if (n && !p)
        return tr_fail(TR_NOMEM, "no memory for %zu patterns", n);
    *out = p;
    *n_out = n;
    for (size_t i = 0; i < n; i++)
        TR_PASS(tr_adapter_pattern_init(&p[i], form, text[i], n_regexes));
    return TR_OK;
}

static enum tr_status compile_keys(const struct tr_adapter_pattern *list, size_t n, int *n_regexes,
                                   struct pattern **out, size_t *n_out)
{
    const char **text = NULL;
    TR_PASS(TR_ALLOC(text, n + 1, "%zu patterns", n));
    for (size_t i = 0; i < n; i++)
        text[i] = list[i].key;
    enum tr_status st = compile_list(PATTERN_SUFFIX, text, n, n_regexes, out, n_out);
    free(text);
    return st;
}

enum tr_status tr_adapter_compile(struct tr_adapter *a)
{
    int n = 0;
    struct tr_adapter_regexes *re = a->regexes = calloc(1, sizeof *re);
    if (!re)
        return tr_fail(TR_NOMEM, "no memory for the patterns of an adapter");
    if (a->is_regex)
        TR_PASS(compile_list(PATTERN_WHOLE, a->target.item, a->target.n, &n, &re->target, &re->n_target));
    if (a->exclude_is_regex)
        TR_PASS(compile_list(PATTERN_WHOLE, a->exclude.item, a->exclude.n, &n, &re->exclude, &re->n_exclude));
    TR_PASS(compile_list(PATTERN_SAVED, a->saved.item, a->saved.n, &n, &re->saved, &re->n_saved));
    TR_PASS(compile_list(PATTERN_LAYER, a->layers_pattern.item, a->layers_pattern.n, &n, &re->layer, &re->n_layer));
    TR_PASS(compile_keys(a->rank_pattern, a->n_rank_patterns, &n, &re->rank, &re->n_rank));
    return compile_keys(a->alpha_pattern, a->n_alpha_patterns, &n, &re->alpha, &re->n_alpha);
}

static void forget_list(struct pattern *p, size_t n)
{
    for (size_t i = 0; p && i < n; i++)
        tr_adapter_pattern_release(&p[i]);
    free(p);
}

void tr_adapter_forget(struct tr_adapter *a)
{
    struct tr_adapter_regexes *re = a->regexes;
    if (!re)
        return;
    forget_list(re->target, re->n_target);
    forget_list(re->exclude, re->n_exclude);
    forget_list(re->saved, re->n_saved);
    forget_list(re->layer, re->n_layer);
    forget_list(re->rank, re->n_rank);
    forget_list(re->alpha, re->n_alpha);
    free(re);
    a->regexes = NULL;
}
