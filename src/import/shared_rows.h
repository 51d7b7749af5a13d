/* shared_rows.h - rows that several tools have under the same or nearly the same names. */
#ifndef TR_IMPORT_SHARED_ROWS_H
#define TR_IMPORT_SHARED_ROWS_H

#include "import/import_impl.h"

/* What is paged lives on the host as far as the memory asks for it. */
#define PAGED " offload_optimizer=cpu offload_share=auto"

/* load_in_8bit of bitsandbytes. */
#define EIGHT_BITS "frozen linears are held as 8-bit floats with a scale for each 128, not as LLM.int8"

/* DeepSpeed and FSDP offload parameters that ranks share. */
#define PARAMS_STAY                                                                                                    \
    "parameters stay on the device; with zero 2 or less frozen ones stream from the host, with zero 0 those that "     \
    "learn (--offload_param cpu)"

/* These tools ask PEFT, which passes over names that the model lacks. */
#define AN_ADAPTER "finetuning_type=lora peft_rules=true"

/* PEFT trains a copy of a tied embedding or head, unless it is told to keep them one. */
#define OF_TIED     "*embed* *wte* *lm_head*"
#define TRAIN_APART "lora_modules_to_save untie=true"
#define APART       "of a tied model trained apart from the other, as PEFT does"

/* Sources of data. */
#define IN_DATA "part of its source in data"
#define A_PART  "a part of a data set of the hub is a directory of its name"

/* clang-format off */
/* Names of optimizers, as transformers spells them. */
#define OPTIMIZER_ROWS(k)                                                                                              \
    { .key = k, .value = "adamw_torch adamw_torch_fused adamw_hf adamw adamw_apex_fused adamw_anyprecision adamw_torch_xla adamw_torch_npu_fused", TAKEN, .sets = "optim=adamw" }, \
    { .key = k, .value = "sgd", TAKEN, .sets = "optim=sgd" },                                                          \
    { .key = k, .value = "lion lion_32bit lion_pytorch", TAKEN, .sets = "optim=lion" },                                \
    { .key = k, .value = "paged_adamw_32bit", TAKEN, .sets = "optim=adamw" PAGED },                                    \
    { .key = k, .value = "paged_lion_32bit", TAKEN, .sets = "optim=lion" PAGED },                                      \
    { .key = k, .value = "paged_adamw_8bit", TAKEN, .sets = "optim=adamw_8bit" PAGED },                                \
    { .key = k, .value = "paged_lion_8bit", TAKEN, .sets = "optim=lion_8bit" PAGED },                                  \
    { .key = k, .value = "adamw_bnb_8bit adamw_8bit adamw_torch_8bit", TAKEN, .sets = "optim=adamw_8bit" }, \
    { .key = k, .value = "adamw_torch_4bit", DIFFERS, .sets = "optim=adamw_8bit", .why = "moments are held in 8 bits" }, \
    { .key = k, .value = "lion_8bit", TAKEN, .sets = "optim=lion_8bit" },                              \
    { .key = k, TAKEN, .sets = "optim" }

/* Shapes of the learning rate. */
#define SCHEDULE_ROWS(k)                                                                                               \
    { .key = k, .value = "cosine_with_min_lr", TAKEN, .sets = "lr_scheduler_type=cosine_with_min_lr", .or_next = true }, \
    { .key = k, .value = "cosine_with_min_lr", TAKEN, .sets = "lr_scheduler_type=cosine" },                            \
    { .key = k, TAKEN, .sets = "lr_scheduler_type" }

/* Losses of pairs, and their weights. */
#define LOSS_ROWS(k, weights)                                                                                          \
    { .key = k, .value = "*", TAKEN, .sets = "loss_type", .convert = tr_weighed_losses },                              \
    { .key = k, CANNOT, .why = weights " has another number of items" },                                               \
    { .key = weights, .value = "@on", TAKEN, .when = "!" k "=@absent", .why = "weights of the losses of loss_type" },  \
    { .key = weights, .value = "@on", CANNOT, .why = "there is no " k }

/* FSDP, as accelerate names it; the prefix fsdp_ may be missing. */
#define FSDP(x) "fsdp_config.fsdp_" x " fsdp_config." x
#define FSDP_ROWS                                                                                                      \
    { .key = FSDP("sharding_strategy"), .value = "FULL_SHARD 1", TAKEN, .sets = "zero=3" },                           \
    { .key = FSDP("sharding_strategy"), .value = "SHARD_GRAD_OP 2", TAKEN, .sets = "zero=2" },                        \
    { .key = FSDP("sharding_strategy"), .value = "NO_SHARD 3", TAKEN, .sets = "zero=0" },                             \
    { .key = FSDP("sharding_strategy"), .value = "HYBRID_SHARD 4", TAKEN, .sets = "zero=3 hybrid_shard", .convert = tr_ranks_of_a_node }, \
    { .key = FSDP("sharding_strategy"), .value = "HYBRID_SHARD_ZERO2 _HYBRID_SHARD_ZERO2 5", TAKEN, .sets = "zero=2 hybrid_shard", .convert = tr_ranks_of_a_node }, \
    { .key = FSDP("sharding_strategy"), .value = "*HYBRID* 4 5", CANNOT, .why = "the ranks of a node are not known: leave it out and write zero 3 and hybrid_shard N" }, \
    { .key = FSDP("reshard_after_forward"), .value = "true FULL_SHARD", TAKEN, .sets = "zero=3" },                    \
    { .key = FSDP("reshard_after_forward"), .value = "false SHARD_GRAD_OP", TAKEN, .sets = "zero=2" },                \
    { .key = FSDP("activation_checkpointing"), .value = "true", TAKEN, .sets = "recompute=block" },                   \
    { .key = FSDP("activation_checkpointing"), DECIDED, .why = "off" },                                               \
    { .key = FSDP("offload_params") " fsdp_config.cpu_offload fsdp_config.fsdp_cpu_offload", .value = "@on", DIFFERS, .sets = "offload_optimizer=cpu", .why = "optimizer state goes to the host; " PARAMS_STAY }, \
    { .key = FSDP("offload_params") " fsdp_config.cpu_offload fsdp_config.fsdp_cpu_offload", DECIDED, .why = "off" }, \
    IDLE(FSDP("version") " " FSDP("auto_wrap_policy") " " FSDP("transformer_layer_cls_to_wrap"), "layers are what is gathered and sharded"), \
    IDLE(FSDP("min_num_params") " " FSDP("backward_prefetch") " " FSDP("forward_prefetch") " " FSDP("limit_all_gathers"), "the schedule gathers ahead by itself"), \
    IDLE(FSDP("use_orig_params") " " FSDP("sync_module_states") " " FSDP("cpu_ram_efficient_loading") " " FSDP("use_cache"), "ranks read their own shards"), \
    IDLE(FSDP("state_dict_type") " fsdp_config.final_state_dict_type fsdp_config.xla*", "every checkpoint is an HF directory, and any layout resumes")
/* clang-format on */

convert_fn tr_weighed_losses;  /* a list of losses and, beside it, their weights: sigmoid:0.8,sft:1 */
convert_fn tr_ranks_of_a_node; /* num_processes / num_machines of an accelerate file */

#endif
