/* check.c - what must hold between options. Every check adds its error and goes on, so that all are reported at once.
 *
 * Invariant after success: per_device_train_batch_size * gradient_accumulation_steps * dp == train_batch_size.
 */
#include "config/config_impl.h"

#include <math.h>

static size_t row_of(const struct loader *l, const char *name)
{
    const struct option *opt = tr_option_find(l->c->pub.verb, name);
    TR_BUG_ON(opt == NULL);
    return (size_t)(opt - tr_options);
}

bool tr_loader_is_given(const struct loader *l, const char *name)
{
    return l->c->origins[row_of(l, name)].level > LEVEL_DERIVED;
}

static void mark_derived(struct loader *l, const char *name, const char *how)
{
    l->c->origins[row_of(l, name)] = (struct origin){ LEVEL_DERIVED, how };
}

/* Reports one rule of what is legal, if the options break it; false: they do. */
static bool check_legal(struct loader *l, enum tr_legal_id id)
{
    struct tr_legal_query q;
    struct tr_str why = { 0 };
    tr_legal_query_of(&l->c->pub, &q);
    bool holds = tr_legal_rule(&q, id, &why);
    if (!holds)
        tr_loader_error(l, "%s", tr_str_ok(&why) ? why.p : "out of memory");
    tr_str_release(&why);
    return holds;
}

/* Micro-batch when only the global batch is known: the largest divisor up to the default. */
static int64_t largest_divisor(int64_t n, int64_t up_to)
{
    int64_t d = tr_min64(n, up_to);
    while (n % d != 0)
        d--;
    return d;
}

static void check_batch(struct loader *l)
{
    struct tr_config *c = &l->c->pub;
    bool has_rows = tr_loader_is_given(l, "per_device_train_batch_size"),
         has_steps = tr_loader_is_given(l, "gradient_accumulation_steps");
    int64_t *rows = &c->per_device_train_batch_size, *steps = &c->gradient_accumulation_steps;
    int64_t total = c->train_batch_size;
    if (*rows < 0 && (total == 0 || has_steps)) {
        *rows = 1;
        tr_loader_error(l, "per_device_train_batch_size auto divides the rows of a step: give train_batch_size, and "
                           "leave gradient_accumulation_steps out");
        return;
    }
    c->finds_batch = *rows < 0;
    if (c->finds_batch)
        *rows = tr_max64(1, total / c->dp);
    if (total == 0) { /* each factor is at most 1e6, so the product fits */
        c->train_batch_size = *rows * *steps * c->dp;
        mark_derived(l, "train_batch_size", "rows x accumulation x dp");
        return;
    }
    int64_t share = total / c->dp;
    if (!check_legal(l, TR_LEGAL_BATCH_OF_DP))
        return;
    if (has_rows && has_steps) {
        (void)check_legal(l, TR_LEGAL_BATCH);
    } else if (has_steps && share % *steps != 0) {
        tr_loader_error(l,
                        "train_batch_size %" PRId64 " / dp %" PRId64
                        " is not a multiple of gradient_accumulation_steps %" PRId64,
                        total, c->dp, *steps);
    } else if (has_rows && share % *rows != 0) {
        tr_loader_error(l,
                        "train_batch_size %" PRId64 " / dp %" PRId64
                        " is not a multiple of per_device_train_batch_size %" PRId64 "; try %" PRId64,
                        total, c->dp, *rows, largest_divisor(share, *rows));
    } else if (has_steps) {
        *rows = share / *steps;
        mark_derived(l, "per_device_train_batch_size", "train_batch_size / accumulation / dp");
    } else {
        if (!has_rows) {
            *rows = largest_divisor(share, *rows);
            mark_derived(l, "per_device_train_batch_size", ROWS_THAT_DIVIDE);
        }
        *steps = share / *rows;
        mark_derived(l, "gradient_accumulation_steps", "train_batch_size / rows / dp");
    }
}

/* A number below 1 is a share of all steps, else it is a count of steps: 2.5 is a mistake. */
static void check_step_count(struct loader *l, const char *name, double x)
{
    if (x >= 1 && x != floor(x))
        tr_loader_error(l, "%s %g is neither a whole number of steps nor a share below 1", name, x);
}

/* A dump of a configuration gives every option; one that has its default asks for nothing. */
bool tr_loader_is_default(struct loader *l, const char *name)
{
    const struct option *opt = &tr_options[row_of(l, name)];
    struct tr_str value = { 0 }, plain = { 0 };
    struct tr_config unset = { 0 };
    if (opt->def != NULL && tr_value_parse(l, opt, opt->def, &unset) != TR_OK)
        TR_BUG_ON(!l->is_nomem);
    tr_value_print(&l->c->pub, opt, true, &value);
    tr_value_print(&unset, opt, true, &plain);
    bool is_same = tr_str_ok(&value) && tr_str_ok(&plain) && strcmp(value.p, plain.p) == 0;
    tr_str_release(&value);
    tr_str_release(&plain);
    return is_same;
}

bool tr_loader_is_chosen(struct loader *l, const char *name)
{
    return l->c->origins[row_of(l, name)].level > LEVEL_RUN && !tr_loader_is_default(l, name);
}

#define ON(kind) (1u << TR_LR_##kind)
/* The schedules that read an option. */
static const struct {
    const char *name;
    unsigned schedules;
} schedule_options[] = {
    { "decay_steps", ON(WSD) | ON(STABLE_DECAY) },
    { "decay_type", ON(WSD) | ON(STABLE_DECAY) },
    { "warmup_steps", ~ON(CONSTANT) },
    { "warmup_type", ~ON(CONSTANT) },
    { "min_lr_ratio", ~(ON(CONSTANT) | ON(CONSTANT_WITH_WARMUP) | ON(POLYNOMIAL) | ON(INVERSE_SQRT)) },
    { "lr_num_cycles", ON(COSINE) | ON(COSINE_AHEAD) | ON(RESTARTS) | ON(WSD) | ON(STABLE_DECAY) },
    { "lr_end", ON(POLYNOMIAL) },
    { "lr_power", ON(POLYNOMIAL) },
    { "lr_timescale", ON(INVERSE_SQRT) },
};
#undef ON

/* The options that ask for an evaluation, and the rule that the best checkpoint is one of those that are evaluated. */
static void check_evaluation(struct loader *l)
{
    const struct tr_config *c = &l->c->pub;
    char steps[48];
    (void)tr_format(steps, sizeof steps, "eval_steps %g", c->eval_steps);
    const struct {
        const char *name;
        bool is_on, is_when; /* is_when: of any evaluation; else of one with a loss */
    } asks[] = {
        { steps, c->eval_steps > 0, true },
        { "eval_strategy epoch", c->eval_strategy == TR_WHEN_EPOCH, true },
        { "eval_on_start", c->eval_on_start, true },
        { "save_best", c->save_best, false },
        { "save_strategy best", c->save_strategy == TR_WHEN_BEST, false },
        { "load_best_model_at_end", c->load_best_model_at_end, false },
        { "early_stopping_patience", c->early_stopping_patience > 0, false },
    };
    const char *set[TR_EVAL_SETS_MAX];
    size_t n_sets;
    struct tr_best_rule best = { 0 };
    if (tr_config_eval_sets(c, set, &n_sets, &best) != TR_OK) {
        tr_loader_error(l, "%s", tr_error_text());
        tr_error_clear();
    }
    bool has_loss = c->eval_data.n > 0 || c->eval_split > 0, has_any = has_loss || c->sample_prompts || c->eval_choices;
    bool of_choices = best.of >= TR_BEST_ACC && best.of <= TR_BEST_ACC_BYTES;
    for (size_t i = 0; i < TR_COUNT_OF(asks); i++) {
        bool has_data = asks[i].is_when ? has_any : has_loss || of_choices;
        if (asks[i].is_on && (!has_data || (c->eval_strategy == TR_WHEN_NEVER && i > 0)))
            tr_loader_error(l, "%s needs %s", asks[i].name,
                            has_data ? "an evaluation, and eval_strategy is no" : "eval_data or eval_split");
    }
    if (c->save_only_model && c->verify_restore)
        tr_loader_error(
            l, "verify_restore compares what a restart loads, and save_only_model saves nothing that a run can go on "
               "from; leave one of them out");
    if (c->save_only_model && c->verb == TR_VERB_TRAIN)
        tr_loader_notice(l, "save_only_model: a run that is stopped or killed cannot be resumed");
    check_step_count(l, "logging_steps", c->logging_steps);
    check_step_count(l, "eval_steps", c->eval_steps);
    check_step_count(l, "save_steps", c->save_steps);
    bool is_by_steps = c->eval_strategy == TR_WHEN_STEPS && c->save_strategy == TR_WHEN_STEPS;
    double ratio = is_by_steps && c->eval_steps > 0 ? c->save_steps / c->eval_steps : 0;
    if (c->load_best_model_at_end && c->save_strategy != TR_WHEN_BEST &&
        (c->save_strategy != c->eval_strategy || (is_by_steps && (ratio < 1 || fabs(ratio - round(ratio)) > 1e-9))))
        tr_loader_error(
            l,
            "load_best_model_at_end needs checkpoints that are evaluated: save_strategy %s and eval_strategy "
            "%s with save_steps %g, eval_steps %g; write save_strategy best, or save_steps as a multiple of "
            "eval_steps",
            tr_config_word("save_strategy", (int)c->save_strategy),
            tr_config_word("eval_strategy", (int)c->eval_strategy), c->save_steps, c->eval_steps);
}

static void check_schedule(struct loader *l)
{
    const struct tr_config *c = &l->c->pub;
    enum tr_lr_schedule kind = c->lr_scheduler_type;
    const char *word = tr_config_word("lr_scheduler_type", (int)kind);
    if (c->max_steps == 0)
        tr_loader_error(l, "max_steps 0: give a positive number, or -1 for num_train_epochs");
    check_step_count(l, "warmup_steps", c->warmup_steps);
    check_step_count(l, "decay_steps", c->decay_steps);
    if ((kind == TR_LR_WSD || kind == TR_LR_STABLE_DECAY) && c->max_steps > 0) {
        int64_t warmup = tr_config_steps(c->warmup_steps, c->max_steps);
        int64_t decay = tr_config_steps(c->decay_steps, c->max_steps);
        if (warmup > c->max_steps - tr_min64(decay, c->max_steps))
            tr_loader_error(l, "warmup_steps %" PRId64 " + decay_steps %" PRId64 " is more than max_steps %" PRId64,
                            warmup, decay, c->max_steps);
    }
    if (kind == TR_LR_POLYNOMIAL && c->lr_end >= c->learning_rate)
        tr_loader_error(l, "lr_end %g must be below learning_rate %g with lr_scheduler_type polynomial", c->lr_end,
                        c->learning_rate);
    for (size_t i = 0; i < TR_COUNT_OF(schedule_options); i++) {
        const char *name = schedule_options[i].name;
        if (!(schedule_options[i].schedules >> kind & 1) && tr_loader_is_given(l, name) &&
            !tr_loader_is_default(l, name))
            tr_loader_notice(
                l, "%s has no effect with lr_scheduler_type %s%s", name, word,
                kind == TR_LR_CONSTANT && strcmp(name, "warmup_steps") == 0 ? "; constant_with_warmup has one" : "");
    }
}

/* Options that only a new adapter has; model_base is for one that is read. */
static const char *const adapter_options[] = {
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
    "exclude_modules",
    "use_rslora",
    "use_dora",
    "init_lora_weights",
    "loraplus_lr_ratio",
    "lora_modules_to_save",
    "lora_bias",
    "lora_b_bias",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layers_pattern",
    "trainable_token_indices",
    "ensure_weight_tying",
    "peft_rules",
};

/* An option of adapters asks for one, unless finetuning_type says otherwise. */
static void check_adapter(struct loader *l)
{
    struct tr_config *c = &l->c->pub;
    const char *asked = NULL;
    bool is_said = tr_loader_is_given(l, "finetuning_type");
    for (size_t i = 0; i < TR_COUNT_OF(adapter_options) && !asked; i++)
        if (tr_loader_is_given(l, adapter_options[i]) && !(is_said && tr_loader_is_default(l, adapter_options[i])))
            asked = adapter_options[i];
    if (asked && c->finetuning_type != TR_TUNING_LORA && is_said)
        tr_loader_error(l, "%s has no effect with finetuning_type %s; leave one of them out", asked,
                        tr_config_word("finetuning_type", (int)c->finetuning_type));
    if (asked && !is_said) {
        c->finetuning_type = TR_TUNING_LORA;
        mark_derived(l, "finetuning_type", "an option of adapters is given");
    }
    size_t n_patterns = c->trainable.n + c->frozen.n;
    if (c->finetuning_type == TR_TUNING_LORA && n_patterns > 0)
        tr_loader_error(l, "trainable and frozen do not go with finetuning_type lora: the base is frozen; "
                           "lora_modules_to_save names what else is trained");
    if (c->finetuning_type == TR_TUNING_FREEZE && n_patterns == 0)
        tr_loader_error(l, "finetuning_type freeze needs trainable or frozen: patterns of the parameters that learn "
                           "or rest");
}

static void check_base(struct loader *l)
{
    const struct tr_config *c = &l->c->pub;
    if (c->load_in_4bit && c->base_dtype)
        tr_loader_error(l, "load_in_4bit and base_dtype fp8 are two types of one base; give one of them");
}

/* TRL's learning rate for pairs; an adapter takes ten times as much. */
static void choose_preference_rate(struct loader *l)
{
    struct tr_config *c = &l->c->pub;
    if (c->task == TR_TASK_SFT || tr_loader_is_given(l, "learning_rate"))
        return;
    c->learning_rate = c->finetuning_type == TR_TUNING_LORA ? 1e-5 : 1e-6;
    mark_derived(l, "learning_rate", "that of preference training");
}

/* A schedule that is not used is not opened; its name is checked all the same. */
static void check_schedule_name(struct loader *l)
{
    static const char *const known[] = { "gpipe", "1f1b", "interleaved", "zb" };
    const struct tr_config *c = &l->c->pub;
    if (!TR_ROW(known, c->pp_schedule) && !tr_file_exists(c->pp_schedule))
        tr_loader_error(l, "pp_schedule \"%s\" is not gpipe, 1f1b, interleaved, zb or a file that exists",
                        c->pp_schedule);
}

/* Gradients that ranks have parts of are summed after the last backward, when they would be gone. */
static void check_offload(struct loader *l)
{
    const struct tr_config *c = &l->c->pub;
    const char *why = c->offload_optimizer != TR_OFFLOAD_CPU      ? "needs offload_optimizer cpu"
                      : c->zero > 0 && c->dp > 1                  ? "needs zero 0"
                      : c->tp * c->cp > 1                         ? "needs tp 1 and cp 1"
                      : c->reproducible == TR_REPRODUCIBLE_LAYOUT ? "does not go with reproducible layout"
                                                                  : NULL;
    if (c->offload_optimizer == TR_OFFLOAD_DISK && c->offload_param == TR_OFFLOAD_DISK &&
        strcmp(c->offload_optimizer_dir, c->offload_param_dir) != 0)
        tr_loader_error(l,
                        "offload_optimizer nvme:%s and offload_param nvme:%s: a rank has one file; name one directory",
                        c->offload_optimizer_dir, c->offload_param_dir);
    if (c->offload_gradients && why && !c->search && !c->table)
        tr_loader_error(l, "offload_gradients %s", why);
    if (c->offload_update == TR_UPDATE_ON_HOST && (!c->offload_gradients || c->offload_param != TR_OFFLOAD_CPU))
        tr_loader_error(l, "offload_update cpu: the host updates what it holds all of; add --offload_optimizer cpu "
                           "--offload_param cpu --offload_gradients");
}

static void check_mesh(struct loader *l)
{
    (void)check_legal(l, TR_LEGAL_HYBRID_SHARD);
    (void)check_legal(l, TR_LEGAL_CHUNKS_SCHEDULE);
    (void)check_legal(l, TR_LEGAL_OFFLOAD_ZERO);
    check_schedule_name(l);
    check_offload(l);
    tr_loader_idle(l);
}

static void require(struct loader *l, bool is_there, const char *name, const char *what)
{
    if (!is_there && !l->is_file_cut)
        tr_loader_error(l, "--%s is required: %s", name, what);
}

static void check_required(struct loader *l)
{
    const struct tr_config *c = &l->c->pub;
    switch (c->verb) {
    case TR_VERB_TRAIN:
        require(l, c->model != NULL, "model", "an HF model directory");
        require(l, c->data.n > 0, "data", "training text");
        require(l, c->output != NULL, "output", "a directory for the trained model");
        break;
    case TR_VERB_INIT:
        require(l, c->model_config != NULL, "config", "the model's config.json");
        require(l, c->output != NULL, "output", "a directory for the new model");
        break;
    case TR_VERB_EVAL:
        require(l, c->data.n > 0 || c->eval_data.n > 0 || c->eval_choices, "data", "text to evaluate on, or --choices");
        require(l, c->model != NULL, "model", "an HF model directory");
        break;
    case TR_VERB_GENERATE:
    case TR_VERB_CHAT:
        require(l, c->model != NULL, "model", "an HF model directory");
        break;
    case TR_VERB_PLAN: /* lists and comparisons need no model */
        require(l, c->model != NULL || c->machine != NULL || c->legal || c->compare != NULL, "model",
                "an HF model directory");
        break;
    default:
        break;
    }
}

/* dp, if not given: the ranks that were started (WORLD_SIZE, as torchrun sets it) divided by the other axes. */
static void default_dp(struct loader *l)
{
    struct tr_config *c = &l->c->pub;
    const char *text = l->world_size;
    int64_t world = 1, rest = c->tp * c->pp * c->cp;
    if (!tr_option_find(c->verb, "dp") || tr_config_is_set(c, "dp") || !text ||
        tr_parse_int(text, 1, 1 << 20, &world) != TR_OK || world % rest != 0)
        return;
    c->dp = world / rest;
    mark_derived(l, "dp", "WORLD_SIZE / (tp x pp x cp)");
}

void tr_loader_check(struct loader *l)
{
    struct tr_config *c = &l->c->pub;
    default_dp(l);
    check_required(l);
    if (c->data_seed < 0)
        c->data_seed = c->seed;
    bool is_resume; /* HF files write true for auto */
    if (tr_bool_parse(c->resume_from_checkpoint, &is_resume))
        c->resume_from_checkpoint = is_resume ? "auto" : "none";
    check_base(l);
    if (tr_option_find(c->verb, "loss_type") != NULL)
        tr_loader_preference(l);
    bool has_steps = tr_option_find(c->verb, "train_batch_size") != NULL;
    if (!has_steps && tr_option_find(c->verb, "tp") != NULL)
        check_mesh(l);
    if (!has_steps)
        return;
    check_batch(l);
    check_schedule(l);
    check_adapter(l);
    choose_preference_rate(l);
    check_mesh(l);
    check_evaluation(l);
    if (c->eval_data.n > 0 && c->eval_split > 0)
        tr_loader_error(l, "eval_split %g holds rows out that eval_data leaves unused; give one of them",
                        c->eval_split);
    bool is_sequential = c->train_sampling_strategy == TR_SAMPLING_SEQUENTIAL;
    if (is_sequential && c->packing == TR_PACKING_BESTFIT)
        tr_loader_error(l, "packing bestfit orders records by their length, and train_sampling_strategy is sequential; "
                           "use packing none or stream");
    if (is_sequential && c->eval_split > 0)
        tr_loader_error(l,
                        "eval_split draws rows at random, and train_sampling_strategy is sequential; name other data "
                        "with eval_data");
    if (is_sequential && c->streaming == TR_STREAMING_ON)
        tr_loader_error(l,
                        "streaming true reads files in turns, and train_sampling_strategy is sequential; use streaming "
                        "false");
    if (c->streaming == TR_STREAMING_ON && c->verb == TR_VERB_TRAIN &&
        (c->max_steps < 1 || c->eval_strategy == TR_WHEN_EPOCH || c->save_strategy == TR_WHEN_EPOCH))
        tr_loader_error(l,
                        "streaming true does not know how long an epoch is: give max_steps, and strategies by steps");
    if (c->max_steps > 0 && c->profile > c->max_steps)
        tr_loader_error(l, "profile %" PRId64 " is after the last of max_steps %" PRId64, c->profile, c->max_steps);
}

int64_t tr_config_steps(double steps_or_share, int64_t total_steps)
{
    if (steps_or_share >= 1)
        return (int64_t)steps_or_share;
    return (int64_t)ceil(steps_or_share * (double)total_steps);
}
