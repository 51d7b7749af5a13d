/* known.c - models by name or by size, for plans and for init: nothing but a config.json is needed there.
 *
 * The derived shape follows Llama: heads of 128 (64 where the model is narrow), 8 key heads from 32 heads on, a width
 * of about 128 times the depth, and an MLP whose width takes up what the other choices leave, so that the sum comes
 * within some tenths of a percent of the size. Rejected: the nearest published model, which is up to a third off.
 */
#include "model/known.h"
#include "base/file.h"
#include "model/model.h"
#include <stdlib.h>

/* ---- by size ---- */

static const double LEAST = 10e6, MOST = 10e12;
enum { VOCAB = 32000, POSITIONS = 8192 };

struct llama_shape {
    int64_t hidden, ffn, layers, heads, kv, head_dim;
    bool is_tied;
};

static bool parse_size(const char *name, double *out)
{
    static const char letters[] = "mMbBtT";
    static const double scale[] = { 1e6, 1e6, 1e9, 1e9, 1e12, 1e12 };
    char number[16];
    size_t n = strlen(name);
    const char *at = n > 1 && n < sizeof number ? strchr(letters, name[n - 1]) : NULL;
    if (!at || tr_format(number, sizeof number, "%.*s", (int)(n - 1), name) != TR_OK ||
        strspn(number, "0123456789.") != n - 1 || tr_parse_real(number, out) != TR_OK) {
        tr_error_clear();
        return false;
    }
    *out *= scale[at - letters];
    return true;
}

static int64_t nearest(double x, int64_t unit)
{
    int64_t n = (int64_t)(x / (double)unit + 0.5) * unit;
    return n < unit ? unit : n;
}

static double tables_of(const struct llama_shape *s)
{
    return (s->is_tied ? 1.0 : 2.0) * VOCAB * (double)s->hidden + (double)s->hidden;
}

static double attention_of(const struct llama_shape *s) /* and the two norms */
{
    double h = (double)s->hidden;
    return 2 * h * h + 2 * h * (double)(s->kv * s->head_dim) + 2 * h;
}

static double count_of(const struct llama_shape *s)
{
    double layer = attention_of(s) + 3 * (double)s->hidden * (double)s->ffn;
    return tables_of(s) + (double)s->layers * layer;
}

static void derive(double size, struct llama_shape *s)
{
    double low = 1, high = 1 << 20;
    *s = (struct llama_shape){ .is_tied = size < 1e9 };
    for (int i = 0; i < 60; i++) { /* 12 D^2 a layer, D / 128 layers, and the tables */
        double h = (low + high) / 2, n = (s->is_tied ? 1 : 2) * VOCAB * h + 12 * h * h * h / 128;
        *(n < size ? &low : &high) = h;
    }
    s->hidden = nearest(low, low >= 1792 ? 1024 : low >= 512 ? 256 : 64);
    s->head_dim = s->hidden >= 2048 ? 128 : 64;
    s->heads = s->hidden / s->head_dim;
    s->kv = s->heads >= 32 ? 8 : s->heads;
    double h = (double)s->hidden, ideal = s->kv < s->heads ? 3.5 * h : h * 8 / 3;
    double layers = (size - tables_of(s)) / (attention_of(s) + 3 * h * ideal);
    s->layers = nearest(layers, layers >= 16 ? 4 : 1);
    s->ffn = nearest(((size - tables_of(s)) / (double)s->layers - attention_of(s)) / (3 * h), h >= 1024 ? 128 : 32);
}

static void write_shape(const struct llama_shape *s, struct tr_str *out)
{
    tr_str_addf(out,
                "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": %d, "
                "\"hidden_size\": %" PRId64 ", \"intermediate_size\": %" PRId64 ", \"num_hidden_layers\": %" PRId64
                ", \"num_attention_heads\": %" PRId64 ", \"num_key_value_heads\": %" PRId64 ", \"head_dim\": %" PRId64
                ", \"hidden_act\": \"silu\", \"max_position_embeddings\": %d, \"rms_norm_eps\": 1e-05, "
                "\"rope_theta\": 500000.0, \"tie_word_embeddings\": %s, \"torch_dtype\": \"bfloat16\"}",
                VOCAB, s->hidden, s->ffn, s->layers, s->heads, s->kv, s->head_dim, POSITIONS,
                s->is_tied ? "true" : "false");
}

static enum tr_status derive_checked(const char *name, double size, struct llama_shape *s)
{
    if (!(size >= LEAST && size <= MOST))
        return tr_fail(TR_USAGE, "model %s: a size is from 10M to 10T parameters", name);
    derive(size, s);
    return TR_OK;
}

/* ---- by name ---- */

/* Words of a tuned or renamed sibling, which has the same shape; versions may have another. */
static bool is_sibling(const char *rest)
{
    static const char *const words[] = { "instruct", "chat", "it", "pt", "hf", "base" };
    size_t n;
    for (; *rest == '-'; rest += n) {
        bool is_word = false;
        n = strcspn(++rest, "-");
        for (size_t i = 0; i < TR_COUNT_OF(words) && !is_word; i++)
            is_word = strlen(words[i]) == n && strncasecmp(rest, words[i], n) == 0;
        if (!is_word)
            return false;
    }
    return *rest == '\0';
}

/* Does `name` say the same as `row`, but for case and the words of a sibling? */
static bool is_same(const char *name, const char *row)
{
    size_t n = strlen(row);
    return strncasecmp(name, row, n) == 0 && is_sibling(name + n);
}

/* ORG/NAME of any ORG that publishes it, and Meta's name in front of its models. */
static const char *bare_name(const char *name)
{
    static const char meta[] = "meta-";
    const char *slash = strchr(name, '/');
    if (slash != NULL && slash != name && name[0] != '.' && strchr(slash + 1, '/') == NULL)
        name = slash + 1;
    return strncasecmp(name, meta, sizeof meta - 1) == 0 ? name + sizeof meta - 1 : name;
}

static bool is_row(const char *name, const cJSON *row)
{
    const cJSON *source = cJSON_GetObjectItemCaseSensitive(row, "source");
    return is_same(bare_name(name), row->string) ||
           (cJSON_IsString(source) && is_same(bare_name(name), bare_name(source->valuestring)));
}

struct known_row {
    cJSON *file; /* the tree that has it; NULL: none has */
    const cJSON *row;
};

static enum tr_status open_file(size_t i, cJSON **out)
{
    return tr_json_parse(tr_known_files[i].text, tr_known_files[i].n, tr_known_files[i].name, out);
}

static enum tr_status find(const char *name, struct known_row *out)
{
    *out = (struct known_row){ 0 };
    for (size_t i = 0; i < tr_n_known_files; i++) {
        cJSON *file = NULL;
        TR_PASS(open_file(i, &file));
        for (const cJSON *row = file->child; row; row = row->next)
            if (is_row(name, row)) {
                *out = (struct known_row){ file, row };
                return TR_OK;
            }
        cJSON_Delete(file);
    }
    return TR_OK;
}

static enum tr_status fail_unknown(const char *name)
{
    char best[64] = "", near[160];
    int least = 1 + (int)strlen(name) / 3;
    for (size_t i = 0; i < tr_n_known_files; i++) {
        cJSON *file = NULL;
        if (open_file(i, &file) != TR_OK)
            return TR_USAGE;
        for (const cJSON *row = file->child; row; row = row->next)
            if (tr_edit_distance(name, row->string) < least) {
                least = tr_edit_distance(name, row->string);
                (void)tr_format(best, sizeof best, "%s", row->string);
            }
        cJSON_Delete(file);
    }
    (void)tr_format(near, sizeof near, "; nor is it a size like 7B or a name of plan --model list%s%s",
                    best[0] ? ", where the nearest is " : "", best);
    return tr_model_missing(name, near);
}

/* ---- both ---- */

enum tr_status tr_known_config(const char *name, char **out)
{
    enum tr_status st = TR_OK;
    struct known_row f = { 0 };
    struct llama_shape s;
    double size = 0;
    if (parse_size(name, &size)) {
        struct tr_str text = { 0 };
        TR_TRY(derive_checked(name, size, &s));
        write_shape(&s, &text);
        TR_TRY(tr_str_check(&text, "model %s", name));
        *out = text.p;
        return TR_OK;
    }
    TR_TRY(find(name, &f));
    if (!f.row)
        TR_TRY(fail_unknown(name));
    *out = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(f.row, "config"));
    if (!*out)
        st = tr_fail(TR_NOMEM, "model %s: out of memory", name);
out:
    cJSON_Delete(f.file);
    return st;
}

static const char *text_of(const cJSON *row, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(row, key);
    return cJSON_IsString(x) ? x->valuestring : "";
}

enum tr_status tr_known_about(const char *name, struct tr_str *out)
{
    struct known_row f = { 0 };
    struct llama_shape s;
    double size = 0;
    char count[32];
    enum tr_status st = TR_OK;
    if (tr_dir_exists(name) || tr_file_exists(name))
        return TR_OK;
    if (parse_size(name, &size)) {
        TR_TRY(derive_checked(name, size, &s));
        tr_str_addf(out,
                    "%s: a shape like Llama's with %s parameters: %" PRId64 " layers, hidden %" PRId64 ", MLP %" PRId64
                    ", %" PRId64 " heads of %" PRId64 " (%" PRId64 " of keys), %d tokens%s",
                    name, tr_human_count(count_of(&s), count, sizeof count), s.layers, s.hidden, s.ffn, s.heads,
                    s.head_dim, s.kv, VOCAB, s.is_tied ? ", tied" : "");
        return TR_OK;
    }
    TR_TRY(find(name, &f));
    if (f.row)
        tr_str_addf(out, "%s: the published shape of %s (read %s)", f.row->string, text_of(f.row, "source"),
                    text_of(f.row, "date"));
out:
    cJSON_Delete(f.file);
    return st;
}

enum tr_status tr_known_json(const char *name, struct tr_str *out)
{
    struct known_row f = { 0 };
    double size = 0;
    char *config = NULL;
    enum tr_status st = TR_OK;
    if (tr_dir_exists(name) || tr_file_exists(name))
        return TR_OK;
    if (!parse_size(name, &size))
        TR_TRY(find(name, &f));
    TR_TRY(tr_known_config(name, &config));
    tr_str_member(out, "{\"name\": ", f.row ? f.row->string : name);
    tr_str_member(out, ", \"source\": ", f.row ? text_of(f.row, "source") : "derived from the size");
    if (f.row) {
        tr_str_member(out, ", \"date\": ", text_of(f.row, "date"));
    }
    tr_str_addf(out, ", \"config\": %s}", config);
out:
    free(config);
    cJSON_Delete(f.file);
    return st;
}

static void add_row(const cJSON *row, bool as_json, bool is_first, struct tr_str *out)
{
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(row, "parameters");
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(row, "config");
    char count[32];
    if (!as_json) {
        tr_str_addf(out, "%-20s %9s  %-12s %s\n", row->string, tr_human_count(n->valuedouble, count, sizeof count),
                    text_of(config, "model_type"), text_of(row, "source"));
        return;
    }
    tr_str_addf(out, "%s{\"name\": ", is_first ? "" : ", ");
    tr_str_json(out, row->string);
    tr_str_member(out, ", \"model_type\": ", text_of(config, "model_type"));
    tr_str_addf(out, ", \"parameters\": %.0f, \"source\": ", n->valuedouble);
    tr_str_json(out, text_of(row, "source"));
    tr_str_member(out, ", \"date\": ", text_of(row, "date"));
    tr_str_addf(out, "}");
}

enum tr_status tr_known_list(bool as_json, struct tr_str *out)
{
    bool is_first = true;
    if (as_json)
        tr_str_addf(out, "{\"models\": [");
    for (size_t i = 0; i < tr_n_known_files; i++) {
        cJSON *file = NULL;
        TR_PASS(open_file(i, &file));
        for (const cJSON *row = file->child; row; row = row->next, is_first = false)
            add_row(row, as_json, is_first, out);
        cJSON_Delete(file);
    }
    tr_str_addf(out, as_json ? "]}\n" : "7B, 350M, ...: any size; a shape like Llama's is derived\n");
    return TR_OK;
}
