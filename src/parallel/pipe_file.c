/* pipe_file.c - a pipeline schedule as text (docs/formats/pipeline-schedule.md): one or more lines per rank,
 *
 *     rank 0: F0 F1 B0 F2 B1 B2
 *     rank 1: F0.0 F0.1 B0.1 B0.0
 *
 * F is a forward, B a backward, I and W its input and weight parts. The number is the micro-batch; after a dot comes
 * the chunk, when a rank holds several. A schedule that cannot run is refused whole, with its line; nothing is guessed.
 */
#include "parallel/pipe.h"
#include <ctype.h>
#include <stdlib.h>

static const char letters[] = "FBIW"; /* in the order of the action kinds */

struct pipe_reader {
    const char *path, *p;
    int line, n_ranks, n_chunks, n_micro;
    struct tr_pipe_slot *slot;
    int *rank; /* of each slot */
    size_t n, n_cap;
};

static enum tr_status fail_line(const struct pipe_reader *r, const char *what)
{
    char word[24] = "";
    size_t n = strcspn(r->p, " \t\r\n#");
    (void)tr_format(word, sizeof word, "%.*s", (int)(n < 16 ? n : 16), r->p);
    return tr_fail(TR_USAGE, "%s:%d: \"%s\": %s", r->path, r->line, word, what);
}

static bool take_int(struct pipe_reader *r, int64_t *out)
{
    int64_t x = 0;
    if (!isdigit((unsigned char)*r->p))
        return false;
    for (; isdigit((unsigned char)*r->p); r->p++)
        x = x > 1000000 ? x : x * 10 + (*r->p - '0');
    *out = x;
    return true;
}

static void skip_blanks(struct pipe_reader *r)
{
    r->p += strspn(r->p, " \t\r,");
}

static enum tr_status add(struct pipe_reader *r, int rank, struct tr_pipe_slot t)
{
    size_t most = 3 * (size_t)r->n_ranks * (size_t)r->n_chunks * (size_t)r->n_micro;
    if (r->n == most)
        return fail_line(r, "more slots than the pipeline has");
    if (r->n == r->n_cap) {
        size_t cap = r->n_cap ? 2 * r->n_cap : 256;
        struct tr_pipe_slot *slot = realloc(r->slot, cap * sizeof *slot);
        r->slot = slot ? slot : r->slot;
        int *ranks = realloc(r->rank, cap * sizeof *ranks);
        r->rank = ranks ? ranks : r->rank;
        if (!slot || !ranks)
            return tr_fail(TR_NOMEM, "%s: out of memory", r->path);
        r->n_cap = cap;
    }
    r->rank[r->n] = rank;
    r->slot[r->n++] = t;
    return TR_OK;
}

static enum tr_status read_turn(struct pipe_reader *r, int rank)
{
    const char *start = r->p, *letter = *r->p ? strchr(letters, *r->p) : NULL;
    int64_t micro = 0, chunk = 0;
    enum tr_status st = TR_OK;
    if (!letter)
        return fail_line(r, "a slot is F, B, I or W and the number of a micro-batch, as F0 or B3.1");
    r->p++;
    bool ok = take_int(r, &micro);
    if (ok && *r->p == '.') {
        r->p++;
        ok = take_int(r, &chunk);
    }
    bool ends = ok && (*r->p == 0 || strchr(" \t\r\n,#", *r->p));
    const char *end = r->p;
    r->p = start;
    if (!ends)
        return fail_line(r, "a slot is F, B, I or W and the number of a micro-batch, as F0 or B3.1");
    if (micro >= r->n_micro)
        return fail_line(r, "no such micro-batch: they count from 0 to gradient_accumulation_steps - 1");
    if (chunk >= r->n_chunks)
        return fail_line(r, "no such chunk: they count from 0 to pp_chunks - 1");
    st = add(r, rank,
             (struct tr_pipe_slot){ .kind = (enum tr_action_kind)(letter - letters),
                                    .stage = (int)chunk * r->n_ranks + rank,
                                    .micro = (int)micro,
                                    .line = r->line });
    r->p = end;
    return st;
}

static enum tr_status read_line(struct pipe_reader *r)
{
    int64_t rank = 0;
    skip_blanks(r);
    if (*r->p && *r->p != '\n' && *r->p != '#') {
        const char *start = r->p;
        bool ok = strncmp(r->p, "rank", 4) == 0;
        r->p += ok ? 4 : 0;
        skip_blanks(r);
        ok = ok && take_int(r, &rank) && *r->p == ':';
        if (!ok || rank >= r->n_ranks) {
            r->p = start;
            return fail_line(r, ok ? "no such rank: they count from 0 to pp - 1" : "a line is \"rank N: slots\"");
        }
        r->p++;
        for (skip_blanks(r); *r->p && *r->p != '\n' && *r->p != '#'; skip_blanks(r))
            TR_PASS(read_turn(r, (int)rank));
    }
    r->p += strcspn(r->p, "\n");
    return TR_OK;
}

enum tr_status tr_pipe_read(const char *path, const char *text, int n_ranks, int n_chunks, int n_micro,
                            struct tr_pipe **out)
{
    enum tr_status st = TR_OK;
    struct tr_pipe *o = NULL;
    struct pipe_reader r = {
        .path = path, .p = text, .n_ranks = n_ranks, .n_chunks = n_chunks, .n_micro = n_micro, .line = 1
    };
    for (; *r.p; r.line++) {
        TR_TRY(read_line(&r));
        r.p += *r.p == '\n';
    }
    TR_TRY(tr_pipe_new(n_ranks, n_chunks, n_micro, &o));
    for (int rank = 0; rank < n_ranks; rank++)
        for (size_t i = 0; i < r.n; i++)
            if (r.rank[i] == rank)
                tr_pipe_add(o, rank, r.slot[i]);
    st = tr_pipe_check(o);
    if (st != TR_OK)
        tr_fail_at(st, "%s: ", path);
out:
    if (st == TR_OK)
        *out = o;
    else
        tr_pipe_close(o);
    free(r.slot);
    free(r.rank);
    return st;
}

void tr_pipe_print(const struct tr_pipe *o, struct tr_str *out)
{
    tr_str_addf(out, "# pp %d, %d chunk%s a rank, %d micro-batches\n", o->n_ranks, o->n_chunks,
                o->n_chunks == 1 ? "" : "s", o->n_micro);
    for (int r = 0; r < o->n_ranks; r++) {
        tr_str_addf(out, "rank %d:", r);
        for (int i = o->first[r]; i < o->first[r + 1]; i++) {
            const struct tr_pipe_slot *t = &o->slot[i];
            tr_str_addf(out, " %c%d", letters[t->kind], t->micro);
            if (o->n_chunks > 1)
                tr_str_addf(out, ".%d", t->stage / o->n_ranks);
        }
        tr_str_addf(out, "\n");
    }
}
