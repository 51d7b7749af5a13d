/* options.c - the option table: every option of Trireme, one row each.
 *
 * Names are those of HF TrainingArguments where one exists; docs and scripts rely on them, so tests/config/options.txt
 * freezes the table. A row's name is its field's name and its type is checked against the field's by the compiler.
 * Rejected: a parser per verb (options drift apart), and typed setters instead of offsets (seventy small functions).
 */
#include "config/config_impl.h"

#include <string.h>

#define VERB(v)   (1u << TR_VERB_##v)
#define ALL_VERBS ((1u << TR_VERB_COUNT) - 1u)
/* Verbs that describe a training; also those that make its steps again; that run on many ranks; that touch a model;
 * that compute. */
#define START  (VERB(TRAIN) | VERB(PLAN) | VERB(CONFIG))
#define RUN    (START | VERB(REPLAY) | VERB(EXPLAIN))
#define MESH   (RUN | VERB(EVAL) | VERB(GENERATE))
#define MODEL  (RUN | VERB(EVAL) | VERB(GENERATE) | VERB(CHAT))
#define ENGINE (MODEL | VERB(BENCH) | VERB(CHECK))

/* Offset of a field whose type must be `type`. */
#define AT(field, type)                                                                                                \
    (offsetof(struct tr_config, field) + 0 * sizeof(char[_Generic(((struct tr_config *)0)->field, type : 1, default    \
                                                                  : -1)]))
#define AT_ENUM(field)                                                                                                 \
    (offsetof(struct tr_config, field) +                                                                               \
     0 * sizeof(char[sizeof(((struct tr_config *)0)->field) == sizeof(int) ? 1 : -1]))

#define HEAD(field, grp, als, vrb, dfl, txt)                                                                           \
    .name = #field, .group = (grp), .aliases = (als), .verbs = (vrb), .def = (dfl), .help = (txt)
#define FLAG(field, grp, als, vrb, txt, ...)                                                                           \
    {                                                                                                                  \
        HEAD(field, grp, als, vrb, "false", txt), .type = OPTION_BOOL, .at = AT(field, bool), .bare = "true",          \
                                                  .is_cli_only = __VA_ARGS__                                           \
    }
#define PLACE(field, grp, als, vrb, dfl, words, ...)                                                                   \
    {                                                                                                                  \
        .type = OPTION_CHOICE, .at = AT_ENUM(field), .choices = (words),                                               \
        .at_dir = offsetof(struct tr_config, field##_dir), HEAD(field, grp, als, vrb, dfl, __VA_ARGS__)                \
    }
#define INT(field, grp, als, vrb, dfl, min, max, ...)                                                                  \
    {                                                                                                                  \
        .lo = (min), .hi = (max), .type = OPTION_INT, .at = AT(field, int64_t), .arg = "N",                            \
        HEAD(field, grp, als, vrb, dfl, __VA_ARGS__)                                                                   \
    }
#define REAL(field, grp, als, vrb, dfl, min, max, open, ...)                                                           \
    {                                                                                                                  \
        .lo = (min), .hi = (max), .is_open = (open), .type = OPTION_REAL, .at = AT(field, double), .arg = "X",         \
        HEAD(field, grp, als, vrb, dfl, __VA_ARGS__)                                                                   \
    }
#define STR(field, grp, als, vrb, dfl, metavar, ...)                                                                   \
    {                                                                                                                  \
        .type = OPTION_STR, .at = AT(field, const char *), .arg = (metavar),                                           \
        HEAD(field, grp, als, vrb, dfl, __VA_ARGS__)                                                                   \
    }
#define CHOICE(field, grp, als, vrb, dfl, words, ...)                                                                  \
    {                                                                                                                  \
        .type = OPTION_CHOICE, .at = AT_ENUM(field), .choices = (words), HEAD(field, grp, als, vrb, dfl, __VA_ARGS__)  \
    }

static const struct choice lr_schedules[] = { { "linear", TR_LR_LINEAR },
                                              { "cosine", TR_LR_COSINE },
                                              { "constant", TR_LR_CONSTANT },
                                              { "constant_with_warmup", TR_LR_CONSTANT_WITH_WARMUP },
                                              { "wsd", TR_LR_WSD },
                                              { "warmup_stable_decay", TR_LR_STABLE_DECAY },
                                              { "cosine_with_restarts", TR_LR_RESTARTS },
                                              { "polynomial", TR_LR_POLYNOMIAL },
                                              { "inverse_sqrt", TR_LR_INVERSE_SQRT },
                                              { "cosine_warmup_with_min_lr", TR_LR_COSINE_AHEAD },
                                              { "cosine_with_min_lr", TR_LR_COSINE },
                                              { NULL, 0 } };
static const struct choice warmups[] = { { "linear", TR_CURVE_LINEAR },
                                         { "cosine", TR_CURVE_COSINE },
                                         { "1-sqrt", TR_CURVE_SQRT },
                                         { "log", TR_CURVE_LOG },
                                         { NULL, 0 } };
static const struct choice decays[] = { { "auto", TR_CURVE_AUTO },
                                        { "linear", TR_CURVE_LINEAR },
                                        { "cosine", TR_CURVE_COSINE },
                                        { "1-sqrt", TR_CURVE_SQRT },
                                        { NULL, 0 } };
enum { N_OPTIM_WORDS = 14 };
static struct choice optims[N_OPTIM_WORDS + TR_CONFIG_OPTIMS_MAX + 1] = {
    /* the others: tr_config_add_optim */
    { "adamw", TR_OPTIM_ADAMW },
    { "adamw_torch", TR_OPTIM_ADAMW },
    { "adamw_torch_fused", TR_OPTIM_ADAMW },
    { "lion", TR_OPTIM_LION },
    { "sgd", TR_OPTIM_SGD },
    { "adamw_8bit", TR_OPTIM_ADAMW8 },
    { "adamw_bnb_8bit", TR_OPTIM_ADAMW8 },
    { "lion_8bit", TR_OPTIM_LION8 },
    { "muon", TR_OPTIM_MUON },
    { "adafactor", TR_OPTIM_ADAFACTOR },
    { "adamw_hf", TR_OPTIM_ADAMW },
    { "adamw_apex_fused", TR_OPTIM_ADAMW },
    { "adamw_torch_8bit", TR_OPTIM_ADAMW8 },
    { "lion_32bit", TR_OPTIM_LION },
};

enum tr_status tr_config_add_optim(const char *word, int value)
{
    int n = N_OPTIM_WORDS;
    while (optims[n].word)
        n++;
    if (n == N_OPTIM_WORDS + TR_CONFIG_OPTIMS_MAX)
        return tr_fail(TR_USAGE, "optim %s: only %d optimizers can be added", word, TR_CONFIG_OPTIMS_MAX);
    for (int i = 0; i < n; i++)
        if (strcmp(optims[i].word, word) == 0)
            return tr_fail(TR_USAGE, "optim %s is there already; choose another name", word);
    optims[n] = (struct choice){ word, value };
    return TR_OK;
}
static const struct choice offloads[] = {
    { "none", TR_OFFLOAD_NONE }, { "cpu", TR_OFFLOAD_CPU }, { "nvme:DIR", TR_OFFLOAD_DISK }, { NULL, 0 }
};
static const struct choice update_places[] = { { "device", TR_UPDATE_ON_DEVICE },
                                               { "cpu", TR_UPDATE_ON_HOST },
                                               { NULL, 0 } };
static const struct choice muon_adjusts[] = { { "original", TR_MUON_ORIGINAL },
                                              { "match_rms_adamw", TR_MUON_MATCH_RMS_ADAMW },
                                              { "spectral_unclamped", TR_MUON_SPECTRAL_UNCLAMPED },
                                              { NULL, 0 } };
static const struct choice dtypes[] = { { "float32", TR_F32 },
                                        { "bfloat16", TR_BF16 },
                                        { "float16", TR_F16 },
                                        { "fp32", TR_F32 },
                                        { "bf16", TR_BF16 },
                                        { "fp16", TR_F16 },
                                        { NULL, 0 } };
static const struct choice wide_dtypes[] = {
    { "float32", TR_F32 }, { "bfloat16", TR_BF16 }, { "fp32", TR_F32 }, { "bf16", TR_BF16 }, { NULL, 0 }
};
static const struct choice devices[] = {
    { "auto", TR_DEVICE_CHOICE_AUTO }, { "cpu", TR_DEVICE_CHOICE_CPU }, { "cuda", TR_DEVICE_CHOICE_CUDA }, { NULL, 0 }
};
static const struct choice gemms[] = { { "auto", TR_GEMM_AUTO },
                                       { "builtin", TR_GEMM_BUILTIN },
                                       { "onednn", TR_GEMM_ONEDNN },
                                       { "cblas", TR_GEMM_CBLAS },
                                       { NULL, 0 } };
static const struct choice recomputes[] = { { "none", TR_RECOMPUTE_NONE },
                                            { "op", TR_RECOMPUTE_OP },
                                            { "block", TR_RECOMPUTE_BLOCK },
                                            { "auto", TR_RECOMPUTE_AUTO },
                                            { NULL, 0 } };
static const struct choice reproducibles[] = { { "config", TR_REPRODUCIBLE_CONFIG },
                                               { "layout", TR_REPRODUCIBLE_LAYOUT },
                                               { "off", TR_REPRODUCIBLE_OFF },
                                               { NULL, 0 } };
static const struct choice comms[] = {
    { "auto", TR_COMM_AUTO }, { "shm", TR_COMM_SHM }, { "mpi", TR_COMM_MPI }, { NULL, 0 }
};
static const struct choice cp_modes[] = { { "ring", TR_CP_RING }, { "ulysses", TR_CP_ULYSSES }, { NULL, 0 } };
static const struct choice fp8_gradients[] = { { "e4m3", TR_E4M3 }, { "e5m2", TR_E5M2 }, { NULL, 0 } };
static const struct choice fp8_scalings[] = { { "current", TR_FP8_CURRENT },
                                              { "delayed", TR_FP8_DELAYED },
                                              { NULL, 0 } };
static const struct choice quant_types[] = { { "nf4", TR_PACKED_NF4 }, { "fp4", TR_PACKED_FP4 }, { NULL, 0 } };
static const struct choice base_dtypes[] = { { "dtype", TR_NOT_PACKED }, { "fp8", TR_PACKED_FP8 }, { NULL, 0 } };
static const struct choice syncs[] = { { "each", TR_SYNC_EACH }, { "last", TR_SYNC_LAST }, { NULL, 0 } };
static const struct choice formats[] = {
    { "auto", TR_FORMAT_AUTO },
    { "text", TR_FORMAT_TEXT },
    { "completion", TR_FORMAT_COMPLETION },
    { "alpaca", TR_FORMAT_ALPACA },
    { "messages", TR_FORMAT_MESSAGES },
    { "sharegpt", TR_FORMAT_SHAREGPT },
    { "tokens", TR_FORMAT_TOKENS },
    { "chat_completion", TR_FORMAT_CHAT_COMPLETION },
    { "input_output", TR_FORMAT_INPUT_OUTPUT },
    { "preference", TR_FORMAT_PREFERENCE },
    { "labelled", TR_FORMAT_LABELLED },
    { NULL, 0 },
};
static const struct choice train_ons[] = { { "assistant", TR_TRAIN_ON_ASSISTANT },
                                           { "last", TR_TRAIN_ON_LAST },
                                           { "completion", TR_TRAIN_ON_COMPLETION },
                                           { "all", TR_TRAIN_ON_ALL },
                                           { NULL, 0 } };
static const struct choice streamings[] = {
    { "auto", TR_STREAMING_AUTO }, { "true", TR_STREAMING_ON }, { "false", TR_STREAMING_OFF }, { NULL, 0 }
};
static const struct choice samplings[] = { { "random", TR_SAMPLING_RANDOM },
                                           { "sequential", TR_SAMPLING_SEQUENTIAL },
                                           { NULL, 0 } };
static const struct choice packings[] = { { "auto", TR_PACKING_AUTO },
                                          { "stream", TR_PACKING_STREAM },
                                          { "bestfit", TR_PACKING_BESTFIT },
                                          { "none", TR_PACKING_NONE },
                                          { NULL, 0 } };
static const struct choice longs[] = { { "fit", TR_DOCUMENTS_FIT },       { "split", TR_DOCUMENTS_SPLIT },
                                       { "cut", TR_DOCUMENTS_CUT },       { "drop", TR_DOCUMENTS_DROP },
                                       { "refuse", TR_DOCUMENTS_REFUSE }, { NULL, 0 } };
static const struct choice proofs[] = {
    { "auto", TR_DATA_PROOF_AUTO }, { "full", TR_DATA_PROOF_FULL }, { "none", TR_DATA_PROOF_NONE }, { NULL, 0 }
};
static const struct choice tasks[] = { { "sft", TR_TASK_SFT },     { "pt", TR_TASK_SFT },
                                       { "dpo", TR_TASK_DPO },     { "orpo", TR_TASK_ORPO },
                                       { "simpo", TR_TASK_SIMPO }, { "cpo", TR_TASK_CPO },
                                       { "kto", TR_TASK_KTO },     { NULL, 0 } };
static const struct choice pair_losses[] = {
    { "auto", TR_PAIR_NONE },
#define X(id, word, needs_ref, is_mean) { word, TR_PAIR_##id },
    TR_PAIR_LOSS_LIST(X)
#undef X
        { NULL, 0 },
};
static const struct choice divergences[] = {
#define X(id, word) { word, TR_DIVERGENCE_##id },
    TR_DIVERGENCE_LIST(X)
#undef X
        { NULL, 0 },
};
static const struct choice nonfinites[] = { { "skip", TR_NONFINITE_SKIP }, { "stop", TR_NONFINITE_STOP }, { NULL, 0 } };
static const struct choice objectives[] = { { "fastest", TR_OBJECTIVE_FASTEST },
                                            { "cheapest", TR_OBJECTIVE_CHEAPEST },
                                            { "fewest", TR_OBJECTIVE_FEWEST },
                                            { NULL, 0 } };
static const struct choice saves[] = { { "auto", TR_SAVE_AUTO },      { "on", TR_SAVE_ASYNC },
                                       { "off", TR_SAVE_STRAIGHT },   { "true", TR_SAVE_ASYNC },
                                       { "false", TR_SAVE_STRAIGHT }, { NULL, 0 } };
static const struct choice eval_strategies[] = {
    { "steps", TR_WHEN_STEPS }, { "no", TR_WHEN_NEVER }, { "epoch", TR_WHEN_EPOCH }, { NULL, 0 }
};
static const struct choice save_strategies[] = { { "steps", TR_WHEN_STEPS },
                                                 { "no", TR_WHEN_NEVER },
                                                 { "epoch", TR_WHEN_EPOCH },
                                                 { "best", TR_WHEN_BEST },
                                                 { NULL, 0 } };
static const struct choice conventions[] = { { "none", TR_COUNT_OWN },
                                             { "zero", TR_COUNT_ZERO },
                                             { "megatron", TR_COUNT_MEGATRON },
                                             { "korthikanti", TR_COUNT_KORTHIKANTI },
                                             { NULL, 0 } };
static const struct choice tunings[] = { { "full", TR_TUNING_FULL },
                                         { "lora", TR_TUNING_LORA },
                                         { "freeze", TR_TUNING_FREEZE },
                                         { "qlora", TR_TUNING_LORA },
                                         { NULL, 0 } };
static const struct choice lora_biases[] = {
    { "none", TR_LORA_BIAS_NONE }, { "all", TR_LORA_BIAS_ALL }, { "lora_only", TR_LORA_BIAS_ONLY }, { NULL, 0 }
};
static const struct choice exports[] = { { "auto", TR_EXPORT_AUTO },
                                         { "hf", TR_EXPORT_HF },
                                         { "peft", TR_EXPORT_PEFT },
                                         { "vllm", TR_EXPORT_VLLM },
                                         { "bnb-4bit", TR_EXPORT_NF4 },
                                         { "bnb-4bit:double", TR_EXPORT_NF4_DOUBLE },
                                         { "bnb-4bit:nf4", TR_EXPORT_NF4 },
                                         { "bnb-4bit:nf4:double", TR_EXPORT_NF4_DOUBLE },
                                         { "bnb-4bit:fp4", TR_EXPORT_FP4 },
                                         { "bnb-4bit:fp4:double", TR_EXPORT_FP4_DOUBLE },
                                         { "gguf:f16", TR_EXPORT_GGUF_F16 },
                                         { "gguf:bf16", TR_EXPORT_GGUF_BF16 },
                                         { "gguf:q8_0", TR_EXPORT_GGUF_Q8_0 },
                                         { "gguf:q4_0", TR_EXPORT_GGUF_Q4_0 },
                                         { "gguf:q4_k_m", TR_EXPORT_GGUF_Q4_K_M },
                                         { "gguf:q6_k", TR_EXPORT_GGUF_Q6_K },
                                         { "ollama", TR_EXPORT_OLLAMA },
                                         { NULL, 0 } };
static const struct choice ontos[] = { { "original", TR_ONTO_ORIGINAL },
                                       { "dequantized", TR_ONTO_DEQUANTIZED },
                                       { NULL, 0 } };
static const struct choice shows[] = { { "none", TR_SHOW_NONE },
                                       { "program", TR_SHOW_PROGRAM },
                                       { "schedule", TR_SHOW_SCHEDULE },
                                       { "memory", TR_SHOW_MEMORY },
                                       { NULL, 0 } };

/* Trackers; src/observe/track.c has the table of those that are written. */
static const struct choice trackers[] = { { "none", 0 },  { "all", 1 },     { "tensorboard", 2 },
                                          { "wandb", 3 }, { "trackio", 4 }, { NULL, 0 } };

/* A list of words of a training. */
#define WORDS(field, grp, als, metavar, txt)                                                                           \
    {                                                                                                                  \
        .type = OPTION_WORDS, .at = AT(field, struct tr_words), .arg = (metavar),                                      \
        HEAD(field, grp, als, RUN, NULL, txt)                                                                          \
    }
#define NAMED(field, grp, als, metavar, txt)                                                                           \
    {                                                                                                                  \
        .type = OPTION_WORDS, .at = AT(field, struct tr_words), .arg = (metavar), .has_names = true,                   \
        HEAD(field, grp, als, RUN, NULL, txt)                                                                          \
    }

#define MANY     1e15 /* steps, rows: exact in a double, far from overflow when multiplied by a rank count */
#define ROWS     1e6
#define RANKS    1e6
#define SEEDS    9007199254740991.0 /* 2^53 - 1: survives JSON */
#define CLI_ONLY true               /* is_cli_only */

/* clang-format off */
const struct option tr_options[] = {
    { .name = "config", .group = "run", .aliases = "", .type = OPTION_STR, .at = AT(config, const char *),
      .verbs = ALL_VERBS & ~VERB(INIT), .arg = "FILE", .is_cli_only = true, .help = "run file (YAML) with these options as keys, or a file of another trainer" },
    { .name = "config", .group = "run", .aliases = "model_config", .type = OPTION_STR, .at = AT(model_config, const char *),
      .verbs = VERB(INIT), .arg = "FILE", .is_cli_only = true, .help = "the model's config.json; or a size (350M), or a name that plan knows" },
    { .name = "set", .group = "run", .aliases = "", .type = OPTION_SET, .verbs = ALL_VERBS, .arg = "KEY=VALUE",
      .is_cli_only = true, .help = "any option as group.name=value or name=value; repeatable" },
    { .name = "from", .group = "run", .aliases = "", .type = OPTION_STR, .at = AT(from, const char *), .verbs = MODEL | VERB(DATA) | VERB(BENCH) | VERB(CHECK),
      .is_cli_only = true, .arg = "TOOL", .help = "whose file config is: deepspeed, accelerate, hf, trl, llamafactory, axolotl, torchtune; default: by its keys" },
    { .name = "skip", .group = "run", .aliases = "", .type = OPTION_WORDS, .at = AT(skip, struct tr_words), .verbs = MODEL | VERB(DATA) | VERB(BENCH) | VERB(CHECK),
      .is_cli_only = true, .arg = "KEY", .help = "keys of another trainer's file that are left out although they cannot be had here; repeatable, * stands for any text" },
    STR(output, "run", "output_dir out", START | VERB(BENCH) | VERB(CHECK) | VERB(INIT) | VERB(DATA) | VERB(CKPT) | VERB(WATCH) | VERB(DOCTOR), NULL, "DIR", "directory to write"),
    { .name = "http", .group = "run", .aliases = "", .type = OPTION_STR, .at = AT(http, const char *), .verbs = VERB(WATCH), .bare = "auto",
      .arg = "[ADDR:]PORT", .help = "watch: serve the runs as a page; without a value on 127.0.0.1, at the first free port from 8765 on" },
    STR(html, "run", "", VERB(WATCH), NULL, "FILE", "watch: write the page with all data into one file that needs no server"),
    FLAG(any_interface, "run", "", VERB(WATCH), "watch --http: allow an address that means every interface", false),
    FLAG(plain, "run", "", VERB(WATCH), "watch: print once, also on a terminal", false),
    INT(seed, "run", "", MODEL | VERB(INIT) | VERB(DATA) | VERB(BENCH), "42", 0, SEEDS, "seed of every random number"),
    { .name = "data_seed", .group = "run", .aliases = "", .type = OPTION_INT, .at = AT(data_seed, int64_t), .verbs = RUN | VERB(DATA),
      .def = "auto", .word = "auto", .lo = 0, .hi = SEEDS, .arg = "N", .help = "seed of the data order; auto = seed" },
    { .name = "resume_from_checkpoint", .group = "run", .aliases = "resume", .type = OPTION_STR,
      .at = AT(resume_from_checkpoint, const char *), .verbs = RUN, .def = "none", .bare = "auto", .arg = "auto|none|DIR",
      .help = "auto = newest verified checkpoint under output, when there is one" },
    { .name = "allow_change", .group = "run", .aliases = "", .type = OPTION_WORDS, .at = AT(allow_change, struct tr_words), .verbs = START,
      .arg = "A,B", .help = "inputs that may differ from those of the checkpoint that is resumed" },
    CHOICE(reproducible, "run", "", RUN, "config", reproducibles, "bits: same run to run; same on any layout; fastest kernels"),
    CHOICE(to, "run", "", VERB(CKPT), "auto", exports, "ckpt export: the form of the weights; auto = hf, of an adapter peft; vllm = hf, of an adapter without patterns; bnb-4bit = linears as bitsandbytes quantises them; gguf:TYPE = a file for llama.cpp; ollama = gguf:q4_k_m with a Modelfile"),
    CHOICE(show, "run", "", VERB(PLAN), "none", shows, "what to print beside the totals"),
    STR(machine, "run", "", START, NULL, "NAME|FILE", "the cluster, as CHIP@CLUSTER, a file, or list: what plan and advice reckon with"),
    CHOICE(conventions, "run", "", VERB(PLAN), "none", conventions, "plan: memory as the literature counts it"),
    FLAG(search, "run", "", VERB(PLAN), "plan: the best layout of --gpus for --train_batch_size rows; options of the mesh that are given stay", false),
    FLAG(table, "run", "", VERB(PLAN), "plan: every --model of a comma-separated list under every strategy, on --gpus chips", false),
    { .name = "gpus", .group = "run", .aliases = "num_gpus", .type = OPTION_INT, .at = AT(gpus, int64_t), .verbs = VERB(PLAN),
      .def = "auto", .word = "auto", .lo = 1, .hi = RANKS, .arg = "N", .help = "plan --search, --table: chips of the cluster; auto = one node" },
    CHOICE(objective, "run", "", VERB(PLAN), "fastest", objectives, "plan --search: fastest on all --gpus; cheapest or fewest of up to --gpus"),
    { .name = "scale", .group = "run", .aliases = "", .type = OPTION_STR, .at = AT(scale, const char *), .verbs = VERB(PLAN),
      .bare = "auto", .arg = "auto|N,N", .help = "plan: the best layout at each number of chips; auto = 1 to 100000" },
    STR(tokens, "run", "token_budget", VERB(PLAN), NULL, "COUNT", "plan: days and price of so many tokens (15T, 300B)"),
    REAL(price, "run", "", VERB(PLAN), "0", 0, 1e6, false, "plan: dollars a chip and hour; 0 = the machine's"),
    REAL(days, "run", "", VERB(PLAN), "0", 0, 1e6, false, "plan --search: --tokens within so many days; 0 = no bound"),
    REAL(mttf_hours, "run", "", VERB(PLAN), "0", 0, 1e12, false, "plan: hours between failures of one chip; 0 = the machine's"),
    REAL(restart_minutes, "run", "", VERB(PLAN), "10", 0, 1e6, false, "plan: from a failure to the first step after it"),
    STR(timeline, "run", "", VERB(PLAN), NULL, "FILE.svg|.json", "plan: the predicted step, as a picture or a Chrome trace"),
    STR(memory_picture, "run", "", VERB(PLAN), NULL, "FILE.svg|.pickle", "plan: memory of every pipeline rank as bars, or its step for pytorch.org/memory_viz"),
    STR(compare, "run", "", VERB(PLAN), NULL, "RUN", "plan: predicted beside measured, from RUN/events.jsonl"),
    FLAG(legal, "run", "", VERB(PLAN), "print which sizes of the mesh are legal, for --model when given", false),
    STR(against, "run", "", VERB(REPLAY), NULL, "FILE", "replay: what another replay has printed with --json, to be compared: of another build, layout or precision"),
    STR(sort, "run", "", VERB(RUNS), "time", "FIELD", "runs: the order: time (newest first), path, state, step, loss or tokens_per_s"),
    REAL(wait, "run", "", VERB(CTL), "30", 0, 1e6, false, "ctl: seconds to wait until the run has done it; 0 = only ask"),
    FLAG(json, "run", "", ALL_VERBS, "machine output on stdout; the last line is one JSON object", false),
    FLAG(quiet, "run", "", ALL_VERBS, "no progress, no curve", false),
    FLAG(help, "run", "", ALL_VERBS, "this text", CLI_ONLY),

    STR(model, "model", "model_name_or_path base_model model.path", MODEL | VERB(DATA) | VERB(BENCH), NULL, "DIR", "HF model directory; plan: also a size (7B), a well-known name, or list"),
    FLAG(resize_vocab, "model", "", RUN, "a tokenizer with more tokens than the model makes its tables grow; new rows begin as the mean of the others", false),
    FLAG(from_scratch, "model", "", RUN, "random weights from the model's config.json", false),
    STR(tokenizer, "model", "", VERB(INIT), NULL, "bytes", "bytes: write a byte-level tokenizer (256 bytes and <|endoftext|>)"),
    { .name = "ignore_config_keys", .group = "model", .aliases = "", .type = OPTION_WORDS, .at = AT(ignore_config_keys, struct tr_words),
      .verbs = MODEL | VERB(INIT), .arg = "A,B", .help = "keys of config.json that may be ignored" },
    { .name = "dropout", .group = "model", .aliases = "", .type = OPTION_REAL, .at = AT(dropout, double), .verbs = RUN, .def = "auto",
      .word = "auto", .lo = 0, .hi = 1, .is_open = true, .arg = "P", .help = "dropout share; auto = as config.json says" },
    FLAG(use_dft_loss, "model", "", RUN, "dynamic fine-tuning: the loss of a token times its probability, which is a constant", false),
    REAL(label_smoothing_factor, "model", "", RUN, "0", 0, 1, true, "share of each target that is spread over the vocabulary while training"),
    REAL(z_loss, "model", "", RUN, "0", 0, 1e3, false, "adds so much of the square of the logarithm of the softmax's sum; 1e-4 is usual"),
    REAL(neftune_noise_alpha, "model", "neftune_alpha noisy_embedding_alpha", RUN, "0", 0, 1e6, false, "noise on embeddings while training (NEFTune); 5 is usual, 0 = off"),

    { .name = "data", .group = "data", .aliases = "data.train", .type = OPTION_DATA, .at = AT(data, struct tr_data_list),
      .verbs = RUN | VERB(EVAL) | VERB(DATA) | VERB(CKPT) | VERB(BENCH), .arg = "PATH[#SPLIT][:WEIGHT]", .help = "training data; repeatable, weights mix the sources" },
    { .name = "eval_data", .group = "data", .aliases = "data.eval", .type = OPTION_DATA, .at = AT(eval_data, struct tr_data_list),
      .verbs = START | VERB(EVAL), .arg = "[NAME=]PATH[#SPLIT][:WEIGHT]", .help = "data for the evaluation loss; repeatable; sources with names have a loss for each name" },
    STR(eval_choices, "data", "choices", START | VERB(EVAL), NULL, "FILE.jsonl", "multiple choice: lines with a context, choices and the number of the right one (gold); accuracy as lm-evaluation-harness counts it"),
    INT(sequence_length, "data", "max_length max_seq_length cutoff_len sequence_len seq_len", RUN | VERB(EVAL) | VERB(DATA) | VERB(CKPT) | VERB(BENCH), "0", 0, 1 << 24,
        "tokens per row; 0 = what the model allows, 1,024 at most"),
    CHOICE(data_format, "data", "", RUN | VERB(EVAL) | VERB(DATA), "auto", formats, "what a JSONL record is; auto = by the first record of a file"),
    STR(fetch_command, "data", "", RUN | VERB(EVAL) | VERB(DATA), NULL, "COMMAND", "program that copies data of an address, s3://... or https://...: {url} to {path}"),
    STR(text_key, "data", "text_column dataset_text_field", RUN | VERB(EVAL) | VERB(DATA), NULL, "KEY", "key of the text in a record"),
    STR(chat_template, "data", "", RUN | VERB(EVAL) | VERB(DATA) | VERB(CHAT), NULL, "NAME", "chatml, llama3, ..., a .jinja file, or a template as text; default: the model's own"),
    { .name = "chat_template_kwargs", .group = "data", .aliases = "", .type = OPTION_OBJECT, .at = AT(chat_template_kwargs, const char *),
      .verbs = RUN | VERB(EVAL) | VERB(DATA) | VERB(CHAT), .arg = "OBJECT", .help = "variables of the chat template, like {\"enable_thinking\": false}" },
    STR(chat_date, "data", "", RUN | VERB(EVAL) | VERB(DATA), NULL, "DATE", "the date that chat templates insert, like 2026-01-31; default: the day on which the run first started"),
    CHOICE(train_on, "data", "loss_mask", RUN | VERB(EVAL) | VERB(DATA), "assistant", train_ons, "which tokens of a conversation have a loss"),
    FLAG(loss_weights, "data", "", RUN | VERB(EVAL) | VERB(DATA) | VERB(BENCH), "tokens, messages and segments have the weights in the loss that their records give them, not only 0 and 1", false),
    CHOICE(packing, "data", "", RUN | VERB(EVAL) | VERB(DATA), "auto", packings, "how documents become rows; auto = stream for text, bestfit for records"),
    CHOICE(train_sampling_strategy, "data", "", RUN | VERB(DATA), "random", samplings, "order of the rows of training; sequential = as the records lie in the data"),
    CHOICE(long_documents, "data", "", RUN | VERB(EVAL) | VERB(DATA), "fit", longs, "packed records that are longer than a row: fit cuts the ends of prompt and answer, split continues them in further rows, cut keeps the first row, drop leaves them out, refuse ends; with fit, text without prompts is split"),
    CHOICE(streaming, "data", "dataset_streaming", RUN | VERB(DATA), "auto", streamings, "train while text is still tokenised, block after block; auto = for at least 1 GiB of data with max_steps; false = all before step 0, shuffled as one"),
    INT(max_skipped, "data", "", RUN | VERB(EVAL) | VERB(DATA), "1000", 0, 1e15, "number of unreadable records that are skipped; with more, the run is refused"),
    INT(max_samples, "data", "max_train_samples", RUN | VERB(DATA), "0", 0, MANY, "records of each source of data that are used, the first ones; 0 = all"),
    INT(max_eval_samples, "data", "", START | VERB(EVAL), "0", 0, MANY, "records of each source of evaluation data that are used; 0 = all"),
    REAL(eval_split, "data", "val_set_size", RUN | VERB(DATA), "0", 0, 0.5, false, "share of the rows held out for evaluation"),
    CHOICE(data_proof, "data", "", START, "auto", proofs, "before step 0: counts, skips, masks, a sample, isolation where it is cheap; full = at any cost"),
    INT(step, "data", "", VERB(DATA) | VERB(REPLAY) | VERB(EXPLAIN), "0", 0, MANY, "data show: the step whose samples are shown; replay, explain: the step that is made again"),

    { .name = "per_device_train_batch_size", .group = "train", .aliases = "micro_batch_size", .type = OPTION_INT, .at = AT(per_device_train_batch_size, int64_t),
      .verbs = RUN | VERB(BENCH), .def = "8", .word = "auto", .lo = 1, .hi = ROWS, .arg = "N", .help = "rows per device and micro-batch; auto = the most that fit into memory, of the rows of train_batch_size" },
    INT(gradient_accumulation_steps, "train", "", RUN, "1", 1, ROWS, "micro-batches per update"),
    INT(train_batch_size, "train", "global_batch_size", RUN, "0", 0, MANY,
        "rows per update over all devices; 0 = the product. Any two of the three batch options give the third"),
    INT(per_device_eval_batch_size, "train", "eval_batch_size", RUN | VERB(EVAL) | VERB(GENERATE), "8", 1, ROWS, "rows per device in evaluation; texts that are continued at once"),
    INT(max_steps, "train", "", RUN, "-1", -1, MANY, "updates to make; -1 = num_train_epochs decides"),
    REAL(num_train_epochs, "train", "num_epochs epochs", RUN, "3.0", 1e-9, 1e9, false, "passes over the data, when max_steps is -1"),

    CHOICE(optim, "optim", "optimizer optim.name", RUN, "adamw", optims, "optimizer"),
    { .name = "trainable", .group = "optim", .aliases = "", .type = OPTION_WORDS, .at = AT(trainable, struct tr_words), .verbs = RUN,
      .arg = "PATTERN", .help = "parameters that learn (*norm*); repeatable. Others are frozen unless frozen says which are; the last match wins" },
    { .name = "frozen", .group = "optim", .aliases = "", .type = OPTION_WORDS, .at = AT(frozen, struct tr_words), .verbs = RUN,
      .arg = "PATTERN", .help = "parameters that keep their values (model.embed_tokens.*); repeatable, the last match wins" },
    STR(optim_groups, "optim", "", RUN, NULL, "FILE", "groups of parameters with a learning rate or a weight decay of their own (JSON)"),
    REAL(learning_rate, "optim", "lr", RUN, "5e-5", 0, 1e3, false, "peak learning rate"),
    REAL(weight_decay, "optim", "", RUN, "0", 0, 1e3, false, "decoupled weight decay"),
    REAL(adam_beta1, "optim", "beta1", RUN, "0.9", 0, 1, true, "decay of the first moment (adamw, lion)"),
    REAL(adam_beta2, "optim", "beta2", RUN, "0.999", 0, 1, true, "decay of the second moment (adamw, lion)"),
    REAL(adam_epsilon, "optim", "adam_eps optim.eps", RUN, "1e-8", 1e-30, 1, false, "added to the root of the second moment"),
    REAL(momentum, "optim", "", RUN, "0", 0, 1, true, "momentum (sgd)"),
    REAL(muon_momentum, "optim", "", RUN, "0.95", 0, 1, true, "decay of the average of gradients (muon)"),
    CHOICE(muon_adjust_lr_fn, "optim", "", RUN, "match_rms_adamw", muon_adjusts, "factor on the learning rate by the shape of a matrix (muon)"),
    FLAG(adafactor_relative_step, "optim", "", RUN, "the learning rate is min(0.01, 1 / sqrt(step)) instead of the schedule's (adafactor)", false),
    FLAG(adafactor_scale_parameter, "optim", "", RUN, "the learning rate is multiplied by the root mean square of a parameter (adafactor)", false),
    REAL(max_grad_norm, "optim", "gradient_clipping", RUN, "1.0", 0, 1e30, false, "clip the global gradient norm; 0 = off"),
    CHOICE(lr_scheduler_type, "optim", "lr_scheduler optim.schedule", RUN, "linear", lr_schedules, "shape of the learning rate"),
    REAL(warmup_steps, "optim", "", RUN, "0", 0, MANY, false, "steps of linear warm-up; below 1 = share of all steps"),
    REAL(decay_steps, "optim", "", RUN, "0.1", 0, MANY, false, "steps of the final decay (wsd); below 1 = share of all steps"),
    REAL(min_lr_ratio, "optim", "", RUN, "0", 0, 1, false, "the decay ends at this share of the peak"),
    CHOICE(warmup_type, "optim", "", RUN, "linear", warmups, "shape of the warm-up; log is DeepSpeed's default"),
    CHOICE(decay_type, "optim", "", RUN, "auto", decays, "shape of the decay of wsd (auto = linear) and warmup_stable_decay (auto = cosine)"),
    { .name = "lr_num_cycles", .group = "optim", .aliases = "", .type = OPTION_REAL, .at = AT(lr_num_cycles, double), .verbs = RUN, .def = "auto",
      .word = "auto", .lo = 0, .hi = 1e6, .arg = "X", .help = "waves of a cosine; auto = 0.5, and 1 for cosine_with_restarts" },
    REAL(lr_end, "optim", "", RUN, "1e-7", 0, 1e6, false, "polynomial: the learning rate at the end"),
    REAL(lr_power, "optim", "", RUN, "1.0", 0, 1e3, false, "polynomial: the power"),
    { .name = "lr_timescale", .group = "optim", .aliases = "", .type = OPTION_REAL, .at = AT(lr_timescale, double), .verbs = RUN, .def = "auto",
      .word = "auto", .lo = 1, .hi = MANY, .arg = "N", .help = "inverse_sqrt: steps after which the rate has fallen by the root of 2; auto = warmup_steps, or 10000" },

    CHOICE(task, "preference", "stage rl", RUN | VERB(EVAL) | VERB(DATA), "sft", tasks, "what is learnt: text and answers (sft, pt), which of two answers is better, or which answers are good (kto)"),
    { .name = "loss_type", .group = "preference", .aliases = "pref_loss", .type = OPTION_SUM, .at = AT(loss_type, const char *), .choices = pair_losses, .verbs = RUN | VERB(EVAL), .def = "auto",
        .help = "loss of a pair, or with kto of an answer; several with weights as sigmoid:0.8,sft:1; auto = that of the task, and sigmoid for dpo" },
    { .name = "beta", .group = "preference", .aliases = "pref_beta rl_beta dpo_beta", .type = OPTION_REAL, .at = AT(beta, double), .verbs = RUN | VERB(EVAL), .def = "auto",
      .word = "auto", .lo = 1e-9, .hi = 1e9, .arg = "X", .help = "how far a reward lies from its log-probability; auto = 0.1, and 2 for simpo" },
    REAL(label_smoothing, "preference", "dpo_label_smoothing", RUN | VERB(EVAL), "0", 0, 0.5, true, "share of pairs that are taken to be the wrong way round"),
    REAL(simpo_gamma, "preference", "", RUN | VERB(EVAL), "0.5", 0, 1e9, false, "simpo: margin of the chosen answer"),
    REAL(rpo_alpha, "preference", "pref_ftx cpo_alpha", RUN | VERB(EVAL), "0", 0, 1e9, false, "weight of the mean loss of a token of the chosen answer, which is added"),
    REAL(ld_alpha, "preference", "dpo_ld_alpha", RUN | VERB(EVAL), "1", 0, 1, false, "weight of the tokens of an answer behind the length of the other one (LD-DPO)"),
    FLAG(use_weighting, "preference", "dpo_use_weighting", RUN | VERB(EVAL), "weigh each pair by how likely the model finds its answers (WPO)", false),
    CHOICE(f_divergence_type, "preference", "", RUN | VERB(EVAL), "reverse_kl", divergences, "how the distance from the reference is measured (f-DPO)"),
    REAL(f_alpha_divergence_coef, "preference", "", RUN | VERB(EVAL), "0.5", -1e3, 1e3, false, "alpha of alpha_divergence; 1 is the reverse KL"),
    REAL(discopop_tau, "preference", "", RUN | VERB(EVAL), "0.05", 1e-6, 1e6, false, "discopop: width of the change between its two losses"),
    REAL(desirable_weight, "preference", "kto_desirable_weight kto_chosen_weight", RUN | VERB(EVAL), "1", 0, 1e9, false, "kto: weight of the loss of a desirable answer"),
    REAL(undesirable_weight, "preference", "kto_undesirable_weight kto_rejected_weight", RUN | VERB(EVAL), "1", 0, 1e9, false, "kto: weight of the loss of another one"),
    STR(ref_model, "preference", "ref_model_name_or_path", RUN | VERB(EVAL), NULL, "DIR", "model of the reference; default: the model as it is before the first step"),

    CHOICE(finetuning_type, "adapter", "adapter", RUN, "full", tunings, "what learns: all weights, an adapter (any option of this group asks for one), or what trainable names"),
    INT(lora_r, "adapter", "lora_rank", RUN, "8", 1, 1 << 20, "rank of the adapter"),
    { .name = "lora_alpha", .group = "adapter", .aliases = "", .type = OPTION_REAL, .at = AT(lora_alpha, double), .verbs = RUN, .def = "auto",
      .word = "auto", .lo = 1e-9, .hi = 1e9, .arg = "X", .help = "the adapter's product is scaled by alpha / r; auto = 2 x lora_r" },
    REAL(lora_dropout, "adapter", "", RUN, "0", 0, 1, true, "dropout on the adapter's input"),
    WORDS(lora_target_modules, "adapter", "lora_target target_modules", "A,B|REGEX|all-linear|auto", "modules that get an adapter: names or suffixes, an expression of whole names, all linears but the head (default), or PEFT's choice for the family"),
    WORDS(exclude_modules, "adapter", "", "A,B|REGEX", "modules that get none"),
    WORDS(lora_modules_to_save, "adapter", "modules_to_save additional_target", "A,B", "modules that are trained whole and saved with the adapter"),
    FLAG(use_rslora, "adapter", "peft_use_rslora", RUN, "scale by alpha / sqrt(r)", false),
    FLAG(use_dora, "adapter", "peft_use_dora", RUN, "DoRA: a trained length for each row of the matrix", false),
    STR(init_lora_weights, "adapter", "peft_init_lora_weights", RUN, "true", "true|false|gaussian|orthogonal|pissa|olora", "what A and B start with"),
    REAL(loraplus_lr_ratio, "adapter", "", RUN, "1", 1e-6, 1e6, false, "LoRA+: learning rate of B over that of A"),
    NAMED(rank_pattern, "adapter", "", "NAME=R,...", "ranks of some modules; the first name that matches counts"),
    NAMED(alpha_pattern, "adapter", "", "NAME=X,...", "alphas of some modules"),
    WORDS(layers_to_transform, "adapter", "peft_layers_to_transform", "N,N", "layers that get an adapter, with a list of lora_target_modules"),
    WORDS(layers_pattern, "adapter", "peft_layers_pattern", "NAME", "what the list of layers is called (layers, h); default: any"),
    NAMED(trainable_token_indices, "adapter", "peft_trainable_token_indices", "ID,ID|NAME=ID,...", "tokens whose embeddings are trained, or rows of the tables that are named (embed_tokens, lm_head)"),
    CHOICE(lora_bias, "adapter", "", RUN, "none", lora_biases, "biases of the base that are trained (PEFT's bias)"),
    FLAG(lora_b_bias, "adapter", "", RUN, "B has a bias (PEFT's lora_bias)", false),
    FLAG(ensure_weight_tying, "adapter", "peft_ensure_weight_tying", RUN, "what is trained of a tied embedding is trained of the head too", false),
    FLAG(peft_rules, "adapter", "", RUN, "names and ranks that do not fit the model are passed over or trained as PEFT does, with a line that says so, and not refused; files of other trainers ask for it", false),
    CHOICE(onto, "adapter", "", VERB(CKPT), "original", ontos, "ckpt merge: the weights that the adapter is added to; dequantized = as a quantised run saw them"),
    INT(rows, "adapter", "", VERB(CKPT), "4", 0, 4096, "ckpt merge, export: rows of --data, or of random tokens, on which what is written is compared with what was trained; 0 = export without comparing"),
    FLAG(untie, "adapter", "", RUN | VERB(CKPT), "embedding and head of a tied model may become two matrices: those that lora_modules_to_save trains, or ckpt merge writes", false),
    STR(model_base, "adapter", "", MODEL | VERB(DATA) | VERB(CKPT), NULL, "DIR", "base of the adapter that model names; default: what adapter_config.json says"),

    REAL(logging_steps, "log", "", START, "10", 0, MANY, false, "a log line every N steps; below 1 = a share of the run; 0 = only the last"),
    REAL(eval_steps, "log", "", START, "0", 0, MANY, false, "evaluate every N steps; below 1 = a share of the run; 0 = only at the end"),
    CHOICE(eval_strategy, "log", "evaluation_strategy", START, "steps", eval_strategies, "when to evaluate: every eval_steps and at the end, after each epoch, or never"),
    FLAG(eval_on_start, "log", "", START, "evaluate once before the first step", false),
    REAL(eval_delay, "log", "", START, "0", 0, MANY, false, "no evaluation before this step (with eval_strategy epoch: before this epoch)"),
    REAL(save_steps, "log", "", START, "500", 0, MANY, false, "checkpoint every N steps; below 1 = a share of the run; 0 = only at the end"),
    CHOICE(save_strategy, "log", "", START, "steps", save_strategies, "when to save: every save_steps, after each epoch, after each evaluation that is the best so far; the end is always saved"),
    INT(save_total_limit, "log", "", START | VERB(CKPT), "0", 0, MANY, "checkpoints to keep; 0 = all"),
    FLAG(save_only_model, "log", "", START, "checkpoints without optimizer state: smaller, and a run cannot go on from them", false),
    INT(save_keep_every, "log", "", START | VERB(CKPT), "0", 0, MANY, "checkpoints of every N-th step are kept beyond the limit; 0 = none"),
    FLAG(save_best, "log", "", START, "the checkpoint of the best evaluation is kept beyond the limit", false),
    FLAG(load_best_model_at_end, "log", "", START, "the model that is written at the end is that of the best checkpoint", false),
    STR(metric_for_best_model, "log", "", START, "eval_loss", "METRIC", "what the best evaluation has least of, eval_loss or eval_NAME_loss, or most of: eval_acc, eval_acc_norm, eval_acc_bytes with eval_choices, eval_[NAME_]rewards/accuracies and eval_[NAME_]rewards/margins of preferences"),
    INT(early_stopping_patience, "log", "", START, "0", 0, MANY, "end the run after N evaluations in a row that are no better; 0 = never"),
    REAL(early_stopping_threshold, "log", "", START, "0", 0, 1e30, false, "by how much an evaluation must be better to count"),
    CHOICE(async_save, "log", "", START, "auto", saves, "copy a checkpoint and write it while training goes on; auto = small ones are waited for; off = no copy"),
    REAL(save_wait, "log", "", START, "2", 0, 1e6, false, "seconds a save waits for the one before it; then it is skipped"),
    REAL(save_timeout, "log", "", START, "600", 0.01, 1e6, false, "seconds after which a save is reported as hanging, and given up when the run ends"),
    INT(max_save_failures, "log", "", START, "10", 0, MANY, "saves that may fail in a row before the run stops; 0 = any number"),
    FLAG(verify_restore, "log", "", START, "after each save load it again and compare it with the state in memory, bit for bit", false),
    INT(replica_check_steps, "log", "", START, "0", 0, MANY, "compare the bits of replicas every N steps; 0 = never"),
    INT(grad_norm_steps, "log", "", START, "0", 0, MANY, "every parameter's gradient norm into grad_norms.jsonl every N steps; 0 = never"),
    { .name = "report_to", .group = "log", .aliases = "", .type = OPTION_WORDS, .at = AT(report_to, struct tr_words), .verbs = START,
      .choices = trackers, .arg = "A,B", .help = "trackers: none, all, tensorboard, wandb, trackio; files only, no network (docs/guide/trackers.md)" },
    STR(run_name, "log", "", START, NULL, "NAME", "name of the run in trackers; default: the last part of output"),
    STR(metrics_file, "log", "", START, NULL, "FILE.prom", "the newest numbers in Prometheus' text format, replaced every second"),
    INT(profile, "log", "", START, "0", 0, MANY, "profile from step N on: a timeline of each rank in OUTPUT/profile, and a table; 0 = never"),
    INT(profile_steps, "log", "", START, "2", 1, 100, "steps of a profile"),

    CHOICE(nonfinite, "fault", "", RUN, "skip", nonfinites, "a step whose loss or gradient is not finite: leave the parameters and go on, or stop"),
    INT(nonfinite_budget, "fault", "", RUN, "3", 0, MANY, "steps of a run that may be skipped before it stops"),
    REAL(spike_zscore, "fault", "", RUN, "10", 0, 1e6, false, "a loss or gradient norm so many deviations above the last steps is computed twice and reported; 0 = off"),
    FLAG(sdc_check, "fault", "", RUN, "integer sums around every reduction between ranks: a flipped bit ends the run, and its rank is named", false),
    REAL(preempt_grace, "fault", "", START, "0", 0, 1e6, false, "seconds from SIGTERM, SIGUSR1 or SIGHUP to the end, saved when that fits; 0 = as long as a save takes"),

    CHOICE(dtype, "precision", "torch_dtype", ENGINE | VERB(INIT), "float32", dtypes, "type of weights and activations in compute"),
    CHOICE(master_dtype, "precision", "", RUN, "float32", wide_dtypes, "type of the weights the optimizer updates"),
    CHOICE(grad_dtype, "precision", "", RUN, "float32", wide_dtypes, "type gradients are summed in"),
    CHOICE(moment_dtype, "precision", "", RUN, "float32", wide_dtypes, "type of the optimizer's moments"),
    CHOICE(reduce_dtype, "precision", "", RUN, "float32", wide_dtypes, "type gradients travel in between ranks"),
    CHOICE(base_dtype, "precision", "", MODEL, "dtype", base_dtypes, "type that frozen weights of linears are held in; fp8 = e4m3 with a scale for each 128"),
    FLAG(load_in_4bit, "precision", "", MODEL | VERB(CKPT), "hold frozen weights of linears in 4 bits, as bitsandbytes does", false),
    CHOICE(bnb_4bit_quant_type, "precision", "", MODEL | VERB(CKPT), "nf4", quant_types, "load_in_4bit: the 16 values of a code"),
    FLAG(bnb_4bit_use_double_quant, "precision", "", MODEL | VERB(CKPT), "load_in_4bit: round the scales of blocks to 8 bits too", false),

    CHOICE(device, "engine", "", ENGINE, "auto", devices, "where to compute"),
    INT(threads, "engine", "num_threads", ENGINE | VERB(DATA) | VERB(INIT), "0", 0, 4096, "CPU threads; 0 = all this process may use"),
    CHOICE(gemm, "engine", "", ENGINE, "auto", gemms, "matrix multiplication on the CPU"),
    CHOICE(recompute, "engine", "", RUN, "none", recomputes, "what backward computes again instead of keeping"),
    FLAG(fp8, "engine", "", RUN, "products of linear layers in 8-bit floats (e4m3); for GPUs from 8.9 on", false),
    CHOICE(fp8_gradient, "engine", "", RUN, "e4m3", fp8_gradients, "8-bit float of gradients: e5m2 has more range and less precision"),
    CHOICE(fp8_scaling, "engine", "", RUN, "current", fp8_scalings, "scales of 8-bit floats: of the numbers themselves, or of the last 16 steps"),
    { .name = "memory_budget", .group = "engine", .aliases = "", .type = OPTION_BYTES, .at = AT(memory_budget, int64_t), .verbs = RUN,
      .def = "0", .arg = "SIZE", .help = "most bytes a rank may hold (512M, 1.5GiB); 0 = what the machine has" },
    PLACE(offload_optimizer, "engine", "", RUN, "none", offloads, "where optimizer state and master weights live: on the device, in host memory, or in a file in DIR"),
    PLACE(offload_param, "engine", "", RUN, "none", offloads, "where parameters live: on the device, in host memory, or in a file in DIR (frozen ones), from where each segment's come ahead of their use; those that learn go with offload_optimizer cpu"),
    FLAG(offload_gradients, "engine", "", RUN, "gradients rest in host memory between micro-batches and until the update; with offload_optimizer cpu", false),
    CHOICE(offload_update, "engine", "", RUN, "device", update_places, "who updates what offload_optimizer, offload_param and offload_gradients keep in host memory: the device, to which it travels, or the host"),
    FLAG(offload_activations, "engine", "", RUN, "inputs of segments rest in host memory between forward and backward; for recompute block", false),
    { .name = "offload_share", .group = "engine", .aliases = "", .type = OPTION_REAL, .at = AT(offload_share, double), .verbs = RUN, .def = "1",
      .word = "auto", .lo = 0, .hi = 1, .arg = "X", .help = "share of what is offloaded that lives on the host; auto = as little as fits" },

    INT(dp, "mesh", "data_parallel_size", MESH | VERB(CHECK), "1", 1, RANKS, "data-parallel ranks; of ranks that were launched: what the other axes leave"),
    INT(zero, "mesh", "zero_stage", MESH | VERB(CHECK), "0", 0, 3, "what data-parallel ranks share: 1 optimizer, 2 + gradients, 3 + weights"),
    INT(hybrid_shard, "mesh", "data_parallel_shard_degree dp_shard_size", MESH | VERB(CHECK), "0", 0, RANKS, "ranks that hold one full copy between them; 0 = all dp ranks"),
    INT(tp, "mesh", "tensor_parallel_degree tensor_parallel_size tensor_model_parallel_size", MESH | VERB(CHECK), "1", 1, RANKS, "tensor-parallel ranks"),
    FLAG(sp, "mesh", "sequence_parallel", RUN | VERB(EVAL), "sequence parallel: norms on split rows", false),
    INT(pp, "mesh", "pipeline_parallel_degree pipeline_parallel_size pipeline_model_parallel_size", MESH | VERB(CHECK), "1", 1, RANKS, "pipeline stages"),
    STR(pp_schedule, "mesh", "pipeline_parallel_schedule", RUN, "1f1b", "gpipe|1f1b|interleaved|zb|FILE", "order of the pipeline's actions"),
    INT(pp_chunks, "mesh", "", RUN, "1", 1, RANKS, "model chunks per stage (interleaved)"),
    INT(cp, "mesh", "context_parallel_degree context_parallel_size", RUN | VERB(EVAL) | VERB(CHECK), "1", 1, RANKS, "context-parallel ranks"),
    CHOICE(cp_mode, "mesh", "", RUN | VERB(EVAL), "ring", cp_modes, "how context-parallel ranks share attention"),
    CHOICE(sync, "mesh", "", RUN, "each", syncs, "zero 2 and 3 reduce gradients after each micro-batch, or hold them whole and reduce after the last"),
    CHOICE(comm, "mesh", "", MESH | VERB(BENCH) | VERB(CHECK), "auto", comms, "what ranks talk through; auto = shm on one host, mpi on several"),
    REAL(ddp_timeout, "mesh", "comm_timeout", MESH | VERB(BENCH) | VERB(CHECK), "300", 0.1, 1e6, false, "seconds without any progress after which a wait for other ranks ends"),

    { .name = "bytes_max", .group = "bench", .aliases = "", .type = OPTION_BYTES, .at = AT(bytes_max, int64_t), .verbs = VERB(BENCH),
      .def = "256MiB", .arg = "SIZE", .help = "bench comm: largest message; bench disk: size of the file" },
    REAL(seconds, "bench", "", VERB(BENCH), "0.3", 0.001, 1e4, false, "time of one point"),
    FLAG(heap, "bench", "", VERB(BENCH), "bench comm: buffers from the heap, not from the ranks' shared arenas", false),

    STR(system, "generate", "system_prompt", VERB(CHAT), NULL, "TEXT", "system message"),
    STR(prompt, "generate", "", VERB(GENERATE) | VERB(CTL), NULL, "TEXT", "text to continue"),
    STR(prompts, "generate", "", VERB(GENERATE), NULL, "FILE", "texts to continue, per_device_eval_batch_size at a time: one on each line, or records with a prompt or messages in a .jsonl file"),
    STR(sample_prompts, "generate", "", START, NULL, "FILE", "texts that the model continues at each evaluation, into events.jsonl; a file as for generate --prompts"),
    INT(max_new_tokens, "generate", "", RUN | VERB(GENERATE) | VERB(CHAT) | VERB(CTL), "128", 1, 1 << 24, "tokens to write"),
    REAL(temperature, "generate", "", RUN | VERB(GENERATE) | VERB(CHAT), "0", 0, 100, false, "0 = greedy"),
    INT(top_k, "generate", "", RUN | VERB(GENERATE) | VERB(CHAT), "0", 0, 1 << 24, "choose among the k likeliest; 0 = all"),
    REAL(top_p, "generate", "", RUN | VERB(GENERATE) | VERB(CHAT), "1.0", 1e-9, 1, false, "choose among the likeliest that hold this probability"),
    REAL(repetition_penalty, "generate", "", RUN | VERB(GENERATE) | VERB(CHAT), "1.0", 0.01, 100, false, "above 1: tokens seen before are less likely"),
};

const struct old_option tr_rewrites[] = {
    { "bf16", "dtype", "bfloat16", NULL, false, NULL },
    { "fp16", "dtype", "float16", NULL, false, NULL },
    { "gradient_checkpointing", "recompute", "block", "none", false, NULL },
    { "use_cpu", "device", "cpu", NULL, false, NULL },
    { "use_peft", "finetuning_type", "lora", NULL, false, NULL },
    { "lora_target_linear", "lora_target_modules", "all-linear", NULL, false, NULL },
    { "warmup_ratio", "warmup_steps", NULL, NULL, true, "an old name: write warmup_steps with a share below 1" },
    { "overwrite_output_dir", NULL, NULL, NULL, false, "ignored: an old output is never overwritten; resume_from_checkpoint goes on with it" },
    { NULL, NULL, NULL, NULL, false, NULL },
};
static const struct {
    const char *names, *hint;
} hints[] = {
    { "batch_size per_gpu_train_batch_size", "write per_device_train_batch_size (rows of one device) or train_batch_size (of all)" },
    { "dataset datasets dataset_name dataset_path train_file train_data", "write data: .txt or .jsonl files, a directory or a glob" },
    { "eval_dataset validation_file test_file", "write eval_data" },
    { "do_eval", "write eval_strategy and eval_data" },
    { "logging_strategy", "write logging_steps N" },
    { "deepspeed fsdp fsdp_config", "write zero 0 to 3, and dp, tp, pp, cp (docs/guide/ranks.md); --config FILE takes a DeepSpeed file" },
    { "devices strategy precision accelerator accumulate_grad_batches max_epochs limit_train_batches gradient_clip_val", "a name of Lightning: launch --nproc-per-node, zero, dtype, device, gradient_accumulation_steps, num_train_epochs, max_steps, max_grad_norm" },
    { "num_nodes hostfile include exclude master_addr master_port", "it goes before the verb: trireme launch --nnodes N --node-rank R --rdzv HOST:PORT train ..." },
    { "nproc nproc_per_node num_processes nnodes max_restarts", "it goes before the verb: trireme launch --nproc-per-node N train ..." },
    { "adapter_name_or_path lora_model_dir", "write model ADAPTER_DIR: the adapter there is continued; its base is what adapter_config.json says, or model_base" },
    { "lora_fan_in_fan_out fan_in_fan_out", "leave it out: the model says it" },
    { "load_in_8bit", "a base is held in 8 bits by base_dtype fp8, in 4 by load_in_4bit; write one of these" },
    { "bnb_4bit_compute_dtype", "write dtype: all of a run computes in one type" },
    { "auto_find_batch_size", "trireme plan says what fits" },
    { "cases", "published results are predicted by bench_forecast --cases FILE.csv, a program of the build tree" },
    { "disable_tqdm", "write quiet" },
    { "local_rank", "leave it out: the environment says it (LOCAL_RANK)" },
    { "push_to_hub hub_model_id", "leave it out: hf upload NAME OUTPUT does it" },
    { "logging_dir", "leave it out: TensorBoard's files are in OUTPUT/runs (report_to tensorboard)" },
    { "do_train logging_first_step save_safetensors remove_unused_columns dataloader_num_workers dataloader_pin_memory tf32 torch_compile attn_implementation ddp_find_unused_parameters", "leave it out: there is nothing to choose" },
};
/* clang-format on */

const char *const tr_groups[] = { "run",   "model",     "data",   "train", "optim", "preference", "adapter", "log",
                                  "fault", "precision", "engine", "mesh",  "bench", "generate",   NULL };

_Static_assert(TR_COUNT_OF(tr_options) <= N_OPTIONS_MAX, "raise N_OPTIONS_MAX");
_Static_assert(TR_VERB_COUNT <= 32, "verbs are bits of an unsigned");

size_t tr_option_count(void)
{
    return TR_COUNT_OF(tr_options);
}

bool tr_option_is_for(const struct option *opt, enum tr_verb verb)
{
    return (opt->verbs >> verb & 1u) != 0;
}

bool tr_word_at(const char *list, size_t i, char *buf, size_t n_buf)
{
    for (;; i--) {
        list += strspn(list, " ");
        size_t n = strcspn(list, " ");
        if (n == 0 || n >= n_buf)
            return false;
        if (i == 0) {
            memcpy(buf, list, n);
            buf[n] = '\0';
            return true;
        }
        list += n;
    }
}

static bool has_key(const struct option *opt, const char *key)
{
    if (strcmp(opt->name, key) == 0)
        return true;
    size_t n_group = strlen(opt->group);
    const char *tail = strncmp(key, opt->group, n_group) == 0 && key[n_group] == '.' ? key + n_group + 1 : NULL;
    if (tail != NULL && strcmp(opt->name, tail) == 0)
        return true;
    char word[64];
    for (size_t i = 0; tr_word_at(opt->aliases, i, word, sizeof word); i++)
        if (strcmp(word, key) == 0 || (tail != NULL && strcmp(word, tail) == 0))
            return true;
    return false;
}

const struct option *tr_option_find(enum tr_verb verb, const char *key)
{
    for (size_t i = 0; i < tr_option_count(); i++)
        if (tr_option_is_for(&tr_options[i], verb) && has_key(&tr_options[i], key))
            return &tr_options[i];
    return NULL;
}

const struct option *tr_option_find_any(const char *key)
{
    for (size_t i = 0; i < tr_option_count(); i++)
        if (has_key(&tr_options[i], key))
            return &tr_options[i];
    return NULL;
}

const char *tr_hint_find(const char *key)
{
    char word[64];
    for (size_t h = 0; h < TR_COUNT_OF(hints); h++)
        for (size_t i = 0; tr_word_at(hints[h].names, i, word, sizeof word); i++)
            if (strcmp(word, key) == 0)
                return hints[h].hint;
    return NULL;
}

const struct old_option *tr_rewrite_find(const char *key)
{
    for (const struct old_option *r = tr_rewrites; r->name != NULL; r++) {
        if (strcmp(r->name, key) == 0)
            return r;
        const struct option *opt = r->target != NULL ? tr_option_find_any(r->target) : NULL;
        size_t n_group = opt != NULL ? strlen(opt->group) : 0;
        if (n_group != 0 && strncmp(key, opt->group, n_group) == 0 && key[n_group] == '.' &&
            strcmp(r->name, key + n_group + 1) == 0)
            return r;
    }
    return NULL;
}
