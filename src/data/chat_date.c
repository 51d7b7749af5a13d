/* chat_date.c - see chat_date.h.
 *
 * A template that uses the date could give different tokens on different ranks and after a restart. So a run has one
 * date: the given one, or that of its first start, which is kept beside the cached tokens.
 */
#include "data/chat_date.h"
#include "data/cache.h"

#include <stdlib.h>

static enum tr_status read_date(struct tr_chat *c, const char *path)
{
    enum { MAX_BYTES = 64 };
    char *text = NULL;
    size_t n;
    enum tr_status st = tr_file_read(path, MAX_BYTES, &text, &n);
    if (st == TR_OK)
        st = tr_chat_set_date(c, text);
    free(text);
    return st == TR_OK ? TR_OK : tr_fail_at(st, "%s: ", path);
}

/* Keeps the date of the chat's clock for this start and all later ones. */
static enum tr_status write_date(const struct tr_chat *c, const char *dir, const char *name)
{
    char text[TR_DATE_MAX + 1];
    tr_chat_get_date(c, text);
    size_t n = strlen(text);
    if (n == 0)
        return tr_fail(TR_IO, "the clock of this machine gives no date; set the clock, or give chat_date");
    text[n++] = '\n';
    return tr_cache_write(dir, name, text, n);
}

enum tr_status tr_data_fix_date(struct tr_chat *c, const char *date, const char *dir)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    struct tr_cache cache = { dir, INT64_C(3600000000), -1 };
    if (!tr_chat_uses_date(c))
        return TR_OK;
    if (date) {
        st = tr_chat_set_date(c, date);
        return st == TR_OK ? TR_OK : tr_fail_at(st, "chat_date ");
    }
    TR_TRY(tr_path_join(path, dir, "chat_date"));
    if (!tr_file_exists(path)) { /* the lock makes ranks that start together use one date */
        TR_TRY(tr_cache_lock(&cache));
        if (!tr_file_exists(path))
            TR_TRY(write_date(c, dir, "chat_date"));
    }
    TR_TRY(read_date(c, path));
out:
    tr_cache_unlock(&cache);
    return st;
}
