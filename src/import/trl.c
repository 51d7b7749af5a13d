/* trl.c - SFTConfig, ModelConfig and script arguments of TRL; the rest of its names are TrainingArguments. */
#include "import/shared_rows.h"
#include "import/source.h"

static bool is_trl(const struct tree *t)
{
    static const char *const keys[] = { "dataset_name",          "assistant_only_loss", "completion_only_loss",
                                        "packing_strategy",      "dataset_config",      "dataset_train_split",
                                        "dataset_test_split",    "padding_free",        "dataset_kwargs",
                                        "eval_packing",          "dataset_num_proc",    "chat_template_path",
                                        "max_prompt_length",     "truncation_mode",     "bnb_4bit_quant_storage",
                                        "activation_offloading", "dataset_mixture",     "dataset_mixer" };
    for (size_t i = 0; i < TR_COUNT_OF(keys); i++)
        if (tr_tree_has(t, keys[i]))
            return true;
    return false;
}

static bool is_evaluated(const struct tree *t)
{
    return tr_words_match("@on", tr_tree_find(t, "eval_strategy")) ||
           tr_words_match("@on", tr_tree_find(t, "evaluation_strategy"));
}

/* A split of a data set, or the first part of it. `config` and `fraction` may be NULL. */
static void give_split(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const char *option,
                       const char *path, const char *config, const char *split, const struct leaf *fraction)
{
    struct source s;
    char part[IMPORT_KEY_MAX];
    double share = 1;
    bool is_hub = tr_source_is_hub(path), is_part = tr_source_part(split, fraction, part, sizeof part);
    bool is_less = fraction != NULL && tr_parse_real(fraction->text, &share) == TR_OK && share < 1;
    tr_error_clear();
    if (is_less && !is_part) {
        tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL,
                      "a part is a whole number of percent of a whole split");
        return;
    }
    tr_source_open(&s);
    s.config = config;
    s.split = is_part ? part : split;
    tr_source_give(&s, im, t, leaf, is_hub ? TR_IMPORT_DIFFERS : TR_IMPORT_TAKEN, option, path,
                   is_hub ? SOURCE_HUB : NULL);
    tr_source_close(&s);
}

static const char *text_of(const struct leaf *leaf)
{
    return leaf != NULL ? leaf->text : NULL;
}

/* dataset_name with its splits. */
static void take_name(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row)
{
    const struct leaf *train = tr_tree_find(t, "dataset_train_split"), *test = tr_tree_find(t, "dataset_test_split");
    const char *config = text_of(tr_tree_find(t, "dataset_config"));
    give_split(im, t, leaf, row->sets, leaf->text, config, train != NULL ? train->text : "train", NULL);
    if (test != NULL && is_evaluated(t))
        give_split(im, t, leaf, "eval_data", leaf->text, config, test->text, NULL);
}

/* dataset_mixer of the alignment handbook: name and share of a data set; dataset_splits has those to train on and to
 * evaluate on. */
static void take_mixer(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                       const struct import_row *row)
{
    const char *name = strchr(leaf->path, '.') + 1, *config = NULL;
    const struct leaf *splits = tr_tree_find(t, "dataset_splits"), *configs = tr_tree_find(t, "dataset_configs");
    size_t at = 0;
    for (const struct leaf *l = t->leaves; l < leaf; l++) /* dataset_configs has one for each, in their order */
        at += strncmp(l->path, "dataset_mixer.", 14) == 0;
    if (configs != NULL && at < configs->n_items)
        config = configs->items[at];
    for (size_t i = 0; splits != NULL && i < splits->n_items; i++) {
        bool is_test = strstr(splits->items[i], "test") != NULL;
        if (!is_test || is_evaluated(t))
            give_split(im, t, leaf, is_test ? "eval_data" : row->sets, name, config, splits->items[i],
                       is_test ? NULL : leaf);
    }
    if (splits == NULL)
        give_split(im, t, leaf, row->sets, name, config, "train", leaf);
}

/* One entry of dataset_mixture.datasets, or of datasets. */
static void take_mixture(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                         const struct import_row *row)
{
    const struct leaf *dir = tr_tree_beside(t, leaf, "data_dir"), *files = tr_tree_beside(t, leaf, "data_files");
    const struct leaf *split = tr_tree_beside(t, leaf, "split"), *share = tr_tree_beside(t, leaf, "weight");
    const struct leaf *config = tr_tree_beside(t, leaf, "config");
    if (config == NULL)
        config = tr_tree_beside(t, leaf, "name");
    bool is_kind = tr_words_match("json csv text parquet arrow", leaf);
    char base[TR_PATH_MAX], path[TR_PATH_MAX];
    if (dir == NULL || tr_path_join(base, leaf->text, dir->text) != TR_OK)
        snprintf(base, sizeof base, "%s", leaf->text);
    for (size_t i = 0; i == 0 || (files != NULL && i < files->n_items); i++) {
        const char *file = files == NULL ? NULL : files->is_list ? files->items[i] : files->text;
        if (file == NULL || is_kind || tr_path_join(path, base, file) != TR_OK)
            snprintf(path, sizeof path, "%s", file != NULL ? file : base);
        give_split(im, t, leaf, row->sets, path, text_of(config), split != NULL ? split->text : "train", share);
    }
    tr_error_clear();
}

bool tr_weighed_losses(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *weights = tr_tree_find(t, "loss_weights");
    struct tr_str s = { 0 };
    size_t n = leaf->is_list ? leaf->n_items : 1;
    if (weights == NULL)
        weights = tr_tree_find(t, "dpo_loss_weights");
    size_t n_weights = weights == NULL ? n : weights->is_list ? weights->n_items : 1;
    for (size_t i = 0; i < n && n_weights == n; i++) {
        tr_str_addf(&s, "%s%s", i != 0 ? "," : "", leaf->is_list ? leaf->items[i] : leaf->text);
        if (weights != NULL)
            tr_str_addf(&s, ":%s", weights->is_list ? weights->items[i] : weights->text);
    }
    bool fits = n_weights == n && tr_str_ok(&s) && s.n > 0 && s.n < n_out;
    if (fits)
        memcpy(out, s.p, s.n + 1);
    tr_str_release(&s);
    return fits;
}

/* clang-format off */
#define MIXTURE(x) "dataset_mixture.datasets[]." x " datasets[]." x
static const struct import_row rows[] = {
    { .key = "gradient_checkpointing activation_checkpointing", .value = "@absent", TAKEN, .sets = "recompute=block", .why = "TRL's default" },
    { .key = "bf16", .value = "@absent", TAKEN, .sets = "dtype=bfloat16", .when = "!fp16=true", .why = "TRL's default" },
    { .key = "dtype torch_dtype", DECIDED, .when = "bf16=@absent;fp16=@absent", .why = "bf16 is TRL's default" },
    { .key = "learning_rate", .value = "@absent", TAKEN, .sets = "learning_rate=1e-6", .when = "!beta=@absent", .why = "DPOConfig's and KTOConfig's default" },
    { .key = "learning_rate", .value = "@absent", TAKEN, .sets = "learning_rate=1e-6", .when = "!desirable_weight=@absent", .why = "KTOConfig's default" },
    { .key = "learning_rate", .value = "@absent", TAKEN, .sets = "learning_rate=1e-6", .when = "!undesirable_weight=@absent", .why = "KTOConfig's default" },
    { .key = "learning_rate", .value = "@absent", TAKEN, .sets = "learning_rate=1e-6", .when = "loss_type=simpo", .why = "CPOConfig's default" },
    { .key = "learning_rate", .value = "@absent", TAKEN, .sets = "learning_rate=1e-6", .when = "!cpo_alpha=@absent", .why = "CPOConfig's default" },
    { .key = "learning_rate", .value = "@absent", TAKEN, .sets = "learning_rate=2e-5", .why = "SFTConfig's default" },
    { .key = "max_length max_seq_length", .value = "@absent", TAKEN, .sets = "sequence_length=1024", .why = "SFTConfig's default" },
    SAME("max_length max_seq_length", "sequence_length"),
    { .key = "truncation_mode", .value = "keep_start", DIFFERS, .why = "long_documents fit: prompt and answer share the row, and a trained token stays" },
    { .key = "truncation_mode", CANNOT, .why = "long_documents is fit, split, cut, drop or refuse" },
    { .key = "dataset_name", TAKEN, .sets = "data", .apply = take_name },
    { .key = "dataset_config dataset_configs " MIXTURE("name") " " MIXTURE("config"), TAKEN, .why = A_PART },
    { .key = "dataset_mixer.*", TAKEN, .sets = "data", .apply = take_mixer },
    { .key = MIXTURE("id") " " MIXTURE("path"), TAKEN, .sets = "data", .apply = take_mixture },
    { .key = "dataset_splits " MIXTURE("split") " " MIXTURE("data_dir") " " MIXTURE("data_files"), TAKEN, .why = IN_DATA },
    { .key = MIXTURE("weight"), TAKEN, .why = "the first part of its source in data" },
    IDLE(MIXTURE("columns") " columns_to_keep " MIXTURE("columns_to_keep"), "columns are seen from the records"),
    { .key = "dataset_mixture.test_split_size", .value = "@share", TAKEN, .sets = "eval_split" },
    { .key = "dataset_mixture.test_split_size", .value = "@on", CANNOT, .why = "eval_split is a share of the rows" },
    SAME("dataset_mixture.streaming", "streaming"),
    IDLE("dataset_mixture.seed", "seed and data_seed say it"),
    { .key = "dataset_train_split", TAKEN, .why = IN_DATA },
    { .key = "dataset_test_split", TAKEN, .when = "eval_strategy=@on", .why = "part of its source in eval_data" },
    { .key = "dataset_test_split", TAKEN, .when = "evaluation_strategy=@on", .why = "part of its source in eval_data" },
    { .key = "dataset_test_split", DECIDED, .value = "test", .why = "without eval_strategy nothing is evaluated" },
    { .key = "dataset_test_split", DIFFERS, .why = "name the files to evaluate on with eval_data, or write eval_split" },
    SAME("dataset_streaming", "streaming"),
    IDLE("dataset_num_proc preprocessing_num_workers dataset_batch_size dataset_kwargs dataset_kwargs.* shuffle_dataset eval_packing padding_free pad_to_multiple_of pad_token ignore_bias_buffers use_mps dataset_prepared_path", "rows are made once, before step 0, and shuffled"),
    SAME("dataset_text_field text_column", "text_key"),
    { .key = "packing", .value = "@off", TAKEN, .sets = "packing=none" },
    { .key = "packing", .value = "@absent", TAKEN, .sets = "packing=none", .why = "TRL's default" },
    { .key = "packing", .value = "@on", TAKEN, .sets = "packing=stream", .when = "packing_strategy=wrapped" },
    { .key = "packing", .value = "true", TAKEN, .sets = "packing=bestfit" },
    { .key = "packing_strategy", .value = "bfd ffd wrapped", DECIDED, .why = "packing says it" },
    { .key = "packing_strategy", .value = "bfd_split bfd-requeue", TAKEN, .sets = "long_documents=split" },
    { .key = "completion_only_loss", .value = "@on", DECIDED, .why = "prompts have no loss" },
    { .key = "completion_only_loss", .value = "@off", TAKEN, .sets = "train_on=all" },
    { .key = "assistant_only_loss", .value = "@on", TAKEN, .sets = "train_on=assistant" },
    { .key = "assistant_only_loss", .value = "@off", TAKEN, .sets = "train_on=all" },
    { .key = "assistant_only_loss", .value = "@absent", DIFFERS, .when = "completion_only_loss=@absent;beta=@absent;desirable_weight=@absent;undesirable_weight=@absent", .why = "of conversations the assistant's turns are trained; TRL trains every turn: train_on all does so" },
    SAME("chat_template_path", "chat_template"),
    { .key = "eos_token", DIFFERS, .why = "the template's end of a turn is trained" },
    { .key = "loss_type", .value = "nll chunked_nll", DECIDED, .why = "the loss of tokens, in chunks" },
    { .key = "loss_type", .value = "dft", TAKEN, .sets = "use_dft_loss=true" },
    { .key = "loss_type", .value = "kto apo_zero_unpaired", TAKEN, .sets = "task=kto loss_type=$" },
    { .key = "loss_type", .value = "simpo", TAKEN, .sets = "task=simpo" },
    LOSS_ROWS("loss_type", "loss_weights"),
    { .key = "activation_offloading", .value = "@on", TAKEN, .sets = "offload_activations=true" },
    { .key = "use_peft", .value = "@on", TAKEN, .sets = AN_ADAPTER },
    { .key = "lora_r", TAKEN, .sets = "lora_r", .when = "use_peft=true" },
    { .key = "lora_alpha", TAKEN, .sets = "lora_alpha", .when = "use_peft=true" },
    { .key = "lora_dropout", TAKEN, .sets = "lora_dropout", .when = "use_peft=true" },
    { .key = "lora_target_modules", TAKEN, .sets = "lora_target_modules", .when = "use_peft=true" },
    { .key = "lora_modules_to_save", .value = OF_TIED, TAKEN, .sets = TRAIN_APART, .when = "use_peft=true", .why = APART },
    { .key = "lora_modules_to_save", TAKEN, .sets = "lora_modules_to_save", .when = "use_peft=true" },
    { .key = "use_rslora", .value = "@on", TAKEN, .sets = "use_rslora=true", .when = "use_peft=true" },
    { .key = "use_dora", .value = "@on", TAKEN, .sets = "use_dora=true", .when = "use_peft=true" },
    { .key = "lora_r", .value = "@absent", TAKEN, .sets = "lora_r=16", .when = "use_peft=true", .why = "TRL's default" },
    { .key = "lora_alpha", .value = "@absent", TAKEN, .sets = "lora_alpha=32", .when = "use_peft=true", .why = "TRL's default" },
    { .key = "lora_dropout", .value = "@absent", TAKEN, .sets = "lora_dropout=0.05", .when = "use_peft=true", .why = "TRL's default" },
    IDLE("lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save use_rslora use_dora lora_task_type", "without use_peft there is no adapter"),
    NOT_ON("lora_target_parameters", "adapters are of linears and embeddings"),
    { .key = "load_in_4bit", .value = "@on", TAKEN, .sets = "load_in_4bit=true" },
    { .key = "load_in_8bit", .value = "@on", DIFFERS, .sets = "base_dtype=fp8", .why = EIGHT_BITS },
    { .key = "use_bnb_nested_quant", .value = "@on", TAKEN, .sets = "bnb_4bit_use_double_quant=true" },
    IDLE("bnb_4bit_quant_storage bnb_4bit_compute_dtype", "all of a run computes in dtype"),
    { .key = "beta", TAKEN, .sets = "beta", .when = "loss_type=kto apo_zero_unpaired" },
    { .key = "beta", TAKEN, .sets = "beta", .when = "!desirable_weight=@absent" },
    { .key = "beta", TAKEN, .sets = "beta", .when = "!undesirable_weight=@absent" },
    { .key = "beta", TAKEN, .sets = "beta", .when = "loss_type=simpo" },
    { .key = "beta", .value = "@absent", TAKEN, .sets = "beta=0.1", .when = "loss_type=simpo", .why = "CPOConfig's default" },
    { .key = "beta", TAKEN, .sets = "beta", .when = "!cpo_alpha=@absent" },
    { .key = "beta", DIFFERS, .sets = "task=dpo beta=$", .when = "loss_type=@absent;task=@absent", .why = "DPO; files of ORPOConfig and CPOConfig look the same: for them write task: orpo, simpo or cpo" },
    { .key = "beta", TAKEN, .sets = "beta", .when = "!task=@absent" },
    { .key = "beta", TAKEN, .sets = "task=dpo beta=$" },
    SAME("label_smoothing", "label_smoothing"),
    SAME("rpo_alpha", "rpo_alpha"),
    { .key = "cpo_alpha", TAKEN, .sets = "rpo_alpha", .when = "loss_type=simpo" },
    { .key = "cpo_alpha", TAKEN, .sets = "task=cpo rpo_alpha=$" },
    { .key = "cpo_alpha", .value = "@absent", TAKEN, .sets = "rpo_alpha=1", .when = "loss_type=simpo", .why = "CPOConfig's default" },
    SAME("simpo_gamma", "simpo_gamma"),
    SAME("f_divergence_type", "f_divergence_type"),
    SAME("f_alpha_divergence_coef", "f_alpha_divergence_coef"),
    SAME("discopop_tau", "discopop_tau"),
    { .key = "desirable_weight", TAKEN, .sets = "task=kto desirable_weight=$" },
    { .key = "undesirable_weight", TAKEN, .sets = "task=kto undesirable_weight=$" },
    IDLE("ref_model_mixup_alpha ref_model_sync_steps", "numbers of sync_ref_model"),
    SAME("ld_alpha", "ld_alpha"),
    { .key = "use_weighting", .value = "@on", TAKEN, .sets = "use_weighting=true" },
    { .key = "reference_free sync_ref_model", .value = "@on", CANNOT, .why = "this loss has no such part here" },
    IDLE("precompute_ref_log_probs precompute_ref_batch_size disable_dropout model_init_kwargs ref_model_init_kwargs max_prompt_length max_completion_length use_logits_to_keep generate_during_eval", "decided by the run"),
    SAME("ref_model_name_or_path", "ref_model"),
    { .key = "router_aux_loss_coef", .value = "@on", TAKEN, .sets = "router_aux_loss_coef" },
    IDLE("attn_implementation trust_remote_code model_revision sft_* config use_liger use_liger_loss label_pad_token_id padding_value gradient_checkpointing_use_reentrant sanity_check", "there is nothing to choose"),
    NOT_ON("is_encoder_decoder", "models write the next token"),
    NOT_ON("alpha", "this loss has no such part here"),
    IDLE("model_adapter_name ref_adapter_name force_use_ref_model base_model_attribute_name", "the reference is the model without the adapter, or ref_model"),
    { .key = "tools", .value = "@on", CANNOT, .why = "put them into the records" },
    { .key = "max_target_length", DIFFERS, .why = "max_length is the length of prompt and answer" },
    { .key = "dataset_mixer datasets datasets[].* dataset_mixture dataset_mixture.*", .value = "@on", CANNOT, .why = "write data PATH:WEIGHT for each source" },
    { .key = "auto_insert_empty_system_msg", .value = "@on", DIFFERS, .why = "a conversation without a system message has none" },
    IDLE("use_flash_attention_2 base_model_revision torch_dtype hub_model_revision", "there is nothing to choose"),
    { .key = "system_prompt", CANNOT, .why = "put it into the records" },
    { .key = "chat_template", TAKEN, .sets = "chat_template" },
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_trl = { .name = "trl", .title = "TRL", .rows = rows, .base = &tr_tool_hf, .is_mine = is_trl };
