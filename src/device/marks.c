/* marks.c - marks in time, for profiles: on the host the time of the clock, on a GPU events that its streams reach. A
 * GPU event is read as its distance from a first event, for which the host took the time. */
#include "device/device_impl.h"
#include <stdlib.h>
#include <time.h>

struct tr_marks {
    struct tr_device *dev;
    int n;
    double *us;     /* host */
    void **event;   /* GPU: n events, then the first event */
    double base_us; /* the host's time of the first event */
};

double tr_marks_now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* the clock of tr_clock_us, with a finer resolution */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

enum tr_status tr_marks_open(struct tr_device *d, int n, struct tr_marks **out)
{
    struct tr_marks *m = calloc(1, sizeof *m);
    bool is_ok = m != NULL;
    if (is_ok) {
        *m = (struct tr_marks){ .dev = d, .n = n };
        m->us = calloc((size_t)n + 1, sizeof *m->us);
        m->event = calloc((size_t)n + 1, sizeof *m->event);
        is_ok = m->us && m->event;
    }
    for (int i = 0; is_ok && d->row->mark && i <= n; i++)
        is_ok = d->row->mark->open(&m->event[i]);
    if (!is_ok) {
        tr_marks_close(m);
        return tr_fail(TR_NOMEM, "no memory for %d marks of a profile", n);
    }
    *out = m;
    return TR_OK;
}

void tr_marks_close(struct tr_marks *m)
{
    if (!m)
        return;
    for (int i = 0; m->event && i <= m->n; i++)
        if (m->event[i])
            m->dev->row->mark->close(m->event[i]);
    free(m->event);
    free(m->us);
    free(m);
}

enum tr_status tr_marks_start(struct tr_marks *m)
{
    enum tr_status st = TR_OK;
    if (m->dev->row->mark) {
        m->dev->row->mark->set(m->dev, m->event[m->n], NULL);
        st = tr_device_sync(m->dev, TR_STREAM_COMPUTE);
    }
    m->base_us = tr_marks_now_us();
    return st;
}

void tr_mark(struct tr_marks *m, int i, void *stream)
{
    if (m->dev->row->mark)
        m->dev->row->mark->set(m->dev, m->event[i], stream);
    else
        m->us[i] = tr_marks_now_us();
}

double tr_mark_us(const struct tr_marks *m, int i)
{
    const struct tr_mark_ops *ops = m->dev->row->mark;
    return ops ? m->base_us + ops->us(m->event[m->n], m->event[i]) : m->us[i];
}

void tr_range_begin(const struct tr_device *d, const char *name)
{
    if (d->row->mark)
        d->row->mark->range(name);
}

void tr_range_end(const struct tr_device *d)
{
    if (d->row->mark)
        d->row->mark->range(NULL);
}

void tr_profile_range(const struct tr_device *d, bool is_on)
{
    if (d->row->mark)
        d->row->mark->profile(is_on);
}
