/* fuzz_adapter.c - any bytes as adapter_config.json: they are refused, or an adapter comes out that decides for every
 * module of a small model and prints to a file that reads back to the same decisions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "adapter/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char config[] =
    "{\"model_type\":\"llama\",\"vocab_size\":32,\"hidden_size\":16,\"intermediate_size\":32,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"tie_word_embeddings\":true}";

static struct tr_model *model(void)
{
    static struct tr_model *m;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 8, .dropout = -1 };
    cJSON *tree = NULL;
    if (m)
        return m;
    TR_BUG_ON(tr_json_parse(config, sizeof config - 1, "config", &tree) != TR_OK);
    TR_BUG_ON(tr_model_from_json(tree, &opt, &m) != TR_OK);
    return m;
}

/* A start that is converted and turned back may have a scale that was rounded on the way. */
static bool is_same(double a, double b, bool is_turned_back)
{
    return !(a < b) && !(a > b) ? true : is_turned_back && fabs(a - b) <= 1e-12 * fabs(a);
}

static void same_choice(const struct tr_adapter_choice *c, const struct tr_adapter_choice *d, bool is_turned_back)
{
    TR_BUG_ON(c->n != d->n || c->n_targets != d->n_targets || c->n_trained != d->n_trained);
    for (size_t i = 0; i < c->n; i++) {
        const struct tr_adapter_target *a = &c->module[i].target, *b = &d->module[i].target;
        TR_BUG_ON(a->is_target != b->is_target || a->is_saved != b->is_saved || a->r != b->r);
        TR_BUG_ON(!is_same(a->scale, b->scale, is_turned_back));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tr_adapter *a = NULL, *again = NULL;
    struct tr_adapter_choice c = { 0 }, d = { 0 };
    struct tr_str text = { 0 };
    if (tr_adapter_parse((const char *)data, n, "fuzz", &a) != TR_OK)
        return 0;
    if (tr_adapter_choose(a, model(), &c) == TR_OK) {
        TR_BUG_ON(tr_adapter_print(a, model(), &text) != TR_OK);
        if (tr_adapter_parse(text.p, text.n, "again", &again) != TR_OK) {
            fprintf(stderr, "%s\n%s\n", tr_error_text(), text.p);
            abort();
        }
        if (tr_adapter_changes_base(a)) /* it is written as PEFT converts it, of twice the rank */
            TR_BUG_ON(tr_adapter_halve(again, tr_adapter_start_name(a)) != TR_OK);
        TR_BUG_ON(tr_adapter_choose(again, model(), &d) != TR_OK);
        same_choice(&c, &d, tr_adapter_changes_base(a));
    }
    free(c.module);
    free(d.module);
    tr_str_release(&text);
    tr_adapter_close(a);
    tr_adapter_close(again);
    return 0;
}
