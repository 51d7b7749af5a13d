/* choices.h - the verbs, and the values of the options that are one word of a few. options.c has the words. */
#ifndef TR_CONFIG_CHOICES_H
#define TR_CONFIG_CHOICES_H

/* name, word, what it does, the words that follow it */
#define TR_VERB_LIST(X)                                                                                                \
    X(TRAIN, "train", "train or fine-tune a model", "")                                                                \
    X(INIT, "init", "write an HF directory with random weights from a config.json", "")                                \
    X(PLAN, "plan", "bytes, flops and time of a run, without running it", "")                                          \
    X(EVAL, "eval", "loss and perplexity of a model on data", "")                                                      \
    X(GENERATE, "generate", "continue a prompt", "")                                                                   \
    X(CHAT, "chat", "talk with a model in the terminal", "")                                                           \
    X(DATA, "data", "what a model will see, and what it saw in a step",                                                \
      "check --model DIR --data PATH, or show OUTPUT --step N")                                                        \
    X(CKPT, "ckpt", "list, show, verify, compare, export, merge or prune checkpoints",                                 \
      "list|newest OUTPUT, show|verify CHECKPOINT, diff CHECKPOINT CHECKPOINT, "                                       \
      "export|reshard CHECKPOINT --output DIR, merge ADAPTER --output DIR, prune OUTPUT --save_total_limit N")         \
    X(CHECK, "check", "preflight: do the ranks, their links and the disk work", "")                                    \
    X(BENCH, "bench", "measure collectives, a disk, the data loader, or this host for --machine",                      \
      "comm|disk|data|machine")                                                                                        \
    X(CTL, "ctl", "save, stop, pause or change a run while it goes on",                                                \
      "OUTPUT save|stop|pause|resume|eval|sample|set learning_rate=X")                                                 \
    X(REPLAY, "replay", "make a step of a run again and compare loss, norm and gradients", "OUTPUT --step N")          \
    X(EXPLAIN, "explain", "samples, tokens and layers behind the loss of a step of a run", "OUTPUT --step N")          \
    X(DOCTOR, "doctor", "what this machine is ready for, and the fix for what it is not", "")                          \
    X(RUNS, "runs", "list the runs of a directory, or compare two", "[DIR], or diff OUTPUT OUTPUT")                    \
    X(WATCH, "watch", "live view of runs, on a terminal or in a browser", "OUTPUT...")                                 \
    X(CONFIG, "config", "show every option with its value and origin; read files of other trainers",                   \
      "show|import FILE...|completion SHELL|man [VERB]")

enum tr_verb {
#define X(name, word, what, words) TR_VERB_##name,
    TR_VERB_LIST(X)
#undef X
        TR_VERB_COUNT
};

enum tr_lr_schedule {
    TR_LR_LINEAR,
    TR_LR_COSINE,
    TR_LR_CONSTANT,
    TR_LR_CONSTANT_WITH_WARMUP,
    TR_LR_WSD,          /* warm-up from 0, stable, linear decay */
    TR_LR_STABLE_DECAY, /* the same as transformers has it: warm-up from min_lr_ratio, cosine decay */
    TR_LR_RESTARTS,
    TR_LR_POLYNOMIAL,
    TR_LR_INVERSE_SQRT,
    TR_LR_COSINE_AHEAD, /* a cosine that is one step further, and a warm-up that does not begin at 0 */
    TR_LR_SCHEDULES
};
enum tr_lr_curve { TR_CURVE_AUTO, TR_CURVE_LINEAR, TR_CURVE_COSINE, TR_CURVE_SQRT, TR_CURVE_LOG };
enum tr_optim_kind {
    TR_OPTIM_ADAMW,
    TR_OPTIM_LION,
    TR_OPTIM_SGD,
    TR_OPTIM_ADAMW8,
    TR_OPTIM_LION8,
    TR_OPTIM_MUON,
    TR_OPTIM_ADAFACTOR
};
/* Who updates what lives in host memory. */
enum tr_update_place { TR_UPDATE_ON_DEVICE, TR_UPDATE_ON_HOST };
enum tr_offload { TR_OFFLOAD_NONE, TR_OFFLOAD_CPU, TR_OFFLOAD_DISK };
/* The factor on Muon's update of a matrix, by its shape: names and formulas of torch.optim.Muon. */
enum tr_muon_adjust { TR_MUON_ORIGINAL, TR_MUON_MATCH_RMS_ADAMW, TR_MUON_SPECTRAL_UNCLAMPED, TR_MUON_ADJUSTS };
enum tr_device_choice { TR_DEVICE_CHOICE_AUTO, TR_DEVICE_CHOICE_CPU, TR_DEVICE_CHOICE_CUDA };
enum tr_gemm_choice { TR_GEMM_AUTO, TR_GEMM_BUILTIN, TR_GEMM_ONEDNN, TR_GEMM_CBLAS };
enum tr_recompute { TR_RECOMPUTE_NONE, TR_RECOMPUTE_OP, TR_RECOMPUTE_BLOCK, TR_RECOMPUTE_AUTO };
enum tr_reproducible { TR_REPRODUCIBLE_CONFIG, TR_REPRODUCIBLE_LAYOUT, TR_REPRODUCIBLE_OFF };
enum tr_comm_choice { TR_COMM_AUTO, TR_COMM_SHM, TR_COMM_MPI };
enum tr_export {
    TR_EXPORT_AUTO,
    TR_EXPORT_HF,
    TR_EXPORT_PEFT,
    TR_EXPORT_VLLM,
    TR_EXPORT_NF4,
    TR_EXPORT_NF4_DOUBLE,
    TR_EXPORT_FP4,
    TR_EXPORT_FP4_DOUBLE,
    TR_EXPORT_GGUF_F16,
    TR_EXPORT_GGUF_BF16,
    TR_EXPORT_GGUF_Q8_0,
    TR_EXPORT_GGUF_Q4_0,
    TR_EXPORT_GGUF_Q4_K_M,
    TR_EXPORT_GGUF_Q6_K,
    TR_EXPORT_OLLAMA /* q4_k_m, and a Modelfile */
};
enum tr_cp_mode { TR_CP_RING, TR_CP_ULYSSES };
enum tr_sync { TR_SYNC_EACH, TR_SYNC_LAST };
enum tr_fp8_scaling { TR_FP8_CURRENT, TR_FP8_DELAYED };
enum tr_data_format {
    TR_FORMAT_AUTO,
    TR_FORMAT_TEXT,
    TR_FORMAT_COMPLETION,
    TR_FORMAT_ALPACA,
    TR_FORMAT_MESSAGES,
    TR_FORMAT_SHAREGPT,
    TR_FORMAT_TOKENS,
    TR_FORMAT_CHAT_COMPLETION,
    TR_FORMAT_INPUT_OUTPUT,
    TR_FORMAT_PREFERENCE,
    TR_FORMAT_LABELLED,
    TR_FORMAT_COUNT
};
enum tr_train_on { TR_TRAIN_ON_ASSISTANT, TR_TRAIN_ON_LAST, TR_TRAIN_ON_COMPLETION, TR_TRAIN_ON_ALL };
enum tr_streaming { TR_STREAMING_AUTO, TR_STREAMING_ON, TR_STREAMING_OFF };
enum tr_sampling { TR_SAMPLING_RANDOM, TR_SAMPLING_SEQUENTIAL };
enum tr_packing_choice { TR_PACKING_AUTO, TR_PACKING_STREAM, TR_PACKING_BESTFIT, TR_PACKING_NONE };
enum tr_long_documents {
    TR_DOCUMENTS_FIT,
    TR_DOCUMENTS_SPLIT,
    TR_DOCUMENTS_CUT,
    TR_DOCUMENTS_DROP,
    TR_DOCUMENTS_REFUSE
};
enum tr_data_proof_choice { TR_DATA_PROOF_AUTO, TR_DATA_PROOF_FULL, TR_DATA_PROOF_NONE };
/* What is trained: text and answers to imitate, which of two answers is better, or which answers are good. */
enum tr_task { TR_TASK_SFT, TR_TASK_DPO, TR_TASK_ORPO, TR_TASK_SIMPO, TR_TASK_CPO, TR_TASK_KTO };
enum tr_nonfinite { TR_NONFINITE_SKIP, TR_NONFINITE_STOP };
enum tr_objective { TR_OBJECTIVE_FASTEST, TR_OBJECTIVE_CHEAPEST, TR_OBJECTIVE_FEWEST };
/* When something is done in a run; best: after an evaluation that is the best so far. */
enum tr_when { TR_WHEN_STEPS, TR_WHEN_NEVER, TR_WHEN_EPOCH, TR_WHEN_BEST };
enum tr_save_choice { TR_SAVE_AUTO, TR_SAVE_ASYNC, TR_SAVE_STRAIGHT };
enum tr_count_as { TR_COUNT_OWN, TR_COUNT_ZERO, TR_COUNT_MEGATRON, TR_COUNT_KORTHIKANTI };
enum tr_tuning { TR_TUNING_FULL, TR_TUNING_LORA, TR_TUNING_FREEZE };
enum tr_lora_bias { TR_LORA_BIAS_NONE, TR_LORA_BIAS_ALL, TR_LORA_BIAS_ONLY };
/* What a merge adds the adapter to: the weights of the base's directory, or what a quantised run saw of them. */
enum tr_onto { TR_ONTO_ORIGINAL, TR_ONTO_DEQUANTIZED, TR_ONTO_COUNT };
enum tr_show { TR_SHOW_NONE, TR_SHOW_PROGRAM, TR_SHOW_SCHEDULE, TR_SHOW_MEMORY };

#endif
