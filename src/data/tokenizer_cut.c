/* tokenizer_cut.c - decides, when a tokenizer is loaded, where its texts may be cut without changing an id.
 *
 * A cut before a space between two ASCII letters ("a| b") is right when every step treats the characters around it
 * alone, some step (or a model without such a merge) ends a word there, and no added token reaches across. A cut behind
 * a newline between two characters that are not white space is right for the well-known patterns and NFC only. Anything
 * that is not known to be right is not cut.
 */
#include "data/tokenizer_impl.h"

#include <string.h>

/* Steps that look at one character, or at marks behind their letter. A replacement of one character is such a step. */
static bool is_local(const struct tr_norm *x)
{
    switch (x->kind) {
    case TR_NORM_STRIP:
    case TR_NORM_BYTES:
        return false;
    case TR_NORM_REPLACE:
        if (x->pattern.is_regex)
            return strcmp(x->pattern.text, " {2,}") == 0;
        return x->pattern.n > 0 && tr_utf8_len(x->pattern.text, x->pattern.n) == x->pattern.n;
    default:
        return true;
    }
}

static bool charsmap_keeps_ascii(const struct tr_norm *x)
{
    static const char text[] = " a b c d e f g h i j k l m n o p q r s t u v w x y z"
                               " A B C D E F G H I J K L M N O P Q R S T U V W X Y Z";
    struct tr_str out = { 0 };
    tr_charsmap_apply(x, text, sizeof text - 1, &out);
    bool is_same = tr_str_ok(&out) && out.n == sizeof text - 1 && memcmp(out.p, text, out.n) == 0;
    tr_str_release(&out);
    return is_same;
}

/* What a space has become before the splits. */
static const char *space_text(const struct tr_tokenizer *t)
{
    for (size_t i = 0; i < t->n_norms; i++)
        if (t->norms[i].kind == TR_NORM_REPLACE && !t->norms[i].pattern.is_regex &&
            strcmp(t->norms[i].pattern.text, " ") == 0)
            return t->norms[i].text;
    return " ";
}

enum effect { BREAKS, HARMLESS, ENDS_WORD };

static enum effect effect_of(const struct tr_tokenizer *t, const struct tr_split *x)
{
    static const char cjk[] =
        "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"; /* DeepSeek */
    switch (x->kind) {
    case TR_SPLIT_PATTERN:
        if (!x->pattern.is_regex) /* a literal that is no longer in the text */
            return strcmp(x->pattern.text, " ") == 0 && !strchr(space_text(t), ' ') ? HARMLESS : BREAKS;
        if (x->pattern.re.scan)
            return x->behavior == TR_ISOLATED && !x->invert
                       ? tr_scan_ends_words(x->pattern.re.scan) ? ENDS_WORD : HARMLESS
                       : BREAKS;
        return strcmp(x->pattern.text, cjk) == 0 && x->behavior == TR_ISOLATED ? HARMLESS : BREAKS;
    case TR_SPLIT_CLASS:
        return x->flag == 0                                                 ? ENDS_WORD
               : x->behavior == TR_ISOLATED || x->behavior == TR_CONTIGUOUS ? HARMLESS
                                                                            : BREAKS;
    case TR_SPLIT_WORDS:
        return ENDS_WORD;
    case TR_SPLIT_METASPACE:
        return x->has_split ? ENDS_WORD : HARMLESS;
    default:
        return HARMLESS;
    }
}

static bool is_letter(char c)
{
    return ((unsigned char)c | 32) >= 'a' && ((unsigned char)c | 32) <= 'z';
}

/* Whether a token could reach across a cut at a space (or what it becomes), or take the space with it. */
static bool crosses_space(const struct tr_added *a, const char *space)
{
    const char *texts[2] = { a->text, a->normal };
    for (int k = 0; k < 2; k++)
        for (const char *p = texts[k]; *p; p++)
            if (is_letter(*p) && (p[1] == ' ' || (*space && strncmp(p + 1, space, strlen(space)) == 0)))
                return true;
    return a->rstrip && is_letter(a->text[a->n - 1]);
}

static bool crosses_newline(const struct tr_added *a)
{
    const char *at = strchr(a->text, '\n');
    return a->lstrip || a->rstrip || (at && at[1]);
}

void tr_find_cuts(struct tr_tokenizer *t)
{
    bool space = true, newline = true, ends_word = false;
    for (size_t i = 0; i < t->n_norms; i++) {
        const struct tr_norm *x = &t->norms[i];
        newline = newline && x->kind == TR_NORM_NFC;
        space = space && is_local(x) && (x->kind != TR_NORM_CHARSMAP || charsmap_keeps_ascii(x));
    }
    for (size_t i = 0; i < t->n_splits; i++) {
        const struct tr_split *x = &t->splits[i];
        enum effect effect = effect_of(t, x);
        space = space && effect != BREAKS;
        ends_word = ends_word || effect == ENDS_WORD;
        newline = newline && (x->kind == TR_SPLIT_PATTERN || (x->kind == TR_SPLIT_CLASS && x->flag == TR_CP_NUMERIC));
        newline = newline && effect != BREAKS;
    }
    newline = newline && ends_word;
    const char *mark = t->n_splits && t->splits[t->n_splits - 1].kind == TR_SPLIT_METASPACE
                           ? t->splits[t->n_splits - 1].pattern.text
                           : space_text(t);
    if (!ends_word)
        space = space && t->model == TR_MODEL_BPE && tr_bpe_never_joins(t, mark);
    for (size_t i = 0; i < t->n_added; i++) {
        space = space && !crosses_space(&t->added[i], mark);
        newline = newline && !crosses_newline(&t->added[i]);
    }
    t->cuts_at_space = space;
    t->cuts_at_newline = newline;
}
