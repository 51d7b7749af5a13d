/* failpoint.c - named places where a test makes the process die, stop, wait or fail.
 *
 * Always compiled in: what is tested is what is shipped. Invariant: rows change only in tr_failpoint_setup(), which
 * runs before threads start; after that only the hit counters move. A row for another rank or generation is dropped at
 * setup.
 */
#include "base/misc.h"
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#include "base/str.h"
#include "base/banned.h"

enum { N_ROWS_MAX = 16, POINT_MAX = 64 };
enum action { KILL, STOP, DELAY, ERROR, SPIN, TELL };

struct failpoint {
    char point[POINT_MAX];
    enum action action;
    int64_t delay_ms;
    int64_t at_hit;
    atomic_int_fast64_t n_hits;
};

static struct failpoint rows[N_ROWS_MAX];
static atomic_int n_rows;

static enum tr_status parse_action(const char *text, struct failpoint *row)
{
    static const char *const names[] = { "kill", "stop", "delay", "error", "spin", "tell" };
    if (strncmp(text, "delay", 5) == 0) {
        row->action = DELAY;
        return tr_parse_int(text + 5, 0, 3600 * 1000, &row->delay_ms);
    }
    for (unsigned i = 0; i < TR_COUNT_OF(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            row->action = (enum action)i;
            return TR_OK;
        }
    }
    return tr_fail(TR_USAGE, "action \"%s\" is not kill, stop, delay<ms>, error, spin or tell", text);
}

/* TR_GENERATION of this process, 0 without one. */
static int64_t own_generation(void)
{
    int64_t n = 0;
    const char *text = getenv("TR_GENERATION");
    return text && tr_parse_int(text, 0, INT64_MAX, &n) == TR_OK ? n : 0;
}

/* point:action[:n[:rank[:generation]]] in `text`, which is cut up; *is_ours is false when it names another process. */
static enum tr_status parse_row(char *text, int rank, struct failpoint *row, bool *is_ours)
{
    char *fields[5] = { text };
    size_t n_fields = 1;
    for (char *p = text; (p = strchr(p, ':')) != NULL; n_fields++) {
        if (n_fields == TR_COUNT_OF(fields))
            return tr_fail(TR_USAGE, "more than five fields");
        *p++ = 0;
        fields[n_fields] = p;
    }
    if (n_fields < 2 || !fields[0][0])
        return tr_fail(TR_USAGE, "write point:action[:n[:rank[:generation]]]");
    int64_t only_rank = rank, only_generation = own_generation();
    row->at_hit = 1;
    atomic_init(&row->n_hits, 0);
    TR_PASS(tr_format(row->point, sizeof row->point, "%s", fields[0]));
    TR_PASS(parse_action(fields[1], row));
    if (n_fields > 2)
        TR_PASS(tr_parse_int(fields[2], 1, INT64_MAX, &row->at_hit));
    if (n_fields > 3)
        TR_PASS(tr_parse_int(fields[3], -1, INT_MAX, &only_rank));
    if (n_fields > 4)
        TR_PASS(tr_parse_int(fields[4], 0, INT64_MAX, &only_generation));
    *is_ours = only_rank == rank && only_generation == own_generation();
    return TR_OK;
}

enum tr_status tr_failpoint_setup(const char *spec, int rank)
{
    atomic_store(&n_rows, 0);
    if (!spec)
        spec = getenv("TR_FAIL");
    if (!spec || !spec[0])
        return TR_OK;
    char *copy = strdup(spec);
    if (!copy)
        return tr_fail(TR_NOMEM, "no memory for TR_FAIL");

    enum tr_status st = TR_OK;
    int n = 0;
    for (char *p = copy, *next; p; p = next) {
        next = strchr(p, ',');
        if (next)
            *next++ = 0;
        bool is_ours = false;
        st = n < N_ROWS_MAX ? parse_row(p, rank, &rows[n], &is_ours)
                            : tr_fail(TR_USAGE, "more than %d failpoints", N_ROWS_MAX);
        if (st != TR_OK) {
            tr_fail_at(st, "TR_FAIL=%s: ", spec);
            goto out;
        }
        n += is_ours;
    }
    atomic_store(&n_rows, n);
out:
    free(copy);
    return st;
}

static void sleep_ms(int64_t ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    while (nanosleep(&t, &t) != 0)
        ;
}

/* One write() per line, so that lines of several threads do not mix. */
static void tell(const char *point)
{
    char line[POINT_MAX + 16];
    if (tr_format(line, sizeof line, "passed %s\n", point) == TR_OK)
        (void)!write(STDERR_FILENO, line, strlen(line));
}

/* Only `tell` acts on every hit; the others act on the n-th. */
static bool is_armed(struct failpoint *row, const char *point)
{
    if (strcmp(row->point, point) != 0 && strcmp(row->point, "*") != 0)
        return false;
    return atomic_fetch_add(&row->n_hits, 1) + 1 == row->at_hit || row->action == TELL;
}

enum tr_status tr_failpoint(const char *point)
{
    int n = atomic_load_explicit(&n_rows, memory_order_relaxed);
    for (int i = 0; i < n; i++) {
        struct failpoint *row = &rows[i];
        if (!is_armed(row, point))
            continue;
        switch (row->action) {
        case KILL:
            kill(getpid(), SIGKILL);
            break;
        case STOP:
            kill(getpid(), SIGSTOP);
            break;
        case DELAY:
            sleep_ms(row->delay_ms);
            break;
        case SPIN: /* an endless loop */
            for (volatile bool is_on = true; is_on;)
                tr_cpu_pause();
            break;
        case ERROR:
            return tr_fail(TR_IO, "failpoint %s: error asked for by TR_FAIL", point);
        case TELL:
            tell(point);
            break;
        }
    }
    return TR_OK;
}
