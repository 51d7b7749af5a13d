/* page.c - the page as one file: its parts inline, allowed by their hashes and nothing else, and every answer that it
 * would ask a server for. */
#include "watch/watch_impl.h"

enum { FILE_POINTS = 2000, FILE_LOGS = 8 };

static void add_base64(struct tr_str *out, const unsigned char *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)p[i] << 16 | (i + 1 < n ? (unsigned)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        tr_str_addf(out, "%c%c%c%c", digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                    i + 2 < n ? digits[v & 63] : '=');
    }
}

static void add_hashes(struct tr_str *out, const char *ending)
{
    for (size_t i = 0; i < tr_n_assets; i++) {
        unsigned char hash[TR_SHA256_BYTES];
        const char *dot = strrchr(tr_assets[i].name, '.');
        if (!dot || strcmp(dot, ending) != 0)
            continue;
        tr_sha256(tr_assets[i].text, tr_assets[i].n, hash);
        tr_str_addf(out, " 'sha256-");
        add_base64(out, hash, sizeof hash);
        tr_str_addf(out, "'");
    }
}

static void add_policy(struct tr_str *out)
{
    tr_str_addf(out,
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; base-uri "
                "'none'; form-action 'none'; script-src");
    add_hashes(out, ".js");
    tr_str_addf(out, "; style-src");
    add_hashes(out, ".css");
    tr_str_addf(out, "\">\n");
}

/* An answer as a member; '<' is written so that no text of a run can end the element. */
static enum tr_status add_answer(struct tr_watch_run *const *runs, size_t n_runs, const char *path, struct tr_str *out)
{
    struct tr_str answer = { 0 };
    enum tr_status st = tr_watch_query(runs, n_runs, path, &answer);
    tr_str_addf(out, ",\n\"%s\":", path);
    for (size_t i = 0, n; st == TR_OK && i < answer.n; i += n) {
        n = strcspn(answer.p + i, "<");
        tr_str_add(out, answer.p + i, n);
        if (answer.p[i + n] == '<') {
            tr_str_addf(out, "\\u003c");
            n++;
        }
    }
    tr_str_release(&answer);
    return st;
}

static enum tr_status add_data(struct tr_watch_run *const *runs, size_t n_runs, struct tr_str *out)
{
    static const char *const of_run[] = { "/api/run", "/api/ranks", "/api/health", "/api/heat", "/api/timeline" };
    char path[64];
    tr_str_addf(out, "<script type=\"application/json\" id=\"data\">{\"written\":%.0f", tr_clock_wall());
    TR_PASS(add_answer(runs, n_runs, "/api/runs", out));
    for (size_t r = 0; r < n_runs; r++) {
        for (size_t i = 0; i < TR_COUNT_OF(of_run); i++) {
            (void)snprintf(path, sizeof path, "%s?run=%zu", of_run[i], r);
            TR_PASS(add_answer(runs, n_runs, path, out));
        }
        (void)snprintf(path, sizeof path, "/api/series?run=%zu&n=%d", r, FILE_POINTS);
        TR_PASS(add_answer(runs, n_runs, path, out));
        for (int i = 0; i < FILE_LOGS; i++) {
            (void)snprintf(path, sizeof path, "/api/log?run=%zu&which=%d", r, i);
            TR_PASS(add_answer(runs, n_runs, path, out));
        }
    }
    tr_str_addf(out, "}</script>\n");
    return TR_OK;
}

/* The asset whose tag begins at p, and in *n the bytes of that tag; NULL: none does. */
static const struct tr_asset *asset_at(const char *p, size_t *n)
{
    char tag[128];
    for (size_t i = 0; i < tr_n_assets; i++) {
        bool is_script = strstr(tr_assets[i].type, "javascript") != NULL;
        (void)snprintf(tag, sizeof tag,
                       is_script ? "<script src=\"%s\"></script>" : "<link rel=\"stylesheet\" href=\"%s\">",
                       tr_assets[i].name);
        *n = strlen(tag);
        if (strncmp(p, tag, *n) == 0)
            return &tr_assets[i];
    }
    return NULL;
}

enum tr_status tr_watch_html(struct tr_watch_run *const *runs, size_t n_runs, struct tr_str *out)
{
    static const char charset[] = "<meta charset=\"utf-8\">\n";
    bool has_data = false;
    for (const char *p = tr_assets[0].text; *p;) {
        size_t n;
        const struct tr_asset *a = asset_at(p, &n);
        bool is_script = a && strstr(a->type, "javascript") != NULL;
        if (is_script && !has_data)
            TR_PASS(add_data(runs, n_runs, out));
        has_data |= is_script;
        if (a) {
            tr_str_addf(out, "<%s>", is_script ? "script" : "style");
            tr_str_add(out, a->text, a->n);
            tr_str_addf(out, "</%s>", is_script ? "script" : "style");
        } else if (strncmp(p, charset, sizeof charset - 1) == 0) {
            n = sizeof charset - 1;
            tr_str_add(out, p, n);
            add_policy(out);
        } else {
            n = 1;
            tr_str_add(out, p, 1);
        }
        p += n;
    }
    return tr_str_check(out, "the page");
}
