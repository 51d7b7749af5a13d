/* cmd_ctl.c - ctl: a request to a running training, and its answer. The request is a signed file that the run reads
 * between two steps; the answer is the `control` event that it logs. `sample` waits for the texts of sample_prompts
 * too; with --prompt it asks for a checkpoint and continues that text with it in this process, so that it costs the run
 * a save and nothing else. */
#include "cli/cli.h"
#include "watch/watch.h"
#include <stdlib.h>
#include <unistd.h>

extern char **environ;

enum { TAIL_BYTES = 1 << 18, POLL_US = 20 * 1000 };

struct ctl {
    const struct tr_config *cfg;
    const char *output, *action;
    char key[64], value[64], id[33];
    bool is_answered, is_accepted;
    int64_t step, n_texts;            /* n_texts: of `sample` that are still to come; -1: it is not known */
    struct tr_str texts;              /* of `sample`: objects, or lines */
    char why[320], path[TR_PATH_MAX]; /* path: the checkpoint that was waited for */
};

static bool is_ours(const struct ctl *c, const struct tr_event *e)
{
    const char *name = "", *id = "";
    if (tr_json_str(e->json, "event", false, &name) != TR_OK || tr_json_str(e->json, "request", false, &id) != TR_OK)
        tr_error_clear();
    return strcmp(name, "control") == 0 && strcmp(id, c->id) == 0;
}

static void take_answer(struct ctl *c, const struct tr_event *e)
{
    const char *why = "";
    c->is_answered = true;
    if (tr_json_bool(e->json, "accepted", false, &c->is_accepted) != TR_OK ||
        tr_json_int(e->json, "step", false, 0, INT64_MAX, &c->step) != TR_OK ||
        tr_json_str(e->json, "why", false, &why) != TR_OK)
        tr_error_clear();
    (void)snprintf(c->why, sizeof c->why, "%s", why);
}

/* A text of sample_prompts. */
static void take_text(struct ctl *c, const struct tr_event *e)
{
    const char *prompt = "", *text = "";
    int64_t index = 0, n = 1;
    if (tr_json_str(e->json, "prompt", false, &prompt) != TR_OK ||
        tr_json_str(e->json, "text", false, &text) != TR_OK ||
        tr_json_int(e->json, "index", false, 0, INT64_MAX, &index) != TR_OK ||
        tr_json_int(e->json, "n", false, 1, INT64_MAX, &n) != TR_OK)
        tr_error_clear();
    c->n_texts = n - index - 1;
    if (!c->cfg->json) {
        tr_str_addf(&c->texts, "%s%s\n", prompt, text);
        return;
    }
    tr_str_member(&c->texts, c->texts.n ? ", {\"prompt\": " : "{\"prompt\": ", prompt);
    tr_str_member(&c->texts, ", \"text\": ", text);
    tr_str_addf(&c->texts, "}");
}

/* A checkpoint of exactly this step may have been there before the request: then none is written, and
 * no event comes. */
static void find_checkpoint(struct ctl *c)
{
    char path[TR_PATH_MAX];
    if (c->path[0] || !c->is_accepted)
        return;
    if (tr_ckpt_step_path(c->output, c->step, path) == TR_OK && tr_dir_exists(path))
        (void)snprintf(c->path, sizeof c->path, "%s", path);
    tr_error_clear();
}

/* Reads the log until the answer is there and, of a save, its checkpoint, of `sample` all texts; or until --wait is
 * over.
 */
static enum tr_status wait_answer(struct ctl *c, bool wants_checkpoint)
{
    char path[TR_PATH_MAX];
    struct tr_events *log = NULL;
    struct tr_event e;
    int64_t end_us = tr_clock_us() + (int64_t)(c->cfg->wait * 1e6);
    enum tr_status st = tr_path_join(path, c->output, TR_NAME_EVENTS);
    if (st == TR_OK)
        st = tr_events_open(path, TAIL_BYTES, &log);
    if (st != TR_OK)
        return st;
    tr_events_follow(log);
    for (;;) {
        const char *saved = "";
        bool is_over = tr_clock_us() >= end_us; /* read once more after the end */
        while (tr_events_next(log, &e)) {
            if (is_ours(c, &e))
                take_answer(c, &e);
            if (e.kind == TR_EVENT_SAMPLE && c->is_answered && c->n_texts != 0)
                take_text(c, &e);
            if (e.kind == TR_EVENT_CHECKPOINT && c->is_answered && e.step >= c->step && !c->path[0] &&
                tr_json_str(e.json, "path", false, &saved) == TR_OK)
                (void)snprintf(c->path, sizeof c->path, "%s", saved);
        }
        if (wants_checkpoint && c->is_answered)
            find_checkpoint(c);
        bool is_done = c->is_answered && (!c->is_accepted || ((!wants_checkpoint || c->path[0]) && c->n_texts == 0));
        if (is_done || is_over)
            break;
        usleep(POLL_US);
    }
    tr_events_close(log);
    return TR_OK;
}

static void show(const struct ctl *c)
{
    struct tr_str out = { 0 };
    char why[400];
    if (c->cfg->json) {
        tr_str_addf(&out, "{\"request\": \"%s\", \"action\": \"%s\", \"answered\": %s, \"accepted\": %s", c->id,
                    c->action, c->is_answered ? "true" : "false", c->is_accepted ? "true" : "false");
        if (c->is_answered)
            tr_str_addf(&out, ", \"step\": %" PRId64, c->step);
        if (c->path[0]) {
            tr_str_member(&out, ", \"path\": ", c->path);
        }
        if (c->why[0]) {
            tr_str_member(&out, ", \"why\": ", c->why);
        }
        if (c->texts.n)
            tr_str_addf(&out, ", \"texts\": [%s]", c->texts.p);
        tr_str_addf(&out, "}\n");
    } else if (!c->is_answered) {
        tr_str_addf(&out, "%s: asked for; the run has not answered within %g s: it reads requests between two steps\n",
                    c->action, c->cfg->wait);
    } else if (!c->is_accepted) {
        tr_str_addf(&out, "%s: refused after step %" PRId64 ": %s\n", c->action, c->step,
                    tr_escape(c->why, why, sizeof why));
    } else {
        tr_str_addf(&out, "%s%s%s%s%s: after step %" PRId64 "%s%s\n", c->action, c->key[0] ? " " : "", c->key,
                    c->key[0] ? "=" : "", c->value, c->step, c->path[0] ? ", in " : "", c->path);
    }
    cli_print(tr_str_ok(&out) ? out.p : "");
    if (!c->cfg->json && c->texts.n && tr_str_ok(&c->texts))
        cli_print_foreign(c->texts.p, c->texts.n);
    tr_str_release(&out);
}

/* A run that was killed has left its key, and would never answer. Ranks of other hosts cannot be asked. */
static enum tr_status check_is_alive(const char *output)
{
    struct tr_ranks ranks = { 0 };
    bool is_dead = false;
    if (tr_ranks_open(output, &ranks) == TR_OK)
        tr_ranks_read(output, &ranks);
    for (int r = 0; r < ranks.n; r++)
        is_dead |= !ranks.row[r].is_ended && !ranks.row[r].is_alive;
    is_dead = is_dead && tr_ranks_have_ended(&ranks);
    tr_ranks_release(&ranks);
    tr_error_clear();
    return is_dead ? tr_fail(TR_USAGE, "%s: no run takes requests there: it was killed; --resume continues it", output)
                   : TR_OK;
}

static enum tr_status ask(struct ctl *c, const char *action, bool wants_checkpoint)
{
    enum tr_status st = check_is_alive(c->output);
    if (st == TR_OK)
        st = tr_control_send(c->output, action, c->key, c->value, c->cfg->wait, c->id);
    if (st == TR_OK && c->cfg->wait > 0)
        st = wait_answer(c, wants_checkpoint);
    return st;
}

/* Continues --prompt with the checkpoint, on the CPU: the run has the GPU. */
static enum tr_status sample(struct ctl *c)
{
    char tokens[32];
    static char model[] = "--model", prompt[] = "--prompt", device[] = "--device", cpu[] = "cpu",
                n_new[] = "--max_new_tokens", json[] = "--json";
    const struct tr_config *cfg = NULL;
    TR_PASS(ask(c, "save", true));
    if (!c->path[0]) {
        show(c);
        return tr_fail(TR_TIMEOUT, "sample: no checkpoint within %g s; ask again with a longer --wait", c->cfg->wait);
    }
    (void)snprintf(tokens, sizeof tokens, "%" PRId64, c->cfg->max_new_tokens);
    char *text = strdup(c->cfg->prompt);
    char *argv[] = { model, c->path, prompt, text, device, cpu, n_new, tokens, c->cfg->json ? json : NULL };
    if (!text)
        return tr_fail(TR_NOMEM, "no memory for the prompt");
    enum tr_status st = tr_config_load(TR_VERB_GENERATE, (int)TR_COUNT_OF(argv) - !c->cfg->json, argv, environ, &cfg);
    if (st == TR_OK)
        st = cmd_generate(cfg);
    tr_config_close(cfg);
    free(text);
    return st;
}

/* "learning_rate=1e-4" */
static enum tr_status split(struct ctl *c, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals)
        return tr_fail(TR_USAGE, "ctl OUTPUT set %s: write NAME=VALUE, as in learning_rate=1e-4", text);
    enum tr_status st = tr_format(c->key, sizeof c->key, "%.*s", (int)(equals - text), text);
    return st == TR_OK ? tr_format(c->value, sizeof c->value, "%s", equals + 1) : st;
}

enum tr_status cmd_ctl(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    enum tr_control_action parsed = TR_CONTROL_NONE;
    struct ctl c = { .cfg = cfg, .output = cfg->args.n > 0 ? cfg->args.item[0] : NULL };
    bool is_set = cfg->args.n >= 2 && strcmp(cfg->args.item[1], "set") == 0;
    if (cfg->args.n != (is_set ? 3u : 2u))
        return tr_verb_misused(TR_VERB_CTL);
    c.action = cfg->args.item[1];
    bool is_sample = strcmp(c.action, "sample") == 0;
    if (is_sample && cfg->prompt) {
        if (!(cfg->wait > 0))
            return tr_fail(TR_USAGE, "ctl OUTPUT sample --prompt needs a --wait above 0: it waits for a checkpoint");
        return sample(&c);
    }
    c.n_texts = is_sample ? -1 : 0;
    TR_TRY(tr_control_parse(c.action, &parsed));
    if (is_set)
        TR_TRY(split(&c, cfg->args.item[2]));
    TR_TRY(ask(&c, c.action, parsed == TR_CONTROL_SAVE || parsed == TR_CONTROL_STOP));
    show(&c);
    if (cfg->wait > 0 && !(c.is_answered && c.is_accepted))
        st = TR_NO;
out:
    tr_str_release(&c.texts);
    return st;
}
