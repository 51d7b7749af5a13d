/* explain.c - what is behind the loss of a step: the step is made again, and before its update every sample is read
 * once more for the loss of each token.
 *
 * A spike has a cause in the data (a few tokens or one record) or in the model (a layer whose gradient is far larger
 * than in the steps around it), so both are listed. Steps around it are those on the way to it and a few after it:
 * their gradients are made anyway.
 */
#include "train/replay_impl.h"
#include <math.h>
#include <stdlib.h>

enum { AROUND = 16, AFTER = 4, STEPS_MAX = AROUND + AFTER + 1 };

struct explaining {
    struct tr_explain *out;
    int n_layers;        /* segments of the model */
    double *norm;        /* (STEPS_MAX, n_layers) */
    double *params;      /* by parameter */
    int n_steps, i_step; /* steps whose norms are known; which of them is the one that is explained */
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n == 0 ? NAN : n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* ---- layers ---- */

static enum tr_status look_at_layers(void *ctx, struct tr_trainer *t, const struct tr_step_batch *b)
{
    struct explaining *w = ctx;
    const struct tr_model *m = t->s->model;
    (void)b;
    TR_PASS(tr_exec_drain(t->e));
    tr_exec_param_norms(t->e, w->params);
    double *norm = w->norm + w->n_steps++ * w->n_layers;
    for (int s = 0; s < m->n_segments; s++) {
        double sum = 0;
        for (int i = 0; i < m->program[m->segment[s].program]->n_params; i++)
            sum += w->params[m->segment[s].param[i]] * w->params[m->segment[s].param[i]];
        norm[s] = sqrt(sum);
    }
    return TR_OK;
}

static double ratio(const struct tr_explain_layer *l)
{
    return l->usual > 0 ? l->norm / l->usual : l->norm;
}

/* Keeps the largest of a list in order. */
static void keep_layer(struct tr_explain *e, const struct tr_explain_layer *l)
{
    int at = e->n_layers;
    while (at > 0 && ratio(l) > ratio(&e->layer[at - 1]))
        at--;
    if (at == TR_EXPLAIN_LAYERS)
        return;
    e->n_layers += e->n_layers < TR_EXPLAIN_LAYERS;
    memmove(&e->layer[at + 1], &e->layer[at], (size_t)(e->n_layers - 1 - at) * sizeof *l);
    e->layer[at] = *l;
}

static void rank_layers(struct explaining *w, const struct tr_model *m)
{
    double others[STEPS_MAX];
    w->out->n_around = w->n_steps - 1;
    for (int s = 0; s < w->n_layers; s++) {
        struct tr_explain_layer l = { .norm = w->norm[w->i_step * w->n_layers + s] };
        int n = 0;
        for (int k = 0; k < w->n_steps; k++)
            if (k != w->i_step)
                others[n++] = w->norm[k * w->n_layers + s];
        l.usual = median(others, n);
        if (m->segment[s].layer >= 0)
            (void)snprintf(l.name, sizeof l.name, "layer %d", m->segment[s].layer);
        else
            (void)snprintf(l.name, sizeof l.name, "%s", m->program[m->segment[s].program]->name);
        keep_layer(w->out, &l);
    }
}

/* ---- samples and tokens ---- */

static void keep_loss(struct tr_explain_loss *list, int *n, int n_max, const struct tr_explain_loss *x)
{
    int at = *n;
    while (at > 0 && (x->loss > list[at - 1].loss || isnan(x->loss)))
        at--;
    if (at == n_max)
        return;
    *n += *n < n_max;
    memmove(&list[at + 1], &list[at], (size_t)(*n - 1 - at) * sizeof *x);
    list[at] = *x;
}

static double capped(const struct tr_hparams *hp, float x)
{
    return hp->final_softcap > 0 ? hp->final_softcap * tanh((double)x / hp->final_softcap) : (double)x;
}

static double token_loss(const struct tr_hparams *hp, const float *logits, int32_t target)
{
    double top = -INFINITY, sum = 0;
    for (int64_t v = 0; v < hp->vocab; v++)
        top = fmax(top, capped(hp, logits[v]));
    for (int64_t v = 0; v < hp->vocab; v++)
        sum += exp(capped(hp, logits[v]) - top);
    return top + log(sum) - capped(hp, logits[target]);
}

static enum tr_status read_sample(struct explaining *w, struct tr_trainer *t, uint64_t sample)
{
    const struct tr_hparams *hp = &t->s->model->hp;
    int64_t n = t->s->sequence_length, n_counted;
    struct tr_batch b = tr_batch_in(tr_exec_arena(t->e, TR_A_DATA) + t->s->loader_bytes, n);
    const float *logits = NULL;
    struct tr_explain_loss all = { .sample = sample, .token = -1 };
    TR_PASS(tr_data_fill(t->data, sample, 1, sample + 1, &b, &n_counted));
    TR_PASS(tr_exec_logits(t->e, TR_FOR_EVAL, 0, &b, &logits));
    for (int64_t i = 0; i < n; i++) {
        if (b.targets[i] == TR_TARGET_NONE)
            continue;
        double loss = token_loss(hp, logits + i * hp->vocab, b.targets[i]);
        struct tr_explain_loss x = { .sample = sample, .token = i + 1, .id = b.targets[i], .loss = loss };
        keep_loss(w->out->token, &w->out->n_tokens, TR_EXPLAIN_TOKENS, &x);
        all.loss += loss;
        all.n_targets++;
        all.token = all.token < 0 ? x.token : all.token;
    }
    w->out->loss += all.loss;
    w->out->n_targets += all.n_targets;
    all.loss /= (double)tr_max64(1, all.n_targets);
    if (all.n_targets)
        keep_loss(w->out->sample, &w->out->n_samples, TR_EXPLAIN_SAMPLES, &all);
    return TR_OK;
}

static enum tr_status look_at_step(void *ctx, struct tr_trainer *t, const struct tr_step_batch *b)
{
    struct explaining *w = ctx;
    w->i_step = w->n_steps;
    TR_PASS(look_at_layers(ctx, t, b));
    for (uint64_t g = b->first_sample; g < b->first_sample + b->n_samples; g++)
        TR_PASS(read_sample(w, t, g));
    w->out->loss /= (double)tr_max64(1, w->out->n_targets);
    return TR_OK;
}

static void copy_text(char out[TR_EXPLAIN_TEXT], const char *text, size_t n)
{
    (void)snprintf(out, TR_EXPLAIN_TEXT, "%.*s", (int)tr_min64((int64_t)n, TR_EXPLAIN_TEXT - 1), text);
}

/* Where a token comes from, and its text with a little of what stands before it. The last target of a row is in no row,
 * so its record is that of the token before it. */
static enum tr_status name_loss(const struct tr_trainer *t, struct tr_explain_loss *x)
{
    enum tr_status st = TR_OK;
    struct tr_data_record r;
    struct tr_proof_row row = { 0 };
    struct tr_str text = { 0 };
    TR_TRY(tr_data_where(t->data, x->sample, x->token - 1, &r));
    TR_TRY(tr_format(x->path, sizeof x->path, "%s", r.path));
    x->line = r.line;
    if (!t->tok)
        goto out;
    TR_TRY(tr_tokenizer_decode(t->tok, &x->id, 1, &text));
    copy_text(x->text, text.p ? text.p : "", text.n);
    TR_TRY(tr_data_prove(t->data, t->tok, x->sample, &row));
    const struct tr_proof_token *k = &row.tokens[x->token - 1];
    size_t end = (size_t)(k->text - row.text.p) + k->n_text, n = end < TR_EXPLAIN_TEXT / 2 ? end : TR_EXPLAIN_TEXT / 2;
    copy_text(x->before, row.text.p + end - n, n);
out:
    tr_proof_row_release(&row);
    tr_str_release(&text);
    return st;
}

/* ---- the log around the step ---- */

static enum tr_status read_log(const struct tr_config *cfg, struct tr_explain *e)
{
    double loss[2 * AROUND], norm[2 * AROUND];
    char path[TR_PATH_MAX];
    struct tr_events *log = NULL;
    struct tr_event x;
    TR_PASS(tr_path_join(path, cfg->output, TR_NAME_EVENTS));
    TR_PASS(tr_events_open(path, 0, &log));
    tr_events_be_brief(log);
    while (tr_events_next(log, &x)) {
        if (x.kind != TR_EVENT_STEP || llabs(x.step - e->step) > AROUND)
            continue;
        if (x.step == e->step) {
            e->recorded = (struct tr_replay_numbers){ true, x.loss, x.grad_norm };
        } else if (e->n_logged < 2 * AROUND) {
            loss[e->n_logged] = x.loss;
            norm[e->n_logged++] = x.grad_norm;
        }
    }
    tr_events_close(log);
    e->usual_loss = median(loss, e->n_logged);
    e->usual_norm = median(norm, e->n_logged);
    return TR_OK;
}

enum tr_status tr_explain(const struct tr_config *cfg, struct tr_explain *out)
{
    enum tr_status st = TR_OK;
    struct tr_trainer t = { .use = TR_TRAINER_REPLAYS, .reserve = -1 };
    struct explaining w = { .out = out };
    *out = (struct tr_explain){ .step = cfg->step };
    if (cfg->task != TR_TASK_SFT)
        TR_TRY(tr_fail(TR_USAGE, "explain lists the losses of tokens, and task %s has losses of pairs; replay works",
                       tr_config_word("task", (int)cfg->task)));
    TR_TRY(read_log(cfg, out));
    TR_TRY(tr_replay_open(cfg, cfg->step + AFTER, &t));
    out->from = t.first_step;
    w.n_layers = t.s->model->n_segments;
    w.norm = calloc((size_t)w.n_layers * STEPS_MAX, sizeof *w.norm);
    w.params = calloc((size_t)t.s->model->n_params, sizeof *w.params);
    if (!w.norm || !w.params)
        TR_TRY(tr_fail(TR_NOMEM, "explain: out of memory"));
    for (int64_t step = t.first_step; step < t.stop; step++) {
        struct tr_replay_numbers made;
        bool is_it = step + 1 == cfg->step, is_near = step + 1 >= cfg->step - AROUND;
        TR_TRY(tr_replay_step(&t, step, is_it ? look_at_step : is_near ? look_at_layers : NULL, &w, &made));
        if (is_it)
            out->made = made;
    }
    rank_layers(&w, t.s->model);
    for (int i = 0; i < out->n_samples; i++)
        TR_TRY(name_loss(&t, &out->sample[i]));
    for (int i = 0; i < out->n_tokens; i++)
        TR_TRY(name_loss(&t, &out->token[i]));
out:
    free(w.norm);
    free(w.params);
    tr_trainer_close(&t);
    return st;
}
