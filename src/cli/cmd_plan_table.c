/* cmd_plan_table.c - plan --table: models beside strategies. */
#include "cli/cli.h"
#include "plan/plan.h"
#include <stdlib.h>

enum { MODELS_MAX = 64 };

struct table {
    struct tr_machine machine;
    struct tr_search_query q; /* of the last model */
    struct tr_search s;
    struct tr_table_row row[MODELS_MAX];
    char name[MODELS_MAX][TR_PATH_MAX];
    int n;
};

/* A path that has commas is one model. */
static enum tr_status split(const char *text, struct table *t)
{
    bool is_path = tr_dir_exists(text) || tr_file_exists(text);
    for (const char *p = text;;) {
        size_t len = is_path ? strlen(p) : strcspn(p, ",");
        if (t->n == MODELS_MAX)
            return tr_fail(TR_USAGE, "plan --table: more than %d models", MODELS_MAX);
        if (len == 0)
            return tr_fail(TR_USAGE, "plan --table: an empty name in --model %s; write 7B,13B,70B", text);
        if (tr_format(t->name[t->n], TR_PATH_MAX, "%.*s", (int)len, p) != TR_OK)
            return TR_USAGE;
        t->n++;
        if (p[len] == '\0')
            return TR_OK;
        p += len + 1;
    }
}

static enum tr_status fill(const struct tr_config *cfg, int i, struct table *t)
{
    struct tr_config one = *cfg;
    struct tr_model *model = NULL;
    enum tr_status st = TR_OK;
    one.model = t->name[i];
    TR_TRY(plan_query_open(&one, &t->machine, &model, &t->q));
    if (!tr_config_is_set(cfg, "train_batch_size"))
        t->q.base.global = (double)(cfg->per_device_train_batch_size * cfg->gradient_accumulation_steps * t->q.gpus);
    t->row[i] = (struct tr_table_row){ .model = one.model, .parameters = (double)model->n_elements };
    TR_TRY(tr_table_find(&t->q, &t->machine, &t->s, &t->row[i]));
out:
    t->q.model = NULL;
    tr_model_close(model);
    return st;
}

/* What the names and sizes stand for, below the table. */
static enum tr_status add_notes(const struct table *t, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    tr_str_addf(out, "\n");
    for (int i = 0; st == TR_OK && i < t->n; i++) {
        struct tr_str about = { 0 };
        st = tr_known_about(t->name[i], &about);
        if (about.n)
            tr_str_addf(out, "%s\n", about.p);
        tr_str_release(&about);
    }
    return st;
}

enum tr_status cmd_plan_table(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct tr_str out = { 0 };
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "plan: out of memory");
    if (!cfg->model)
        TR_TRY(tr_fail(TR_USAGE, "plan --table needs --model, like 7B,13B,70B"));
    TR_TRY(split(cfg->model, t));
    for (int i = 0; i < t->n; i++)
        TR_TRY(fill(cfg, i, t));
    if (cfg->json) {
        tr_table_json(t->row, t->n, &t->q, &out);
    } else {
        tr_table_text(t->row, t->n, &t->q, &out);
        TR_TRY(add_notes(t, &out));
    }
    if (tr_str_ok(&out))
        cli_print(out.p);
out:
    tr_str_release(&out);
    free(t);
    return st;
}
