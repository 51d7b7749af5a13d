/* engine.c - opens what a compiled setup runs on (engine.h). */
#include "train/engine.h"
#include "train/room.h"

enum tr_status tr_join_ranks(const struct tr_setup *s, struct tr_device *dev, const char *const *names,
                             const int64_t *values, int n, struct tr_str *notes, struct tr_mesh **out)
{
    const struct tr_config *cfg = s->cfg;
    struct tr_comm_env env = s->env;
    const char *name[TR_CONFIG_KEYS_MAX];
    int64_t value[TR_CONFIG_KEYS_MAX];
    if (env.size == 1)
        return tr_mesh_open_alone(out);
    env.arena_bytes = tr_exec_shared_bytes(s->compiled);
    env.device = dev;
    env.notes = notes;
    TR_PASS(
        tr_mesh_open(cfg->comm == TR_COMM_AUTO ? NULL : tr_config_word("comm", (int)cfg->comm), &env, s->axis, out));
    for (int i = 0; i < n; i++) {
        name[i] = names[i];
        value[i] = values[i];
    }
    n += tr_config_keys(cfg, TR_CONFIG_KEYS_MAX - n, name + n, value + n);
    return tr_mesh_agree(*out, name, value, n);
}

enum tr_status tr_choose_products(const struct tr_config *cfg, enum tr_gemm_choice *got)
{
    TR_PASS(tr_gemm_select(cfg->gemm, got));
    bool is_allowed = cfg->reproducible != TR_REPRODUCIBLE_LAYOUT;
    if (tr_failpoint("gemm.same_on_all") != TR_OK) { /* a test compares with bits of another processor */
        tr_error_clear();
        is_allowed = false;
    }
    tr_gemm_allow_pairs(is_allowed);
    return TR_OK;
}

enum tr_status tr_engine_open(struct tr_setup *s, const char *advice, struct tr_engine *g)
{
    enum tr_gemm_choice got;
    g->s = s;
    TR_PASS(tr_mesh_fits(&s->env, s->axis));
    TR_PASS(tr_room_check(s->compiled, NULL, advice));
    TR_PASS(tr_choose_products(s->cfg, &got));
    TR_PASS(tr_pool_open((int)s->cfg->threads, &g->pool));
    TR_PASS(tr_device_open(s->device->name, &g->dev));
    TR_PASS(tr_join_ranks(s, &g->dev, NULL, NULL, 0, &g->notes, &g->mesh));
    TR_PASS(tr_room_check_hosts(g->mesh, s));
    return tr_exec_open(s->compiled, &g->dev, g->pool, g->mesh, 0, &g->e);
}

void tr_engine_close(struct tr_engine *g)
{
    tr_exec_close(g->e);
    tr_mesh_close(g->mesh);
    tr_device_close(&g->dev);
    tr_pool_close(g->pool);
    tr_str_release(&g->notes);
    tr_setup_close(g->s);
    *g = (struct tr_engine){ 0 };
}
