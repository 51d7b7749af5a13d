/* text.c - what a model's directory says about texts, checked before it is handed on: where generation stops, and where
 * the chat template ends a turn. A runtime that misses the end of a turn talks without end. A run writes the template
 * that it was trained with beside its weights (src/train/chat_files.c), and the hashes of a checkpoint cover it. */
#include "export/vocab.h"

void tr_export_text_close(struct tr_export_text *t)
{
    tr_tokenizer_close(t->tok);
    tr_chat_close(t->chat);
    tr_ids_release(&t->stops);
    *t = (struct tr_export_text){ 0 };
}

static bool has_stop(const struct tr_export_text *t, int32_t id)
{
    for (size_t i = 0; i < t->stops.n; i++)
        if (t->stops.p[i] == id)
            return true;
    return false;
}

static enum tr_status load_optional(const char *dir, const char *name, cJSON **out)
{
    char path[TR_PATH_MAX];
    enum tr_status st = tr_path_join(path, dir, name);
    return st == TR_OK && tr_file_exists(path) ? tr_json_load(path, 4 << 20, out) : st;
}

/* eos_token_id of generation_config.json, else of config.json: a number or a list of them. */
static enum tr_status load_stops(const char *dir, const struct tr_model *m, struct tr_export_text *t)
{
    enum tr_status st = TR_OK;
    cJSON *generation = NULL;
    TR_TRY(load_optional(dir, "generation_config.json", &generation));
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(generation, "eos_token_id");
    if (!eos || cJSON_IsNull(eos))
        eos = cJSON_GetObjectItemCaseSensitive(m->config, "eos_token_id");
    for (const cJSON *k = cJSON_IsArray(eos) ? eos->child : eos; k; k = cJSON_IsArray(eos) ? k->next : NULL) {
        if (cJSON_IsNull(k))
            continue;
        if (!cJSON_IsNumber(k) || !(k->valuedouble >= 0 && k->valuedouble < (double)m->hp.vocab))
            TR_TRY(tr_fail(TR_USAGE, "eos_token_id %g is no id of the vocabulary of %" PRId64 " tokens", k->valuedouble,
                           m->hp.vocab));
        TR_TRY(tr_ids_add(&t->stops, (int32_t)k->valuedouble));
    }
out:
    cJSON_Delete(generation);
    return st;
}

static enum tr_status check_ends(const char *dir, struct tr_export_text *t)
{
    int32_t eos = tr_tokenizer_eos(t->tok);
    char shown[80];
    const char *text = "";
    size_t n = 0;
    if (eos >= 0 && t->stops.n > 0 && !has_stop(t, eos)) {
        (void)tr_tokenizer_token(t->tok, eos, &text, &n);
        return tr_fail(TR_USAGE,
                       "%s: the tokenizer's eos_token %s is id %" PRId32
                       ", which is not among eos_token_id of generation_config.json and config.json: a runtime would "
                       "not stop there; make them agree",
                       dir, tr_escape(text, shown, sizeof shown), eos);
    }
    if (!t->chat)
        return TR_OK;
    if (tr_chat_find_end(t->chat, t->tok, &t->end) != TR_OK) {
        tr_error_clear(); /* the template takes no such conversation: nothing is known of its end */
        t->end = (struct tr_chat_end){ 0 };
    }
    if (t->end.n_ids == 1 && t->stops.n > 0 && !has_stop(t, t->end.id))
        return tr_fail(TR_USAGE,
                       "%s: the chat template ends a turn with %s (id %" PRId32
                       "), which is not among eos_token_id of generation_config.json: a runtime would talk on behind "
                       "an answer; add the id there",
                       dir, tr_escape(t->end.text, shown, sizeof shown), t->end.id);
    return TR_OK;
}

static enum tr_status open_text(const char *dir, const struct tr_model *m, struct tr_export_text *t)
{
    char json[TR_PATH_MAX], old[TR_PATH_MAX];
    TR_PASS(load_stops(dir, m, t));
    TR_PASS(tr_path_join(json, dir, "tokenizer.json"));
    TR_PASS(tr_path_join(old, dir, "vocab.json"));
    if (!tr_file_exists(json) && !tr_file_exists(old))
        return TR_OK;
    TR_PASS(tr_tokenizer_open(dir, &t->tok));
    if (tr_tokenizer_vocab_size(t->tok) > m->hp.vocab)
        return tr_fail(TR_USAGE, "%s: the tokenizer has ids up to %" PRId64 ", the model a vocabulary of %" PRId64, dir,
                       tr_tokenizer_vocab_size(t->tok) - 1, m->hp.vocab);
    enum tr_status st = tr_chat_open(dir, NULL, &t->chat);
    if (st == TR_USAGE) { /* a model without a template is asked in plain text */
        tr_error_clear();
        st = TR_OK;
    }
    TR_PASS(st);
    return check_ends(dir, t);
}

enum tr_status tr_export_text_open(const char *dir, const struct tr_model *m, struct tr_export_text *out)
{
    *out = (struct tr_export_text){ 0 };
    enum tr_status st = open_text(dir, m, out);
    if (st != TR_OK)
        tr_export_text_close(out);
    return st;
}
