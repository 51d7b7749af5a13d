/* torchtune.c - recipes of torchtune: a `_component_` is a Python path, of which the last words say what it is.
 *
 * Its defaults are PyTorch's: no clipping, a constant rate without a scheduler, a decay of 0.01; and bf16 is all of it,
 * weights and moments included.
 */
#include "import/shared_rows.h"
#include "import/source.h"

static bool is_torchtune(const struct tree *t)
{
    for (size_t i = 0; i < t->n_leaves; i++)
        if (tr_text_like("*_component_", 12, t->leaves[i].path))
            return true;
    return false;
}

/* n steps of each epoch. */
static bool steps_of_epochs(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *epochs = tr_tree_find(t, "epochs");
    int64_t n = 0, m = 1;
    bool is_known = tr_parse_int(leaf->text, 1, 1 << 30, &n) == TR_OK &&
                    (epochs == NULL || tr_parse_int(epochs->text, 1, 1 << 30, &m) == TR_OK);
    tr_error_clear();
    if (is_known)
        snprintf(out, n_out, "%" PRId64, n * m);
    return is_known;
}

/* "train[:95%]" beside "train[95%:]" of dataset_val: the last 5 % are held out. */
static bool held_out(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *rest = tr_tree_find(t, "dataset_val.split");
    int a = 0, b = 0, end = 0, end_rest = 0;
    bool is_pair = rest != NULL && sscanf(leaf->text, "train[:%d%%]%n", &a, &end) == 1 && leaf->text[end] == '\0' &&
                   end > 0 && sscanf(rest->text, "train[%d%%:]%n", &b, &end_rest) == 1 && end_rest > 0 && a == b &&
                   a >= 50 && a < 100;
    if (is_pair)
        snprintf(out, n_out, "%g", (100 - a) / 100.0);
    return is_pair;
}

/* The directory of HF files around `original`, where Meta's files are. */
static bool around_original(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *kind = tr_tree_find(t, "checkpointer._component_");
    size_t n = strlen(leaf->text);
    n -= n != 0 && leaf->text[n - 1] == '/';
    bool is_meta = tr_words_match("*Meta*", kind) && n > 9 && strncmp(leaf->text + n - 9, "/original", 9) == 0;
    if (is_meta)
        snprintf(out, n_out, "%.*s", (int)(n - 9), leaf->text);
    return is_meta;
}

static bool is_the_model(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *model = tr_tree_find(t, "checkpointer.checkpoint_dir");
    (void)out;
    (void)n_out;
    return model != NULL && strcmp(model->text, leaf->text) == 0;
}

static bool is_joined(const struct tree *t)
{
    return tr_words_match("*.phi3.* *.phi4.*", tr_tree_find(t, "model._component_"));
}

/* torchtune's names of linears are ours but for the last of attention and those of the MLP. Where the files of the
 * model hold several as one matrix, that one gets the adapter. */
static void take_targets(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                         const struct import_row *row)
{
    static const char *const mlp[] = { "gate_proj", "up_proj", "down_proj" }, *const both[] = { "gate_up_proj",
                                                                                                "down_proj" };
    bool is_mlp = tr_text_like("*apply_lora_to_mlp", 18, leaf->path), has_qkv = false;
    if (is_mlp) {
        size_t n = is_joined(t) ? TR_COUNT_OF(both) : TR_COUNT_OF(mlp);
        for (size_t i = 0; i < n; i++)
            tr_import_add(im, t, leaf, row->verdict, row->sets, is_joined(t) ? both[i] : mlp[i], row->why);
        return;
    }
    for (size_t i = 0; i < leaf->n_items; i++) {
        const char *name = strcmp(leaf->items[i], "output_proj") == 0 ? "o_proj" : leaf->items[i];
        if (is_joined(t) && tr_words_match("q_proj k_proj v_proj", &(struct leaf){ .text = name }))
            name = has_qkv ? NULL : "qkv_proj";
        has_qkv |= name != NULL && strcmp(name, "qkv_proj") == 0;
        if (name != NULL)
            tr_import_add(im, t, leaf, row->verdict, row->sets, name, row->why);
    }
}

/* A key of `dataset`, if it is there and says something else than the usual name. */
static void take_name(struct source *s, const struct tree *t, const char *key, const char *group, const char *ours)
{
    const struct leaf *leaf = tr_tree_find(t, key);
    if (leaf != NULL && !(group != NULL && strcmp(leaf->text, ours) == 0))
        tr_source_set(s, group, ours, leaf->text);
}

#define STACK_EXCHANGE "*stack_exchange*_paired_dataset"

/* Its question is a turn of the user. */
static void take_answers(struct source *s)
{
    tr_source_set(s, "columns", "instruction", "question");
    tr_source_set(s, "columns", "chosen", "response_j");
    tr_source_set(s, "columns", "rejected", "response_k");
}

/* The data set that such a component reads where the file names none. */
static void take_stack_exchange(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                                const struct import_row *row)
{
    struct source s;
    tr_source_open(&s);
    take_answers(&s);
    tr_source_give(&s, im, t, leaf, row->verdict, row->sets, "lvwerra/stack-exchange-paired", row->why);
    tr_source_close(&s);
}

/* Files of `dataset`, read as its component reads them. */
static void take_files(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                       const struct import_row *row)
{
    const struct leaf *kind = tr_tree_find(t, "dataset._component_"),
                      *list = tr_tree_find(t, "dataset.conversation_column");
    const struct leaf *style = tr_tree_find(t, "dataset.conversation_style");
    bool is_sharegpt = style != NULL && strcmp(style->text, "sharegpt") == 0;
    struct source s;
    tr_source_open(&s);
    if (tr_words_match("*.instruct_dataset", kind)) {
        tr_source_set(&s, NULL, "format", "alpaca");
        tr_source_set(&s, "columns", "instruction", "input");
        take_name(&s, t, "dataset.column_map.input", "columns", "instruction");
        take_name(&s, t, "dataset.column_map.output", "columns", "output");
        tr_source_set(&s, "columns", "input", NULL);
    } else if (tr_words_match("*.chat_dataset", kind) && list != NULL &&
               strcmp(list->text, is_sharegpt ? "conversations" : "messages") != 0) {
        tr_source_set(&s, NULL, "format", is_sharegpt ? "sharegpt" : "messages");
        tr_source_set(&s, "columns", "messages", list->text);
    } else if (tr_words_match(STACK_EXCHANGE, kind) && !tr_tree_has(t, "dataset.column_map")) {
        take_answers(&s);
    } else if (kind != NULL) {
        take_name(&s, t, "dataset.column_map.instruction", "columns", "instruction");
        take_name(&s, t, "dataset.column_map.input", "columns", "input");
        take_name(&s, t, "dataset.column_map.output", "columns", "output");
        take_name(&s, t, "dataset.column", "columns", "text");
        take_name(&s, t, "dataset.column_map.chosen", "columns", "chosen");
        take_name(&s, t, "dataset.column_map.rejected", "columns", "rejected");
        take_name(&s, t, "dataset.column_map.prompt", "columns", "instruction");
    }
    take_name(&s, t, "dataset.new_system_prompt", NULL, "system");
    const struct leaf *split = tr_tree_find(t, "dataset.split"), *config = tr_tree_find(t, "dataset.subset");
    char share[32];
    if (config == NULL)
        config = tr_tree_find(t, "dataset.name");
    s.config = config != NULL ? config->text : NULL;
    s.split = split != NULL && !held_out(t, split, share, sizeof share) ? split->text : NULL;
    bool is_hub = !leaf->is_list && tr_source_is_hub(leaf->text);
    for (size_t i = 0; i < (leaf->is_list ? leaf->n_items : 1); i++)
        tr_source_give(&s, im, t, leaf, is_hub ? TR_IMPORT_DIFFERS : row->verdict, row->sets,
                       leaf->is_list ? leaf->items[i] : leaf->text, is_hub ? SOURCE_HUB : NULL);
    tr_source_close(&s);
}

#define NO_RL          "there is no reinforcement learning and no distillation here"
#define NOT_A_TRAINING "not a training: trireme eval and trireme generate"
#define HUB            SOURCE_HUB
#define JOINED         "one adapter for the matrix that holds several of these in the files of the model"
#define NO_SENTENCES                                                                                                   \
    "with a chat template its user turn is the instruction and the input, without the sentences of Alpaca"

/* clang-format off */
static const struct import_row rows[] = {
    { .key = "model._component_", .value = "*vision* *clip* *flamingo* *early_fusion*", CANNOT, .why = "text only: there are no images here" },
    { .key = "model._component_", .value = "*.qlora_*", TAKEN, .sets = AN_ADAPTER " load_in_4bit=true bnb_4bit_use_double_quant=true" },
    { .key = "model._component_", .value = "*.lora_*", TAKEN, .sets = AN_ADAPTER },
    { .key = "model._component_", DECIDED, .why = "config.json of the model says it" },
    { .key = "model.lora_attn_modules", .when = "model._component_=*.phi3.* *.phi4.*", DIFFERS, .sets = "lora_target_modules", .apply = take_targets, .why = JOINED },
    { .key = "model.apply_lora_to_mlp", .value = "@on", .when = "model._component_=*.phi3.* *.phi4.*", DIFFERS, .sets = "lora_target_modules", .apply = take_targets, .why = JOINED },
    { .key = "model.lora_attn_modules", TAKEN, .sets = "lora_target_modules", .apply = take_targets },
    { .key = "model.apply_lora_to_mlp", .value = "@on", TAKEN, .sets = "lora_target_modules", .apply = take_targets },
    { .key = "model.apply_lora_to_output", .value = "@on", TAKEN, .sets = "lora_target_modules=lm_head" },
    SAME("model.lora_rank", "lora_r"),
    SAME("model.lora_alpha", "lora_alpha"),
    SAME("model.lora_dropout", "lora_dropout"),
    { .key = "model.quantize_base", .value = "@on", TAKEN, .sets = "load_in_4bit=true bnb_4bit_use_double_quant=true" },
    { .key = "model.use_dora", .value = "@on", TAKEN, .sets = "use_dora=true" },
    { .key = "model.fusion_trainable model.decoder_trainable model.encoder_trainable model.image_size tokenizer.image_size tokenizer.max_num_tiles", CANNOT, .why = "text only: there are no images here" },
    IDLE("model.vocab_size model.num_layers model.num_heads model.num_kv_heads model.embed_dim model.max_seq_len model.norm_eps model.attn_dropout model.intermediate_dim model.rope_base", "config.json of the model says it"),
    { .key = "checkpointer._component_", .value = "*Meta*", DECIDED, .when = "checkpointer.checkpoint_dir=*/original */original/", .why = "checkpoint_dir says it" },
    { .key = "checkpointer._component_", .value = "*Meta*", DIFFERS, .why = "checkpoint_dir must be the HF directory of the model, with its safetensors" },
    { .key = "checkpointer._component_", DECIDED, .why = "models are HF directories with safetensors" },
    { .key = "checkpointer.checkpoint_dir", DIFFERS, .sets = "model", .convert = around_original, .why = "the HF directory around Meta's files: download its safetensors too" },
    SAME("checkpointer.checkpoint_dir", "model"),
    { .key = "ref_checkpointer.checkpoint_dir", DECIDED, .convert = is_the_model, .why = "the reference is the model as it is before step 0" },
    SAME("ref_checkpointer.checkpoint_dir", "ref_model"),
    IDLE("ref_checkpointer.*", "the reference is a model of its own, or the one that is trained"),
    IDLE("checkpointer.checkpoint_files checkpointer.checkpoint_files.* checkpointer.model_type checkpointer.safe_serialization checkpointer.enable_dcp checkpointer.enable_async_checkpointing", "all weights of the directory are read"),
    SAME("output_dir", "output"),
    { .key = "checkpointer.output_dir", DECIDED, .when = "output_dir=@on", .why = "output_dir says it" },
    SAME("checkpointer.output_dir", "output"),
    SAME("checkpointer.recipe_checkpoint", "resume_from_checkpoint"),
    { .key = "checkpointer.adapter_checkpoint", CANNOT, .why = "an adapter is continued with model ADAPTER_DIR" },
    SAME("checkpointer.keep_last_n_checkpoints", "save_total_limit"),
    { .key = "resume_from_checkpoint", .value = "@on", TAKEN, .sets = "resume_from_checkpoint=auto" },

    IDLE("tokenizer._component_ tokenizer.path tokenizer.merges_file tokenizer.vocab_path tokenizer.merges_path tokenizer.vocab_file tokenizer.special_tokens_path tokenizer.tokenizer_config_json_path tokenizer.generation_config_path tokenizer.truncation_type", "tokenizer.json of the model is used"),
    SAME("tokenizer.max_seq_len", "sequence_length"),
    { .key = "tokenizer.max_seq_len", .value = "@absent", DIFFERS, .when = "optimizer._component_=@on", .why = "torchtune has no bound; sequence_length is what the model allows, 1,024 at most" },
    { .key = "tokenizer.prompt_template", .value = "@on", DIFFERS, .why = "the model's own chat template is used; chat_template names another" },

    { .key = "dataset._component_", .value = "*alpaca_cleaned_dataset", DIFFERS, .sets = "data=yahma/alpaca-cleaned", .when = "dataset.source=@absent;dataset.data_files=@absent", .why = HUB "; " NO_SENTENCES },
    { .key = "dataset._component_", .value = "*.alpaca_dataset", DIFFERS, .sets = "data=tatsu-lab/alpaca", .when = "dataset.source=@absent;dataset.data_files=@absent", .why = HUB "; " NO_SENTENCES },
    { .key = "dataset._component_", .value = STACK_EXCHANGE, DIFFERS, .sets = "data", .apply = take_stack_exchange, .when = "dataset.source=@absent;dataset.data_files=@absent", .why = HUB },
    { .key = "dataset._component_", .value = "*multimodal* *cauldron* *vision*", CANNOT, .why = "text only: there are no images here" },
    { .key = "dataset._component_", .value = "*gsm8k*", CANNOT, .why = NO_RL },
    { .key = "dataset._component_", .value = "*.alpaca_dataset *.alpaca_cleaned_dataset", DIFFERS, .why = NO_SENTENCES },
    { .key = "dataset._component_", .value = "*.instruct_dataset *.chat_dataset *.text_completion_dataset *.preference_dataset " STACK_EXCHANGE, DECIDED, .why = "the first record of a file says what it holds" },
    { .key = "dataset._component_", CANNOT, .why = "name the files with data" },
    { .key = "dataset.source", .value = "json text csv parquet", DECIDED, .why = "data_files says it" },
    { .key = "dataset.source dataset.data_files", TAKEN, .sets = "data", .apply = take_files },
    { .key = "dataset.split", .value = "train", DECIDED, .why = "all of data is trained on" },
    { .key = "dataset.split", TAKEN, .sets = "eval_split", .convert = held_out },
    { .key = "dataset.split", TAKEN, .why = IN_DATA },
    { .key = "dataset.packed", .value = "@on", TAKEN, .sets = "packing=bestfit" },
    { .key = "dataset.packed", .value = "@off", TAKEN, .sets = "packing=none" },
    { .key = "dataset.packed", .value = "@absent", TAKEN, .sets = "packing=none", .when = "dataset._component_=@on", .why = "torchtune's default: one record a row" },
    { .key = "dataset.train_on_input", .value = "@on", TAKEN, .sets = "train_on=all" },
    { .key = "dataset.train_on_input", .value = "@absent", TAKEN, .sets = "train_on=all", .when = "dataset._component_=*.alpaca_dataset *.alpaca_cleaned_dataset", .why = "torchtune's default for alpaca" },
    { .key = "dataset.conversation_style", .value = "sharegpt openai", DECIDED, .why = "the first record of a file says what it holds" },
    { .key = "dataset.new_system_prompt", DIFFERS, .why = "the system prompt of records that have none" },
    { .key = "dataset.column dataset.column_map.instruction dataset.column_map.input dataset.column_map.output dataset.column_map.prompt dataset.column_map.chosen dataset.column_map.rejected dataset.conversation_column", TAKEN, .why = IN_DATA },
    { .key = "dataset.column_map dataset.column_map.*", .value = "@on", CANNOT, .why = "columns are instruction, input and output" },
    { .key = "dataset.add_eos", .value = "@off", DIFFERS, .why = "the end of a document is trained" },
    { .key = "dataset.subset dataset.name", TAKEN, .why = A_PART },
    { .key = "dataset.partition dataset.filter_fn", .value = "@on", CANNOT, .why = "name the files of this part with data" },
    { .key = "dataset_val._component_ dataset_val.split", DECIDED, .when = "dataset.split=train[*", .why = "eval_split holds it out" },
    { .key = "dataset_val.source", TAKEN, .sets = "eval_data" },
    { .key = "dataset_val.* dataset_val", .value = "@on", CANNOT, .why = "name the files to evaluate on with eval_data" },
    { .key = "datasets[].* dataloader.collate_fn collate_fn", .value = "@on", CANNOT, .why = "write data PATH:WEIGHT for each source" },
    SAME("dataset.max_seq_len", "sequence_length"),
    { .key = "dataset.template dataset.chat_format", .value = "@on", DIFFERS, .why = "the model's own chat template is used; chat_template names another" },
    { .key = "dataset.split_across_pack", .value = "@on", TAKEN, .sets = "long_documents=split" },
    { .key = "dataset.add_bos dataset.use_clean", DECIDED, .why = "the tokenizer's files and the records say it" },
    IDLE("dataloader.*", "rows are made before step 0"),

    SAME("batch_size", "per_device_train_batch_size"),
    SAME("batch_size_val", "per_device_eval_batch_size"),
    SAME("gradient_accumulation_steps", "gradient_accumulation_steps"),
    SAME("epochs", "num_train_epochs"),
    { .key = "max_steps_per_epoch", TAKEN, .sets = "max_steps", .convert = steps_of_epochs },
    SAME("seed", "seed"),
    { .key = "shuffle", .value = "@on", DECIDED, .why = "the order is random" },
    { .key = "shuffle", .value = "@off", TAKEN, .sets = "train_sampling_strategy=sequential" },

    { .key = "optimizer._component_", .value = "*.PagedAdamW8bit", TAKEN, .sets = "optim=adamw_8bit" PAGED },
    { .key = "optimizer._component_", .value = "*.PagedAdamW", TAKEN, .sets = "optim=adamw" PAGED },
    { .key = "optimizer._component_", .value = "torch.optim.AdamW *.AdamW", TAKEN, .sets = "optim=adamw" },
    { .key = "optimizer._component_", .value = "*AdamW8bit", TAKEN, .sets = "optim=adamw_8bit" },
    { .key = "optimizer._component_", .value = "*.AdamW4bit *AdamWFp8", DIFFERS, .sets = "optim=adamw_8bit", .why = "moments are held in 8 bits" },
    { .key = "optimizer._component_", .value = "*.Muon", TAKEN, .sets = "optim=muon" },
    { .key = "optimizer._component_", .value = "*.Adafactor", DIFFERS, .sets = "optim=adafactor", .why = "transformers' Adafactor; torch's has other rates" },
    { .key = "optimizer._component_", .value = "*.SGD", TAKEN, .sets = "optim=sgd" },
    { .key = "optimizer._component_", CANNOT, .why = "adafactor, adamw, lion, muon and sgd are here" },
    SAME("optimizer.lr", "learning_rate"),
    SAME("optimizer.weight_decay", "weight_decay"),
    { .key = "optimizer.weight_decay", .value = "@absent", TAKEN, .sets = "weight_decay=0.01", .when = "optimizer._component_=*AdamW*", .why = "PyTorch's default" },
    { .key = "optimizer.betas", TAKEN, .sets = "adam_beta1=$0 adam_beta2=$1" },
    SAME("optimizer.eps", "adam_epsilon"),
    SAME("optimizer.momentum", "momentum"),
    IDLE("optimizer.fused optimizer.foreach optimizer_in_bwd", "one kernel updates all"),
    { .key = "lr_scheduler._component_", .value = "*get_cosine_schedule_with_warmup", TAKEN, .sets = "lr_scheduler_type=cosine" },
    { .key = "lr_scheduler._component_", .value = "*get_linear_schedule*", TAKEN, .sets = "lr_scheduler_type=linear" },
    { .key = "lr_scheduler._component_", CANNOT, .why = "there is no such schedule here" },
    { .key = "lr_scheduler._component_", .value = "@absent", TAKEN, .sets = "lr_scheduler_type=constant", .when = "optimizer._component_=@on", .why = "without a scheduler the rate is constant" },
    SAME("lr_scheduler.num_warmup_steps", "warmup_steps"),
    { .key = "lr_scheduler.num_training_steps", DECIDED, .why = "epochs and max_steps say it" },
    { .key = "lr_scheduler.num_cycles", .value = "0.5", DECIDED, .why = "half a cosine" },
    { .key = "loss._component_", .value = "*CrossEntropyLoss *CEWithChunkedOutputLoss", DECIDED, .why = "the loss of tokens, in chunks" },
    { .key = "loss._component_", .value = "*DPOLoss", TAKEN, .sets = "task=dpo" },
    { .key = "loss._component_", CANNOT, .why = "there is no such loss here" },
    SAME("loss.beta", "beta"),
    SAME("loss.loss_type", "loss_type"),
    { .key = "loss.label_smoothing", .value = "@on", TAKEN, .sets = "label_smoothing" },
    IDLE("loss.num_output_chunks loss.ignore_index", "the loss of tokens, in chunks"),
    { .key = "loss.epsilon loss.kl_coeff loss.value_coeff loss.value_clip_range", CANNOT, .why = NO_RL },
    SAME("clip_grad_norm", "max_grad_norm"),
    { .key = "clip_grad_norm", .value = "@absent", TAKEN, .sets = "max_grad_norm=0", .when = "optimizer._component_=@on", .why = "torchtune clips only where the key is there" },

    { .key = "enable_activation_checkpointing", .value = "@on", TAKEN, .sets = "recompute=block", .when = "!ac_mode=selective" },
    { .key = "enable_activation_checkpointing", .value = "@on", DECIDED, .why = "ac_mode says it" },
    { .key = "ac_mode", .value = "selective", DIFFERS, .sets = "recompute=op", .why = "cheap operations are computed again, not every second block" },
    { .key = "ac_mode", .value = "full", TAKEN, .sets = "recompute=block" },
    IDLE("ac_option", "recompute says it"),
    { .key = "enable_activation_offloading", .value = "@on", TAKEN, .sets = "offload_activations=true" },
    { .key = "device", .value = "cpu", TAKEN, .sets = "device" },
    { .key = "device", DECIDED, .why = "the GPU is used where there is one" },
    { .key = "dtype", .value = "bf16", TAKEN, .sets = "dtype=bfloat16 master_dtype=bfloat16 moment_dtype=bfloat16", .why = "bf16 of torchtune is weights and moments too" },
    SAME("dtype", "dtype"),
    { .key = "fsdp_cpu_offload fsdp.cpu_offload", .value = "@on", DIFFERS, .sets = "offload_optimizer=cpu", .why = "optimizer state goes to the host; " PARAMS_STAY },
    { .key = "fsdp_reshard_after_forward fsdp.reshard_after_forward", .value = "@on", TAKEN, .sets = "zero=3" },
    { .key = "fsdp_reshard_after_forward fsdp.reshard_after_forward", .value = "@off", TAKEN, .sets = "zero=2" },
    SAME("tensor_parallel_dim", "tp"),
    SAME("context_parallel_dim", "cp"),
    { .key = "data_parallel_replicate_dim", .value = "1 -1", DECIDED, .why = "one copy" },
    SAME("data_parallel_replicate_dim", "dp"),
    { .key = "data_parallel_shard_dim", .value = "-1 1", DECIDED, .why = "zero and the number of ranks say it" },
    SAME("data_parallel_shard_dim", "hybrid_shard"),
    IDLE("tensor_parallel_plan._component_ custom_sharded_layers memory_efficient_fsdp_wrap low_cpu_ram use_distributed_state_dict use_flex parallelism_strategy", "split rules belong to the model's family"),
    { .key = "enable_fp8_training", .value = "@on", TAKEN, .sets = "fp8=true" },
    IDLE("fp8_recipe_name", "fp8_scaling says it"),

    SAME("log_every_n_steps", "logging_steps"),
    SAME("run_val_every_n_steps", "eval_steps"),
    SAME("save_every_n_steps", "save_steps"),
    { .key = "save_every_n_steps save_last_epoch_only", .value = "@absent", TAKEN, .sets = "save_strategy=epoch", .when = "optimizer._component_=@on", .why = "torchtune saves after each epoch" },
    { .key = "save_last_epoch_only", .value = "@on", TAKEN, .sets = "save_steps=0" },
    { .key = "save_every_n_epochs", DIFFERS, .why = "a checkpoint every save_steps steps and at the end" },
    { .key = "metric_logger._component_", .value = "*WandBLogger", TAKEN, .sets = "report_to=wandb", .or_next = true },
    { .key = "metric_logger._component_", .value = "*TensorBoardLogger", TAKEN, .sets = "report_to=tensorboard", .or_next = true },
    IDLE("metric_logger._component_ metric_logger.* log_level log_peak_memory_stats debug_* name project", "OUTPUT/events.jsonl has every step"),
    { .key = "profiler.enabled", .value = "@on", DIFFERS, .why = "--profile N makes a timeline from step N on" },
    IDLE("profiler.* profiler", "--profile N makes a timeline from step N on"),
    IDLE("compile compile.* cudnn_deterministic_mode", "there is nothing to compile, and a run is the same each time"),
    { .key = "save_adapter_weights_only", DECIDED, .why = "a run of an adapter writes the adapter; ckpt merge makes a model" },
    { .key = "apply_chat_template", DECIDED, .why = "conversations are rendered with the chat template" },

    { .key = "quantizer quantizer.*", .value = "@on", CANNOT, .why = "not a training of weights: quantisation during training is not here" },
    { .key = "tasks limit enable_kv_cache max_new_tokens temperature top_k prompt prompt.* chat_format instruct_template max_seq_length", .value = "@on", CANNOT, .why = NOT_A_TRAINING },
    { .key = "kd_* teacher_* ref_* reward_* value_* policy_* ppo_* postprocessing.* training.* inference.* orchestration.* grpo_samples num_steps max_generated_tokens forward_batch_size base_model_path min_response_length penalise_no_eos reward_functions* stop_token_ids whiten_rewards gamma lmbda kl_coeff advantages* reward_and_value_model.*", .value = "@on", CANNOT, .why = NO_RL },
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_torchtune = {
    .name = "torchtune", .title = "torchtune", .rows = rows, .is_mine = is_torchtune
};
