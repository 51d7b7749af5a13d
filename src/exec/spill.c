/* spill.c - states and frozen parameters that live in a file: a fetch reads into a buffer on the host and copies from
 * there, a store copies there and writes.
 *
 * A thread of the disk reads ahead while earlier actions run. The copy that follows is issued when the first action
 * waits for the fetch, a write when the next store is posted or something waits for this one: then the thread that
 * issues waits for the disk, or for the copy. A buffer is used again when its copy, or its write, is over.
 */
#include "exec/exec_impl.h"

static char *buffer(const struct tr_exec *e, bool is_write, int job)
{
    return e->buffers + (size_t)(is_write * TR_DISK_JOBS + job) * e->c->memory.disk_buffer;
}

enum tr_status tr_exec_spill_open(struct tr_exec *e)
{
    size_t each = e->c->memory.disk_buffer, host = (size_t)(uintptr_t)(e->base[TR_A_HOST] + e->c->memory.disk_buffers);
    if (e->c->memory.bytes[TR_A_DISK] == 0)
        return TR_OK;
    e->buffers = e->base[TR_A_HOST] + e->c->memory.disk_buffers + (tr_round_up(host, TR_DISK_ALIGN) - host);
    TR_PASS(tr_spill_open(e->c->opt.offload_dir, e->c->memory.bytes[TR_A_DISK], e->buffers, 2 * TR_DISK_JOBS * each,
                          &e->disk));
    e->base[TR_A_DISK] = tr_spill_base(e->disk);
    return TR_OK;
}

enum tr_status tr_exec_spill_finish(struct tr_exec *e, int action)
{
    struct tr_posted *p = &e->posted[action];
    int job = p->job;
    if (p->disk == TR_DISK_READS) {
        TR_PASS(tr_spill_wait(e->disk, false, job));
        tr_device_copy(e->dev, TR_STREAM_IN, p->memory, buffer(e, false, job), p->bytes);
        tr_stream_record(e->dev, TR_STREAM_IN, e->copied[action]);
    } else if (p->disk == TR_DISK_WRITES) {
        tr_stream_wait(e->dev, TR_STREAM_HOST, e->copied[action]);
        tr_spill_start(e->disk, true, job, p->at, buffer(e, true, job), tr_round_up(p->bytes, TR_DISK_ALIGN));
    }
    p->disk = TR_DISK_IDLE;
    return TR_OK;
}

/* Makes the buffer of the next job of a direction free: that of the action that used it last. */
static enum tr_status free_buffer(struct tr_exec *e, bool is_write, int *job)
{
    *job = (int)(e->n_disk_jobs[is_write]++ % TR_DISK_JOBS);
    int last = e->disk_user[is_write][*job] - 1;
    if (last >= 0) {
        TR_PASS(tr_exec_spill_finish(e, last));
        tr_stream_wait(e->dev, TR_STREAM_HOST, e->copied[last]);
    }
    return tr_spill_wait(e->disk, is_write, *job);
}

enum tr_status tr_exec_spill_post(struct tr_run *r, const struct tr_action *a, bool is_write, size_t at, char *memory)
{
    struct tr_exec *e = r->e;
    int i = (int)(a - r->s->action), job = 0;
    size_t bytes = r->s->buffer[a->use[0].buffer].bytes;
    TR_BUG_ON(e->posted[i].is_copy || bytes > e->c->memory.disk_buffer);
    TR_PASS(free_buffer(e, is_write, &job));
    int before = e->disk_user[is_write][(job + TR_DISK_JOBS - 1) % TR_DISK_JOBS] - 1;
    if (is_write && before >= 0)
        TR_PASS(tr_exec_spill_finish(e, before));
    e->disk_user[is_write][job] = i + 1;
    tr_stream_record(e->dev, TR_STREAM_COMPUTE, e->computed);
    tr_stream_wait(e->dev, a->stream, e->computed);
    if (is_write) {
        tr_device_copy(e->dev, a->stream, buffer(e, true, job), memory, bytes);
        tr_stream_record(e->dev, a->stream, e->copied[i]);
    } else {
        tr_spill_start(e->disk, false, job, at, buffer(e, false, job), tr_round_up(bytes, TR_DISK_ALIGN));
    }
    e->posted[i] = (struct tr_posted){ .is_copy = true,
                                       .disk = is_write ? TR_DISK_WRITES : TR_DISK_READS,
                                       .job = job,
                                       .at = at,
                                       .memory = memory,
                                       .bytes = bytes };
    e->n_posted++;
    return TR_OK;
}

enum tr_status tr_exec_spill_drain(struct tr_exec *e)
{
    memset(e->disk_user, 0, sizeof e->disk_user); /* every action was waited for */
    return e->disk ? tr_spill_sync(e->disk) : TR_OK;
}

void tr_exec_changed(struct tr_exec *e, enum tr_state what, int param)
{
    int bucket = e->c->place.param[param].bucket;
    if (e->disk && bucket >= 0 && tr_state_arena(&e->c->place, (int)what, bucket) == TR_A_DISK)
        tr_spill_changed(e->disk, what == TR_S_VALUE ? e->c->memory.bucket[bucket].state[TR_S_VALUE]
                                                     : e->c->memory.bucket[bucket].host);
}
