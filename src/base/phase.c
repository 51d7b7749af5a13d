/* phase.c - the writer's side of a rank's page, and what its durations say. */
#include "base/phase.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>
#include "base/misc.h"
#include "base/str.h"
#include "base/banned.h"

enum { N_FEW = 16, N_MANY = 1024, SLOW_MIN_US = 100 * 1000, SLOW_FACTOR = 8 };

static _Thread_local struct tr_phase_page *mine;

/* A small file of /proc as text; empty when it does not exist. */
static void read_small(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
}

char tr_process_state(int pid)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    read_small(path, text, sizeof text);
    const char *p = strrchr(text, ')'); /* the process name in front of it may hold any character */
    return p && p[1] == ' ' && p[2] ? p[2] : '?';
}

struct tr_cores_us tr_process_cores(int pid)
{
    char path[320], text[128];
    struct tr_cores_us sum = { 0 };
    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        long long ran, queued;
        (void)snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, e->d_name);
        if (e->d_name[0] == '.')
            continue;
        read_small(path, text, sizeof text);
        if (sscanf(text, "%lld %lld", &ran, &queued) != 2)
            continue;
        sum.ran += ran / 1000;
        sum.queued += queued / 1000;
    }
    if (dir)
        closedir(dir);
    return sum;
}

const char *tr_phase_name(int kind)
{
    static const char *const names[] = {
#define X(name, text) text,
        TR_PHASE_LIST(X)
#undef X
    };
    _Static_assert(TR_COUNT_OF(names) == TR_PHASE_KINDS, "one name a phase");
    return kind >= 0 && kind < TR_PHASE_KINDS ? names[kind] : "?";
}

void tr_phase_use(struct tr_phase_page *page)
{
    mine = page;
}

struct tr_phase_page *tr_phase_mine(void)
{
    return mine;
}

/* Stores between the two stay between the two: the kernel's copy for a reader is taken of one processor's order. */
static void begin_change(void)
{
    mine->seq++;
    atomic_thread_fence(memory_order_release);
}

static void end_change(void)
{
    atomic_thread_fence(memory_order_release);
    mine->seq++;
}

static int bucket_of(int64_t us)
{
    int octave = 0;
    while (octave < 31 && us >> (octave + 1) > 0)
        octave++;
    int quarter = octave < 2 ? 0 : (int)(us >> (octave - 2) & 3);
    return octave * 4 + quarter;
}

/* The largest duration of a bucket. */
static int64_t bucket_end(int bucket)
{
    int octave = bucket / 4;
    return octave < 2 ? (INT64_C(2) << octave) : (INT64_C(5) + bucket % 4) << (octave - 2);
}

int64_t tr_phase_p99(const struct tr_phase_page *p, int kind)
{
    uint32_t sum = 0;
    if (kind < 0 || kind >= TR_PHASE_KINDS || p->n_done[kind] < N_FEW)
        return 0;
    for (int i = TR_PHASE_BUCKETS - 1; i >= 0; i--) {
        sum += p->done[kind][i];
        if (sum * 100.0 > p->n_done[kind])
            return bucket_end(i);
    }
    return 0;
}

static void count(int kind, int64_t us)
{
    uint32_t *row = mine->done[kind];
    int64_t p99 = us > SLOW_MIN_US ? tr_phase_p99(mine, kind) : 0;
    if (p99 > 0 && us > SLOW_FACTOR * p99) {
        mine->n_slow++;
        mine->slow_us = us;
        mine->slow_p99_us = p99;
        mine->slow_kind = kind;
        mine->slow_place = mine->place;
        mine->slow_step = mine->step;
    }
    row[bucket_of(us)]++;
    if (++mine->n_done[kind] < N_MANY)
        return;
    mine->n_done[kind] = 0;
    for (int i = 0; i < TR_PHASE_BUCKETS; i++) { /* halved, so that old durations count less */
        row[i] /= 2;
        mine->n_done[kind] += row[i];
    }
}

void tr_phase_step(int64_t step)
{
    if (!mine)
        return;
    int64_t now = tr_clock_us();
    begin_change();
    double busy = (double)(now - mine->step_begin_us - mine->step_waited_us);
    if (mine->step_begin_us && mine->step > 0)
        mine->busy_us = mine->busy_us > 0 ? 0.9 * mine->busy_us + 0.1 * busy : busy;
    mine->step = step;
    mine->step_begin_us = now;
    mine->step_waited_us = 0;
    end_change();
}

void tr_phase_enter(enum tr_phase_kind kind, int place, int micro)
{
    struct tr_phase_page *p = mine;
    if (!p)
        return;
    int64_t now = tr_clock_us();
    begin_change();
    count(p->kind, now - p->begin_us - p->waited_us);
    p->kind = (int32_t)kind;
    p->place = place;
    p->micro = micro;
    p->since_us = p->begin_us = now;
    p->waited_us = 0;
    p->n_moves++;
    p->ring[p->n_marks % TR_PHASE_RING] = (struct tr_phase_mark){ now, p->step, (int16_t)kind, (int16_t)place, micro };
    p->n_marks++;
    end_change();
}

void tr_phase_wait(const char *site)
{
    struct tr_phase_page *p = mine;
    if (!p)
        return;
    begin_change();
    p->since_us = tr_clock_us();
    p->is_waiting = 1;
    p->n_collectives++;
    (void)snprintf(p->site, sizeof p->site, "%s", site ? site : "posted before");
    end_change();
}

void tr_phase_waited(void)
{
    struct tr_phase_page *p = mine;
    if (!p)
        return;
    int64_t now = tr_clock_us();
    begin_change();
    p->waited_us += now - p->since_us;
    p->step_waited_us += now - p->since_us;
    p->since_us = now;
    p->is_waiting = 0;
    p->n_moves++;
    end_change();
}
