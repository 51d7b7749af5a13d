/* remedy.c - options with which a run fits the memory of a host that it does not fit now.
 *
 * fit.c prices layouts on a machine that is described; a run that is about to start has none, so here every change is
 * compiled as the run would be: what is printed fits, byte for byte. Families of changes are tried in the order of what
 * they cost a step, and of each family the smallest change that fits is taken. Rejected: the forecast's bytes, which
 * are those of a GPU with its libraries.
 */
#include "build/build.h"
#include "plan/plan.h"

enum { HALVES = 24, MOST_MICRO = 1024 }; /* micro-batches beyond are no remedy, and long to compile */

/* The k-th change of a family, from 0 on, larger each time; false: there is none. Writes its options to `out`. */
typedef bool change_fn(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out);

static bool shard(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (run->dp < 2 || s->cfg->zero + k >= 3)
        return false;
    run->zero = s->cfg->zero + k + 1;
    tr_str_addf(out, " --zero %" PRId64, run->zero);
    return true;
}

static bool save_straight(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (k > 0 || s->cfg->async_save == TR_SAVE_STRAIGHT)
        return false;
    run->async_save = TR_SAVE_STRAIGHT;
    tr_str_addf(out, " --async_save off");
    return true;
}

static bool recompute(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    static const enum tr_recompute ladder[] = { TR_RECOMPUTE_OP, TR_RECOMPUTE_BLOCK };
    int at = s->cfg->recompute == TR_RECOMPUTE_BLOCK ? 2 : s->cfg->recompute == TR_RECOMPUTE_OP ? 1 : 0;
    if (at + k >= 2)
        return false;
    run->recompute = ladder[at + k];
    tr_str_addf(out, " --recompute %s", tr_config_word("recompute", (int)run->recompute));
    return true;
}

/* Fewer rows at a time, and more times: the batch stays as it is. */
static bool fewer_rows(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    int64_t rows = s->cfg->per_device_train_batch_size >> (k + 1);
    if (k >= HALVES || rows < 1 || s->cfg->per_device_train_batch_size % rows != 0 ||
        s->cfg->per_device_train_batch_size / rows * run->gradient_accumulation_steps > MOST_MICRO)
        return false;
    run->gradient_accumulation_steps *= s->cfg->per_device_train_batch_size / rows;
    run->per_device_train_batch_size = rows;
    tr_str_addf(out, " --per_device_train_batch_size %" PRId64 " --gradient_accumulation_steps %" PRId64, rows,
                run->gradient_accumulation_steps);
    return true;
}

static bool fewer_rows_recomputed(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (s->cfg->recompute == TR_RECOMPUTE_BLOCK || !fewer_rows(s, k, run, out))
        return false;
    run->recompute = TR_RECOMPUTE_BLOCK;
    tr_str_addf(out, " --recompute block");
    return true;
}

/* Optimizer state on the host: the bits stay, the copies take time. */
static bool offload(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (k > 1 || s->device->is_host || s->cfg->offload_optimizer != TR_OFFLOAD_NONE ||
        (k == 1 && s->cfg->recompute == TR_RECOMPUTE_BLOCK))
        return false;
    run->offload_optimizer = TR_OFFLOAD_CPU;
    run->recompute = k == 1 ? TR_RECOMPUTE_BLOCK : run->recompute;
    tr_str_addf(out, " --offload_optimizer cpu%s", k == 1 ? " --recompute block" : "");
    return true;
}

/* The base of an adapter on the host: the same. */
static bool offload_base(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (k > 1 || s->device->is_host || s->cfg->offload_param != TR_OFFLOAD_NONE || !s->is_frozen || s->cfg->zero >= 3 ||
        (k == 1 && s->cfg->recompute == TR_RECOMPUTE_BLOCK))
        return false;
    run->offload_param = TR_OFFLOAD_CPU;
    run->recompute = k == 1 ? TR_RECOMPUTE_BLOCK : run->recompute;
    tr_str_addf(out, " --offload_param cpu%s", k == 1 ? " --recompute block" : "");
    return true;
}

/* All that a run without ZeRO learns: its weights and gradients too. */
static bool offload_learning(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    const struct tr_config *c = s->cfg;
    if (k > 0 || s->device->is_host || s->is_frozen || c->zero > 0 || c->tp * c->cp > 1 ||
        c->reproducible == TR_REPRODUCIBLE_LAYOUT || c->offload_optimizer == TR_OFFLOAD_DISK ||
        (c->offload_param == TR_OFFLOAD_CPU && c->offload_gradients))
        return false;
    run->offload_optimizer = run->offload_param = TR_OFFLOAD_CPU;
    run->offload_gradients = run->offload_activations = true;
    run->recompute = TR_RECOMPUTE_BLOCK;
    tr_str_addf(out, " --offload_optimizer cpu --offload_param cpu --offload_gradients --recompute block "
                     "--offload_activations");
    return true;
}

/* Inputs of segments on the host: what recompute leaves. */
static bool offload_activations(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (k > 0 || s->device->is_host || s->cfg->offload_activations)
        return false;
    run->offload_activations = true;
    run->recompute = TR_RECOMPUTE_BLOCK;
    tr_str_addf(out, "%s --offload_activations", s->cfg->recompute == TR_RECOMPUTE_BLOCK ? "" : " --recompute block");
    return true;
}

static bool shorter_rows(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (k >= HALVES || s->sequence_length >> (k + 1) < 16)
        return false;
    run->sequence_length = s->sequence_length >> (k + 1);
    tr_str_addf(out, " --sequence_length %" PRId64, run->sequence_length);
    return true;
}

/* Both of what costs time and changes nothing, and then shorter rows: of a run that is much too large. */
static bool shorter_rows_recomputed(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (s->cfg->recompute == TR_RECOMPUTE_BLOCK || !shorter_rows(s, k, run, out))
        return false;
    run->recompute = TR_RECOMPUTE_BLOCK;
    tr_str_addf(out, " --recompute block");
    return true;
}

/* One row at a time; false: that is so already. */
static bool single_rows(const struct tr_setup *s, struct tr_config *run, struct tr_str *out)
{
    int64_t rows = s->cfg->per_device_train_batch_size;
    if (rows == 1 || rows * run->gradient_accumulation_steps > MOST_MICRO)
        return false;
    run->gradient_accumulation_steps *= rows;
    run->per_device_train_batch_size = 1;
    tr_str_addf(out, " --per_device_train_batch_size 1 --gradient_accumulation_steps %" PRId64,
                run->gradient_accumulation_steps);
    return true;
}

static bool shorter_single_rows(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    return shorter_rows_recomputed(s, k, run, out) && single_rows(s, run, out);
}

/* An adapter instead of the whole model, then with what makes it smaller. */
static bool train_adapter(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    static const struct {
        bool recomputes, is_packed, has_single_rows;
    } ladder[] = { { 0, 0, 0 }, { 1, 0, 0 }, { 0, 1, 0 }, { 1, 1, 0 }, { 1, 1, 1 } };
    if (k >= (int)TR_COUNT_OF(ladder) || s->from.adapter || s->cfg->from_scratch ||
        s->cfg->trainable.n + s->cfg->frozen.n > 0)
        return false;
    run->finetuning_type = TR_TUNING_LORA;
    run->load_in_4bit = ladder[k].is_packed;
    tr_str_addf(out, " --finetuning_type lora%s", run->load_in_4bit ? " --load_in_4bit" : "");
    if (ladder[k].recomputes && s->cfg->recompute != TR_RECOMPUTE_BLOCK) {
        run->recompute = TR_RECOMPUTE_BLOCK;
        tr_str_addf(out, " --recompute block");
    }
    return !ladder[k].has_single_rows || single_rows(s, run, out);
}

static bool pack_base(const struct tr_setup *s, int k, struct tr_config *run, struct tr_str *out)
{
    if (k > 0 || !s->from.adapter || tr_config_packed(s->cfg))
        return false;
    run->load_in_4bit = true;
    tr_str_addf(out, " --load_in_4bit");
    return true;
}

/* Cheapest first: what costs no arithmetic, what costs some, what changes what is learned. */
static change_fn *const families[] = {
    shard,        save_straight,       recompute,        fewer_rows,          fewer_rows_recomputed,   offload,
    offload_base, offload_activations, offload_learning, shorter_single_rows, shorter_rows_recomputed, shorter_rows,
    pack_base,    train_adapter
};

uint64_t tr_host_bytes(const struct tr_compiled *c)
{
    return c->opt.has_own_memory ? tr_compiled_bytes_in(c, TR_SPACE_PINNED) + tr_compiled_bytes_in(c, TR_SPACE_HOST)
                                 : tr_compiled_bytes(c);
}

bool tr_room_fits(const struct tr_room *room, const struct tr_compiled *c)
{
    return tr_host_bytes(c) <= room->host_bytes &&
           (!c->opt.has_own_memory || tr_compiled_bytes_in(c, TR_SPACE_DEVICE) <= room->device_bytes);
}

static void add_remedy(const char *words, const struct tr_compiled *c, struct tr_str *out)
{
    char a[32], b[32];
    if (c->opt.has_own_memory)
        tr_str_addf(out, "\n  %s: %s of the device and %s of the host a rank", words,
                    tr_human_bytes(tr_compiled_bytes_in(c, TR_SPACE_DEVICE), a, sizeof a),
                    tr_human_bytes(tr_host_bytes(c), b, sizeof b));
    else
        tr_str_addf(out, "\n  %s: %s a rank", words, tr_human_bytes(tr_compiled_bytes(c), a, sizeof a));
}

/* The first change of a family that fits. */
static bool try_family(const struct tr_setup *s, change_fn *change, const struct tr_room *room, struct tr_str *out)
{
    bool fits = false;
    for (int k = 0; k < HALVES && !fits; k++) {
        struct tr_config run = *s->cfg;
        struct tr_str words = { 0 };
        struct tr_setup *other = NULL;
        bool exists = change(s, k, &run, &words);
        if (exists && tr_setup_open_rank(&run, TR_USE_TRAIN, s->env.rank, &other) == TR_OK)
            fits = tr_room_fits(room, other->compiled) && tr_str_ok(&words);
        if (fits)
            add_remedy(words.p + 1, other->compiled, out);
        tr_setup_close(other);
        tr_str_release(&words);
        if (!exists)
            break;
    }
    tr_error_clear(); /* a change that is not legal is no remedy */
    return fits;
}

void tr_remedies_text(const struct tr_setup *s, const struct tr_room *room, struct tr_str *out)
{
    enum { SHOWN = 3 };
    int n = 0;
    struct tr_str list = { 0 };
    for (size_t i = 0; i < TR_COUNT_OF(families) && n < SHOWN; i++)
        n += try_family(s, families[i], room, &list);
    if (n > 0 && tr_str_ok(&list))
        tr_str_addf(out, "; what fits, the cheapest first:%s", list.p);
    else
        tr_str_addf(out, "; no single change fits: use a smaller model, more hosts, or a device with more memory");
    tr_str_release(&list);
}

/* What is refused with the budget and not without it is refused for the budget. */
enum tr_status tr_setup_open_advised(const struct tr_config *cfg, int rank, struct tr_setup **out)
{
    const struct tr_room room = { UINT64_MAX, UINT64_MAX }; /* compiling a change asks the budget */
    struct tr_config free_run = *cfg;
    struct tr_setup *s = NULL;
    struct tr_str why = { 0 };
    enum tr_status st = tr_setup_open_rank(cfg, TR_USE_TRAIN, rank, out);
    if (st != TR_USAGE || cfg->memory_budget == 0)
        return st;
    char cause[1024];
    (void)snprintf(cause, sizeof cause, "%s", tr_error_text());
    tr_str_addf(&why, "does not fit: %s", cause);
    free_run.memory_budget = 0;
    if (tr_setup_open_rank(&free_run, TR_USE_TRAIN, rank, &s) == TR_OK) {
        s->cfg = cfg;
        tr_remedies_text(s, &room, &why);
        st = tr_fail(TR_USAGE, "%s", tr_str_ok(&why) ? why.p : cause);
    } else {
        st = tr_fail(TR_USAGE, "%s", cause);
    }
    tr_setup_close(s);
    tr_str_release(&why);
    return st;
}
