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
    enum tr_status st = TR_OK;
    static const char *const local_vars[] = { "LOCAL_WORLD_SIZE", NULL };
    int64_t rank = 0, size = 1, generation = 0, n_local = 0;
    TR_TRY(env_int(size_vars, 1, 1 << 20, &size));
    TR_TRY(env_int(rank_vars, 0, size - 1, &rank));
    TR_TRY(env_int(local_vars, 1, size, &n_local));
    TR_TRY(env_int(generation_vars, 0, INT64_C(1) << 40, &generation));
    static char torch_job[96]; /* of this process, for its lifetime: run ids alone repeat, with the port they do not */
    const char *job = getenv("TR_JOB"), *id = getenv("TORCHELASTIC_RUN_ID"), *port = getenv("MASTER_PORT");
    if (!job && id && port) {
        TR_TRY(tr_format(torch_job, sizeof torch_job, "torch-%s-%s", id, port));
        job = torch_job;
    }
    if (size > 1 && !job)
        TR_TRY(tr_fail(TR_USAGE, "WORLD_SIZE is %" PRId64 " but no job id is set (TR_JOB); start with trireme launch",
                       size));
    *out = (struct tr_comm_env){ .rank = (int)rank,
                                 .size = (int)size,
                                 .n_local = (int)n_local,
                                 .job = job ? job : "alone",
                                 .generation = generation,
                                 .timeout_us = INT64_C(300) * 1000000 };
out:
    return st;
}

void tr_mesh_coords(int rank, const int size[TR_AXES], int coord[TR_AXES])
{
    for (int a = TR_AXES - 1; a >= 0; a--) {
        coord[a] = rank % size[a];
        rank /= size[a];
    }
}

/* The ranks that share every coordinate but those on `axes`. */
static enum tr_status open_group(struct tr_mesh *m, unsigned axes, struct tr_comm **out)
{
    int color = 0, key = 0, n = 1;
    for (int a = 0; a < TR_AXES; a++) {
        bool is_inside = axes >> a & 1;
        color = is_inside ? color : color * m->size[a] + m->coord[a];
        key = is_inside ? key * m->size[a] + m->coord[a] : key;
        n *= is_inside ? m->size[a] : 1;
    }
    return tr_comm_split(m->all, color, key, n, out);
}

static enum tr_status open_axes(struct tr_mesh *m)
{
    enum tr_status st = TR_OK;
    const unsigned dp = 1u << TR_AXIS_DP, shard = 1u << TR_AXIS_SHARD, cp = 1u << TR_AXIS_CP;
    tr_mesh_coords(m->rank, m->size, m->coord);
    for (int a = 0; a < TR_AXES; a++)
        TR_TRY(open_group(m, 1u << a, &m->axis[a]));
    TR_TRY(open_group(m, dp | shard, &m->data));
    TR_TRY(open_group(m, dp | shard | cp, &m->tokens));
    TR_TRY(open_group(m, dp | cp, &m->replicas));
    int stage = m->coord[TR_AXIS_PP], last = m->size[TR_AXIS_PP] - 1;
    int color = stage == 0 || stage == last ? m->rank % (m->world / m->size[TR_AXIS_PP]) : -1; /* pp varies slowest */
    TR_TRY(tr_comm_split(m->all, color, stage > 0, last > 0 ? 2 : 1, &m->ends));
out:
    return st;
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
    TR_TRY(open_axes(m));
out:
    if (st == TR_OK)
        *out = m;
    else
        tr_mesh_close(m);
    return st;
}

void tr_mesh_close(struct tr_mesh *m)
{
    if (!m)
        return;
    tr_comm_close(m->ends);
    tr_comm_close(m->replicas);
    tr_comm_close(m->tokens);
    tr_comm_close(m->data);
    for (int a = TR_AXES - 1; a >= 0; a--)
        tr_comm_close(m->axis[a]);
    tr_comm_close(m->all);
    free(m);
}

void tr_mesh_trace(struct tr_mesh *m, struct tr_comm_tracer *tracer)
{
    struct tr_comm *const others[] = { m->all, m->data, m->tokens, m->replicas, m->ends };
    for (size_t i = 0; i < TR_COUNT_OF(others); i++)
        if (others[i])
            others[i]->tracer = tracer;
    for (int a = 0; a < TR_AXES; a++)
        m->axis[a]->tracer = tracer;
}

int64_t tr_mesh_waited_us(struct tr_mesh *m, int64_t *stages)
{
    struct tr_comm *const others[] = { m->all,
                                       m->data,
                                       m->tokens,
                                       m->replicas,
                                       m->axis[TR_AXIS_DP],
                                       m->axis[TR_AXIS_SHARD],
                                       m->axis[TR_AXIS_CP],
                                       m->axis[TR_AXIS_TP] };
    int64_t pipe_us = tr_comm_waited_us(m->axis[TR_AXIS_PP]) + (m->ends ? tr_comm_waited_us(m->ends) : 0), us = pipe_us;
    for (size_t i = 0; i < TR_COUNT_OF(others); i++)
        us += tr_comm_waited_us(others[i]);
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
        enum tr_status st = tr_comm_run(m->all, &c);
        if (st != TR_OK)
            return st;
        if (range[0] != -range[1] && (values[i] >> 40 || range[0] >> 40)) /* not a number that says anything */
            return tr_fail(TR_USAGE, "ranks disagree on %s; start all of them with the same", what[i]);
        if (range[0] != -range[1])
            return tr_fail(TR_USAGE,
                           "ranks disagree on %s: this one has %" PRId64 ", others from %" PRId64 " to %" PRId64,
                           what[i], values[i], -range[1], range[0]);
    }
    return TR_OK;
}
