/* card.c - the texts beside exported weights: the model card, the Modelfile of Ollama, and the lines to type next.
 *
 * Facts come from the directory that is exported: config.json, and the state and the log of its checkpoint when it is
 * one. What is not known is left out. Strings go into YAML as JSON strings, which YAML takes.
 */
#include "export/export_impl.h"
#include <math.h>

const char tr_export_attributes[] = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
                                    "*.gguf filter=lfs diff=lfs merge=lfs -text\n"
                                    "tokenizer.json filter=lfs diff=lfs merge=lfs -text\n";

const char *tr_export_name(const struct tr_exporting *x)
{
    const char *last = strrchr(x->job->out, '/');
    return last && last[1] ? last + 1 : x->job->out;
}

static enum tr_status load(const char *dir, const char *name, cJSON **out)
{
    char path[TR_PATH_MAX];
    enum tr_status st = tr_path_join(path, dir, name);
    return st == TR_OK && tr_file_exists(path) ? tr_json_load(path, 64 << 20, out) : st;
}

/* A name of the hub: two plain words. Anything else is a path of this machine, which is nobody else's business. */
static const char *hub_name(const struct tr_model *m)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(m->config, "_name_or_path");
    const char *name = cJSON_IsString(item) ? item->valuestring : "", *slash = strchr(name, '/');
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./");
    bool is_name = slash && slash != name && slash[1] && !strchr(slash + 1, '/') && name[0] != '.' && name[n] == 0;
    return is_name ? name : NULL;
}

/* The last value of a key in the log of the run; NAN: there is none. */
static double last_logged(const cJSON *state, const char *key)
{
    const cJSON *log = cJSON_GetObjectItemCaseSensitive(state, "log_history");
    double value = NAN;
    for (const cJSON *e = cJSON_IsArray(log) ? log->child : NULL; e; e = e->next) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(e, key);
        if (cJSON_IsNumber(x))
            value = x->valuedouble;
    }
    return value;
}

static void add_front(const struct tr_exporting *x, const cJSON *log, struct tr_str *out)
{
    bool is_gguf = tr_export_is_gguf(x->job->to);
    const char *base = hub_name(x->model);
    double loss = last_logged(log, "eval_loss");
    tr_str_addf(out, "---\nlibrary_name: %s\npipeline_tag: text-generation\n", is_gguf ? "gguf" : "transformers");
    if (base) {
        tr_str_addf(out, "base_model: ");
        tr_str_json(out, base);
        tr_str_addf(out, "\n");
    }
    tr_str_addf(out, "tags:\n- trireme\n%s%s", is_gguf ? "- gguf\n- llama.cpp\n" : "",
                x->text.chat ? "- conversational\n" : "");
    if (isfinite(loss)) { /* the hub takes results with a task, a dataset and metrics only */
        tr_str_addf(out, "model-index:\n- name: ");
        tr_str_json(out, tr_export_name(x));
        tr_str_addf(out,
                    "\n  results:\n  - task:\n      type: text-generation\n    dataset:\n      name: eval_data of the "
                    "run\n      type: text\n    metrics:\n    - type: loss\n      value: %.6g\n    - type: perplexity\n"
                    "      value: %.6g\n",
                    loss, exp(loss));
    }
    tr_str_addf(out, "---\n\n");
}

static void add_numbers(const struct tr_exporting *x, struct tr_str *out)
{
    const struct tr_hparams *hp = &x->model->hp;
    char count[32];
    tr_str_addf(out, "| | |\n|---|---|\n| architecture | %s |\n| parameters | %s |\n", x->model->arch->class_name,
                tr_human_count((double)x->model->n_elements, count, sizeof count));
    tr_str_addf(out, "| layers, width, heads | %" PRId64 ", %" PRId64 ", %" PRId64 " |\n", hp->layers, hp->hidden,
                hp->n_heads_q);
    tr_str_addf(out, "| vocabulary | %" PRId64 " |\n| positions | %" PRId64 " |\n", hp->vocab, hp->max_positions);
    if (tr_export_is_gguf(x->job->to))
        tr_str_addf(out, "| file | `%s` |\n", x->file);
    if (x->job->rows->n > 0)
        tr_str_addf(out,
                    "| distance from the trained weights | mean KL divergence %.3g, largest difference of a logit "
                    "%.3g |\n",
                    x->result->distance.kl, x->result->distance.max_logit_diff);
}

/* What the checkpoint knows of its run. */
static void add_training(const cJSON *state, const cJSON *log, struct tr_str *out)
{
    static const char *const facts[] = { "step", "tokens", "samples", "world" };
    const cJSON *origin = cJSON_GetObjectItemCaseSensitive(state, "origin");
    const cJSON *inputs = cJSON_GetObjectItemCaseSensitive(state, "inputs");
    const cJSON *words = cJSON_GetObjectItemCaseSensitive(origin, "command");
    double loss = last_logged(log, "loss");
    if (!state)
        return;
    tr_str_addf(out, "\n## Training\n\n| | |\n|---|---|\n");
    for (size_t i = 0; i < TR_COUNT_OF(facts); i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(state, facts[i]);
        if (cJSON_IsNumber(v))
            tr_str_addf(out, "| %s | %.15g |\n", facts[i], v->valuedouble);
    }
    if (isfinite(loss))
        tr_str_addf(out, "| loss at the end | %.6g |\n", loss);
    for (const cJSON *k = cJSON_IsObject(inputs) ? inputs->child : NULL; k; k = k->next)
        if (cJSON_IsNumber(k))
            tr_str_addf(out, "| %s | %.15g |\n", k->string, k->valuedouble);
        else if (cJSON_IsString(k) && strlen(k->valuestring) < 64 && !strpbrk(k->valuestring, "|\n`"))
            tr_str_addf(out, "| %s | %s |\n", k->string, k->valuestring);
    if (!cJSON_IsArray(words))
        return;
    tr_str_addf(out, "\nTo train it again:\n\n    trireme");
    for (const cJSON *w = words->child ? words->child->next : NULL; w; w = w->next) {
        tr_str_addf(out, " ");
        tr_str_shell(out, cJSON_IsString(w) ? w->valuestring : "?");
    }
    tr_str_addf(out, "\n");
}

enum tr_status tr_export_card(const struct tr_exporting *x, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    cJSON *state = NULL, *log = NULL;
    TR_TRY(load(x->job->dir, "trireme/state.json", &state));
    TR_TRY(load(x->job->dir, "trainer_state.json", &log));
    add_front(x, log, out);
    tr_str_addf(out, "# %s\n\nTrained with Trireme " TR_VERSION ".\n\n", tr_export_name(x));
    add_numbers(x, out);
    tr_str_addf(out, "\n## Use\n\n");
    if (tr_export_is_gguf(x->job->to))
        tr_str_addf(out, "    llama-cli -m %s%s\n", x->file, x->text.chat ? " -cnv" : " -p 'Once upon a time'");
    else
        tr_str_addf(out,
                    "    from transformers import pipeline\n"
                    "    pipe = pipeline(\"text-generation\", model=\".\")\n"
                    "    print(pipe(%s))\n",
                    x->text.chat ? "[{\"role\": \"user\", \"content\": \"Hello\"}]" : "\"Once upon a time\"");
    add_training(state, log, out);
    if (!tr_str_ok(out))
        st = tr_fail(TR_NOMEM, "README.md: out of memory");
out:
    cJSON_Delete(state);
    cJSON_Delete(log);
    return st;
}

/* A stop in quotes of a Modelfile; texts with quotes or line ends cannot be written there. */
static void add_stop(const struct tr_tokenizer *tok, int32_t id, struct tr_str *out)
{
    const char *text = NULL;
    size_t n = 0;
    if (tr_tokenizer_token(tok, id, &text, &n) == TR_TOKEN_NONE || n == 0 || memchr(text, '"', n) ||
        memchr(text, '\n', n))
        return;
    tr_str_addf(out, "PARAMETER stop \"%.*s\"\n", (int)n, text);
}

enum tr_status tr_export_modelfile(const struct tr_exporting *x, struct tr_str *out)
{
    tr_str_addf(out, "FROM ./%s\nPARAMETER num_ctx %" PRId64 "\n", x->file, tr_min64(x->model->hp.max_positions, 8192));
    for (size_t i = 0; x->text.tok && i < x->text.stops.n; i++)
        add_stop(x->text.tok, x->text.stops.p[i], out);
    return tr_str_ok(out) ? TR_OK : tr_fail(TR_NOMEM, "Modelfile: out of memory");
}

void tr_export_next(const struct tr_exporting *x, struct tr_str *out)
{
    bool is_gguf = tr_export_is_gguf(x->job->to);
    if (x->job->to == TR_EXPORT_OLLAMA) {
        tr_str_addf(out, "cd ");
        tr_str_shell(out, x->job->out);
        tr_str_addf(out, " && ollama create ");
        tr_str_shell(out, tr_export_name(x));
        tr_str_addf(out, " -f Modelfile\n");
    } else if (is_gguf) {
        tr_str_addf(out, "llama-cli -m ");
        tr_str_shell(out, x->job->out);
        tr_str_addf(out, "/%s\n", x->file);
    } else {
        tr_str_addf(out, "vllm serve ");
        tr_str_shell(out, x->job->out);
        tr_str_addf(out, "\n");
    }
    tr_str_addf(out, "hf upload ORG/");
    tr_str_shell(out, tr_export_name(x));
    tr_str_addf(out, " ");
    tr_str_shell(out, x->job->out);
    tr_str_addf(out, " .\n");
}
