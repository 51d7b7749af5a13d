/* cases_resolve.c - a row of published words as a question: what the columns say, and for what they leave out what the
 * trainer that made the row does when nobody says it.
 */
#include "plan/cases.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static bool say(struct tr_case *c, const char *fmt, ...) TR_PRINTF(2, 3);
static bool say(struct tr_case *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->reason, sizeof c->reason, fmt, ap);
    va_end(ap);
    return false;
}

static bool has(const struct tr_case *c, enum tr_case_column k, const char *word)
{
    for (const char *t = c->field[k]; *t; t++)
        if (strncasecmp(t, word, strlen(word)) == 0)
            return true;
    return false;
}

/* A whole number of a column; empty: the default, 0 = must be there. */
static bool count(struct tr_case *c, enum tr_case_column k, const char *name, double def, double *out)
{
    int64_t x = 0;
    char esc[40];
    if (c->field[k][0] == '\0' && def > 0) {
        *out = def;
        return true;
    }
    if (c->field[k][0] == '\0')
        return say(c, "%s is not stated", name);
    if (tr_parse_int(c->field[k], 0, INT64_C(1) << 40, &x) != TR_OK)
        return say(c, "%s \"%s\" is not a number", name, tr_escape(c->field[k], esc, sizeof esc));
    *out = (double)x;
    return true;
}

/* A word, then a whole number of at most nine digits. */
static bool take(const char **at, const char *word, double *out)
{
    size_t n = strlen(word), k = 0;
    int64_t x = 0;
    char digits[12] = "";
    if (strncmp(*at, word, n) != 0)
        return false;
    for (; k < 9 && (*at)[n + k] >= '0' && (*at)[n + k] <= '9'; k++)
        digits[k] = (*at)[n + k];
    if (tr_parse_int(digits, 0, 999999999, &x) != TR_OK)
        return false;
    *out = (double)x;
    *at += n + k;
    return true;
}

/* 11008 | moe8x32768top2 | dense3x18432+moe256x2048top8+shared1x2048 */
static bool read_ffn(struct tr_case *c)
{
    struct tr_shape_cost *s = &c->ask.shape;
    const char *f = c->field[TR_CASE_ffn];
    double n_shared = 0, width = 0;
    if (f[0] >= '0' && f[0] <= '9')
        return count(c, TR_CASE_ffn, "ffn", 0, &s->ffn);
    if (f[0] == '\0')
        return say(c, "ffn is not stated");
    bool is_sane = true;
    if (take(&f, "dense", &s->dense_layers))
        is_sane = take(&f, "x", &s->dense_ffn) && *f++ == '+';
    is_sane = is_sane && take(&f, "moe", &s->experts) && take(&f, "x", &s->ffn) && take(&f, "top", &s->top_k);
    if (is_sane && *f)
        is_sane = take(&f, "+shared", &n_shared) && take(&f, "x", &width);
    s->shared_ffn = n_shared * width;
    is_sane = is_sane && *f == '\0' && s->experts >= 1 && s->experts <= 1e5 && s->top_k >= 1 &&
              s->top_k <= s->experts && s->ffn >= 1 && s->ffn <= 1e7 && s->shared_ffn <= 1e7 && s->dense_layers <= 1e4;
    tr_error_clear();
    return is_sane || say(c, "ffn \"%.40s\" is not NUMBER or moeNxWIDTHtopK", c->field[TR_CASE_ffn]);
}

static bool read_shape(struct tr_case *c)
{
    static const char *const gated[] = { "llama", "qwen", "deepseek", "grok", "oss", "mistral", "mixtral", "gemma" };
    struct tr_shape_cost *s = &c->ask.shape;
    if (!count(c, TR_CASE_layers, "layers", 0, &s->layers) || !count(c, TR_CASE_hidden, "hidden", 0, &s->hidden) ||
        !count(c, TR_CASE_heads, "heads", 0, &s->heads) || !count(c, TR_CASE_vocab, "vocab", 0, &s->vocab) ||
        !count(c, TR_CASE_seq, "seq", 0, &c->ask.seq) || !read_ffn(c))
        return false;
    if (s->heads < 1 || s->hidden < 1)
        return say(c, "no heads or no width");
    s->head_dim = s->hidden / s->heads;
    if (strcmp(c->field[TR_CASE_kv_heads], "MLA") == 0) { /* DeepSeek-V2 and V3 */
        s->kv_heads = s->heads;
        s->head_dim = 128;
        s->q_rank = 1536;
        s->kv_rank = 512;
        s->rope_dim = 64;
    } else if (!count(c, TR_CASE_kv_heads, "kv_heads", s->heads, &s->kv_heads)) {
        return false;
    }
    if (has(c, TR_CASE_model, "qwen3"))
        s->head_dim = 128;
    if (has(c, TR_CASE_model, "oss")) { /* every second layer sees 128 tokens */
        s->head_dim = 64;
        s->local_share = 0.5;
    }
    for (size_t i = 0; i < TR_COUNT_OF(gated); i++)
        s->is_gated |= has(c, TR_CASE_model, gated[i]);
    s->is_gated |= s->experts == 0 && s->ffn != 4 * s->hidden;
    if (has(c, TR_CASE_model, "deepseek") && has(c, TR_CASE_model, "V3") && !has(c, TR_CASE_source, "w/o MTP"))
        s->n_further = 1;
    s->is_tied = !s->is_gated && !has(c, TR_CASE_model, "nemotron");
    return true;
}

static void read_precision(struct tr_case *c)
{
    struct tr_ask *a = &c->ask;
    bool is_full = has(c, TR_CASE_precision, "fp32") && !has(c, TR_CASE_precision, "bf16");
    bool is_fsdp = a->zero == 3 && !has(c, TR_CASE_source, "DeepSpeed");
    a->number = has(c, TR_CASE_precision, "fp4")                                          ? TR_NUMBER_FP4
                : has(c, TR_CASE_precision, "fp8") || has(c, TR_CASE_precision, "float8") ? TR_NUMBER_FP8
                : is_full                                                                 ? TR_NUMBER_FP32
                                                                                          : TR_NUMBER_16;
    a->casts_rows = has(c, TR_CASE_precision, "rowwise");
    if (a->casts_rows)
        a->number = TR_NUMBER_16;
    a->gather_bytes = 2;
    if (has(c, TR_CASE_precision, "amp")) { /* Composer: weights travel as they are stored, autocast makes the copy */
        a->gather_bytes = 4;
        a->cast_bytes = 6;
    }
    a->param_bytes = is_fsdp || is_full ? 4 : 2;
    a->grad_bytes = is_fsdp || is_full || has(c, TR_CASE_precision, "bf16") || a->number > TR_NUMBER_16 ? 4 : 2;
    a->state_bytes = is_fsdp || is_full ? 8 : 12;
    if (has(c, TR_CASE_precision, "PURE")) { /* Mosaic: everything bf16 */
        a->param_bytes = a->grad_bytes = 2;
        a->state_bytes = 4;
    }
}

static enum tr_keep read_keep(const struct tr_case *c)
{
    const char *r = c->field[TR_CASE_recompute];
    return strcmp(r, "full") == 0              ? TR_KEEP_INPUT
           : strcmp(r, "selective-op") == 0    ? TR_KEEP_OP
           : strcmp(r, "selective-layer") == 0 ? TR_KEEP_HALF
           : strncmp(r, "selective", 9) == 0   ? TR_KEEP_CORE
           : *r == '\0'                        ? TR_KEEP_AUTO
                                               : TR_KEEP_ALL;
}

/* What nobody stated: tensor ranks fill a node, stages as few as fit. */
static void choose_layout(struct tr_case *c, double chips, double *tp, double *pp)
{
    struct tr_ask *a = &c->ask;
    struct tr_forecast f;
    double domain = fmin(c->machine.domain, 8);
    if (*tp == 0)
        for (*tp = fmin(domain, chips); fmod(a->shape.heads, *tp) != 0 && *tp > 1;)
            --*tp;
    for (double p = 1; *pp == 0 && p <= a->shape.layers; p++) {
        double rest = chips / (*tp * p * a->cp);
        if (fmod(a->shape.layers, p) != 0 || rest != floor(rest) || rest < 1)
            continue;
        struct tr_ask b = *a;
        b.tp = (int)*tp;
        b.pp = (int)p;
        b.dp = (int)rest;
        b.chunks = 1;
        b.micro = 1;
        b.global = rest * 4 * p;
        b.keep = TR_KEEP_CORE;
        b.has_sp = *tp > 1 && c->impl.has_sp;
        if (tr_forecast(&b, &f) == TR_OK && f.total_bytes < 0.9 * c->machine.chip.memory_bytes)
            *pp = p;
    }
    tr_error_clear();
}

static bool read_layout(struct tr_case *c)
{
    struct tr_ask *a = &c->ask;
    double chips, tp = 0, pp = 0, vpp, cp, dp = 0, ep, zero = 0, fit = 0;
    if (!count(c, TR_CASE_gpus, "gpus", 0, &chips) || !count(c, TR_CASE_cp, "cp", 1, &cp) ||
        !count(c, TR_CASE_ep, "ep", 1, &ep) || !count(c, TR_CASE_vpp, "vpp", 1, &vpp))
        return false;
    if (c->field[TR_CASE_tp][0] && !count(c, TR_CASE_tp, "tp", 0, &tp))
        return false;
    if (c->field[TR_CASE_pp][0] && !count(c, TR_CASE_pp, "pp", 0, &pp))
        return false;
    if (c->field[TR_CASE_dp][0] && !count(c, TR_CASE_dp, "dp", 0, &dp))
        return false;
    if (c->field[TR_CASE_zero_stage][0] && !count(c, TR_CASE_zero_stage, "zero_stage", 0, &zero))
        return false;
    if (chips < 1 || chips > 1e6 || cp < 1 || cp > 1e4 || ep < 1 || ep > 1e5 || vpp < 1 || vpp > 1e4 || tp > 1e5 ||
        pp > 1e4 || dp > 1e6 || zero > 3)
        return say(c, "a layout of %.0f gpus: tp %.0f pp %.0f vpp %.0f cp %.0f dp %.0f ep %.0f zero %.0f cannot be",
                   chips, tp, pp, vpp, cp, dp, ep, zero);
    a->cp = (int)cp;
    a->zero = (int)zero;
    if (tp == 0 || pp == 0)
        choose_layout(c, chips, &tp, &pp);
    if (tp == 0 || pp == 0)
        return say(c, "tp and pp are not stated and no layout fits");
    fit = tp * pp * cp;
    if (dp == 0)
        dp = chips / fit;
    if (dp * fit != chips || dp != floor(dp))
        return say(c, "tp %.0f x pp %.0f x cp %.0f x dp %.0f is not %.0f gpus", tp, pp, cp, dp, chips);
    a->tp = (int)tp;
    a->pp = (int)pp;
    a->chunks = (int)vpp;
    a->dp = (int)dp;
    a->ep = (int)ep;
    if (a->zero == 3 && a->pp > 1 && strncmp(c->impl.name, "fsdp", 4) == 0)
        a->zero = 1; /* torch: between micro-batches of a pipeline weights and gradients stay whole */
    a->splits_experts = a->shape.ffn > a->shape.hidden; /* few wide experts; many narrow ones stay whole */
    a->has_sp = tp > 1 && (has(c, TR_CASE_recompute, "sp") || c->impl.has_sp);
    return true;
}

/* Published runs are tuned: of the rows and the chunks that were not stated, the fastest that fit. */
static void choose_rest(struct tr_case *c, bool any_micro, bool any_chunks)
{
    struct tr_ask b = c->ask;
    double best = 0, local = b.global / b.dp, most = b.shape.layers / b.pp;
    for (b.chunks = any_chunks ? 1 : b.chunks; b.chunks <= most; b.chunks++) {
        if (any_chunks && fmod(most, b.chunks) != 0)
            continue;
        for (b.micro = any_micro ? 1 : b.micro; b.micro <= local && fmod(local, b.micro) == 0; b.micro *= 2) {
            struct tr_forecast f;
            if (tr_forecast(&b, &f) != TR_OK || f.total_bytes > 0.95 * c->machine.chip.memory_bytes)
                break;
            if (f.tokens_per_s > best) {
                best = f.tokens_per_s;
                c->ask.micro = b.micro;
                c->ask.chunks = b.chunks;
            }
            if (!any_micro)
                break;
        }
        if (!any_chunks)
            break;
    }
    tr_error_clear();
}

/* What was not stated; torchtitan cuts a batch by stages. */
static bool read_batch(struct tr_case *c)
{
    struct tr_ask *a = &c->ask;
    if (!count(c, TR_CASE_global_batch, "global_batch", has(c, TR_CASE_metric, "layer_") ? -1 : 0, &a->global) &&
        !has(c, TR_CASE_metric, "layer_"))
        return false;
    bool has_micro = c->field[TR_CASE_micro_batch][0] != '\0', is_layer = has(c, TR_CASE_metric, "layer_");
    bool any_chunks = a->pp > 1 && c->field[TR_CASE_vpp][0] == '\0' && c->impl.interleaves;
    a->micro = 1;
    if (has_micro && (!count(c, TR_CASE_micro_batch, "micro_batch", 0, &a->micro) || a->micro < 1))
        return say(c, "a micro-batch of no rows");
    if (is_layer && has_micro) {
        c->reason[0] = '\0';
        a->global = a->micro * a->dp;
    }
    if (!has_micro && strcmp(c->impl.name, "fsdp-compile") == 0 && a->pp > 1)
        a->micro = fmax(1, floor(a->global / a->dp / a->pp)); /* torchtitan: as many micro-batches as stages */
    else if ((!has_micro || any_chunks) && !is_layer)
        choose_rest(c, !has_micro, any_chunks);
    return true;
}

double tr_case_release(const struct tr_case *c)
{
    const char *at = strstr(c->field[TR_CASE_source], "summary ");
    return at ? strtod(at + 8, NULL) : 0;
}

/* What a source says of the trainer beside its name. */
static void refine_impl(struct tr_case *c)
{
    struct tr_impl *im = &c->impl;
    double release = tr_case_release(c);
    if (strcmp(im->name, "fsdp-compile") == 0 && !has(c, TR_CASE_source, "compile"))
        *im = *tr_impl_find("fsdp-eager");
    if (has(c, TR_CASE_source, "2025") || has(c, TR_CASE_source, "mxfp8")) /* the loss in chunks */
        im->logits_bytes = 6;
    if (has(c, TR_CASE_source, "async") || has(c, TR_CASE_precision, "async"))
        im->tp_hidden = TR_ASYNCHRONOUS;
    /* graphs of steps with experts need buffers of fixed size, which exchanges inside a rack have */
    bool has_graphs = release >= 26.05 && (c->machine.domain > 8 || !has(c, TR_CASE_ffn, "moe"));
    if (release > 0)
        *im = *tr_impl_find(has_graphs ? "bridge-graphs" : "bridge");
    if (has(c, TR_CASE_model, "oss") && release < 26.08) /* attention with sinks had no fused kernel yet */
        im->attention = TR_ATTENTION_PLAIN;
}

/* The order of the stages, where the source names one that the columns cannot say. */
static void read_schedule(struct tr_case *c)
{
    struct tr_ask *a = &c->ask;
    if (a->pp == 1)
        return;
    if (has(c, TR_CASE_source, "gpipe"))
        a->schedule = "gpipe";
    if (has(c, TR_CASE_source, "ZB-1p") || has(c, TR_CASE_source, "ZB1P") || has(c, TR_CASE_source, "ZB-H1"))
        a->schedule = "zb";
    a->is_bound = has(c, TR_CASE_source, "ZB-2p") || has(c, TR_CASE_source, "ZB-H2") || has(c, TR_CASE_source, "ZB-V");
    if (has(c, TR_CASE_source, "interleaved") && c->field[TR_CASE_vpp][0] == '\0') /* torchtitan's own choice */
        a->chunks = 2;
}

static bool is_formula(const struct tr_case *c)
{
    return has(c, TR_CASE_metric, "model_state") || has(c, TR_CASE_metric, "max_params") ||
           has(c, TR_CASE_metric, "busbw");
}

void tr_case_resolve(struct tr_case *c)
{
    c->has_ask = false;
    c->reason[0] = '\0';
    c->impl = *tr_impl_of_source(c->field[TR_CASE_source]);
    if (is_formula(c))
        return;
    if (tr_machine_find(c->field[TR_CASE_gpu], &c->machine) != TR_OK) {
        say(c, "%.150s", tr_error_text());
        tr_error_clear();
        return;
    }
    c->ask = tr_ask_of_one(&c->machine);
    c->ask.impl = &c->impl;
    refine_impl(c);
    c->ask.keep = read_keep(c);
    if (!read_shape(c))
        return;
    read_precision(c);
    if (!read_layout(c))
        return;
    read_precision(c);
    if (!read_batch(c))
        return;
    read_schedule(c);
    c->has_ask = true;
}
