/* vocab.c - the tokenizer as keys of a GGUF file.
 *
 * llama.cpp has two tokenizers that fit our models: byte-level BPE ("gpt2"), whose pre-tokenizer goes by a name, and
 * BPE on characters with byte fallback ("llama"), which merges by the scores of tokens instead of a list. The name is
 * found by the patterns themselves, so that a vocabulary nobody has seen gets the right one too. Rejected: llama.cpp's
 * own way, a hash of the ids that a fixed text gives, which knows published vocabularies only. A tokenizer that has no
 * row is refused: a nearly right one gives wrong texts without a word.
 */
#include "export/vocab.h"
#include <stdlib.h>

#define WORDS3                                                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\n"
#define UPPER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define ENDS  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define CL100K                                                                                                         \
    "split isolated regex '(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "                          \
    "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+\n"

/* Steps of the pre-tokenizer. Rows with another way to write the same pattern have the same name. A normalizer before
 * them is left out of the comparison when it is NFC: llama.cpp has none, and texts are nearly always in this form. */
static const struct {
    const char *steps;
    bool ignores_merges;
    const char *name;
} pres[] = {
    { "split isolated gpt2\n", false, "gpt-2" },
    { "split isolated regex " ENDS "|" WORDS3, true, "llama-bpe" },
    { "split isolated regex " ENDS "|" WORDS3, false, "dbrx" },
    { CL100K, true, "llama-bpe" },
    { CL100K, false, "dbrx" },
    { "split isolated regex " ENDS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\n",
      false, "qwen2" },
    { "split isolated digits\nsplit isolated gpt2\n", false, "smollm" },
    { "split isolated regex " UPPER "*" LOWER "+|" UPPER "+" LOWER
      "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\n",
      false, "tekken" },
    { "split isolated regex " UPPER "*" LOWER "+" ENDS "?|" UPPER "+" LOWER "*" ENDS
      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\n",
      false, "gpt-4o" },
    { "split contiguous punctuation\nsplit isolated gpt2\nsplit bytes\nsplit contiguous digits\nsplit isolated regex "
      "[0-9][0-9][0-9]\n",
      false, "falcon" },
};

/* Steps of tokenizers with byte fallback, and whether they put a space before a text. */
static const struct {
    const char *steps;
    bool adds_space;
} spms[] = {
    { "norm prepend '\xe2\x96\x81'\nnorm replace text ' ' '\xe2\x96\x81'\n", true },
    { "norm replace text ' ' '\xe2\x96\x81'\n", false },
    { "norm replace text ' ' '\xe2\x96\x81'\nsplit merged-previous text  \n", false },
    { "split metaspace '\xe2\x96\x81' always\n", true },
    { "split metaspace '\xe2\x96\x81' first\n", true },
    { "split metaspace '\xe2\x96\x81' never\n", false },
};

/* ---- tokens ---- */

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

static int32_t type_of(enum tr_token_kind kind, bool is_spm)
{
    switch (kind) {
    case TR_TOKEN_UNKNOWN:
        return is_spm ? UNKNOWN : CONTROL;
    case TR_TOKEN_SPECIAL:
        return CONTROL;
    case TR_TOKEN_ADDED:
        return USER;
    case TR_TOKEN_BYTE:
        return BYTE;
    case TR_TOKEN_NORMAL:
        return NORMAL;
    default:
        return UNUSED;
    }
}

/* Added tokens are searched for in the text as it is, so they have spaces where a piece has U+2581. */
static void add_user_text(struct tr_gguf *g, const char *text, size_t n)
{
    static const char mark[] = "\xe2\x96\x81";
    struct tr_str s = { 0 };
    for (size_t i = 0; i < n; i++)
        if (i + 3 <= n && memcmp(text + i, mark, 3) == 0) {
            tr_str_add(&s, " ", 1);
            i += 2;
        } else {
            tr_str_add(&s, text + i, 1);
        }
    tr_gguf_add_text(g, s.p ? s.p : "", s.n);
    tr_str_release(&s);
}

static void add_tokens(const struct tr_tokenizer *t, int64_t vocab, bool is_spm, struct tr_gguf *g)
{
    tr_gguf_list(g, "tokenizer.ggml.tokens", TR_GGUF_TEXT, (uint64_t)vocab);
    for (int64_t id = 0; id < vocab; id++) {
        const char *text = NULL;
        char gap[32];
        size_t n = 0;
        enum tr_token_kind kind = tr_tokenizer_token(t, (int32_t)id, &text, &n);
        if (kind == TR_TOKEN_NONE) {
            (void)tr_format(gap, sizeof gap, "[PAD%" PRId64 "]", id);
            tr_gguf_add_text(g, gap, strlen(gap));
        } else if (kind == TR_TOKEN_ADDED) {
            add_user_text(g, text, n);
        } else {
            tr_gguf_add_text(g, text, n);
        }
    }
    tr_gguf_list(g, "tokenizer.ggml.token_type", TR_GGUF_I32, (uint64_t)vocab);
    for (int64_t id = 0; id < vocab; id++) {
        const char *text;
        size_t n;
        int32_t type = type_of(tr_tokenizer_token(t, (int32_t)id, &text, &n), is_spm);
        tr_gguf_add(g, &type, sizeof type);
    }
}

static void add_merges(const struct tr_tokenizer *t, const struct tr_token_merge *merge, size_t n, struct tr_gguf *g)
{
    struct tr_str s = { 0 };
    tr_gguf_list(g, "tokenizer.ggml.merges", TR_GGUF_TEXT, n);
    for (size_t i = 0; i < n; i++) {
        const char *a = "", *b = "";
        size_t n_a = 0, n_b = 0;
        (void)tr_tokenizer_token(t, merge[i].left, &a, &n_a);
        (void)tr_tokenizer_token(t, merge[i].right, &b, &n_b);
        tr_str_clear(&s);
        tr_str_add(&s, a, n_a);
        tr_str_add(&s, " ", 1);
        tr_str_add(&s, b, n_b);
        tr_gguf_add_text(g, s.p ? s.p : "", s.n);
    }
    tr_str_release(&s);
}

/* Tokens merge in the order of their scores, best first: the score is minus the rank of the first merge that makes the
 * token. Tokens that no merge makes come last. */
static enum tr_status add_scores(const struct tr_token_merge *merge, size_t n, int64_t vocab, struct tr_gguf *g)
{
    float *score = malloc((size_t)vocab * sizeof *score);
    if (!score)
        return tr_fail(TR_NOMEM, "gguf: no memory for %" PRId64 " scores", vocab);
    for (int64_t id = 0; id < vocab; id++)
        score[id] = -1e9f;
    for (size_t i = n; i-- > 0;)
        if (merge[i].made < vocab)
            score[merge[i].made] = -(float)i;
    tr_gguf_list(g, "tokenizer.ggml.scores", TR_GGUF_F32, (uint64_t)vocab);
    tr_gguf_add(g, score, (size_t)vocab * sizeof *score);
    free(score);
    return TR_OK;
}

/* ---- which tokenizer ---- */

static const char *find_pre(const struct tr_tokenizer_text *d, size_t n_merges)
{
    const char *steps = d->steps.p ? d->steps.p : "";
    if (n_merges == 0)
        return "gpt-2"; /* every byte is a token: it makes no difference where the text is split */
    if (strncmp(steps, "norm nfc\n", 9) == 0)
        steps += 9;
    for (size_t i = 0; i < TR_COUNT_OF(pres); i++)
        if (strcmp(pres[i].steps, steps) == 0 && pres[i].ignores_merges == d->ignores_merges)
            return pres[i].name;
    return NULL;
}

static bool find_spm(const struct tr_tokenizer_text *d, bool *adds_space)
{
    for (size_t i = 0; i < TR_COUNT_OF(spms); i++)
        if (strcmp(spms[i].steps, d->steps.p ? d->steps.p : "") == 0) {
            *adds_space = spms[i].adds_space;
            return true;
        }
    return false;
}

static enum tr_status refuse(const struct tr_tokenizer_text *d)
{
    char shown[256];
    return tr_fail(TR_USAGE,
                   "gguf: llama.cpp has no name for this tokenizer (%s: %s); its texts would be split in other places; "
                   "export the model with --to hf",
                   d->is_bpe ? "BPE" : "not BPE", tr_escape(d->steps.p ? d->steps.p : "", shown, sizeof shown));
}

/* Where llama.cpp splits a few texts in other places than the tokenizer of the training. */
static void add_notes(const struct tr_tokenizer_text *d, const char *pre, struct tr_str *notes)
{
    const char *steps = d->steps.p ? d->steps.p : "";
    if (pre && strncmp(steps, "norm nfc\n", 9) == 0)
        tr_str_addf(notes, "llama.cpp does not normalise texts: one that is not in NFC gets other tokens there\n");
    if (pre && (strcmp(pre, "tekken") == 0 || strcmp(pre, "gpt-4o") == 0))
        tr_str_addf(notes, "llama.cpp's %s splits scripts without case and combining marks in other places\n", pre);
    if (!pre && strncmp(steps, "split metaspace", 15) == 0)
        tr_str_addf(notes, "llama.cpp puts a space before a text that begins with one, too\n");
}

static enum tr_status add_model(const struct tr_tokenizer *t, int64_t vocab, struct tr_gguf *g, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    struct tr_tokenizer_text d = { 0 };
    struct tr_token_merge *merge = NULL;
    size_t n = 0;
    bool adds_space = false;
    TR_TRY(tr_tokenizer_describe(t, &d));
    TR_TRY(tr_tokenizer_merges(t, &merge, &n));
    bool is_bytes = d.is_byte_level || (d.steps.p && strstr(d.steps.p, "split bytes\n"));
    bool is_spm = d.is_bpe && !is_bytes && d.has_byte_fallback && find_spm(&d, &adds_space);
    const char *pre = d.is_bpe && is_bytes ? find_pre(&d, n) : NULL;
    if (!is_spm && !pre)
        TR_TRY(refuse(&d));
    tr_gguf_str(g, "tokenizer.ggml.model", is_spm ? "llama" : "gpt2");
    tr_gguf_str(g, "tokenizer.ggml.pre", is_spm ? "default" : pre);
    add_tokens(t, vocab, is_spm, g);
    if (is_spm)
        TR_TRY(add_scores(merge, n, vocab, g));
    else
        add_merges(t, merge, n, g);
    tr_gguf_bool(g, "tokenizer.ggml.add_space_prefix", adds_space);
    add_notes(&d, pre, notes);
out:
    tr_str_release(&d.steps);
    free(merge);
    return st;
}

static bool is_only(const struct tr_ids *ids, int32_t id)
{
    return id >= 0 && ids->n == 1 && ids->p[0] == id;
}

enum tr_status tr_gguf_vocab_keys(const struct tr_export_text *t, const struct tr_model *m, struct tr_gguf *g,
                                  struct tr_str *notes)
{
    if (!t->tok) {
        tr_gguf_str(g, "tokenizer.ggml.model", "none");
        tr_str_addf(notes, "the directory has no tokenizer, and neither has the file: it takes token ids\n");
        return TR_OK;
    }
    TR_PASS(add_model(t->tok, m->hp.vocab, g, notes));
    int32_t bos = tr_tokenizer_bos(t->tok), eos = tr_tokenizer_eos(t->tok);
    const struct tr_ids *before = tr_tokenizer_before(t->tok), *after = tr_tokenizer_after(t->tok);
    eos = eos < 0 && t->stops.n ? t->stops.p[0] : eos;
    if (bos >= 0)
        tr_gguf_u32(g, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    if (eos >= 0)
        tr_gguf_u32(g, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    if (t->end.n_ids == 1 && t->end.id != eos)
        tr_gguf_u32(g, "tokenizer.ggml.eot_token_id", (uint32_t)t->end.id);
    tr_gguf_bool(g, "tokenizer.ggml.add_bos_token", is_only(before, bos));
    tr_gguf_bool(g, "tokenizer.ggml.add_eos_token", is_only(after, eos));
    if ((before->n && !is_only(before, bos)) || (after->n && !is_only(after, eos)))
        tr_str_addf(notes, "the tokenizer puts tokens around a plain text that llama.cpp has no key for; a chat "
                           "template writes its own\n");
    if (t->chat)
        tr_gguf_str(g, "tokenizer.chat_template", tr_chat_source(t->chat));
    return TR_OK;
}
