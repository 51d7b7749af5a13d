/* cmd_explain.c - trireme explain OUTPUT --step N: samples, tokens and layers behind the loss of a step. */
#include "cli/cli.h"
#include <math.h>

static void add_number(struct tr_str *out, const char *key, double x)
{
    tr_str_addf(out, "%s", key);
    if (isfinite(x))
        tr_str_addf(out, "%.9g", x);
    else
        tr_str_addf(out, "null");
}

static void add_place(const struct tr_explain_loss *x, struct tr_str *out)
{
    tr_str_member(out, ",\"path\":", x->path);
    tr_str_addf(out, ",\"line\":%" PRId64 "}", x->line);
}

static void add_json(const struct tr_explain *e, struct tr_str *out)
{
    tr_str_addf(out, "{\"step\":%" PRId64 ",\"from\":%" PRId64, e->step, e->from);
    add_number(out, ",\"loss\":", e->made.loss);
    add_number(out, ",\"grad_norm\":", e->made.grad_norm);
    add_number(out, ",\"recorded\":{\"loss\":", e->recorded.loss);
    add_number(out, ",\"grad_norm\":", e->recorded.grad_norm);
    add_number(out, "},\"usual\":{\"loss\":", e->usual_loss);
    add_number(out, ",\"grad_norm\":", e->usual_norm);
    tr_str_addf(out, ",\"steps\":%d},\"targets\":%" PRId64, e->n_logged, e->n_targets);
    add_number(out, ",\"token_loss\":", e->loss);
    tr_str_addf(out, ",\"samples\":[");
    for (int i = 0; i < e->n_samples; i++) {
        const struct tr_explain_loss *x = &e->sample[i];
        tr_str_addf(out, "%s{\"sample\":%" PRIu64 ",\"targets\":%" PRId64, i ? "," : "", x->sample, x->n_targets);
        add_number(out, ",\"loss\":", x->loss);
        add_place(x, out);
    }
    tr_str_addf(out, "],\"tokens\":[");
    for (int i = 0; i < e->n_tokens; i++) {
        const struct tr_explain_loss *x = &e->token[i];
        tr_str_addf(out, "%s{\"sample\":%" PRIu64 ",\"token\":%" PRId64 ",\"id\":%d", i ? "," : "", x->sample, x->token,
                    (int)x->id);
        tr_str_member(out, ",\"text\":", x->text);
        tr_str_member(out, ",\"before\":", x->before);
        add_number(out, ",\"loss\":", x->loss);
        add_place(x, out);
    }
    tr_str_addf(out, "],\"layers\":[");
    for (int i = 0; i < e->n_layers; i++) {
        tr_str_member(out, i ? ",{\"name\":" : "{\"name\":", e->layer[i].name);
        add_number(out, ",\"norm\":", e->layer[i].norm);
        add_number(out, ",\"usual\":", e->layer[i].usual);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "],\"steps_around\":%d}\n", e->n_around);
}

static void add_where(const struct tr_explain_loss *x, struct tr_str *out)
{
    char esc[400];
    tr_str_addf(out, "%s", tr_escape(x->path, esc, sizeof esc));
    if (x->line > 0)
        tr_str_addf(out, ":%" PRId64, x->line);
    tr_str_addf(out, "\n");
}

static void add_text(const struct tr_explain *e, struct tr_str *out)
{
    char text[4 * TR_EXPLAIN_TEXT], before[4 * TR_EXPLAIN_TEXT];
    tr_str_addf(out, "step %" PRId64 ": loss %.6g, gradient norm %.6g; ", e->step, e->made.loss, e->made.grad_norm);
    tr_str_addf(out, "usual in the %d steps around it: %.6g and %.6g\n", e->n_logged, e->usual_loss, e->usual_norm);
    tr_str_addf(out, "samples by their mean loss (all %" PRId64 " targets: %.6g)\n", e->n_targets, e->loss);
    for (int i = 0; i < e->n_samples; i++) {
        tr_str_addf(out, "  %9.4f  sample %" PRIu64 ", %" PRId64 " targets, ", e->sample[i].loss, e->sample[i].sample,
                    e->sample[i].n_targets);
        add_where(&e->sample[i], out);
    }
    tr_str_addf(out, "tokens by their loss\n");
    for (int i = 0; i < e->n_tokens; i++) {
        const struct tr_explain_loss *x = &e->token[i];
        tr_str_addf(out, "  %9.4f  \"%s\" after \"%s\", sample %" PRIu64 ", token %" PRId64 ", ", x->loss,
                    tr_escape(x->text, text, sizeof text), tr_escape(x->before, before, sizeof before), x->sample,
                    x->token);
        add_where(x, out);
    }
    if (e->n_around > 0)
        tr_str_addf(out, "layers by their gradient norm, against %d steps around it\n", e->n_around);
    else
        tr_str_addf(out, "layers by their gradient norm\n");
    for (int i = 0; i < e->n_layers; i++) {
        const struct tr_explain_layer *l = &e->layer[i];
        tr_str_addf(out, "  %9.4g  %s", l->norm, l->name);
        if (e->n_around > 0)
            tr_str_addf(out, ", usually %.4g", l->usual);
        tr_str_addf(out, "\n");
    }
}

enum tr_status cmd_explain(const struct tr_config *cfg)
{
    static struct tr_explain e;
    enum tr_status st = TR_OK;
    struct tr_str out = { 0 };
    if (cfg->args.n != 1 || cfg->step < 1)
        return tr_verb_misused(TR_VERB_EXPLAIN);
    TR_TRY(tr_explain(cfg, &e));
    (cfg->json ? add_json : add_text)(&e, &out);
    if (!tr_str_ok(&out))
        TR_TRY(tr_fail(TR_NOMEM, "explain: out of memory"));
    cli_print(out.p);
out:
    tr_str_release(&out);
    return st;
}
