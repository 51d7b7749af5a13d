/* chat_hash.c - what a chat depends on, as one hash: part of the key of cached tokens. */
#include "data/chat_impl.h"
#include "data/jinja_tree.h"

static bool asks_clock(const struct tr_jinja *t)
{
    /* interning without adding does not change the template */
    return t && tr_j_intern((struct tr_jinja *)(uintptr_t)t, "strftime_now", strlen("strftime_now"), false) != NULL;
}

enum tr_status tr_chat_hash(const struct tr_chat *c, struct tr_hash128 *out)
{
    char plain[33], tools[33] = "";
    struct tr_str s = { 0 };
    char *vars = cJSON_PrintUnformatted(c->vars);
    tr_hash_hex(c->plain->hash, plain);
    if (c->with_tools)
        tr_hash_hex(c->with_tools->hash, tools);
    bool is_timed = asks_clock(c->plain) || asks_clock(c->with_tools);
    tr_str_addf(&s, "%s %s %" PRId64 " %s", plain, tools, is_timed ? c->now_s : 0, vars ? vars : "");
    bool is_ok = vars && tr_str_ok(&s);
    if (is_ok)
        *out = tr_hash(s.p, s.n);
    cJSON_free(vars);
    tr_str_release(&s);
    return is_ok ? TR_OK : tr_fail(TR_NOMEM, "no memory for the hash of a chat template");
}
