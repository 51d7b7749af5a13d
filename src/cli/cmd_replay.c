/* cmd_replay.c - trireme replay OUTPUT --step N: a step is made again, and compared with the log and with another
 * replay. */
#include "cli/cli.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAST_LINE_MAX = 1 << 28 };

/* What another replay printed: the last line of its file. */
static enum tr_status load_other(const char *path, int64_t step, cJSON **out)
{
    enum tr_status st = TR_OK;
    char *text = NULL;
    size_t n = 0;
    int64_t theirs = 0;
    TR_TRY(tr_file_read(path, LAST_LINE_MAX, &text, &n));
    while (n > 0 && text[n - 1] == '\n')
        text[--n] = 0;
    const char *newline = n ? strrchr(text, '\n') : NULL, *last = newline ? newline + 1 : text;
    TR_TRY(tr_json_parse(last, strlen(last), path, out));
    TR_TRY(tr_json_int(*out, "step", true, 1, INT64_C(1) << 52, &theirs));
    if (theirs != step)
        st = tr_fail(TR_USAGE, "against %s: it is of step %" PRId64 ", and this is step %" PRId64, path, theirs, step);
out:
    free(text);
    return st;
}

struct comparison {
    double loss, grad_norm;      /* of the other */
    int n_common, n_off, n_only; /* gradients: in both, of them with other bits, in one only */
    int worst;                   /* the one whose norm is off by the largest share; -1: none */
    double worst_norm, worst_share;
    bool is_equal;
};

static double number_of(const cJSON *j, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(j, key);
    return cJSON_IsNumber(x) ? x->valuedouble : NAN;
}

static void compare_gradient(const struct tr_fingerprint *g, int i, const cJSON *other, struct comparison *c)
{
    char hex[17];
    const cJSON *hash = cJSON_GetObjectItemCaseSensitive(other, "hash");
    double norm = number_of(other, "norm"), share = fabs(g->norm[i] - norm) / fmax(fabs(norm), 1e-300);
    (void)snprintf(hex, sizeof hex, "%016" PRIx64, g->hash[i]);
    c->n_common++;
    c->n_off += !cJSON_IsString(hash) || strcmp(hash->valuestring, hex) != 0;
    if (c->worst < 0 || !(share <= c->worst_share)) {
        c->worst = i;
        c->worst_share = share;
        c->worst_norm = norm;
    }
}

static void compare(const struct tr_replay *r, const cJSON *other, struct comparison *c)
{
    const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(other, "gradients"), *at = theirs ? theirs->child : NULL;
    const struct tr_fingerprint *g = &r->gradients;
    *c = (struct comparison){ number_of(other, "loss"), number_of(other, "grad_norm"), .worst = -1 };
    for (int i = 0; i < g->n; i++) { /* both are in the order of the model */
        if (!g->name[i])
            continue;
        const cJSON *found = at ? at : NULL, *name = NULL;
        for (; found; found = found->next)
            if ((name = cJSON_GetObjectItemCaseSensitive(found, "name")) != NULL && cJSON_IsString(name) &&
                strcmp(name->valuestring, g->name[i]) == 0)
                break;
        if (!found) {
            c->n_only++;
            continue;
        }
        compare_gradient(g, i, found, c);
        at = found->next;
    }
    c->n_only += cJSON_GetArraySize(theirs) - c->n_common;
    c->is_equal = c->n_off + c->n_only == 0 && tr_replay_same(r->made.loss, c->loss) &&
                  tr_replay_same(r->made.grad_norm, c->grad_norm);
}

static void add_number(struct tr_str *out, const char *key, double x)
{
    if (isfinite(x))
        tr_str_addf(out, "%s%.17g", key, x);
    else
        tr_str_addf(out, "%snull", key);
}

static void add_json(const struct tr_replay *r, const struct comparison *c, struct tr_str *out)
{
    const struct tr_fingerprint *g = &r->gradients;
    tr_str_addf(out, "{\"step\":%" PRId64 ",\"from\":%" PRId64, r->step, r->from);
    add_number(out, ",\"loss\":", r->made.loss);
    add_number(out, ",\"grad_norm\":", r->made.grad_norm);
    if (r->recorded.exists) {
        add_number(out, ",\"recorded\":{\"loss\":", r->recorded.loss);
        add_number(out, ",\"grad_norm\":", r->recorded.grad_norm);
        tr_str_addf(out, "}");
    } else {
        tr_str_addf(out, ",\"recorded\":null");
    }
    tr_str_addf(out, ",\"is_equal\":%s,\"first_different\":", r->is_equal ? "true" : "false");
    if (r->first_off < 0)
        tr_str_addf(out, "null");
    else
        tr_str_addf(out, "%" PRId64, r->first_off);
    if (c) {
        tr_str_addf(out, ",\"against\":{\"is_equal\":%s", c->is_equal ? "true" : "false");
        add_number(out, ",\"loss\":", c->loss);
        add_number(out, ",\"grad_norm\":", c->grad_norm);
        tr_str_addf(out, ",\"gradients\":%d,\"different\":%d,\"missing\":%d", c->n_common, c->n_off, c->n_only);
        if (c->worst >= 0) {
            tr_str_member(out, ",\"worst\":{\"name\":", g->name[c->worst]);
            add_number(out, ",\"share\":", c->worst_share);
            tr_str_addf(out, "}");
        }
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, ",\"gradients\":[");
    for (int i = 0, n = 0; i < g->n; i++)
        if (g->name[i]) {
            tr_str_member(out, n++ ? ",{\"name\":" : "{\"name\":", g->name[i]);
            add_number(out, ",\"norm\":", g->norm[i]);
            tr_str_addf(out, ",\"hash\":\"%016" PRIx64 "\"}", g->hash[i]);
        }
    tr_str_addf(out, "]}\n");
}

static void add_against(const struct tr_replay *r, const struct comparison *c, const char *path, struct tr_str *out)
{
    if (c->is_equal) {
        tr_str_addf(out, "%s: equal to the bit, loss, norm and %d gradients\n", path, c->n_common);
        return;
    }
    tr_str_addf(out, "%s: loss %.17g (off by %.3g of it), norm %.17g (%.3g); %d of %d gradients have other bits\n",
                path, c->loss, fabs(r->made.loss - c->loss) / fabs(c->loss), c->grad_norm,
                fabs(r->made.grad_norm - c->grad_norm) / fabs(c->grad_norm), c->n_off, c->n_common);
    if (c->n_only)
        tr_str_addf(out, "  %d parameters learn in one of the two only\n", c->n_only);
    if (c->worst >= 0 && c->worst_share > 0)
        tr_str_addf(out, "  furthest apart: %s, norm %.9g here and %.9g there\n", r->gradients.name[c->worst],
                    r->gradients.norm[c->worst], c->worst_norm);
}

static void add_text(const struct tr_replay *r, struct tr_str *out)
{
    tr_str_addf(out, "step %" PRId64 ": loss %.17g, gradient norm %.17g\n", r->step, r->made.loss, r->made.grad_norm);
    if (!r->recorded.exists)
        tr_str_addf(out, "the log: has no such step\n");
    else if (r->is_equal)
        tr_str_addf(out, "the log: equal to the bit\n");
    else
        tr_str_addf(out, "the log: loss %.17g, gradient norm %.17g\n", r->recorded.loss, r->recorded.grad_norm);
    if (r->from > 0)
        tr_str_addf(out, "from checkpoint-%" PRId64, r->from);
    else
        tr_str_addf(out, "from the start of the run");
    tr_str_addf(out, ", %" PRId64 " steps", r->step - r->from);
    if (r->first_off >= 0)
        tr_str_addf(out, "; the first that is not as logged is step %" PRId64 "\n", r->first_off);
    else
        tr_str_addf(out, "\n");
}

enum tr_status cmd_replay(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct tr_replay r = { 0 };
    struct comparison c;
    struct tr_str out = { 0 };
    cJSON *other = NULL;
    if (cfg->args.n != 1 || cfg->step < 1)
        return tr_verb_misused(TR_VERB_REPLAY);
    if (cfg->against)
        TR_TRY(load_other(cfg->against, cfg->step, &other));
    TR_TRY(tr_replay(cfg, &r));
    if (other)
        compare(&r, other, &c);
    if (!r.is_first) /* one rank answers: a launcher ends the others when the first of them says no */
        goto out;
    if (cfg->json) {
        add_json(&r, other ? &c : NULL, &out);
    } else {
        add_text(&r, &out);
        if (other)
            add_against(&r, &c, cfg->against, &out);
    }
    if (!tr_str_ok(&out))
        TR_TRY(tr_fail(TR_NOMEM, "replay: out of memory"));
    cli_print(out.p);
    st = (other ? c.is_equal : r.is_equal) ? TR_OK : TR_NO;
out:
    cJSON_Delete(other);
    tr_str_release(&out);
    tr_replay_release(&r);
    return st;
}
