/* idle.c - options without effect: accepted, because one file may serve many runs, and said once. A row for each, with
 * the reason; the value is checked like any other. */
#include "config/config_impl.h"

#include <string.h>

static bool has_one_data_rank(const struct tr_config *c)
{
    return c->dp == 1;
}

static bool is_alone(const struct tr_config *c)
{
    return c->dp * c->tp * c->pp * c->cp == 1;
}

static bool has_no_shards(const struct tr_config *c)
{
    return c->zero == 0;
}

static bool reduces_once_anyway(const struct tr_config *c)
{
    return c->dp == 1 || c->zero < 2 || c->gradient_accumulation_steps == 1;
}

static bool has_one_stage(const struct tr_config *c)
{
    return c->pp == 1;
}

static bool has_whole_rows(const struct tr_config *c)
{
    return c->cp == 1;
}

static bool has_whole_matrices(const struct tr_config *c)
{
    return c->tp == 1;
}

/* Parameters that learn go to the host with their optimizer state. */
static bool keeps_all_params(const struct tr_config *c)
{
    return c->finetuning_type == TR_TUNING_FULL && c->trainable.n + c->frozen.n == 0 &&
           (c->offload_optimizer != TR_OFFLOAD_CPU || c->offload_param != TR_OFFLOAD_CPU || (c->zero > 0 && c->dp > 1));
}

/* Searches and tables are not asked at all. */
static bool plans_this_layout(TR_UNUSED const struct tr_config *c)
{
    return true;
}

static bool is_a_new_run(const struct tr_config *c)
{
    return strcmp(c->resume_from_checkpoint, "none") == 0;
}

static bool offloads_nothing(const struct tr_config *c)
{
    return c->offload_optimizer == TR_OFFLOAD_NONE && c->offload_param == TR_OFFLOAD_NONE;
}

static bool keeps_activations(const struct tr_config *c)
{
    return c->recompute != TR_RECOMPUTE_BLOCK && c->recompute != TR_RECOMPUTE_AUTO;
}

static bool is_no_sgd(const struct tr_config *c)
{
    return c->optim != TR_OPTIM_SGD;
}

static bool is_no_muon(const struct tr_config *c)
{
    return c->optim != TR_OPTIM_MUON;
}

static bool is_no_adafactor(const struct tr_config *c)
{
    return c->optim != TR_OPTIM_ADAFACTOR;
}

static bool has_no_averages(const struct tr_config *c)
{
    return c->optim == TR_OPTIM_SGD || c->optim == TR_OPTIM_ADAFACTOR;
}

static bool has_no_epsilon(const struct tr_config *c)
{
    return has_no_averages(c) || c->optim == TR_OPTIM_LION || c->optim == TR_OPTIM_LION8;
}

static bool has_no_warmup(const struct tr_config *c)
{
    return !(c->warmup_steps > 0);
}

static bool is_whole_precision(const struct tr_config *c)
{
    return !c->load_in_4bit;
}

static bool has_no_profile(const struct tr_config *c)
{
    return c->profile == 0;
}

static bool reports_nowhere(const struct tr_config *c)
{
    return c->report_to.n == 0 || (c->report_to.n == 1 && strcmp(c->report_to.item[0], "none") == 0);
}

/* Else the verb writes texts, or evaluates, by itself. */
static bool is_of_a_run(const struct tr_config *c)
{
    return tr_option_find(c->verb, "save_steps") != NULL;
}

static bool writes_no_samples(const struct tr_config *c)
{
    return is_of_a_run(c) && !c->sample_prompts;
}

static bool saves_no_modules(const struct tr_config *c)
{
    return is_of_a_run(c) && c->lora_modules_to_save.n == 0;
}

static bool has_no_eval_rows(const struct tr_config *c)
{
    return is_of_a_run(c) && c->eval_data.n == 0;
}

static bool never_evaluates(const struct tr_config *c)
{
    return c->eval_strategy == TR_WHEN_NEVER ||
           (c->eval_data.n == 0 && !(c->eval_split > 0) && !c->sample_prompts && !c->eval_choices);
}

static bool has_no_patience(const struct tr_config *c)
{
    return c->early_stopping_patience == 0;
}

static bool keeps_all(const struct tr_config *c)
{
    return c->save_total_limit == 0;
}

static bool stops_at_once(const struct tr_config *c)
{
    return c->nonfinite == TR_NONFINITE_STOP;
}

static bool fetches_nothing(const struct tr_config *c)
{
    const struct tr_data_list *const lists[] = { &c->data, &c->eval_data };
    for (size_t k = 0; k < TR_COUNT_OF(lists); k++)
        for (size_t i = 0; i < lists[k]->n; i++)
            if (strstr(lists[k]->item[i].path, "://"))
                return false;
    return true;
}

static const struct {
    const char *name;
    bool (*is_idle)(const struct tr_config *c);
    const char *where;
    bool is_of_optim; /* with the optimizer, whose name leads */
} rows[] = {
    { "zero", has_one_data_rank, "with dp 1" },
    { "hybrid_shard", has_no_shards, "with zero 0" },
    { "sync", reduces_once_anyway, "with one data-parallel rank, zero below 2 or one micro-batch" },
    { "reduce_dtype", has_one_data_rank, "with dp 1" },
    { "replica_check_steps", has_one_data_rank, "with dp 1: there is no replica to compare with" },
    { "sdc_check", is_alone, "with one rank: nothing is summed between ranks" },
    { "comm", is_alone, "with one rank" },
    { "pp_schedule", has_one_stage, "with pp 1" },
    { "pp_chunks", has_one_stage, "with pp 1" },
    { "cp_mode", has_whole_rows, "with cp 1" },
    { "sp", has_whole_matrices, "with tp 1" },
    { "offload_param", keeps_all_params,
      "with finetuning_type full unless offload_optimizer is cpu and zero 0: parameters that learn go with their "
      "state" },
    { "offload_share", offloads_nothing, "with offload_optimizer none and offload_param none" },
    { "offload_activations", keeps_activations, "with recompute none or op; add --recompute block" },
    { "gpus", plans_this_layout,
      "with a layout that is given: add --search for the best one, or give yours by --dp, --tp, --pp" },
    { "allow_change", is_a_new_run, "with a new run; it is about a resume" },
    { "momentum", is_no_sgd, "; it is of sgd", true },
    { "muon_momentum", is_no_muon, "; it is of muon", true },
    { "muon_adjust_lr_fn", is_no_muon, "; it is of muon", true },
    { "adafactor_relative_step", is_no_adafactor, "; it is of adafactor", true },
    { "adafactor_scale_parameter", is_no_adafactor, "; it is of adafactor", true },
    { "adam_beta1", has_no_averages, "", true },
    { "adam_beta2", has_no_averages, "", true },
    { "adam_epsilon", has_no_epsilon, "", true },
    { "warmup_type", has_no_warmup, "with warmup_steps 0" },
    { "bnb_4bit_quant_type", is_whole_precision, "without load_in_4bit" },
    { "bnb_4bit_use_double_quant", is_whole_precision, "without load_in_4bit" },
    { "untie", saves_no_modules, "without lora_modules_to_save" },
    { "profile_steps", has_no_profile, "with profile 0; --profile N is the first step of one" },
    { "run_name", reports_nowhere, "with report_to none" },
    { "max_new_tokens", writes_no_samples, "without sample_prompts" },
    { "temperature", writes_no_samples, "without sample_prompts" },
    { "top_k", writes_no_samples, "without sample_prompts" },
    { "top_p", writes_no_samples, "without sample_prompts" },
    { "repetition_penalty", writes_no_samples, "without sample_prompts" },
    { "max_eval_samples", has_no_eval_rows, "without eval_data" },
    { "eval_delay", never_evaluates, "in a run that never evaluates" },
    { "eval_data", never_evaluates, "with eval_strategy no" },
    { "eval_choices", never_evaluates, "with eval_strategy no" },
    { "sample_prompts", never_evaluates, "with eval_strategy no" },
    { "metric_for_best_model", never_evaluates, "in a run that never evaluates" },
    { "early_stopping_threshold", has_no_patience, "with early_stopping_patience 0" },
    { "save_keep_every", keeps_all, "with save_total_limit 0: every checkpoint is kept" },
    { "nonfinite_budget", stops_at_once, "with nonfinite stop" },
    { "fetch_command", fetches_nothing,
      "with data that is on this machine; it is for addresses like s3://bucket/file" },
};

/* A search of layouts chooses the sizes of axes itself. */
void tr_loader_idle(struct loader *l)
{
    const struct tr_config *c = &l->c->pub;
    for (size_t i = 0; i < TR_COUNT_OF(rows) && !c->search && !c->table; i++) {
        const char *name = rows[i].name;
        if (tr_option_find(c->verb, name) && tr_loader_is_chosen(l, name) && rows[i].is_idle(c))
            tr_loader_notice(l, "%s has no effect %s%s%s", name, rows[i].is_of_optim ? "with optim " : "",
                             rows[i].is_of_optim ? tr_config_word("optim", (int)c->optim) : "", rows[i].where);
    }
}
