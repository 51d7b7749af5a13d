/* bucket.c - buckets: which parameters are gathered, reduced and sharded at once, in which order they lie there, and
 * which elements of each this rank owns. */
#include "parallel/parallel_impl.h"

/* Finds the bucket of each parameter: that of the first segment of this rank that uses it. A parameter that another
 * stage's rank uses too lies in the bucket after the last segment; both ranks divide that bucket into the same shards.
 * A parameter that only other ranks use has no bucket here. */
static void find_places(struct tr_placement *p)
{
    const struct tr_model *m = p->model;
    int shared = m->n_segments, n_ranks = p->layout->size[TR_AXIS_PP];
    for (int i = 0; i < m->n_params; i++)
        p->param[i] = (struct tr_param_place){ .bucket = -1, .stage = -1 };
    for (int g = 0; g < m->n_segments; g++)
        for (int k = 0; k < m->program[m->segment[g].program]->n_params; k++) {
            struct tr_param_place *at = &p->param[m->segment[g].param[k]];
            bool is_elsewhere =
                at->stage >= 0 && (at->stage % n_ranks != p->stage_of[g] % n_ranks || p->layout->in_order);
            /* only the first and the last stage share parameters */
            TR_BUG_ON(is_elsewhere && (at->stage != 0 || p->stage_of[g] != p->n_stages - 1));
            if (at->stage < 0)
                at->stage = p->stage_of[g];
            if (is_elsewhere && (at->bucket >= 0 || tr_segment_is_here(p, g)))
                at->bucket = shared;
            else if (at->bucket < 0 && tr_segment_is_here(p, g))
                at->bucket = g;
        }
    for (int i = 0; i < m->n_params; i++) {
        struct tr_param_place *at = &p->param[i];
        enum tr_fate fate = (enum tr_fate)p->fate_of[i];
        if (at->bucket < 0)
            continue;
        at->bucket = tr_fate_bucket(m, fate, at->bucket);
        if (fate == TR_PACKED)
            p->bucket[at->bucket].packed = (enum tr_packed)p->packed_of[i];
    }
}

int tr_bucket_next(const struct tr_placement *p, int i)
{
    const struct tr_model *m = p->model;
    if (!p->matrices_first)
        return i + 1;
    bool is_matrix = i < 0 || m->param[i].n_dims == 2;
    for (i++; i < m->n_params && (m->param[i].n_dims == 2) != is_matrix;)
        i++;
    if (i == m->n_params && is_matrix) /* matrices come first; vectors follow, from the first one */
        for (i = 0; i < m->n_params && m->param[i].n_dims == 2;)
            i++;
    return i;
}

/* Finds the shard of each parameter on the tensor axis, and the parameters whose gradients are sums over that axis.
 * Only the tensor pass knows both. */
static enum tr_status shard_params(struct tr_placement *p)
{
    const struct tr_model *m = p->model;
    const struct tr_layout *l = p->layout;
    struct tr_pass_ctx ctx = { .layout = *l };
    enum tr_status st = TR_OK;
    for (int i = 0; i < m->n_params; i++) {
        const struct tr_param *whole = &m->param[i];
        p->param[i].tp = tr_tp_shard_of(whole->n_dims, whole->rows, whole->cols, whole->split, l->size[TR_AXIS_TP],
                                        l->coord[TR_AXIS_TP]);
    }
    for (int k = 0; k < m->n_programs && st == TR_OK; k++) {
        struct tr_program *split = NULL;
        st = tr_program_copy(m->program[k], &split);
        if (st == TR_OK)
            st = tr_pass_tensor(split, &ctx);
        for (int g = 0; g < m->n_segments && st == TR_OK; g++)
            for (int i = 0; m->segment[g].program == k && i < split->n_params; i++)
                p->param[m->segment[g].param[i]].is_partial |=
                    split->param[i].is_partial && !p->is_frozen[m->segment[g].param[i]];
        tr_program_close(split);
    }
    return st;
}

/* Gradients are summed over the shard axis first, then over replicas. The sum over the tensor axis comes last, so that
 * each rank sums only what it keeps. */
static void find_hops(const struct tr_layout *l, struct tr_bucket *b)
{
    b->n_hops = 0;
    if (l->data_size * l->size[TR_AXIS_CP] > 1) {
        bool is_whole = l->zero == 0 || l->in_order; /* in order: one action does all additions of the tree */
        b->hop[b->n_hops++] = is_whole ? (struct tr_hop){ .axes = TR_ON_TOKENS, .n = b->n }
                                       : (struct tr_hop){ .axes = TR_ON(TR_AXIS_SHARD), .is_scatter = true, .n = b->n };
        if (!is_whole && l->size[TR_AXIS_DP] * l->size[TR_AXIS_CP] > 1)
            b->hop[b->n_hops++] = (struct tr_hop){ .axes = TR_ON_REPLICAS, .n = b->n };
    }
    if (b->n_partial > 0)
        b->hop[b->n_hops++] = (struct tr_hop){ .axes = TR_ON(TR_AXIS_TP), .n = b->n_partial };
}

/* States by row and by column are those of the whole matrix. */
static void place_by_row(const struct tr_param *p, struct tr_param_place *at, struct tr_bucket *f)
{
    for (int shape = TR_PER_ROW; shape <= TR_PER_COL; shape++) {
        at->at_by[shape] = f->n_by[shape];
        f->n_by[shape] += (int64_t)tr_round_up((size_t)(shape == TR_PER_ROW ? p->rows : p->cols), TR_ALIGN);
    }
}

/* Computes the size of each bucket, the place of each parameter in it, and this rank's shard. */
enum tr_status tr_buckets_measure(struct tr_placement *p)
{
    const struct tr_model *m = p->model;
    const struct tr_layout *l = p->layout;
    find_places(p);
    TR_PASS(shard_params(p));
    /* partial parameters lie first, so that one collective reduces them */
    for (int is_partial = 1; is_partial >= 0; is_partial--)
        for (int i = tr_bucket_next(p, -1); i < m->n_params; i = tr_bucket_next(p, i)) {
            struct tr_param_place *at = &p->param[i];
            if (at->bucket < 0 || at->is_partial != is_partial)
                continue;
            struct tr_bucket *f = &p->bucket[at->bucket];
            at->at = f->n;
            f->n += (int64_t)tr_round_up((size_t)at->tp.n_held, (size_t)tr_bucket_align(l));
            f->n_partial = is_partial ? f->n : f->n_partial;
            place_by_row(&m->param[i], at, f);
        }
    int n_shards = l->zero >= 1 ? l->shard_size : 1, rank = l->zero >= 1 ? l->shard_rank : 0;
    for (int g = 0; g < p->n_buckets; g++) {
        struct tr_bucket *f = &p->bucket[g];
        size_t n_equal =
            (size_t)(l->in_order ? l->data_size : n_shards); /* the tree over ranks needs equal parts too */
        f->n = (int64_t)tr_round_up((size_t)f->n, (size_t)tr_bucket_align(l) * n_equal);
        f->shard_n = f->n / n_shards;
        f->shard_first = f->shard_n * rank;
    }
    /* the bucket of the second use: gradients only, sharded as the shared bucket is */
    for (int g = m->n_segments; l->in_order && l->size[TR_AXIS_PP] == 1 && g < p->n_buckets; g += m->n_segments + 2)
        if (!tr_bucket_is_frozen(m, g)) {
            p->bucket[g + 1] = p->bucket[g];
            p->bucket[g + 1].n_partial = 0;
        }
    for (int g = 0; g < p->n_buckets; g++)
        find_hops(l, &p->bucket[g]);
    for (int i = 0; i < m->n_params; i++) {
        struct tr_param_place *at = &p->param[i];
        if (at->bucket < 0)
            continue;
        const struct tr_bucket *f = &p->bucket[at->bucket];
        int64_t first = tr_max64(f->shard_first - at->at, 0),
                end = tr_min64(f->shard_first + f->shard_n - at->at, at->tp.n);
        at->first = first < end ? first : 0;
        at->n = tr_max64(end - first, 0);
    }
    return TR_OK;
}
