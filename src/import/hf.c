/* hf.c - TrainingArguments of transformers, kept as a file (JSON or YAML), in spellings from 4.x to 5.x.
 *
 * Names that are options here stand for themselves; what only chooses between ways to do the same is taken without
 * complaint.
 */
#include <ctype.h>
#include <math.h>

#include "import/shared_rows.h"

/* HF: eval_steps is logging_steps where only the strategy says steps. */
static bool steps_of_logging(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *steps = tr_tree_find(t, "logging_steps");
    (void)leaf;
    snprintf(out, n_out, "%s", steps != NULL ? steps->text : "500");
    return true;
}

/* A floor of the learning rate as a share of its peak. */
static bool share_of_peak(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *peak = tr_tree_find(t, "learning_rate");
    double x = 0, y = 5e-5;
    bool is_known =
        tr_parse_real(leaf->text, &x) == TR_OK && (peak == NULL || tr_parse_real(peak->text, &y) == TR_OK) && y > 0;
    tr_error_clear();
    if (is_known)
        snprintf(out, n_out, "%.9g", x / y);
    return is_known;
}

static bool within_a_million(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    double x = 0;
    (void)t;
    bool is_known = tr_parse_real(leaf->text, &x) == TR_OK;
    tr_error_clear();
    snprintf(out, n_out, "%.9g", x < 1e6 ? x : 1e6);
    return is_known;
}

/* A value of YAML as JSON: words and numbers as they are, anything else as text. */
static void add_json(struct tr_str *out, const char *text)
{
    double v = 0;
    bool is_plain = tr_words_match("true false null", &(struct leaf){ .text = text }) ||
                    (text[0] != '+' && tr_parse_real(text, &v) == TR_OK && isfinite(v));
    tr_error_clear();
    if (is_plain)
        for (const char *p = text; *p != '\0'; p++)
            tr_str_addf(out, "%c", tolower((unsigned char)*p));
    else
        tr_str_json(out, text);
}

/* The map chat_template_kwargs is one object; its first key gives it. */
static void take_variables(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                           const struct import_row *row)
{
    static const char prefix[] = "chat_template_kwargs.";
    struct tr_str text = { 0 };
    bool is_first = true;
    for (const struct leaf *l = t->leaves; l < t->leaves + t->n_leaves; l++) {
        if (strncmp(l->path, prefix, sizeof prefix - 1) != 0)
            continue;
        const char *name = l->path + sizeof prefix - 1;
        if (strpbrk(name, ".[") != NULL || l->is_list) {
            tr_import_add(im, t, leaf, TR_IMPORT_CANNOT, NULL, NULL,
                          "a variable is a word, a number or a text: write chat_template_kwargs as JSON");
            goto out;
        }
        if (is_first && l < leaf) {
            tr_import_add(im, t, leaf, row->verdict, NULL, NULL, "part of chat_template_kwargs");
            goto out;
        }
        tr_str_member(&text, is_first ? "{" : ",", name);
        tr_str_addf(&text, ":");
        add_json(&text, l->is_null ? "null" : l->text);
        is_first = false;
    }
    tr_str_addf(&text, "}");
    if (tr_str_ok(&text))
        tr_import_add(im, t, leaf, row->verdict, row->sets, text.p, row->why);
    else
        im->is_nomem = true;
out:
    tr_str_release(&text);
}

/* clang-format off */
static const struct import_row rows[] = {
    SAME("output_dir", "output"),
    { .key = "chat_template_kwargs.*", TAKEN, .sets = "chat_template_kwargs", .apply = take_variables },
    SAME("model_name_or_path", "model"),
    { .key = "dtype torch_dtype", .value = "auto", DECIDED, .why = "bf16 and fp16 say it" },
    { .key = "dtype torch_dtype", DECIDED, .when = "bf16=@on", .why = "bf16 says what is computed in; the weights that learn are float32" },
    { .key = "dtype torch_dtype", DECIDED, .when = "fp16=@on", .why = "fp16 says what is computed in; the weights that learn are float32" },
    SAME("dtype torch_dtype", "dtype"),
    SAME("seed", "seed"),
    SAME("data_seed", "data_seed"),
    SAME("per_device_train_batch_size per_gpu_train_batch_size", "per_device_train_batch_size"),
    SAME("per_device_eval_batch_size per_gpu_eval_batch_size", "per_device_eval_batch_size"),
    SAME("gradient_accumulation_steps", "gradient_accumulation_steps"),
    SAME("num_train_epochs", "num_train_epochs"),
    SAME("max_steps", "max_steps"),
    SAME("learning_rate", "learning_rate"),
    SAME("weight_decay", "weight_decay"),
    SAME("adam_beta1", "adam_beta1"),
    SAME("adam_beta2", "adam_beta2"),
    SAME("adam_epsilon", "adam_epsilon"),
    SAME("max_grad_norm", "max_grad_norm"),
    OPTIMIZER_ROWS("optim"),
    { .key = "adafactor", .value = "@on", TAKEN, .sets = "optim=adafactor" },
    { .key = "adafactor", DECIDED, .why = "off" },
    { .key = "optim_args", .value = "scale_parameter=false,relative_step=false relative_step=false,scale_parameter=false", DECIDED, .when = "optim=adafactor", .why = "so it is" },
    { .key = "optim_args", .value = "scale_parameter=true,relative_step=true relative_step=true,scale_parameter=true", TAKEN, .when = "optim=adafactor", .sets = "adafactor_scale_parameter=true adafactor_relative_step=true" },
    { .key = "optim_args", .value = "scale_parameter=true scale_parameter=true,relative_step=false", TAKEN, .when = "optim=adafactor", .sets = "adafactor_scale_parameter=true" },
    NOT_ON("optim_args optim_target_modules", "optimizers here have no such arguments"),
    SCHEDULE_ROWS("lr_scheduler_type"),
    SAME("lr_scheduler_kwargs.min_lr_rate lr_scheduler_kwargs.min_lr_ratio", "min_lr_ratio"),
    { .key = "lr_scheduler_kwargs.min_lr", TAKEN, .sets = "min_lr_ratio", .convert = share_of_peak },
    { .key = "lr_scheduler_kwargs.num_decay_steps", TAKEN, .sets = "decay_steps" },
    { .key = "lr_scheduler_kwargs.num_cycles", TAKEN, .sets = "lr_num_cycles" },
    SAME("lr_scheduler_kwargs.lr_end", "lr_end"),
    SAME("lr_scheduler_kwargs.power", "lr_power"),
    SAME("lr_scheduler_kwargs.timescale", "lr_timescale"),
    SAME("lr_scheduler_kwargs.warmup_type", "warmup_type"),
    SAME("lr_scheduler_kwargs.decay_type", "decay_type"),
    { .key = "lr_scheduler_kwargs.num_stable_steps", DECIDED, .why = "what is left between the warm-up and decay_steps" },
    { .key = "lr_scheduler_kwargs lr_scheduler_kwargs.*", .value = "@on", CANNOT, .why = "the schedules here have no such number" },
    SAME("warmup_steps", "warmup_steps"),
    { .key = "warmup_ratio", .value = "@off", DECIDED, .why = "no warm-up" },
    { .key = "warmup_ratio", DECIDED, .when = "warmup_steps=@many", .why = "warmup_steps counts" },
    { .key = "warmup_ratio", TAKEN, .sets = "warmup_steps" },
    { .key = "bf16", .value = "@on", TAKEN, .sets = "dtype=bfloat16" },
    { .key = "fp16", .value = "@on", TAKEN, .sets = "dtype=float16" },
    IDLE("bf16_full_eval fp16_full_eval", "evaluation computes as training does"),
    { .key = "gradient_checkpointing activation_checkpointing", .value = "@on", TAKEN, .sets = "recompute=block" },
    { .key = "gradient_checkpointing activation_checkpointing", .value = "@off", TAKEN, .sets = "recompute=none" },
    { .key = "gradient_checkpointing_kwargs.offload activation_checkpointing_kwargs.offload", .value = "@on", TAKEN, .sets = "offload_activations=true" },
    { .key = "gradient_checkpointing_kwargs.every_n_layers activation_checkpointing_kwargs.every_n_layers", .value = "1", DECIDED, .why = "a block is computed again as it was" },
    { .key = "gradient_checkpointing_kwargs.every_n_layers activation_checkpointing_kwargs.every_n_layers", .value = "@many", DIFFERS, .why = "recompute block is of every layer; recompute auto with memory_budget chooses" },
    { .key = "use_cpu no_cuda", .value = "@on", TAKEN, .sets = "device=cpu" },
    SAME("resume_from_checkpoint", "resume_from_checkpoint"),

    SAME("logging_steps", "logging_steps"),
    { .key = "logging_strategy", .value = "steps", DECIDED, .why = "logging_steps says it" },
    { .key = "logging_strategy", .value = "no", TAKEN, .sets = "logging_steps=0" },
    { .key = "logging_strategy", TAKEN, .sets = "logging_strategy", .or_next = true },
    { .key = "logging_strategy", DIFFERS, .why = "a line every logging_steps steps" },
    { .key = "save_steps", DECIDED, .when = "save_strategy=no epoch best", .why = "save_strategy says something else" },
    { .key = "save_steps", .value = "@share", TAKEN, .sets = "save_steps", .or_next = true },
    { .key = "save_steps", .value = "@share", DIFFERS, .why = "steps are counted: a checkpoint every 500 and at the end" },
    SAME("save_steps", "save_steps"),
    { .key = "save_strategy", .value = "steps", DECIDED, .why = "save_steps says it" },
    { .key = "save_strategy", .value = "no", TAKEN, .sets = "save_steps=0", .why = "the end of the run is saved" },
    { .key = "save_strategy", TAKEN, .sets = "save_strategy", .or_next = true },
    { .key = "save_strategy", .value = "best", DIFFERS, .sets = "save_best=true", .why = "a checkpoint every save_steps steps, and the best is kept" },
    { .key = "save_strategy", DIFFERS, .why = "a checkpoint every save_steps steps and at the end" },
    { .key = "eval_steps", DECIDED, .when = "eval_strategy=no epoch", .why = "eval_strategy says something else" },
    { .key = "eval_steps", DECIDED, .when = "evaluation_strategy=no epoch", .why = "evaluation_strategy says something else" },
    { .key = "eval_steps", .value = "@share", TAKEN, .sets = "eval_steps", .or_next = true },
    { .key = "eval_steps", .value = "@share", DIFFERS, .why = "steps are counted: an evaluation at the end" },
    SAME("eval_steps", "eval_steps"),
    { .key = "eval_strategy evaluation_strategy", .value = "steps", DECIDED, .why = "eval_steps says it" },
    { .key = "eval_strategy evaluation_strategy", .value = "no", DECIDED, .why = "without eval_data nothing is evaluated" },
    { .key = "eval_strategy evaluation_strategy", TAKEN, .sets = "eval_strategy", .or_next = true },
    { .key = "eval_strategy evaluation_strategy", DIFFERS, .why = "an evaluation every eval_steps steps, or at the end" },
    { .key = "eval_steps", .value = "@absent", TAKEN, .sets = "eval_steps", .when = "eval_strategy=steps", .convert = steps_of_logging, .why = "the Trainer takes logging_steps" },
    { .key = "eval_steps", .value = "@absent", TAKEN, .sets = "eval_steps", .when = "evaluation_strategy=steps", .convert = steps_of_logging, .why = "the Trainer takes logging_steps" },
    { .key = "eval_on_start", .value = "@on", TAKEN, .sets = "eval_on_start=true" },
    SAME("eval_delay", "eval_delay"),
    { .key = "save_total_limit", TAKEN, .sets = "save_total_limit" },
    { .key = "save_only_model", .value = "@on", TAKEN, .sets = "save_only_model=true", .or_next = true },
    { .key = "save_only_model", .value = "@on", DIFFERS, .why = "a checkpoint holds the optimizer too; the directory of the finished run does not" },
    { .key = "load_best_model_at_end", .value = "@on", TAKEN, .sets = "load_best_model_at_end=true", .or_next = true },
    { .key = "load_best_model_at_end", .value = "@on", DIFFERS, .sets = "save_best=true", .why = "the best checkpoint is kept; OUTPUT holds the last state" },
    { .key = "metric_for_best_model", .value = "loss eval_loss", DECIDED, .why = "the evaluation loss" },
    { .key = "metric_for_best_model", .value = "*_loss", TAKEN, .sets = "metric_for_best_model", .why = "needs a set of that name: eval_data NAME=PATH" },
    { .key = "metric_for_best_model", .value = "*rewards/accuracies *rewards/margins", TAKEN, .sets = "metric_for_best_model", .why = "needs a task of preferences" },
    { .key = "metric_for_best_model", CANNOT, .why = "the best is that of an evaluation loss, of choices (eval_acc) or of rewards" },
    { .key = "greater_is_better", .value = "@on", DECIDED, .when = "metric_for_best_model=eval_rewards/accuracies rewards/accuracies eval_rewards/margins rewards/margins", .why = "the metric says it" },
    { .key = "greater_is_better", .value = "@on", CANNOT, .why = "of losses the smaller is better" },
    { .key = "label_smoothing_factor", .value = "@on", TAKEN, .sets = "label_smoothing_factor" },
    { .key = "label_smoothing", .value = "@on", TAKEN, .sets = "label_smoothing" },
    { .key = "neftune_noise_alpha", .value = "@on", TAKEN, .sets = "neftune_noise_alpha" },
    { .key = "full_determinism", .value = "@on", TAKEN, .sets = "reproducible=config" },
    { .key = "ddp_timeout", TAKEN, .sets = "ddp_timeout", .convert = within_a_million },
    { .key = "report_to report_to.*", .value = "none", DECIDED, .why = "OUTPUT/events.jsonl has every step" },
    { .key = "report_to", TAKEN, .sets = "report_to", .or_next = true },
    { .key = "report_to", DIFFERS, .why = "only tensorboard, wandb and trackio are written; OUTPUT/events.jsonl has every step" },
    { .key = "run_name", TAKEN, .sets = "run_name", .or_next = true },
    IDLE("run_name project logging_dir trackio_*", "OUTPUT/events.jsonl has every step"),
    { .key = "disable_tqdm", .value = "@on", TAKEN, .sets = "quiet=true" },
    { .key = "auto_find_batch_size", .value = "@on", DIFFERS, .why = "trireme plan says before step 0 what fits" },
    { .key = "push_to_hub", .value = "@on", DIFFERS, .why = "nothing is uploaded: hf upload NAME OUTPUT does it" },
    IDLE("push_to_hub hub_* push_to_hub_*", "nothing is uploaded: hf upload NAME OUTPUT does it"),
    { .key = "group_by_length", .value = "@on", DIFFERS, .why = "the order is random; records are packed, so nothing is padded" },
    { .key = "train_sampling_strategy", .value = "random sequential", TAKEN, .sets = "train_sampling_strategy" },
    { .key = "train_sampling_strategy", DIFFERS, .why = "the order is random; records are packed, so nothing is padded" },
    { .key = "average_tokens_across_devices", .value = "@on", DECIDED, .why = "the loss is the mean over the tokens of all ranks" },
    { .key = "average_tokens_across_devices", .value = "@off", DIFFERS, .why = "the loss is the mean over the tokens of all ranks" },
    { .key = "dataloader_drop_last", .value = "@off", DECIDED, .why = "every sample is used once in an epoch" },
    { .key = "ignore_data_skip", .value = "@on", DIFFERS, .why = "a resume goes on with the next sample" },
    { .key = "torch_compile", .value = "@on", DECIDED, .why = "there is nothing to compile" },
    { .key = "do_predict", .value = "@on", DIFFERS, .why = "train trains; trireme eval and generate use the model" },
    NOT_ON("use_galore use_badam use_apollo", "adafactor, adamw, lion, muon and sgd are here"),
    { .key = "use_muon", .value = "@on", TAKEN, .sets = "optim=muon" },
    { .key = "use_muon", DECIDED, .why = "off" },
    { .key = "include_for_metrics batch_eval_metrics", .value = "@on", DIFFERS, .why = "the evaluation loss is the metric" },

    { .key = "deepspeed deepspeed.*", .part = "deepspeed" },
    { .key = "fsdp", .value = "*hybrid_shard*", CANNOT, .why = "write zero 3 and hybrid_shard N, the ranks that hold one copy between them" },
    { .key = "fsdp", .value = "*offload*", DIFFERS, .sets = "zero=3 offload_optimizer=cpu", .why = "optimizer state goes to the host; " PARAMS_STAY },
    { .key = "fsdp", .value = "*full_shard* true", TAKEN, .sets = "zero=3" },
    { .key = "fsdp", .value = "*shard_grad_op*", TAKEN, .sets = "zero=2" },
    { .key = "fsdp", .value = "*no_shard*", TAKEN, .sets = "zero=0" },
    FSDP_ROWS,
    IDLE("fsdp_config.* fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap fsdp_version", "layers are what is gathered and sharded"),
    SAME("parallelism_config.tp_size", "tp"),
    SAME("parallelism_config.cp_size", "cp"),
    IDLE("accelerator_config accelerator_config.* parallelism_config.*", "there is nothing to choose"),
    NOT_ON("fsdp_config parallelism_config", "write what it names as a map in its place"),

    IDLE("do_train", "train trains"),
    IDLE("do_eval", "there is an evaluation where there is something to evaluate on"),
    IDLE("dispatch_batches split_batches sortish_sampler xla gcp_project", "there is nothing to choose"),
    IDLE("overwrite_output_dir overwrite_cache local_rank local-rank _n_gpu past_index mp_parameters ray_scope use_legacy_prediction_loop", "without effect: an old output is never overwritten"),
    IDLE("dataloader_* remove_unused_columns label_names length_column_name include_inputs_for_metrics include_tokens_per_second include_num_input_tokens_seen", "rows are made before step 0"),
    IDLE("tf32 torch_compile_* torchdynamo jit_mode_eval use_ipex half_precision_backend fp16_backend fp16_opt_level use_liger_kernel liger_kernel_config liger_kernel_config.* attn_implementation use_cache torch_empty_cache_steps use_mps_device tpu_* debug", "kernels are chosen by what was measured"),
    IDLE("gradient_checkpointing_kwargs gradient_checkpointing_kwargs.* activation_checkpointing_kwargs activation_checkpointing_kwargs.*", "a block is computed again as it was"),
    IDLE("ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend skip_memory_metrics", "the schedule says what is sent, and when"),
    IDLE("log_level log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter", "the first steps and every fault are logged"),
    IDLE("save_safetensors save_on_each_node save_on_each_node enable_jit_checkpoint restore_callback_states_from_checkpoint", "a checkpoint is an HF directory with safetensors"),
    IDLE("prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps predict_with_generate generation_*", "the evaluation loss is the metric"),
    IDLE("trust_remote_code use_fast_tokenizer model_revision cache_dir low_cpu_mem_usage use_auth_token token hf_hub_token", "models are directories, and no code of theirs is run"),
    IDLE("_* *._*", "a note"),
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_hf = { .name = "hf", .title = "TrainingArguments", .rows = rows, .takes_ours = true };
