/* cmd_ckpt.c - trireme ckpt: looks at checkpoints, checks, compares, thins out and rewrites them. */
#include "cli/cli.h"
#include <stdio.h>
#include <stdlib.h>

static enum tr_status print(struct tr_str *s, enum tr_status st)
{
    if (st == TR_OK && tr_str_ok(s) && s->p)
        cli_print(s->p);
    tr_str_release(s);
    return st;
}

static enum tr_status verify(const struct tr_config *cfg, const char *dir, const char *other)
{
    struct tr_ckpt_info info;
    char human[32];
    (void)other;
    enum tr_status st = tr_ckpt_verify(dir, NULL, &info);
    if (st == TR_OK && cfg->json)
        printf("{\"step\": %" PRId64 ", \"files\": %zu, \"bytes\": %" PRIu64 ", \"verified\": true}\n", info.step,
               info.n_files, info.n_bytes);
    else if (st == TR_OK)
        cli_printf("%s: step %" PRId64 ", %zu files, %s, all hashes match\n", dir, info.step, info.n_files,
                   tr_human_bytes(info.n_bytes, human, sizeof human));
    return st;
}

static enum tr_status newest(const struct tr_config *cfg, const char *dir, const char *other)
{
    struct tr_ckpt_info info;
    struct tr_str notes = { 0 };
    bool found = false;
    (void)other;
    enum tr_status st = tr_ckpt_scan(dir, NULL, &found, &info, &notes);
    if (notes.n)
        cli_warn(notes.p);
    if (st == TR_OK && found)
        cli_show_path(cfg, info.path);
    else if (st == TR_OK)
        st = tr_fail(TR_USAGE, "%s: no checkpoints", dir);
    tr_str_release(&notes);
    return st;
}

/* From the manifests alone; no data is read. */
static enum tr_status list(const struct tr_config *cfg, const char *dir, const char *other)
{
    struct tr_str out = { 0 };
    int64_t *step = NULL;
    size_t n = 0;
    (void)other;
    enum tr_status st = tr_ckpt_steps(dir, &step, &n);
    if (st == TR_OK && n == 0)
        return ckpt_list_adapters(cfg, dir);
    if (st == TR_OK && !cfg->json)
        tr_str_addf(&out, "%10s %6s %10s %6s  %-25s\n", "step", "files", "bytes", "gen", "run");
    for (size_t i = 0; i < n && st == TR_OK; i++) {
        struct tr_ckpt_info info;
        char path[TR_PATH_MAX], human[32];
        st = tr_ckpt_step_path(dir, step[i], path);
        if (st == TR_OK && tr_ckpt_peek(path, &info) != TR_OK)
            tr_str_addf(&out, cfg->json ? "{\"step\": %" PRId64 ", \"bad\": true}\n" : "%10" PRId64 "  is damaged\n",
                        step[i]);
        else if (st == TR_OK && cfg->json)
            tr_str_addf(&out,
                        "{\"step\": %" PRId64 ", \"files\": %zu, \"bytes\": %" PRIu64 ", \"generation\": %" PRId64
                        ", \"run\": \"%s\"}\n",
                        info.step, info.n_files, info.n_bytes, info.generation, info.run_id);
        else if (st == TR_OK)
            tr_str_addf(&out, "%10" PRId64 " %6zu %10s %6" PRId64 "  %-25s\n", info.step, info.n_files,
                        tr_human_bytes(info.n_bytes, human, sizeof human), info.generation, info.run_id);
    }
    tr_error_clear();
    free(step);
    return print(&out, st);
}

/* ---- show ---- */

static void add_item(struct tr_str *out, const char *name, const cJSON *value)
{
    char *text = cJSON_IsString(value) ? NULL : cJSON_PrintUnformatted(value);
    if (value)
        tr_str_addf(out, "  %-18s %s\n", name, cJSON_IsString(value) ? value->valuestring : text ? text : "?");
    cJSON_free(text);
}

static void add_command(struct tr_str *out, const cJSON *state)
{
    const cJSON *origin = cJSON_GetObjectItemCaseSensitive(state, "origin"),
                *world = cJSON_GetObjectItemCaseSensitive(state, "world"),
                *words = cJSON_GetObjectItemCaseSensitive(origin, "command");
    int n_ranks = cJSON_IsNumber(world) ? world->valueint : 1, i = 0;
    tr_str_addf(out, "\nto run it again:\n ");
    for (const cJSON *w = words ? words->child : NULL; w; w = w->next, i++) {
        tr_str_addf(out, " ");
        tr_str_shell(out, cJSON_IsString(w) ? w->valuestring : "?");
        if (i == 0 && n_ranks > 1)
            tr_str_addf(out, " launch --nproc-per-node %d", n_ranks);
    }
    tr_str_addf(out, "\n");
}

static enum tr_status show(const struct tr_config *cfg, const char *dir, const char *other)
{
    static const char *const names[] = { "run",     "generation", "step",       "total_steps", "tokens",
                                         "samples", "skipped",    "loss_scale", "best",        "world" };
    static const char *const origins[] = { "version", "build", "git_commit", "directory" };
    enum tr_status st = TR_OK;
    struct tr_str out = { 0 };
    struct tr_ckpt_info info;
    char path[TR_PATH_MAX];
    cJSON *j = NULL;
    (void)other;
    TR_TRY(tr_ckpt_peek(dir, &info));
    TR_TRY(tr_path_join(path, dir, "trireme/state.json"));
    TR_TRY(tr_json_load(path, 4 << 20, &j));
    if (cfg->json) {
        char *text = cJSON_PrintUnformatted(j);
        tr_str_addf(&out, "%s\n", text ? text : "{}");
        cJSON_free(text);
        goto out;
    }
    tr_str_addf(&out, "%s\n", dir);
    for (size_t i = 0; i < TR_COUNT_OF(names); i++)
        add_item(&out, names[i], cJSON_GetObjectItemCaseSensitive(j, names[i]));
    const cJSON *origin = cJSON_GetObjectItemCaseSensitive(j, "origin");
    for (size_t i = 0; i < TR_COUNT_OF(origins); i++)
        add_item(&out, origins[i], cJSON_GetObjectItemCaseSensitive(origin, origins[i]));
    tr_str_addf(&out, "\ninputs (a resume that changes one is refused unless --allow_change names it):\n");
    const cJSON *inputs = cJSON_GetObjectItemCaseSensitive(j, "inputs");
    for (const cJSON *k = cJSON_IsObject(inputs) ? inputs->child : NULL; k; k = k->next)
        add_item(&out, k->string, k);
    add_command(&out, j);
out:
    cJSON_Delete(j);
    return print(&out, st);
}

/* ---- diff, prune ---- */

/* TR_NO: they differ. */
static enum tr_status diff(const struct tr_config *cfg, const char *dir, const char *other)
{
    struct tr_str out = { 0 };
    size_t n = 0;
    if (!other)
        return tr_verb_misused(TR_VERB_CKPT);
    enum tr_status st = tr_ckpt_diff(dir, other, cfg->json ? 0 : 40, &out, &n);
    if (cfg->json) {
        tr_str_clear(&out);
        tr_str_addf(&out, "{\"differ\": %zu}\n", n);
    } else if (st == TR_OK)
        tr_str_addf(&out, n ? "%zu tensors differ\n" : "all tensors are the same, bit for bit\n", n);
    st = print(&out, st);
    return st == TR_OK && n ? TR_NO : st;
}

static enum tr_status prune(const struct tr_config *cfg, const char *dir, const char *other)
{
    enum tr_status st = TR_OK;
    struct tr_ckpt_lock *lock = NULL;
    struct tr_ckpt_info info;
    struct tr_ckpt_keep keep = { cfg->save_total_limit, cfg->save_keep_every, true };
    bool found = false;
    size_t n = 0;
    (void)other;
    if (keep.limit < 1)
        return tr_fail(TR_USAGE, "ckpt prune: say how many to keep: --save_total_limit N");
    TR_TRY(tr_ckpt_lock(dir, "prune", 0, &lock));
    TR_TRY(tr_ckpt_scan(dir, NULL, &found, &info, NULL));
    if (found)
        TR_TRY(tr_ckpt_retain(dir, info.step, info.generation, &keep, NULL, &n));
    printf(cfg->json ? "{\"removed\": %zu}\n" : "%zu checkpoints removed\n", n);
out:
    tr_ckpt_unlock(lock);
    return st;
}

/* ---- export; reshard: a checkpoint of any layout, as one rank would have written it ---- */

struct rewrite {
    struct tr_ckpt_lease lease;
    struct tr_dirs src;
    struct tr_save_text text[3]; /* of an adapter */
    size_t n_texts;
    struct tr_model *m;
    struct tr_memory *x;
    struct tr_store store;
    struct tr_saver *sv;
    float *buf;
    uint8_t *fate_of;
    enum tr_dtype dtype;
};

/* A directory without trireme/ is no checkpoint of ours: it has no hashes to compare with. */
static enum tr_status verify_checkpoint(const char *dir)
{
    char path[TR_PATH_MAX];
    TR_PASS(tr_path_join(path, dir, "trireme"));
    if (!tr_dir_exists(path))
        return TR_OK;
    return tr_dir_has(path, "manifest.json")
               ? tr_ckpt_verify(dir, NULL, NULL)
               : tr_fail(TR_USAGE, "%s is neither a checkpoint, which has trireme/manifest.json, nor an adapter", dir);
}

/* The adapter, and the texts beside it as they are. */
static enum tr_status load_adapter(struct rewrite *r, const char *dir)
{
    static const char *const names[] = { "README.md", TR_ADAPTER_BASE, TR_ADAPTER_CONFIG };
    enum tr_status st = TR_OK;
    struct tr_hf *hf = NULL;
    TR_TRY(tr_adapter_file(dir, &hf));
    r->dtype = tr_hf_tensor(hf, 0)->dtype;
    TR_TRY(tr_load_adapter(&r->store, NULL, dir, r->buf));
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        char path[TR_PATH_MAX], *text = NULL;
        size_t n = 0;
        TR_TRY(tr_path_join(path, dir, names[i]));
        TR_TRY(tr_file_read(path, 4 << 20, &text, &n));
        r->text[r->n_texts++] = (struct tr_save_text){ names[i], text };
    }
out:
    tr_hf_close(hf);
    return st;
}

static enum tr_status open_rewrite(struct rewrite *r, const struct tr_config *cfg, const char *dir)
{
    struct tr_model_options opt = { .rows = 1, .sequence_length = 1 };
    struct tr_states states;
    struct tr_load_result loaded = { 0 };
    TR_PASS(tr_ckpt_lease(dir, &r->lease));
    TR_PASS(tr_ckpt_verify(dir, NULL, NULL));
    TR_PASS(tr_dirs_of(dir, cfg->model_base, &r->src));
    if (r->src.dir) { /* the state is that of the half that learns */
        char start[TR_PATH_MAX];
        if (tr_base_id_member(dir, "start", start) == TR_OK)
            TR_PASS(tr_adapter_halve(r->src.adapter, start));
        tr_error_clear();
    }
    TR_PASS(tr_dirs_model(&r->src, &opt, true, &r->m));
    TR_PASS(tr_optim_states(dir, &states));
    TR_PASS(tr_memory_open(r->m, &states, &r->x, &r->store));
    r->buf = malloc(TR_IO_CHUNK * sizeof *r->buf);
    loaded.fate_of = r->fate_of = calloc((size_t)r->m->n_params, sizeof *r->fate_of);
    if (!r->buf || !r->fate_of)
        return tr_fail(TR_NOMEM, "ckpt: out of memory");
    if (r->src.dir)
        TR_PASS(load_adapter(r, dir));
    else
        TR_PASS(tr_load_weights(&r->store, dir, r->buf, &r->dtype));
    TR_PASS(tr_load_optim(&r->store, dir, r->buf, &loaded));
    r->store.fate_of = r->fate_of; /* what has no state there gets none */
    for (int i = 0; i < r->store.states.n; i++)
        r->store.states.row[i].fates = loaded.fates[i];
    struct tr_saver_options save = { .dtype = r->dtype, .source_dir = dir, .text = r->text, .n_texts = r->n_texts };
    return tr_saver_open(&r->store, &save, &r->sv);
}

static void close_rewrite(struct rewrite *r)
{
    (void)tr_saver_close(r->sv);
    tr_memory_close(r->x);
    tr_model_close(r->m);
    tr_dirs_close(&r->src);
    tr_ckpt_release(&r->lease);
    for (size_t i = 0; i < r->n_texts; i++)
        free((char *)(uintptr_t)r->text[i].text);
    free(r->buf);
    free(r->fate_of);
}

struct bnb4_filling {
    const struct tr_model *m;
    const char *from;
    struct tr_bnb4_options to;
};

static enum tr_status fill_bnb4(void *ctx, const char *dir, const char *temp)
{
    const struct bnb4_filling *f = ctx;
    char path[TR_PATH_MAX];
    enum tr_status st = tr_path_join(path, dir, temp);
    return st == TR_OK ? tr_write_bnb4(f->m, f->from, path, &f->to, NULL) : st;
}

/* A checkpoint, or any HF directory, with its linears in 4 bits. */
static enum tr_status export_bnb4(const struct tr_config *cfg, const char *dir)
{
    enum tr_status st = TR_OK;
    struct tr_ckpt_lease lease = { 0 };
    struct tr_model *m = NULL;
    struct tr_pool *pool = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 1 };
    struct tr_bnb4_options to = {
        .type = cfg->to == TR_EXPORT_FP4 || cfg->to == TR_EXPORT_FP4_DOUBLE ? TR_FP4 : TR_NF4,
        .is_double = cfg->to == TR_EXPORT_NF4_DOUBLE || cfg->to == TR_EXPORT_FP4_DOUBLE,
        .shard_bytes = TR_BNB4_SHARD_BYTES,
    };
    TR_TRY(tr_ckpt_lease(dir, &lease));
    TR_TRY(verify_checkpoint(dir));
    TR_TRY(tr_model_open(dir, &opt, &m));
    TR_TRY(tr_pool_open(0, &pool));
    to.pool = pool;
    TR_TRY(tr_new_dir(cfg->output, fill_bnb4, &(struct bnb4_filling){ m, dir, to }));
    cli_show_path(cfg, cfg->output);
out:
    tr_pool_close(pool);
    tr_model_close(m);
    tr_ckpt_release(&lease);
    return st;
}

static enum tr_status export_model(const struct tr_config *cfg, const char *dir, const char *other)
{
    enum tr_status st = TR_OK;
    struct tr_ckpt_lease lease = { 0 };
    (void)other;
    TR_TRY(cli_need_output(cfg));
    TR_TRY(tr_new_dir_check(cfg->output)); /* before all is verified, which takes long */
    if (tr_dir_has(dir, TR_ADAPTER_CONFIG))
        return ckpt_export_adapter(cfg, dir);
    if (cfg->to == TR_EXPORT_PEFT)
        return tr_fail(TR_USAGE, "%s is no adapter (it has no " TR_ADAPTER_CONFIG "); --to %s is for one", dir,
                       tr_config_word("to", (int)cfg->to));
    if (cfg->to >= TR_EXPORT_NF4 && cfg->to <= TR_EXPORT_FP4_DOUBLE)
        return export_bnb4(cfg, dir);
    TR_TRY(tr_ckpt_lease(dir, &lease));
    TR_TRY(verify_checkpoint(dir));
    TR_TRY(ckpt_export_model(cfg, dir));
out:
    tr_ckpt_release(&lease);
    return st;
}

static enum tr_status copy_text(void *ctx, int64_t step, struct tr_str *out)
{
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    (void)step;
    enum tr_status st = tr_path_join(path, ctx, TR_NAME_TRAINER_STATE);
    if (st == TR_OK)
        st = tr_file_read(path, 1 << 30, &text, &n);
    if (st == TR_OK)
        tr_str_add(out, text, n);
    free(text);
    return st;
}

static enum tr_status reshard(const struct tr_config *cfg, const char *dir, const char *other)
{
    enum tr_status st = TR_OK;
    struct rewrite r = { 0 };
    struct tr_ckpt_info info;
    struct tr_save_result res = { 0 };
    struct tr_ckpt_lock *lock = NULL;
    char path[TR_PATH_MAX], *state = NULL;
    size_t n = 0;
    bool is_started = false, is_done = false;
    (void)other;
    TR_TRY(cli_need_output(cfg));
    TR_TRY(open_rewrite(&r, cfg, dir));
    TR_TRY(tr_ckpt_peek(dir, &info));
    TR_TRY(tr_path_join(path, dir, "trireme/state.json"));
    TR_TRY(tr_file_read(path, 4 << 20, &state, &n));
    struct tr_save_job job = { .output = cfg->output,
                               .run_id = info.run_id,
                               .step = info.step,
                               .generation = info.generation,
                               .state = state,
                               .trainer_state = copy_text,
                               .ctx = (void *)(uintptr_t)dir,
                               .keep = { 0, 0, false } };
    TR_TRY(tr_ckpt_lock(cfg->output, info.run_id, info.generation, &lock)); /* a run may be at work there */
    TR_TRY(tr_ckpt_sweep(cfg->output, NULL));                               /* of one that was killed */
    TR_TRY(tr_saver_start(r.sv, &job, &is_started));
    TR_TRY(tr_saver_wait(r.sv, 3600, &is_done, &res));
    if (res.status != TR_OK)
        TR_TRY(tr_fail(res.status, "%s", res.cause));
    TR_TRY(tr_ckpt_step_path(cfg->output, info.step, path));
    cli_show_path(cfg, path);
out:
    tr_ckpt_unlock(lock);
    close_rewrite(&r);
    free(state);
    return st;
}

static const struct {
    const char *name;
    enum tr_status (*run)(const struct tr_config *cfg, const char *dir, const char *other);
} subs[] = { { "list", list },        { "show", show },           { "verify", verify },
             { "newest", newest },    { "diff", diff },           { "prune", prune },
             { "merge", ckpt_merge }, { "export", export_model }, { "reshard", reshard } };

enum tr_status cmd_ckpt(const struct tr_config *cfg)
{
    const char *sub = cfg->args.n > 0 ? cfg->args.item[0] : NULL, *dir = cfg->args.n > 1 ? cfg->args.item[1] : NULL;
    for (size_t i = 0; sub && dir && i < TR_COUNT_OF(subs); i++)
        if (strcmp(subs[i].name, sub) == 0)
            return !tr_dir_exists(dir) ? tr_fail(TR_USAGE, "%s: no such directory", dir)
                                       : subs[i].run(cfg, dir, cfg->args.n > 2 ? cfg->args.item[2] : NULL);
    return tr_verb_misused(TR_VERB_CKPT);
}
