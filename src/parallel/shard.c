/* shard.c - level-2 pass: which buckets an action reads and writes, and when parameters that are not on the device come
 * and go.
 *
 * zero 0 to 2: every rank holds all parameters of its stages. zero 3: a rank holds its shard. A bucket is gathered in
 * front of the first action that reads it and freed after that action, unless the next reader needs it too. A bucket
 * whose parameters live on the host is brought in the same way. The pass `overlap` posts both earlier.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

struct shard_pass {
    struct tr_emit e;
    int zero;
    int *whole; /* by bucket: the slot that holds its whole parameters, -1: none */
};

/* Finds the buckets of the parameters that a segment reads. Buckets of parameters that learn come first. */
static void find_buckets(const struct shard_pass *p, struct tr_action *a)
{
    const struct tr_model *m = p->e.s->model;
    const struct tr_segment *seg = &m->segment[a->segment];
    int n_params = m->program[seg->program]->n_params;
    a->n_buckets = 0;
    for (int k = 0; k < 2 * n_params; k++) {
        int bucket = p->e.c->place.param[seg->param[k % n_params]].bucket, i = 0;
        if (tr_bucket_is_frozen(m, bucket) != (k >= n_params))
            continue;
        while (i < a->n_buckets && a->bucket[i] != bucket)
            i++;
        TR_BUG_ON(i == TR_MAX_BUCKETS);
        if (i == a->n_buckets)
            a->bucket[a->n_buckets++] = bucket;
    }
}

static const struct tr_action *next_reader(const struct shard_pass *p, int i)
{
    for (i++; i < p->e.n_from; i++)
        if (tr_action_reads_params(&p->e.from[i]))
            return &p->e.from[i];
    return NULL;
}

static bool comes_and_goes(const struct shard_pass *p, int bucket)
{
    return p->zero >= 3 || p->e.c->place.is_value_on_host[bucket];
}

static void gather_or_bring(struct shard_pass *p, int bucket, int micro)
{
    const struct tr_placement *place = &p->e.c->place;
    size_t bytes = tr_bucket_bytes(place, bucket, place->bucket[bucket].n);
    enum tr_action_kind kind = place->is_value_on_host[bucket] ? TR_DO_BRING : TR_DO_GATHER;
    struct tr_action *a = tr_emit_new(&p->e, kind, TR_PART_GRADIENTS, -1, micro);
    a->of = a->bucket[0] = bucket;
    a->n_buckets = 1;
    p->whole[bucket] = tr_slot_add(&p->e, TR_BUF_VALUES, bucket, bytes);
    tr_use_add(a, p->whole[bucket], TR_AS_VALUE, true)->takes = true;
    (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_VALUE, bucket), TR_AS_OTHER, false);
}

static void pass_compute(struct shard_pass *p, int i)
{
    const struct tr_action *next = next_reader(p, i);
    const struct tr_action *from = &p->e.from[i];
    bool is_reader = tr_action_reads_params(from);
    for (int k = 0; is_reader && k < from->n_buckets; k++)
        if (comes_and_goes(p, from->bucket[k]) && p->whole[from->bucket[k]] < 0)
            gather_or_bring(p, from->bucket[k], from->micro);
    struct tr_action *a = tr_emit(&p->e, from);
    for (int k = 0; k < a->n_buckets && is_reader; k++) {
        int bucket = a->bucket[k];
        bool is_slot = comes_and_goes(p, bucket);
        int buffer = is_slot ? p->whole[bucket] : tr_fixed_buffer(p->e.s, TR_BUF_VALUE, bucket);
        tr_use_add(a, buffer, TR_AS_VALUE, false)->index = (uint8_t)k;
        if (is_slot && (!next || !tr_action_has_bucket(next, bucket))) {
            tr_use_free(a, buffer);
            p->whole[bucket] = -1;
        }
    }
}

enum tr_status tr_pass_shard(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct shard_pass p = { .zero = c->opt.layout.zero };
    TR_PASS(TR_ALLOC(p.whole, (size_t)c->place.n_buckets, "a schedule"));
    for (int i = 0; i < c->place.n_buckets; i++)
        p.whole[i] = -1;
    tr_emit_begin(&p.e, c, s);
    for (int i = 0; i < p.e.n_from; i++)
        if (tr_action_has_program(&p.e.from[i]))
            find_buckets(&p, &p.e.from[i]);
    for (int i = 0; i < p.e.n_from; i++)
        if (tr_action_has_program(&p.e.from[i]))
            pass_compute(&p, i);
        else
            (void)tr_emit(&p.e, &p.e.from[i]);
    free(p.whole);
    return tr_emit_end(&p.e);
}
