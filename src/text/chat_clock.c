/* chat_clock.c - the hash of everything that a chat's rendering depends on, and its date.
 *
 * A template that uses the date gives other tokens on each day. The hash is part of the key of cached tokens, so it
 * holds the date, but only when a template uses it.
 */
#include "text/chat_impl.h"
#include "text/jinja_tree.h"

#include <string.h>
#include <time.h>

static bool asks_clock(const struct tr_jinja *t)
{
    /* the cast is safe: a lookup without `add` does not change the template */
    return t && tr_jinja_intern((struct tr_jinja *)(uintptr_t)t, "strftime_now", strlen("strftime_now"), false) != NULL;
}

bool tr_chat_uses_date(const struct tr_chat *c)
{
    return asks_clock(c->plain) || asks_clock(c->with_tools);
}

enum tr_status tr_chat_hash(const struct tr_chat *c, struct tr_hash128 *out)
{
    char plain[33], tools[33] = "";
    struct tr_str s = { 0 };
    char *vars = cJSON_PrintUnformatted(c->vars);
    tr_hash_hex(c->plain->hash, plain);
    if (c->with_tools)
        tr_hash_hex(c->with_tools->hash, tools);
    tr_str_addf(&s, "%s %s %" PRId64 " %s", plain, tools, tr_chat_uses_date(c) ? c->now_s : 0, vars ? vars : "");
    bool is_ok = vars && tr_str_ok(&s);
    if (is_ok)
        *out = tr_hash(s.p, s.n);
    cJSON_free(vars);
    tr_str_release(&s);
    return is_ok ? TR_OK : tr_fail(TR_NOMEM, "no memory for the hash of a chat template");
}

enum tr_status tr_chat_set_date(struct tr_chat *c, const char *text)
{
    struct tm t = { 0 };
    const char *end = strptime(text, "%Y-%m-%d", &t);
    bool is_all = end && (*end == 0 || strcmp(end, "\n") == 0);
    struct tm same = t;
    int64_t now_s = is_all ? (int64_t)timegm(&same) : -1;
    if (now_s < 0 || same.tm_mday != t.tm_mday)
        return tr_fail(TR_USAGE, "\"%.32s\" is not a date like 2026-01-31", text);
    c->now_s = now_s;
    return TR_OK;
}

void tr_chat_get_date(const struct tr_chat *c, char out[TR_DATE_MAX])
{
    time_t t = (time_t)c->now_s;
    struct tm tm;
    out[0] = 0;
    if (tr_chat_uses_date(c) && gmtime_r(&t, &tm))
        (void)strftime(out, TR_DATE_MAX, "%Y-%m-%d", &tm);
}
