/* card.c - the texts beside exported weights: the model card, the Modelfile of Ollama, and the lines to type next.
 *
 * Facts come from the directory that is exported: config.json, and the state and the log of its checkpoint when it is
 * one, or when it is the output of a run that ends with one of the same weights. What is not known is left out. Strings
 * go into YAML as JSON strings, which YAML takes.
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

/* The bytes of a file of a directory hash to what a manifest says. */
static bool is_file(const char *dir, const char *name, const char *hex)
{
    char path[TR_PATH_MAX], own[33] = "";
    struct tr_hasher *h = NULL;
    char *buf = malloc(1 << 20);
    FILE *f = tr_path_join(path, dir, name) == TR_OK ? fopen(path, "re") : NULL;
    if (buf && f && tr_hasher_open(&h) == TR_OK) {
        for (size_t n; (n = fread(buf, 1, 1 << 20, f)) > 0;)
            tr_hasher_add(h, buf, n);
        tr_hash_hex(tr_hasher_get(h), own);
    }
    if (f)
        fclose(f);
    tr_hasher_close(h);
    free(buf);
    return strcmp(own, hex) == 0;
}

/* The checkpoint that knows of the training of the weights in `dir`: dir itself, or the newest of its run. "": none. */
static void find_checkpoint(const char *dir, char out[TR_PATH_MAX])
{
    char path[TR_PATH_MAX], *name = NULL;
    cJSON *manifest = NULL;
    const cJSON *file, *files;
    size_t n = 0, n_weights = 0;
    bool is_same = true;
    (void)snprintf(out, TR_PATH_MAX, "%s", dir);
    if (tr_path_join(path, dir, "trireme/state.json") == TR_OK && tr_file_exists(path))
        return;
    *out = '\0';
    if (tr_path_join(path, dir, "latest") != TR_OK || !tr_file_exists(path) ||
        tr_file_read(path, 256, &name, &n) != TR_OK)
        goto out;
    name[strcspn(name, "\n/")] = '\0';
    if (tr_path_join(path, dir, name) != TR_OK || load(path, "trireme/manifest.json", &manifest) != TR_OK)
        goto out;
    files = cJSON_GetObjectItemCaseSensitive(manifest, "files");
    cJSON_ArrayForEach(file, files)
    {
        const char *which = "", *hex = "";
        size_t length;
        if (tr_json_str(file, "name", true, &which) != TR_OK || tr_json_str(file, "xxh3_128", true, &hex) != TR_OK)
            break;
        length = strlen(which);
        if (strchr(which, '/') || length < 12 || strcmp(which + length - 12, ".safetensors") != 0)
            continue;
        n_weights++;
        is_same = is_same && is_file(dir, which, hex);
    }
    if (n_weights > 0 && is_same)
        (void)snprintf(out, TR_PATH_MAX, "%s", path);
out:
    tr_error_clear(); /* a card without these facts is no failure */
    cJSON_Delete(manifest);
    free(name);
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

/* The hub takes results with a task, a dataset and metrics only. */
static void add_result(const struct tr_exporting *x, const char *set, double loss, int *n, struct tr_str *out)
{
    if ((*n)++ == 0) {
        tr_str_addf(out, "model-index:\n- name: ");
        tr_str_json(out, tr_export_name(x));
        tr_str_addf(out, "\n  results:\n");
    }
    tr_str_addf(out, "  - task:\n      type: text-generation\n    dataset:\n      name: ");
    tr_str_json(out, set);
    tr_str_addf(out,
                "\n      type: text\n    metrics:\n    - type: loss\n      value: %.6g\n    - type: perplexity\n"
                "      value: %.6g\n",
                loss, exp(loss));
}

/* A later entry of the log has the key. */
static bool is_later(const cJSON *e, const char *key)
{
    for (; e; e = e->next)
        if (cJSON_GetObjectItemCaseSensitive(e, key))
            return true;
    return false;
}

static void add_front(const struct tr_exporting *x, const cJSON *log, struct tr_str *out)
{
    bool is_gguf = tr_export_is_gguf(x->job->to);
    const char *base = hub_name(x->model);
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(log, "log_history");
    double loss = last_logged(log, "eval_loss");
    int n = 0;
    tr_str_addf(out, "---\nlibrary_name: %s\npipeline_tag: text-generation\n", is_gguf ? "gguf" : "transformers");
    if (base) {
        tr_str_addf(out, "base_model: ");
        tr_str_json(out, base);
        tr_str_addf(out, "\n");
    }
    tr_str_addf(out, "tags:\n- trireme\n%s%s", is_gguf ? "- gguf\n- llama.cpp\n" : "",
                x->text.chat ? "- conversational\n" : "");
    if (isfinite(loss))
        add_result(x, "eval_data of the run", loss, &n, out);
    for (const cJSON *e = cJSON_IsArray(all) ? all->child : NULL; e; e = e->next)
        for (const cJSON *k = e->child; k; k = k->next) {
            size_t length = k->string ? strlen(k->string) : 0;
            char set[80];
            if (length < 11 || length > 80 || strncmp(k->string, "eval_", 5) != 0 ||
                strcmp(k->string + length - 5, "_loss") != 0 || !cJSON_IsNumber(k) || is_later(e->next, k->string))
                continue;
            (void)snprintf(set, sizeof set, "%.*s", (int)(length - 10), k->string + 5);
            add_result(x, set, k->valuedouble, &n, out);
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

/* Every option as it is when nobody gives it; NULL: not known. */
static cJSON *default_options(void)
{
    const struct tr_config *cfg = NULL;
    struct tr_str text = { 0 };
    cJSON *out = NULL;
    if (tr_config_load(TR_VERB_CONFIG, 0, NULL, NULL, &cfg) == TR_OK) {
        tr_config_json(cfg, false, &text);
        if (!tr_str_ok(&text) || tr_json_parse(text.p, text.n, "options", &out) != TR_OK)
            out = NULL;
    }
    tr_error_clear();
    tr_config_close(cfg);
    tr_str_release(&text);
    return out;
}

static bool is_default(const cJSON *defaults, const cJSON *option)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(defaults, option->string);
    return own && cJSON_Compare(own, option, true);
}

/* What the checkpoint knows of its run: the inputs that matter for every run, and those that are not as by default. */
static void add_training(const cJSON *state, const cJSON *log, struct tr_str *out)
{
    static const char *const facts[] = { "step", "tokens", "samples", "world" };
    static const char *const always[] = {
        "train_batch_size", "optim", "learning_rate", "lr_scheduler_type", "task", "dtype", "seed"
    };
    const cJSON *origin = cJSON_GetObjectItemCaseSensitive(state, "origin");
    const cJSON *inputs = cJSON_GetObjectItemCaseSensitive(state, "inputs");
    const cJSON *words = cJSON_GetObjectItemCaseSensitive(origin, "command");
    double loss = last_logged(log, "loss");
    if (!state)
        return;
    cJSON *defaults = default_options();
    tr_str_addf(out, "\n## Training\n\n| | |\n|---|---|\n");
    for (size_t i = 0; i < TR_COUNT_OF(facts); i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(state, facts[i]);
        if (cJSON_IsNumber(v))
            tr_str_addf(out, "| %s | %.15g |\n", facts[i], v->valuedouble);
    }
    if (isfinite(loss))
        tr_str_addf(out, "| loss at the end | %.6g |\n", loss);
    for (const cJSON *k = cJSON_IsObject(inputs) ? inputs->child : NULL; k; k = k->next)
        if (!TR_ROW(always, k->string) && is_default(defaults, k))
            continue;
        else if (cJSON_IsNumber(k))
            tr_str_addf(out, "| %s | %.15g |\n", k->string, k->valuedouble);
        else if (cJSON_IsString(k) && strlen(k->valuestring) < 64 && !strpbrk(k->valuestring, "|\n`"))
            tr_str_addf(out, "| %s | %s |\n", k->string, k->valuestring);
    cJSON_Delete(defaults);
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
    char dir[TR_PATH_MAX];
    find_checkpoint(x->job->dir, dir);
    if (dir[0]) {
        TR_TRY(load(dir, "trireme/state.json", &state));
        TR_TRY(load(dir, "trainer_state.json", &log));
    }
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
