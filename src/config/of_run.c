/* of_run.c - options that a run has logged: the verbs that look at a step of a run take them, so that nobody types them
 * again.
 *
 * Every start of a run logs a `config` event with all values. The last one in front of a step is of the process that
 * made the step, also after kills and resumes with other options. The values are one more source, below all that a user
 * gives. Paths were relative to the directory in which the run was started. Rejected: state.json of a checkpoint, which
 * a run has not before its first save, and which cannot say which of two starts made a step.
 */
#include "config/config_impl.h"

#include "observe/observe.h"

/* Values of the process, not of the run. Accumulation follows from the others, so that a layout may be changed. */
static const char *const unused[] = { "config",  "from",         "skip",
                                      "output",  "json",         "quiet",
                                      "threads", "allow_change", "gradient_accumulation_steps" };

static bool is_unused(const struct loader *l, const struct option *opt)
{
    for (size_t i = 0; i < TR_COUNT_OF(unused); i++)
        if (strcmp(unused[i], opt->name) == 0)
            return true;
    return l->c->pub.verb == TR_VERB_EXPLAIN && strcmp(opt->group, "mesh") == 0; /* one process explains */
}

static bool is_file(const struct option *opt)
{
    return opt->type == OPTION_DATA ||
           (opt->type == OPTION_STR && opt->arg != NULL && (strstr(opt->arg, "DIR") || strstr(opt->arg, "FILE"))) ||
           strcmp(opt->name, "chat_template") == 0;
}

/* The text as the run meant it: data is always a path; of other options a value is one when it exists. */
static const char *seen_from(const char *dir, const struct option *opt, const char *text, char out[TR_PATH_MAX])
{
    if (dir == NULL || !is_file(opt) || text[0] == '/' || text[0] == '{' || strstr(text, "://") != NULL ||
        tr_path_join(out, dir, text) != TR_OK ||
        (opt->type != OPTION_DATA && !tr_file_exists(out) && !tr_dir_exists(out))) {
        tr_error_clear();
        return text;
    }
    return out;
}

static void give_text(struct loader *l, const char *dir, const struct option *opt, const char *text, bool is_more)
{
    char path[TR_PATH_MAX];
    tr_loader_give(
        l, &(struct given){ LEVEL_RUN, opt->name, seen_from(dir, opt, text, path), "the log of the run", is_more });
}

/* A map of a source has its path inside. */
static void give_item(struct loader *l, const char *dir, const struct option *opt, const cJSON *item, bool is_more)
{
    char path[TR_PATH_MAX];
    cJSON *copy = cJSON_Duplicate(item, true);
    cJSON *inner = copy != NULL && cJSON_IsObject(copy) ? cJSON_GetObjectItemCaseSensitive(copy, "path") : NULL;
    if (opt->type == OPTION_DATA && cJSON_IsString(inner))
        cJSON_SetValuestring(inner, seen_from(dir, opt, inner->valuestring, path));
    char *text = copy == NULL ? NULL : cJSON_IsString(copy) ? strdup(copy->valuestring) : cJSON_PrintUnformatted(copy);
    if (text != NULL)
        give_text(l, dir, opt, text, is_more);
    else
        l->is_nomem = true;
    free(text);
    cJSON_Delete(copy);
}

/* A value that the run had by default and that is the default now asks for nothing: it is not said to have no effect,
 * and rows of a device may follow from another layout. */
static bool is_default(struct loader *l, const struct option *opt, const cJSON *member)
{
    const char *origin = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(member, "origin"));
    struct tr_config unset = { 0 };
    struct tr_str text = { 0 };
    bool is_same = origin != NULL && strcmp(origin, "default") == 0;
    if (origin != NULL && strcmp(origin, ROWS_THAT_DIVIDE) == 0)
        return true;
    if (!is_same)
        return false;
    if (opt->def != NULL && tr_value_parse(l, opt, opt->def, &unset) != TR_OK)
        TR_BUG_ON(!l->is_nomem);
    tr_value_print(&unset, opt, true, &text);
    cJSON *plain = tr_str_ok(&text) ? cJSON_Parse(text.p) : NULL;
    is_same = plain != NULL && cJSON_Compare(plain, cJSON_GetObjectItemCaseSensitive(member, "value"), true);
    cJSON_Delete(plain);
    tr_str_release(&text);
    return is_same;
}

static void give_all(struct loader *l, const char *dir, const cJSON *options)
{
    const cJSON *member, *item;
    cJSON_ArrayForEach(member, options)
    {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(member, "value");
        const struct option *opt = tr_option_find(l->c->pub.verb, member->string);
        if (opt == NULL || is_unused(l, opt) || value == NULL || cJSON_IsNull(value) || is_default(l, opt, member))
            continue;
        if (!cJSON_IsArray(value))
            give_item(l, dir, opt, value, false);
        else
            cJSON_ArrayForEach(item, value)
            {
                give_item(l, dir, opt, item, item != value->child);
            }
    }
}

/* What auto became: the rows of a stream are others, and not every verb has all the options that decide. */
static void say_streaming(const cJSON *config, const cJSON *options)
{
    const cJSON *is_streamed = cJSON_GetObjectItemCaseSensitive(config, "is_streamed");
    cJSON *value = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(options, "streaming"), "value");
    if (cJSON_IsBool(is_streamed) && cJSON_IsString(value))
        (void)cJSON_SetValuestring(value, cJSON_IsTrue(is_streamed) ? "true" : "false");
}

/* The last `config` event in front of a step; step 0: of the log. The step in which a run failed is not in the log. */
static enum tr_status find_config(const char *path, int64_t step, cJSON **out)
{
    struct tr_events *events = NULL;
    struct tr_event e;
    const char *kind = NULL;
    int64_t last = 0;
    TR_PASS(tr_events_open(path, 0, &events));
    tr_events_be_brief(events);
    while ((step == 0 || last < step) && tr_events_next(events, &e)) {
        if (e.kind == TR_EVENT_STEP)
            last = e.step;
        if (e.kind != TR_EVENT_OTHER || tr_json_str(e.json, "event", true, &kind) != TR_OK ||
            strcmp(kind, "config") != 0)
            continue;
        cJSON_Delete(*out);
        *out = cJSON_Duplicate(e.json, true);
    }
    tr_events_close(events);
    tr_error_clear();
    if (last + 1 < step)
        return tr_fail(TR_USAGE, "%s: no step %" PRId64 "; the last one is %" PRId64, path, step, last);
    return TR_OK;
}

/* The run that the words of a verb name; NULL: they name none. */
static const char *run_of(const struct tr_config *c)
{
    if (c->verb == TR_VERB_REPLAY || c->verb == TR_VERB_EXPLAIN)
        return c->args.n == 1 ? c->args.item[0] : NULL;
    return c->verb == TR_VERB_DATA && c->args.n == 2 && strcmp(c->args.item[0], "show") == 0 ? c->args.item[1] : NULL;
}

void tr_loader_of_run(struct loader *l)
{
    const char *output = run_of(&l->c->pub), *dir = NULL;
    char path[TR_PATH_MAX];
    cJSON *config = NULL;
    if (output == NULL)
        return;
    l->c->pub.output = output;
    if (tr_path_join(path, output, TR_NAME_EVENTS) != TR_OK || find_config(path, l->c->pub.step, &config) != TR_OK) {
        tr_loader_error(l, "%s", tr_error_text());
    } else {
        const cJSON *options = cJSON_GetObjectItemCaseSensitive(config, "options");
        if (tr_json_str(config, "directory", false, &dir) != TR_OK)
            tr_error_clear();
        if (!cJSON_IsObject(options))
            tr_loader_error(l, "%s: the options of the run are not in it; give them on the command line", path);
        say_streaming(config, options);
        give_all(l, dir, options);
    }
    cJSON_Delete(config);
}
