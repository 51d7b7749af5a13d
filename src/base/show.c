/* show.c - the one filter in front of terminals. Texts are put together from our own words and from names and values of
 * files; rather than trust every place that does so, the sinks (cli_print, cli_warn, tr_view_say, tr_report) let
 * nothing through that moves a cursor, sets a title or answers back. Rejected: escaping at each source alone, of which
 * one is always forgotten; and letting all colours through, one of which hides text.
 */
#include "base/show.h"
#include "base/base.h"

static const char *const own[] = { "\x1b[0m", "\x1b[36m", "\x1b[1;34m", "\x1b[0;32m", "\x1b[0;2m" };

static size_t own_colour(const char *p, size_t n)
{
    for (size_t i = 0; i < TR_COUNT_OF(own); i++)
        if (strlen(own[i]) <= n && memcmp(p, own[i], strlen(own[i])) == 0)
            return strlen(own[i]);
    return 0;
}

size_t tr_show(const char *text, size_t n, char *buf, size_t n_buf, size_t *used)
{
    enum { ROOM = 32 }; /* of one character, escaped */
    size_t i = 0, k = 0;
    while (i < n && k + ROOM < n_buf) {
        char one[8], shown[ROOM];
        size_t len = own_colour(text + i, n - i);
        if (len) {
            memcpy(buf + k, text + i, len);
            k += len;
            i += len;
            continue;
        }
        len = tr_utf8_len(text + i, n - i);
        len = len ? len : 1;
        memcpy(one, text + i, len);
        one[len] = 0;
        const char *p = one[0] ? tr_escape_lines(one, shown, sizeof shown) : "\\x00";
        memcpy(buf + k, p, strlen(p));
        k += strlen(p);
        i += len;
    }
    *used = i;
    return k;
}

size_t tr_show_whole(const char *text, size_t n)
{
    size_t back = 1;
    while (back < TR_SHOW_CUT && back <= n && text[n - back] != '\x1b' && (text[n - back] & 0xc0) != 0xc0)
        back++;
    if (back >= TR_SHOW_CUT || back > n)
        return n;
    const char *p = text + n - back;
    if (*p != '\x1b')
        return tr_utf8_len(p, back) || back >= 4 ? n : n - back;
    for (size_t i = 0; i < TR_COUNT_OF(own); i++)
        if (strlen(own[i]) > back && memcmp(p, own[i], back) == 0)
            return n - back;
    return back == 1 || (back == 2 && p[1] == '[') ? n - back : n; /* or it erases a line (launch) */
}

void tr_str_show(struct tr_str *s, const char *text, size_t n)
{
    char buf[512];
    for (size_t used = 0; n > 0; text += used, n -= used)
        tr_str_add(s, buf, tr_show(text, n, buf, sizeof buf, &used));
}
