/* save_rig.h - a small model whose state is a function of the step, saved and loaded by the real saver and loader: what
 * the checkpoint campaigns (T3, T4, T5) break. */
#ifndef TR_TESTS_FAULT_SAVE_RIG_H
#define TR_TESTS_FAULT_SAVE_RIG_H

#include "ckpt/ckpt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MUST(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #cond, tr_error_text());                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct save_rig {
    struct tr_model *m;
    float *state[TR_STATES_MAX]; /* all parameters, one after another */
    int64_t *at;                 /* of each parameter */
    float *buf, *staging;
    size_t staging_bytes;
    struct tr_store store;
    char dir[TR_PATH_MAX], out[TR_PATH_MAX];
    int64_t generation;
};

static inline enum tr_status rig_get(void *ctx, enum tr_state what, int param, int64_t first, int64_t n,
                                     const void **out)
{
    const struct save_rig *r = ctx;
    (void)n;
    *out = r->state[what] + r->at[param] + first;
    return TR_OK;
}

static inline enum tr_status rig_put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n,
                                     const void *src)
{
    const struct save_rig *r = ctx;
    memcpy(r->state[what] + r->at[param] + first, src, (size_t)n * sizeof(float));
    return TR_OK;
}

static inline bool rig_wants(void *ctx, enum tr_state what, int param, int64_t first, int64_t n)
{
    (void)ctx, (void)what, (void)param, (void)first, (void)n;
    return true;
}

static inline int rig_ranges(void *ctx, enum tr_state what, int param, struct tr_range out[TR_MAX_RANGES])
{
    const struct save_rig *r = ctx;
    (void)what;
    out[0] = (struct tr_range){ 0, 1, r->m->param[param].n };
    return 1;
}

static inline float rig_number(int64_t step, int what, int64_t i)
{
    return (float)(step * 7919 + what * 101 + i % 4093) * 0.001f;
}

static inline void rig_fill(struct save_rig *r, int64_t step)
{
    for (int w = 0; w < TR_STATES_MAX; w++)
        for (int64_t i = 0; r->state[w] && i < r->m->n_elements; i++)
            r->state[w][i] = rig_number(step, w, i);
}

static inline bool rig_holds(const struct save_rig *r, int64_t step)
{
    for (int w = 0; w < TR_STATES_MAX; w++)
        for (int64_t i = 0; r->state[w] && i < r->m->n_elements; i++)
            if (r->state[w][i] != rig_number(step, w, i))
                return false;
    return true;
}

static inline void rig_open(struct save_rig *r)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"vocab_size\":24,\"hidden_size\":8,\"intermediate_size\":8,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,"
        "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"max_position_embeddings\":16,\"rope_theta\":10000.0,"
        "\"tie_word_embeddings\":true}";
    const char *base = getenv("TMPDIR");
    struct tr_model_options opt = { .rows = 1, .sequence_length = 1 };
    cJSON *j = NULL;
    *r = (struct save_rig){ 0 };
    snprintf(r->dir, sizeof r->dir, "%s/fault-XXXXXX",
             base                            ? base
             : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                             : "/tmp");
    MUST(mkdtemp(r->dir));
    MUST(tr_path_join(r->out, r->dir, "out") == TR_OK);
    MUST(tr_json_parse(config, sizeof config - 1, "config", &j) == TR_OK &&
         tr_model_from_json(j, &opt, &r->m) == TR_OK);
    size_t bytes = (size_t)r->m->n_elements * sizeof(float);
    r->at = calloc((size_t)r->m->n_params, sizeof *r->at);
    r->buf = malloc(TR_IO_CHUNK * sizeof *r->buf);
    r->staging_bytes = 3 * bytes;
    r->staging = malloc(r->staging_bytes);
    r->store = (struct tr_store){ .ctx = r,
                                  .model = r->m,
                                  .get = rig_get,
                                  .whole = rig_get,
                                  .put = rig_put,
                                  .wants = rig_wants,
                                  .ranges = rig_ranges };
    tr_states_of(&tr_adamw, &(struct tr_state_dtypes){ TR_F32, TR_F32, TR_F32, TR_F32 }, &r->store.states);
    for (int w = 0; w < r->store.states.n; w++)
        if (w != TR_S_GRAD && r->store.states.row[w].is_held)
            MUST(r->state[w] = malloc(bytes));
    MUST(r->at && r->buf && r->staging);
    for (int i = 1; i < r->m->n_params; i++)
        r->at[i] = r->at[i - 1] + r->m->param[i - 1].n;
}

static inline void rig_close(struct save_rig *r)
{
    (void)tr_remove_tree(r->dir);
    for (int w = 0; w < TR_STATES_MAX; w++)
        free(r->state[w]);
    free(r->at);
    free(r->buf);
    free(r->staging);
    tr_model_close(r->m);
}

/* One checkpoint by the real saver, its thread included. */
static inline enum tr_status rig_save(struct save_rig *r, int64_t step, int64_t limit)
{
    struct tr_saver *sv = NULL;
    struct tr_saver_options opt = { .dtype = TR_F32, .staging = r->staging, .staging_bytes = r->staging_bytes };
    struct tr_save_result res = { 0 };
    char state[96];
    bool is_started = false, is_done = false;
    enum tr_status st = tr_saver_open(&r->store, &opt, &sv);
    if (st != TR_OK)
        return st;
    rig_fill(r, step);
    snprintf(state, sizeof state, "{\"schema\": 1, \"step\": %d}\n", (int)step);
    struct tr_save_job job = { .output = r->out,
                               .run_id = "run",
                               .step = step,
                               .generation = r->generation,
                               .state = state,
                               .keep = { limit, 0, false } };
    st = tr_saver_start(sv, &job, &is_started);
    if (st == TR_OK)
        st = tr_saver_wait(sv, 60, &is_done, &res);
    if (st == TR_OK && res.status != TR_OK)
        st = tr_fail(res.status, "%s", res.cause);
    tr_saver_close(sv);
    return st;
}

/* The newest good checkpoint into memory; -1 when there is none. Its numbers must be those of its step. */
static inline enum tr_status rig_load(struct save_rig *r, int64_t *step)
{
    struct tr_ckpt_info info;
    bool is_found = false;
    enum tr_status st = tr_ckpt_scan(r->out, "run", &is_found, &info, NULL);
    *step = -1;
    if (st != TR_OK || !is_found)
        return st;
    st = tr_load_weights(&r->store, info.path, r->buf, NULL);
    if (st == TR_OK)
        st = tr_load_optim(&r->store, info.path, r->buf, NULL);
    if (st == TR_OK)
        *step = info.step;
    MUST(st != TR_OK || rig_holds(r, info.step));
    return st;
}

/* Counter-based: a campaign is a function of its seed. */
static inline uint64_t rig_random(uint64_t *s)
{
    uint64_t z = (*s += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* argv[1]: how many, or the short version's number; argv[2]: seed. */
static inline int64_t rig_argument(int argc, char **argv, int i, int64_t def)
{
    int64_t n = def;
    MUST(argc <= i || tr_parse_int(argv[i], 0, INT64_MAX, &n) == TR_OK);
    return n;
}

#endif
