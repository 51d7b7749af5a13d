/* cut.c - decides, when a tokenizer is loaded, where its texts may be cut without changing an id.
 *
 * A cut before a space between two ASCII letters ("a| b") is safe under three conditions: every step treats each of the
 * characters around it by itself; some step ends a word there, or the model has no merge across it; and no added token
 * reaches across it. A cut after a newline between two characters that are not white space is safe for the well-known
 * patterns and NFC only. A cut that is not known to be safe is not made.
 */
#include "token/token_impl.h"

#include <string.h>

static bool is_letter(char c)
{
    return ((unsigned char)c | 32) >= 'a' && ((unsigned char)c | 32) <= 'z';
}

static bool charsmap_keeps_ascii(const struct tr_tok_norm *x)
{
    static const char text[] = " a b c d e f g h i j k l m n o p q r s t u v w x y z"
                               " A B C D E F G H I J K L M N O P Q R S T U V W X Y Z";
    struct tr_str out = { 0 };
    tr_tok_charsmap_apply(x, text, sizeof text - 1, sizeof text, &out);
    bool is_same = tr_str_ok(&out) && out.n == sizeof text - 1 && memcmp(out.p, text, out.n) == 0;
    tr_str_release(&out);
    return is_same;
}

/* Updates *space, the text that a space has become. False: the step looks at more than one character, or changes
 * letters. */
static bool is_local(const struct tr_tok_norm *x, const char **space)
{
    switch (x->kind) {
    case TR_TOK_NORM_STRIP:
    case TR_TOK_NORM_BYTES:
        return false;
    case TR_TOK_NORM_CHARSMAP:
        return charsmap_keeps_ascii(x);
    case TR_TOK_NORM_REPLACE:
        if (x->pattern.is_regex)
            return strcmp(x->pattern.text, " {2,}") == 0 && strcmp(*space, " ") == 0;
        if (x->pattern.n == 0 || tr_utf8_len(x->pattern.text, x->pattern.n) != x->pattern.n ||
            is_letter(*x->pattern.text))
            return false;
        if (strcmp(x->pattern.text, *space) == 0)
            *space = x->text;
        return **space && tr_utf8_len(*space, strlen(*space)) == strlen(*space) && !is_letter(**space);
    default:
        return true;
    }
}

enum effect { BREAKS, HARMLESS, ENDS_WORD };

static enum effect effect_of_pattern(const struct tr_tok_split *x, bool is_space)
{
    static const char cjk[] =
        "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"; /* DeepSeek */
    if (!x->pattern.is_regex) /* harmless when it is a literal space that is no longer in the text */
        return strcmp(x->pattern.text, " ") == 0 && !is_space ? HARMLESS : BREAKS;
    if (x->behavior != TR_TOK_ISOLATED || x->invert)
        return BREAKS;
    if (x->pattern.re.scan && !tr_tok_scan_ends_words(x->pattern.re.scan))
        return HARMLESS; /* digits only */
    if (x->pattern.re.scan)
        return is_space ? ENDS_WORD : BREAKS;
    return strcmp(x->pattern.text, cjk) == 0 ? HARMLESS : BREAKS;
}

/* What a step does at a space between letters. An earlier step has turned the space into *space. */
static enum effect effect_of(const struct tr_tok_split *x, const char **space)
{
    bool is_space = strcmp(*space, " ") == 0;
    switch (x->kind) {
    case TR_TOK_SPLIT_PATTERN:
        return effect_of_pattern(x, is_space);
    case TR_TOK_SPLIT_CLASS: /* splits only at digits or punctuation, which are not at the cut */
        return x->flag == 0 && is_space ? ENDS_WORD : HARMLESS;
    case TR_TOK_SPLIT_WORDS:
        return is_space ? ENDS_WORD : BREAKS;
    case TR_TOK_SPLIT_METASPACE:
        if (!is_space && strcmp(*space, x->pattern.text) != 0)
            return BREAKS;
        *space = x->pattern.text;
        return x->has_split ? ENDS_WORD : HARMLESS;
    case TR_TOK_SPLIT_PREFIX:
        return is_space ? HARMLESS : BREAKS;
    case TR_TOK_SPLIT_BYTES:
        *space = "\xC4\xA0"; /* its byte character */
        return HARMLESS;
    }
    return BREAKS;
}

/* Whether an added token could reach across a cut at a space (or at the text that it becomes), or strip the space. */
static bool crosses_space(const struct tr_tok_added *a, const char *space)
{
    const char *texts[2] = { a->text, a->normal };
    for (int k = 0; k < 2; k++)
        for (const char *p = texts[k]; *p; p++)
            if (is_letter(*p) && (p[1] == ' ' || (*space && strncmp(p + 1, space, strlen(space)) == 0)))
                return true;
    return a->rstrip && is_letter(a->text[a->n - 1]);
}

static bool crosses_newline(const struct tr_tok_added *a)
{
    const char *at = strchr(a->text, '\n');
    return a->lstrip || a->rstrip || (at && at[1]);
}

void tr_tok_find_cuts(struct tr_tokenizer *t)
{
    bool at_space = true, at_newline = true, ends_word = false;
    const char *space = " ";
    for (size_t i = 0; i < t->n_norms; i++) {
        at_space = at_space && is_local(&t->norms[i], &space);
        at_newline = at_newline && t->norms[i].kind == TR_TOK_NORM_NFC;
    }
    for (size_t i = 0; i < t->n_splits; i++) {
        const struct tr_tok_split *x = &t->splits[i];
        enum effect effect = effect_of(x, &space);
        bool is_digits = x->kind == TR_TOK_SPLIT_CLASS && x->flag == TR_TOK_CP_NUMERIC;
        at_space = at_space && effect != BREAKS;
        at_newline = at_newline && effect != BREAKS && (x->kind == TR_TOK_SPLIT_PATTERN || is_digits);
        ends_word = ends_word || effect == ENDS_WORD;
    }
    at_newline = at_newline && ends_word;
    if (!ends_word)
        at_space = at_space && t->model == TR_TOK_MODEL_BPE && tr_tok_bpe_never_joins(t, space);
    for (size_t i = 0; i < t->n_added; i++) {
        at_space = at_space && !crosses_space(&t->added[i], space);
        at_newline = at_newline && !crosses_newline(&t->added[i]);
    }
    t->cuts_at_space = at_space;
    t->cuts_at_newline = at_newline;
}
