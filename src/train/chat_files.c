/* chat_files.c - a model that was trained on conversations is asked in the same words and stops where it learnt to
 * stop: the output has the template of the training, and the end of a turn among the ids at which generation stops.
 *
 * An end of turn that is several tokens is said and not refused: a server may stop at its text.
 */
#include "train/saving.h"

void tr_chat_files_release(struct tr_chat_files *f)
{
    tr_str_release(&f->jinja);
    tr_str_release(&f->generation);
}

/* Has a file of the data been rendered by the template? */
static bool has_conversations(const struct tr_data *data)
{
    size_t n;
    const struct tr_data_file *f = tr_data_files(data, &n);
    for (size_t i = 0; i < n; i++)
        if (f[i].uses_chat)
            return true;
    return false;
}

static bool has_id(const cJSON *config, int32_t id)
{
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(config, "eos_token_id");
    for (const cJSON *k = cJSON_IsArray(eos) ? eos->child : eos; k; k = cJSON_IsArray(eos) ? k->next : NULL)
        if (cJSON_IsNumber(k) && k->valuedouble == (double)id)
            return true;
    return false;
}

/* Where a model has no generation_config.json, libraries take the ids of config.json. */
static enum tr_status load_generation(const struct tr_setup *s, cJSON **out)
{
    char path[TR_PATH_MAX];
    TR_PASS(tr_path_join(path, s->from.text, "generation_config.json"));
    if (tr_file_exists(path))
        return tr_json_load(path, 1 << 20, out);
    *out = cJSON_CreateObject();
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(s->model->config, "eos_token_id");
    cJSON *copy = eos ? cJSON_Duplicate(eos, true) : NULL;
    if (!*out || (eos && !copy) || (copy && !cJSON_AddItemToObject(*out, "eos_token_id", copy)))
        return tr_fail(TR_NOMEM, "generation_config.json: out of memory");
    return TR_OK;
}

static enum tr_status add_id(cJSON *config, int32_t id)
{
    cJSON *list = cJSON_CreateArray(), *eos = cJSON_DetachItemFromObjectCaseSensitive(config, "eos_token_id");
    bool is_ok = list && cJSON_AddItemToObject(config, "eos_token_id", list);
    for (const cJSON *k = cJSON_IsArray(eos) ? eos->child : eos; k && is_ok; k = cJSON_IsArray(eos) ? k->next : NULL)
        if (cJSON_IsNumber(k))
            is_ok = cJSON_AddItemToArray(list, cJSON_CreateNumber(k->valuedouble));
    is_ok = is_ok && cJSON_AddItemToArray(list, cJSON_CreateNumber(id));
    cJSON_Delete(eos);
    return is_ok ? TR_OK : tr_fail(TR_NOMEM, "generation_config.json: out of memory");
}

/* generation_config.json, where the end of a turn is missing from it. */
static enum tr_status mend_generation(const struct tr_setup *s, const struct tr_chat_end *end,
                                      struct tr_chat_files *out)
{
    enum tr_status st = TR_OK;
    cJSON *config = NULL;
    char *text = NULL, shown[80];
    TR_TRY(load_generation(s, &config));
    if (has_id(config, end->id))
        goto out;
    TR_TRY(add_id(config, end->id));
    text = cJSON_Print(config);
    if (!text)
        TR_TRY(tr_fail(TR_NOMEM, "generation_config.json: out of memory"));
    tr_str_addf(&out->generation, "%s\n", text);
    TR_TRY(tr_format(out->note, sizeof out->note,
                     "generation_config.json of the output gets eos_token_id %" PRId32
                     " (%s), the end of a turn, beside those of the model: generation stops there",
                     end->id, tr_escape(end->text, shown, sizeof shown)));
out:
    cJSON_free(text);
    cJSON_Delete(config);
    return st;
}

static enum tr_status check_end(const struct tr_setup *s, const struct tr_chat *chat, const struct tr_tokenizer *tok,
                                struct tr_chat_files *out)
{
    struct tr_chat_end end;
    if (tr_chat_find_end(chat, tok, &end) != TR_OK) {
        tr_error_clear(); /* the template takes no such conversation: nothing is known of its end */
        return TR_OK;
    }
    return end.n_ids == 1 ? mend_generation(s, &end, out) : TR_OK;
}

/* *out: the template of the training; NULL: nothing was rendered by it. */
static enum tr_status open_chat(const struct tr_setup *s, const struct tr_data *data, const struct tr_tokenizer *tok,
                                struct tr_chat **out)
{
    *out = NULL;
    if (!tok || !has_conversations(data))
        return TR_OK;
    enum tr_status st = tr_chat_open(s->from.text, s->cfg->chat_template, out);
    if (st == TR_USAGE && !s->cfg->chat_template) { /* alpaca's own text needs no template */
        tr_error_clear();
        return TR_OK;
    }
    return st == TR_OK ? tr_chat_set_all(*out, s->cfg->chat_template_kwargs) : st;
}

enum tr_status tr_chat_files_make(const struct tr_setup *s, const struct tr_data *data, const struct tr_tokenizer *tok,
                                  struct tr_chat_files *out)
{
    enum tr_status st = TR_OK;
    struct tr_chat *chat = NULL;
    *out = (struct tr_chat_files){ 0 };
    TR_TRY(open_chat(s, data, tok, &chat));
    if (!chat)
        goto out;
    if (s->cfg->chat_template)
        tr_str_addf(&out->jinja, "%s", tr_chat_source(chat));
    TR_TRY(check_end(s, chat, tok, out));
    if (!tr_str_ok(&out->jinja) || !tr_str_ok(&out->generation))
        TR_TRY(tr_fail(TR_NOMEM, "chat template: out of memory"));
out:
    tr_chat_close(chat);
    return st;
}

/* ---- before step 0 ---- */

static enum tr_status refuse_untrained(const struct tr_setup *s, const struct tr_chat_end *end, const char *path)
{
    char shown[80], file[400];
    return tr_fail(TR_USAGE,
                   "%s: the end of a turn, %s (id %" PRId32 "), is a target in no record, so the model never learns to "
                   "stop; give a longer --sequence_length than %" PRId64 " where answers are cut, or let the last "
                   "message of the assistant have a loss (--train_on, weights and train flags of messages)",
                   tr_escape(path, file, sizeof file), tr_escape(end->text, shown, sizeof shown), end->id,
                   s->sequence_length);
}

static enum tr_status refuse_bos(const struct tr_tokenizer *tok, int32_t bos, const char *path)
{
    char shown[80], file[400];
    struct tr_str text = { 0 };
    enum tr_status st = tr_tokenizer_decode(tok, &bos, 1, &text);
    if (st == TR_OK)
        st = tr_fail(TR_USAGE,
                     "%s: conversations begin with %s (id %" PRId32 ") twice; the chat template writes it twice: leave "
                     "one {{ bos_token }} in it",
                     tr_escape(path, file, sizeof file), tr_escape(text.p, shown, sizeof shown), bos);
    tr_str_release(&text);
    return st;
}

/* One source lacks what others have: the model may learn it from those. */
static void note_untrained(const struct tr_chat_end *end, const char *path, struct tr_str *notes)
{
    char shown[80], file[400];
    tr_str_addf(notes,
                "%s: the end of a turn, %s (id %" PRId32 "), is a target in no record of this source, only in others; "
                "are its answers cut by --sequence_length, or without a loss?\n",
                tr_escape(path, file, sizeof file), tr_escape(end->text, shown, sizeof shown), end->id);
}

/* An end of turn at which generation cannot stop. */
static void note_end(const struct tr_chat_end *end, struct tr_str *notes)
{
    char shown[80];
    if (end->n_ids == 0)
        tr_str_addf(notes, "the chat template has no end-of-turn token behind an answer: the model does not learn to "
                           "stop; name a --chat_template that ends its turns\n");
    else if (end->n_ids > 1)
        tr_str_addf(notes,
                    "the end of a turn, %s, is %zu tokens of this tokenizer: generation stops at one id and not at a "
                    "text; name a --chat_template whose end of turn is one token of the model\n",
                    tr_escape(end->text, shown, sizeof shown), end->n_ids);
}

static enum tr_status check_sources(const struct tr_setup *s, const struct tr_data *data,
                                    const struct tr_tokenizer *tok, const struct tr_chat_end *end, struct tr_str *notes)
{
    size_t n, n_chats = 0, n_untrained = 0, i_first = 0;
    const struct tr_data_file *f = tr_data_files(data, &n);
    int32_t bos = tr_tokenizer_bos(tok);
    struct tr_data_turns turns;
    for (size_t i = 0; i < n; i++) {
        if (!f[i].uses_chat)
            continue;
        TR_PASS(tr_data_find_turns(data, i, end->id, bos, &turns));
        if (turns.n_bos > 1)
            return refuse_bos(tok, bos, f[i].path);
        n_chats++;
        if (!turns.has_end && n_untrained++ == 0)
            i_first = i;
    }
    if (end->n_ids != 1 || n_untrained == 0)
        return TR_OK;
    if (n_untrained == n_chats)
        return refuse_untrained(s, end, f[i_first].path);
    note_untrained(end, f[i_first].path, notes);
    if (n_untrained > 1)
        tr_str_addf(notes, "and so it is in %zu more sources of conversations\n", n_untrained - 1);
    return tr_str_check(notes, "a check of conversations");
}

enum tr_status tr_check_turns(const struct tr_setup *s, const struct tr_data *data, const struct tr_tokenizer *tok,
                              struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    struct tr_chat *chat = NULL;
    struct tr_chat_end end;
    if (s->cfg->data_proof == TR_DATA_PROOF_NONE)
        return TR_OK;
    TR_TRY(open_chat(s, data, tok, &chat));
    if (!chat)
        goto out;
    if (tr_chat_find_end(chat, tok, &end) == TR_OK)
        note_end(&end, notes);
    else
        tr_error_clear(); /* as above; of BOS something is known */
    TR_TRY(check_sources(s, data, tok, &end, notes));
out:
    tr_chat_close(chat);
    return st;
}
