/* offload.c - level-2 pass: optimizer state and master weights that live on the host.
 *
 * The states of a bucket are fetched into a slot on the device, updated there by the kernel that would update them in
 * place, and stored. Fetches and stores run on streams of their own, so that one bucket comes while another is updated
 * and a third goes. SLOTS buckets are on the device at once: a fetch waits for the store that frees its slot. The
 * stores of the last buckets run on behind the next step, whose first fetch waits for them.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

enum { SLOTS = 3 };

/* Bytes of MASTER and of the optimizer's states of a bucket, as place.c lays them out side by side. */
size_t tr_bucket_state_bytes(const struct tr_placement *p, int bucket)
{
    const struct tr_bucket *f = &p->bucket[bucket];
    size_t sum = 0;
    if (tr_bucket_segment(p->model, bucket) == p->model->n_segments + 1) /* the second use has gradients only */
        return 0;
    for (int s = TR_S_MASTER; s < p->states.n; s++) {
        const struct tr_state_row *r = &p->states.row[s];
        int64_t n = r->is_sharded ? f->shard_n : f->n;
        if (tr_states_has(&p->states, s, tr_bucket_fate(p->model, bucket)))
            sum += tr_round_up((size_t)(n / r->block) * tr_dtype_bytes(r->dtype), TR_ALIGN);
    }
    return sum;
}

/* Buckets in the order of updates: those of a segment, then those that learn apart. */
static int bucket_at(const struct tr_placement *p, int i)
{
    int n_fates = p->n_buckets / (p->model->n_segments + 2) > TR_LEARNS_APART ? 2 : 1;
    return tr_fate_bucket(p->model, i % n_fates ? TR_LEARNS_APART : TR_LEARNS, i / n_fates);
}

static int bucket_count(const struct tr_placement *p)
{
    int n_fates = p->n_buckets / (p->model->n_segments + 2) > TR_LEARNS_APART ? 2 : 1;
    return n_fates * (p->model->n_segments + 1);
}

/* The first buckets stay on the device: the forward needs their new parameters first. */
void tr_offload_choose(struct tr_placement *p, double share)
{
    size_t total = 0, kept = 0;
    for (int i = 0; i < bucket_count(p); i++)
        total += tr_bucket_state_bytes(p, bucket_at(p, i));
    for (int i = 0; i < bucket_count(p); i++) {
        int bucket = bucket_at(p, i);
        size_t bytes = tr_bucket_state_bytes(p, bucket);
        bool stays = (double)(kept + bytes) <= (1 - share) * (double)total;
        p->is_on_host[bucket] = share > 0 && !stays && bytes > 0;
        kept += p->is_on_host[bucket] ? total : bytes; /* after the first that goes, all go */
    }
}

struct offload_pass {
    struct tr_emit e;
    int *bucket, *slot, n; /* of the updates in order */
    int n_slots;
};

static struct tr_action *copy(struct offload_pass *p, enum tr_action_kind kind, int k)
{
    struct tr_action *a = tr_emit_new(&p->e, kind, TR_PART_UPDATE, -1, 0);
    a->of = a->bucket[0] = p->bucket[k];
    a->n_buckets = 1;
    tr_use_add(a, p->slot[k], TR_AS_STATE, kind == TR_DO_FETCH)->takes = kind == TR_DO_FETCH;
    (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_HOST, p->bucket[k]), TR_AS_OTHER, kind == TR_DO_STORE);
    return a;
}

static void fetch(struct offload_pass *p, int k)
{
    if (k >= p->n)
        return;
    p->slot[k] = tr_slot_add(&p->e, TR_BUF_STATES, p->bucket[k], tr_bucket_state_bytes(&p->e.c->place, p->bucket[k]));
    struct tr_action *a = copy(p, TR_DO_FETCH, k);
    if (k >= p->n_slots)
        a->bucket[a->n_buckets++] = p->bucket[k - p->n_slots];
    for (int i = 0; k == 0 && i < p->n_slots; i++)
        a->bucket[a->n_buckets++] = p->bucket[p->n - p->n_slots + i];
}

static void update(struct offload_pass *p, const struct tr_action *from, int k)
{
    struct tr_action a = *from;
    int fixed = tr_fixed_buffer(p->e.s, TR_BUF_STATE, a.of);
    for (int i = 0; k == 0 && i < p->n_slots; i++)
        fetch(p, i);
    for (int i = 0; i < a.n_uses; i++)
        if (a.use[i].buffer == fixed) {
            a.use[i].buffer = p->slot[k];
            a.use[i].role = TR_AS_STATE;
        }
    (void)tr_emit(&p->e, &a);
    tr_use_free(copy(p, TR_DO_STORE, k), p->slot[k]);
    fetch(p, k + p->n_slots);
}

static bool is_offloaded(const struct tr_compiled *c, const struct tr_action *a)
{
    return a->kind == TR_DO_UPDATE && c->place.is_on_host[a->of];
}

enum tr_status tr_pass_offload(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct offload_pass p = { .n = 0 };
    int k = 0;
    for (int i = 0; i < s->n_actions; i++)
        p.n += is_offloaded(c, &s->action[i]);
    if (p.n == 0)
        return TR_OK;
    p.n_slots = p.n < SLOTS ? p.n : SLOTS;
    p.bucket = calloc(2 * (size_t)p.n, sizeof *p.bucket);
    if (!p.bucket)
        return tr_fail(TR_NOMEM, "schedule: out of memory");
    p.slot = p.bucket + p.n;
    for (int i = 0; i < s->n_actions; i++)
        if (is_offloaded(c, &s->action[i]))
            p.bucket[k++] = s->action[i].of;
    tr_emit_begin(&p.e, c, s);
    k = 0;
    for (int i = 0; i < p.e.n_from; i++)
        if (is_offloaded(c, &p.e.from[i]))
            update(&p, &p.e.from[i], k++);
        else
            (void)tr_emit(&p.e, &p.e.from[i]);
    free(p.bucket);
    return tr_emit_end(&p.e);
}
