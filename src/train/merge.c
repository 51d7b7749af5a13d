/* merge.c - an adapter merged into its base, as a store that makes elements when they are asked for.
 *
 * W + s B A; with DoRA (m / n)(W + s B A), where n are the norms of the rows of W + s B A. Biases of B are added to the
 * bias of the base, modules_to_save and trained tokens replace what the base has. Sums are float, and one rounding to
 * the dtype of the base's weights follows. A rank is small, so A and B are held whole; of W a chunk is held. */
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

/* W of a file is (rows, cols); its delta is left (rows, r) times right (r, cols). For a linear left is B and right is
 * A; for Conv1D and embeddings, whose rows are the inputs, left is A transposed and right is B transposed. */
struct merge_delta {
    int param; /* of the plain model; -1: none yet */
    int64_t r;
    float *left, *right;
    float *factor;                          /* DoRA: m / n, by output */
    bool is_by_row;                         /* outputs are rows */
    float *bias;                            /* of B, scaled; for a bias of the base */
    float *token;                           /* rows that were trained by themselves, */
    const struct tr_adapter_tokens *tokens; /* and which they are */
    bool is_packed;                         /* onto dequantized: the run saw W in few bits */
    float *scales;                          /* of all grains, rounded by double quantisation; NULL: they are exact */
    float *seen; /* a packed matrix (in, out), whose grains are those of its transpose: all of it, decoded */
};

struct tr_merge {
    struct tr_merge_options opt;
    struct tr_model *plain, *adapted;
    struct tr_adapter *a;
    struct tr_adapter_choice choice;
    struct tr_hf *base, *adapter;
    enum tr_dtype dtype;
    enum tr_onto onto;
    enum tr_packed packed; /* how the run packed the base when it loaded it */
    bool has_codes;        /* the base's directory is quantised itself */
    uint8_t *grains;       /* of a chunk */
    struct merge_delta d;
    float *x, *rounded; /* a chunk */
};

const struct tr_model *tr_merge_model(const struct tr_merge *x)
{
    return x->plain;
}

enum tr_dtype tr_merge_dtype(const struct tr_merge *x)
{
    return x->dtype;
}

/* ---- reading ---- */

/* All of a tensor of the adapter; the caller frees it. */
static enum tr_status read_part(const struct tr_merge *x, int param, float **out)
{
    size_t at = 0, n = (size_t)x->adapted->param[param].n;
    TR_BUG_ON(!tr_adapter_find(x->adapter, x->adapted, param, &at)); /* tr_check_adapter has seen it */
    *out = malloc(n * sizeof **out);
    return *out ? tr_hf_read(x->adapter, at, 0, n, *out, TR_F32) : tr_fail(TR_NOMEM, "merge: out of memory");
}

/* Elements of a parameter before the delta: what the adapter's file holds of it, else the base's. */
static enum tr_status read_plain(const struct tr_merge *x, int param, int64_t first, int64_t n, float *out)
{
    const char *name = x->plain->param[param].name;
    size_t at = 0;
    int i = tr_model_param(x->adapted, name);
    if (i >= 0 && tr_adapter_find(x->adapter, x->adapted, i, &at))
        return tr_hf_read(x->adapter, at, (uint64_t)first, (size_t)n, out, TR_F32);
    /* a head that was untied starts as the embedding */
    TR_BUG_ON(!tr_weights_find(x->base, x->adapted, i >= 0 ? i : 0, &at));
    return tr_hf_read(x->base, at, (uint64_t)first, (size_t)n, out, TR_F32);
}

static int64_t count_grains(const struct tr_merge *x, int64_t n)
{
    int64_t grain = tr_packed_format(x->packed)->grain;
    return (n + grain - 1) / grain;
}

/* The same as the run saw it. Chunks begin on whole grains. */
static enum tr_status read_base(const struct tr_merge *x, int param, int64_t first, int64_t n, float *out)
{
    if (x->d.seen) {
        memcpy(out, x->d.seen + first, (size_t)n * sizeof *out);
        return TR_OK;
    }
    enum tr_status st = read_plain(x, param, first, n, out);
    if (st != TR_OK || !x->d.is_packed)
        return st;
    int64_t grain = tr_packed_format(x->packed)->grain;
    TR_BUG_ON(first % grain != 0);
    tr_packed_encode(x->packed, out, n, x->grains);
    if (x->d.scales)
        tr_packed_set_scales(x->packed, x->grains, count_grains(x, n), x->d.scales + first / grain);
    tr_packed_decode(x->packed, x->grains, 0, n, out, TR_F32);
    return TR_OK;
}

/* ---- the delta of one parameter ---- */

static void release(struct merge_delta *d)
{
    free(d->left);
    free(d->right);
    free(d->factor);
    free(d->bias);
    free(d->token);
    free(d->scales);
    free(d->seen);
    *d = (struct merge_delta){ .param = -1 };
}

/* (rows, cols) becomes (cols, rows), each element times scale. */
static enum tr_status transpose(float **a, int64_t rows, int64_t cols, float scale)
{
    float *t = NULL;
    TR_PASS(TR_ALLOC(t, (size_t)(rows * cols), "a merge"));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            t[k * rows + i] = (*a)[i * cols + k] * scale;
    free(*a);
    *a = t;
    return TR_OK;
}

struct adding {
    const struct merge_delta *d;
    const struct tr_param *p;
    float *x;
    int64_t first, n;
};

/* Adds the delta to the part of one row that is in the chunk. The sum over the rank is made apart from W, which may be
 * much larger. */
static void add_row(void *ctx, int64_t task, int worker)
{
    enum { TILE = 1024 };
    const struct adding *g = ctx;
    int64_t cols = g->p->cols, row = g->first / cols + task, begin = tr_max64(g->first, row * cols),
            end = tr_min64(g->first + g->n, (row + 1) * cols);
    float sum[TILE];
    (void)worker;
    for (int64_t at = begin; at < end; at += TILE) {
        int64_t n = tr_min64(TILE, end - at);
        memset(sum, 0, sizeof sum);
        for (int64_t k = 0; k < g->d->r; k++) {
            const float l = g->d->left[row * g->d->r + k], *right = g->d->right + k * cols + (at - row * cols);
            for (int64_t i = 0; i < n; i++)
                sum[i] += l * right[i];
        }
        for (int64_t i = 0; i < n; i++)
            g->x[at - g->first + i] += sum[i];
    }
}

static void add_delta(const struct tr_merge *x, const struct tr_param *p, int64_t first, int64_t n, float *out)
{
    struct adding g = { &x->d, p, out, first, n };
    if (x->d.left)
        tr_pool_run(x->opt.pool, (first + n - 1) / p->cols - first / p->cols + 1, add_row, &g);
}

static int64_t output_of(const struct merge_delta *d, const struct tr_param *p, int64_t element)
{
    return d->is_by_row ? element / p->cols : element % p->cols;
}

/* m / n by output. It reads all of W once more. */
static enum tr_status find_factors(struct tr_merge *x, int param, int magnitude)
{
    const struct tr_param *p = &x->plain->param[param];
    int64_t n_out = x->d.is_by_row ? p->rows : p->cols;
    double *squares = calloc((size_t)n_out, sizeof *squares);
    enum tr_status st = squares ? TR_OK : tr_fail(TR_NOMEM, "merge: out of memory");
    TR_TRY(st);
    for (int64_t at = 0; at < p->n; at += TR_IO_CHUNK) {
        int64_t n = tr_min64(TR_IO_CHUNK, p->n - at);
        TR_TRY(read_base(x, param, at, n, x->x));
        add_delta(x, p, at, n, x->x);
        for (int64_t i = 0; i < n; i++)
            squares[output_of(&x->d, p, at + i)] += (double)x->x[i] * (double)x->x[i];
    }
    TR_TRY(read_part(x, magnitude, &x->d.factor));
    for (int64_t o = 0; o < n_out; o++)
        x->d.factor[o] = (float)((double)x->d.factor[o] / sqrt(squares[o]));
out:
    free(squares);
    return st;
}

static const struct tr_adapter_module *find_module(const struct tr_merge *x, const char *module, int n_module)
{
    for (size_t i = 0; i < x->choice.n; i++) {
        const char *name = x->choice.module[i].target.module;
        if (strncmp(name, module, (size_t)n_module) == 0 && name[n_module] == 0)
            return &x->choice.module[i];
    }
    return NULL;
}

/* Rows that were trained by themselves. Those of a tied head are the embedding's. */
static enum tr_status read_tokens(struct tr_merge *x, const struct tr_adapter_module *module, const char *name,
                                  int n_module)
{
    if (!module || !module->target.tokens)
        return TR_OK;
    if (module->target.shares_tokens) {
        name = x->adapted->param[0].name;
        n_module = (int)(strrchr(name, '.') - name);
    }
    int part = tr_model_sibling(x->adapted, name, n_module, ".token_adapter.trainable_tokens_delta");
    TR_BUG_ON(part < 0);
    x->d.tokens = module->target.tokens;
    return read_part(x, part, &x->d.token);
}

static enum tr_status prepare_weight(struct tr_merge *x, int param, const char *name, int n_module)
{
    struct merge_delta *d = &x->d;
    const struct tr_adapter_module *module = find_module(x, name, n_module);
    int a = tr_model_sibling(x->adapted, name, n_module, ".lora_A.weight"),
        b = tr_model_sibling(x->adapted, name, n_module, ".lora_B.weight"),
        magnitude = tr_model_sibling(x->adapted, name, n_module, ".lora_magnitude_vector");
    bool is_embedding = a < 0;
    if (is_embedding) {
        a = tr_model_sibling(x->adapted, name, n_module, ".lora_embedding_A");
        b = tr_model_sibling(x->adapted, name, n_module, ".lora_embedding_B");
    }
    TR_PASS(read_tokens(x, module, name, n_module));
    if (a < 0 || b < 0 || !module)
        return TR_OK;
    const struct tr_param *pa = &x->adapted->param[a], *pb = &x->adapted->param[b];
    float scale = (float)module->target.scale;
    d->r = pa->dim[0];
    d->is_by_row = !is_embedding && module->kind != TR_MODULE_CONV1D;
    TR_PASS(read_part(x, d->is_by_row ? b : a, &d->left));
    TR_PASS(read_part(x, d->is_by_row ? a : b, &d->right));
    if (d->is_by_row) {
        for (int64_t i = 0; i < pb->n; i++)
            d->left[i] *= scale;
    } else {
        TR_PASS(transpose(&d->left, pa->dim[0], pa->dim[1], scale));
        TR_PASS(transpose(&d->right, pb->dim[0], pb->dim[1], 1));
    }
    if (magnitude >= 0)
        TR_PASS(find_factors(x, param, magnitude));
    return TR_OK;
}

static enum tr_status prepare_bias(struct tr_merge *x, int param, int n_module)
{
    const char *name = x->plain->param[param].name;
    const struct tr_adapter_module *module = find_module(x, name, n_module);
    int b = tr_model_sibling(x->adapted, name, n_module, ".lora_B.bias");
    if (b < 0 || !module)
        return TR_OK;
    enum tr_status st = read_part(x, b, &x->d.bias);
    for (int64_t i = 0; st == TR_OK && i < x->adapted->param[b].n; i++)
        x->d.bias[i] *= (float)module->target.scale;
    return st;
}

/* Double quantisation rounds the scales of a tensor by what all of them are. */
static enum tr_status round_scales(float *scales, int64_t n)
{
    int64_t n_nests = (n + TR_Q4_NEST - 1) / TR_Q4_NEST;
    float map[256], offset = 0, *nested = malloc((size_t)n_nests * sizeof *nested);
    uint8_t *codes = malloc((size_t)n);
    enum tr_status st = nested && codes ? TR_OK : tr_fail(TR_NOMEM, "merge: out of memory");
    if (st == TR_OK) {
        tr_dynamic_map(true, map);
        tr_q4_nest(scales, n, codes, nested, &offset);
        tr_q4_unnest(map, codes, nested, offset, 0, n, scales);
    }
    free(nested);
    free(codes);
    return st;
}

/* A packed matrix (in, out) as the run saw it. */
static enum tr_status find_seen(struct tr_merge *x, int param)
{
    const struct tr_param *p = &x->plain->param[param];
    int64_t n_grains = count_grains(x, p->n);
    uint8_t *grains = malloc(tr_packed_bytes(x->packed, p->n));
    float *w = malloc((size_t)p->n * sizeof *w), *scales = malloc((size_t)n_grains * sizeof *scales);
    enum tr_status st = grains && w && scales ? TR_OK : tr_fail(TR_NOMEM, "merge: out of memory");
    for (int64_t at = 0; st == TR_OK && at < p->n; at += TR_IO_CHUNK)
        st = read_plain(x, param, at, tr_min64(TR_IO_CHUNK, p->n - at), w + at);
    TR_TRY(st);
    TR_TRY(transpose(&w, p->rows, p->cols, 1));
    tr_packed_encode(x->packed, w, p->n, grains);
    if (x->opt.nests_scales && tr_packed_is_q4(x->packed)) {
        tr_packed_get_scales(x->packed, grains, n_grains, scales);
        TR_TRY(round_scales(scales, n_grains));
        tr_packed_set_scales(x->packed, grains, n_grains, scales);
    }
    tr_packed_decode(x->packed, grains, 0, p->n, w, TR_F32);
    TR_TRY(transpose(&w, p->cols, p->rows, 1));
    x->d.seen = w;
    w = NULL;
out:
    free(grains);
    free(scales);
    free(w);
    return st;
}

static enum tr_status find_scales(struct tr_merge *x, int param)
{
    int64_t n_all = x->plain->param[param].n, grain = tr_packed_format(x->packed)->grain, n = count_grains(x, n_all);
    TR_PASS(TR_ALLOC(x->d.scales, (size_t)n, "a merge"));
    for (int64_t at = 0; at < n_all; at += TR_IO_CHUNK) {
        int64_t n_here = tr_min64(TR_IO_CHUNK, n_all - at);
        TR_PASS(read_plain(x, param, at, n_here, x->x));
        tr_packed_encode(x->packed, x->x, n_here, x->grains);
        tr_packed_get_scales(x->packed, x->grains, count_grains(x, n_here), x->d.scales + at / grain);
    }
    return round_scales(x->d.scales, n);
}

/* Is the parameter one that the run held packed? */
static bool is_packed(const struct tr_merge *x, int param)
{
    int i = tr_model_param(x->adapted, x->plain->param[param].name);
    return x->onto == TR_ONTO_DEQUANTIZED && x->packed != TR_NOT_PACKED && i >= 0 && !x->adapted->param[i].in_adapter &&
           tr_param_may_pack(x->adapted, i);
}

static enum tr_status prepare(struct tr_merge *x, int param)
{
    bool is_head =
        !x->plain->hp.is_tied && param == tr_model_head(x->plain); /* the module lm_head, whatever its file says */
    const char *name = is_head ? "lm_head.weight" : x->plain->param[param].name, *tail = strrchr(name, '.');
    int n_module = tail ? (int)(tail - name) : 0;
    enum tr_status st = TR_OK;
    release(&x->d);
    x->d.is_packed = is_packed(x, param);
    if (x->d.is_packed && tr_param_is_in_out(x->plain, param))
        st = find_seen(x, param);
    else if (x->d.is_packed && x->opt.nests_scales && tr_packed_is_q4(x->packed))
        st = find_scales(x, param);
    if (st != TR_OK)
        return st;
    if (tail && strcmp(tail, ".weight") == 0)
        st = prepare_weight(x, param, name, n_module);
    else if (tail && strcmp(tail, ".bias") == 0)
        st = prepare_bias(x, param, n_module);
    x->d.param = st == TR_OK ? param : -1;
    return st;
}

/* Rows of an embedding that were trained by themselves replace those of the base. */
static void put_tokens(const struct tr_merge *x, const struct tr_param *p, int64_t first, int64_t n)
{
    for (size_t t = 0; x->d.token && t < x->d.tokens->n; t++) {
        int64_t row = x->d.tokens->id[t] * p->cols, begin = tr_max64(first, row),
                end = tr_min64(first + n, row + p->cols);
        for (int64_t at = begin; at < end; at++)
            x->x[at - first] = x->d.token[(int64_t)t * p->cols + at - row];
    }
}

static enum tr_status merged(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    struct tr_merge *x = ctx;
    const struct tr_param *p = &x->plain->param[param];
    TR_BUG_ON(what != TR_S_VALUE || n > TR_IO_CHUNK);
    if (x->d.param != param)
        TR_PASS(prepare(x, param));
    TR_PASS(read_base(x, param, first, n, x->x));
    add_delta(x, p, first, n, x->x);
    for (int64_t i = 0; x->d.factor && i < n; i++)
        x->x[i] *= x->d.factor[output_of(&x->d, p, first + i)];
    for (int64_t i = 0; x->d.bias && i < n; i++)
        x->x[i] += x->d.bias[first + i];
    put_tokens(x, p, first, n);
    if (x->dtype != TR_F32) {
        tr_convert(x->x, TR_F32, x->rounded, x->dtype, (size_t)n);
        tr_convert(x->rounded, x->dtype, x->x, TR_F32, (size_t)n);
    }
    *out = x->x;
    return TR_OK;
}

struct tr_store tr_merge_store(struct tr_merge *x, enum tr_onto onto)
{
    struct tr_store s = { .ctx = x, .model = x->plain, .pool = x->opt.pool, .get = merged, .whole = merged };
    x->onto = onto;
    x->d.param = -1;
    tr_states_of(NULL, &(struct tr_state_dtypes){ TR_F32, TR_F32, TR_F32, TR_F32 }, &s.states);
    return s;
}

/* A directory of codes has no other weights than the decoded ones; a base that is not quantised has no decoded ones. */
bool tr_merge_can(const struct tr_merge *x, enum tr_onto onto)
{
    return onto == TR_ONTO_ORIGINAL ? !x->has_codes : x->has_codes || x->packed != TR_NOT_PACKED;
}

/* ---- open ---- */

/* What has no place in a plain model. */
static enum tr_status check_places(const struct tr_merge *x)
{
    bool is_tied = (x->adapted->hp.is_tied || x->adapted->was_tied) && !x->opt.unties, shares_tokens = false;
    for (size_t i = 0; i < x->choice.n; i++)
        shares_tokens = shares_tokens || x->choice.module[i].target.shares_tokens;
    for (size_t i = 0; i < x->choice.n; i++) {
        const struct tr_adapter_module *m = &x->choice.module[i];
        bool is_changed =
            m->target.is_target || (m->target.is_saved && !x->a->ensures_tying) || (m->target.tokens && !shares_tokens);
        if (is_tied && is_changed && tr_adapter_is_tied(x->adapted, m))
            return tr_fail(TR_USAGE,
                           "merging would untie the embeddings: the adapter changes %s, and embedding and head of %s "
                           "are one matrix; write them as two with --untie, or keep the adapter as it is",
                           m->target.module, x->opt.base);
        if (m->target.is_target && x->a->has_b_bias && !m->has_bias)
            return tr_fail(TR_USAGE,
                           "%s has no bias that the bias of lora_B could be added to (lora_bias); keep the adapter as "
                           "it is, or train one without lora_bias",
                           m->target.module);
    }
    return TR_OK;
}

/* A and B of PEFT's PiSSA and OLoRA are added to what they have left of the base, which no directory holds. */
static enum tr_status check_start(const struct tr_adapter *a, const char *dir)
{
    if (!tr_adapter_changes_base(a))
        return TR_OK;
    return tr_fail(
        TR_USAGE,
        "%s belongs to a base without its start (init_lora_weights %s), not to the base as it is; continue it "
        "with trireme train --model %s, which saves one for the base, or convert it with PEFT "
        "(path_initial_model_for_weight_conversion)",
        dir, tr_adapter_start_name(a), dir);
}

/* Whether the base is quantised: by its directory, or by the run that loaded it. */
static enum tr_status find_packing(struct tr_merge *x)
{
    for (size_t i = 0; i < tr_hf_count(x->base) && !x->has_codes; i++)
        x->has_codes = tr_hf_storage(x->base, i) != NULL;
    if (x->has_codes || !x->opt.packed)
        return TR_OK;
    x->packed = x->opt.packed;
    x->grains = malloc(tr_packed_bytes(x->packed, TR_IO_CHUNK));
    return x->grains ? TR_OK : tr_fail(TR_NOMEM, "merge: out of memory");
}

enum tr_status tr_merge_open(const struct tr_merge_options *opt, struct tr_merge **out)
{
    enum tr_status st = TR_OK;
    struct tr_model_options shape = { .rows = 1, .sequence_length = 1 };
    struct tr_merge *x = calloc(1, sizeof *x);
    if (!x)
        return tr_fail(TR_NOMEM, "merge: out of memory");
    x->opt = *opt;
    x->d.param = -1;
    TR_TRY(tr_adapter_read(opt->adapter, &x->a));
    TR_TRY(check_start(x->a, opt->adapter));
    TR_TRY(tr_adapted_open(opt->base, opt->adapter, x->a, &shape, &x->adapted));
    shape.least_vocab = x->adapted->hp.vocab;
    TR_TRY(tr_adapter_choose(x->a, x->adapted, &x->choice));
    TR_TRY(tr_adapt(x->adapted, x->a, false));
    TR_TRY(check_places(x));
    shape.unties = opt->unties;
    TR_TRY(tr_model_open(opt->base, &shape, &x->plain));
    TR_TRY(tr_base_id_check(opt->adapter, opt->base));
    TR_TRY(tr_check_weights(x->adapted, opt->base));
    TR_TRY(tr_check_adapter(x->adapted, opt->adapter));
    TR_TRY(tr_hf_open(opt->base, &x->base));
    TR_TRY(tr_adapter_file(opt->adapter, &x->adapter));
    TR_TRY(find_packing(x));
    x->dtype = tr_hf_tensor(x->base, 0)->dtype;
    if (x->dtype > TR_F64)
        x->dtype = tr_config_dtype(x->plain->config);
    TR_TRY(TR_ALLOC(x->x, TR_IO_CHUNK, "a merge"));
    TR_TRY(TR_ALLOC(x->rounded, TR_IO_CHUNK, "a merge"));
out:
    if (st == TR_OK)
        *out = x;
    else
        tr_merge_close(x);
    return st;
}

void tr_merge_close(struct tr_merge *x)
{
    if (!x)
        return;
    release(&x->d);
    free(x->x);
    free(x->rounded);
    free(x->grains);
    free(x->choice.module);
    tr_hf_close(x->base);
    tr_hf_close(x->adapter);
    tr_model_close(x->plain);
    tr_model_close(x->adapted);
    tr_adapter_close(x->a);
    free(x);
}
