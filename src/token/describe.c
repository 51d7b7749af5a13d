/* describe.c - a loaded tokenizer as data for another format: its tokens by kind, its merges in order, and the steps
 * in front of the model as text that can be compared with a table. */
#include "token/token_impl.h"

#include <stdlib.h>

enum tr_token_kind tr_tokenizer_token(const struct tr_tokenizer *t, int32_t id, const char **text, size_t *n)
{
    if (id < 0 || (size_t)id >= t->n_ids)
        return TR_TOKEN_NONE;
    int32_t at = t->added_of_id[id];
    if (at >= 0) {
        *text = t->added[at].text;
        *n = t->added[at].n;
        return id == t->unk ? TR_TOKEN_UNKNOWN : t->added[at].is_special ? TR_TOKEN_SPECIAL : TR_TOKEN_ADDED;
    }
    *text = tr_tok_vocab_text(&t->vocab, id, n);
    if (!*text)
        return TR_TOKEN_NONE;
    if (id == t->unk)
        return TR_TOKEN_UNKNOWN;
    for (int i = 0; t->byte_fallback && !t->is_raw && i < TR_TOK_BYTES; i++)
        if (t->id_of_byte[i] == id)
            return TR_TOKEN_BYTE;
    return TR_TOKEN_NORMAL;
}

static int by_rank(const void *a, const void *b)
{
    const struct tr_tok_merge *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

enum tr_status tr_tokenizer_merges(const struct tr_tokenizer *t, struct tr_token_merge **out, size_t *out_n)
{
    size_t n = 0;
    struct tr_tok_merge *sorted = calloc(t->merges.n_slots + 1, sizeof *sorted);
    struct tr_token_merge *list = calloc(t->merges.n_slots + 1, sizeof *list);
    if (!sorted || !list) {
        free(sorted);
        free(list);
        return tr_fail(TR_NOMEM, "no memory for %zu merges", t->merges.n);
    }
    for (size_t i = 0; i < t->merges.n_slots; i++)
        if (t->merges.slots[i].pair)
            sorted[n++] = t->merges.slots[i];
    qsort(sorted, n, sizeof *sorted, by_rank);
    for (size_t i = 0; i < n; i++) {
        uint64_t pair = sorted[i].pair - 1;
        list[i] = (struct tr_token_merge){ (int32_t)(pair >> 32), (int32_t)(pair & UINT32_MAX), (int32_t)sorted[i].id };
    }
    free(sorted);
    *out = list;
    *out_n = n;
    return TR_OK;
}

static void add_norm(const struct tr_tok_norm *x, struct tr_str *out)
{
    static const char *const names[] = {
        [TR_TOK_NORM_NFC] = "nfc",     [TR_TOK_NORM_NFD] = "nfd",           [TR_TOK_NORM_NFKC] = "nfkc",
        [TR_TOK_NORM_NFKD] = "nfkd",   [TR_TOK_NORM_LOWER] = "lower",       [TR_TOK_NORM_STRIP] = "strip",
        [TR_TOK_NORM_MARKS] = "marks", [TR_TOK_NORM_REPLACE] = "replace",   [TR_TOK_NORM_PREPEND] = "prepend",
        [TR_TOK_NORM_CLEAN] = "clean", [TR_TOK_NORM_CHINESE] = "chinese",   [TR_TOK_NORM_MN] = "mn",
        [TR_TOK_NORM_NMT] = "nmt",     [TR_TOK_NORM_CHARSMAP] = "charsmap", [TR_TOK_NORM_BYTES] = "bytes",
    };
    tr_str_addf(out, "%s", names[x->kind]);
    if (x->kind == TR_TOK_NORM_REPLACE)
        tr_str_addf(out, " %s '%.*s'", x->pattern.is_regex ? "regex" : "text", (int)x->pattern.n, x->pattern.text);
    if (x->kind == TR_TOK_NORM_REPLACE || x->kind == TR_TOK_NORM_PREPEND)
        tr_str_addf(out, " '%.*s'", (int)x->n, x->text);
}

static void add_split(const struct tr_tok_split *x, struct tr_str *out)
{
    static const char *const behaviors[] = { "removed", "isolated", "merged-previous", "merged-next", "contiguous" };
    static const char *const prepends[] = { "always", "first", "never" };
    switch (x->kind) {
    case TR_TOK_SPLIT_PATTERN: /* ByteLevel's own pattern has no text */
        tr_str_addf(out, "%s%s %s", behaviors[x->behavior], x->invert ? " not" : "",
                    !x->pattern.text      ? "gpt2"
                    : x->pattern.is_regex ? "regex "
                                          : "text ");
        if (x->pattern.text)
            tr_str_add(out, x->pattern.text, x->pattern.n);
        break;
    case TR_TOK_SPLIT_CLASS:
        tr_str_addf(out, "%s %s", behaviors[x->behavior],
                    x->flag == TR_TOK_CP_NUMERIC ? "digits"
                    : x->flag == TR_TOK_CP_PUNCT ? "punctuation"
                                                 : "spaces");
        break;
    case TR_TOK_SPLIT_WORDS:
        tr_str_addf(out, "words");
        break;
    case TR_TOK_SPLIT_METASPACE:
        tr_str_addf(out, "metaspace '%.*s' %s%s", (int)x->pattern.n, x->pattern.text, prepends[x->prepend],
                    x->has_split ? " split" : "");
        break;
    case TR_TOK_SPLIT_PREFIX:
        tr_str_addf(out, "prefix");
        break;
    case TR_TOK_SPLIT_BYTES:
        tr_str_addf(out, "bytes");
        break;
    }
}

enum tr_status tr_tokenizer_describe(const struct tr_tokenizer *t, struct tr_tokenizer_text *out)
{
    *out = (struct tr_tokenizer_text){ .is_bpe = t->model == TR_TOK_MODEL_BPE && !*t->prefix && !*t->suffix,
                                       .is_byte_level = t->is_raw,
                                       .has_byte_fallback = t->byte_fallback,
                                       .ignores_merges = t->ignore_merges };
    for (size_t i = 0; i < t->n_norms; i++) {
        tr_str_addf(&out->steps, "norm ");
        add_norm(&t->norms[i], &out->steps);
        tr_str_addf(&out->steps, "\n");
    }
    for (size_t i = 0; i < t->n_splits; i++) {
        tr_str_addf(&out->steps, "split ");
        add_split(&t->splits[i], &out->steps);
        tr_str_addf(&out->steps, "\n");
    }
    tr_str_addf(&out->steps, "%s", "");
    if (tr_str_ok(&out->steps))
        return TR_OK;
    tr_str_release(&out->steps);
    return tr_fail(TR_NOMEM, "no memory for the steps of a tokenizer");
}
