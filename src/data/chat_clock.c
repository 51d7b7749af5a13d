/* chat_clock.c - what a chat depends on, as one hash; and the one thing of it that changes by itself, the date.
 *
 * A template that asks for the date would give other tokens to every rank and every restart. So a run has one date:
 * given, or that of its first start, kept beside its cached tokens. The hash is part of their key.
 */
#include "data/chat_impl.h"
#include "data/cache.h"
#include "data/jinja_tree.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool asks_clock(const struct tr_jinja *t)
{
    /* interning without adding does not change the template */
    return t && tr_j_intern((struct tr_jinja *)(uintptr_t)t, "strftime_now", strlen("strftime_now"), false) != NULL;
}

static bool asks_date(const struct tr_chat *c)
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
    tr_str_addf(&s, "%s %s %" PRId64 " %s", plain, tools, asks_date(c) ? c->now_s : 0, vars ? vars : "");
    bool is_ok = vars && tr_str_ok(&s);
    if (is_ok)
        *out = tr_hash(s.p, s.n);
    cJSON_free(vars);
    tr_str_release(&s);
    return is_ok ? TR_OK : tr_fail(TR_NOMEM, "no memory for the hash of a chat template");
}

static enum tr_status parse_date(const char *text, int64_t *out)
{
    struct tm t = { 0 };
    const char *end = strptime(text, "%Y-%m-%d", &t);
    bool is_all = end && (*end == 0 || strcmp(end, "\n") == 0);
    struct tm same = t;
    int64_t now_s = is_all ? (int64_t)timegm(&same) : -1;
    if (now_s < 0 || same.tm_mday != t.tm_mday)
        return tr_fail(TR_USAGE, "\"%.32s\" is not a date like 2026-01-31", text);
    *out = now_s;
    return TR_OK;
}

static enum tr_status read_date(const char *path, int64_t *out)
{
    enum { MAX_BYTES = 64 };
    char *text = NULL;
    size_t n;
    enum tr_status st = tr_file_read(path, MAX_BYTES, &text, &n);
    if (st == TR_OK)
        st = parse_date(text, out);
    free(text);
    return st == TR_OK ? TR_OK : tr_fail_at(st, "%s: ", path);
}

/* Today, for this and all later starts. */
static enum tr_status write_date(const char *path, int64_t now_s)
{
    char text[16];
    time_t t = (time_t)now_s;
    struct tm tm;
    size_t n = gmtime_r(&t, &tm) ? strftime(text, sizeof text, "%Y-%m-%d\n", &tm) : 0;
    return n ? tr_file_write_atomic(path, text, n) : tr_fail(TR_IO, "the clock is wrong: %" PRId64, now_s);
}

enum tr_status tr_chat_fix_date(struct tr_chat *c, const char *date, const char *dir)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    struct tr_cache cache = { dir, INT64_C(3600000000), -1 };
    if (!asks_date(c))
        return TR_OK;
    if (date) {
        st = parse_date(date, &c->now_s);
        return st == TR_OK ? TR_OK : tr_fail_at(st, "chat_date ");
    }
    TR_TRY(tr_path_join(path, dir, "chat_date"));
    if (!tr_file_exists(path)) { /* ranks that start together agree on one */
        TR_TRY(tr_cache_lock(&cache));
        if (!tr_file_exists(path))
            TR_TRY(write_date(path, c->now_s));
    }
    TR_TRY(read_date(path, &c->now_s));
out:
    tr_cache_unlock(&cache);
    return st;
}

void tr_chat_get_date(const struct tr_chat *c, char out[TR_DATE_MAX])
{
    time_t t = (time_t)c->now_s;
    struct tm tm;
    out[0] = 0;
    if (asks_date(c) && gmtime_r(&t, &tm))
        (void)strftime(out, TR_DATE_MAX, "%Y-%m-%d", &tm);
}
