/* choices.c - multiple choice (choices.h).
 *
 * The rules are those of lm-evaluation-harness: blanks at the end of a context belong to the continuation; the tokens
 * of a continuation are those of the whole text behind as many tokens as the context alone has; a context without
 * tokens is the BOS token, or EOS; of a pair that is too long the last tokens stay. acc takes the choice with the
 * largest log-likelihood, acc_norm the largest per character of the choice, acc_bytes per byte; of equal ones the
 * first. Each pair is a document with a loss on its continuation, several to a row, so that one forward serves many of
 * them.
 */
#include "train/choices.h"
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

enum { FILE_MAX = 1 << 30, PIECE = 4096 };

struct choice_pair {
    size_t at;        /* of its ids */
    int64_t n, n_own; /* ids; those of the continuation, which are the last */
    int64_t n_chars, n_bytes;
};

struct choice_item {
    size_t first, n; /* its pairs */
    size_t gold;
};

struct tr_choices {
    struct tr_ids ids; /* of all pairs */
    struct choice_pair *pair;
    struct choice_item *item;
    size_t *row; /* the first pair of each row, and one past the last */
    double *ll;  /* by pair */
    float *sums;
    size_t n_pairs, n_pairs_cap, n_items, n_items_cap, n_rows;
    int64_t row_tokens, batch_rows, n_sums;
};

/* ---- reading ---- */

/* Bytes of the blanks that a text ends with: what Python's rstrip() removes. */
static size_t blanks_behind(const char *p, size_t n)
{
    static const char *const wide[] = { "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
                                        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
                                        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
                                        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80" };
    size_t left = n;
    for (bool is_more = true; is_more;) {
        unsigned char c = left ? (unsigned char)p[left - 1] : 'x';
        size_t len = c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
        for (size_t i = 0; len == 0 && i < TR_COUNT_OF(wide); i++)
            if (left >= strlen(wide[i]) && memcmp(p + left - strlen(wide[i]), wide[i], strlen(wide[i])) == 0)
                len = strlen(wide[i]);
        left -= len;
        is_more = len > 0;
    }
    return n - left;
}

struct item_reader {
    struct tr_choices *c;
    struct tr_tok_encoder *encoder;
    int32_t prefix;            /* stands in for an empty context; -1: there is none */
    struct tr_str prefix_text; /* a text that begins with it gets no special tokens */
};

static enum tr_status open_reader(const struct tr_tokenizer *tok, struct item_reader *r)
{
    r->prefix = tr_tokenizer_bos(tok) >= 0 ? tr_tokenizer_bos(tok) : tr_tokenizer_eos(tok);
    if (r->prefix >= 0)
        TR_PASS(tr_tokenizer_decode(tok, &r->prefix, 1, &r->prefix_text));
    return tr_tok_encoder_open(tok, &r->encoder);
}

/* With the special tokens that the tokenizer adds by itself. */
static enum tr_status encode(struct item_reader *r, const char *text, size_t n, struct tr_ids *out)
{
    const struct tr_str *p = &r->prefix_text;
    bool has_prefix = p->n > 0 && n >= p->n && memcmp(text, p->p, p->n) == 0;
    return tr_tok_encoder_encode(r->encoder, text, n, !has_prefix, out);
}

/* head: the ids of the context; all: those of context and continuation. */
static enum tr_status encode_pair(struct item_reader *r, const char *text, size_t n, size_t n_context,
                                  struct tr_ids *head, struct tr_ids *all)
{
    if (n_context > 0) {
        TR_PASS(encode(r, text, n_context, head));
        return encode(r, text, n, all);
    }
    if (r->prefix < 0)
        return tr_fail(TR_USAGE, "the context is empty, and the tokenizer has neither BOS nor EOS for it");
    TR_PASS(tr_ids_add(head, r->prefix));
    TR_PASS(tr_ids_add(all, r->prefix));
    return tr_tok_encoder_encode(r->encoder, text, n, false, all);
}

static enum tr_status add_pair(struct item_reader *r, const char *context, const char *delimiter, const char *choice)
{
    enum tr_status st = TR_OK;
    struct tr_choices *c = r->c;
    struct tr_ids head = { 0 }, all = { 0 };
    struct tr_str text = { 0 };
    size_t n = strlen(context), n_head = n - blanks_behind(context, n);
    struct choice_pair p = { .at = c->ids.n, .n_bytes = (int64_t)strlen(choice) };
    for (const char *at = choice; *at; at++)
        p.n_chars += ((unsigned char)*at & 0xC0) != 0x80;
    tr_str_addf(&text, "%s%s%s", context, delimiter, choice);
    if (!tr_str_ok(&text))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for choices"));
    TR_TRY(encode_pair(r, text.p, text.n, n_head, &head, &all));
    p.n_own = (int64_t)all.n - (int64_t)head.n;
    if (p.n_own < 1 || p.n_own > c->row_tokens)
        TR_TRY(tr_fail(TR_USAGE, "choice \"%.40s\" has %" PRId64 " tokens of its own; a row has room for 1 to %" PRId64,
                       choice, p.n_own, c->row_tokens));
    p.n = tr_min64((int64_t)all.n, c->row_tokens + 1);
    for (size_t i = all.n - (size_t)p.n; i < all.n; i++)
        TR_TRY(tr_ids_add(&c->ids, all.p[i]));
    TR_TRY(TR_ROOM(c->pair, c->n_pairs + 1, &c->n_pairs_cap, "choices"));
    c->pair[c->n_pairs++] = p;
out:
    tr_ids_release(&head);
    tr_ids_release(&all);
    tr_str_release(&text);
    return st;
}

static enum tr_status add_item(struct item_reader *r, const cJSON *j)
{
    struct tr_choices *c = r->c;
    const char *context = NULL, *delimiter = " ";
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(j, "choices"), *x;
    struct choice_item item = { .first = c->n_pairs, .n = (size_t)cJSON_GetArraySize(list) };
    int64_t gold = 0;
    TR_PASS(tr_json_str(j, "context", true, &context));
    TR_PASS(tr_json_str(j, "delimiter", false, &delimiter));
    if (!cJSON_IsArray(list) || item.n < 2)
        return tr_fail(TR_USAGE, "\"choices\" is a list of two texts or more");
    TR_PASS(tr_json_int(j, "gold", true, 0, (int64_t)item.n - 1, &gold));
    item.gold = (size_t)gold;
    cJSON_ArrayForEach(x, list)
    {
        if (!cJSON_IsString(x) || !x->valuestring[0])
            return tr_fail(TR_USAGE, "\"choices\" are texts, and none is empty");
        TR_PASS(add_pair(r, context, delimiter, x->valuestring));
    }
    TR_PASS(TR_ROOM(c->item, c->n_items + 1, &c->n_items_cap, "choices"));
    c->item[c->n_items++] = item;
    return TR_OK;
}

static enum tr_status read_lines(struct item_reader *r, const char *path, const char *bytes, size_t n)
{
    int64_t line = 0;
    for (size_t at = 0, end; at < n; at = end + 1) {
        const char *stop = memchr(bytes + at, '\n', n - at);
        cJSON *j = NULL;
        end = stop ? (size_t)(stop - bytes) : n;
        line++;
        if (end - at == blanks_behind(bytes + at, end - at))
            continue;
        enum tr_status st = tr_json_parse(bytes + at, end - at, "an item", &j);
        if (st == TR_OK)
            st = add_item(r, j);
        cJSON_Delete(j);
        if (st != TR_OK)
            return tr_fail_at(st, "%s:%" PRId64 ": ", path, line);
    }
    return r->c->n_items > 0 ? TR_OK : tr_fail(TR_USAGE, "%s has no items", path);
}

/* As many pairs in a row as fit, in their order. */
static enum tr_status make_rows(struct tr_choices *c)
{
    int64_t used = c->row_tokens;
    TR_PASS(TR_ALLOC(c->row, c->n_pairs + 1, "rows of choices"));
    TR_PASS(TR_ALLOC(c->ll, c->n_pairs, "log-likelihoods"));
    TR_PASS(TR_ALLOC(c->sums, (size_t)(c->batch_rows * c->row_tokens * c->n_sums), "sums of documents"));
    for (size_t i = 0; i < c->n_pairs; i++) {
        int64_t n = c->pair[i].n - 1; /* nothing follows the last id */
        if (used + n > c->row_tokens) {
            c->row[c->n_rows++] = i;
            used = 0;
        }
        used += n;
    }
    c->row[c->n_rows] = c->n_pairs;
    return TR_OK;
}

enum tr_status tr_choices_open(const char *path, const struct tr_setup *s, const struct tr_tokenizer *tok,
                               struct tr_choices **out)
{
    enum tr_status st = TR_OK;
    struct tr_choices *c = calloc(1, sizeof *c);
    struct item_reader r = { .c = c };
    struct tr_tokenizer *own = NULL;
    char *bytes = NULL;
    size_t n = 0;
    if (!c)
        return tr_fail(TR_NOMEM, "no memory for choices");
    c->row_tokens = s->sequence_length;
    c->n_sums = tr_doc_sums(&s->eval_model->pair);
    c->batch_rows = s->eval_model->n_tokens / s->eval_model->sequence_length;
    if (!tok)
        TR_TRY(tr_tokenizer_open(s->from.text, &own));
    TR_TRY(tr_file_read(path, FILE_MAX, &bytes, &n));
    TR_TRY(open_reader(tok ? tok : own, &r));
    TR_TRY(read_lines(&r, path, bytes, n));
    TR_TRY(make_rows(c));
out:
    free(bytes);
    tr_tok_encoder_close(r.encoder);
    tr_str_release(&r.prefix_text);
    tr_tokenizer_close(own);
    if (st == TR_OK)
        *out = c;
    else
        tr_choices_close(c);
    return st;
}

void tr_choices_close(struct tr_choices *c)
{
    if (!c)
        return;
    tr_ids_release(&c->ids);
    free(c->pair);
    free(c->item);
    free(c->row);
    free(c->ll);
    free(c->sums);
    free(c);
}

/* ---- running ---- */

static void put(const struct tr_batch *b, int64_t at, int32_t id, int32_t target, int64_t begin)
{
    b->tokens[at] = id;
    b->targets[at] = target;
    b->positions[at] = (int32_t)(at - begin);
    b->begin[at] = (int32_t)begin;
    b->sample[at] = at;
    b->other[at] = -1;
    b->value[at] = 0;
}

/* Row `row` of the file's rows as row k of the batch; one past the last is padding. */
static void fill_row(const struct tr_choices *c, size_t row, int64_t k, const struct tr_batch *b)
{
    int64_t at = k * c->row_tokens, end = at + c->row_tokens;
    for (size_t i = row < c->n_rows ? c->row[row] : 0; row < c->n_rows && i < c->row[row + 1]; i++) {
        const struct choice_pair *p = &c->pair[i];
        const int32_t *ids = c->ids.p + p->at;
        int64_t begin = at;
        for (int64_t t = 0; t + 1 < p->n; t++, at++)
            put(b, at, ids[t], t + 1 >= p->n - p->n_own ? ids[t + 1] : TR_TARGET_NONE, begin);
    }
    for (int64_t begin = at; at < end; at++)
        put(b, at, 0, TR_TARGET_NONE, begin);
}

/* The loss of a document is in the row where it begins. */
static void take_row(struct tr_choices *c, size_t row, int64_t k)
{
    int64_t at = k * c->row_tokens;
    for (size_t i = row < c->n_rows ? c->row[row] : 0; row < c->n_rows && i < c->row[row + 1]; i++) {
        c->ll[i] = -(double)c->sums[at * c->n_sums + TR_DOC_LOSS];
        at += c->pair[i].n - 1;
    }
}

/* Which choice is the first with the largest log-likelihood, each divided by a length? */
enum length { BY_NOTHING, BY_CHARS, BY_BYTES, LENGTHS };

static bool is_right(const struct tr_choices *c, const struct choice_item *x, enum length by)
{
    size_t best = 0;
    double top = 0;
    for (size_t i = 0; i < x->n; i++) {
        const struct choice_pair *p = &c->pair[x->first + i];
        double score = c->ll[x->first + i] / (by == BY_CHARS   ? (double)p->n_chars
                                              : by == BY_BYTES ? (double)p->n_bytes
                                                               : 1);
        if (i == 0 || score > top) {
            top = score;
            best = i;
        }
    }
    return best == x->gold;
}

static struct tr_event_choices count(const struct tr_choices *c)
{
    double right[LENGTHS] = { 0 }, n = (double)c->n_items;
    for (size_t i = 0; i < c->n_items; i++)
        for (int k = 0; k < LENGTHS; k++)
            right[k] += is_right(c, &c->item[i], (enum length)k);
    return (struct tr_event_choices){ .n = (int64_t)c->n_items,
                                      .acc = right[BY_NOTHING] / n,
                                      .acc_norm = right[BY_CHARS] / n,
                                      .acc_bytes = right[BY_BYTES] / n };
}

enum tr_status tr_choices_run(struct tr_choices *c, struct tr_exec *e, void *batch_mem, struct tr_event_choices *out)
{
    const struct tr_comm *group = tr_mesh_group(tr_exec_mesh(e), TR_ON_DATA);
    struct tr_batch b = tr_batch_in(batch_mem, c->batch_rows * c->row_tokens);
    size_t rows = (size_t)c->batch_rows, n_batches = (c->n_rows + rows - 1) / rows;
    memset(c->ll, 0, c->n_pairs * sizeof *c->ll);
    /* every rank runs the same number of batches, because gathers are collective */
    for (size_t k = 0; k < n_batches; k += (size_t)group->size) {
        size_t first = (k + (size_t)group->rank) * rows;
        for (size_t i = 0; i < rows; i++)
            fill_row(c, first + i, (int64_t)i, &b);
        TR_PASS(tr_exec_documents(e, &b, c->sums));
        for (size_t i = 0; i < rows; i++)
            take_row(c, first + i, (int64_t)i);
        TR_PASS(tr_stop_together(e, "evaluation"));
    }
    for (size_t at = 0; at < c->n_pairs; at += PIECE)
        TR_PASS(tr_exec_total_rows(e, "log-likelihoods of choices", c->ll + at,
                                   c->n_pairs - at < PIECE ? c->n_pairs - at : PIECE));
    *out = count(c);
    return TR_OK;
}

size_t tr_choices_count(const struct tr_choices *c)
{
    return c->n_items;
}

const double *tr_choices_of(const struct tr_choices *c, size_t item, size_t *n)
{
    *n = c->item[item].n;
    return c->ll + c->item[item].first;
}
