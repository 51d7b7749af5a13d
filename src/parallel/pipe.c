/* pipe.c - pipeline schedules by name: gpipe, 1f1b, interleaved, zb. Their check, and their simulation with an ideal
 * clock.
 *
 * The backwards of a stage always run in the order of their micro-batches. So gradients are summed in the same order as
 * on one rank, and a pipeline changes no bit of them. One rank is a pipeline of one stage: its 1f1b is the forward and
 * the backward of one micro-batch after the other. Rejected: searching orders by cost (a file can hold any order that a
 * search finds).
 */
#include "parallel/pipe.h"
#include <assert.h>
#include <stdlib.h>

enum tr_status tr_pipe_new(int n_ranks, int n_chunks, int n_micro, struct tr_pipe **out)
{
    size_t n_cells = 0, n_slots = 0;
    struct tr_pipe *o = calloc(1, sizeof *o);
    bool fits = tr_mul_size((size_t)n_ranks * (size_t)n_chunks, (size_t)n_micro, &n_cells) &&
                tr_mul_size(n_cells, 3, &n_slots) && n_slots < INT32_MAX;
    if (o && fits) {
        *o = (struct tr_pipe){ .n_ranks = n_ranks, .n_chunks = n_chunks, .n_micro = n_micro };
        o->slot = calloc(n_slots, sizeof *o->slot);
        o->first = calloc((size_t)n_ranks + 1, sizeof *o->first);
        o->maker = malloc(2 * n_cells * sizeof *o->maker);
    }
    if (!o || !o->slot || !o->first || !o->maker) {
        tr_pipe_close(o);
        return tr_fail(TR_NOMEM, "pipeline of %d ranks, %d chunks, %d micro-batches: out of memory", n_ranks, n_chunks,
                       n_micro);
    }
    *out = o;
    return TR_OK;
}

void tr_pipe_close(struct tr_pipe *o)
{
    if (!o)
        return;
    free(o->slot);
    free(o->first);
    free(o->maker);
    free(o);
}

/* The caller adds ranks in order: a slot of rank r ends the lists of the ranks before it. */
void tr_pipe_add(struct tr_pipe *o, int rank, struct tr_pipe_slot t)
{
    o->slot[o->first[rank + 1]] = t;
    for (int r = rank + 1; r <= o->n_ranks; r++)
        o->first[r]++;
    o->splits_backward |= t.kind == TR_DO_BACKWARD_WEIGHT;
}

static void add(struct tr_pipe *o, int rank, enum tr_action_kind kind, int chunk, int micro)
{
    tr_pipe_add(o, rank, (struct tr_pipe_slot){ .kind = kind, .stage = chunk * o->n_ranks + rank, .micro = micro });
}

/* ---- the named schedules ---- */

static enum tr_status gpipe(struct tr_pipe *o)
{
    for (int r = 0; r < o->n_ranks; r++) {
        for (int i = 0; i < o->n_micro; i++)
            add(o, r, TR_DO_FORWARD, 0, i);
        for (int i = 0; i < o->n_micro; i++)
            add(o, r, TR_DO_BACKWARD, 0, i);
    }
    return TR_OK;
}

/* Item j of a rank with chunks. Groups of n_ranks micro-batches pass through one chunk together, then through the next.
 */
static void add_item(struct tr_pipe *o, int r, enum tr_action_kind kind, int j)
{
    int p = o->n_ranks, v = o->n_chunks, chunk = j % (p * v) / p, micro = j / (p * v) * p + j % p;
    add(o, r, kind, kind == TR_DO_FORWARD ? chunk : v - 1 - chunk, micro);
}

/* Runs as many forwards as it takes until the first backward arrives, then one of each, then the remaining backwards.
 * With chunks this is Megatron's interleaved schedule, which needs whole groups of n_ranks micro-batches. */
static enum tr_status one_f_one_b(struct tr_pipe *o)
{
    int p = o->n_ranks, v = o->n_chunks, n = o->n_micro * v;
    struct tr_legal_query q = { .pp = p, .pp_chunks = v, .n_micro = o->n_micro };
    TR_PASS(tr_legal_check_rules(&q, (const enum tr_legal_id[]){ TR_LEGAL_PP_MICRO }, 1));
    for (int r = 0; r < p; r++) {
        int warm = v > 1 ? 2 * (p - r - 1) + (v - 1) * p : p - r - 1;
        warm = warm < n ? warm : n;
        for (int j = 0; j < warm; j++)
            add_item(o, r, TR_DO_FORWARD, j);
        for (int j = warm; j < n; j++) {
            add_item(o, r, TR_DO_FORWARD, j);
            add_item(o, r, TR_DO_BACKWARD, j - warm);
        }
        for (int j = n - warm; j < n; j++)
            add_item(o, r, TR_DO_BACKWARD, j);
    }
    return TR_OK;
}

/* Zero-bubble H1 (Qi et al. 2023): 1f1b with split backwards. Rank r runs a weight part r micro-batches after its input
 * part. Later ranks so fill the time in which their last input parts travel to the front. No rank holds more than the
 * first rank holds in 1f1b. */
static enum tr_status zero_bubble(struct tr_pipe *o)
{
    int p = o->n_ranks, m = o->n_micro;
    for (int r = 0; r < p; r++) {
        int warm = p - r - 1 < m ? p - r - 1 : m, weight = 0;
        for (int i = 0; i < warm; i++)
            add(o, r, TR_DO_FORWARD, 0, i);
        for (int i = 0; i < m; i++) {
            if (warm + i < m)
                add(o, r, TR_DO_FORWARD, 0, warm + i);
            add(o, r, TR_DO_BACKWARD_INPUT, 0, i);
            if (i >= r)
                add(o, r, TR_DO_BACKWARD_WEIGHT, 0, weight++);
        }
        while (weight < m)
            add(o, r, TR_DO_BACKWARD_WEIGHT, 0, weight++);
    }
    return TR_OK;
}

static enum tr_status forward_only(struct tr_pipe *o)
{
    for (int r = 0; r < o->n_ranks; r++)
        for (int chunk = 0; chunk < o->n_chunks; chunk++)
            for (int i = 0; i < o->n_micro; i++)
                add(o, r, TR_DO_FORWARD, chunk, i);
    return TR_OK;
}

static const struct {
    const char *name;
    enum tr_status (*make)(struct tr_pipe *o);
} makers[] = {
    { "gpipe", gpipe },
    { "1f1b", one_f_one_b },
    { "interleaved", one_f_one_b },
    { "zb", zero_bubble },
};

bool tr_pipe_is_named(const char *schedule)
{
    return TR_ROW(makers, schedule) != NULL;
}

static enum tr_status read_file(const char *path, int n_ranks, int n_chunks, int n_micro, struct tr_pipe **out)
{
    char *text = NULL;
    size_t n = 0;
    enum tr_status st = tr_file_read(path, 64 << 20, &text, &n);
    if (st != TR_OK)
        return tr_fail_at(st, "pp_schedule is gpipe, 1f1b, interleaved, zb or a file: ");
    st = tr_pipe_read(path, text, n_ranks, n_chunks, n_micro, out);
    free(text);
    return st;
}

enum tr_status tr_pipe_open(const char *schedule, int n_ranks, int n_chunks, int n_micro, struct tr_pipe **out)
{
    enum tr_status (*make)(struct tr_pipe *) = schedule ? NULL : forward_only;
    if (schedule && n_ranks == 1) /* one rank waits for no other: only 1f1b makes sense */
        schedule = "1f1b";
    for (size_t i = 0; schedule && i < TR_COUNT_OF(makers); i++)
        if (strcmp(makers[i].name, schedule) == 0)
            make = makers[i].make;
    if (!make)
        return read_file(schedule, n_ranks, n_chunks, n_micro, out);
    struct tr_pipe *o = NULL;
    enum tr_status st = tr_pipe_new(n_ranks, n_chunks, n_micro, &o);
    if (st == TR_OK)
        st = make(o);
    if (st == TR_OK)
        st = tr_pipe_check(o);
    if (st == TR_OK)
        *out = o;
    else
        tr_pipe_close(o);
    return st;
}

/* Does slot b follow a in the same stage, with the same part of a backward, of an earlier micro-batch? */
static bool runs_back(const struct tr_pipe_slot *a, const struct tr_pipe_slot *b)
{
    bool is_backward = a->kind != TR_DO_FORWARD && b->kind != TR_DO_FORWARD;
    bool has_same_part = a->kind == b->kind || a->kind == TR_DO_BACKWARD || b->kind == TR_DO_BACKWARD;
    return is_backward && has_same_part && a->stage == b->stage && a->micro > b->micro;
}

bool tr_pipe_is_in_order(const struct tr_pipe *o)
{
    for (int r = 0; r < o->n_ranks; r++)
        for (int i = o->first[r]; i < o->first[r + 1]; i++)
            for (int k = o->first[r]; k < i; k++)
                if (runs_back(&o->slot[k], &o->slot[i]))
                    return false;
    return true;
}

/* ---- what a slot needs, and whether a schedule can run ---- */

int tr_pipe_slot_source(const struct tr_pipe *o, const struct tr_pipe_slot *t)
{
    int last = o->n_ranks * o->n_chunks - 1;
    switch (t->kind) {
    case TR_DO_FORWARD:
        return t->stage - 1; /* -1: the data */
    case TR_DO_BACKWARD:
    case TR_DO_BACKWARD_INPUT:
        return t->stage < last ? t->stage + 1 : -1;
    default:
        return -1;
    }
}

int tr_pipe_slot_target(const struct tr_pipe *o, const struct tr_pipe_slot *t)
{
    int last = o->n_ranks * o->n_chunks - 1;
    switch (t->kind) {
    case TR_DO_FORWARD:
        return t->stage < last ? t->stage + 1 : -1;
    case TR_DO_BACKWARD:
    case TR_DO_BACKWARD_INPUT:
        return t->stage - 1;
    default:
        return -1;
    }
}

int *tr_pipe_maker(const struct tr_pipe *o, bool is_backward, int stage, int micro)
{
    return &o->maker[((is_backward ? o->n_ranks * o->n_chunks : 0) + stage) * o->n_micro + micro];
}

static_assert(TR_DO_FORWARD == 0 && TR_DO_BACKWARD == 1 && TR_DO_BACKWARD_INPUT == 2 && TR_DO_BACKWARD_WEIGHT == 3,
              "kinds of slots index tables");

static const char *slot_text(const struct tr_pipe_slot *t, char *buf, size_t n)
{
    static const char *const names[] = { "forward", "backward", "backward-input", "backward-weight" };
    (void)tr_format(buf, n, "%s of stage %d, micro-batch %d", names[t->kind], t->stage, t->micro);
    return buf;
}

static enum tr_status fail_slot(const struct tr_pipe_slot *t, int rank, const char *what)
{
    char text[96], line[32] = "";
    if (t->line)
        (void)tr_format(line, sizeof line, "line %d: ", t->line);
    return tr_fail(TR_USAGE, "%spipeline rank %d: %s %s", line, rank, slot_text(t, text, sizeof text), what);
}

/* What a slot needs of its own stage is its forward, or its input part. A search plays a schedule often, so this is
 * found once. */
static void find_needs(struct tr_pipe *o)
{
    for (int i = 0; i < o->first[o->n_ranks]; i++) {
        struct tr_pipe_slot *t = &o->slot[i];
        int source = tr_pipe_slot_source(o, t);
        bool is_weight = t->kind == TR_DO_BACKWARD_WEIGHT, is_forward = t->kind == TR_DO_FORWARD;
        t->need[0] = source < 0 ? -1 : *tr_pipe_maker(o, !is_forward, source, t->micro);
        t->need[1] = is_forward ? -1 : *tr_pipe_maker(o, is_weight, t->stage, t->micro);
    }
}

/* Every slot once, on its rank, weight parts with their input parts. Fills `maker`. */
static enum tr_status check_complete(struct tr_pipe *o)
{
    int n_stages = o->n_ranks * o->n_chunks, n_cells = n_stages * o->n_micro;
    enum tr_status st = TR_OK;
    uint8_t *seen = calloc((size_t)n_cells, 1); /* a bit for each kind */
    if (!seen)
        return tr_fail(TR_NOMEM, "pipeline order: out of memory");
    for (int i = 0; i < 2 * n_cells; i++)
        o->maker[i] = -1;
    for (int r = 0; r < o->n_ranks; r++)
        for (int i = o->first[r]; i < o->first[r + 1]; i++) {
            const struct tr_pipe_slot *t = &o->slot[i];
            if (t->stage < 0 || t->stage >= n_stages || t->micro < 0 || t->micro >= o->n_micro)
                TR_TRY(fail_slot(t, r, "does not exist"));
            if (tr_pipe_rank(o, t->stage) != r)
                TR_TRY(fail_slot(t, r, "belongs to another rank"));
            uint8_t *s = &seen[t->stage * o->n_micro + t->micro];
            /* a whole backward clashes with either of its parts */
            static const uint8_t clash[] = { 1, 2 + 4 + 8, 2 + 4, 2 + 8 };
            if (*s & clash[t->kind])
                TR_TRY(fail_slot(t, r, "is there twice"));
            *s |= (uint8_t)(1 << t->kind);
            if (t->kind != TR_DO_BACKWARD_WEIGHT)
                *tr_pipe_maker(o, t->kind != TR_DO_FORWARD, t->stage, t->micro) = i;
        }
    bool is_training = false;
    for (int c = 0; c < n_cells; c++)
        is_training |= (seen[c] & ~1) != 0;
    for (int c = 0; c < n_cells; c++) {
        struct tr_pipe_slot t = { .stage = c / o->n_micro, .micro = c % o->n_micro };
        t.kind = !(seen[c] & 1) ? TR_DO_FORWARD : seen[c] & 8 ? TR_DO_BACKWARD_INPUT : TR_DO_BACKWARD_WEIGHT;
        bool is_whole = seen[c] == (is_training ? 1 + 2 : 1) || (is_training && seen[c] == 1 + 4 + 8);
        if (!is_whole && (seen[c] & 1) && !(seen[c] & (4 + 8)))
            t.kind = TR_DO_BACKWARD;
        if (!is_whole)
            TR_TRY(fail_slot(&t, tr_pipe_rank(o, t.stage), "is missing"));
    }
out:
    free(seen);
    return st;
}

enum tr_status tr_pipe_check(struct tr_pipe *o)
{
    struct tr_pipe_times times;
    TR_PASS(check_complete(o));
    find_needs(o);
    TR_PASS(tr_pipe_play(o, &times, NULL));
    o->bubble = times.bubble;
    return TR_OK;
}

/* ---- simulation ---- */

struct play {
    const struct tr_pipe *o;
    const struct tr_pipe_costs *costs;
    double *end;  /* of each slot; < 0: not yet */
    double *rank; /* when each rank is free */
    int *next;    /* slot of each rank */
    int *held;
};

static bool waits_for_own(const struct play *p, int slot)
{
    int own = p->o->slot[slot].need[1];
    return own >= 0 && p->end[own] < 0;
}

/* The time when a slot may start, or -1 while a slot that it needs is not done. */
static double ready_at(const struct play *p, int slot)
{
    const int *need = p->o->slot[slot].need;
    double at = 0;
    for (int k = 0; k < 2; k++) {
        if (need[k] >= 0 && p->end[need[k]] < 0)
            return -1;
        double travel = k == 0 && p->costs && p->o->n_ranks > 1 ? p->costs->message : 0;
        if (need[k] >= 0 && p->end[need[k]] + travel > at)
            at = p->end[need[k]] + travel;
    }
    return at;
}

static double duration(const struct play *p, const struct tr_pipe_slot *t)
{
    return p->costs ? p->costs->slot[t->stage][t->kind] : t->kind == TR_DO_BACKWARD ? 2 : 1;
}

static bool advance(struct play *p, int r, int *peak)
{
    int i = p->next[r];
    double at = i < p->o->first[r + 1] ? ready_at(p, i) : -1;
    if (at < 0)
        return false;
    enum tr_action_kind kind = p->o->slot[i].kind;
    p->rank[r] = (at > p->rank[r] ? at : p->rank[r]) + duration(p, &p->o->slot[i]);
    p->end[i] = p->rank[r];
    p->held[r] += kind == TR_DO_FORWARD ? 1 : kind == TR_DO_BACKWARD_INPUT ? 0 : -1;
    if (peak && p->held[r] > peak[r])
        peak[r] = p->held[r];
    p->next[r]++;
    return true;
}

enum tr_status tr_pipe_play(const struct tr_pipe *o, struct tr_pipe_times *out, int *peak)
{
    return tr_pipe_play_costs(o, NULL, out, peak, NULL);
}

enum tr_status tr_pipe_play_costs(const struct tr_pipe *o, const struct tr_pipe_costs *costs, struct tr_pipe_times *out,
                                  int *peak, double *end)
{
    enum tr_status st = TR_OK;
    size_t n = (size_t)o->first[o->n_ranks], n_ranks = (size_t)o->n_ranks;
    struct play p = { .o = o, .costs = costs };
    double work = 0, length = 0, *times = malloc((n + n_ranks) * sizeof *times);
    int *counts = calloc(2 * n_ranks, sizeof *counts);
    if (!times || !counts)
        TR_TRY(tr_fail(TR_NOMEM, "pipeline order: out of memory"));
    p.end = times;
    p.rank = times + n;
    p.next = counts;
    p.held = counts + n_ranks;
    for (size_t i = 0; i < n; i++) {
        times[i] = -1;
        work += duration(&p, &o->slot[i]);
    }
    for (int r = 0; r < o->n_ranks; r++) {
        p.rank[r] = 0;
        p.next[r] = o->first[r];
        if (peak)
            peak[r] = 0;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < o->n_ranks; r++)
            while (advance(&p, r, peak))
                moved = true;
    }
    int stuck = -1;
    for (int r = 0; r < o->n_ranks; r++) {
        length = p.rank[r] > length ? p.rank[r] : length;
        if (p.next[r] < o->first[r + 1] && (stuck < 0 || waits_for_own(&p, p.next[r])))
            stuck = r;
    }
    if (stuck >= 0)
        TR_TRY(fail_slot(&o->slot[p.next[stuck]], stuck, "waits for a slot that can only come after it"));
    *out = (struct tr_pipe_times){ .length = length, .bubble = 1 - work / (length * o->n_ranks) };
    if (end)
        memcpy(end, p.end, n * sizeof *end);
out:
    free(times);
    free(counts);
    return st;
}
