/* update.c - level-2 pass: what follows the gradients of a step. The remaining sums, norm, losses, clip factor and
 * optimizer, and with zero 1 and 2 the gather of new parameters on all ranks. */
#include "parallel/parallel_impl.h"

static struct tr_action *add(struct tr_emit *e, enum tr_action_kind kind, enum tr_step_part part, int of)
{
    struct tr_action *a = tr_emit_new(e, kind, part, -1, 0);
    a->of = of;
    if (of >= 0) {
        a->n_buckets = 1;
        a->bucket[0] = of;
    }
    return a;
}

static void use(struct tr_emit *e, struct tr_action *a, enum tr_region region, bool writes)
{
    bool has_bucket = region >= TR_BUF_VALUE && region <= TR_BUF_LEVELS;
    (void)tr_use_add(a, tr_fixed_buffer(e->s, region, has_bucket ? a->of : -1),
                     region == TR_BUF_VALUE  ? TR_AS_VALUE
                     : region == TR_BUF_GRAD ? TR_AS_GRAD
                                             : TR_AS_OTHER,
                     writes);
}

/* Sums the gradients of both uses of tied embeddings, then those of parameters whose gradients are partial sums. */
static void finish_sums(struct tr_emit *e)
{
    const struct tr_placement *p = &e->c->place;
    for (int shared = p->model->n_segments; shared < p->n_buckets; shared += p->model->n_segments + 2) {
        if (tr_bucket_is_frozen(p->model, shared) || p->bucket[shared].n == 0)
            continue;
        struct tr_action *a = add(e, TR_DO_TIE, TR_PART_GRADIENTS, shared);
        use(e, a, TR_BUF_GRAD, true);
        if (p->bucket[shared + 1].n > 0)
            (void)tr_use_add(a, tr_fixed_buffer(e->s, TR_BUF_GRAD, shared + 1), TR_AS_OTHER, false);
    }
    for (int b = 0; b < p->n_buckets; b++)
        if (p->bucket[b].n_partial > 0) {
            struct tr_action *a = add(e, TR_DO_REDUCE, TR_PART_GRADIENTS, b);
            a->hop = p->bucket[b].n_hops - 1;
            a->is_first = true; /* the result goes to its final place */
            use(e, a, TR_BUF_GRAD, true);
        }
}

static void update(struct tr_emit *e, int bucket)
{
    int zero = e->c->opt.layout.zero;
    struct tr_action *a = add(e, TR_DO_UPDATE, TR_PART_UPDATE, bucket);
    use(e, a, TR_BUF_STEP, false);
    use(e, a, TR_BUF_GRAD, false);
    use(e, a, TR_BUF_STATE, true);
    use(e, a, TR_BUF_VALUE, true);
    if ((zero == 1 || zero == 2) && e->c->place.bucket[bucket].n > 0)
        use(e, add(e, TR_DO_GATHER, TR_PART_UPDATE, bucket), TR_BUF_VALUE, true);
}

static bool has_amax(const struct tr_schedule *s)
{
    for (int i = 0; i < s->n_programs; i++)
        for (int v = 0; v < s->program[i]->n_values; v++)
            if (s->program[i]->value[v].kind == TR_V_AMAX)
                return true;
    return false;
}

/* Are all parameters of this segment of another fate than those of the bucket? */
static bool is_all_elsewhere(const struct tr_placement *p, int bucket)
{
    bool has_others = false;
    for (int b = bucket + p->model->n_segments + 2; b < p->n_buckets; b += p->model->n_segments + 2)
        has_others |= p->bucket[b].n > 0;
    return p->bucket[bucket].n == 0 && has_others;
}

enum tr_status tr_pass_update(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct tr_emit e;
    const struct tr_placement *p = &c->place;
    int n = p->model->n_segments;
    if (s->purpose != TR_FOR_TRAIN)
        return TR_OK;
    bool with_amax = has_amax(s);
    tr_emit_begin(&e, c, s);
    if (with_amax)
        use(&e, add(&e, TR_DO_AMAX_IN, TR_PART_BEGIN, -1), TR_BUF_AMAX, true);
    for (int i = 0; i < e.n_from; i++)
        (void)tr_emit(&e, &e.from[i]);
    finish_sums(&e);
    use(&e, add(&e, TR_DO_NORM, TR_PART_MEASURE, -1), TR_BUF_NORM, true);
    use(&e, add(&e, TR_DO_LOSS, TR_PART_MEASURE, -1), TR_BUF_LOSS, false);
    struct tr_action *clip = add(&e, TR_DO_CLIP, TR_PART_MEASURE, -1);
    use(&e, clip, TR_BUF_NORM, false);
    use(&e, clip, TR_BUF_STEP, true);
    for (int b = 0; b <= n; b++) {
        int apart = tr_fate_bucket(p->model, TR_LEARNS_APART, b);
        if (b < n ? tr_segment_is_here(p, b) && !is_all_elsewhere(p, b) : p->bucket[b].n > 0)
            update(&e, b);
        if (apart < p->n_buckets && p->bucket[apart].n > 0)
            update(&e, apart);
    }
    if (with_amax)
        use(&e, add(&e, TR_DO_AMAX_OUT, TR_PART_END, -1), TR_BUF_AMAX, false);
    return tr_emit_end(&e);
}
