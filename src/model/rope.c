/* rope.c - rotary position tables: default, linear, dynamic NTK, YaRN, Llama 3 and LongRoPE scaling.
 *
 * Frequencies use the arithmetic of transformers, with floats where it has floats, so that the tables agree to the last
 * digits. The table is a constant of the run: "dynamic" and "longrope" go by the sequence length of the run, which is
 * the length of every full row, or by the longest text that may be generated.
 */
#include "model/model_impl.h"
#include <math.h>

static const struct {
    const char *name;
    enum tr_rope_type type;
} types[] = {
    { "default", TR_ROPE_DEFAULT }, { "linear", TR_ROPE_LINEAR }, { "dynamic", TR_ROPE_DYNAMIC },
    { "yarn", TR_ROPE_YARN },       { "llama3", TR_ROPE_LLAMA3 }, { "longrope", TR_ROPE_LONGROPE },
    { "su", TR_ROPE_LONGROPE },
};

enum tr_status tr_rope_parse(const cJSON *obj, const cJSON *config, struct tr_rope *r)
{
    const char *name = "default";
    char esc[80];
    size_t i;
    TR_PASS(tr_json_str(obj, "type", false, &name));
    TR_PASS(tr_json_str(obj, "rope_type", false, &name));
    for (i = 0; i < TR_COUNT_OF(types) && strcmp(types[i].name, name) != 0; i++)
        ;
    if (i == TR_COUNT_OF(types))
        return tr_fail(TR_USAGE,
                       "config.json: rope type \"%s\" is not implemented; known: default linear dynamic yarn llama3 "
                       "longrope",
                       tr_escape(name, esc, sizeof esc));
    r->type = types[i].type;
    r->factor = 0;
    r->truncate = true;
    bool needs_factor = r->type != TR_ROPE_DEFAULT && r->type != TR_ROPE_LONGROPE;
    bool is_llama3 = r->type == TR_ROPE_LLAMA3;
    TR_PASS(tr_json_real(obj, "rope_theta", false, &r->theta));
    TR_PASS(tr_json_real(obj, "factor", needs_factor && r->type != TR_ROPE_YARN, &r->factor));
    TR_PASS(tr_json_real(obj, "low_freq_factor", is_llama3, &r->low_freq_factor));
    TR_PASS(tr_json_real(obj, "high_freq_factor", is_llama3, &r->high_freq_factor));
    TR_PASS(tr_json_real(obj, "beta_fast", false, &r->beta_fast));
    TR_PASS(tr_json_real(obj, "beta_slow", false, &r->beta_slow));
    TR_PASS(tr_json_real(obj, "attention_factor", false, &r->attention_factor));
    TR_PASS(tr_json_real(obj, "mscale", false, &r->mscale));
    TR_PASS(tr_json_real(obj, "mscale_all_dim", false, &r->mscale_all_dim));
    TR_PASS(tr_json_bool(obj, "truncate", false, &r->truncate));
    TR_PASS(tr_json_int(obj, "original_max_position_embeddings", false, 1, INT32_MAX, &r->original_max));
    TR_PASS(tr_json_int(config, "original_max_position_embeddings", false, 1, INT32_MAX, &r->original_max));
    r->short_factor = cJSON_GetObjectItemCaseSensitive(obj, "short_factor");
    r->long_factor = cJSON_GetObjectItemCaseSensitive(obj, "long_factor");
    if (!(r->theta > 0) || (needs_factor && r->factor != 0 && !(r->factor > 0)))
        return tr_fail(TR_USAGE, "config.json: rope_theta %g and factor %g must be positive", r->theta, r->factor);
    return TR_OK;
}

enum tr_status tr_rope_check_factors(const struct tr_rope *r)
{
    const cJSON *lists[] = { r->short_factor, r->long_factor };
    for (int i = 0; i < 2; i++) {
        int64_t n = 0;
        for (const cJSON *f = cJSON_IsArray(lists[i]) ? lists[i]->child : NULL; f; f = f->next, n++)
            if (!cJSON_IsNumber(f) || !(f->valuedouble > 0) || !isfinite(f->valuedouble))
                return tr_fail(TR_USAGE, "config.json: %s_factor[%" PRId64 "] of longrope is not a positive number",
                               i ? "long" : "short", n);
        if (n != r->dim / 2)
            return tr_fail(TR_USAGE,
                           "config.json: %s_factor of longrope has %" PRId64 " numbers; %" PRId64
                           " rotary columns of a head need %" PRId64,
                           i ? "long" : "short", n, r->dim, r->dim / 2);
    }
    if (r->original_max < 2)
        return tr_fail(TR_USAGE, "config.json: original_max_position_embeddings %" PRId64 " of longrope is below 2",
                       r->original_max);
    return TR_OK;
}

static double mscale_of(double scale, double mscale)
{
    return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0;
}

static float inv_freq(double theta, int64_t i, int64_t dim)
{
    return 1.0f / (float)pow(theta, (double)((float)(2 * i) / (float)dim));
}

static void fill_llama3(const struct tr_rope *r, float *f)
{
    const float pi = 3.14159265358979323846f;
    float low = (float)r->low_freq_factor, high = (float)r->high_freq_factor, factor = (float)r->factor;
    float old = (float)r->original_max;
    for (int64_t i = 0; i < r->dim / 2; i++) {
        float base = inv_freq(r->theta, i, r->dim), wavelen = 2 * pi / base;
        f[i] = wavelen > old / low ? base / factor : base;
        if (wavelen >= old / high && wavelen <= old / low) {
            float smooth = (old / wavelen - low) / (high - low);
            f[i] = (1 - smooth) * base / factor + smooth * base;
        }
    }
}

static double correction_dim(const struct tr_rope *r, double rotations)
{
    return (double)r->dim * log((double)r->original_max / (rotations * 2 * acos(-1.0))) / (2 * log(r->theta));
}

static void fill_yarn(const struct tr_rope *r, double factor, float *f)
{
    double low = correction_dim(r, r->beta_fast > 0 ? r->beta_fast : 32);
    double high = correction_dim(r, r->beta_slow > 0 ? r->beta_slow : 1);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)r->dim - 1);
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < r->dim / 2; i++) {
        float pos = (float)pow(r->theta, (double)((float)(2 * i) / (float)r->dim));
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        f[i] = 1.0f / ((float)factor * pos) * (1 - keep) + 1.0f / pos * keep;
    }
}

/* The long factors are for texts beyond the length that the model was first trained on. */
static double fill_longrope(const struct tr_rope *r, int64_t max_positions, int64_t n_context, float *f)
{
    const cJSON *item = (n_context > r->original_max ? r->long_factor : r->short_factor)->child;
    double old = (double)r->original_max, factor = r->factor > 0 ? r->factor : (double)max_positions / old;
    for (int64_t i = 0; i < r->dim / 2; i++, item = item->next)
        f[i] = 1.0f / ((float)item->valuedouble * (float)pow(r->theta, (double)((float)(2 * i) / (float)r->dim)));
    if (r->attention_factor > 0)
        return r->attention_factor;
    return factor <= 1 ? 1.0 : sqrt(1 + log(factor) / log(old));
}

/* Fills f[dim/2] with the frequencies; returns the factor on cos and sin. */
static double frequencies(const struct tr_rope *r, int64_t max_positions, int64_t n_context, float *f)
{
    double theta = r->theta, factor = r->factor, attention = 1.0;
    switch (r->type) {
    case TR_ROPE_LLAMA3:
        fill_llama3(r, f);
        return 1.0;
    case TR_ROPE_LONGROPE:
        return fill_longrope(r, max_positions, n_context, f);
    case TR_ROPE_YARN:
        if (factor <= 0)
            factor = (double)max_positions / (double)r->original_max;
        if (r->attention_factor > 0)
            attention = r->attention_factor;
        else if (r->mscale > 0 && r->mscale_all_dim > 0)
            attention = mscale_of(factor, r->mscale) / mscale_of(factor, r->mscale_all_dim);
        else
            attention = mscale_of(factor, 1);
        fill_yarn(r, factor, f);
        return attention;
    case TR_ROPE_DYNAMIC: {
        double len = (double)tr_max64(n_context, max_positions), d = (double)r->dim;
        theta *= pow(factor * len / (double)max_positions - (factor - 1), d / (d - 2));
        break;
    }
    default:
        break;
    }
    for (int64_t i = 0; i < r->dim / 2; i++)
        f[i] = inv_freq(theta, i, r->dim) / (r->type == TR_ROPE_LINEAR ? (float)factor : 1.0f);
    return 1.0;
}

double tr_rope_frequencies(const struct tr_rope *r, int64_t max_positions, float *out)
{
    TR_BUG_ON(r->dim / 2 > TR_ROPE_FREQS);
    return frequencies(r, max_positions, max_positions, out);
}

void tr_rope_fill(const struct tr_rope *r, int64_t max_positions, int64_t n_context, int64_t n_pos, float *out)
{
    int64_t half = r->dim / 2;
    float freq[TR_ROPE_FREQS];
    TR_BUG_ON(half > TR_ROPE_FREQS);
    double attention = frequencies(r, max_positions, n_context, freq);
    for (int64_t p = 0; p < n_pos; p++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)p * freq[i];
            out[p * r->dim + i] = (float)cos((double)angle) * (float)attention;
            out[p * r->dim + half + i] = (float)sin((double)angle) * (float)attention;
        }
}
