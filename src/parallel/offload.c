/* offload.c - what lives on the host: the choice of buckets, and a level-2 pass for optimizer state and master weights.
 * Frozen parameters that live there come and go as zero 3's do (shard.c).
 *
 * The states of a bucket are fetched into a slot on the device, updated there by the kernel that would update them in
 * place, and stored. Fetches and stores run on streams of their own, so that one bucket comes while another is updated
 * and a third goes. SLOTS buckets are on the device at once: a fetch waits for the store that frees its slot, and the
 * first fetch of a step for the last stores of the step before.
 *
 * An update waits for the next step and runs in front of the first forward that reads the bucket: the copies of later
 * buckets hide behind the forwards of earlier ones. Gradients stay where they are until a backward overwrites them,
 * which is later. With ZeRO the new parameters travel to other ranks first, so there the update runs one forward
 * earlier. Where parameters that learn live on the host themselves, they are fetched and stored with their states, and
 * come back as frozen ones do, behind the store. Where gradients live there too, the host may make the update itself
 * (offload_update), and nothing is fetched or stored.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

enum { SLOTS = 3, MOST_AHEAD = 3 };

static bool has_value_on_host(const struct tr_placement *p, int bucket)
{
    return p->is_value_on_host[bucket] && !tr_bucket_is_frozen(p->model, bucket);
}

size_t tr_bucket_grad_bytes_on_host(const struct tr_placement *p, int bucket)
{
    size_t size = tr_dtype_bytes(p->states.row[TR_S_GRAD].dtype);
    return p->is_grad_on_host[bucket] ? tr_round_up((size_t)p->bucket[bucket].n * size, TR_ALIGN) : 0;
}

/* Bytes of MASTER and of the optimizer's states of a bucket, as place.c lays them out side by side, behind the
 * gradients and the parameters where those are on the host too. */
size_t tr_bucket_state_bytes(const struct tr_placement *p, int bucket)
{
    const struct tr_bucket *f = &p->bucket[bucket];
    if (tr_bucket_segment(p->model, bucket) == p->model->n_segments + 1) /* the second use has gradients only */
        return 0;
    size_t sum = tr_bucket_grad_bytes_on_host(p, bucket);
    sum += has_value_on_host(p, bucket) ? tr_round_up(tr_bucket_bytes(p, bucket, f->n), TR_ALIGN) : 0;
    for (int s = TR_S_MASTER; s < p->states.n; s++) {
        const struct tr_state_row *r = &p->states.row[s];
        int64_t n = r->shape != TR_PER_BLOCK ? f->n_by[r->shape] : r->is_sharded ? f->shard_n : f->n;
        if (tr_states_has(&p->states, s, tr_bucket_fate(p->model, bucket)))
            sum += tr_round_up((size_t)(n / r->block) * tr_dtype_bytes(r->dtype), TR_ALIGN);
    }
    return sum;
}

/* Bytes of the parameters of a bucket. */
static size_t value_bytes(const struct tr_placement *p, int bucket)
{
    return tr_bucket_bytes(p, bucket, p->bucket[bucket].n);
}

/* Marks the buckets of two fates whose bytes go to the host. The first buckets stay on the device: the forward needs
 * them first, and the backward last, so they are there when a step begins and when it ends. */
static void choose(struct tr_placement *p, enum tr_fate fate, size_t (*bytes_of)(const struct tr_placement *p, int),
                   double share, bool *is_on_host)
{
    int each = p->model->n_segments + 2, n_fates = (int)tr_min64(p->n_buckets / each - (int)fate, 2);
    size_t total = 0, kept = 0;
    for (int k = 0; k < n_fates; k++)
        for (int g = 0; g < each; g++)
            total += bytes_of(p, ((int)fate + k) * each + g);
    for (int i = 0; i < n_fates * each; i++) { /* segment by segment, both fates */
        int bucket = tr_fate_bucket(p->model, (enum tr_fate)((int)fate + i % n_fates), i / n_fates);
        size_t bytes = bytes_of(p, bucket);
        bool stays = (double)(kept + bytes) <= (1 - share) * (double)total;
        is_on_host[bucket] = share > 0 && !stays && bytes > 0;
        kept += is_on_host[bucket] ? total : bytes; /* after the first that goes, all go */
    }
}

/* Gradients that several ranks or both ends of a pipeline have a part of are summed after the last backward: those
 * stay. */
static bool may_take_grads(const struct tr_placement *p, int bucket)
{
    const struct tr_layout *l = p->layout;
    return l->zero == 0 && !l->in_order && l->size[TR_AXIS_TP] * l->size[TR_AXIS_CP] == 1 && !p->has_states_on_disk &&
           tr_bucket_segment(p->model, bucket) < p->model->n_segments;
}

void tr_offload_choose(struct tr_placement *p, const struct tr_compile_options *o)
{
    bool takes_values = !o->is_frozen && o->offload_param_share > 0 && p->layout->zero == 0 && !p->has_states_on_disk &&
                        !p->has_values_on_disk; /* they travel with their states, between the device and the host */
    for (int b = 0; b < p->n_buckets; b++)
        p->is_value_on_host[b] = p->is_grad_on_host[b] = false;
    choose(p, TR_LEARNS, tr_bucket_state_bytes, o->offload_share, p->is_on_host);
    choose(p, TR_FROZEN, value_bytes, o->offload_param_share, p->is_value_on_host);
    for (int b = 0; b < p->n_buckets && !tr_bucket_is_frozen(p->model, b); b++) {
        p->is_value_on_host[b] = takes_values && p->is_on_host[b];
        p->is_grad_on_host[b] = o->offloads_grads && p->is_on_host[b] && may_take_grads(p, b);
    }
}

struct offload_pass {
    struct tr_emit e;
    struct tr_action *update; /* in the order in which they run */
    int *slot, *at;           /* by update: its slot; the position in the list in front of which it runs */
    int n, n_slots, n_done;
    struct tr_action *there; /* updates that the host makes, likewise */
    int *there_at, n_there, n_there_done;
    bool gathers; /* zero 1 and 2: every update is followed by a gather of its new parameters */
};

static int bucket_of(const struct offload_pass *p, int k)
{
    return p->update[k].of;
}

static struct tr_action *copy(struct offload_pass *p, enum tr_action_kind kind, int k)
{
    struct tr_action *a = tr_emit_new(&p->e, kind, TR_PART_GRADIENTS, -1, 0);
    a->of = a->bucket[0] = bucket_of(p, k);
    a->n_buckets = 1;
    tr_use_add(a, p->slot[k], TR_AS_STATE, kind == TR_DO_FETCH)->takes = kind == TR_DO_FETCH;
    (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_HOST, a->of), TR_AS_OTHER, kind == TR_DO_STORE);
    if (has_value_on_host(&p->e.c->place, a->of))
        (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_VALUE, a->of), TR_AS_OTHER, kind == TR_DO_STORE);
    if (p->e.c->place.is_grad_on_host[a->of] && kind == TR_DO_FETCH)
        (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_GRAD, a->of), TR_AS_OTHER, false);
    return a;
}

static void fetch(struct offload_pass *p, int k)
{
    if (k >= p->n)
        return;
    p->slot[k] =
        tr_slot_add(&p->e, TR_BUF_STATES, bucket_of(p, k), tr_bucket_state_bytes(&p->e.c->place, bucket_of(p, k)));
    struct tr_action *a = copy(p, TR_DO_FETCH, k);
    if (k >= p->n_slots)
        a->bucket[a->n_buckets++] = bucket_of(p, k - p->n_slots);
    for (int i = 0; k == 0 && i < p->n_slots; i++)
        a->bucket[a->n_buckets++] = bucket_of(p, p->n - p->n_slots + i);
}

/* The next update, and the copies around it. */
static void update(struct offload_pass *p)
{
    int k = p->n_done++;
    struct tr_action a = p->update[k];
    const struct tr_placement *place = &p->e.c->place;
    int fixed = tr_fixed_buffer(p->e.s, TR_BUF_STATE, a.of), n = 0;
    int value = has_value_on_host(place, a.of) ? tr_fixed_buffer(p->e.s, TR_BUF_VALUE, a.of) : -1;
    int grad = place->is_grad_on_host[a.of] ? tr_fixed_buffer(p->e.s, TR_BUF_GRAD, a.of) : -1;
    for (int i = 0; k == 0 && i < p->n_slots; i++)
        fetch(p, i);
    for (int i = 0; i < a.n_uses; i++) {
        if (a.use[i].buffer == value || a.use[i].buffer == grad)
            continue; /* it is in the slot too */
        a.use[n] = a.use[i];
        if (a.use[n].buffer == fixed) {
            a.use[n].buffer = p->slot[k];
            a.use[n].role = TR_AS_STATE;
        }
        n++;
    }
    a.n_uses = n;
    a.part = TR_PART_GRADIENTS;
    (void)tr_emit(&p->e, &a);
    tr_use_free(copy(p, TR_DO_STORE, k), p->slot[k]);
    if (p->gathers && p->e.c->place.bucket[a.of].n > 0) {
        struct tr_action *g = tr_emit_new(&p->e, TR_DO_GATHER, TR_PART_GRADIENTS, -1, 0);
        g->of = g->bucket[0] = a.of;
        g->n_buckets = 1;
        g->is_first = true;
        (void)tr_use_add(g, tr_fixed_buffer(p->e.s, TR_BUF_VALUE, a.of), TR_AS_VALUE, true);
    }
    fetch(p, k + p->n_slots);
}

/* The next update that the host makes. Nothing travels for it: gradients of the step before have come, because the host
 * has waited for their norm, and copies of the new parameters are issued behind it. */
static void update_there(struct offload_pass *p)
{
    const struct tr_schedule *s = p->e.s;
    struct tr_action *a = tr_emit_new(&p->e, TR_DO_UPDATE_HOST, TR_PART_GRADIENTS, -1, 0);
    a->of = a->bucket[0] = p->there[p->n_there_done++].of;
    a->n_buckets = 1;
    (void)tr_use_add(a, tr_fixed_buffer(s, TR_BUF_HOST, a->of), TR_AS_OTHER, true);
    (void)tr_use_add(a, tr_fixed_buffer(s, TR_BUF_VALUE, a->of), TR_AS_OTHER, true);
    (void)tr_use_add(a, tr_fixed_buffer(s, TR_BUF_GRAD, a->of), TR_AS_OTHER, false);
}

/* An update of states on the host, or the gather behind it. */
static bool is_offloaded(const struct tr_compiled *c, const struct tr_action *a)
{
    return a->part == TR_PART_UPDATE && (a->kind == TR_DO_UPDATE || a->kind == TR_DO_GATHER) &&
           c->place.is_on_host[a->of];
}

/* The position in front of which an update of the bucket must run: that of the first reader, or the end of the reader
 * `ahead` before it: with ZeRO the second, because `overlap` posts gathers one reader ahead, and the third where
 * parameters come back from the host, two readers ahead. */
static int place_of(const struct tr_schedule *s, int bucket, int ahead)
{
    int before[MOST_AHEAD], begin = 0; /* before: the ends of the last readers */
    while (begin < s->n_actions && s->action[begin].part < TR_PART_GRADIENTS)
        begin++;
    for (int i = 0; i < MOST_AHEAD; i++)
        before[i] = begin;
    for (int i = begin; i < s->n_actions; i++) {
        const struct tr_action *a = &s->action[i];
        if (!tr_action_reads_params(a))
            continue;
        if (tr_action_has_bucket(a, bucket))
            return ahead ? before[ahead - 1] : i;
        memmove(&before[1], &before[0], (MOST_AHEAD - 1) * sizeof *before);
        before[0] = i + 1;
    }
    TR_BUG_ON(true); /* a rank holds parameters that its segments read */
    return -1;
}

/* Adds an update to a list that is sorted by the place where they run. */
static void insert(struct tr_action *update, int *place, int *n, const struct tr_action *a, int at)
{
    int k = (*n)++;
    for (; k > 0 && place[k - 1] > at; k--) {
        update[k] = update[k - 1];
        place[k] = place[k - 1];
    }
    update[k] = *a;
    place[k] = at;
}

static bool is_updated_there(const struct tr_compiled *c, int bucket)
{
    return c->opt.updates_on_host && has_value_on_host(&c->place, bucket) && c->place.is_grad_on_host[bucket];
}

static void find_order(const struct tr_compiled *c, const struct tr_schedule *s, struct offload_pass *p)
{
    int zero = c->opt.layout.zero;
    for (int i = 0; i < s->n_actions; i++)
        if (is_offloaded(c, &s->action[i]) && s->action[i].kind == TR_DO_UPDATE) {
            int ahead = has_value_on_host(&c->place, s->action[i].of) ? MOST_AHEAD : zero >= 1 ? 2 : 0;
            int at = place_of(s, s->action[i].of, ahead);
            if (is_updated_there(c, s->action[i].of))
                insert(p->there, p->there_at, &p->n_there, &s->action[i], at);
            else
                insert(p->update, p->at, &p->n, &s->action[i], at);
        }
    p->gathers = zero == 1 || zero == 2;
    p->n_slots = p->n < SLOTS ? p->n : SLOTS;
}

static bool has_offloaded(const struct tr_compiled *c, const struct tr_schedule *s)
{
    for (int i = 0; i < s->n_actions; i++)
        if (is_offloaded(c, &s->action[i]))
            return true;
    return false;
}

bool tr_defers_updates(const struct tr_schedule *s)
{
    for (int i = 0; i < s->n_actions; i++)
        if (tr_action_is_deferred(&s->action[i]))
            return true;
    return false;
}

enum tr_status tr_pass_offload(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct offload_pass p = { .n = 0 };
    if (!has_offloaded(c, s))
        return TR_OK;
    p.update = calloc(2 * (size_t)s->n_actions, sizeof *p.update);
    p.slot = calloc(3 * (size_t)s->n_actions, sizeof *p.slot);
    enum tr_status st = p.update && p.slot ? TR_OK : tr_fail(TR_NOMEM, "schedule: out of memory");
    if (st == TR_OK) {
        p.there = p.update + s->n_actions;
        p.at = p.slot + s->n_actions;
        p.there_at = p.at + s->n_actions;
        find_order(c, s, &p);
        tr_emit_begin(&p.e, c, s);
        for (int i = 0; i < p.e.n_from; i++) {
            while (p.n_there_done < p.n_there && p.there_at[p.n_there_done] <= i)
                update_there(&p);
            while (p.n_done < p.n && p.at[p.n_done] <= i)
                update(&p);
            if (!is_offloaded(c, &p.e.from[i]))
                (void)tr_emit(&p.e, &p.e.from[i]);
        }
        st = tr_emit_end(&p.e);
    }
    free(p.update);
    free(p.slot);
    return st;
}
