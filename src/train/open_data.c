/* open_data.c - the data that the options name, opened with the tokenizer and the chat template of the model. Train,
 * eval and `data` share it. */
#include "train/train.h"
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

/* A directory without a tokenizer is a model that learns from ids; the data room refuses texts for it, by name. */
static bool has_tokenizer(const char *dir)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json" };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++)
        if (tr_dir_has(dir, names[i]))
            return true;
    return false;
}

static bool needs_tokenizer(const char *dir, const struct tr_data_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        size_t n = strlen(list->item[i].path);
        if (n < 6 || strcmp(list->item[i].path + n - 6, ".trtok") != 0)
            return has_tokenizer(dir);
    }
    return false;
}

/* The options' words are the data room's, in its order. */
static_assert((int)TR_FORMAT_COUNT == (int)TR_SHAPE_COUNT && (int)TR_FORMAT_TOKENS == (int)TR_SHAPE_TOKENS &&
                  (int)TR_TRAIN_ON_ALL == (int)TR_MASK_ALL && (int)TR_PACKING_NONE == (int)TR_PACK_NONE &&
                  (int)TR_DOCUMENTS_REFUSE == (int)TR_LONG_REFUSE,
              "same order");

/* May rows be read before all text is tokenised? Their number is not known then. */
static bool may_stream(const struct tr_config *c)
{
    return c->max_steps > 0 && c->train_sampling_strategy == TR_SAMPLING_RANDOM && !(c->eval_split > 0) &&
           c->task == TR_TASK_SFT && c->eval_strategy != TR_WHEN_EPOCH && c->save_strategy != TR_WHEN_EPOCH;
}

static struct tr_data_options data_options(const struct tr_config *cfg, const struct tr_setup *s,
                                           const struct tr_data_list *list, bool is_training)
{
    enum { LARGE_BYTES = 1 << 30 };
    const struct tr_model *m = s->model ? s->model : s->eval_model;
    bool is_asked = cfg->streaming == TR_STREAMING_ON;
    bool is_sequential = cfg->train_sampling_strategy == TR_SAMPLING_SEQUENTIAL;
    return (struct tr_data_options){
        .row_tokens = s->sequence_length,
        .seed = (uint64_t)cfg->data_seed,
        .shuffle = is_training && !is_sequential,
        .in_order = is_training && is_sequential,
        .vocab_size = m->hp.vocab,
        .shape = (enum tr_shape)cfg->data_format,
        .text_key = cfg->text_key,
        .fetch_command = cfg->fetch_command,
        .mask = (enum tr_chat_mask)cfg->train_on,
        .reads_weights = cfg->loss_weights,
        .weighs = cfg->loss_weights && is_training,
        .weighs_tails = cfg->ld_alpha < 1,
        .tail_weight = (float)cfg->ld_alpha,
        .wants_pairs = cfg->task != TR_TASK_SFT && cfg->task != TR_TASK_KTO,
        .wants_labels = cfg->task == TR_TASK_KTO,
        .packing = (enum tr_packing)cfg->packing,
        .how_long = (enum tr_long)cfg->long_documents,
        .max_skipped = cfg->max_skipped,
        .n_threads = s->n_threads,
        .held_out = list == &cfg->data ? cfg->eval_split : 0,
        .is_held_out_side = !is_training,
        .streams = is_training && (is_asked || (cfg->streaming == TR_STREAMING_AUTO && may_stream(cfg))),
        .streams_from = is_asked ? 0 : LARGE_BYTES,
        .most_samples = cfg->max_steps > 0 ? (uint64_t)cfg->max_steps * (uint64_t)cfg->train_batch_size : 0,
        .on_make = s->on_make,
        .on_make_ctx = s->on_make_ctx,
    };
}

/* A verb that reads must not write into a model's directory, which may be shared or read-only. The cache of a run,
 * where the model is one's output, is used; else a directory of this user, one for each model. */
enum tr_status tr_reader_cache(const struct tr_config *cfg, char out[TR_PATH_MAX])
{
    char base[TR_PATH_MAX], lock[TR_PATH_MAX], hex[33], name[48];
    enum tr_status st = TR_OK;
    TR_TRY(tr_path_join(out, cfg->output ? cfg->output : cfg->model, TR_NAME_CACHE));
    TR_TRY(tr_path_join(lock, out, "lock")); /* other programs have a .cache in a model's directory too */
    if (cfg->output || access(lock, W_OK) == 0)
        return TR_OK;
    char *path = realpath(cfg->model, NULL);
    tr_hash_hex(tr_hash(path ? path : cfg->model, strlen(path ? path : cfg->model)), hex);
    free(path);
    TR_TRY(tr_user_cache(base));
    TR_TRY(tr_format(name, sizeof name, "data-%s", hex));
    TR_TRY(tr_path_join(out, base, name));
out:
    return st == TR_OK ? TR_OK : tr_fail_at(st, "no place for the cache of tokens, name one with --output: ");
}

/* The first n records of a source, as the path would say it: "PATH#SPLIT[:n]". */
static enum tr_status first_records(const char *path, int64_t n, char out[TR_PATH_MAX])
{
    const char *split = tr_file_exists(path) || tr_dir_exists(path) ? NULL : strrchr(path, '#');
    const char *slice = split ? strchr(split, '[') : NULL;
    long long first = 0;
    int n_slice = 0;
    if (slice && sscanf(slice, "[:%18lld]%n", &first, &n_slice) == 1 && n_slice > 0 && !slice[n_slice] && first > 0)
        return tr_format(out, TR_PATH_MAX, "%.*s[:%" PRId64 "]", (int)(slice - path), path,
                         first < n ? (int64_t)first : n);
    if (slice)
        return tr_fail(TR_USAGE, "%s has a slice already; leave it or max_samples %" PRId64 " out", path, n);
    return tr_format(out, TR_PATH_MAX, "%s%s[:%" PRId64 "]", path, split ? "" : "#", n);
}

enum tr_status tr_open_data(const struct tr_config *cfg, const struct tr_setup *s, const struct tr_data_list *list,
                            bool is_training, const char *cache_dir, struct tr_tokenizer **tokenizer,
                            struct tr_data **out)
{
    enum tr_status st = TR_OK;
    struct tr_chat *chat = NULL;
    struct tr_data_options opt = data_options(cfg, s, list, is_training);
    const char **paths = calloc(list->n, sizeof *paths), **maps = calloc(list->n, sizeof *maps);
    double *weights = calloc(list->n, sizeof *weights);
    int64_t most = list == &cfg->data && cfg->verb != TR_VERB_EVAL ? cfg->max_samples : cfg->max_eval_samples;
    char(*cut)[TR_PATH_MAX] = calloc(list->n, sizeof *cut);
    if (!paths || !maps || !weights || !cut)
        TR_TRY(tr_fail(TR_NOMEM, "data: out of memory"));
    for (size_t i = 0; i < list->n; i++) {
        if (most > 0)
            TR_TRY(first_records(list->item[i].path, most, cut[i]));
        paths[i] = most > 0 ? cut[i] : list->item[i].path;
        maps[i] = list->item[i].map;
        weights[i] = list->item[i].weight;
    }
    if (!*tokenizer && needs_tokenizer(s->from.text, list))
        TR_TRY(tr_tokenizer_open(s->from.text, tokenizer));
    st = tr_chat_open(s->from.text, cfg->chat_template, &chat);
    if (st != TR_OK && cfg->chat_template)
        goto out;
    tr_error_clear(); /* a model without a template trains on everything but conversations */
    if (chat)
        TR_TRY(tr_chat_set_all(chat, cfg->chat_template_kwargs));
    opt.weights = weights;
    opt.maps = maps;
    opt.chat = chat;
    opt.chat_date = cfg->chat_date;
    opt.cache_dir = cache_dir;
    TR_TRY(tr_data_open(paths, list->n, *tokenizer, &opt, out));
    tr_data_keep(*out, chat);
    chat = NULL;
out:
    tr_chat_close(chat);
    free(paths);
    free(maps);
    free(weights);
    free(cut);
    return st;
}

/* Which options have no effect is known of the configuration alone (config/idle.c), but for those of records. */
void tr_note_idle_data(const struct tr_config *cfg, const struct tr_data *d, struct tr_str *out)
{
    size_t n;
    const struct tr_data_file *f = tr_data_files(d, &n);
    bool has_prompts = false, has_chat = false, is_cut = false;
    if (tr_data_rows(d) == 0) /* a stream, of which only the first files are known */
        return;
    for (size_t i = 0; i < n; i++) {
        bool is_known = f[i].shape != TR_SHAPE_AUTO;
        has_prompts = has_prompts || (f[i].shape != TR_SHAPE_TEXT && f[i].shape != TR_SHAPE_TOKENS);
        has_chat = has_chat || f[i].uses_chat || !is_known;
        is_cut = is_cut || f[i].packing != TR_PACK_STREAM;
    }
    if (cfg->train_on != TR_TRAIN_ON_ASSISTANT && !has_prompts)
        tr_str_addf(out, "train_on %s has no effect: the data is text without prompts\n",
                    tr_config_word("train_on", (int)cfg->train_on));
    if (cfg->chat_template_kwargs && !has_chat)
        tr_str_addf(out, "chat_template_kwargs has no effect: the data has no conversations\n");
    if (cfg->chat_date && !has_chat)
        tr_str_addf(out, "chat_date has no effect: the data has no conversations\n");
    if (cfg->long_documents != TR_DOCUMENTS_FIT && !is_cut)
        tr_str_addf(out, "long_documents %s has no effect with packing stream, which splits text into rows\n",
                    tr_config_word("long_documents", (int)cfg->long_documents));
}
