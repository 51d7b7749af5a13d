/* where.c - "where am I?": what the environment of a scheduler says about the nodes of a job, as defaults of flags.
 *
 * One row a system: the variable that gives it away, and the variable behind each flag. The first row that fits is
 * taken; PET_ variables and flags come after it and win. `launch` is the agent of a node, so the numbers are those of
 * nodes: Volcano's RANK and WORLD_SIZE count pods, and a Slurm step counts only when it has one task a node. Rejected:
 * guessing from RANK and WORLD_SIZE alone, which torchrun gives to ranks.
 */
#include "launch/launch_impl.h"

/* How the value of a variable becomes that of the flag. */
enum reading {
    AS_IS,
    FIRST_LINE,  /* of several addresses */
    FIRST_NODE,  /* of Slurm's list: n[1-3,7],m2 */
    UNLESS_ZERO, /* a node without GPUs says 0 */
};

enum { N_FLAGS = 5 };
struct system {
    const char *name, *mark; /* the variable that must be there */
    const char *same[2];     /* two variables that must be equal; NULL: none */
    struct {
        const char *flag, *variable;
        enum reading reading;
    } take[N_FLAGS];
};

static const struct system systems[] = {
    { "SkyPilot",
      "SKYPILOT_NODE_RANK",
      { NULL, NULL },
      { { "nnodes", "SKYPILOT_NUM_NODES", AS_IS },
        { "node_rank", "SKYPILOT_NODE_RANK", AS_IS },
        { "master_addr", "SKYPILOT_NODE_IPS", FIRST_LINE },
        { "nproc_per_node", "SKYPILOT_NUM_GPUS_PER_NODE", UNLESS_ZERO },
        { "rdzv_id", "SKYPILOT_TASK_ID", AS_IS } } },
    { "dstack",
      "DSTACK_NODE_RANK",
      { NULL, NULL },
      { { "nnodes", "DSTACK_NODES_NUM", AS_IS },
        { "node_rank", "DSTACK_NODE_RANK", AS_IS },
        { "master_addr", "DSTACK_MASTER_NODE_IP", AS_IS },
        { "nproc_per_node", "DSTACK_GPUS_PER_NODE", UNLESS_ZERO },
        { "rdzv_id", "DSTACK_RUN_NAME", AS_IS } } },
    { "LeaderWorkerSet",
      "LWS_LEADER_ADDRESS",
      { NULL, NULL },
      { { "nnodes", "LWS_GROUP_SIZE", AS_IS },
        { "node_rank", "LWS_WORKER_INDEX", AS_IS },
        { "master_addr", "LWS_LEADER_ADDRESS", AS_IS } } },
    { "Volcano",
      "VC_TASK_INDEX",
      { NULL, NULL },
      { { "nnodes", "WORLD_SIZE", AS_IS },
        { "node_rank", "RANK", AS_IS },
        { "master_addr", "MASTER_ADDR", AS_IS },
        { "master_port", "MASTER_PORT", AS_IS } } },
    { "Slurm",
      "SLURM_STEP_NUM_NODES",
      { "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS" },
      { { "nnodes", "SLURM_STEP_NUM_NODES", AS_IS },
        { "node_rank", "SLURM_NODEID", AS_IS },
        { "master_addr", "SLURM_STEP_NODELIST", FIRST_NODE },
        { "rdzv_id", "SLURM_JOB_ID", AS_IS } } },
    { "Kubernetes", "JOB_COMPLETION_INDEX", { NULL, NULL }, { { "node_rank", "JOB_COMPLETION_INDEX", AS_IS } } },
};

static const char *look_up(char *const *envp, const char *name)
{
    size_t n = strlen(name);
    for (; envp && *envp; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return (*envp)[n + 1] ? *envp + n + 1 : NULL; /* empty: not set */
    return NULL;
}

enum tr_status tr_launch_first_node(const char *list, char *out, size_t n_out)
{
    size_t n_name = strcspn(list, "[,");
    const char *p = list + n_name;
    if (*p != '[')
        return tr_format(out, n_out, "%.*s", (int)n_name, list);
    size_t n_number = strspn(p + 1, "0123456789");
    const char *close = strchr(p, ']');
    if (n_number == 0 || !close)
        return tr_fail(TR_USAGE, "a list of nodes has no first node");
    const char *tail = close + 1; /* n[1-3]-ib */
    return tr_format(out, n_out, "%.*s%.*s%.*s", (int)n_name, list, (int)n_number, p + 1, (int)strcspn(tail, ","),
                     tail);
}

static enum tr_status read_value(enum reading how, const char *value, char *out, size_t n_out)
{
    switch (how) {
    case FIRST_LINE:
        return tr_format(out, n_out, "%.*s", (int)strcspn(value, " \n"), value);
    case FIRST_NODE:
        return tr_launch_first_node(value, out, n_out);
    case UNLESS_ZERO:
        return tr_format(out, n_out, "%s", strcmp(value, "0") == 0 ? "" : value);
    case AS_IS:
        break;
    }
    return TR_OK;
}

static bool fits(const struct system *s, char *const *envp)
{
    if (!look_up(envp, s->mark))
        return false;
    const char *a = s->same[0] ? look_up(envp, s->same[0]) : "", *b = s->same[1] ? look_up(envp, s->same[1]) : "";
    return a && b && strcmp(a, b) == 0;
}

enum tr_status tr_launch_where(char *const *envp, tr_launch_set_fn *set, void *ctx, const char **name)
{
    const struct system *s = NULL;
    *name = NULL;
    for (size_t i = 0; i < TR_COUNT_OF(systems) && !s; i++)
        s = fits(&systems[i], envp) ? &systems[i] : NULL;
    for (size_t i = 0; s && i < N_FLAGS && s->take[i].flag; i++) {
        const char *variable = s->take[i].variable, *found = look_up(envp, variable);
        char value[256];
        bool is_whole = s->take[i].reading == AS_IS; /* flags may keep it: it lives as long as the environment */
        enum tr_status st = found && !is_whole ? read_value(s->take[i].reading, found, value, sizeof value) : TR_OK;
        if (st == TR_OK && found && (is_whole || value[0]))
            st = set(ctx, s->take[i].flag, is_whole ? found : value);
        if (st != TR_OK)
            return tr_fail_at(st, "environment %s: ", variable);
    }
    *name = s ? s->name : NULL;
    return TR_OK;
}
