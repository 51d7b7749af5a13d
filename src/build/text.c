/* text.c - the models that continue text: one for a large chunk of a prompt, one for a small chunk, one for a single
 * token of every sequence. They share parameters and cache with all other models of a run.
 *
 * A prompt is read alone, because its tokens are enough work for a device; new tokens are made for all sequences at
 * once, because each of them reads all weights.
 */
#include "build/setup_impl.h"

enum { SMALL_CHUNK = 64, LARGE_CHUNK = 512 };

struct tr_text_shape tr_text_shape_of(int64_t n_sequences, int64_t n_context, bool wants_each)
{
    struct tr_text_shape t = { .n_sequences = n_sequences, .n_context = n_context, .wants_each = wants_each };
    /* no chunk is longer than the context, whose positions a model must have */
    t.n_small = tr_min64(SMALL_CHUNK, n_context);
    t.n_large = tr_min64(LARGE_CHUNK, n_context);
    if (wants_each || t.n_large <= t.n_small)
        t.n_large = 0;
    return t;
}

int64_t tr_text_sequences(const struct tr_config *cfg, size_t n_prompts, int n_ranks)
{
    int64_t n = ((int64_t)n_prompts + n_ranks - 1) / n_ranks;
    return tr_max64(1, tr_min64(n, cfg->per_device_eval_batch_size));
}

static enum tr_status open_model(const struct tr_setup *s, const cJSON *config, const struct tr_model_options *opt,
                                 struct tr_model **out)
{
    if (!config)
        return tr_dirs_model(&s->from, opt, false, out);
    cJSON *own = cJSON_Duplicate(config, true);
    if (!own)
        return tr_fail(TR_NOMEM, "setup: out of memory");
    enum tr_status st = tr_model_from_json(own, opt, out);
    if (st != TR_OK)
        cJSON_Delete(own);
    return st;
}

/* All models of a run read one table of rotary positions, and the tables of some models depend on their length. */
static enum tr_status check_positions(const struct tr_setup *s, const struct tr_model *m)
{
    enum tr_rope_type type = m->hp.rope[TR_C_ROPE].type;
    bool is_by_length = type == TR_ROPE_DYNAMIC || type == TR_ROPE_LONGROPE;
    if (type == TR_ROPE_NONE && s->text.n_context > m->hp.max_positions)
        return tr_fail(TR_USAGE, "prompt and max_new_tokens need %" PRId64 " positions; the model has %" PRId64,
                       s->text.n_context, m->hp.max_positions);
    if (s->model && is_by_length && s->text.n_context > s->sequence_length)
        return tr_fail(TR_USAGE,
                       "a prompt and its new tokens take %" PRId64 " positions, sequence_length is %" PRId64
                       ", and the rotary positions of this model depend on the longest text; shorten the prompts or "
                       "lower --max_new_tokens",
                       s->text.n_context, s->sequence_length);
    return TR_OK;
}

enum tr_status tr_setup_text(struct tr_setup *s, const cJSON *config)
{
    const struct tr_text_shape *t = &s->text;
    struct tr_model_options opt = { .rows = t->n_sequences,
                                    .sequence_length = 1,
                                    .n_positions = t->n_context,
                                    .n_context = t->n_context,
                                    .ignore_keys = s->cfg->ignore_config_keys,
                                    .wants_logits = true };
    if (t->n_sequences == 0)
        return TR_OK;
    TR_PASS(open_model(s, config, &opt, &s->text_model[TR_FOR_DECODE]));
    opt.rows = 1;
    opt.wants_last = !t->wants_each;
    opt.sequence_length = t->n_small;
    TR_PASS(open_model(s, config, &opt, &s->text_model[TR_FOR_CHUNK]));
    opt.sequence_length = t->n_large;
    if (t->n_large)
        TR_PASS(open_model(s, config, &opt, &s->text_model[TR_FOR_PREFILL]));
    s->text_batch_bytes = tr_batch_bytes(tr_max64(t->n_sequences, tr_max64(t->n_small, t->n_large)));
    return check_positions(s, s->text_model[TR_FOR_DECODE]);
}
