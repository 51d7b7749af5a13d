/* loader.c - one thread fills a ring of steps ahead of the trainer.
 *
 * Step s is in slot s % depth. The thread fills step `n_ready` while it is less than `n_free`. The caller holds step
 * n_taken - 1 until it takes the next one. Invariant: n_taken <= n_ready <= n_free <= n_taken - 1 + depth, all under
 * one lock. The content of a slot belongs to the thread until it is ready, then to the caller. The content of a step
 * depends on its number alone, so no state of the loader needs to be saved in a checkpoint.
 */
#include "data/data.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { ALIGN = 64 };

struct tr_loader {
    const struct tr_data *d;
    struct tr_loader_shape shape;
    uint64_t first_step, last_step, total_samples;
    struct tr_step_batch *slots;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_ready, n_free, n_taken; /* step numbers: first not ready, first without a slot, first not taken */
    bool is_closing;
    enum tr_status failed; /* the error with which the thread ended */
    char why[512];
};

/* ---- memory: one function computes the size and, when base is given, the addresses ---- */

struct loader_layout {
    unsigned char *base;
    size_t n;
    bool is_ok;
};

static void *place(struct loader_layout *l, size_t count, size_t size)
{
    size_t bytes, end;
    void *p = l->base ? l->base + l->n : NULL;
    if (!l->is_ok || !tr_mul_size(count, size, &bytes) || bytes > SIZE_MAX - ALIGN ||
        !tr_add_size(l->n, tr_round_up(bytes, ALIGN), &end)) {
        l->is_ok = false;
        return NULL;
    }
    l->n = end;
    return p;
}

static void lay_out_slot(struct loader_layout *l, const struct tr_loader_shape *s, struct tr_step_batch *slot)
{
    size_t n_micro = (size_t)(s->n_rows / s->micro_rows), n = (size_t)(s->micro_rows * s->row_tokens);
    struct tr_batch *micro = place(l, n_micro, sizeof *micro);
    int64_t *counts = place(l, n_micro, sizeof *counts);
    for (size_t i = 0; i < n_micro && l->is_ok; i++) {
        struct tr_batch b = { 0 };
        for (int k = 0; k < TR_B_COUNT; k++)
            tr_batch_set(&b, (enum tr_batch_slot)k, place(l, n, tr_batch_elem_bytes((enum tr_batch_slot)k)));
        if (l->base)
            micro[i] = b;
    }
    if (l->base)
        *slot = (struct tr_step_batch){ .n_micro = (int64_t)n_micro, .micro = micro, .n_micro_targets = counts };
}

static struct tr_loader *lay_out(struct loader_layout *l, const struct tr_loader_shape *s)
{
    struct tr_loader *loader = place(l, 1, sizeof *loader);
    struct tr_step_batch *slots = place(l, (size_t)s->depth, sizeof *slots);
    for (int64_t i = 0; i < s->depth && l->is_ok; i++)
        lay_out_slot(l, s, l->base ? &slots[i] : NULL);
    if (loader)
        loader->slots = slots;
    return loader;
}

static bool is_legal(const struct tr_loader_shape *s)
{
    return s->row_tokens >= 1 && s->row_tokens <= INT32_MAX && s->micro_rows >= 1 &&
           s->micro_rows <= INT32_MAX / s->row_tokens && s->batch_rows >= 1 && s->batch_rows <= INT32_MAX &&
           s->first_row >= 0 && s->n_rows >= 1 && s->first_row <= s->batch_rows &&
           s->n_rows <= s->batch_rows - s->first_row && s->n_rows % s->micro_rows == 0 && s->depth >= 2 &&
           s->depth <= 1024;
}

size_t tr_loader_bytes(const struct tr_loader_shape *shape)
{
    struct loader_layout l = { .is_ok = true };
    if (!is_legal(shape))
        return 0;
    lay_out(&l, shape);
    return l.is_ok ? l.n : 0;
}

/* ---- the thread ---- */

static enum tr_status fill_in_rows(const struct tr_data *d, uint64_t first_sample, int64_t n_rows,
                                   uint64_t total_samples, struct tr_batch *out, int64_t *n_targets)
{
    return tr_data_fill(d, first_sample, n_rows, total_samples, out, n_targets);
}

static enum tr_status fill_step(struct tr_loader *l, uint64_t step)
{
    const struct tr_loader_shape *s = &l->shape;
    struct tr_step_batch *slot = &l->slots[step % (uint64_t)s->depth];
    slot->step = step;
    slot->first_sample = step * (uint64_t)s->batch_rows;
    uint64_t left = l->total_samples > slot->first_sample ? l->total_samples - slot->first_sample : 0;
    slot->n_samples = left < (uint64_t)s->batch_rows ? left : (uint64_t)s->batch_rows;
    slot->n_targets_local = 0;
    TR_PASS(tr_failpoint("data.load_step"));
    for (int64_t i = 0; i < slot->n_micro; i++) {
        uint64_t first = slot->first_sample + (uint64_t)(s->first_row + i * s->micro_rows);
        TR_PASS((s->is_dense ? tr_data_fill_dense : fill_in_rows)(l->d, first, s->micro_rows, l->total_samples,
                                                                  &slot->micro[i], &slot->n_micro_targets[i]));
        slot->n_targets_local += slot->n_micro_targets[i];
    }
    /* The rows of the other ranks: before and after this slice. */
    int64_t before = 0, after = 0, end_row = s->first_row + s->n_rows;
    TR_PASS(tr_data_count(l->d, slot->first_sample, s->first_row, l->total_samples, &before));
    TR_PASS(
        tr_data_count(l->d, slot->first_sample + (uint64_t)end_row, s->batch_rows - end_row, l->total_samples, &after));
    slot->n_targets = before + slot->n_targets_local + after;
    return TR_OK;
}

static void *run(void *arg)
{
    struct tr_loader *l = arg;
    enum tr_status st = TR_OK;
    pthread_mutex_lock(&l->lock);
    while (st == TR_OK && !l->is_closing && l->n_ready < l->last_step) {
        if (l->n_ready == l->n_free) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        uint64_t step = l->n_ready;
        pthread_mutex_unlock(&l->lock);
        st = fill_step(l, step);
        pthread_mutex_lock(&l->lock);
        if (st == TR_OK)
            l->n_ready++;
        else
            (void)tr_format(l->why, sizeof l->why, "step %" PRIu64 ": %s", step, tr_error_text());
        l->failed = st;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- open, next, close ---- */

static enum tr_status check_open(const struct tr_data *d, const struct tr_loader_shape *shape, uint64_t first_step,
                                 uint64_t last_step, uint64_t total_samples, const void *mem, size_t n_mem,
                                 size_t n_need)
{
    if (n_need == 0 || shape->row_tokens != tr_data_row_tokens(d))
        return tr_fail(TR_USAGE,
                       "loader: rows [%" PRId64 ", +%" PRId64 ") of %" PRId64 " in micro-batches of %" PRId64
                       " x %" PRId64 " tokens, depth %" PRId64 ", are not a legal shape",
                       shape->first_row, shape->n_rows, shape->batch_rows, shape->micro_rows, shape->row_tokens,
                       shape->depth);
    if (last_step < first_step || last_step > (uint64_t)INT64_MAX / (uint64_t)shape->batch_rows)
        return tr_fail(TR_USAGE, "loader: steps %" PRIu64 " to %" PRIu64 " are out of range", first_step, last_step);
    if (total_samples < (uint64_t)(shape->batch_rows / shape->n_rows))
        return tr_fail(TR_USAGE,
                       "%" PRIu64 " samples are fewer than the %" PRId64 " ranks that share them; give more data",
                       total_samples, shape->batch_rows / shape->n_rows);
    if (!mem || n_mem < n_need || (uintptr_t)mem % ALIGN != 0)
        return tr_fail(TR_USAGE, "loader: the memory must be %zu bytes aligned to %d; %zu bytes were given", n_need,
                       ALIGN, n_mem);
    return TR_OK;
}

enum tr_status tr_loader_open(const struct tr_data *d, const struct tr_loader_shape *shape, uint64_t first_step,
                              uint64_t last_step, uint64_t total_samples, void *mem, size_t n_mem,
                              struct tr_loader **out)
{
    size_t n_need = tr_loader_bytes(shape);
    TR_PASS(check_open(d, shape, first_step, last_step, total_samples, mem, n_mem, n_need));
    memset(mem, 0, n_need); /* faults the pages in now, not during the first steps */
    struct loader_layout layout = { .base = mem, .is_ok = true };
    struct tr_loader *l = lay_out(&layout, shape);
    l->d = d;
    l->shape = *shape;
    l->first_step = l->n_ready = l->n_taken = first_step;
    l->n_free = first_step + (uint64_t)shape->depth;
    l->last_step = last_step;
    l->total_samples = total_samples;
    pthread_mutex_init(&l->lock, NULL);
    tr_cond_init(&l->changed);
    int rc = pthread_create(&l->thread, NULL, run, l);
    if (rc != 0) {
        pthread_cond_destroy(&l->changed);
        pthread_mutex_destroy(&l->lock);
        return tr_fail(TR_NOMEM, "loader: the thread could not be started: %s", strerror(rc));
    }
    *out = l;
    return TR_OK;
}

enum tr_status tr_loader_next(struct tr_loader *l, struct tr_step_batch **out, int64_t wait_us)
{
    int64_t until_us = tr_clock_us() + tr_max64(wait_us, 0);
    enum tr_status st = TR_OK;
    int rc = 0;
    pthread_mutex_lock(&l->lock);
    /* The slot that the caller held is free now. A call after a timeout frees no further slot. */
    l->n_free = l->n_taken + (uint64_t)l->shape.depth;
    pthread_cond_broadcast(&l->changed);
    while (l->n_taken < l->last_step && l->n_taken == l->n_ready && l->failed == TR_OK && rc != ETIMEDOUT)
        rc = tr_cond_wait_until(&l->changed, &l->lock, until_us);
    if (l->n_taken == l->last_step) {
        *out = NULL;
    } else if (l->n_taken < l->n_ready) {
        *out = &l->slots[l->n_taken++ % (uint64_t)l->shape.depth];
    } else if (l->failed != TR_OK) {
        st = tr_fail(l->failed, "%s", l->why);
    } else {
        st = tr_fail(TR_TIMEOUT, "the data loader did not finish step %" PRIu64 " within %" PRId64 " us", l->n_taken,
                     wait_us);
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

void tr_loader_close(struct tr_loader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->is_closing = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
}
