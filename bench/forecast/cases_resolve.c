/* cases_resolve.c - turns a row of published words into a question for the forecast. What the columns leave out is
 * filled in with what the trainer of that row does by default.
 */
#include "forecast/cases.h"
#include "forecast/guess.h"
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

void tr_case_note(struct tr_case *c, const char *what)
{
    size_t n = strlen(c->note);
    (void)tr_format(c->note + n, sizeof c->note - n, "%s%s", n > 0 ? "; " : "", what);
}

bool tr_case_has(const struct tr_case *c, enum tr_case_column k, const char *word)
{
    for (const char *t = c->field[k]; *t; t++)
        if (strncasecmp(t, word, strlen(word)) == 0)
            return true;
    return false;
}

/* "8192", "8.0", "8,192", "8_192". */
static bool parse_count(const char *text, double *out)
{
    char digits[40];
    size_t n = 0;
    for (const char *t = text; *t && n < sizeof digits - 1; t++)
        if ((*t != ',' && *t != '_') || n == 0)
            digits[n++] = *t;
    digits[n] = '\0';
    return tr_parse_real(digits, out) == TR_OK;
}

/* The whole number in a column, also with separators. An empty column gives the default; def 0: it must be stated. */
static bool count(struct tr_case *c, enum tr_case_column k, const char *name, double def, double *out)
{
    double x = 0;
    char esc[40];
    if (c->field[k][0] == '\0' && def > 0) {
        *out = def;
        return true;
    }
    if (c->field[k][0] == '\0')
        return say(c, "%s is not stated", name);
    if (!parse_count(c->field[k], &x) || x < 0 || x > 1e12 || x != floor(x)) {
        tr_error_clear();
        return say(c, "%s \"%s\" is not a whole number", name, tr_escape(c->field[k], esc, sizeof esc));
    }
    *out = x;
    return true;
}

/* Reads a word and then a whole number of at most nine digits; *at moves past them. */
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
    struct tr_shape_cost *s = &c->query.shape;
    const char *f = c->field[TR_CASE_ffn];
    double n_shared = 0, width = 0;
    if (f[0] == '\0' || (f[0] >= '0' && f[0] <= '9'))
        return count(c, TR_CASE_ffn, "ffn", 4 * s->hidden, &s->ffn);
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

/* By the name of the model: families whose MLP has a gate, and the few with experts whose MLP has none. */
static bool is_gated(const struct tr_case *c)
{
    static const char *const gated[] = { "llama", "qwen", "deepseek", "grok", "oss", "mistral", "mixtral", "gemma" };
    static const char *const plain[] = { "gpt", "nemotron", "switch", "glam" };
    const struct tr_shape_cost *s = &c->query.shape;
    for (size_t i = 0; i < TR_COUNT_OF(gated); i++)
        if (tr_case_has(c, TR_CASE_model, gated[i]))
            return true;
    for (size_t i = 0; s->experts > 0 && i < TR_COUNT_OF(plain); i++)
        if (tr_case_has(c, TR_CASE_model, plain[i]))
            return false;
    return s->experts > 0 || s->ffn != 4 * s->hidden;
}

/* The head size and the windows are in the model's config and not in the columns. */
static void read_head_size(struct tr_case *c)
{
    struct tr_shape_cost *s = &c->query.shape;
    s->head_dim = s->hidden / s->heads;
    if (tr_case_has(c, TR_CASE_model, "oss")) { /* every second layer sees 128 tokens */
        s->head_dim = 64;
        s->local_share = 0.5;
    } else if (tr_case_has(c, TR_CASE_model, "qwen3") ||
               fmod(s->hidden, s->heads) != 0) { /* the width is not cut into heads */
        s->head_dim = 128;
    }
}

static bool read_shape(struct tr_case *c)
{
    struct tr_shape_cost *s = &c->query.shape;
    if (!count(c, TR_CASE_layers, "layers", 0, &s->layers) || !count(c, TR_CASE_hidden, "hidden", 0, &s->hidden) ||
        !count(c, TR_CASE_heads, "heads", ceil(s->hidden / 128), &s->heads) ||
        !count(c, TR_CASE_vocab, "vocab", 50304, &s->vocab) || !count(c, TR_CASE_seq, "seq", 0, &c->query.seq) ||
        !read_ffn(c))
        return false;
    if (s->heads < 1 || s->hidden < 1)
        return say(c, "no heads or no width");
    if (c->field[TR_CASE_heads][0] == '\0' || c->field[TR_CASE_vocab][0] == '\0' || c->field[TR_CASE_ffn][0] == '\0')
        tr_case_note(c, "heads, ffn or vocab as usual");
    read_head_size(c);
    if (strcasecmp(c->field[TR_CASE_kv_heads], "MLA") == 0) { /* DeepSeek-V2 and V3 */
        s->kv_heads = s->heads;
        s->head_dim = 128;
        s->q_rank = 1536;
        s->kv_rank = 512;
        s->rope_dim = 64;
    } else if (!count(c, TR_CASE_kv_heads, "kv_heads", s->heads, &s->kv_heads)) {
        return false;
    }
    s->is_gated = is_gated(c);
    if (tr_case_has(c, TR_CASE_model, "deepseek") && tr_case_has(c, TR_CASE_model, "V3") &&
        !tr_case_has(c, TR_CASE_source, "w/o MTP"))
        s->n_further = 1;
    s->is_tied = !s->is_gated && !tr_case_has(c, TR_CASE_model, "nemotron");
    return true;
}

static void read_precision(struct tr_case *c)
{
    struct tr_forecast_query *a = &c->query;
    bool has_tf32 = tr_case_has(c, TR_CASE_precision, "tf32");
    bool is_full =
        (has_tf32 || tr_case_has(c, TR_CASE_precision, "fp32") || tr_case_has(c, TR_CASE_precision, "float32")) &&
        !tr_case_has(c, TR_CASE_precision, "16");
    bool is_fsdp = a->zero == 3 && !tr_case_has(c, TR_CASE_source, "DeepSpeed");
    bool is_byte = tr_case_has(c, TR_CASE_precision, "fp8") || tr_case_has(c, TR_CASE_precision, "float8") ||
                   tr_case_has(c, TR_CASE_precision, "e4m3") || tr_case_has(c, TR_CASE_precision, "e5m2");
    a->precision = tr_case_has(c, TR_CASE_precision, "fp4") ? TR_PRECISION_FP4
                   : is_byte                                ? TR_PRECISION_FP8
                   : is_full                                ? TR_PRECISION_FP32
                                                            : TR_PRECISION_16;
    if (has_tf32 && c->machine.chip.generation >= 80) /* half of what 16 bits reach */
        c->machine.chip.peak[TR_PRECISION_FP32] = c->machine.chip.peak[TR_PRECISION_16] / 2;
    a->casts_rows = tr_case_has(c, TR_CASE_precision, "rowwise");
    if (a->casts_rows)
        a->precision = TR_PRECISION_16;
    a->gather_bytes = 2;
    if (tr_case_has(c, TR_CASE_precision,
                    "amp")) { /* Composer: weights travel as they are stored, autocast makes the copy */
        a->gather_bytes = 4;
        a->cast_bytes = 6;
    }
    a->param_bytes = is_fsdp || is_full ? 4 : 2;
    a->grad_bytes =
        is_fsdp || is_full || tr_case_has(c, TR_CASE_precision, "bf") || a->precision > TR_PRECISION_16 ? 4 : 2;
    a->state_bytes = is_fsdp || is_full ? 8 : 12;
    if (tr_case_has(c, TR_CASE_precision, "PURE")) { /* Mosaic: everything bf16 */
        a->param_bytes = a->grad_bytes = 2;
        a->state_bytes = 4;
    }
}

/* Notes a precision that is not known, and one that the chip has no units for. */
static void note_precision(struct tr_case *c)
{
    static const char *const words[] = { "16", "32", "fp8", "float8", "e4m3", "e5m2", "fp4", "half", "amp", "mixed" };
    enum tr_precision n = c->query.precision;
    bool is_known = c->field[TR_CASE_precision][0] == '\0';
    for (size_t i = 0; i < TR_COUNT_OF(words); i++)
        is_known |= tr_case_has(c, TR_CASE_precision, words[i]);
    if (!is_known)
        tr_case_note(c, "precision as bf16");
    if (n > TR_PRECISION_16 && c->machine.chip.peak[n] <= 0)
        tr_case_note(c, "16-bit products, the chip has none that are smaller");
}

bool tr_case_is_tuning(const struct tr_case *c, bool *is_frozen)
{
    static const char *const frozen[] = { "lora", "peft", "adapter" };
    static const char *const words[] = { "sft", "finetun", "fine-tun", "fine tun" };
    static const enum tr_case_column where[] = { TR_CASE_id, TR_CASE_source, TR_CASE_model };
    bool is_tuning = *is_frozen = false;
    for (size_t k = 0; k < TR_COUNT_OF(where); k++) {
        for (size_t i = 0; i < TR_COUNT_OF(frozen); i++)
            *is_frozen |= tr_case_has(c, where[k], frozen[i]);
        for (size_t i = 0; i < TR_COUNT_OF(words); i++)
            is_tuning |= tr_case_has(c, where[k], words[i]);
    }
    return is_tuning || *is_frozen;
}

static void read_tuning(struct tr_case *c)
{
    struct tr_forecast_query *a = &c->query;
    if (!tr_case_is_tuning(c, &a->is_frozen) || !a->is_frozen)
        return;
    a->grad_bytes = a->state_bytes = 0;
    a->param_bytes = tr_case_has(c, TR_CASE_source, "qlora") || tr_case_has(c, TR_CASE_model, "qlora") ? 0.6 : 2;
}

static bool is_one_of(const char *word, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(word, words[i]) == 0)
            return true;
    return false;
}

/* "selective-op", "Selective op", "selective+sp"; an unknown word counts as not stated. */
static enum tr_keep read_keep(struct tr_case *c)
{
    static const char *const all[] = {
        "full", "full+sp", "block", "uniform", "true", "yes", "on", "1", "all", "layer"
    };
    static const char *const none[] = { "none", "no", "off", "false", "0", "none+sp", "sp", "flash" };
    const char *r = c->field[TR_CASE_recompute];
    if (is_one_of(r, all, TR_COUNT_OF(all)))
        return TR_KEEP_INPUT;
    if (strncasecmp(r, "selective", 9) == 0) {
        const char *what = r[9] ? r + 10 : "";
        return strncasecmp(what, "op", 2) == 0      ? TR_KEEP_OP
               : strncasecmp(what, "layer", 5) == 0 ? TR_KEEP_HALF
                                                    : TR_KEEP_CORE;
    }
    if (*r && !is_one_of(r, none, TR_COUNT_OF(none)))
        tr_case_note(c, "recompute as fits");
    return is_one_of(r, none, TR_COUNT_OF(none)) ? TR_KEEP_ALL : TR_KEEP_AUTO;
}

/* "1", "1.0", "ZeRO-2", "stage 3", "FSDP": the first digit, or a word. */
static bool read_zero(struct tr_case *c, double *out)
{
    const char *z = c->field[TR_CASE_zero_stage], *digit = strpbrk(z, "0123456789");
    char esc[40];
    *out = 0;
    if (digit && *digit <= '3' && (digit[1] < '0' || digit[1] > '9'))
        *out = *digit - '0';
    else if (tr_case_has(c, TR_CASE_zero_stage, "sdp") && !digit)
        *out = 3;
    else if (tr_case_has(c, TR_CASE_zero_stage, "dist") && !digit)
        *out = 1;
    else if (*z && strcasecmp(z, "ddp") != 0)
        return say(c, "zero_stage \"%s\" is not 0 to 3", tr_escape(z, esc, sizeof esc));
    return true;
}

/* tp and pp where the row does not state them. One rank each where data ranks fill the cluster or weights are sharded
 * (ZeRO 3). Otherwise tensor ranks fill a node, and pp is the fastest number of stages that fits the chip, because a
 * published run was tuned. When none fits, the largest legal number: the run is known to have fitted. */
static void choose_layout(struct tr_case *c, double chips, double dp, double *tp, double *pp)
{
    struct tr_forecast_query *a = &c->query;
    struct tr_forecast f;
    double domain = fmin(c->machine.domain, 8), others = fmax(1, *tp) * fmax(1, *pp);
    if (a->zero == 3 || (dp > 0 && (dp * others == chips || dp * others * a->cp == chips)))
        *tp = fmax(1, *tp), *pp = fmax(1, *pp);
    if (*tp == 0)
        for (*tp = fmin(domain, chips); fmod(a->shape.heads, *tp) != 0 && *tp > 1;)
            --*tp;
    double most = 0, best = 0, global = 0, chosen = 0;
    (void)parse_count(c->field[TR_CASE_global_batch], &global);
    for (double p = 1; *pp == 0 && p <= a->shape.layers; p++) {
        double rest = chips / (*tp * p * a->cp);
        if (fmod(a->shape.layers, p) != 0 || rest != floor(rest) || rest < 1 || fmod(global, rest) != 0)
            continue;
        struct tr_forecast_query b = *a;
        most = p;
        b.tp = (int)*tp;
        b.pp = (int)p;
        b.dp = (int)rest;
        b.chunks = p > 1 && c->trainer->interleaves ? (int)(a->shape.layers / p) : 1;
        b.micro = 1;
        b.global = global > 0 ? global : rest * 4 * p;
        b.keep = TR_KEEP_CORE;
        b.has_sp = *tp > 1 && c->trainer->has_sp;
        if (tr_forecast(&b, &f) != TR_OK || f.total_bytes >= 0.9 * c->machine.chip.memory_bytes ||
            f.tokens_per_s <= best)
            continue;
        best = f.tokens_per_s;
        chosen = p;
    }
    if (*pp == 0)
        *pp = chosen > 0 ? chosen : most;
    tr_error_clear();
}

/* A column that may be blank; blank is 0. */
static bool maybe(struct tr_case *c, enum tr_case_column k, const char *name, double *out)
{
    *out = 0;
    return c->field[k][0] == '\0' || count(c, k, name, 0, out);
}

static bool read_layout(struct tr_case *c)
{
    struct tr_forecast_query *a = &c->query;
    double chips, tp, pp, vpp, cp, dp, ep, zero, fit = 0;
    if (!maybe(c, TR_CASE_tp, "tp", &tp) || !maybe(c, TR_CASE_pp, "pp", &pp) || !maybe(c, TR_CASE_dp, "dp", &dp) ||
        !count(c, TR_CASE_cp, "cp", 1, &cp) || !count(c, TR_CASE_ep, "ep", 1, &ep) ||
        !count(c, TR_CASE_vpp, "vpp", 1, &vpp) || !read_zero(c, &zero) ||
        !count(c, TR_CASE_gpus, "gpus", tp * pp * cp * dp, &chips))
        return false;
    if (chips < 1 || chips > 1e6 || cp < 1 || cp > 1e4 || ep < 1 || ep > 1e5 || vpp < 1 || vpp > 1e4 || tp > 1e5 ||
        pp > 1e4 || dp > 1e6)
        return say(c, "a layout of %.0f gpus: tp %.0f pp %.0f vpp %.0f cp %.0f dp %.0f ep %.0f cannot be", chips, tp,
                   pp, vpp, cp, dp, ep);
    a->cp = (int)cp;
    a->zero = (int)zero;
    if (tp == 0 || pp == 0)
        choose_layout(c, chips, dp, &tp, &pp);
    if (tp == 0 || pp == 0)
        return say(c, "tp and pp are not stated, and none go into %.0f gpus", chips);
    fit = tp * pp * cp;
    if (dp > 0 && cp > 1 && dp * tp * pp == chips)
        dp /= cp; /* context ranks counted among the data ranks, as torch does */
    if (dp == 0)
        dp = chips / fit;
    if (dp * fit != chips || dp != floor(dp))
        return say(c, "tp %.0f x pp %.0f x cp %.0f x dp %.0f is not %.0f gpus", tp, pp, cp, dp, chips);
    a->tp = (int)tp;
    a->pp = (int)pp;
    a->chunks = (int)vpp;
    a->dp = (int)dp;
    a->ep = (int)ep;
    if (a->zero == 3 && a->pp > 1 && strncmp(c->trainer->name, "fsdp", 4) == 0)
        a->zero = 1; /* torch: between micro-batches of a pipeline weights and gradients stay whole */
    a->splits_experts = a->shape.ffn > a->shape.hidden; /* few wide experts; many narrow ones stay whole */
    a->has_sp = tp > 1 && (tr_case_has(c, TR_CASE_recompute, "sp") || c->trainer->has_sp);
    return true;
}

static bool is_even(const struct tr_forecast_query *a)
{
    double n = (double)a->pp * a->chunks;
    return fmod(a->shape.layers, n) == 0 || fmod(a->shape.layers + 2, n) == 0;
}

/* Micro-batch and chunks where the row does not state them: the fastest that fit, because published runs are tuned.
 * When nothing fits by the forecast, the forecast is wrong about bytes, and the fastest of all is taken. */
static void choose_rest(struct tr_case *c, bool any_micro, bool any_chunks)
{
    double best = 0, local = c->query.global / c->query.dp, room = 0.95 * c->machine.chip.memory_bytes;
    int most = any_chunks ? (int)fmax(1, c->query.shape.layers / c->query.pp) : c->query.chunks;
    for (int is_strict = 1; is_strict >= 0 && best == 0; is_strict--) {
        struct tr_forecast_query b = c->query;
        for (b.chunks = any_chunks ? 1 : most; b.chunks <= most; b.chunks++)
            for (b.micro = any_micro ? 1 : c->query.micro; b.micro <= local && fmod(local, b.micro) == 0;
                 b.micro *= 2) {
                struct tr_forecast f;
                if ((is_strict && any_chunks && !is_even(&b)) || tr_forecast(&b, &f) != TR_OK ||
                    (is_strict && f.total_bytes > room))
                    break;
                if (f.tokens_per_s > best) {
                    best = f.tokens_per_s;
                    c->query.micro = b.micro;
                    c->query.chunks = b.chunks;
                }
                if (!any_micro)
                    break;
            }
    }
    tr_error_clear();
}

/* The batch, with defaults for what is not stated. */
static bool read_batch(struct tr_case *c)
{
    struct tr_forecast_query *a = &c->query;
    bool has_micro = c->field[TR_CASE_micro_batch][0] != '\0', is_layer = tr_case_has(c, TR_CASE_metric, "layer_");
    bool any_chunks = a->pp > 1 && c->field[TR_CASE_vpp][0] == '\0' && c->trainer->interleaves;
    if (!count(c, TR_CASE_micro_batch, "micro_batch", 1, &a->micro))
        return false;
    if (a->micro < 1)
        return say(c, "a micro-batch of no rows");
    /* default: enough micro-batches to fill the pipeline */
    double full = a->micro * a->dp * (a->pp > 1 && !is_layer ? 4 * a->pp : 1);
    if (!count(c, TR_CASE_global_batch, "global_batch", has_micro ? full : 0, &a->global))
        return false;
    if (c->field[TR_CASE_global_batch][0] == '\0' && !is_layer)
        tr_case_note(c, "a batch that fills the pipeline");
    if (is_layer)
        a->global = full;
    if (!has_micro && strcmp(c->trainer->name, "fsdp-compile") == 0 && a->pp > 1)
        a->micro = fmax(1, floor(a->global / a->dp / a->pp)); /* torchtitan: as many micro-batches as stages */
    else if ((!has_micro || any_chunks) && !is_layer)
        choose_rest(c, !has_micro, any_chunks);
    return true;
}

double tr_case_release(const struct tr_case *c, const char *trainer)
{
    const char *t = c->field[TR_CASE_source];
    for (; tr_case_has(c, TR_CASE_source, trainer) && *t; t++)
        if (strspn(t, "0123456789") == 2 && t[2] == '.' && strspn(t + 3, "0123456789") == 2)
            return strtod(t, NULL);
    return 0;
}

static void set_trainer(struct tr_case *c, const struct tr_trainer *t)
{
    c->trainer = t;
    c->impl = *t->impl;
}

/* The source says more about the trainer than its name: a release, a mode, a paper. */
static void refine_impl(struct tr_case *c)
{
    struct tr_impl *im = &c->impl;
    double release = tr_case_release(c, "Megatron-Bridge");
    if (strcmp(c->trainer->name, "fsdp-compile") == 0 && !tr_case_has(c, TR_CASE_source, "compile"))
        set_trainer(c, tr_trainer_find("fsdp-eager"));
    if (tr_case_has(c, TR_CASE_source, "2025") || tr_case_has(c, TR_CASE_source, "mxfp8")) /* the loss in chunks */
        im->logits_bytes = 6;
    bool is_megascale = tr_case_has(c, TR_CASE_source, "MegaScale") && !tr_case_has(c, TR_CASE_source, "Megatron");
    bool is_async = tr_case_has(c, TR_CASE_source, "async") && !tr_case_has(c, TR_CASE_source, "vanilla");
    if (is_megascale || is_async || tr_case_has(c, TR_CASE_precision, "async"))
        im->tp_hidden = TR_ASYNCHRONOUS;
    if (tr_case_has(c, TR_CASE_source, "Grattafiori") || tr_case_has(c, TR_CASE_source, "Herd of Models"))
        im->cp_uneven = 0; /* Llama 3's paper: two chunks of a row for each context rank, one early and one late */
    /* graphs of steps with experts need buffers of fixed size, which exchanges inside a rack have */
    bool has_graphs = release >= 26.05 && (c->machine.domain > 8 || !tr_case_has(c, TR_CASE_ffn, "moe"));
    if (release > 0)
        set_trainer(c, tr_trainer_find(has_graphs ? "bridge-graphs" : "bridge"));
    if (tr_case_has(c, TR_CASE_model, "oss") && release < 26.08) /* attention with sinks had no fused kernel yet */
        im->attention = TR_ATTENTION_PLAIN;
}

/* The pipeline schedule has no column: the source may name it. */
static void read_schedule(struct tr_case *c)
{
    struct tr_forecast_query *a = &c->query;
    if (a->pp == 1)
        return;
    if (tr_case_has(c, TR_CASE_source, "gpipe"))
        a->schedule = "gpipe";
    if (tr_case_has(c, TR_CASE_source, "ZB-1p") || tr_case_has(c, TR_CASE_source, "ZB1P") ||
        tr_case_has(c, TR_CASE_source, "ZB-H1"))
        a->schedule = "zb";
    a->is_bound = tr_case_has(c, TR_CASE_source, "ZB-2p") || tr_case_has(c, TR_CASE_source, "ZB-H2") ||
                  tr_case_has(c, TR_CASE_source, "ZB-V");
    if (tr_case_has(c, TR_CASE_source, "interleaved") && c->field[TR_CASE_vpp][0] == '\0') /* torchtitan's own choice */
        a->chunks = 2;
}

static bool is_formula(const struct tr_case *c)
{
    return tr_case_has(c, TR_CASE_metric, "model_state") || tr_case_has(c, TR_CASE_metric, "max_params") ||
           tr_case_has(c, TR_CASE_metric, "busbw");
}

void tr_case_resolve(struct tr_case *c)
{
    bool is_guess = false;
    c->has_ask = false;
    c->note[0] = '\0';
    (void)tr_format(c->reason, sizeof c->reason, "%s", c->fault);
    set_trainer(c, tr_trainer_of_source(c->field[TR_CASE_source]));
    if (c->fault[0] || is_formula(c))
        return;
    if (tr_machine_guess(c->field[TR_CASE_gpu], &c->machine, &is_guess) != TR_OK) {
        say(c, "%.150s", tr_error_text());
        tr_error_clear();
        return;
    }
    if (is_guess)
        tr_case_note(c, c->machine.name);
    c->query = tr_forecast_query_of_one(&c->machine);
    c->query.impl = &c->impl;
    refine_impl(c);
    c->query.keep = read_keep(c);
    if (!read_shape(c))
        return;
    read_precision(c);
    read_tuning(c);
    if (!read_layout(c))
        return;
    read_precision(c);
    note_precision(c);
    read_tuning(c);
    if (!read_batch(c))
        return;
    read_schedule(c);
    c->has_ask = true;
}
