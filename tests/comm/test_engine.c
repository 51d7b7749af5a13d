/* An engine is hooks only: this one, "toy", is written after docs/guide/add-an-engine.md and passes the checks of the
 * engines that ship. Its ranks are threads of one process, which read each other's buffers in place. */
#include "comm/checks.h"
#include "comm/front.h"
#include "comm/group_checks.h"

/* ---- 1. what ranks share ---- */

struct toy_seat {
    atomic_uint_fast64_t announced, has_read; /* numbers of operations */
    struct {
        struct tr_signature signature;
        char site[TR_SITE_MAX];
        const void *in;
    } entry[2]; /* operation s uses entry s & 1 */
};

struct toy_board { /* of one communicator */
    atomic_int n_open;
    struct toy_seat seats[]; /* n for all, then 2 for each pair [sender][receiver] */
};

struct toy_job { /* of one world; lives as long as the test */
    char name[64];
    atomic_int fault;
    enum tr_status status;
    char text[TR_FRONT_TEXT_MAX];
    struct toy_board *board;
    struct toy_job *next;
};

static pthread_mutex_t jobs_lock = PTHREAD_MUTEX_INITIALIZER;
static struct toy_job *jobs;

/* ---- 2. the engine's own structs, each behind the front's ---- */

struct toy_world {
    struct tr_front front;
    struct toy_job *job;
};

struct toy_comm {
    struct tr_front_comm base;
    struct toy_board *board;
};

struct toy_channel {
    struct tr_front_channel base;
    struct toy_seat *seats;
    void *result; /* of the operation that moves: peers may still read the buffer that it goes to */
};

/* ---- 3. the hooks ---- */

static enum tr_status announce(struct tr_front_channel *base, struct tr_front_op *op)
{
    struct toy_channel *ch = (struct toy_channel *)base;
    struct toy_seat *mine = &ch->seats[base->me];
    memset(&mine->entry[op->seq & 1], 0, sizeof mine->entry[0]);
    mine->entry[op->seq & 1].signature = tr_signature_of(&op->coll, base->peer >= 0);
    mine->entry[op->seq & 1].in = op->coll.in;
    if (op->coll.site)
        memcpy(mine->entry[op->seq & 1].site, op->coll.site, strnlen(op->coll.site, TR_SITE_MAX));
    atomic_store(&mine->announced, op->seq);
    op->state = TR_FRONT_ANNOUNCED;
    return TR_OK;
}

static struct tr_front_announced announced_by(struct toy_channel *ch, int seat, uint64_t seq)
{
    return (struct tr_front_announced){ seat, &ch->seats[seat].entry[seq & 1].signature,
                                        ch->seats[seat].entry[seq & 1].site };
}

/* All ranks have announced operation `seq`, and announced the same; reads their inputs. */
static enum tr_status read_inputs(struct toy_channel *ch, struct tr_front_op *op)
{
    const void *in[N_RANKS_MAX];
    struct tr_coll c = op->coll;
    for (int i = 0; i < ch->base.n; i++) {
        enum tr_status st =
            tr_front_compare(&ch->base, announced_by(ch, ch->base.me, op->seq), announced_by(ch, i, op->seq));
        if (st != TR_OK)
            return st;
        in[i] = ch->seats[i].entry[op->seq & 1].in;
    }
    c.out = ch->result = c.out && !op->is_small ? malloc(c.count * tr_dtype_bytes(c.dtype)) : NULL;
    if (ch->result)
        tr_small_take(&c, ch->base.n, ch->base.me, in);
    op->state = TR_FRONT_MOVING;
    atomic_store(&ch->seats[ch->base.me].has_read, op->seq);
    return TR_OK;
}

static void write_result(struct toy_channel *ch, struct tr_front_op *op)
{
    size_t first, n = op->coll.count;
    if (op->coll.kind == TR_REDUCE_SCATTER)
        tr_coll_shard(&op->coll, ch->base.n, ch->base.me, &first, &n);
    if (ch->result)
        memcpy(op->coll.out, ch->result, n * tr_dtype_bytes(op->coll.dtype));
    free(ch->result);
    tr_front_complete(&ch->base, op);
}

static enum tr_status advance(struct tr_front_channel *base, struct tr_front_op *op, bool *has_moved)
{
    struct toy_channel *ch = (struct toy_channel *)base;
    for (int i = 0; i < base->n; i++)
        if (atomic_load(op->state == TR_FRONT_ANNOUNCED ? &ch->seats[i].announced : &ch->seats[i].has_read) < op->seq)
            return TR_OK;
    *has_moved = true;
    if (op->state == TR_FRONT_ANNOUNCED)
        return read_inputs(ch, op);
    write_result(ch, op);
    return TR_OK;
}

static enum tr_status look(struct tr_front *w, const struct tr_front_channel *ch, int64_t waited_us, int64_t now_us)
{
    char place[256];
    enum tr_status st = tr_front_fault(w);
    (void)now_us;
    if (st == TR_OK && ch && waited_us >= w->timeout_us)
        st = tr_front_raise(w, TR_TIMEOUT, "rank %d waits in %s for %.1f s", w->rank,
                            tr_front_place(ch, place, sizeof place), (double)waited_us * 1e-6);
    return st;
}

static enum tr_status fault(const struct tr_front *w)
{
    const struct toy_job *job = ((const struct toy_world *)w)->job;
    return tr_fail(job->status, "%s", job->text);
}

static void raise_fault(struct tr_front *w, enum tr_status st, const char *text)
{
    struct toy_job *job = ((struct toy_world *)w)->job;
    pthread_mutex_lock(&jobs_lock);
    if (!atomic_load(&job->fault)) {
        job->status = st;
        (void)snprintf(job->text, sizeof job->text, "%s", text);
        atomic_store(&job->fault, 1);
    }
    pthread_mutex_unlock(&jobs_lock);
}

static struct toy_board *new_board(int n)
{
    struct toy_board *b = calloc(1, sizeof *b + (size_t)(n + 2 * n * n) * sizeof(struct toy_seat));
    CHECK(b);
    atomic_store(&b->n_open, n);
    return b;
}

static enum tr_status open_on(struct tr_front *w, struct toy_board *b, const int *ranks, int rank, int n,
                              struct tr_front_comm **out)
{
    enum tr_status st = tr_front_open_comm(w, sizeof(struct toy_comm), ranks, rank, n, out);
    if (st != TR_OK)
        return st;
    ((struct toy_comm *)*out)->board = b;
    ((struct toy_channel *)tr_front_all(*out))->seats = b->seats;
    for (int i = 0; i < n; i++) {
        ((struct toy_channel *)tr_front_to(*out, i))->seats = b->seats + n + 2 * (rank * n + i);
        ((struct toy_channel *)tr_front_from(*out, i))->seats = b->seats + n + 2 * (i * n + rank);
    }
    return TR_OK;
}

/* The first rank of each color makes the board; ranks are threads, so a pointer is all that the others need. */
static enum tr_status split(struct tr_front_comm *c, const struct tr_front_group *g, struct tr_front_comm **out)
{
    bool is_shared = g->color >= 0 && g->n > 1;
    if (is_shared && g->leader == c->base.rank)
        g->values[g->leader] = (int64_t)(intptr_t)new_board(g->n);
    enum tr_status st = tr_split_exchange(&c->base, g->values, 1);
    if (st != TR_OK || !is_shared)
        return st;
    tr_front_enter(c->w);
    st = open_on(c->w, (struct toy_board *)(intptr_t)g->values[g->leader], g->ranks, g->rank, g->n, out);
    tr_front_leave(c->w);
    return st;
}

static void close_toy(struct tr_front_comm *c, bool is_last)
{
    struct tr_front *w = c->w;
    struct toy_board *b = ((struct toy_comm *)c)->board;
    if (is_last)
        tr_front_stop_helper(w);
    if (atomic_fetch_sub(&b->n_open, 1) == 1)
        free(b);
    tr_front_free_comm(c);
    if (!is_last)
        return;
    free(w->arena);
    tr_front_release(w);
    free(w);
}

static const struct tr_front_hooks hooks = { .channel_bytes = sizeof(struct toy_channel),
                                             .announce = announce,
                                             .advance = advance,
                                             .look = look,
                                             .fault = fault,
                                             .raise = raise_fault,
                                             .split = split,
                                             .close = close_toy };

/* ---- 4. the row ---- */

static const char *can_use(const struct tr_comm_env *env)
{
    return env->size <= N_RANKS_MAX ? NULL : "it takes at most 8 ranks";
}

/* Ranks find each other by the name of the job. */
static struct toy_job *find_job(const struct tr_comm_env *env)
{
    struct toy_job *job = NULL;
    pthread_mutex_lock(&jobs_lock);
    for (job = jobs; job && strcmp(job->name, env->job) != 0;)
        job = job->next;
    if (!job) {
        job = calloc(1, sizeof *job);
        CHECK(job);
        (void)snprintf(job->name, sizeof job->name, "%s", env->job);
        job->board = new_board(env->size);
        job->next = jobs;
        jobs = job;
    }
    pthread_mutex_unlock(&jobs_lock);
    return job;
}

static enum tr_status open_toy(const struct tr_comm_env *env, struct tr_comm **world);
static const struct tr_comm_ops toy = { "toy", can_use, open_toy, TR_FRONT_OPS };

static enum tr_status open_toy(const struct tr_comm_env *env, struct tr_comm **world)
{
    struct tr_front_comm *first = NULL;
    struct toy_world *w = calloc(1, sizeof *w);
    CHECK(w);
    enum tr_status st = tr_front_init(&w->front, &hooks, &toy, env);
    w->job = find_job(env);
    w->front.fault = &w->job->fault;
    w->front.rest_us = w->front.help_us = 50;
    w->front.arena_bytes = env->arena_bytes;
    w->front.arena = aligned_alloc(TR_COMM_ALIGN, env->arena_bytes);
    CHECK(w->front.arena);
    if (st == TR_OK)
        st = open_on(&w->front, w->job->board, NULL, env->rank, env->size, &first);
    if (st == TR_OK)
        st = tr_front_start_helper(&w->front);
    *world = st == TR_OK ? &first->base : NULL;
    return st;
}

/* ---- 5. the list ---- */

const struct tr_comm_ops *const tr_comm_engines[] = { &tr_comm_self, &toy, NULL };

/* ---- the checks of the engines that ship ---- */

#define TOY ((void *)(uintptr_t) "toy")

static void toy_gives_the_serial_bits(void **state)
{
    (void)state;
    run_threads(1, check_all, TOY);
    run_threads(3, check_all, TOY);
    run_threads(2, check_large, TOY);
}

static void toy_splits_rings_and_runs_ahead(void **state)
{
    (void)state;
    run_threads(8, split_grid, TOY);
    run_threads(4, split_often, TOY);
    run_threads(4, ring, TOY);
    run_threads(3, post_many, TOY);
    run_threads(3, elsewhere, TOY);
    run_threads(3, wrong_split, TOY);
}

static void one_is_late(const struct tr_comm_env *given, void *ctx)
{
    struct tr_comm *w;
    struct tr_comm_env env = *given;
    env.timeout_us = 100 * 1000;
    CHECK_OK(tr_comm_open(ctx, &env, &w));
    if (env.rank == 1)
        for (int64_t start = tr_clock_us(); tr_comm_check(w) == TR_OK && tr_clock_us() - start < 20 * 1000000;)
            usleep(1000);
    CHECK(tr_comm_run(w, &(struct tr_coll){ .kind = TR_BARRIER, .site = "end" }) == TR_TIMEOUT);
    CHECK(strstr(tr_error_text(), "rank 0 waits in barrier #1 end (entering) for 0.1 s"));
    tr_comm_close(w);
}

static void the_front_holds_its_deadline(void **state)
{
    (void)state;
    run_threads(2, one_is_late, TOY);
}

static void the_list_decides_which_engines_there_are(void **state)
{
    (void)state;
    struct tr_comm *w;
    struct tr_comm_env env = { .size = 2, .timeout_us = 1000, .job = "x" };
    assert_int_equal(tr_comm_open("shm", &env, &w), TR_USAGE);
    assert_string_equal(tr_error_text(), "communication engine \"shm\" is not one of self, toy");
}

/* The guide shows this file: its blocks of C are here, line by line. */
static void the_guide_shows_this_engine(void **state)
{
    (void)state;
    char *guide = NULL, *code = NULL;
    size_t n = 0;
    assert_int_equal(tr_file_read(TR_SOURCE_DIR "/docs/guide/add-an-engine.md", 1 << 20, &guide, &n), TR_OK);
    assert_int_equal(tr_file_read(TR_SOURCE_DIR "/tests/comm/test_engine.c", 1 << 20, &code, &n), TR_OK);
    int n_blocks = 0;
    for (char *p = guide; (p = strstr(p, "```c\n")) != NULL; n_blocks++) {
        char *end = strstr(p += 5, "```");
        assert_non_null(end);
        *end = 0;
        if (!strstr(code, p))
            fail_msg("docs/guide/add-an-engine.md shows code that this file does not have:\n%s", p);
        p = end + 1;
    }
    assert_true(n_blocks >= 4);
    free(guide);
    free(code);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(toy_gives_the_serial_bits),    cmocka_unit_test(toy_splits_rings_and_runs_ahead),
        cmocka_unit_test(the_front_holds_its_deadline), cmocka_unit_test(the_list_decides_which_engines_there_are),
        cmocka_unit_test(the_guide_shows_this_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
