/* accelerate.c - keys of accelerate's YAML (commands/config/config_args.py, commands/launch.py of accelerate).
 *
 * num_processes counts the ranks of all machines together; how ranks are started belongs before the verb.
 */
#include "import/shared_rows.h"

static bool is_accelerate(const struct tree *t)
{
    return tr_tree_find(t, "distributed_type") != NULL || tr_tree_find(t, "compute_environment") != NULL;
}

bool tr_ranks_of_a_node(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *ranks = tr_tree_find(t, "num_processes"), *nodes = tr_tree_find(t, "num_machines");
    int64_t n = 0, m = 1;
    (void)leaf;
    bool is_known = ranks != NULL && tr_parse_int(ranks->text, 1, 1 << 20, &n) == TR_OK &&
                    (nodes == NULL || tr_parse_int(nodes->text, 1, 1 << 20, &m) == TR_OK) && n % m == 0;
    tr_error_clear();
    if (is_known)
        snprintf(out, n_out, "%" PRId64, n / m);
    return is_known;
}

/* R replicas of S shards are R x S data-parallel ranks. */
static bool product_of_ranks(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out)
{
    const struct leaf *r = tr_tree_find(t, "parallelism_config.parallelism_config_dp_replicate_size");
    int64_t n = 1, m = 1;
    bool is_known = tr_parse_int(leaf->text, 1, 1 << 20, &n) == TR_OK &&
                    (r == NULL || tr_parse_int(r->text, 1, 1 << 20, &m) == TR_OK);
    tr_error_clear();
    if (is_known)
        snprintf(out, n_out, "%" PRId64, n * m);
    return is_known;
}

#define PC(x)       "parallelism_config.parallelism_config_" x " parallelism_config." x " parallelism_config_" x
#define MEGATRON(x) "megatron_lm_config.megatron_lm_" x " megatron_lm_config." x

/* clang-format off */
static const struct import_row rows[] = {
    { .key = "compute_environment", .value = "LOCAL_MACHINE", DECIDED, .why = "the ranks are where launch is" },
    { .key = "compute_environment", CANNOT, .why = "jobs of a cloud service are started by its own tools" },
    { .key = "distributed_type", .value = "NO MULTI_GPU MULTI_CPU FSDP DEEPSPEED MEGATRON_LM", DECIDED, .why = "the block of that name says what ranks share" },
    { .key = "distributed_type", CANNOT, .why = "devices are cpu and cuda" },
    { .key = "num_processes", .value = "-1", DECIDED, .why = "launch --nproc-per-node says it" },
    { .key = "num_processes", TAKEN, .sets = "launch_--nproc-per-node", .convert = tr_ranks_of_a_node },
    { .key = "num_machines", .value = "1", DECIDED, .why = "one node" },
    { .key = "num_machines", TAKEN, .sets = "launch_--nnodes" },
    { .key = "machine_rank", DECIDED, .when = "num_machines=1 @absent", .why = "one node" },
    { .key = "machine_rank", TAKEN, .sets = "launch_--node-rank" },
    { .key = "main_process_ip", TAKEN, .sets = "launch_--master-addr" },
    { .key = "main_process_port", TAKEN, .sets = "launch_--master-port" },
    SAME("tp_config.tp_size", "tp"),
    IDLE("tp_config.*", "split rules belong to the model's family"),
    IDLE("rdzv_backend same_network main_training_function debug downcast_bf16 enable_cpu_affinity tpu_* command_file commands dynamo_config.* dynamo_* mpirun_config.* ipex_config.* use_xpu ipex* even_batches aws_lambda* quantization_config.* use_stateful_dataloader", "there is nothing to choose"),
    { .key = "gpu_ids", .value = "all", DECIDED, .why = "all of them" },
    { .key = "gpu_ids", DIFFERS, .why = "set CUDA_VISIBLE_DEVICES" },
    { .key = "use_cpu", .value = "@on", TAKEN, .sets = "device=cpu" },
    { .key = "mixed_precision", .value = "bf16", TAKEN, .sets = "dtype=bfloat16" },
    { .key = "mixed_precision", .value = "fp16", TAKEN, .sets = "dtype=float16" },
    { .key = "mixed_precision", .value = "fp8", TAKEN, .sets = "dtype=bfloat16 fp8=true" },
    { .key = "mixed_precision", .value = "no", DECIDED, .why = "the arguments of the script say it" },
    { .key = "fp16", .value = "@on", TAKEN, .sets = "dtype=float16" },
    { .key = "gradient_accumulation_steps", TAKEN, .sets = "gradient_accumulation_steps" },
    { .key = "fp8_config.backend fp8_config.fp8_backend", .value = "TE", DIFFERS, .sets = "fp8_scaling=delayed", .why = "scales of the last 16 updates" },
    { .key = "fp8_config.backend fp8_config.fp8_backend", .value = "AO torchao", TAKEN, .sets = "fp8_scaling=current" },
    { .key = "fp8_config.backend fp8_config.fp8_backend", CANNOT, .why = "fp8_scaling is current or delayed" },
    { .key = "fp8_config.fp8_format fp8_config.fp8_fp8_format", .value = "HYBRID", TAKEN, .sets = "fp8_gradient=e5m2" },
    { .key = "fp8_config.fp8_format fp8_config.fp8_fp8_format", .value = "E4M3", TAKEN, .sets = "fp8_gradient=e4m3" },
    IDLE("fp8_config.*", "scales are made by the engine"),

    { .key = "deepspeed_config.deepspeed_config_file", .part = "deepspeed" },
    SAME("deepspeed_config.zero_stage", "zero"),
    { .key = "deepspeed_config.zero_stage", .value = "@absent", TAKEN, .sets = "zero=2", .when = "distributed_type=DEEPSPEED;deepspeed_config.deepspeed_config_file=@absent", .why = "accelerate's stage" },
    { .key = "deepspeed_config.gradient_accumulation_steps", .value = "auto", TAKEN, .sets = "gradient_accumulation_steps=@own" },
    SAME("deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"),
    { .key = "deepspeed_config.gradient_clipping", .value = "auto", TAKEN, .sets = "max_grad_norm=@own" },
    SAME("deepspeed_config.gradient_clipping", "max_grad_norm"),
    { .key = "deepspeed_config.offload_optimizer_device", .value = "cpu", TAKEN, .sets = "offload_optimizer=cpu" },
    { .key = "deepspeed_config.offload_param_device", .value = "cpu", DIFFERS, .why = PARAMS_STAY },
    { .key = "deepspeed_config.offload_optimizer_device deepspeed_config.offload_param_device", .value = "nvme", CANNOT, .why = "a disk is named with the option: offload_optimizer nvme:DIR" },
    IDLE("deepspeed_config.offload_*", "buffers are planned and pinned by themselves"),
    { .key = "deepspeed_config.seq_parallel_communication_data_type", .value = "fp32 bf16", TAKEN, .sets = "reduce_dtype" },
    IDLE("deepspeed_config.*", "ranks read their own shards, and launch starts the nodes"),

    FSDP_ROWS,
    IDLE("fsdp_config.*", "there is nothing to choose"),
    { .key = FSDP("sharding_strategy") " " FSDP("reshard_after_forward"), .value = "@absent", TAKEN, .sets = "zero=3", .when = "distributed_type=FSDP", .why = "FSDP shards fully" },

    SAME(MEGATRON("tp_degree"), "tp"),
    SAME(MEGATRON("pp_degree"), "pp"),
    SAME(MEGATRON("context_parallel_size"), "cp"),
    SAME(MEGATRON("num_micro_batches"), "gradient_accumulation_steps"),
    SAME(MEGATRON("gradient_clipping"), "max_grad_norm"),
    { .key = MEGATRON("sequence_parallelism"), .value = "@on", TAKEN, .sets = "sp=true" },
    { .key = MEGATRON("use_distributed_optimizer"), .value = "@on", TAKEN, .sets = "zero=1" },
    { .key = MEGATRON("recompute_activations"), .value = "@on", TAKEN, .sets = "recompute=op" },
    { .key = MEGATRON("recompute_granularity"), .value = "full", TAKEN, .sets = "recompute=block" },
    { .key = MEGATRON("recompute_granularity"), .value = "selective", TAKEN, .sets = "recompute=op" },
    NOT_ON(MEGATRON("expert_*") " " MEGATRON("num_experts*"), "there are no experts here"),
    NOT_ON(MEGATRON("optimizer_cpu_offload*") " " MEGATRON("use_custom_fsdp"), "there is nothing like it here"),
    IDLE("megatron_lm_config.*", "there is nothing to choose"),
    NOT_ON("kt_config.*", "there is nothing like KTransformers here"),

    { .key = PC("dp_replicate_size"), .value = "1", DECIDED, .why = "one copy" },
    { .key = PC("dp_replicate_size"), DECIDED, .when = "parallelism_config.parallelism_config_dp_shard_size=@many", .why = "dp and hybrid_shard say it" },
    { .key = PC("dp_replicate_size"), TAKEN, .sets = "dp" },
    { .key = PC("dp_shard_size"), .value = "1", DECIDED, .why = "nothing is sharded" },
    { .key = PC("dp_shard_size"), TAKEN, .sets = "zero=3 hybrid_shard=$", .when = "parallelism_config.parallelism_config_dp_replicate_size=@many;!parallelism_config.parallelism_config_dp_replicate_size=1" },
    { .key = PC("dp_shard_size"), TAKEN, .sets = "dp zero=3", .convert = product_of_ranks },
    SAME(PC("tp_size"), "tp"),
    { .key = PC("cp_size"), .value = "1", DECIDED, .why = "off" },
    { .key = PC("cp_size"), TAKEN, .sets = "cp cp_mode=ring" },
    { .key = PC("cp_comm_strategy"), DIFFERS, .why = "keys and values go around a ring" },
    { .key = PC("sp_size"), .value = "1", DECIDED, .why = "off" },
    { .key = PC("sp_size"), TAKEN, .sets = "cp cp_mode=ulysses" },
    IDLE("parallelism_config.* parallelism_config_* use_parallelism_config", "there is nothing to choose"),
    END_OF_ROWS,
};
/* clang-format on */

const struct tool tr_tool_accelerate = {
    .name = "accelerate", .title = "accelerate", .rows = rows, .is_mine = is_accelerate
};
