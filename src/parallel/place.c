/* place.c - computes an offset for every byte: parameters, gradients and optimizer state, then everything else a run
 * holds. */
#include "parallel/parallel_impl.h"
#include <assert.h>
#include <stdlib.h>

static const struct tr_arena_row arena_rows[] = {
    { "params", TR_SPACE_DEVICE }, { "grads", TR_SPACE_DEVICE }, { "optim", TR_SPACE_DEVICE },
    { "acts", TR_SPACE_DEVICE },   { "work", TR_SPACE_DEVICE },  { "cache", TR_SPACE_DEVICE },
    { "data", TR_SPACE_PINNED },   { "save", TR_SPACE_PINNED },  { "staging", TR_SPACE_HOST },
    { "host", TR_SPACE_PINNED },   { "disk", TR_SPACE_DISK },
};
static_assert(TR_COUNT_OF(arena_rows) == TR_A_COUNT, "one row per arena");

const struct tr_arena_row *tr_arena_row(enum tr_arena_id a)
{
    TR_BUG_ON((unsigned)a >= TR_A_COUNT);
    return &arena_rows[a];
}

/* Adds a named slice at the end of its arena and returns its offset. */
static size_t slice(struct tr_memory_map *m, enum tr_arena_id arena, size_t bytes, const char *what, const char *name)
{
    size_t at = m->bytes[arena];
    if (bytes == 0)
        return at;
    if (!TR_GROW(m->slice, (size_t)m->n_slices + 1, &m->n_slices_cap))
        return SIZE_MAX;
    struct tr_slice *s = &m->slice[m->n_slices++];
    *s = (struct tr_slice){ .arena = arena, .offset = at, .bytes = tr_round_up(bytes, TR_ALIGN) };
    (void)tr_format(s->name, sizeof s->name, "%s%.80s", what, name);
    m->bytes[arena] += s->bytes;
    return at;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The peak of a region of slots over all schedules, which run one after the other. */
static size_t region_peak(const struct tr_compiled *c, enum tr_region region)
{
    size_t peak = 0;
    for (int k = 0; k < TR_PURPOSES; k++)
        peak = most(peak, c->schedule[k].region_bytes[region]);
    return peak;
}

const struct tr_model *tr_constant_model(const struct tr_compiled *c, int constant)
{
    const struct tr_model *longest = c->place.model;
    for (int k = 0; k < TR_PURPOSES; k++) {
        const struct tr_model *m = c->schedule[k].model;
        longest = m && m->const_rows[constant] > longest->const_rows[constant] ? m : longest;
    }
    return longest;
}

/* Places one state of a bucket. A whole state has one slice per parameter. A shard has one slice, and so have a packed
 * bucket and one whose parameters do not begin on multiples of TR_ALIGN bytes. */
static void place_state(struct tr_compiled *c, int row, int g)
{
    struct tr_memory_map *map = &c->memory;
    const struct tr_model *m = c->place.model;
    const struct tr_state_row *r = &c->place.states.row[row];
    const struct tr_bucket *f = &c->place.bucket[g];
    enum tr_arena_id arena = tr_state_arena(&c->place, row, g);
    size_t start = map->bytes[arena], size = tr_dtype_bytes(r->dtype), align = (size_t)tr_bucket_align(&c->opt.layout),
           block = (size_t)r->block;
    char name[48], what[32];
    map->bucket[g].state[row] = start;
    bool is_by_row = r->shape != TR_PER_BLOCK;
    bool is_named = row >= TR_S_MASTER; /* values and gradients go by the parameter alone */
    (void)tr_format(what, sizeof what, "%.16s%s", is_named ? r->name : "", is_named ? " " : "");
    if (is_by_row || r->is_sharded || f->packed || align * size / block % TR_ALIGN != 0) {
        int64_t n = is_by_row ? f->n_by[r->shape] : r->is_sharded ? f->shard_n : f->n;
        (void)slice(map, arena, f->packed ? tr_bucket_bytes(&c->place, g, n) : (size_t)n / block * size, what,
                    tr_bucket_segment(m, g) < m->n_segments ? tr_bucket_name(m, g, name, sizeof name)
                                                            : "shared by stages");
        return;
    }
    for (int is_partial = 1; is_partial >= 0; is_partial--) /* in the order of the bucket */
        for (int i = tr_bucket_next(&c->place, -1); i < m->n_params; i = tr_bucket_next(&c->place, i)) {
            const struct tr_param_place *p = &c->place.param[i];
            if (p->bucket == g && p->is_partial == is_partial)
                (void)slice(map, arena, tr_round_up((size_t)p->tp.n_held, align) / block * size, what,
                            m->param[i].name);
        }
    size_t end = start + tr_round_up((size_t)f->n / block * size, TR_ALIGN);
    if (end > map->bytes[arena])
        (void)slice(map, arena, end - map->bytes[arena], what, "padding");
}

/* Parameters, gradients and optimizer state. The second use of shared parameters has gradients only. */
static void place_params(struct tr_compiled *c)
{
    struct tr_memory_map *map = &c->memory;
    const struct tr_compile_options *o = &c->opt;
    for (int g = 0; g < c->place.n_buckets; g++) {
        const struct tr_bucket *f = &c->place.bucket[g];
        const struct tr_model *m = c->place.model;
        enum tr_fate fate = tr_bucket_fate(m, g);
        bool is_frozen = tr_bucket_is_frozen(m, g),
             is_second_use = !is_frozen && tr_bucket_segment(m, g) == m->n_segments + 1;
        (void)slice(map, TR_A_DISK, tr_round_up(map->bytes[TR_A_DISK], TR_DISK_ALIGN) - map->bytes[TR_A_DISK], "",
                    "padding");
        map->bucket[g].host = map->bytes[tr_state_arena(&c->place, TR_S_MASTER, g)];
        for (int k = 0; k < c->place.states.n && f->n > 0; k++) {
            int s = k <= TR_S_GRAD && c->place.is_grad_on_host[g] ? TR_S_GRAD - k : k; /* gradients first */
            if (tr_states_has(&c->place.states, s, fate) && (!is_second_use || s == TR_S_GRAD))
                place_state(c, s, g);
            if (s == TR_S_GRAD && !o->is_inference && !is_frozen)
                map->bucket[g].levels =
                    slice(map, TR_A_GRADS, (size_t)c->place.n_levels * (size_t)f->n * tr_dtype_bytes(o->grad_dtype), "",
                          "sums of earlier micro-batches");
        }
    }
    static const char *const names[TR_C_COUNT] = { "rope", "rope_local" };
    for (int i = 0; i < TR_C_COUNT; i++) {
        const struct tr_model *m = tr_constant_model(c, i);
        size_t bytes = (size_t)(m->const_rows[i] * m->const_cols[i]) * sizeof(float);
        map->constant[i] = slice(map, TR_A_PARAMS, bytes, "table ", names[i]);
    }
}

/* Resolves the buffers of every action to offsets. A slot is an offset in its region; a bucket has its own fixed place.
 */
static void resolve(const struct tr_memory_map *m, struct tr_schedule *s)
{
    for (int i = 0; i < s->n_actions; i++) {
        struct tr_action *a = &s->action[i];
        size_t *const at[] = {
            [TR_AS_IN] = &a->in,      [TR_AS_OUT] = &a->out,     [TR_AS_DOUT] = &a->dout,
            [TR_AS_DIN] = &a->din,    [TR_AS_SAVED] = &a->saved, [TR_AS_SPLIT_SAVED] = &a->split_saved,
            [TR_AS_VALUE] = a->value, [TR_AS_GRAD] = a->grad,    [TR_AS_STATE] = &a->state
        };
        for (int k = 0; k < a->n_uses; k++) {
            const struct tr_buffer_use *u = &a->use[k];
            const struct tr_buffer *b = &s->buffer[u->buffer];
            if (u->role == TR_AS_OTHER)
                continue;
            at[u->role][u->index] = b->region == TR_BUF_VALUE     ? m->bucket[b->bucket].state[TR_S_VALUE]
                                    : b->region == TR_BUF_GRAD    ? m->bucket[b->bucket].state[TR_S_GRAD]
                                    : b->region == TR_BUF_VALUES  ? m->gathered + b->offset
                                    : b->region == TR_BUF_GRADS   ? m->unreduced + b->offset
                                    : b->region == TR_BUF_STATES  ? m->states + b->offset
                                    : b->region == TR_BUF_RESTING ? m->resting + b->offset
                                                                  : b->offset;
        }
    }
}

/* Between a file and the device: for each job the largest bucket that lives in the file. */
static void place_disk_buffers(struct tr_compiled *c)
{
    struct tr_memory_map *map = &c->memory;
    const struct tr_placement *p = &c->place;
    map->disk_buffer = 0;
    for (int b = 0; b < p->n_buckets; b++) {
        size_t states = p->is_on_host[b] && p->has_states_on_disk ? tr_bucket_state_bytes(p, b) : 0;
        size_t values = p->is_value_on_host[b] && p->has_values_on_disk ? tr_bucket_bytes(p, b, p->bucket[b].n) : 0;
        map->disk_buffer = most(map->disk_buffer, tr_round_up(most(states, values), TR_DISK_ALIGN));
    }
    size_t all = map->disk_buffer ? 2 * TR_DISK_JOBS * map->disk_buffer + TR_DISK_ALIGN : 0;
    map->disk_buffers = slice(map, TR_A_HOST, all, "", "buffers between disk and device");
}

/* Places the buffers for parameters and gradients that zero 2 and 3 hold whole for a short time. */
static void place_moving(struct tr_compiled *c)
{
    struct tr_memory_map *map = &c->memory;
    map->gathered = slice(map, TR_A_PARAMS, region_peak(c, TR_BUF_VALUES), "", "parameters that come and go");
    map->unreduced = slice(map, TR_A_GRADS, region_peak(c, TR_BUF_GRADS), "", "gradients before they are reduced");
    map->states = slice(map, TR_A_OPTIM, region_peak(c, TR_BUF_STATES), "", "states between the host and their update");
    place_disk_buffers(c);
    map->resting =
        slice(map, TR_A_HOST, region_peak(c, TR_BUF_RESTING), "", "activations between forward and backward");
    const struct tr_layout *l = &c->opt.layout;
    size_t widest = 0, shard = 0; /* elements of the largest ones */
    for (int g = 0; g < c->place.n_buckets && !tr_bucket_is_frozen(c->place.model, g); g++) {
        widest = most(widest, (size_t)c->place.bucket[g].n);
        shard = most(shard, (size_t)c->place.bucket[g].shard_n);
    }
    size_t n_staged = l->in_order ? widest : shard;
    bool is_staged = l->in_order ? l->data_size > 1 : tr_grad_zero(l) >= 2;
    if (is_staged && !c->opt.is_inference)
        map->staging =
            slice(map, TR_A_GRADS, n_staged * tr_dtype_bytes(c->opt.grad_dtype), "", "shard on its way to the sum");
    if (tr_has_wire(&c->opt))
        map->wire =
            slice(map, TR_A_GRADS, widest * tr_dtype_bytes(c->opt.reduce_dtype), "", "gradients as they travel");
    size_t direction, matrix;
    tr_whole_bytes(c, &direction, &matrix);
    map->direction = slice(map, TR_A_PARAMS, direction, "", "directions of updates");
    map->matrix = slice(map, TR_A_PARAMS, matrix, "", "matrix of all tensor ranks");
    map->sums = slice(map, TR_A_PARAMS, tr_sums_bytes(c), "", "sums of updates");
    for (int k = 0; k < TR_PURPOSES; k++)
        resolve(map, &c->schedule[k]);
}

/* Scratch of the kernels that are no nodes of a program: sums of squares over gradients, and over whatever a search for
 * a value that is not finite reads (numbers.c). A device with its own memory sums the whole arena of gradients at once.
 */
static size_t update_scratch(const struct tr_compiled *c)
{
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    int64_t n =
        c->opt.has_own_memory ? (int64_t)(c->memory.bytes[TR_A_GRADS] / tr_dtype_bytes(c->opt.grad_dtype)) + 1 : 1;
    for (int i = 0; i < c->place.model->n_params; i++)
        n = tr_max64(n, c->place.param[i].tp.n_held);
    for (int i = 0; i < s->n_programs; i++)
        if (s->program[i]->out != TR_NONE) {
            const struct tr_value *out = &s->program[i]->value[s->program[i]->out];
            n = tr_max64(n, out->rows * out->cols);
        }
    struct tr_call call = { .op = TR_OP_SUMSQ };
    call.in[0] = (struct tr_view){ .dtype = TR_F32, .rows = 1, .cols = n, .ld = n };
    call.out[0] = (struct tr_view){ .dtype = TR_F64, .rows = 1, .cols = 1, .ld = 1 };
    return most(most(c->opt.column->scratch(&call, c->opt.n_threads), tr_whole_scratch(c)), tr_sums_scratch(c));
}

/* Bytes of the keys of one position: as many heads as this tensor rank has. */
static size_t position_bytes(const struct tr_compiled *c)
{
    size_t bytes = 0;
    for (int k = TR_FOR_PREFILL; k < TR_PURPOSES; k++)
        for (int i = 0; i < c->schedule[k].n_programs; i++) {
            const struct tr_program *p = c->schedule[k].program[i];
            for (int v = 0; v < p->n_values; v++)
                if (p->value[v].kind == TR_V_CACHE)
                    bytes = most(bytes, (size_t)p->value[v].cols * tr_dtype_bytes(p->value[v].dtype));
        }
    return bytes;
}

/* Keys and values of every block of this stage: all positions of all sequences. */
static void place_cache(struct tr_compiled *c)
{
    struct tr_memory_map *map = &c->memory;
    map->cache_bytes = tr_round_up((size_t)(c->opt.cache_rows * c->opt.cache_sequences) * position_bytes(c), TR_ALIGN);
    for (int g = 0; map->cache_bytes && g < c->place.model->n_segments; g++)
        if (c->place.model->segment[g].layer >= 0 && tr_segment_is_here(&c->place, g)) {
            char name[32];
            (void)tr_format(name, sizeof name, "keys and values %d", c->place.model->segment[g].layer);
            map->cache[g] = slice(map, TR_A_CACHE, 2 * map->cache_bytes, "", name);
        }
}

size_t tr_head_bytes(const struct tr_schedule *s)
{
    const struct tr_action *head = s->model ? tr_schedule_head(s) : NULL;
    const struct tr_program *p = head ? s->program[s->program_of[head->segment]] : NULL;
    return p && p->out != TR_NONE ? tr_value_bytes(p, p->out) : 0;
}

/* Places what the host reads: logits at the end of a model, where they are in device memory or in parts, and ranges of
 * parameters on their way to a file. */
static void place_copies(struct tr_compiled *c)
{
    struct tr_memory_map *map = &c->memory;
    bool is_copied = c->opt.batch_bytes > 0;
    size_t bytes = 0;
    for (int k = TR_FOR_EVAL; k < TR_PURPOSES; k++)
        bytes = most(bytes, tr_head_bytes(&c->schedule[k]));
    if (bytes && (is_copied || tr_logits_are_parts(c)))
        map->logits = slice(map, TR_A_SAVE, bytes, "", "logits for the host");
    if (is_copied)
        map->get = slice(map, TR_A_SAVE, c->opt.save_bytes, "", "parameters for the host");
}

/* Bytes of one part (tokens, targets, ...) of the largest micro-batch, of which this rank takes its tokens. */
static size_t local_bytes(const struct tr_compiled *c)
{
    int size = c->opt.layout.size[TR_AXIS_CP];
    int64_t n = 0;
    for (int k = 0; k < TR_PURPOSES; k++)
        n = tr_max64(n, c->schedule[k].model ? c->schedule[k].model->n_tokens : 0);
    return size > 1 ? tr_round_up((size_t)(n / size) * sizeof(int64_t), TR_ALIGN) : 0;
}

/* Places the amax pairs. Every segment has as many as the program that quantises the most values. */
static void place_amax(struct tr_compiled *c)
{
    struct tr_memory_map *map = &c->memory;
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    map->n_amax = 0;
    for (int i = 0; i < s->n_programs; i++)
        for (int v = 0; v < s->program[i]->n_values; v++)
            if (s->program[i]->value[v].kind == TR_V_AMAX)
                map->n_amax = (int)tr_max64(map->n_amax, s->program[i]->value[v].slot + 1);
    map->amax = slice(map, TR_A_WORK, (size_t)map->n_amax * (size_t)c->place.model->n_segments * 2 * sizeof(float), "",
                      "largest elements of the past");
}

static void place_rest(struct tr_compiled *c)
{
    struct tr_memory_map *map = &c->memory;
    size_t temps = 0;
    for (int k = 0; k < TR_PURPOSES; k++)
        temps = most(temps, c->schedule[k].work_bytes);
    slice(map, TR_A_ACTS, region_peak(c, TR_BUF_ACTS), "", "activations between and inside segments");
    size_t n_groups = (size_t)tr_max64(1, c->opt.groups.n);
    map->step = slice(map, TR_A_WORK, n_groups * TR_STEP_COUNT * sizeof(float), "", "step values");
    if (tr_defers_updates(&c->schedule[TR_FOR_TRAIN]))
        map->step_before =
            slice(map, TR_A_WORK, n_groups * TR_STEP_COUNT * sizeof(float), "", "step values of the step before");
    size_t n_losses = (size_t)(tr_max64(1, c->opt.n_micro) * c->place.model->n_losses);
    map->loss = slice(map, TR_A_WORK, n_losses * sizeof(double), "", "losses");
    size_t n_norms = (size_t)c->place.norm_first[c->place.model->n_params] + c->opt.offloads_grads;
    map->norm = slice(map, TR_A_WORK, n_norms * sizeof(double), "", "gradient norms");
    map->local_bytes = local_bytes(c);
    map->local = slice(map, TR_A_WORK, TR_B_COUNT * map->local_bytes, "", "tokens of this context rank");
    map->temps = slice(map, TR_A_WORK, temps, "", "values and kernel scratch inside one action");
    map->scratch = slice(map, TR_A_WORK, c->opt.is_inference ? 0 : update_scratch(c), "", "scratch of the update");
    size_t n_batches = c->opt.is_inference ? 1 : (size_t)c->opt.n_micro;
    map->batch = slice(map, TR_A_WORK, n_batches * c->opt.batch_bytes, "", "batches on the device");
    place_amax(c);
    place_cache(c);
    slice(map, TR_A_DATA, c->opt.data_bytes, "", "batches read ahead");
    slice(map, TR_A_SAVE, c->opt.save_bytes, "", "checkpoint write buffer");
    map->pages = slice(map, TR_A_STAGING, c->opt.pages_bytes, "", "pages on their way to the disk");
    map->copy = slice(map, TR_A_STAGING, tr_staging_bytes(c), "", "checkpoint on its way to the disk");
    place_copies(c);
}

enum tr_status tr_place_bytes(struct tr_compiled *c)
{
    memset(c->memory.bytes, 0, sizeof c->memory.bytes);
    c->memory.n_slices = 0;
    place_params(c);
    place_moving(c);
    place_rest(c);
    return c->memory.slice ? TR_OK : tr_fail(TR_NOMEM, "plan: out of memory");
}

size_t tr_bucket_bytes(const struct tr_placement *p, int bucket, int64_t n)
{
    enum tr_packed packed = p->bucket[bucket].packed;
    return packed ? tr_packed_bytes(packed, n) : (size_t)n * tr_dtype_bytes(p->states.row[TR_S_VALUE].dtype);
}

size_t tr_compiled_bytes(const struct tr_compiled *c)
{
    size_t sum = 0;
    for (int i = 0; i < TR_A_DISK; i++)
        sum += c->memory.bytes[i];
    return sum;
}

size_t tr_compiled_bytes_in(const struct tr_compiled *c, enum tr_space space)
{
    size_t sum = 0;
    for (int i = 0; i < TR_A_COUNT; i++)
        if ((!c->opt.has_own_memory && i != TR_A_DISK) || tr_arena_row((enum tr_arena_id)i)->space == space)
            sum += c->memory.bytes[i];
    return sum;
}
