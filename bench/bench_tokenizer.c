/* bench_tokenizer.c - speed of the tokenizer on a set of documents, and its ids for tests/token/tokenizer_parity.py.
 *
 * usage: bench_tokenizer MODEL_DIR DOCS        one JSON line: MB/s of encoding (best, median) and decoding, one thread
 *        bench_tokenizer MODEL_DIR --hostile   one JSON line: the slowest of 16 endless runs, and how time grows with
 * length bench_tokenizer MODEL_DIR DOCS OUT    writes, for every document: n_ids, ids, n_bytes, decoded bytes DOCS
 * holds records of a 32 bit length (little endian) and that many bytes; OUT is 32 bit numbers likewise.
 * bench/peer_tokenizers.py times the `tokenizers` library on the same file.
 */
#include "token/token.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/banned.h"

enum { N_REPS = 7, DOCS_MAX_BYTES = 1 << 30 };

struct docs {
    char *bytes;
    size_t n;
};

/* The record at *at, or false at the end. */
static bool next_doc(const struct docs *d, size_t *at, const char **p, size_t *n)
{
    uint32_t len;
    if (d->n - *at < sizeof len)
        return false;
    memcpy(&len, d->bytes + *at, sizeof len);
    *at += sizeof len;
    if (len > d->n - *at)
        return false;
    *p = d->bytes + *at;
    *n = len;
    *at += len;
    return true;
}

static enum tr_status encode_all(struct tr_tok_encoder *e, const struct docs *d, struct tr_ids *ids, size_t *n_text)
{
    enum tr_status st = TR_OK;
    const char *p;
    size_t n, at = 0;
    ids->n = *n_text = 0;
    while (next_doc(d, &at, &p, &n)) {
        TR_TRY(tr_tok_encoder_encode(e, p, n, false, ids));
        *n_text += n;
    }
out:
    return st;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum tr_status measure(const struct tr_tokenizer *t, const char *dir, const struct docs *d)
{
    enum tr_status st = TR_OK;
    struct tr_tok_encoder *e = NULL;
    struct tr_ids ids = { 0 };
    struct tr_str text = { 0 };
    double speed[N_REPS];
    size_t n_text = 0;
    TR_TRY(tr_tok_encoder_open(t, &e));
    TR_TRY(encode_all(e, d, &ids, &n_text)); /* warm-up */
    for (int i = 0; i < N_REPS; i++) {
        int64_t start = tr_clock_us();
        TR_TRY(encode_all(e, d, &ids, &n_text));
        speed[i] = (double)n_text / (double)(tr_clock_us() - start);
    }
    qsort(speed, N_REPS, sizeof *speed, compare);
    int64_t start = tr_clock_us();
    TR_TRY(tr_tokenizer_decode(t, ids.p, ids.n, &text));
    double decode = (double)text.n / (double)(tr_clock_us() - start);
    printf("{\"bench\": \"tokenizer\", \"engine\": \"trireme\", \"model\": \"%s\", \"bytes\": %zu, \"tokens\": %zu, "
           "\"encode_mb_s\": {\"low\": %.1f, \"median\": %.1f, \"best\": %.1f}, \"decode_mb_s\": %.1f}\n",
           dir, n_text, ids.n, speed[0], speed[N_REPS / 2], speed[N_REPS - 1], decode);
out:
    tr_tok_encoder_close(e);
    tr_ids_release(&ids);
    tr_str_release(&text);
    return st;
}

/* ---- endless runs ---- */

static enum tr_status time_run(struct tr_tok_encoder *e, const char *unit, size_t n, struct tr_ids *ids,
                               double *ns_a_byte)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    int64_t best = INT64_MAX;
    while (text.n < n)
        tr_str_add(&text, unit, strlen(unit));
    for (int i = 0; i < 3; i++) {
        int64_t start = tr_clock_us();
        ids->n = 0;
        TR_TRY(tr_tok_encoder_encode(e, text.p, text.n, false, ids));
        best = tr_min64(best, tr_clock_us() - start);
    }
    *ns_a_byte = 1e3 * (double)best / (double)text.n;
out:
    tr_str_release(&text);
    return st;
}

static enum tr_status measure_hostile(const struct tr_tokenizer *t, const char *dir)
{
    enum { SHORT = 1 << 16, FACTOR = 32 };
    static const char *const units[] = { "a",
                                         " ",
                                         "\n",
                                         "\r\n",
                                         "\t",
                                         "1",
                                         "'",
                                         "aA",
                                         "!",
                                         "\xC3\xA9",
                                         "e\xCC\x81",
                                         "\xCC\x81",
                                         " a",
                                         "<|",
                                         "\xE4\xB8\xAD",
                                         "\xF0\x9F\x91\xA9\xE2\x80\x8D" };
    enum tr_status st = TR_OK;
    struct tr_tok_encoder *e = NULL;
    struct tr_ids ids = { 0 };
    double slowest = 0, growth = 0;
    TR_TRY(tr_tok_encoder_open(t, &e));
    for (size_t i = 0; i < TR_COUNT_OF(units); i++) {
        double a = 0, b = 0;
        TR_TRY(time_run(e, units[i], SHORT, &ids, &a));
        TR_TRY(time_run(e, units[i], SHORT * FACTOR, &ids, &b));
        slowest = b > slowest ? b : slowest;
        growth = b / a > growth ? b / a : growth;
    }
    printf("{\"bench\": \"tokenizer_hostile\", \"model\": \"%s\", \"bytes\": [%d, %d], \"slowest_ns_a_byte\": %.1f, "
           "\"largest_growth_a_byte\": %.2f}\n",
           dir, SHORT, SHORT * FACTOR, slowest, growth);
out:
    tr_tok_encoder_close(e);
    tr_ids_release(&ids);
    return st;
}

/* ---- ids for the comparison ---- */

static void put(FILE *f, const void *p, size_t n_items, size_t width)
{
    uint32_t n = (uint32_t)n_items;
    fwrite(&n, sizeof n, 1, f);
    fwrite(p ? p : "", width, n_items, f);
}

/* Encodes each document as a whole and in four parts or so: both must agree. */
static enum tr_status write_one(const struct tr_tokenizer *t, const char *p, size_t n, FILE *f)
{
    enum tr_status st = TR_OK;
    struct tr_ids ids = { 0 }, parts = { 0 };
    struct tr_str text = { 0 };
    TR_TRY(tr_tokenizer_encode(t, p, n, &ids));
    for (size_t from = 0, end; from < n; from = end) {
        end = tr_tokenizer_cut(t, p, n, from + n / 4 + 1);
        TR_TRY(tr_tokenizer_encode_part(t, p + from, end - from, from == 0, &parts));
    }
    if (parts.n != ids.n || (ids.n && memcmp(parts.p, ids.p, ids.n * sizeof *ids.p) != 0))
        TR_TRY(tr_fail(TR_USAGE, "a document of %zu bytes has other ids in parts: %zu and %zu", n, ids.n, parts.n));
    TR_TRY(tr_tokenizer_decode(t, ids.p, ids.n, &text));
    put(f, ids.p, ids.n, sizeof *ids.p);
    put(f, text.p, text.n, 1);
out:
    tr_ids_release(&ids);
    tr_ids_release(&parts);
    tr_str_release(&text);
    return st;
}

static enum tr_status write_ids(const struct tr_tokenizer *t, const struct docs *d, const char *path)
{
    enum tr_status st = TR_OK;
    const char *p;
    size_t n, at = 0;
    FILE *f = fopen(path, "wb");
    if (!f)
        return tr_fail(TR_IO, "%s cannot be written", path);
    while (next_doc(d, &at, &p, &n))
        TR_TRY(write_one(t, p, n, f));
out:
    if (fclose(f) != 0 && st == TR_OK)
        st = tr_fail(TR_IO, "%s cannot be written", path);
    return st;
}

int main(int argc, char **argv)
{
    enum tr_status st = TR_OK;
    struct tr_tokenizer *t = NULL;
    struct docs d = { 0 };
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: bench_tokenizer MODEL_DIR --hostile | DOCS [OUT]\n");
        return 2;
    }
    if (strcmp(argv[2], "--hostile") == 0) {
        TR_TRY(tr_tokenizer_open(argv[1], &t));
        TR_TRY(measure_hostile(t, argv[1]));
        goto out;
    }
    TR_TRY(tr_file_read(argv[2], DOCS_MAX_BYTES, &d.bytes, &d.n));
    TR_TRY(tr_tokenizer_open(argv[1], &t));
    TR_TRY(argc == 4 ? write_ids(t, &d, argv[3]) : measure(t, argv[1], &d));
out:
    if (st != TR_OK)
        fprintf(stderr, "bench_tokenizer: %s\n", tr_error_text());
    tr_tokenizer_close(t);
    free(d.bytes);
    return st != TR_OK;
}
