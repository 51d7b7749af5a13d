/* llamafactory.c - LLaMA-Factory's YAML (hparams/, data/parser.py), and dataset_info.json, where its datasets are
 * named.
 *
 * A dataset is a name in that file: the file behind it becomes a source of data, with the names of its columns and
 * roles where they are not the usual ones.
 */
#include "import/shared_rows.h"
#include "import/source.h"

static bool is_llamafactory(const struct tree *t)
{
    return (tr_tree_find(t, "stage") != NULL && tr_tree_find(t, "finetuning_type") != NULL) ||
           (tr_tree_find(t, "template") != NULL &&
            (tr_tree_find(t, "cutoff_len") != NULL || tr_tree_find(t, "model_name_or_path") != NULL)) ||
           (tr_tree_find(t, "model_class") != NULL && tr_tree_find(t, "train_dataset") != NULL) ||
           (tr_tree_find(t, "model") != NULL && tr_tree_find(t, "peft_config.name") != NULL) ||
           (tr_tree_find(t, "model_name_or_path") != NULL && tr_tree_find(t, "export_dir") != NULL);
}

#define FIRST_RECORDS "the first records, not a random choice"

static const struct leaf *member(const struct tree *info, const char *name, const char *path)
{
    char full[IMPORT_KEY_MAX];
    int n = snprintf(full, sizeof full, "%s.%s", name, path);
    return n > 0 && n < IMPORT_KEY_MAX ? tr_tree_find(info, full) : NULL;
}

/* What a dataset may not have, or the cause why not. */
static bool can_be_read(const struct tree *info, const char *name, char *why, size_t n_why)
{
    static const struct {
        const char *path, *words, *rule;
    } known[] = {
        { "formatting", "alpaca sharegpt openai", "alpaca, sharegpt and openai are read" },
        { "columns.images", "@absent", "text only" },
        { "columns.videos", "@absent", "text only" },
        { "columns.audios", "@absent", "text only" },
        { "folder", "@absent", "name the files of this part with data" },
        { "script_url", "@absent", "no program of a dataset is run" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(known); i++) {
        const struct leaf *leaf = member(info, name, known[i].path);
        if (leaf != NULL && !tr_words_match(known[i].words, leaf)) {
            snprintf(why, n_why, "%s:%zu: %s.%s is %s; %s", info->path, leaf->line, name, known[i].path, leaf->text,
                     known[i].rule);
            return false;
        }
    }
    return true;
}

/* A column that the file names and that has another name here. */
static void take_column(struct source *s, const struct tree *info, const char *name, const char *theirs,
                        const char *ours)
{
    char path[64];
    snprintf(path, sizeof path, "columns.%s", theirs);
    const struct leaf *leaf = member(info, name, path);
    if (leaf != NULL && strcmp(leaf->text, ours) != 0)
        tr_source_set(s, "columns", ours, leaf->text);
}

/* Given columns clear the defaults of those that they leave out. */
static void take_alpaca(struct source *s, const struct tree *info, const char *name, bool is_text)
{
    static const char *const left_out[][2] = { { "columns.query", "input" },
                                               { "columns.history", "history" },
                                               { "columns.system", "system" } };
    char path[IMPORT_KEY_MAX];
    snprintf(path, sizeof path, "%s.columns", name);
    if (is_text) {
        const struct leaf *column = member(info, name, "columns.prompt");
        tr_source_set(s, "columns", "text", column != NULL ? column->text : "instruction");
        return;
    }
    take_column(s, info, name, "prompt", "instruction");
    take_column(s, info, name, "query", "input");
    take_column(s, info, name, "response", "output");
    take_column(s, info, name, "history", "history");
    bool is_paired = member(info, name, "ranking") != NULL || member(info, name, "columns.kto_tag") != NULL;
    for (size_t i = 0; tr_tree_has(info, path) && !is_paired && i < TR_COUNT_OF(left_out); i++)
        if (member(info, name, left_out[i][0]) == NULL)
            tr_source_set(s, "columns", left_out[i][1], NULL);
}

static void take_chat(struct source *s, const struct tree *info, const char *name)
{
    static const char *const tags[][2] = { { "tags.user_tag", "user" },
                                           { "tags.assistant_tag", "assistant" },
                                           { "tags.observation_tag", "tool" },
                                           { "tags.function_tag", "function_call" },
                                           { "tags.system_tag", "system" } };
    const struct leaf *list = member(info, name, "columns.messages");
    const struct leaf *role = member(info, name, "tags.role_tag"), *text = member(info, name, "tags.content_tag");
    const char *names[] = { list != NULL ? list->text : "conversations", role != NULL ? role->text : "from",
                            text != NULL ? text->text : "value" };
    bool is_usual =
        (strcmp(names[0], "conversations") == 0 && strcmp(names[1], "from") == 0 && strcmp(names[2], "value") == 0) ||
        (strcmp(names[0], "messages") == 0 && strcmp(names[1], "role") == 0 && strcmp(names[2], "content") == 0);
    for (size_t i = 0; i < TR_COUNT_OF(tags); i++) {
        const struct leaf *tag = member(info, name, tags[i][0]);
        if (tag != NULL && !tr_words_match("user human assistant gpt system tool observation function_call", tag)) {
            tr_source_set(s, "roles", tags[i][1], tag->text);
            is_usual = false;
        }
    }
    if (is_usual)
        return;
    if (strcmp(names[0], "messages") != 0)
        tr_source_set(s, "columns", "messages", names[0]);
    if (strcmp(names[1], "role") != 0)
        tr_source_set(s, "message", "role", names[1]);
    if (strcmp(names[2], "content") != 0)
        tr_source_set(s, "message", "content", names[2]);
}

static void take_dataset(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const char *option,
                         const struct tree *info, const char *dir, const char *name)
{
    char path[TR_PATH_MAX], why[512];
    const struct leaf *file = member(info, name, "file_name"), *hub = member(info, name, "hf_hub_url");
    const struct leaf *kind = member(info, name, "formatting"), *stage = tr_tree_find(t, "stage");
    const struct leaf *split = member(info, name, "split"), *few = member(info, name, "num_samples");
    char part[64];
    struct source s;
    tr_source_open(&s);
    snprintf(part, sizeof part, "%.30s[:%.20s]", split != NULL ? split->text : "", few != NULL ? few->text : "");
    s.split = few != NULL ? part : split != NULL ? split->text : NULL;
    const struct leaf *subset = member(info, name, "subset");
    s.config = subset != NULL ? subset->text : NULL;
    if (hub == NULL)
        hub = member(info, name, "ms_hub_url");
    if (kind != NULL && tr_words_match("sharegpt openai", kind))
        take_chat(&s, info, name);
    else
        take_alpaca(&s, info, name, stage != NULL && strcmp(stage->text, "pt") == 0);
    take_column(&s, info, name, "system", "system");
    const struct leaf *system = tr_tree_find(t, "default_system");
    if (system != NULL)
        tr_source_set(&s, NULL, "system", system->text);
    take_column(&s, info, name, "tools", "tools");
    take_column(&s, info, name, "chosen", "chosen");
    take_column(&s, info, name, "rejected", "rejected");
    take_column(&s, info, name, "kto_tag", "label");
    if (!tr_tree_has(info, name)) {
        snprintf(why, sizeof why, "%s has no dataset %s", info->path, name);
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, why);
    } else if (!can_be_read(info, name, why, sizeof why)) {
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, why);
    } else if (file != NULL && tr_path_join(path, dir, file->text) == TR_OK) {
        tr_source_give(&s, im, t, leaf, few != NULL ? TR_IMPORT_DIFFERS : TR_IMPORT_TAKEN, option, path,
                       few != NULL ? FIRST_RECORDS : NULL);
    } else if (hub != NULL) {
        tr_source_give(&s, im, t, leaf, TR_IMPORT_DIFFERS, option, hub->text, SOURCE_HUB);
    } else {
        snprintf(why, sizeof why, "%s: %s names no file", info->path, name);
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, why);
    }
    tr_source_close(&s);
}

/* "identity,alpaca_en_demo" by dataset_info.json of dataset_dir. */
static void take_datasets(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                          const struct import_row *row)
{
    char dir[TR_PATH_MAX], path[TR_PATH_MAX], name[128], why[TR_PATH_MAX + 128];
    const struct leaf *given = tr_tree_find(t, "dataset_dir");
    const char *dir_name = given != NULL ? given->text : "data";
    struct tree info = { .path = path, .kept = &im->kept };
    char *text = NULL;
    size_t n = 0;
    if (!tr_import_locate(t, dir_name, dir) || tr_path_join(path, dir, "dataset_info.json") != TR_OK ||
        tr_file_read(path, IMPORT_FILE_MAX, &text, &n) != TR_OK || tr_tree_read(&info, text, n) != TR_OK) {
        snprintf(why, sizeof why, "names of datasets stand in %s/dataset_info.json, which is not readable here",
                 dir_name);
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL, why);
        tr_error_clear();
    } else {
        for (const char *p = leaf->text; *p != '\0'; p += strcspn(p, ","), p += *p == ',') {
            p += strspn(p, " ");
            snprintf(name, sizeof name, "%.*s", (int)strcspn(p, ", "), p);
            if (name[0] != '\0')
                take_dataset(im, t, leaf, row->sets, &info, dir, name);
        }
    }
    free(info.leaves);
    free(text);
}

/* An entry of such a list: "NAME: {path, converter, size}", of older ones "NAME: {file_name, dataset_dir,
 * num_samples}". False: its records are of another kind. */
static bool take_listed(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                        const struct import_row *row, const struct tree *list, const struct leaf *file)
{
    char name[128], part[32], given[TR_PATH_MAX], path[TR_PATH_MAX];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(file->path, "."), file->path);
    const struct leaf *kind = member(list, name, "converter"), *size = member(list, name, "size");
    const struct leaf *dir = member(list, name, "dataset_dir"), *split = member(list, name, "split");
    bool is_paired = tr_words_match("pair", kind);
    struct source s;
    if (kind != NULL && !is_paired && !tr_words_match("alpaca sharegpt", kind))
        return false;
    size = size != NULL ? size : member(list, name, "num_samples");
    snprintf(given, sizeof given, "%s%s%s", dir != NULL ? dir->text : "", dir != NULL ? "/" : "", file->text);
    bool is_here = tr_import_locate(t, given, path), is_hub = !is_here && tr_source_is_hub(given);
    tr_source_open(&s);
    snprintf(part, sizeof part, "[:%s]", size != NULL ? size->text : "");
    s.split = size != NULL ? part : is_hub && split != NULL ? split->text : NULL;
    tr_source_give(&s, im, t, leaf, size != NULL || is_hub ? TR_IMPORT_DIFFERS : row->verdict, row->sets,
                   is_here ? path : given,
                   size != NULL ? FIRST_RECORDS
                   : is_hub     ? SOURCE_HUB
                                : NULL);
    if (is_paired)
        tr_import_add(im, t, leaf, TR_IMPORT_TAKEN, "task", "dpo", "its records are pairs");
    tr_source_close(&s);
    return true;
}

/* The second generation of files names a file that lists its data sets, or one data set. */
static void take_list(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row)
{
    char path[TR_PATH_MAX];
    struct tree list = { .path = path, .kept = &im->kept };
    char *text = NULL;
    size_t n = 0, n_entries = 0;
    bool is_list = tr_text_like("*.y*ml", 6, leaf->text), is_here = tr_import_locate(t, leaf->text, path);
    if (!is_list && (is_here || tr_source_is_hub(leaf->text))) {
        tr_import_add(im, t, leaf, is_here ? row->verdict : TR_IMPORT_DIFFERS, row->sets, is_here ? path : leaf->text,
                      is_here ? NULL : SOURCE_HUB);
        return;
    }
    bool is_read = is_list && is_here && tr_file_read(path, IMPORT_FILE_MAX, &text, &n) == TR_OK &&
                   tr_tree_read(&list, text, n) == TR_OK;
    for (size_t i = 0; is_read && i < list.n_leaves; i++)
        if (tr_text_like("*.path", 6, list.leaves[i].path) || tr_text_like("*.file_name", 11, list.leaves[i].path)) {
            is_read = take_listed(im, t, leaf, row, &list, &list.leaves[i]);
            n_entries++;
        }
    tr_error_clear();
    if (!is_read || n_entries == 0)
        tr_import_add(
            im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL,
            "a file of records, or a YAML file with data sets of the converters alpaca, sharegpt and pair, is "
            "read; name other files with data");
    free(list.leaves);
    free(text);
}

#define PREF          "with stage dpo: the loss of pairs"
#define KEEP_TEMPLATE "this built-in template is used; leave it out and the model's own is"

/* clang-format off */
static const struct import_row rows[] = {
    { .key = "model_name_or_path", TAKEN, .sets = "model_base", .when = "adapter_name_or_path=@on" },
    SAME("model_name_or_path model", "model"),
    SAME("adapter_name_or_path", "model"),
    { .key = "stage", .value = "sft", DECIDED, .why = "records with answers" },
    { .key = "stage", .value = "pt", DECIDED, .why = "text is trained on whole" },
    { .key = "stage", .value = "dpo", TAKEN, .sets = "task=dpo", .when = "!pref_loss=orpo simpo kto_pair" },
    { .key = "stage", .value = "dpo", DECIDED, .when = "pref_loss=orpo simpo kto_pair", .why = "pref_loss says it" },
    { .key = "stage", .value = "kto", TAKEN, .sets = "task=kto" },
    { .key = "stage", CANNOT, .why = "there are no reward models and no reinforcement learning here" },
    SAME("pref_beta", "beta"),
    { .key = "pref_beta dpo_beta orpo_beta", .value = "@absent", TAKEN, .sets = "beta=0.1", .when = "pref_loss=simpo", .why = "LLaMA-Factory's default" },
    { .key = "pref_beta dpo_beta orpo_beta", .value = "@absent", TAKEN, .sets = "beta=0.1", .when = "dpo_loss=simpo", .why = "LLaMA-Factory's default" },
    { .key = "pref_loss", .value = "orpo simpo", TAKEN, .sets = "task" },
    { .key = "pref_loss", .value = "sigmoid hinge ipo", TAKEN, .sets = "loss_type" },
    { .key = "pref_loss", CANNOT, .why = "there is no such loss of pairs here" },
    SAME("simpo_gamma", "simpo_gamma"),
    SAME("dpo_label_smoothing", "label_smoothing"),
    SAME("ref_model", "ref_model"),
    SAME("pref_ftx", "rpo_alpha"),
    { .key = "ld_alpha", DIFFERS, .sets = "ld_alpha", .why = "the reference is weighed in the same way" },
    { .key = "kto_chosen_weight", TAKEN, .sets = "desirable_weight", .when = "stage=kto" },
    { .key = "kto_rejected_weight", TAKEN, .sets = "undesirable_weight", .when = "stage=kto" },
    IDLE("kto_chosen_weight kto_rejected_weight", "only stage kto reads it"),
    NOT_ON("ref_model_adapters ref_model_quantization_bit reward_model* ppo_* pref_bco_weight", "the loss has no such part here"),

    { .key = "finetuning_type", .value = "lora", TAKEN, .sets = AN_ADAPTER },
    { .key = "finetuning_type", .value = "full", TAKEN, .sets = "finetuning_type" },
    { .key = "finetuning_type", .value = "@absent", TAKEN, .sets = AN_ADAPTER, .when = "stage=sft pt dpo kto", .why = "LLaMA-Factory's default" },
    { .key = "finetuning_type", .value = "freeze", CANNOT, .why = "write trainable with patterns of the layers that learn" },
    { .key = "finetuning_type", CANNOT, .why = "full, lora and freeze are here" },
    SAME("lora_rank", "lora_r"),
    SAME("lora_alpha", "lora_alpha"),
    SAME("lora_dropout", "lora_dropout"),
    { .key = "lora_target", .value = "@absent", TAKEN, .sets = "lora_target_modules=all-linear", .when = "stage=sft pt dpo kto;finetuning_type=lora @absent;adapter_name_or_path=@absent", .why = "LLaMA-Factory's default" },
    { .key = "lora_target", .value = "all", TAKEN, .sets = "lora_target_modules=all-linear" },
    SAME("lora_target", "lora_target_modules"),
    { .key = "additional_target", .value = OF_TIED, TAKEN, .sets = TRAIN_APART, .why = APART },
    SAME("additional_target", "lora_modules_to_save"),
    { .key = "use_rslora", .value = "@on", TAKEN, .sets = "use_rslora=true" },
    { .key = "use_dora", .value = "@on", TAKEN, .sets = "use_dora=true" },
    SAME("loraplus_lr_ratio", "loraplus_lr_ratio"),
    NOT_ON("loraplus_lr_embedding", "LoRA+ here has one ratio"),
    { .key = "pissa_init", .value = "@on", DIFFERS, .sets = "init_lora_weights=pissa", .why = "with exact singular vectors" },
    IDLE("pissa_iter pissa_convert create_new_adapter adapter_folder offload_folder", "an adapter is written as PEFT converts it"),
    { .key = "quantization_bit", .value = "4", TAKEN, .sets = "load_in_4bit=true" },
    { .key = "quantization_bit", .value = "8", DIFFERS, .sets = "base_dtype=fp8", .why = EIGHT_BITS },
    { .key = "quantization_bit", CANNOT, .why = "bases are held in 16, 8 or 4 bits" },
    { .key = "quantization_method quantization_type", .value = "bnb bitsandbytes nf4", DECIDED, .why = "nf4, as bitsandbytes has it" },
    { .key = "quantization_type", .value = "fp4", TAKEN, .sets = "bnb_4bit_quant_type=fp4" },
    { .key = "quantization_method", CANNOT, .why = "a base is quantised as bitsandbytes does it" },
    { .key = "double_quantization", .value = "@on", TAKEN, .sets = "bnb_4bit_use_double_quant=true" },
    { .key = "double_quantization", .value = "@absent", TAKEN, .sets = "bnb_4bit_use_double_quant=true", .when = "quantization_bit=4", .why = "LLaMA-Factory's default" },
    { .key = "freeze_trainable_layers freeze_trainable_modules freeze_extra_modules use_llama_pro", .value = "@on", CANNOT, .why = "write trainable with patterns of the layers that learn" },
    NOT_ON("oft_* module_dropout oft_block_size", "full and lora are here"),
    IDLE("freeze_vision_tower freeze_multi_modal_projector freeze_language_model image_* video_* audio_*", "text only: there is nothing of the kind"),

    { .key = "dataset", TAKEN, .sets = "data", .apply = take_datasets },
    { .key = "eval_dataset", .value = "*.yaml *.yml", TAKEN, .sets = "eval_data", .apply = take_list },
    { .key = "eval_dataset", TAKEN, .sets = "eval_data", .apply = take_datasets },
    IDLE("dataset_dir media_dir", "the directory of dataset_info.json"),
    { .key = "train_dataset", TAKEN, .sets = "data", .apply = take_list },
    { .key = "cutoff_len", .value = "@absent", TAKEN, .sets = "sequence_length=2048", .when = "stage=sft pt dpo kto", .why = "LLaMA-Factory's default" },
    SAME("cutoff_len", "sequence_length"),
    SAME("max_samples", "max_samples"),
    { .key = "template", .value = "llama3 chatml mistral gemma zephyr alpaca vicuna llama2", DIFFERS, .sets = "chat_template", .why = KEEP_TEMPLATE },
    { .key = "template", .value = "phi", DIFFERS, .sets = "chat_template=phi3", .why = KEEP_TEMPLATE },
    { .key = "template", .value = "qwen", DIFFERS, .sets = "chat_template=qwen", .why = KEEP_TEMPLATE },
    { .key = "template", .value = "qwen3 qwen3_nothink", DIFFERS, .sets = "chat_template=chatml", .why = KEEP_TEMPLATE },
    { .key = "template", DIFFERS, .why = "the model's own chat template is used; chat_template names another" },
    { .key = "train_on_prompt", .value = "@on", TAKEN, .sets = "train_on=all" },
    { .key = "mask_history", .value = "@on", TAKEN, .sets = "train_on=last" },
    { .key = "neat_packing", .value = "@on", TAKEN, .sets = "packing=bestfit" },
    { .key = "packing", .value = "@on", DIFFERS, .sets = "packing=bestfit", .why = "records in a row never see each other" },
    { .key = "packing", .value = "@off", TAKEN, .sets = "packing=none" },
    { .key = "packing neat_packing", .value = "@absent", TAKEN, .sets = "packing=none", .when = "stage=sft", .why = "LLaMA-Factory's default: one record a row" },
    { .key = "mix_strategy", .value = "concat", DECIDED, .why = "every record once in an epoch" },
    { .key = "mix_strategy interleave_probs", CANNOT, .why = "write data PATH:WEIGHT for each source" },
    { .key = "val_size", .value = "@share", TAKEN, .sets = "eval_split" },
    { .key = "val_size", .value = "@on", CANNOT, .why = "eval_split is a share of the rows" },
    SAME("streaming", "streaming"),
    IDLE("buffer_size tokenized_path data_shared_file_system ignore_pad_token_for_loss preprocessing_num_workers preprocessing_batch_size eval_num_beams dataset_shards eval_on_each_dataset", "rows are made once, before step 0"),
    { .key = "enable_thinking", .value = "true", DIFFERS, .sets = "chat_template_kwargs={\"enable_thinking\":true}", .why = "a variable of the chat template, which decides what it means" },
    { .key = "enable_thinking", .value = "false", DIFFERS, .sets = "chat_template_kwargs={\"enable_thinking\":false}", .why = "a variable of the chat template, which decides what it means" },
    { .key = "tool_format preserve_thinking", .value = "@on", DIFFERS, .why = "the chat template decides it" },
    { .key = "default_system", .value = "@on", TAKEN, .why = "part of each source in data" },
    { .key = "disable_gradient_checkpointing", .value = "@on", TAKEN, .sets = "recompute=none" },
    { .key = "disable_gradient_checkpointing", .value = "@off", TAKEN, .sets = "recompute=block" },
    { .key = "disable_gradient_checkpointing gradient_checkpointing", .value = "@absent", TAKEN, .sets = "recompute=block", .when = "stage=sft pt dpo kto", .why = "LLaMA-Factory's default" },
    { .key = "pure_bf16", .value = "@on", TAKEN, .sets = "dtype=bfloat16 master_dtype=bfloat16 moment_dtype=bfloat16" },
    { .key = "fp8", .value = "@on", TAKEN, .sets = "fp8=true" },
    IDLE("fp8_backend fp8_enable_fsdp_float8_all_gather", "products are made by the engine's own kernels"),
    { .key = "rope_scaling", .value = "@on", DIFFERS, .why = "where rows are longer than the model's positions, write rope_scaling and max_position_embeddings into its config.json" },
    { .key = "rope_scaling.*", CANNOT, .why = "write it into config.json of the model" },
    SAME("resize_vocab", "resize_vocab"),
    NOT_ON("add_tokens add_special_tokens new_special_tokens new_special_tokens_config init_special_tokens", "tokens are those of the model's tokenizer"),
    { .key = "tensor_model_parallel_size", TAKEN, .sets = "tp" },
    { .key = "pipeline_model_parallel_size", TAKEN, .sets = "pp" },
    { .key = "context_parallel_size cp_size dist_config.cp_size", TAKEN, .sets = "cp" },
    { .key = "sequence_parallel_size", .value = "1", DECIDED, .why = "off" },
    { .key = "sequence_parallel_size", TAKEN, .sets = "cp" },
    { .key = "sequence_parallel_mode", DECIDED, .when = "sequence_parallel_size=1 @absent", .why = "sequence_parallel_size is off" },
    { .key = "sequence_parallel_mode cp_mode dist_config.cp_mode", .value = "*ring*", TAKEN, .sets = "cp_mode=ring" },
    { .key = "sequence_parallel_mode cp_mode dist_config.cp_mode", .value = "*ulysses* deepspeed*", TAKEN, .sets = "cp_mode=ulysses" },
    IDLE("alst_*", "sequence_parallel_size says it"),
    { .key = "sequence_parallel", .value = "@on", TAKEN, .sets = "sp=true" },
    { .key = "use_distributed_optimizer", .value = "@on", TAKEN, .sets = "zero=1" },
    { .key = "recompute_granularity", .value = "full", TAKEN, .sets = "recompute=block" },
    { .key = "recompute_granularity", .value = "selective", TAKEN, .sets = "recompute=op" },
    { .key = "expert_model_parallel_size", .value = "1", DECIDED, .why = "off" },
    { .key = "expert_model_parallel_size", TAKEN, .sets = "ep" },
    { .key = "cp_mode", TAKEN, .sets = "cp_mode" },
    { .key = "mixed_precision", .value = "bf16 bf16_mixed", TAKEN, .sets = "dtype=bfloat16" },
    IDLE("apply_rope_fusion bias_activation_fusion overlap_grad_reduce overlap_param_gather moe_grouped_gemm moe_token_dispatcher_type use_packed_sequences export_hf_on_finish", "kernels and their overlap are the engine's"),
    { .key = "early_stopping_steps", .value = "@on", TAKEN, .sets = "early_stopping_patience" },
    { .key = "use_muon", .value = "@on", TAKEN, .sets = "optim=muon" },
    { .key = "use_muon", DECIDED, .why = "off" },
    { .key = "use_dft_loss", .value = "@on", TAKEN, .sets = "use_dft_loss=true" },
    NOT_ON("use_galore use_apollo use_badam use_adam_mini use_llama_pro use_eaft_loss use_asft_loss use_hyper_parallel mixture_of_depths shift_attn use_kt", "there is nothing like it here"),
    IDLE("galore_* apollo_* badam_* asft_* kt_* kt_config.* eaft_*", "without its switch it has no effect"),
    IDLE("plot_loss compute_accuracy include_effective_tokens_per_second flash_attn enable_liger_kernel use_unsloth use_unsloth_gc upcast_layernorm upcast_lmhead_output use_reentrant_gc use_v1_kernels infer_backend infer_dtype sample_backend print_param_status disable_shuffling use_swanlab swanlab_* ray_* master_addr master_port placement_strategy resources_per_worker resources_per_worker.* use_ray moe_aux_loss_coef", "there is nothing to choose"),
    { .key = "disable_shuffling", .value = "@on", TAKEN, .sets = "train_sampling_strategy=sequential" },
    { .key = "train_from_scratch", .value = "@on", TAKEN, .sets = "from_scratch=true" },
    { .key = "split_special_tokens", .value = "@on", CANNOT, .why = "names of special tokens in a text are those tokens" },
    NOT_ON("block_diag_attn use_mca hyper_parallel_args", "there is nothing like it here"),
    { .key = "enable_torch_profiler", .value = "@on", DIFFERS, .why = "--profile N makes a timeline from step N on" },
    IDLE("cpu_infer chunk_size profiler_* profile_modules use_kv_cache ms_hub_token om_hub_token quantization_device_map crop_to_patches use_audio_in_video vllm_* sglang_* compute_dtype device_map model_max_length length_penalty skip_special_tokens download_mode", "there is nothing to choose"),
    { .key = "task task_dir lang n_shot save_dir batch_size", .value = "@on", CANNOT, .why = "not a training: trireme eval" },
    { .key = "export_*", .value = "@on", CANNOT, .why = "not a training: trireme ckpt merge ADAPTER --output DIR" },
    { .key = "max_new_tokens max_length repetition_penalty do_sample temperature top_p top_k num_beams", DECIDED, .why = "trireme generate and chat take it" },

    /* older files */
    SAME("dpo_beta orpo_beta kto_beta", "beta"),
    SAME("dpo_ftx kto_ftx", "rpo_alpha"),
    { .key = "dpo_loss", .value = "sigmoid hinge ipo", TAKEN, .sets = "loss_type" },
    { .key = "dpo_loss", .value = "orpo simpo", TAKEN, .sets = "task" },
    { .key = "dpo_loss", CANNOT, .why = "there is no such loss of pairs here" },
    { .key = "sft_packing", .value = "@on", DIFFERS, .sets = "packing=bestfit", .why = "records in a row never see each other" },
    { .key = "max_source_length max_target_length", DIFFERS, .why = "cutoff_len is the length of prompt and answer" },
    NOT_ON("visual_inputs use_mllm_visual train_mm_proj_only", "text only: there are no images here"),
    NOT_ON("name_module_trainable num_layer_trainable num_hidden_layers", "write trainable with patterns of the layers that learn"),
    IDLE("attn include_mfu mfu_* model_capacity reserved_label_len efficient_eos metric lora_bf16_mode lora_fp32_mode repo_id pad_to_multiple_of video_maxlen", "there is nothing to choose"),

    /* its second generation of files */
    IDLE("model_class", "the model's config.json says it"),
    SAME("micro_batch_size", "per_device_train_batch_size"),
    NOT_ON("mtp_config mtp_config.*", "there are no heads of later tokens here"),
    SAME("global_batch_size", "train_batch_size"),
    { .key = "dist_config.name", .value = "fsdp2 fsdpturbo fsdp", TAKEN, .sets = "zero=3" },
    { .key = "dist_config.name", .value = "deepspeed", DECIDED, .why = "its file says it" },
    { .key = "dist_config.config_file", .part = "deepspeed" },
    { .key = "dist_config.ep_size", .value = "@many", TAKEN, .sets = "ep" },
    IDLE("dist_config.* kernel_config.* init_config.* sample_backend", "kernels and loading are the engine's"),
    { .key = "batching_strategy", .value = "normal", DECIDED, .why = "rows of equal length" },
    { .key = "batching_strategy", DIFFERS, .why = "rows have one length; packing bestfit fills them" },
    { .key = "peft_config.name", .value = "lora", TAKEN, .sets = AN_ADAPTER },
    { .key = "peft_config.name", .value = "freeze", CANNOT, .why = "write trainable with patterns of the layers that learn" },
    SAME("peft_config.r", "lora_r"),
    SAME("peft_config.lora_alpha", "lora_alpha"),
    SAME("peft_config.lora_dropout", "lora_dropout"),
    { .key = "peft_config.target_modules", .value = "all", TAKEN, .sets = "lora_target_modules=all-linear" },
    SAME("peft_config.target_modules", "lora_target_modules"),
    { .key = "peft_config.freeze_*", .value = "@on", CANNOT, .why = "write trainable with patterns of the layers that learn" },
    { .key = "peft_config.export_* peft_config.adapter_name_or_path peft_config.infer_dtype", .value = "@on", CANNOT, .why = "not a training: trireme ckpt merge ADAPTER --output DIR" },
    { .key = "quant_config.name", .value = "bnb", DECIDED, .why = "as bitsandbytes has it" },
    { .key = "quant_config.quantization_bit", .value = "4", TAKEN, .sets = "load_in_4bit=true" },
    { .key = "quant_config quant_config.*", .value = "@on", CANNOT, .why = "a base is held in 4 bits as bitsandbytes has it" },
    { .key = "optim_config.name", TAKEN, .sets = "optim" },
    SAME("optim_config.momentum", "momentum"),
    { .key = "optim_config.adamw_betas", TAKEN, .sets = "adam_beta1=$0 adam_beta2=$1" },
    SAME("optim_config.adamw_eps", "adam_epsilon"),
    SAME("optim_config.wd", "weight_decay"),
    { .key = "optim_config.nesterov optim_config.ns_steps", DECIDED, .why = "the optimizer decides it" },
    { .key = "<|*", CANNOT, .why = "a list of tokens with their meanings, not a run; tokens are those of the model's tokenizer" },
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_llamafactory = {
    .name = "llamafactory", .title = "LLaMA-Factory", .rows = rows, .base = &tr_tool_hf, .is_mine = is_llamafactory
};
