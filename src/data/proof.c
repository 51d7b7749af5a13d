/* proof.c - shows the content of a data set to people. Samples come from the same arrays that training reads. */
#include "data/data_impl.h"
#include "data/stream.h"

#include <stdlib.h>

enum { SHOWN_FILES = 5, LISTED_FILES = 32 };

void tr_proof_row_release(struct tr_proof_row *row)
{
    free(row->tokens);
    tr_str_release(&row->text);
    *row = (struct tr_proof_row){ 0 };
}

/* The number of tokens in the row. Padding is found by length, never by id. */
static enum tr_status add_text(const struct tr_tokenizer *t, struct tr_proof_row *row, struct tr_proof_token *token,
                               struct tr_str *bytes)
{
    size_t n_used, at = row->text.n;
    tr_str_clear(bytes);
    TR_PASS(tr_tokenizer_decode(t, &token->id, 1, bytes));
    tr_utf8_clean(bytes->p, bytes->n, true, &row->text, &n_used);
    token->n_text = row->text.n - at;
    return tr_str_check(&row->text, "the text of a row");
}

static enum tr_status describe(const struct tr_tokenizer *t, const struct tr_batch *b, struct tr_proof_row *row,
                               int64_t row_tokens)
{
    enum tr_status st = TR_OK;
    struct tr_str bytes = { 0 };
    for (int64_t i = 0; i < row_tokens; i++) {
        struct tr_proof_token *k = &row->tokens[i];
        *k = (struct tr_proof_token){ .id = b->tokens[i], .position = b->positions[i], .is_pad = i >= row->n_tokens };
        k->is_target = i > 0 && b->targets[i - 1] != TR_TARGET_NONE;
        row->n_docs += !k->is_pad && k->position == 0;
        if (t && !k->is_pad)
            TR_TRY(add_text(t, row, k, &bytes));
    }
    size_t at = 0;
    for (int64_t i = 0; i < row_tokens; i++) { /* pointers are set now, because the text grows no more */
        row->tokens[i].text = row->text.p ? row->text.p + at : "";
        at += row->tokens[i].n_text;
    }
out:
    tr_str_release(&bytes);
    return st;
}

enum tr_status tr_data_prove(const struct tr_data *d, const struct tr_tokenizer *t, uint64_t sample,
                             struct tr_proof_row *out)
{
    enum tr_status st = TR_OK;
    size_t n = (size_t)d->row_tokens;
    struct tr_proof_row row = { .sample = sample, .tokens = calloc(n, sizeof *row.tokens) };
    void *mem = calloc(1, tr_batch_bytes(d->row_tokens));
    if (!row.tokens || !mem)
        TR_TRY(tr_fail(TR_NOMEM, "no memory to show a row of %zu tokens", n));
    struct tr_batch b = tr_batch_in(mem, d->row_tokens);
    int64_t n_counted; /* pairs, of those */
    TR_TRY(tr_data_fill(d, sample, 1, sample + 1, &b, &n_counted));
    TR_TRY(tr_data_targets(d, sample, &row.n_targets));
    TR_TRY(tr_data_tokens(d, sample, 1, sample + 1, &row.n_tokens));
    struct tr_place at;
    TR_TRY(tr_data_place(d, sample, &at));
    row.epoch = at.epoch;
    row.i_source = at.i_group;
    TR_TRY(describe(t, &b, &row, d->row_tokens));
    *out = row;
    row = (struct tr_proof_row){ 0 };
out:
    tr_proof_row_release(&row);
    free(mem);
    return st;
}

void tr_proof_row_show(const struct tr_proof_row *row, bool has_color, int64_t n_max, struct tr_str *out)
{
    bool was_target = false;
    tr_str_addf(out,
                "sample %" PRIu64 " (epoch %" PRIu64 "): %" PRId64 " tokens in %" PRId64 " documents, %" PRId64
                " trained\n",
                row->sample, row->epoch, row->n_tokens, row->n_docs, row->n_targets);
    for (int64_t i = 0; i < row->n_tokens && i < n_max; i++) {
        const struct tr_proof_token *t = &row->tokens[i];
        char text[200], esc[256];
        (void)tr_format(text, sizeof text, "%.*s", (int)(t->n_text < 199 ? t->n_text : 199), t->text);
        bool is_new = t->position == 0 && i > 0;
        if (is_new)
            tr_str_addf(out, "%s", has_color ? "\x1b[0m\x1b[1;34m|" : was_target ? "]|" : "|");
        was_target = was_target && !is_new;
        if (has_color)
            tr_str_addf(out, "%s", t->is_target ? "\x1b[0;32m" : "\x1b[0;2m");
        else if (t->is_target != was_target)
            tr_str_addf(out, "%s", t->is_target ? "[" : "]");
        was_target = t->is_target;
        tr_str_addf(out, "%s", tr_escape(text, esc, sizeof esc));
    }
    tr_str_addf(out, "%s%s\n", has_color ? "\x1b[0m" : was_target ? "]" : "", row->n_tokens > n_max ? " ..." : "");
}

static int piece_of(const struct tr_proof_row *row, int64_t i)
{
    const struct tr_proof_token *t = &row->tokens[i];
    return (t->is_target ? 1 : 0) + (t->position == 0 && i > 0 && !t->is_pad ? 2 : 0) + (t->is_pad ? 4 : 0);
}

void tr_proof_row_json(const struct tr_proof_row *row, int64_t n_max, struct tr_str *out)
{
    struct tr_str piece = { 0 };
    enum { MOST_BYTES = 16384, PIECE_BYTES = 1024 }; /* of an event, which is one line */
    int64_t n = tr_min64(row->n_tokens, n_max);
    size_t begin = out->n;
    tr_str_addf(out,
                "\"sample\":{\"id\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"tokens\":%" PRId64 ",\"documents\":%" PRId64
                ",\"trained\":%" PRId64 ",\"pieces\":[",
                row->sample, row->epoch, row->n_tokens, row->n_docs, row->n_targets);
    for (int64_t i = 0, next; i < n && out->n - begin < MOST_BYTES; i = next) {
        int what = piece_of(row, i);
        tr_str_clear(&piece);
        tr_str_add(&piece, row->tokens[i].text, row->tokens[i].n_text);
        for (next = i + 1; next < n && piece.n < PIECE_BYTES && piece_of(row, next) == (what & ~2); next++)
            tr_str_add(&piece, row->tokens[next].text, row->tokens[next].n_text);
        tr_str_addf(out, "%s[%d,", i ? "," : "", what);
        tr_str_json(out, tr_str_ok(&piece) ? piece.p : "");
        tr_str_addf(out, "]");
    }
    tr_str_addf(out, "]}");
    tr_str_release(&piece);
}

/* ---- counts ---- */

enum tr_status tr_data_get_masks(const struct tr_data *d, struct tr_data_masks *out)
{
    struct tr_data_masks m = { .n_rows = (int64_t)(d->info.n_rows < TR_MASKS_ROWS ? d->info.n_rows : TR_MASKS_ROWS) };
    for (int64_t g = 0; g < m.n_rows; g++) {
        int64_t n_tokens = 0, n_targets = 0;
        TR_PASS(tr_data_tokens(d, (uint64_t)g, 1, (uint64_t)g + 1, &n_tokens));
        TR_PASS(tr_data_targets(d, (uint64_t)g, &n_targets));
        m.n_tokens += n_tokens;
        m.n_targets += n_targets;
        m.n_idle += n_targets == 0;
    }
    *out = m;
    return TR_OK;
}

static void list_files(const struct tr_data *d, struct tr_str *text, struct tr_str *json)
{
    char esc[400];
    tr_str_addf(json, "\"sources\":[");
    for (size_t i = 0; i < d->n_files && i < LISTED_FILES; i++) {
        const struct tr_data_file *f = &d->files[i];
        if (i < SHOWN_FILES)
            tr_str_addf(text,
                        "%s: %s records, %s packing, %" PRIu64 " tokens in %" PRIu64 " documents, %" PRIu64
                        " skipped%s\n",
                        tr_escape(f->path, esc, sizeof esc), tr_shape_name(f->shape), tr_packing_name(f->packing),
                        f->n_tokens, f->n_docs, f->n_skipped, f->was_cached ? " (cached)" : "");
        tr_str_addf(json, "%s{\"path\":", i ? "," : "");
        tr_str_json(json, f->path);
        tr_str_addf(json,
                    ",\"format\":\"%s\",\"packing\":\"%s\",\"tokens\":%" PRIu64 ",\"documents\":%" PRIu64
                    ",\"skipped\":%" PRIu64 "}",
                    tr_shape_name(f->shape), tr_packing_name(f->packing), f->n_tokens, f->n_docs, f->n_skipped);
    }
    if (d->n_files > SHOWN_FILES)
        tr_str_addf(text, "and %zu more files: %" PRIu64 " tokens in all, %" PRIu64 " skipped\n",
                    d->n_files - SHOWN_FILES, d->info.n_tokens, d->info.n_skipped);
    tr_str_addf(json, "],\"files\":%zu", d->n_files);
}

/* word: what happened to them; member: their list in the JSON. */
static void list_records(const struct tr_skip_list *l, uint64_t n_all, const char *word, const char *member,
                         struct tr_str *text, struct tr_str *json)
{
    char esc[400], why[300];
    tr_str_addf(json, ",\"%s\":[", member);
    for (size_t i = 0; i < l->n; i++) {
        const struct tr_data_skip *k = &l->p[i];
        tr_str_addf(text, "  %s %s:%" PRId64 ": %s\n", word, tr_escape(k->path, esc, sizeof esc), k->line,
                    tr_escape(k->why, why, sizeof why));
        tr_str_addf(json, "%s{\"path\":", i ? "," : "");
        tr_str_json(json, k->path);
        tr_str_addf(json, ",\"line\":%" PRId64 ",\"why\":", k->line);
        tr_str_json(json, k->why);
        tr_str_addf(json, "}");
    }
    if (n_all > l->n)
        tr_str_addf(text, "  and %" PRIu64 " more\n", n_all - l->n);
    tr_str_addf(json, "]");
}

enum tr_status tr_data_summary(const struct tr_data *whole, struct tr_str *text, struct tr_str *json)
{
    const struct tr_data *d = tr_data_first(whole);
    const struct tr_data_info *i = &d->info;
    struct tr_data_masks m;
    char human[32];
    TR_PASS(tr_data_get_masks(d, &m));
    double trained = m.n_tokens ? (double)m.n_targets / (double)m.n_tokens : 0;
    list_files(d, text, json);
    list_records(&d->skips, i->n_skipped, "skipped", "skips", text, json);
    list_records(&d->losses, i->n_cut + i->n_dropped, "too long", "losses", text, json);
    tr_str_addf(text,
                "%" PRIu64 " rows of %" PRId64 " tokens, %.1f %% filled; %" PRIu64
                " documents continue in further rows, %" PRIu64 " were truncated and %" PRIu64 " left out (%" PRIu64
                " tokens lost, %" PRIu64 " of them targets)\n",
                i->n_rows, d->row_tokens, 100.0 * (double)i->n_row_tokens / ((double)i->n_rows * (double)d->row_tokens),
                i->n_split, i->n_cut, i->n_dropped, i->n_tokens_lost, i->n_targets_lost);
    tr_str_addf(text, "%.1f %% of the tokens in the first %" PRId64 " rows have a loss; %" PRId64 " rows have none\n",
                100 * trained, m.n_rows, m.n_idle);
    if (whole->stream) {
        tr_str_addf(text, "this is the first block of %s of files, which are tokenised while the run goes on\n",
                    tr_human_bytes(tr_stream_bytes(whole->stream), human, sizeof human));
        tr_str_addf(json, ",\"stream_bytes\":%" PRIu64, tr_stream_bytes(whole->stream));
    }
    if (*whole->date) {
        tr_str_addf(text, "the date in the chat template is %s\n", whole->date);
        tr_str_addf(json, ",\"chat_date\":\"%s\"", whole->date);
    }
    tr_str_addf(json,
                ",\"tokens\":%" PRIu64 ",\"documents\":%" PRIu64 ",\"rows\":%" PRIu64 ",\"row_tokens\":%" PRIu64
                ",\"skipped\":%" PRIu64 ",\"split\":%" PRIu64 ",\"cut\":%" PRIu64 ",\"dropped\":%" PRIu64
                ",\"tokens_lost\":%" PRIu64 ",\"targets_lost\":%" PRIu64
                ",\"trained\":%.6f,\"rows_without_target\":%" PRId64,
                i->n_tokens, i->n_docs, i->n_rows, i->n_row_tokens, i->n_skipped, i->n_split, i->n_cut, i->n_dropped,
                i->n_tokens_lost, i->n_targets_lost, trained, m.n_idle);
    TR_PASS(tr_str_check(text, "a summary of the data"));
    return tr_str_check(json, "a summary of the data");
}
