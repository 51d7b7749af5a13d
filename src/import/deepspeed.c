/* deepspeed.c - keys of DeepSpeed's JSON (docs/_pages/config-json.md and runtime/config.py of DeepSpeed).
 *
 * "auto" is what the HF Trainer fills in from its arguments: here the option keeps its own value, whatever gave it.
 * What the Trainer computes from the model (bucket sizes) decides nothing here. A key that is not there is never filled
 * in, so a file without gradient_clipping does not clip.
 */
#include "import/shared_rows.h"

#define ZERO(x) "zero_optimization." x
/* The short form of a stage-3 key is the same key. */
#define ZERO3(x) "zero_optimization.stage3_" x " zero_optimization." x

static bool is_deepspeed(const struct tree *t)
{
    return tr_tree_has(t, "zero_optimization") || tr_tree_find(t, "train_micro_batch_size_per_gpu") != NULL ||
           (tr_tree_find(t, "train_batch_size") != NULL &&
            (tr_tree_has(t, "fp16") || tr_tree_has(t, "optimizer.params")));
}

/* The arguments of a trainer that names this file say how often it logs. */
static void take_lines(struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                       const struct import_row *row)
{
    struct import_row own = *row;
    own.apply = NULL;
    for (size_t i = 0; i < im->n_trees; i++)
        if (im->trees[i]->tool != t->tool && im->trees[i]->tool != &tr_tool_accelerate) {
            tr_import_add(im, t, leaf, TR_IMPORT_DECIDED, NULL, NULL, "logging_steps says it");
            return;
        }
    tr_import_row(im, t, leaf, &own);
}

/* clang-format off */
/* The directory is another key beside it. */
static bool nvme_place(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *dir = tr_tree_find(t, "zero_optimization.offload_optimizer.nvme_path");
    (void)leaf;
    return dir != NULL && snprintf(out, n_out, "nvme:%s", dir->text) < (int)n_out;
}

static const struct import_row rows[] = {
    { .key = "train_micro_batch_size_per_gpu", .value = "auto", TAKEN, .sets = "per_device_train_batch_size=@own" },
    SAME("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    { .key = "gradient_accumulation_steps", .value = "auto", TAKEN, .sets = "gradient_accumulation_steps=@own" },
    SAME("gradient_accumulation_steps", "gradient_accumulation_steps"),
    { .key = "train_batch_size", .value = "auto", DECIDED, .why = "ranks x per_device_train_batch_size x gradient_accumulation_steps" },
    SAME("train_batch_size", "train_batch_size"),
    { .key = "gradient_clipping", .value = "auto", TAKEN, .sets = "max_grad_norm=@own" },
    SAME("gradient_clipping", "max_grad_norm"),
    { .key = "gradient_clipping", .value = "@absent", TAKEN, .sets = "max_grad_norm=0", .why = "DeepSpeed clips only where the key is there" },

    { .key = "optimizer.params.adam_w_mode", .value = "@off", CANNOT, .when = "optimizer.params.weight_decay=@on", .why = "weight decay here is decoupled (AdamW), not added to the gradient" },
    { .key = "optimizer.type", .value = "Adam AdamW FusedAdam DeepSpeedCPUAdam CPUAdam", TAKEN, .sets = "optim=adamw" },
    { .key = "optimizer.type", .value = "Lion FusedLion", TAKEN, .sets = "optim=lion" },
    { .key = "optimizer.type", .value = "SGD", TAKEN, .sets = "optim=sgd" },
    { .key = "optimizer.type", .value = "Muon", TAKEN, .sets = "optim=muon" },
    { .key = "optimizer.type", CANNOT, .why = "adafactor, adamw, lion, muon and sgd are here" },
    { .key = "optimizer.params.lr", .value = "auto", TAKEN, .sets = "learning_rate=@own" },
    { .key = "optimizer.params.lr", DECIDED, .when = "!scheduler.params.warmup_max_lr=@absent auto", .why = "warmup_max_lr of the scheduler is the peak" },
    SAME("optimizer.params.lr", "learning_rate"),
    { .key = "optimizer.params.betas", .value = "auto", TAKEN, .sets = "adam_beta1=@own adam_beta2=@own" },
    { .key = "optimizer.params.betas", TAKEN, .sets = "adam_beta1=$0 adam_beta2=$1" },
    { .key = "optimizer.params.eps", .value = "auto", TAKEN, .sets = "adam_epsilon=@own" },
    SAME("optimizer.params.eps", "adam_epsilon"),
    { .key = "optimizer.params.weight_decay", .value = "auto", TAKEN, .sets = "weight_decay=@own" },
    SAME("optimizer.params.weight_decay", "weight_decay"),
    SAME("optimizer.params.momentum", "momentum"),
    IDLE("optimizer.params.torch_adam optimizer.params.fused optimizer.params.adam_w_mode optimizer.params.foreach optimizer.legacy_fusion optimizer.params.set_grad_none", "one kernel updates all"),
    { .key = "optimizer.params.bias_correction", .value = "@off", CANNOT, .why = "moments are always corrected for their start" },
    { .key = "optimizer.params.bias_correction", DECIDED, .why = "always" },
    { .key = "optimizer.params.amsgrad optimizer.params.nesterov", .value = "@on", CANNOT, .why = "no optimizer here has it" },
    { .key = "optimizer.params.*", CANNOT, .why = "no optimizer here has it" },

    { .key = "scheduler.type", .value = "WarmupLR", TAKEN, .when = "scheduler.params.warmup_type=linear", .sets = "lr_scheduler_type=constant_with_warmup" },
    { .key = "scheduler.type", .value = "WarmupDecayLR", TAKEN, .when = "scheduler.params.warmup_type=linear", .sets = "lr_scheduler_type=linear" },
    { .key = "scheduler.type", .value = "WarmupLR", TAKEN, .sets = "lr_scheduler_type=constant_with_warmup warmup_type=log", .or_next = true },
    { .key = "scheduler.type", .value = "WarmupDecayLR", TAKEN, .sets = "lr_scheduler_type=linear warmup_type=log", .or_next = true },
    { .key = "scheduler.type", .value = "WarmupLR", DIFFERS, .sets = "lr_scheduler_type=constant_with_warmup", .why = "the warm-up here is linear, DeepSpeed's is logarithmic unless warmup_type says linear" },
    { .key = "scheduler.type", .value = "WarmupDecayLR", DIFFERS, .sets = "lr_scheduler_type=linear", .why = "the warm-up here is linear, DeepSpeed's is logarithmic unless warmup_type says linear" },
    { .key = "scheduler.type", .value = "WarmupCosineLR", DIFFERS, .sets = "lr_scheduler_type=cosine min_lr_ratio=0.0001", .why = "the warm-up here is linear and starts at 0" },
    { .key = "scheduler.type", CANNOT, .why = "WarmupLR, WarmupDecayLR and WarmupCosineLR are here" },
    { .key = "scheduler.params.warmup_num_steps", .value = "auto", TAKEN, .sets = "warmup_steps=@own" },
    { .key = "scheduler.params.total_num_steps", .value = "auto", TAKEN, .sets = "max_steps=@own" },
    SAME("scheduler.params.warmup_num_steps", "warmup_steps"),
    { .key = "scheduler.params.total_num_steps", DIFFERS, .sets = "max_steps", .why = "the schedule is as long as the run" },
    { .key = "scheduler.params.warmup_max_lr", .value = "auto", TAKEN, .sets = "learning_rate=@own" },
    SAME("scheduler.params.warmup_max_lr", "learning_rate"),
    { .key = "scheduler.params.warmup_min_lr", .value = "auto @off", DECIDED, .why = "0" },
    { .key = "scheduler.params.warmup_min_lr", CANNOT, .why = "the warm-up starts at 0" },
    { .key = "scheduler.params.warmup_type", .value = "linear", DECIDED, .why = "the warm-up here is linear" },
    { .key = "scheduler.params.warmup_type", .value = "log", TAKEN, .sets = "warmup_type=log", .or_next = true },
    { .key = "scheduler.params.warmup_type", .value = "log", DIFFERS, .why = "the warm-up here is linear" },
    SAME("scheduler.params.cos_min_ratio", "min_lr_ratio"),
    { .key = "scheduler.params.last_batch_iteration", DECIDED, .why = "a resume knows its step" },
    { .key = "scheduler.params.*", CANNOT, .why = "the schedules here have no such number" },

    { .key = "fp16.enabled bf16.enabled bfloat16.enabled", .value = "auto", TAKEN, .sets = "dtype=@own" },
    { .key = "fp16.enabled", .value = "@on", TAKEN, .sets = "dtype=float16" },
    { .key = "bf16.enabled bfloat16.enabled", .value = "@on", TAKEN, .sets = "dtype=bfloat16" },
    { .key = "fp16.loss_scale", .value = "@on", CANNOT, .when = "fp16.enabled=true", .why = "the scale of losses is dynamic" },
    IDLE("fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis fp16.consecutive_hysteresis fp16.min_loss_scale fp16.auto_cast", "float16 starts at a scale of 65536, doubles it after 2000 good steps, halves it at the first overflow, not below 1"),
    NOT_ON("fp16.fp16_master_weights_and_grads", "weights that the optimizer updates are float32 or bfloat16"),
    { .key = "bf16.bf16_master_weights_and_grads", .value = "@on", DIFFERS, .sets = "master_dtype=bfloat16 grad_dtype=bfloat16", .why = "updates of bfloat16 weights are rounded at random here" },
    { .key = "bf16.bf16_optimizer_states", .value = "@on", TAKEN, .sets = "moment_dtype=bfloat16" },
    { .key = "bf16.immediate_grad_update bf16.check_grad_overflow bf16.check_overflow bf16.auto_cast", DECIDED, .why = "steps whose gradient is not finite are skipped" },
    { .key = "data_types.grad_accum_dtype", .value = "fp32 bf16", TAKEN, .sets = "grad_dtype" },
    { .key = "data_types.grad_accum_dtype", CANNOT, .why = "gradients are summed in float32 or bfloat16" },
    { .key = "communication_data_type seq_parallel_communication_data_type", .value = "fp32 bf16", TAKEN, .sets = "reduce_dtype" },
    { .key = "communication_data_type seq_parallel_communication_data_type", CANNOT, .why = "gradients travel as float32 or bfloat16" },

    { .key = "zero_optimization.stage zero_optimization", .value = "true", TAKEN, .sets = "zero=1" },
    SAME(ZERO("stage"), "zero"),
    SAME(ZERO("mics_shard_size"), "hybrid_shard"),
    { .key = ZERO("mics_hierarchical_params_gather"), DECIDED, .why = "the engine chooses how it gathers" },
    { .key = ZERO("zero_hpz_partition_size"), .value = "1", DECIDED, .why = "off" },
    { .key = ZERO("zero_hpz_partition_size"), DIFFERS, .sets = "hybrid_shard", .why = "here the ranks of a group hold gradients and moments between them too" },
    { .key = ZERO("offload_optimizer.device"), .value = "cpu", TAKEN, .sets = "offload_optimizer=cpu" },
    { .key = ZERO("offload_param.device"), .value = "cpu", DIFFERS, .why = PARAMS_STAY },
    { .key = ZERO("offload_optimizer.device"), .value = "nvme", TAKEN, .sets = "offload_optimizer", .convert = nvme_place, .or_next = true },
    { .key = ZERO("offload_optimizer.device"), .value = "nvme", CANNOT, .why = "write offload_optimizer nvme:DIR, with nvme_path as DIR" },
    { .key = ZERO("offload_param.device"), .value = "nvme", DIFFERS, .why = PARAMS_STAY },
    { .key = ZERO("cpu_offload"), .value = "@on", TAKEN, .sets = "offload_optimizer=cpu" },
    { .key = ZERO("cpu_offload_params") " " ZERO("cpu_offload_param"), .value = "@on", DIFFERS, .why = PARAMS_STAY },
    { .key = ZERO("offload_optimizer.ratio"), TAKEN, .sets = "offload_share", .or_next = true },
    IDLE(ZERO("offload_optimizer.*") " " ZERO("offload_param.*") " " ZERO("cpu_offload_use_pin_memory"), "buffers are planned and pinned by themselves"),
    NOT_ON(ZERO("zero_quantized_*") " " ZERO("zeropp_loco_param*") " " ZERO("zenflow*") " " ZERO("super_offload*"), "it changes the numbers, and there is nothing like it here"),
    IDLE(ZERO("overlap_comm") " " ZERO("contiguous_gradients") " " ZERO("reduce_scatter") " " ZERO("allgather_partitions") " " ZERO("round_robin_gradients") " " ZERO("use_multi_rank_bucket_allreduce"), "the schedule overlaps what it can"),
    IDLE(ZERO("reduce_bucket_size") " " ZERO("allgather_bucket_size") " " ZERO3("prefetch_bucket_size") " " ZERO3("param_persistence_threshold") " " ZERO3("model_persistence_threshold") " " ZERO3("max_live_parameters") " " ZERO3("max_reuse_distance") " " ZERO("sub_group_size"), "buckets are layers, and the plan counts them"),
    IDLE(ZERO3("gather_16bit_weights_on_model_save") " " ZERO3("gather_fp16_weights_on_model_save") " " ZERO("elastic_checkpoint") " " ZERO("load_from_fp32_weights"), "every checkpoint is an HF directory, and any layout resumes"),
    IDLE(ZERO("ignore_unused_parameters") " " ZERO("memory_efficient_linear") " " ZERO("leaf_module*") " " ZERO("legacy_stage1") " " ZERO("override_module_apply") " " ZERO("log_trace_cache_warnings") " " ZERO("*module_granularity_threshold") " " ZERO("compute_grad_norm") " " ZERO("parameter_alignment") " " ZERO("pipeline_loading_checkpoint") " " ZERO("enable_sanity_checks") " " ZERO("stage3_use_all_reduce_for_fetch_params") " " ZERO("*allgather_sequential") " " ZERO("save_muon_momentum_buffer_in_memory"), "there is nothing to choose"),

    { .key = "activation_checkpointing.partition_activations", .value = "@on", DIFFERS, .why = "with tp, write sp: norms and what is saved are split over its ranks" },
    { .key = "activation_checkpointing.cpu_checkpointing", .value = "@on", TAKEN, .sets = "offload_activations=true" },
    IDLE("activation_checkpointing.*", "recompute says what backward computes again; this block alone switches nothing on"),
    { .key = "tensor_parallel.autotp_size", .value = "@on", TAKEN, .sets = "tp" },
    SAME("tensor_parallel.tp.tp_size", "tp"),
    IDLE("tensor_parallel.*", "split rules belong to the model's family"),
    { .key = "sequence_parallel_size", .value = "@many", TAKEN, .sets = "cp cp_mode=ulysses" },
    SAME("pipeline.stages", "pp"),
    { .key = "pipeline.activation_checkpoint_interval", .value = "@on", TAKEN, .sets = "recompute=block" },
    IDLE("pipeline.*", "pp_schedule is the order of stages"),
    { .key = "expert_parallel.*", CANNOT, .why = "there are no experts here" },

    { .key = "steps_per_print", .value = "inf", DECIDED, .why = "logging_steps says it" },
    { .key = "steps_per_print", TAKEN, .sets = "logging_steps", .apply = take_lines },
    { .key = "flops_profiler.profile_step", TAKEN, .when = "flops_profiler.enabled=true", .sets = "profile" },
    IDLE("flops_profiler.* wall_clock_breakdown memory_breakdown dump_state comms_logger.* comms_config.* disable_allgather tput_timer.*", "events.jsonl and --profile have the times"),
    { .key = "tensorboard.enabled monitor_config.tensorboard.enabled", .value = "@on", TAKEN, .sets = "report_to=tensorboard", .or_next = true },
    { .key = "wandb.enabled monitor_config.wandb.enabled", .value = "@on", TAKEN, .sets = "report_to=wandb", .or_next = true },
    IDLE("tensorboard.* wandb.* csv_monitor.* comet.* monitor_config.*", "OUTPUT/events.jsonl has every step"),
    { .key = "elasticity.enabled", .value = "@on", DIFFERS, .why = "launch --nnodes MIN:MAX; the batch stays the same on any number of ranks" },
    IDLE("elasticity.*", "launch --nnodes MIN:MAX; the batch stays the same on any number of ranks"),
    NOT_ON("checkpoint.use_node_local_storage", "a checkpoint is one directory that all ranks see"),
    IDLE("checkpoint.* nebula.* data_types.* load_universal_checkpoint", "any layout resumes"),
    { .key = "gradient_allreduce_op", .value = "sum", CANNOT, .why = "gradients are means over all tokens" },
    { .key = "gradient_allreduce_op", DECIDED, .why = "gradients are means over all tokens" },
    IDLE("prescale_gradients gradient_predivide_factor sparse_gradients", "gradients are means over all tokens, summed in float32"),
    NOT_ON("amp.enabled torch_autocast.enabled", "write bf16 or fp16"),
    IDLE("amp.* torch_autocast.*", "off"),
    NOT_ON("quantize_training.* compression_training.* eigenvalue.* progressive_layer_drop.* curriculum_learning.* data_efficiency.* sparse_attention.* hybrid_engine.*", "there is nothing like it here"),
    IDLE("compile.* autotuning.* aio.*", "there is nothing to compile; trireme plan --search finds layouts"),
    IDLE("zero_allow_untested_optimizer zero_force_ds_cpu_optimizer use_data_before_expert_parallelism use_data_before_expert_parallel _comment* comment* $schema graph_harvesting data_sampling.* managed_gradient_accumulation disable_python_gc", "without effect"),
    IDLE("dataloader_drop_last seed timers.*", "the Trainer's arguments say it"),
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_deepspeed = {
    .name = "deepspeed", .title = "DeepSpeed", .rows = rows, .is_mine = is_deepspeed
};
