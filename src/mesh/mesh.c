/* mesh.c - the grid of ranks and its communicators. */
#include "mesh/mesh.h"
#include <assert.h>
#include <stdlib.h>

static const char *const names[] = { "pp", "dp", "shard", "cp", "tp" };
static_assert(TR_COUNT_OF(names) == TR_AXES, "one name per axis");

const char *tr_axis_name(enum tr_axis a)
{
    return names[a];
}

/* The first of these variables that is set. */
static enum tr_status env_int(const char *const *vars, int64_t lo, int64_t hi, int64_t *out)
{
    for (; *vars; vars++) {
        const char *text = getenv(*vars);
        if (text && *text) {
            enum tr_status st = tr_parse_int(text, lo, hi, out);
            return st == TR_OK ? st : tr_fail_at(st, "environment %s: ", *vars);
        }
    }
    return TR_OK;
}

enum tr_status tr_mesh_env(struct tr_comm_env *out)
{
    static const char *const rank_vars[] = { "RANK", NULL }, *const size_vars[] = { "WORLD_SIZE", NULL };
    static const char *const generation_vars[] = { "TR_GENERATION", "TORCHELASTIC_RESTART_COUNT", NULL };
    static const char *const local_vars[] = { "LOCAL_WORLD_SIZE", NULL };
    int64_t rank = 0, size = 1, generation = 0, n_local = 0;
    TR_PASS(env_int(size_vars, 1, 1 << 20, &size));
    TR_PASS(env_int(rank_vars, 0, size - 1, &rank));
    TR_PASS(env_int(local_vars, 1, size, &n_local));
    TR_PASS(env_int(generation_vars, 0, INT64_C(1) << 40, &generation));
    static char torch_job[96]; /* lives as long as the process; run ids alone repeat, but not together with the port */
    const char *job = getenv("TR_JOB"), *id = getenv("TORCHELASTIC_RUN_ID"), *port = getenv("MASTER_PORT");
    if (!job && id && port) {
        TR_PASS(tr_format(torch_job, sizeof torch_job, "torch-%s-%s", id, port));
        job = torch_job;
    }
    if (size > 1 && !job)
        return tr_fail(TR_USAGE, "WORLD_SIZE is %" PRId64 " but no job id is set (TR_JOB); start with trireme launch",
                       size);
    *out = (struct tr_comm_env){ .rank = (int)rank,
                                 .size = (int)size,
                                 .n_local = (int)n_local,
                                 .job = job ? job : "alone",
                                 .generation = generation,
                                 .secret = getenv("TR_MEET"),
                                 .timeout_us = INT64_C(300) * 1000000 };
    return TR_OK;
}

void tr_mesh_coords(int rank, const int size[TR_AXES], int coord[TR_AXES])
{
    for (int a = TR_AXES - 1; a >= 0; a--) {
        coord[a] = rank % size[a];
        rank /= size[a];
    }
}

/* Splits the ranks into groups: color numbers the groups of this key, place is this rank's index in its group, and n
 * the size of the group. The pipeline axis varies slowest, so ranks with equal places in the first and the last stage
 * differ by a multiple of a stage's ranks. */
static enum tr_status open_group(struct tr_mesh *m, struct tr_group_key key, struct tr_comm **out)
{
    int color = 0, place = 0, n = 1;
    if (key.is_ends) {
        int stage = m->coord[TR_AXIS_PP], last = m->size[TR_AXIS_PP] - 1;
        color = stage == 0 || stage == last ? m->rank % (m->world / m->size[TR_AXIS_PP]) : -1;
        return tr_comm_split(m->all, color, stage > 0, last > 0 ? 2 : 1, out);
    }
    for (int a = 0; a < TR_AXES; a++) {
        bool is_inside = key.axes >> a & 1;
        color = is_inside ? color : color * m->size[a] + m->coord[a];
        place = is_inside ? place * m->size[a] + m->coord[a] : place;
        n *= is_inside ? m->size[a] : 1;
    }
    return tr_comm_split(m->all, color, place, n, out);
}

enum tr_status tr_mesh_declare(struct tr_mesh *m, const struct tr_group_key *key, int n)
{
    enum tr_status st = TR_OK;
    TR_BUG_ON(m->n_groups + n > TR_MAX_GROUPS);
    for (int i = 0; i < n && st == TR_OK; i++) {
        m->group[m->n_groups].key = key[i];
        st = open_group(m, key[i], &m->group[m->n_groups].comm);
        m->n_groups += st == TR_OK;
    }
    return st;
}

static struct tr_comm *find_group(const struct tr_mesh *m, tr_axes axes, bool is_ends)
{
    int i = 0;
    while (i < m->n_groups && (m->group[i].key.axes != axes || m->group[i].key.is_ends != is_ends))
        i++;
    TR_BUG_ON(i == m->n_groups); /* the group was not declared */
    return m->group[i].comm;
}

struct tr_comm *tr_mesh_group(const struct tr_mesh *m, tr_axes axes)
{
    return find_group(m, axes, false);
}

struct tr_comm *tr_mesh_ends(const struct tr_mesh *m)
{
    return find_group(m, TR_ON(TR_AXIS_PP), true);
}

static enum tr_status open_groups(struct tr_mesh *m)
{
    static const struct tr_group_key keys[] = {
        { .axes = TR_ON(TR_AXIS_PP) }, { .axes = TR_ON(TR_AXIS_DP) }, { .axes = TR_ON(TR_AXIS_SHARD) },
        { .axes = TR_ON(TR_AXIS_CP) }, { .axes = TR_ON(TR_AXIS_TP) }, { .axes = TR_ON_DATA },
        { .axes = TR_ON_TOKENS },      { .axes = TR_ON_REPLICAS },    { .axes = TR_ON(TR_AXIS_PP), .is_ends = true }
    };
    tr_mesh_coords(m->rank, m->size, m->coord);
    return tr_mesh_declare(m, keys, TR_COUNT_OF(keys));
}

enum tr_status tr_mesh_fits(const struct tr_comm_env *env, const int size[TR_AXES])
{
    int64_t product = 1;
    for (int a = 0; a < TR_AXES; a++)
        product *= size[a];
    if (product == env->size)
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "mesh pp %d x dp %d x shard %d x cp %d x tp %d = %" PRId64
                   " ranks, but %d %s started; trireme launch --nproc-per-node %" PRId64 " starts them",
                   size[0], size[1], size[2], size[3], size[4], product, env->size, env->size == 1 ? "was" : "were",
                   product);
}

enum tr_status tr_mesh_open(const char *engine, const struct tr_comm_env *env, const int size[TR_AXES],
                            struct tr_mesh **out)
{
    enum tr_status st = TR_OK;
    struct tr_mesh *m = calloc(1, sizeof *m);
    if (!m)
        return tr_fail(TR_NOMEM, "mesh: out of memory");
    m->rank = env->rank;
    m->world = env->size;
    memcpy(m->size, size, sizeof m->size);
    TR_TRY(tr_mesh_fits(env, size));
    TR_TRY(tr_comm_open(engine, env, &m->all));
    TR_TRY(open_groups(m));
out:
    if (st == TR_OK)
        *out = m;
    else
        tr_mesh_close(m);
    return st;
}

enum tr_status tr_mesh_open_alone(struct tr_mesh **out)
{
    static const int ones[TR_AXES] = { 1, 1, 1, 1, 1 };
    const struct tr_comm_env env = { .size = 1, .job = "alone", .timeout_us = INT64_C(300) * 1000000 };
    return tr_mesh_open("self", &env, ones, out);
}

enum tr_status tr_mesh_given(struct tr_mesh *given, struct tr_mesh **own, struct tr_mesh **out)
{
    TR_PASS(given ? TR_OK : tr_mesh_open_alone(own));
    *out = given ? given : *own;
    return TR_OK;
}

bool tr_mesh_is_alone(const struct tr_mesh *m)
{
    return m->world == 1;
}

bool tr_mesh_is_first(const struct tr_mesh *m)
{
    return m->rank == 0;
}

bool tr_mesh_shares(const struct tr_mesh *m, int other, tr_axes axes)
{
    int coord[TR_AXES];
    tr_mesh_coords(other, m->size, coord);
    for (int a = 0; a < TR_AXES; a++)
        if (axes >> a & 1 && coord[a] != m->coord[a])
            return false;
    return true;
}

void tr_mesh_close(struct tr_mesh *m)
{
    if (!m)
        return;
    for (int i = m->n_groups - 1; i >= 0; i--)
        tr_comm_close(m->group[i].comm);
    tr_comm_close(m->all);
    free(m);
}

void tr_mesh_trace(struct tr_mesh *m, struct tr_comm_tracer *tracer)
{
    m->all->tracer = tracer;
    for (int i = 0; i < m->n_groups; i++)
        if (m->group[i].comm)
            m->group[i].comm->tracer = tracer;
}

int64_t tr_mesh_waited_us(struct tr_mesh *m, int64_t *stages)
{
    int64_t us = tr_comm_waited_us(m->all), pipe_us = 0;
    for (int i = 0; i < m->n_groups; i++) {
        int64_t waited_us = m->group[i].comm ? tr_comm_waited_us(m->group[i].comm) : 0;
        us += waited_us;
        pipe_us += m->group[i].key.axes == TR_ON(TR_AXIS_PP) ? waited_us : 0; /* the group of the ends included */
    }
    if (stages)
        *stages = pipe_us;
    return us;
}

enum tr_status tr_mesh_agree(struct tr_mesh *m, const char *const *what, const int64_t *values, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t range[2] = { values[i], -values[i] }; /* both maxima equal means one value everywhere */
        struct tr_coll c = {
            .kind = TR_ALL_REDUCE, .dtype = TR_I64, .op = TR_MAX, .in = range, .out = range, .count = 2, .site = what[i]
        };
        TR_PASS(tr_comm_run(m->all, &c));
        /* a hash: its value means nothing to a user */
        if (range[0] != -range[1] && (values[i] >> 40 || range[0] >> 40))
            return tr_fail(TR_USAGE, "ranks disagree on %s; start all ranks with the same value", what[i]);
        if (range[0] != -range[1])
            return tr_fail(TR_USAGE,
                           "ranks disagree on %s: this one has %" PRId64 ", others from %" PRId64 " to %" PRId64,
                           what[i], values[i], -range[1], range[0]);
    }
    return TR_OK;
}
