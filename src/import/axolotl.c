/* axolotl.c - axolotl's YAML (utils/schemas of axolotl); names that it passes on are TrainingArguments.
 *
 * Each entry of `datasets` is a source of data; what a record holds is seen from the file, so types and fields with the
 * usual names need nothing.
 */
#include "import/shared_rows.h"
#include "import/source.h"

static bool is_axolotl(const struct tree *t)
{
    return tr_tree_find(t, "base_model") != NULL &&
           (tr_tree_has(t, "datasets[]") || tr_tree_has(t, "pretraining_dataset[]") ||
            tr_tree_find(t, "micro_batch_size") != NULL || tr_tree_find(t, "sequence_len") != NULL);
}

/* n times an epoch as a share of the run. */
static bool share_of_run(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *epochs = tr_tree_find(t, "num_epochs");
    double n = 0, m = 1;
    bool is_known = tr_parse_real(leaf->text, &n) == TR_OK && n > 0 &&
                    (epochs == NULL || tr_parse_real(epochs->text, &m) == TR_OK) && m > 0;
    tr_error_clear();
    if (is_known)
        snprintf(out, n_out, "%.9g", 1 / (n * m));
    return is_known && n * m > 1;
}

/* The key is not there at all: an empty value of it is no default. */
static bool not_even_empty(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    (void)out;
    (void)n_out;
    return !tr_tree_has(t, leaf->path);
}

static bool micro_batch(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *micro = tr_tree_find(t, "micro_batch_size");
    (void)leaf;
    snprintf(out, n_out, "%s", micro != NULL ? micro->text : "1");
    return true;
}

static bool share_of_eta(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *peak = tr_tree_find(t, "learning_rate");
    double x = 0, y = 0;
    bool is_known =
        peak != NULL && tr_parse_real(leaf->text, &x) == TR_OK && tr_parse_real(peak->text, &y) == TR_OK && y > 0;
    tr_error_clear();
    if (is_known)
        snprintf(out, n_out, "%.9g", x / y);
    return is_known;
}

/* Keys of an entry that name a column, a member of a message, or a text of the source. */
static const struct {
    const char *theirs, *group, *ours;
} names[] = {
    { "field_messages", "columns", "messages" },
    { "field_tools", "columns", "tools" },
    { "field_system", "columns", "system" },
    { "field", "columns", "text" },
    { "text_column", "columns", "text" },
    { "message_field_role", "message", "role" },
    { "message_field_content", "message", "content" },
    { "message_field_training", "message", "train" },
    { "field_thinking", "message", "reasoning_content" },
    { "type.field_instruction", "columns", "instruction" },
    { "type.field_input", "columns", "input" },
    { "type.field_output", "columns", "output" },
    { "type.field_system", "columns", "system" },
    { "type.system_prompt", NULL, "system" },
    { "type.system_format", NULL, "system_format" },
    { "type.format", NULL, "prompt_format" },
    { "type.no_input_format", NULL, "no_input_format" },
};

static bool is_usual(const char *group, const char *ours, const char *theirs)
{
    return group != NULL && strcmp(ours, theirs) == 0;
}

/* Whether every item of the list is one of the words. */
static bool are_all(const struct leaf *leaf, const char *words)
{
    for (size_t i = 0; i < leaf->n_items; i++)
        if (!tr_words_match(words, &(struct leaf){ .text = leaf->items[i] }))
            return false;
    return leaf->is_list || tr_words_match(words, leaf);
}

/* One key of an entry, `name` in it. */
static void take_name(struct source *s, const struct leaf *leaf, const char *name)
{
    static const char mapping[] = "message_property_mappings.", roles[] = "roles.";
    if (strcmp(name, "roles_to_train") == 0 && !are_all(leaf, "assistant gpt"))
        tr_source_list(s, NULL, "train_roles", leaf);
    if (leaf->is_null)
        return;
    for (size_t i = 0; i < TR_COUNT_OF(names); i++)
        if (strcmp(names[i].theirs, name) == 0 && !is_usual(names[i].group, names[i].ours, leaf->text))
            tr_source_set(s, names[i].group, names[i].ours, leaf->text);
    if (strncmp(name, mapping, sizeof mapping - 1) == 0 && !is_usual("message", name + sizeof mapping - 1, leaf->text))
        tr_source_set(s, "message", name + sizeof mapping - 1, leaf->text);
    if (strcmp(name, "drop_system_message") == 0 && tr_words_match("@on", leaf))
        tr_source_set(s, "roles", "system", NULL);
    if (strncmp(name, roles, sizeof roles - 1) == 0 && !are_all(leaf, "user human assistant gpt system tool"))
        tr_source_list(s, "roles", name + sizeof roles - 1, leaf);
}

/* Records with these names are seen from the file. */
static void drop_usual(struct source *s)
{
    const cJSON *columns = cJSON_GetObjectItemCaseSensitive(s->doc, "columns");
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(s->doc, "message");
    const char *list = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(columns, "messages"));
    const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "role"));
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "content"));
    bool is_sharegpt = role != NULL && text != NULL && strcmp(role, "from") == 0 && strcmp(text, "value") == 0 &&
                       cJSON_GetArraySize(message) == 2;
    if (list == NULL || strcmp(list, "conversations") != 0 || !(is_sharegpt || message == NULL) ||
        cJSON_GetArraySize(columns) != 1 || cJSON_GetArraySize(s->doc) != (message != NULL ? 2 : 1))
        return;
    cJSON_DeleteItemFromObjectCaseSensitive(s->doc, "columns");
    cJSON_DeleteItemFromObjectCaseSensitive(s->doc, "message");
}

/* How the records of the entry are read, in which the leaf stands. */
static void take_entry(struct source *s, const struct tree *t, const struct leaf *leaf)
{
    const char *dot = strrchr(leaf->key, '.');
    size_t n = dot != NULL ? (size_t)(dot - leaf->key) + 1 : 0;
    const struct leaf *type = tr_tree_beside(t, leaf, "type");
    bool is_defined = false;
    if (type != NULL && tr_words_match("input_output input_output.load", type))
        tr_source_set(s, NULL, "format", "input_output");
    else if (type != NULL)
        (void)tr_axolotl_type(s, type->text);
    for (size_t i = 0; i < t->n_leaves; i++)
        if (n != 0 && strncmp(t->leaves[i].key, leaf->key, n) == 0) {
            take_name(s, &t->leaves[i], t->leaves[i].key + n);
            is_defined |= strncmp(t->leaves[i].key + n, "type.", 5) == 0;
        }
    if (is_defined) { /* axolotl's defaults of a type that the file defines */
        tr_source_set(s, NULL, "format", "alpaca");
        if (tr_tree_beside(t, leaf, "type.format") == NULL)
            tr_source_set(s, NULL, "prompt_format", "{instruction} {input} ");
        if (tr_tree_beside(t, leaf, "type.no_input_format") == NULL)
            tr_source_set(s, NULL, "no_input_format", "{instruction} ");
        if (tr_tree_beside(t, leaf, "type.system_format") == NULL)
            tr_source_set(s, NULL, "system_format", "{system}");
    }
    drop_usual(s);
}

/* A path is a file, a directory, a hub name, or the kind of the files that data_files names. */
static void take_path(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row)
{
    const struct leaf *files = tr_tree_beside(t, leaf, "data_files"), *split = tr_tree_beside(t, leaf, "split");
    const struct leaf *config = tr_tree_beside(t, leaf, "name");
    char part[IMPORT_KEY_MAX];
    const struct leaf *type = tr_tree_beside(t, leaf, "type"), *system = tr_tree_find(t, "default_system_message");
    bool is_kind = tr_words_match("json csv text parquet arrow", leaf);
    bool is_hub = !is_kind && tr_source_is_hub(leaf->text);
    enum tr_import_verdict verdict = is_hub ? TR_IMPORT_DIFFERS : row->verdict;
    struct source s;
    tr_source_open(&s);
    take_entry(&s, t, leaf);
    s.split = split != NULL ? split->text : NULL;
    s.config = config != NULL ? config->text : NULL;
    if (tr_source_part(s.split, tr_tree_beside(t, leaf, "weight"), part, sizeof part))
        s.split = part;
    if (system != NULL && tr_words_match("chat_template chat_template.* sharegpt sharegpt*", type))
        tr_source_set(&s, NULL, "system", system->text);
    if (files == NULL)
        tr_source_give(&s, im, t, leaf, verdict, row->sets, leaf->text, is_hub ? SOURCE_HUB : NULL);
    for (size_t i = 0; files != NULL && i < (files->is_list ? files->n_items : 1); i++) {
        char path[TR_PATH_MAX];
        const char *name = files->is_list ? files->items[i] : files->text;
        if (is_kind || tr_path_join(path, leaf->text, name) != TR_OK)
            snprintf(path, sizeof path, "%s", name);
        tr_source_give(&s, im, t, leaf, verdict, row->sets, path, is_hub ? SOURCE_HUB : NULL);
    }
    tr_source_close(&s);
}

/* Whether a type is one whose prompts are texts. */
static bool is_text_type(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    struct source s;
    (void)t;
    tr_source_open(&s);
    bool is_known = tr_axolotl_type(&s, leaf->text);
    tr_source_close(&s);
    snprintf(out, n_out, "%s", leaf->text);
    return is_known;
}

#define LORA         .when = "adapter=lora qlora"
#define NO_RL        "there is no reinforcement learning here"
#define SHAPES       "records have one of the shapes of docs/guide/data.md"
#define OWN_TEMPLATE "the model's own chat template is used; chat_template names another"

/* clang-format off */
/* A map of names and values, or of names and lists: an item NAME=VALUE of the option for each value. */
static void take_names(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                       const struct import_row *row)
{
    size_t n = leaf->is_list ? leaf->n_items : 1;
    const char *name = leaf->path + strcspn(leaf->path, ".") + 1;
    for (size_t i = 0; i < n; i++) {
        char item[2 * IMPORT_KEY_MAX];
        const char *value = leaf->is_list ? leaf->items[i] : leaf->text;
        int k = snprintf(item, sizeof item, "%s=%s", name, value);
        if (k < 0 || (size_t)k >= sizeof item)
            tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, "a value is longer than 255 bytes");
        else
            tr_import_add(im, t, leaf, row->verdict, row->sets, item, row->why);
    }
}

/* A regular expression for the beginning of a name as a pattern for the whole name; false: it says more than a pattern
 * can. */
static bool pattern_of(const char *re, char *out, size_t n_out)
{
    size_t n = 0;
    bool is_open = true; /* the name may go on */
    re += *re == '^';
    for (; *re != '\0' && n + 3 < n_out; re++) {
        size_t n_class = *re == '[' ? strcspn(re, "]") : 0;
        if (*re == '$' && re[1] == '\0') {
            is_open = false;
        } else if (n_class != 0 && re[n_class] == ']' && n + n_class + 3 < n_out) { /* one of these, or some of these */
            memcpy(out + n, re, n_class + 1);
            n += n_class + 1;
            re += n_class;
            if (re[1] == '+')
                re++, out[n++] = '*';
        } else if (*re == '.' && (re[1] == '*' || re[1] == '+')) {
            re++;
            out[n++] = '*';
        } else if (*re == '\\' && re[1] == '.') {
            continue;
        } else if (strchr("[]()|?+*{}\\^$", *re) != NULL) {
            return false;
        } else {
            out[n++] = *re;
        }
    }
    if (is_open)
        out[n++] = '*';
    out[n] = '\0';
    return *re == '\0';
}

/* Names that learn; all others are frozen. */
static void take_unfrozen(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                          const struct import_row *row)
{
    char pattern[IMPORT_KEY_MAX];
    for (size_t i = 0; i < (leaf->is_list ? leaf->n_items : 1); i++) {
        const char *item = leaf->is_list ? leaf->items[i] : leaf->text;
        struct leaf one = *leaf;
        one.text = item;
        if (pattern_of(item, pattern, sizeof pattern))
            tr_import_add(im, t, &one, row->verdict, row->sets, pattern, row->why);
        else
            tr_import_add(im, t, &one, TR_IMPORT_CANNOT, NULL, NULL, "no pattern of names: write one with trainable");
    }
}

static const struct import_row rows[] = {
    { .key = "base_model", TAKEN, .sets = "model_base", .when = "lora_model_dir=@on" },
    SAME("base_model", "model"),
    SAME("lora_model_dir", "model"),
    { .key = "model_type type_of_model cls_model_config", .value = "*ConditionalGeneration *SequenceClassification *TokenClassification", CANNOT, .why = "text only: models that write the next token" },
    { .key = "processor_type", .value = "@on", CANNOT, .why = "text only: there are no images here" },
    IDLE("model_type type_of_model cls_model_config tokenizer_type tokenizer_config tokenizer_legacy tokenizer_use_fast tokenizer_use_mistral_common base_model_config base_model_ignore_patterns is_* revision_of_model trust_remote_code hf_use_auth_token device_map device_map.* low_cpu_mem_usage torchdistx_path model_config_type", "config.json and tokenizer.json of the model say it"),
    { .key = "rope_scaling rope_scaling.* overrides_of_model_config.rope_*", .value = "@on", CANNOT, .why = "config.json of the model says it" },
    { .key = "model_config.* model_kwargs model_kwargs.* overrides_of_model_config overrides_of_model_config.* overrides_of_model_kwargs overrides_of_model_kwargs.*", .value = "@on", DIFFERS, .why = "config.json of the model is used as it is" },

    { .key = "datasets[].path", TAKEN, .sets = "data", .apply = take_path },
    { .key = "pretraining_dataset[].path", TAKEN, .sets = "data", .apply = take_path },
    { .key = "pretraining_dataset", DIFFERS, .sets = "data", .why = "a hub name: it is found in the local cache of the hub, or downloaded first" },
    { .key = "test_datasets[].path", TAKEN, .sets = "eval_data", .apply = take_path },
    { .key = "datasets[].type test_datasets[].type", .value = "chat_template chat_template.* sharegpt sharegpt:* sharegpt.*", DECIDED, .why = "conversations are seen from the records" },
    { .key = "datasets[].type test_datasets[].type pretraining_dataset[].type", .value = "completion pretrain completion:*", DECIDED, .why = "text is seen from the records" },
    { .key = "datasets[].type test_datasets[].type", .value = "metharme metharme.load", DIFFERS, .why = "an answer ends with one EOS token, not with three" },
    { .key = "datasets[].type test_datasets[].type", TAKEN, .convert = is_text_type, .why = "its columns and prompt texts are in data" },
    { .key = "datasets[].type test_datasets[].type", .value = "input_output input_output.load", TAKEN, .why = IN_DATA },
    { .key = "datasets[].type.field_instruction datasets[].type.field_input datasets[].type.field_output datasets[].type.field_system datasets[].type.system_prompt datasets[].type.system_format datasets[].type.format datasets[].type.no_input_format", TAKEN, .why = IN_DATA },
    { .key = "test_datasets[].type.field_instruction test_datasets[].type.field_input test_datasets[].type.field_output test_datasets[].type.field_system test_datasets[].type.system_prompt test_datasets[].type.system_format test_datasets[].type.format test_datasets[].type.no_input_format", TAKEN, .why = IN_DATA },
    { .key = "datasets[].type", .value = "*.argilla* *.intel *.icr *.prompt_pairs *.ultra chatml.* llama3.*", DIFFERS, .when = "rl=dpo orpo kto ipo simpo", .why = "pairs are seen from the records" },
    { .key = "datasets[].type test_datasets[].type datasets[].type.* test_datasets[].type.*", CANNOT, .why = SHAPES },
    { .key = "datasets[].split test_datasets[].split pretraining_dataset[].split", .value = "train", DECIDED, .why = "all of data is used" },
    { .key = "datasets[].split test_datasets[].split pretraining_dataset[].split", TAKEN, .why = IN_DATA },
    { .key = "datasets[].name test_datasets[].name pretraining_dataset[].name", TAKEN, .why = A_PART },
    { .key = "datasets[].shards datasets[].shards_idx datasets[].revision pretraining_dataset[].skip", .value = "@on", CANNOT, .why = "name the files of this part with data" },
    { .key = "datasets[].data_files test_datasets[].data_files pretraining_dataset[].data_files", DECIDED, .why = "files of path" },
    { .key = "datasets[].field_messages datasets[].field_tools datasets[].field_system datasets[].field datasets[].text_column datasets[].field_thinking datasets[].message_property_mappings.* datasets[].message_field_role datasets[].message_field_content datasets[].message_field_training datasets[].roles.* datasets[].roles_to_train datasets[].drop_system_message", TAKEN, .why = IN_DATA },
    { .key = "test_datasets[].field_messages test_datasets[].field_tools test_datasets[].field_system test_datasets[].field test_datasets[].text_column test_datasets[].field_thinking test_datasets[].message_property_mappings.* test_datasets[].message_field_role test_datasets[].message_field_content test_datasets[].message_field_training test_datasets[].roles.* test_datasets[].roles_to_train test_datasets[].drop_system_message", TAKEN, .why = IN_DATA },
    { .key = "pretraining_dataset[].text_column pretraining_dataset[].field", TAKEN, .why = IN_DATA },
    IDLE("datasets[].template_thinking_key test_datasets[].template_thinking_key", "reasoning has both names, reasoning_content and thinking"),
    { .key = "datasets[].train_on_eos datasets[].train_on_eot", .value = "turn", DECIDED, .why = "the end of each trained turn is trained" },
    { .key = "datasets[].chat_template", .value = "tokenizer_default", DECIDED, .why = "the model's own" },
    { .key = "datasets[].chat_template", .value = "jinja", DECIDED, .why = "chat_template_jinja says it" },
    SAME("datasets[].chat_template_jinja", "chat_template"),
    { .key = "datasets[].chat_template", DIFFERS, .why = OWN_TEMPLATE },
    { .key = "datasets[].field_chosen", .value = "chosen", DECIDED, .why = "seen from the records" },
    { .key = "datasets[].field_rejected", .value = "rejected", DECIDED, .why = "seen from the records" },
    IDLE("datasets[].ds_type test_datasets[].ds_type pretraining_dataset[].ds_type datasets[].preprocess_shards datasets[].trust_remote_code", "seen from the name of the file"),
    { .key = "datasets[].weight pretraining_dataset[].weight test_datasets[].weight", .value = "1 1.0", DECIDED, .why = "all of it is used" },
    { .key = "datasets[].weight pretraining_dataset[].weight test_datasets[].weight", DIFFERS, .why = "so much of the data set, from its beginning; axolotl draws it" },
    { .key = "datasets[].* test_datasets[].* pretraining_dataset[].*", .value = "@on", CANNOT, .why = SHAPES },
    { .key = "datasets[] test_datasets[] datasets test_datasets", CANNOT, .why = SHAPES },
    { .key = "val_set_size", .value = "@share", TAKEN, .sets = "eval_split" },
    { .key = "val_set_size", .value = "@on", CANNOT, .why = "eval_split is a share of the rows" },
    IDLE("dataset_prepared_path shuffle_merged_datasets shuffle_before_merging_datasets dataset_processes dataset_num_proc dataset_keep_in_memory skip_prepare_dataset push_dataset_to_hub dataset_shard_num dataset_shard_idx streaming_multipack_buffer_size total_num_tokens pretrain_multipack_attn pretrain_multipack_buffer_size total_supervised_tokens", "rows are made once, before step 0, and shuffled"),
    { .key = "dataset_exact_deduplication", .value = "@on", CANNOT, .why = "every record is used" },
    SAME("streaming", "streaming"),
    { .key = "use_dft", .value = "@on", TAKEN, .sets = "use_dft_loss=true" },
    SAME("sequence_len", "sequence_length"),
    { .key = "sequence_len", .value = "@absent", TAKEN, .sets = "sequence_length=512", .why = "axolotl's default" },
    { .key = "max_packed_sequence_len", .value = "@on", TAKEN, .sets = "packing=bestfit" },
    { .key = "excess_length_strategy", .value = "@absent", TAKEN, .sets = "long_documents=drop", .when = "datasets[].path=@on;!datasets[].type=completion* pretrain", .why = "axolotl's default" },
    { .key = "excess_length_strategy", .value = "drop", TAKEN, .sets = "long_documents=drop" },
    { .key = "excess_length_strategy", .value = "truncate", TAKEN, .sets = "long_documents=cut" },
    { .key = "excess_length_strategy", .value = "raise", TAKEN, .sets = "long_documents=refuse" },
    NOT_ON("min_sample_len", "every record is used"),
    { .key = "sample_packing", .value = "true auto", TAKEN, .sets = "packing=bestfit" },
    { .key = "sample_packing", .value = "@off", TAKEN, .sets = "packing=none" },
    { .key = "sample_packing max_packed_sequence_len pretraining_dataset", .value = "@absent", TAKEN, .sets = "packing=none", .when = "pretraining_dataset[].path=@absent", .why = "axolotl's default: one record a row" },
    { .key = "curriculum_sampling", .value = "@on", TAKEN, .sets = "train_sampling_strategy=sequential" },
    { .key = "sample_packing_sequentially", .value = "@on", DIFFERS, .why = "records of a row are those that fill it; train_sampling_strategy sequential with packing none keeps their order" },
    IDLE("eval_sample_packing pad_to_sequence_len sample_packing_* multipack_real_batches batch_flattening", "rows have one length; what is left is not computed with"),

    SAME("micro_batch_size", "per_device_train_batch_size"),
    { .key = "micro_batch_size", .value = "@absent", TAKEN, .sets = "per_device_train_batch_size=1", .when = "base_model=@on", .why = "axolotl's default" },
    SAME("eval_batch_size", "per_device_eval_batch_size"),
    { .key = "eval_batch_size", .value = "@absent", TAKEN, .sets = "per_device_eval_batch_size", .convert = micro_batch, .when = "base_model=@on", .why = "axolotl's default: micro_batch_size" },
    { .key = "batch_size", TAKEN, .sets = "train_batch_size", .when = "gradient_accumulation_steps=@absent" },
    { .key = "batch_size", DECIDED, .why = "gradient_accumulation_steps says it" },
    SAME("num_epochs", "num_train_epochs"),
    { .key = "num_epochs max_steps", .value = "@absent", TAKEN, .sets = "num_train_epochs=1", .why = "axolotl's default" },
    OPTIMIZER_ROWS("optimizer"),
    { .key = "lr_scheduler", .value = "one_cycle log_sweep rex", CANNOT, .why = "there is no such schedule here" },
    SCHEDULE_ROWS("lr_scheduler"),
    { .key = "lr_scheduler", .value = "@absent", TAKEN, .sets = "lr_scheduler_type=cosine", .why = "axolotl's default" },
    SAME("cosine_min_lr_ratio", "min_lr_ratio"),
    { .key = "eta_min", TAKEN, .sets = "min_lr_ratio", .convert = share_of_eta },
    NOT_ON("cosine_constant_lr_ratio lr_quadratic_warmup embedding_lr embedding_lr_scale lr_groups lr_groups[].* lr_div_factor loraplus_lr_embedding", "the schedules here have no such part"),
    SAME("lr", "learning_rate"),
    SAME("adam_eps", "adam_epsilon"),
    SAME("noisy_embedding_alpha", "neftune_noise_alpha"),
    { .key = "device", .value = "cpu", TAKEN, .sets = "device" },
    { .key = "device", DECIDED, .why = "the GPU is used where there is one" },
    { .key = "optim_args.bf16_stochastic_round", DECIDED, .why = "bfloat16 weights are rounded at random where master_dtype asks for them" },
    NOT_ON("optim_args.* adam_epsilon2 adam_beta3 dion_* qgalore_* grokfast_*", "optimizers here have no such arguments"),
    { .key = "bf16 bfloat16", .value = "auto", TAKEN, .sets = "dtype=bfloat16", .why = "auto is bfloat16 where the device has it" },
    { .key = "bf16 bfloat16 fp16 float16 float32", .value = "@absent", TAKEN, .sets = "dtype=bfloat16", .convert = not_even_empty, .when = "base_model=@on", .why = "axolotl's default: bfloat16 where the device has it" },
    { .key = "bfloat16", .value = "@on", TAKEN, .sets = "dtype=bfloat16" },
    { .key = "float16", .value = "@on", TAKEN, .sets = "dtype=float16" },
    { .key = "float32", .value = "@on", TAKEN, .sets = "dtype=float32" },
    { .key = "fp8", .value = "@on", TAKEN, .sets = "fp8=true" },
    { .key = "gradient_checkpointing", .value = "true unsloth", TAKEN, .sets = "recompute=block" },
    { .key = "gradient_checkpointing", .value = "offload*", TAKEN, .sets = "recompute=block offload_activations=true" },
    { .key = "gradient_checkpointing", .value = "@off", DECIDED, .when = "fsdp_config.activation_checkpointing=true", .why = "FSDP's key says it" },
    { .key = "gradient_checkpointing", .value = "@off", DECIDED, .when = "fsdp_config.fsdp_activation_checkpointing=true", .why = "FSDP's key says it" },
    { .key = "activation_offloading", .value = "true legacy", TAKEN, .sets = "offload_activations=true" },

    { .key = "adapter", .value = "lora qlora", TAKEN, .sets = AN_ADAPTER },
    { .key = "adapter", CANNOT, .why = "adapters are lora and qlora" },
    { .key = "lora_r", LORA, TAKEN, .sets = "lora_r" },
    { .key = "lora_alpha", LORA, TAKEN, .sets = "lora_alpha" },
    { .key = "lora_dropout", LORA, TAKEN, .sets = "lora_dropout" },
    { .key = "lora_target_modules", .value = "*embed* *lm_head*", .when = "adapter=lora qlora;lora_target_linear=@on", DIFFERS, .why = "lora_target_linear takes the linears of every layer; embeddings and head are left out" },
    { .key = "lora_target_modules", .when = "adapter=lora qlora;lora_target_linear=@on", DECIDED, .why = "lora_target_linear takes all of them" },
    { .key = "lora_target_modules", LORA, TAKEN, .sets = "lora_target_modules" },
    { .key = "lora_target_linear", .value = "@on", LORA, TAKEN, .sets = "lora_target_modules=all-linear" },
    { .key = "lora_modules_to_save", .value = OF_TIED, .when = "adapter=lora qlora;!peft_ensure_weight_tying=@on", TAKEN, .sets = TRAIN_APART, .why = APART },
    { .key = "lora_modules_to_save", LORA, TAKEN, .sets = "lora_modules_to_save" },
    { .key = "peft_use_rslora", .value = "@on", LORA, TAKEN, .sets = "use_rslora=true" },
    { .key = "peft_use_dora", .value = "@on", LORA, TAKEN, .sets = "use_dora=true" },
    { .key = "peft_layers_to_transform", LORA, TAKEN, .sets = "layers_to_transform" },
    { .key = "peft_init_lora_weights", LORA, TAKEN, .sets = "init_lora_weights" },
    { .key = "loraplus_lr_ratio", LORA, TAKEN, .sets = "loraplus_lr_ratio" },
    { .key = "peft_layers_pattern", LORA, TAKEN, .sets = "layers_pattern" },
    { .key = "peft_trainable_token_indices", LORA, TAKEN, .sets = "trainable_token_indices" },
    { .key = "peft_ensure_weight_tying", .value = "@on", LORA, TAKEN, .sets = "ensure_weight_tying=true" },
    { .key = "peft_trainable_token_indices.*", LORA, TAKEN, .sets = "trainable_token_indices", .apply = take_names },
    { .key = "lora_rank_pattern.*", LORA, TAKEN, .sets = "rank_pattern", .apply = take_names },
    { .key = "lora_alpha_pattern.*", LORA, TAKEN, .sets = "alpha_pattern", .apply = take_names },
    { .key = "lora_rank_pattern lora_alpha_pattern", .value = "@on", CANNOT, .why = "write a map of names and numbers" },
    NOT_ON("peft_layer_replication", "a layer is used once"),
    { .key = "lora_target_parameters", .value = "@on", CANNOT, .why = "adapters are of linears and embeddings" },
    IDLE("lora_r lora_alpha lora_dropout lora_target_modules lora_target_linear lora_modules_to_save peft_use_rslora peft_use_dora peft_layers_to_transform peft_init_lora_weights loraplus_lr_ratio lora_fan_in_fan_out lora_on_cpu merge_lora peft_layers_pattern peft_trainable_token_indices peft_trainable_token_indices.* lora_rank_pattern.* lora_alpha_pattern.* peft_ensure_weight_tying peft_autocast_adapter_dtype qlora_sharded_model_loading merge_method", "without an adapter it has no effect"),
    { .key = "load_in_4bit", .value = "@on", LORA, TAKEN, .sets = "load_in_4bit=true" },
    { .key = "load_in_4bit", .value = "@on", CANNOT, .why = "a base in 4 bits is frozen, so it needs an adapter" },
    { .key = "load_in_8bit", .value = "@on", LORA, DIFFERS, .sets = "base_dtype=fp8", .why = EIGHT_BITS },
    { .key = "load_in_8bit", .value = "@on", CANNOT, .why = "a base in 8 bits is frozen, so it needs an adapter" },
    { .key = "bnb_config_kwargs.bnb_4bit_use_double_quant", .value = "@on", TAKEN, .sets = "bnb_4bit_use_double_quant=true" },
    { .key = "bnb_config_kwargs.bnb_4bit_use_double_quant", .value = "@absent", TAKEN, .sets = "bnb_4bit_use_double_quant=true", .when = "load_in_4bit=@on;adapter=lora qlora", .why = "axolotl's default" },
    { .key = "bnb_config_kwargs.bnb_4bit_quant_type", TAKEN, .sets = "bnb_4bit_quant_type" },
    IDLE("bnb_config_kwargs bnb_config_kwargs.* peft.loftq_config.*", "as bitsandbytes has it"),
    NOT_ON("gptq gptq_* quantize_moe_experts model_quantization_config model_quantization_config_kwargs model_quantization_config_kwargs.* qat.* nvfp4_* dsv4_* use_onebitllms peft.* relora relora_* lisa_* jagged_restart_* full_finetune_* llmcompressor.* quantization.* use_pose pose_* mora.* dense_mixer expert_backend nonexpert_quantization moe_* gemma4_fp8_nonexpert gemma4_nf4_nonexpert spectrum_* recipe save_compressed layer_offloading shrink_embeddings", "there is nothing like it here"),
    { .key = "unfrozen_parameters", .value = "*language_model*", DECIDED, .why = "the text part of a model with images learns; its other parts are carried over" },
    { .key = "unfrozen_parameters", .value = "@on", TAKEN, .sets = "trainable", .apply = take_unfrozen },
    IDLE("freeze_mm_modules", "parts of a model that see or hear are carried over as they are"),
    { .key = "reinit_weights", .value = "@on", TAKEN, .sets = "from_scratch=true" },
    IDLE("full_finetune", "without an adapter all weights learn"),

    { .key = "save_steps save_strategy saves_per_epoch", .value = "@absent", TAKEN, .sets = "save_strategy=epoch", .when = "base_model=@on", .why = "axolotl's default" },
    { .key = "save_total_limit", .value = "@absent", TAKEN, .sets = "save_total_limit=4", .when = "base_model=@on", .why = "axolotl's default" },
    { .key = "warmup_steps warmup_ratio", .value = "@absent", DIFFERS, .sets = "warmup_steps=0.03", .when = "base_model=@on", .why = "axolotl's default, which is 100 steps at most" },
    { .key = "saves_per_epoch", .value = "@off", TAKEN, .sets = "save_steps=0" },
    { .key = "saves_per_epoch", TAKEN, .sets = "save_steps", .convert = share_of_run, .or_next = true },
    { .key = "saves_per_epoch", TAKEN, .sets = "save_strategy=epoch" },
    { .key = "evals_per_epoch", DECIDED, .when = "val_set_size=@off @absent;test_datasets[].path=@absent", .why = "there is nothing to evaluate on" },
    { .key = "evals_per_epoch", TAKEN, .sets = "eval_steps", .convert = share_of_run, .or_next = true },
    { .key = "evals_per_epoch", DIFFERS, .why = "an evaluation every eval_steps steps, or at the end" },
    { .key = "eval_steps", DECIDED, .when = "val_set_size=@off @absent;test_datasets[].path=@absent", .why = "there is nothing to evaluate on" },
    NOT_ON("save_first_step", "the first checkpoint is that of save_steps; verify_restore reads each back"),
    { .key = "auto_resume_from_checkpoints", .value = "@on", TAKEN, .sets = "resume_from_checkpoint=auto" },
    { .key = "early_stopping_patience", .value = "@on", TAKEN, .sets = "early_stopping_patience" },
    { .key = "loss_watchdog_threshold", DIFFERS, .why = "spike_zscore reports a loss far above the last ones; nothing stops for it" },
    IDLE("loss_watchdog_patience", "spike_zscore reports a loss far above the last ones"),
    { .key = "use_tensorboard", .value = "@on", TAKEN, .sets = "report_to=tensorboard", .or_next = true },
    { .key = "wandb_project", .value = "@on", TAKEN, .sets = "report_to=wandb", .or_next = true },
    IDLE("wandb_* use_wandb trackio_* use_trackio mlflow_* use_mlflow comet_* use_comet use_tensorboard swanlab_* use_swanlab use_otel_metrics otel_metrics_* eval_table_size eval_table_max_new_tokens eval_max_new_tokens project_name hub_* debug", "OUTPUT/events.jsonl has every step"),
    NOT_ON("generate_samples", "trireme generate shows what a checkpoint writes"),
    IDLE("num_generation_samples generation_*", "trireme generate shows what a checkpoint writes"),
    { .key = "do_bench_eval do_causal_lm_eval eval_causal_lm_metrics bench_dataset bench_split lm_eval_*", .value = "@on", DIFFERS, .why = "the evaluation loss is the metric" },
    { .key = "eval_sequence_len", .value = "@on", DIFFERS, .why = "rows of evaluation are as long as those of training" },
    { .key = "profiler_steps", .value = "@on", DIFFERS, .why = "--profile N makes a timeline from step N on" },
    { .key = "dynamic_checkpoint.enabled", .value = "@on", DIFFERS, .why = "trireme ctl OUTPUT save writes a checkpoint of a running job" },
    IDLE("profiler_steps_start dynamic_checkpoint.* include_tkps hf_mlflow_log_artifacts", "OUTPUT/events.jsonl has every step"),

    { .key = "special_tokens.pad_token tokens.pad_token", DECIDED, .why = "nothing is padded with a token" },
    { .key = "special_tokens.* tokens.*", DIFFERS, .why = "special tokens are those of the tokenizer's files" },
    { .key = "resize_token_embeddings_to_32x pad_to_multiple_of", .value = "@on", DIFFERS, .why = "embeddings keep their size" },
    IDLE("mean_resizing_embeddings embeddings_skip_upcast tokenizer_save_jinja_files fix_untrained_tokens", "the tokenizer and the embeddings stay as they are"),
    { .key = "tokens added_tokens_overrides added_tokens_overrides.*", .value = "@on", CANNOT, .why = "tokens are those of the model's tokenizer" },
    { .key = "eot_tokens", DIFFERS, .why = "the template's end of a turn is trained" },
    { .key = "chat_template", .value = "tokenizer_default", DECIDED, .why = "the model's own" },
    { .key = "chat_template", .value = "jinja", DECIDED, .why = "chat_template_jinja says it" },
    SAME("chat_template_jinja", "chat_template"),
    { .key = "chat_template", .value = "chatml llama3 alpaca", TAKEN, .sets = "chat_template" },
    { .key = "chat_template", .value = "gemma", TAKEN, .sets = "chat_template=gemma" },
    { .key = "chat_template", .value = "phi_3 phi_35", TAKEN, .sets = "chat_template=phi3" },
    { .key = "chat_template", DIFFERS, .why = OWN_TEMPLATE },
    { .key = "default_system_message", .value = "@on", TAKEN, .why = "part of each source in data" },
    { .key = "train_on_inputs", .value = "@on", TAKEN, .sets = "train_on=all" },

    { .key = "fsdp", .value = "*full_shard*", TAKEN, .sets = "zero=3" },
    IDLE("fsdp_version fsdp_final_state_dict_type ddp_timeout_* ddp", "any layout resumes"),
    { .key = FSDP("sharding_strategy") " " FSDP("reshard_after_forward") " fsdp", .value = "@absent", TAKEN, .sets = "zero=3", .when = "fsdp_version=@on", .why = "FSDP shards fully" },
    { .key = "dp_shard_size", .value = "1", DECIDED, .why = "nothing is sharded" },
    { .key = "dp_shard_size", TAKEN, .sets = "zero=3 hybrid_shard=$", .when = "dp_replicate_size=@many;!dp_replicate_size=1" },
    { .key = "dp_shard_size", TAKEN, .sets = "dp zero=3" },
    { .key = "dp_replicate_size", .value = "1", DECIDED, .why = "one copy" },
    { .key = "dp_replicate_size", DECIDED, .why = "the number of ranks says it" },
    SAME("tensor_parallel_size", "tp"),
    { .key = "tensor_parallel", .value = "auto", DIFFERS, .why = "tp takes a number; without one all ranks are data parallel" },
    SAME("tensor_parallel", "tp"),
    IDLE("bos_token_id eos_token_id pad_token_id", "config.json and the tokenizer's files say it"),
    { .key = "context_parallel_size sequence_parallel_degree context_parapllel_size context_parallel.size", TAKEN, .sets = "cp" },
    { .key = "context_parallel.ulysses_size", .value = "@many", TAKEN, .when = "!context_parallel.ulysses_size=1", .sets = "cp_mode=ulysses" },
    IDLE("context_parallel.*", "cp_mode says it"),
    { .key = "expert_parallel_size", .value = "@many", TAKEN, .sets = "ep" },
    IDLE("ring_attn_func heads_k_stride expert_parallel_*", "cp_mode says it"),

    { .key = "rl", .value = "dpo orpo kto simpo", TAKEN, .sets = "task" },
    { .key = "rl", .value = "ipo", TAKEN, .sets = "task=dpo loss_type=ipo" },
    { .key = "rl", CANNOT, .why = NO_RL },
    { .key = "rl_beta dpo_beta orpo_alpha trl.beta", .value = "@absent", TAKEN, .sets = "beta=0.1", .when = "rl=simpo", .why = "CPOConfig's default" },
    { .key = "cpo_alpha", .value = "@absent", TAKEN, .sets = "rpo_alpha=1", .when = "rl=simpo", .why = "CPOConfig's default" },
    { .key = "cpo_alpha", TAKEN, .sets = "rpo_alpha", .when = "rl=simpo" },
    { .key = "rpo_alpha", TAKEN, .sets = "rpo_alpha", .when = "rl=dpo ipo" },
    IDLE("cpo_alpha rpo_alpha", "the loss of rl has no such part"),
    { .key = "trl.beta", TAKEN, .sets = "beta", .when = "rl=dpo ipo orpo kto simpo" },
    SAME("rl_beta dpo_beta", "beta"),
    LOSS_ROWS("dpo_loss_type", "dpo_loss_weights"),
    SAME("dpo_label_smoothing", "label_smoothing"),
    SAME("dpo_ld_alpha", "ld_alpha"),
    { .key = "dpo_use_weighting", .value = "@on", TAKEN, .sets = "use_weighting=true" },
    { .key = "dpo_norm_loss", .value = "@on", TAKEN, .sets = "loss_type=sigmoid_norm", .when = "rl=dpo;dpo_loss_type=@absent", .why = "log-probabilities of answers are means of their tokens" },
    { .key = "dpo_norm_loss", .value = "@on", DECIDED, .when = "rl=ipo", .why = "ipo reads means of tokens" },
    NOT_ON("dpo_norm_loss", "this loss has no such part here"),
    IDLE("dpo_use_logits_to_keep dpo_generate_during_eval dpo_padding_free dpo_use_liger_kernel precompute_ref_log_probs max_prompt_len", "decided by the run"),
    SAME("orpo_alpha", "beta"),
    SAME("simpo_gamma", "simpo_gamma"),
    SAME("kto_desirable_weight", "desirable_weight"),
    SAME("kto_undesirable_weight", "undesirable_weight"),
    NOT_ON("reward_model process_reward_model center_rewards_coefficient num_labels", "there are no reward models here"),
    NOT_ON("trl.* vllm.* ebft.* hatchery.* nemo_gym_* grpo_*", NO_RL),
    NOT_ON("diffusion.* diffusion_lm.* diffusion_decision.* kd_* trainer_cls", "the loss is that of the next token"),
    NOT_ON("use_eaft mixlora_*", "there is no such loss here"),
    IDLE("eaft_*", "without its switch it has no effect"),
    { .key = "export.* export", .value = "@on", DIFFERS, .why = "trireme ckpt export writes a finished run in other formats" },
    IDLE("nf4_backend autotune_* lora_fp32_gradients fa_varlen_kwargs_in_collator cut_cross_entropy_* torch_compile_regional balance_labels label_balance_window_optim_steps sync_profiler_* selective_checkpointing.* DEFAULT_*", "kernels and placement are chosen by what was measured"),
    IDLE("strict test_value plugins liger_* cut_cross_entropy unsloth_* use_kernels lora_*_kernel fused_attn_kernel flash_attention flash_attn_* flash_optimum flex_attention flex_attn_* sdp_attention xformers_attention s2_attention gemma4_hybrid_attn_impl experts_implementation use_scattermoe use_sonicmoe use_dsv4_kernels use_glm_dsa_kernels llama4_linearized_experts tiled_mlp tiled_mlp_* experimental_skip_move_to_device fp8_enable_fsdp_float8_all_gather chunked_cross_entropy* dynamic_sampling gc_steps gc_collect_steps torch_compile_mode sage_attention eager_attention sdpa_varlen large_head_attention deepcompile fp8_config.* fp32_norms fp32_norm_classes selective_checkpointing.* ple_cpu_offload", "kernels are chosen by what was measured"),
    NOT_ON("scaling_softmax scaling_softmax_*", "it changes the attention, and there is nothing like it here"),
    IDLE("world_size num_dataset_shards_to_save max_memory max_memory.* gpu_memory_limit preprocess_iterable pretraining_sample_concatenation axolotl_config_path gradio_* resources_per_worker resources_per_worker.* processor_kwargs processor_kwargs.* image_size image_resize_algorithm", "there is nothing to choose"),
    NOT_ON("xpos_rope landmark_attention load_4bit", "there is nothing like it here"),
    IDLE("lora_out_dir rl_adapter_ref_model collator_pad_to_longest use_mamba", "there is nothing to choose"),
    { .key = "role_boundaries[].*", DIFFERS, .why = "the chat template says where a turn begins and ends" },
    IDLE("coreweave.* use_ray ray_* provider node_count gpu gpu_count memory memory_preprocess volumes* secrets branch timeout timeout_preprocess dockerfile_commands env cloud cpu_count", "where a job runs is not part of it"),
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_axolotl = {
    .name = "axolotl", .title = "axolotl", .rows = rows, .base = &tr_tool_hf, .is_mine = is_axolotl
};
