/* trl.c - SFTConfig, ModelConfig and script arguments of TRL; the rest of its names are TrainingArguments. */
#include "import/import_impl.h"

static bool is_trl(const struct tree *t)
{
    static const char *const keys[] = { "dataset_name",         "assistant_only_loss", "completion_only_loss",
                                        "packing_strategy",     "dataset_config",      "dataset_train_split",
                                        "dataset_test_split",   "padding_free",        "dataset_kwargs",
                                        "eval_packing",         "dataset_num_proc",    "chat_template_path",
                                        "max_prompt_length",    "truncation_mode",     "bnb_4bit_quant_storage",
                                        "activation_offloading" };
    for (size_t i = 0; i < TR_COUNT_OF(keys); i++)
        if (tr_tree_has(t, keys[i]))
            return true;
    return false;
}

/* clang-format off */
static const struct import_row rows[] = {
    { .key = "gradient_checkpointing activation_checkpointing", .value = "@absent", TAKEN, .sets = "recompute=block", .why = "TRL's default" },
    { .key = "bf16", .value = "@absent", TAKEN, .sets = "dtype=bfloat16", .when = "!fp16=true", .why = "TRL's default" },
    { .key = "learning_rate", .value = "@absent", TAKEN, .sets = "learning_rate=2e-5", .why = "SFTConfig's default" },
    { .key = "max_length max_seq_length", .value = "@absent", TAKEN, .sets = "sequence_length=1024", .why = "SFTConfig's default" },
    SAME("max_length max_seq_length", "sequence_length"),
    { .key = "truncation_mode", .value = "keep_start", DIFFERS, .why = "long_documents fit: prompt and answer share the row, and a trained token stays" },
    { .key = "truncation_mode", CANNOT, .why = "long_documents is fit, split, cut, drop or refuse" },
    { .key = "dataset_name", DIFFERS, .sets = "data", .why = "a file, a directory or a glob: hub names are downloaded first" },
    { .key = "dataset_config dataset_train_split", .value = "train default main", DECIDED, .why = "all of data is trained on" },
    { .key = "dataset_config", CANNOT, .why = "name the files of this part with data" },
    { .key = "dataset_train_split", CANNOT, .why = "name the files of this split with data" },
    { .key = "dataset_test_split", DIFFERS, .why = "name the files to evaluate on with eval_data, or write eval_split" },
    IDLE("dataset_streaming dataset_num_proc dataset_batch_size dataset_kwargs dataset_kwargs.* shuffle_dataset eval_packing padding_free pad_to_multiple_of pad_token ignore_bias_buffers use_mps dataset_prepared_path", "rows are made once, before step 0, and shuffled"),
    SAME("dataset_text_field", "text_key"),
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
    { .key = "assistant_only_loss", .value = "@absent", DIFFERS, .when = "completion_only_loss=@absent", .why = "of conversations the assistant's turns are trained; TRL trains every turn: train_on all does so" },
    SAME("chat_template_path", "chat_template"),
    { .key = "eos_token", DIFFERS, .why = "the template's end of a turn is trained" },
    { .key = "loss_type", .value = "nll chunked_nll", DECIDED, .why = "the loss of tokens, in chunks" },
    { .key = "loss_type", .value = "dft", TAKEN, .sets = "use_dft_loss=true" },
    { .key = "loss_type", .value = "kto apo_zero_unpaired", TAKEN, .sets = "task=kto loss_type=$" },
    SAME("loss_type", "loss_type"),
    { .key = "activation_offloading", .value = "@on", TAKEN, .sets = "offload_activations=true" },
    { .key = "use_peft", .value = "@on", TAKEN, .sets = "finetuning_type=lora" },
    { .key = "lora_r", TAKEN, .sets = "lora_r", .when = "use_peft=true" },
    { .key = "lora_alpha", TAKEN, .sets = "lora_alpha", .when = "use_peft=true" },
    { .key = "lora_dropout", TAKEN, .sets = "lora_dropout", .when = "use_peft=true" },
    { .key = "lora_target_modules", TAKEN, .sets = "lora_target_modules", .when = "use_peft=true" },
    { .key = "lora_modules_to_save", TAKEN, .sets = "lora_modules_to_save", .when = "use_peft=true" },
    { .key = "use_rslora", .value = "@on", TAKEN, .sets = "use_rslora=true", .when = "use_peft=true" },
    { .key = "use_dora", .value = "@on", TAKEN, .sets = "use_dora=true", .when = "use_peft=true" },
    { .key = "lora_r", .value = "@absent", TAKEN, .sets = "lora_r=16", .when = "use_peft=true", .why = "TRL's default" },
    { .key = "lora_alpha", .value = "@absent", TAKEN, .sets = "lora_alpha=32", .when = "use_peft=true", .why = "TRL's default" },
    { .key = "lora_dropout", .value = "@absent", TAKEN, .sets = "lora_dropout=0.05", .when = "use_peft=true", .why = "TRL's default" },
    IDLE("lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save use_rslora use_dora lora_task_type", "without use_peft there is no adapter"),
    NOT_ON("lora_target_parameters", "adapters are of linears and embeddings"),
    { .key = "load_in_4bit", .value = "@on", TAKEN, .sets = "load_in_4bit=true" },
    NOT_ON("load_in_8bit", "bases are held in 16 or 4 bits, or in fp8: base_dtype fp8"),
    { .key = "use_bnb_nested_quant", .value = "@on", TAKEN, .sets = "bnb_4bit_use_double_quant=true" },
    IDLE("bnb_4bit_quant_storage bnb_4bit_compute_dtype", "all of a run computes in dtype"),
    { .key = "beta", TAKEN, .sets = "beta", .when = "loss_type=kto apo_zero_unpaired" },
    { .key = "beta", TAKEN, .sets = "beta", .when = "!desirable_weight=@absent" },
    { .key = "beta", TAKEN, .sets = "beta", .when = "!undesirable_weight=@absent" },
    { .key = "beta", TAKEN, .sets = "task=dpo beta=$" },
    SAME("label_smoothing", "label_smoothing"),
    SAME("rpo_alpha cpo_alpha", "rpo_alpha"),
    SAME("simpo_gamma", "simpo_gamma"),
    SAME("f_divergence_type", "f_divergence_type"),
    SAME("f_alpha_divergence_coef", "f_alpha_divergence_coef"),
    SAME("discopop_tau", "discopop_tau"),
    { .key = "desirable_weight", TAKEN, .sets = "task=kto desirable_weight=$" },
    { .key = "undesirable_weight", TAKEN, .sets = "task=kto undesirable_weight=$" },
    { .key = "loss_weights ld_alpha reference_free use_weighting sync_ref_model ref_model_mixup_alpha ref_model_sync_steps", .value = "@on", CANNOT, .why = "this loss has no such part here" },
    IDLE("precompute_ref_log_probs precompute_ref_batch_size disable_dropout model_init_kwargs ref_model_init_kwargs max_prompt_length max_completion_length use_logits_to_keep generate_during_eval", "decided by the run"),
    SAME("ref_model_name_or_path", "ref_model"),
    { .key = "router_aux_loss_coef", .value = "@on", TAKEN, .sets = "router_aux_loss_coef" },
    IDLE("attn_implementation trust_remote_code model_revision sft_* config", "there is nothing to choose"),
    { .key = "dataset_mixer dataset_mixer.* datasets datasets[].* dataset_mixture dataset_mixture.*", CANNOT, .why = "write data PATH:WEIGHT for each source" },
    { .key = "system_prompt", CANNOT, .why = "put it into the records" },
    { .key = "chat_template", TAKEN, .sets = "chat_template" },
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_trl = { .name = "trl", .title = "TRL", .rows = rows, .base = &tr_tool_hf, .is_mine = is_trl };
