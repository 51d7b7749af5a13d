/* flags.c - the flags of `trireme launch`: one flag = one row -> parse, PET_ default, help.
 *
 * They are torchrun's, so that a command line or a Kubernetes manifest made for torchrun works here too. A flag that
 * has no effect here is accepted with a notice; one that would do something else than the user expects is refused by
 * name.
 */
#include "base/nvml.h"
#include "launch/launch_impl.h"
#include <ctype.h>
#include <sched.h>
#include <stdlib.h>

enum flag_kind {
    NPROC,
    NNODES,
    NODE_RANK,
    RDZV,
    RDZV_ID,
    RDZV_CONF,
    MASTER_ADDR,
    MASTER_PORT,
    LOCAL_ADDR,
    KEY_FILE,
    KEY_FD,
    ANY_INTERFACE,
    STANDALONE,
    RESTARTS,
    LOG_DIR,
    LOG_RANK,
    METRICS_PORT,
    UNUSED,
    UNUSED_SWITCH,
    REFUSED,
    HELP
};

struct flag {
    const char *name, *alias;
    enum flag_kind kind;
    const char *arg, *help;
};

static const struct flag flags[] = {
    { "nproc_per_node", "nproc", NPROC, "N|auto|gpu|cpu",
      "ranks to start (also --nproc); gpu, cpu: one a GPU, a core; auto: one a GPU where there are some, else one a "
      "core [1]" },
    { "nnodes", "", NNODES, "N|MIN:MAX", "nodes; with MIN:MAX they may come and go [1]" },
    { "node_rank", "", NODE_RANK, "K", "which of them this is [0 at the address of --rdzv, else any]" },
    { "rdzv", "rdzv_endpoint", RDZV, "HOST:PORT", "where node 0 listens (also --rdzv-endpoint)" },
    { "rdzv_id", "", RDZV_ID, "NAME", "name of the job [none]" },
    { "rdzv_key_file", "", KEY_FILE, "FILE",
      "the job's key, mode 600 [OUTPUT/generations/key, made by the first node]" },
    { "rdzv_key_fd", "", KEY_FD, "N", "the same, an open descriptor" },
    { "rdzv_conf", "", RDZV_CONF, "join_timeout=S", "how long to wait for MIN nodes [600]" },
    { "local_addr", "", LOCAL_ADDR, "HOST[:PORT]", "where this node listens [the way to --rdzv]" },
    { "any_interface", "", ANY_INTERFACE, NULL, "allow an address that means every interface" },
    { "master_addr", "", MASTER_ADDR, "HOST", "with --master-port: the same as --rdzv HOST:PORT" },
    { "master_port", "", MASTER_PORT, "PORT", "[29500]" },
    { "max_restarts", "", RESTARTS, "N", "times the group is restarted after a failure [0]" },
    { "log_dir", "", LOG_DIR, "DIR", "where rank-NNNN.log go [OUTPUT/logs]" },
    { "log_rank", "local_ranks_filter", LOG_RANK, "K", "rank whose output is shown [0]" },
    { "metrics_port", "", METRICS_PORT, "[ADDR:]PORT",
      "serve /healthz, /readyz, /livez and /metrics over HTTP [not at all; ADDR 127.0.0.1]" },
    { "help", "", HELP, NULL, "this text" },
    { "standalone", "", STANDALONE, NULL, "one node, whatever the environment says" },
    { "no_python", "", UNUSED_SWITCH, NULL, NULL },
    { "tee", "", UNUSED, NULL, NULL },
    { "redirects", "", UNUSED, NULL, NULL },
    { "rdzv_backend", "", UNUSED, NULL, NULL },
    { "role", "", UNUSED, NULL, NULL },
    { "monitor_interval", "", UNUSED, NULL, NULL },
    { "start_method", "", UNUSED, NULL, NULL },
    { "module", "", REFUSED, NULL, NULL },
    { "run_path", "", REFUSED, NULL, NULL },
};

static bool is_switch(const struct flag *f)
{
    return f->kind == UNUSED_SWITCH || f->kind == REFUSED || f->kind == HELP || f->kind == ANY_INTERFACE ||
           f->kind == STANDALONE;
}

/* --a-b and --a_b are one name. */
static void dashed(const char *name, size_t n_name, char *out, size_t n_out)
{
    size_t n = n_name < n_out ? n_name : n_out - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(name[i] == '_' ? '-' : name[i]);
    out[n] = 0;
}

static const struct flag *find(const char *key)
{
    char name[64];
    for (size_t i = 0; i < TR_COUNT_OF(flags); i++) {
        dashed(flags[i].name, strlen(flags[i].name), name, sizeof name);
        if (strcmp(name, key) == 0)
            return &flags[i];
        dashed(flags[i].alias, strlen(flags[i].alias), name, sizeof name);
        if (name[0] && strcmp(name, key) == 0)
            return &flags[i];
    }
    return NULL;
}

static enum tr_status fail_unknown(const char *key)
{
    const char *names[TR_COUNT_OF(flags)];
    char shown[64], esc[128], name[64];
    for (size_t i = 0; i < TR_COUNT_OF(flags); i++)
        names[i] = flags[i].name;
    snprintf(name, sizeof name, "%s", key);
    for (char *p = name; *p; p++)
        *p = (char)(*p == '-' ? '_' : *p);
    const char *near = tr_nearest(name, names, TR_COUNT_OF(flags));
    dashed(near ? near : "", near ? strlen(near) : 0, shown, sizeof shown);
    return tr_fail(TR_USAGE, "--%s is not a flag of launch%s%s; options of the verb come after the verb",
                   tr_escape(key, esc, sizeof esc), near ? "; did you mean --" : "", shown);
}

static enum tr_status parse_int(const char *text, int lo, int hi, int *out)
{
    int64_t v = 0;
    TR_PASS(tr_parse_int(text, lo, hi, &v));
    *out = (int)v;
    return TR_OK;
}

/* GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, else all that the driver has. */
static int count_gpus(const char *visible)
{
    int n = 0;
    if (visible) {
        for (const char *p = visible; *p; p += strcspn(p, ","), p += *p == ',')
            n += *p != ',' && strncmp(p, "-1", 2) != 0 && strncmp(p, "NoDevFiles", 10) != 0;
        return n;
    }
    struct tr_nvml *nvml = tr_nvml_open();
    n = tr_nvml_count(nvml);
    tr_nvml_close(nvml);
    return n;
}

static enum tr_status parse_nproc(const char *text, int *out)
{
    bool is_auto = strcmp(text, "auto") == 0, is_gpu = strcmp(text, "gpu") == 0;
    if (!is_auto && !is_gpu && strcmp(text, "cpu") != 0)
        return parse_int(text, 1, TR_LAUNCH_RANKS_MAX, out);
    int n = is_auto || is_gpu ? count_gpus(getenv("CUDA_VISIBLE_DEVICES")) : 0;
    if (is_gpu && n == 0)
        return tr_fail(TR_USAGE, "gpu: no GPU is visible here; trireme doctor says why, cpu starts one rank a core");
    cpu_set_t set;
    if (n == 0)
        n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    *out = (int)tr_min64(n, TR_LAUNCH_RANKS_MAX);
    return TR_OK;
}

/* N or MIN:MAX */
static enum tr_status parse_nodes(const char *text, struct tr_launch_flags *out)
{
    char min[16];
    const char *colon = strchr(text, ':');
    TR_PASS(tr_format(min, sizeof min, "%.*s", colon ? (int)(colon - text) : (int)strlen(text), text));
    TR_PASS(parse_int(min, 1, TR_LAUNCH_NODES_MAX, &out->n_nodes_min));
    return parse_int(colon ? colon + 1 : min, out->n_nodes_min, TR_LAUNCH_NODES_MAX, &out->n_nodes_max);
}

/* torchrun's list of key=value pairs, of which one is used here. */
static enum tr_status parse_conf(const char *text, struct tr_launch_flags *out)
{
    static const char key[] = "join_timeout=";
    const char *p = strstr(text, key);
    char digits[16];
    if (!p)
        return TR_OK;
    p += sizeof key - 1;
    enum tr_status st = tr_format(digits, sizeof digits, "%.*s", (int)strcspn(p, ","), p);
    return st == TR_OK ? tr_parse_int(digits, 1, 1000000, &out->join_s) : st;
}

/* Checks what several nodes need, once all flags are known. */
static enum tr_status settle(struct tr_launch_flags *f)
{
    char host[sizeof f->endpoint];
    bool is_alone = f->is_standalone || f->n_nodes_max <= 1;
    if (f->where && is_alone) { /* what the scheduler said about nodes is not asked for */
        f->endpoint[0] = 0;
        f->rdzv_id = NULL;
        f->node_rank = f->node_rank == f->where_rank ? -1 : f->node_rank;
    }
    if (f->node_rank >= f->n_nodes_max)
        return tr_fail(TR_USAGE, "--node-rank %d is not one of the nodes 0 to %d; check --nnodes", f->node_rank,
                       f->n_nodes_max - 1);
    if (is_alone) {
        bool is_idle = f->rdzv || f->rdzv_id || f->endpoint[0] || f->local_addr;
        if (is_idle)
            tr_str_addf(&f->notices,
                        "with one node --rdzv, --rdzv-id, --master-addr and --local-addr have no effect\n");
        f->n_nodes_min = f->n_nodes_max = 1;
        return TR_OK;
    }
    memcpy(host, f->endpoint, sizeof host);
    if (!f->rdzv && host[0])
        return tr_format(f->endpoint, sizeof f->endpoint, "%s:%d", host, f->master_port);
    if (!f->rdzv)
        return tr_fail(TR_USAGE, "--nnodes %d: where is node 0? give --rdzv HOST:PORT, the same on every node",
                       f->n_nodes_max);
    return TR_OK;
}

static enum tr_status set_flag(const struct flag *f, const char *value, struct tr_launch_flags *out)
{
    switch (f->kind) {
    case NPROC:
        return parse_nproc(value, &out->n_ranks);
    case NNODES:
        return parse_nodes(value, out);
    case NODE_RANK:
        return parse_int(value, 0, TR_LAUNCH_NODES_MAX - 1, &out->node_rank);
    case RDZV:
        out->rdzv = value;
        return TR_OK;
    case RDZV_ID:
        out->rdzv_id = value;
        return TR_OK;
    case RDZV_CONF:
        return parse_conf(value, out);
    case MASTER_ADDR:
        return tr_format(out->endpoint, sizeof out->endpoint, "%s", value);
    case MASTER_PORT:
        return parse_int(value, 1, 65535, &out->master_port);
    case LOCAL_ADDR:
        out->local_addr = value;
        return TR_OK;
    case KEY_FILE:
        out->key_file = value;
        return TR_OK;
    case KEY_FD:
        return parse_int(value, 0, 1 << 20, &out->key_fd);
    case ANY_INTERFACE:
        out->any_interface = true;
        return TR_OK;
    case STANDALONE:
        out->is_standalone = true;
        return TR_OK;
    case RESTARTS:
        return parse_int(value, 0, 1000000, &out->max_restarts);
    case LOG_DIR:
        out->log_dir = value;
        return value[0] ? TR_OK : tr_fail(TR_USAGE, "the name of the directory is empty");
    case LOG_RANK:
        return parse_int(value, 0, TR_LAUNCH_RANKS_MAX - 1, &out->log_rank);
    case METRICS_PORT:
        out->metrics_port = value;
        return TR_OK;
    case REFUSED:
        return tr_fail(TR_USAGE, "launch starts verbs of trireme, not other programs");
    case HELP:
        out->help = true;
        return TR_OK;
    case UNUSED:
    case UNUSED_SWITCH:
        break;
    }
    return TR_OK;
}

static enum tr_status set_by_name(void *ctx, const char *name, const char *value)
{
    char key[64];
    dashed(name, strlen(name), key, sizeof key);
    const struct flag *f = find(key);
    TR_BUG_ON(!f);
    return set_flag(f, value, ctx);
}

static enum tr_status set_from_scheduler(char *const *envp, struct tr_launch_flags *out)
{
    enum tr_status st = tr_launch_where(envp, set_by_name, out, &out->where);
    out->where_rank = out->node_rank;
    return st;
}

static enum tr_status set_from_environment(char *const *envp, struct tr_launch_flags *out)
{
    static const char prefix[] = "PET_";
    size_t n_prefix = sizeof prefix - 1;
    for (; envp && *envp; envp++) {
        const char *eq = strchr(*envp, '=');
        if (strncmp(*envp, prefix, n_prefix) != 0 || !eq || !eq[1])
            continue;
        char key[64];
        dashed(*envp + n_prefix, (size_t)(eq - *envp) - n_prefix, key, sizeof key);
        for (char *p = key; *p; p++)
            *p = (char)tolower((unsigned char)*p);
        const struct flag *f = find(key);
        enum tr_status st = f && !is_switch(f) ? set_flag(f, eq + 1, out) : TR_OK;
        if (st != TR_OK)
            return tr_fail_at(st, "environment %.*s: ", (int)(eq - *envp), *envp);
    }
    return TR_OK;
}

/* Reads one flag at argv[0]: `--name value`, `--name=value` or `--switch`. *n_used: how many words it took. */
static enum tr_status set_from_word(int argc, char *const *argv, struct tr_launch_flags *out, int *n_used)
{
    const char *word = argv[0] + 2, *eq = strchr(word, '=');
    char key[64];
    dashed(word, eq ? (size_t)(eq - word) : strlen(word), key, sizeof key);
    const struct flag *f = find(key);
    *n_used = 1;
    if (!f)
        return fail_unknown(key);
    const char *value = eq ? eq + 1 : NULL;
    if (is_switch(f)) {
        if (eq)
            return tr_fail(TR_USAGE, "--%s takes no value", key);
        value = "";
    } else if (!value) {
        if (argc < 2)
            return tr_fail(TR_USAGE, "--%s: a value is missing", key);
        value = argv[1];
        *n_used = 2;
    }
    if (f->kind == UNUSED || f->kind == UNUSED_SWITCH)
        tr_str_addf(&out->notices, "--%s has no effect here\n", key);
    enum tr_status st = set_flag(f, value, out);
    return st == TR_OK ? TR_OK : tr_fail_at(st, "--%s: ", key);
}

enum tr_status tr_launch_flags_init(int argc, char *const *argv, char *const *envp, struct tr_launch_flags *out)
{
    enum tr_status st = TR_OK;
    struct tr_launch_flags f = {
        .n_ranks = 1, .n_nodes_min = 1, .n_nodes_max = 1, .node_rank = -1, .key_fd = -1, .master_port = 29500
    };
    TR_TRY(set_from_scheduler(envp, &f));
    TR_TRY(set_from_environment(envp, &f));
    while (f.n_words < argc && argv[f.n_words][0] == '-' && !f.help) {
        const char *word = argv[f.n_words];
        int n_used = 1;
        if (strcmp(word, "-h") == 0)
            f.help = true;
        else if (strcmp(word, "-m") == 0 || strncmp(word, "--", 2) != 0)
            st = tr_fail(TR_USAGE, "%s: launch starts verbs of trireme; see trireme launch --help", word);
        else if (strcmp(word, "--") != 0)
            st = set_from_word(argc - f.n_words, argv + f.n_words, &f, &n_used);
        TR_TRY(st);
        f.n_words += n_used;
        if (strcmp(word, "--") == 0)
            break;
    }
    if (!f.help)
        TR_TRY(settle(&f));
    if (!f.help && f.where && f.n_nodes_max > 1)
        tr_str_addf(&f.notices, "%s: %d nodes, this is %d, node 0 is at %s; flags change it\n", f.where, f.n_nodes_max,
                    f.node_rank, f.rdzv ? f.rdzv : f.endpoint);
    if (!f.help && f.n_nodes_max <= 1 && f.log_rank >= f.n_ranks) {
        st = tr_fail(TR_USAGE, "--log-rank %d is not one of the ranks 0 to %d", f.log_rank, f.n_ranks - 1);
        goto out;
    }
    *out = f;
    f.notices = (struct tr_str){ 0 };
out:
    tr_launch_flags_release(&f);
    return st;
}

void tr_launch_flags_release(struct tr_launch_flags *f)
{
    tr_str_release(&f->notices);
}

void tr_launch_help(struct tr_str *out)
{
    tr_str_addf(out, "trireme launch - start the ranks of a run on this node and watch them\n\n"
                     "usage: trireme launch [flags] VERB [options of the verb]\n\n");
    for (size_t i = 0; i < TR_COUNT_OF(flags); i++) {
        char name[64], left[96];
        if (!flags[i].help)
            continue;
        dashed(flags[i].name, strlen(flags[i].name), name, sizeof name);
        snprintf(left, sizeof left, "--%s %s", name, flags[i].arg ? flags[i].arg : "");
        tr_str_addf(out, "  %-32s %s\n", left, flags[i].help);
    }
    tr_str_addf(out, "\nOther flags of torchrun are accepted and have no effect:");
    for (size_t i = 0, n = 0; i < TR_COUNT_OF(flags); i++) {
        char name[64];
        if (flags[i].kind != UNUSED && flags[i].kind != UNUSED_SWITCH)
            continue;
        dashed(flags[i].name, strlen(flags[i].name), name, sizeof name);
        tr_str_addf(out, "%s--%s", n++ % 6 == 0 ? "\n  " : " ", name);
    }
    tr_str_addf(
        out, "\nPET_NPROC_PER_NODE and so on are defaults, as with torchrun. Below them, SkyPilot, dstack, "
             "LeaderWorkerSet,\n"
             "Volcano, a Slurm step with one task a node and an indexed Job of Kubernetes say which node this is.\n\n"
             "The ranks share this process's cores evenly. The first rank to fail ends all; a restart resumes\n"
             "from the newest checkpoint. Ctrl-C or SIGTERM: all save and stop; Ctrl-C twice: they are killed.\n"
             "Exit codes: 0 done, 2 bad input, 70 a rank failed, 75 retry me, 78 do not requeue,\n"
             "143 stopped before it could save.\n\n"
             "Several nodes: the same command on each, with --nnodes, --rdzv and a shared --output. Any node may be\n"
             "lost, the first one too; the others go on if at least MIN are left, or wait for it.\n\n"
             "  trireme launch --nproc-per-node 4 --max-restarts 3 train --model model/ --data train.jsonl "
             "--output out/\n"
             "  trireme launch --nnodes 2 --rdzv node0:29500 --nproc-per-node 4 train ...\n");
}
