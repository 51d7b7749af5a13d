/* machine_file.c - a machine as a file: lines of `key: value`, a subset of YAML that a person can write and a bench can
 * measure. Lists are [a, b, c]. An unknown key is an error, because a misspelt key would silently leave the number of
 * the base in place; so is a key that is there twice. At most 64 KiB. The files of share/machines are read by the same
 * code.
 */
#include "plan/machine_impl.h"
#include <stdlib.h>

enum { FILE_MAX = 64 << 10, LINE_MAX_BYTES = 512 };

enum key_kind { KEY_REAL, KEY_FACTOR, KEY_INT, KEY_BOOL, KEY_LIST_AT, KEY_LIST_RATE }; /* factor: of what is set */
struct key {
    const char *name;
    enum key_kind kind;
    size_t at;
    double scale, lo, hi; /* file unit -> SI; range in the file's unit */
};
#define AT(field) offsetof(struct tr_machine, field)
/* clang-format off */
#define OP(of, prefix, name, cost) { prefix name "_ns", KEY_REAL, AT(chip.of.op_s[cost]), 1e-9, 0, 1e6 }
#define SPEED(of, prefix)                                                                                              \
    { prefix "gemm_flop", KEY_LIST_AT, AT(chip.of.gemm), 1, 1, 1e18 },                                                 \
    { prefix "gemm_gflops", KEY_LIST_RATE, AT(chip.of.gemm), 1e9, 1e-3, 1e9 },                                         \
    OP(of, prefix, "norm", TR_COST_NORM), \
    OP(of, prefix, "norm_bwd", TR_COST_NORM_BWD), \
    OP(of, prefix, "rmsnorm", TR_COST_RMSNORM), \
    OP(of, prefix, "rmsnorm_bwd", TR_COST_RMSNORM_BWD), \
    OP(of, prefix, "act", TR_COST_ACT), \
    OP(of, prefix, "act_bwd", TR_COST_ACT_BWD), \
    OP(of, prefix, "glu", TR_COST_GLU), \
    OP(of, prefix, "glu_bwd", TR_COST_GLU_BWD), \
    OP(of, prefix, "rope", TR_COST_ROPE), \
    OP(of, prefix, "add", TR_COST_ADD), \
    OP(of, prefix, "sumsq", TR_COST_SUMSQ), \
    OP(of, prefix, "loss", TR_COST_LOSS), \
    OP(of, prefix, "stats", TR_COST_STATS), \
    OP(of, prefix, "stats_bwd", TR_COST_STATS_BWD), \
    OP(of, prefix, "update", TR_COST_UPDATE), \
    OP(of, prefix, "attention", TR_COST_ATTENTION), \
    OP(of, prefix, "attention_bwd", TR_COST_ATTENTION_BWD), \
    OP(of, prefix, "attention_row", TR_COST_ATTENTION_ROW), \
    OP(of, prefix, "attention_row_bwd", TR_COST_ATTENTION_ROW_BWD)
/* clang-format on */
static const struct key keys[] = {
    { "fp32_tflops", KEY_REAL, AT(chip.peak[TR_PRECISION_FP32]), 1e12, 0, 1e9 },
    { "tflops", KEY_REAL, AT(chip.peak[TR_PRECISION_16]), 1e12, 1e-6, 1e9 },
    { "fp8_tflops", KEY_REAL, AT(chip.peak[TR_PRECISION_FP8]), 1e12, 0, 1e9 },
    { "fp4_tflops", KEY_REAL, AT(chip.peak[TR_PRECISION_FP4]), 1e12, 0, 1e9 },
    { "memory_gib", KEY_REAL, AT(chip.memory_bytes), 1073741824.0, 1e-3, 1e9 },
    { "memory_gbps", KEY_REAL, AT(chip.memory_rate), 1e9, 1e-3, 1e9 },
    { "units", KEY_INT, AT(chip.n_units), 1, 1, 100000 },
    { "generation", KEY_INT, AT(chip.generation), 1, 0, 10000 },
    { "gemm_share", KEY_REAL, AT(chip.gemm_share), 1, 1e-3, 1.5 },
    { "power_share", KEY_FACTOR, AT(chip.gemm_share), 1, 1e-3, 1 },
    { "stream_share", KEY_REAL, AT(chip.stream_share), 1, 1e-3, 1.5 },
    { "launch_us", KEY_REAL, AT(chip.launch_s), 1e-6, 0, 1e6 },
    SPEED(all, ""),
    SPEED(one, "one_"),
    { "price", KEY_REAL, AT(chip.price), 1, 0, 1e6 },
    { "chips_per_link", KEY_INT, AT(domain), 1, 1, 1000000 },
    { "chips_per_host", KEY_INT, AT(node), 1, 1, 1000000 },
    { "ranks_share_a_chip", KEY_BOOL, AT(is_shared), 1, 0, 1 },
    { "meet_share", KEY_REAL, AT(meet_share), 1, 0, 10 },
    { "meet_far_share", KEY_REAL, AT(meet_far_share), 1, 0, 10 },
    { "fast_gbps", KEY_REAL, AT(fast.rate), 1e9, 1e-6, 1e9 },
    { "fast_share", KEY_REAL, AT(fast.share), 1, 1e-3, 1.5 },
    { "fast_latency_us", KEY_REAL, AT(fast.latency_s), 1e-6, 0, 1e9 },
    { "fast_ramp_us", KEY_REAL, AT(fast.ramp_s), 1e-6, 0, 1e9 },
    { "slow_gbps", KEY_REAL, AT(slow.rate), 1e9, 1e-6, 1e9 },
    { "slow_share", KEY_REAL, AT(slow.share), 1, 1e-3, 1.5 },
    { "slow_latency_us", KEY_REAL, AT(slow.latency_s), 1e-6, 0, 1e9 },
    { "slow_ramp_us", KEY_REAL, AT(slow.ramp_s), 1e-6, 0, 1e9 },
    { "host_gbps", KEY_REAL, AT(host_rate), 1e9, 1e-6, 1e9 },
    { "disk_gbps", KEY_REAL, AT(disk_rate), 1e9, 1e-6, 1e9 },
    { "mttf_hours", KEY_REAL, AT(mttf_hours), 1, 1e-3, 1e12 },
};

struct reader {
    const char *path;
    int line;
    int line_of[TR_COUNT_OF(keys)]; /* where each key was; 0: not yet */
};

static enum tr_status fail_line(const struct reader *r, const char *what, const char *value, const char *fix)
{
    char esc[80];
    return tr_fail(TR_USAGE, "%s:%d: %s \"%s\"%s", r->path, r->line, what, tr_escape(value, esc, sizeof esc), fix);
}

static const struct key *key_find(const char *name)
{
    return TR_ROW(keys, name);
}

/* The nearest key by its letters, else one that contains the word ("slow", "link"). */
static const char *key_near(const char *name)
{
    const char *names[TR_COUNT_OF(keys)];
    for (size_t i = 0; i < TR_COUNT_OF(keys); i++)
        names[i] = keys[i].name;
    const char *near = tr_nearest(name, names, TR_COUNT_OF(keys));
    for (size_t i = 0; !near && strlen(name) > 3 && i < TR_COUNT_OF(keys); i++)
        near = strstr(names[i], name) ? names[i] : NULL;
    return near;
}

static bool read_real(const struct key *k, const char *text, double *out)
{
    double x;
    if (tr_parse_real(text, &x) != TR_OK || !(x >= k->lo && x <= k->hi))
        return false;
    *out = x * k->scale;
    return true;
}

/* Reads [1, 2, 3]; splits the text in place. */
static bool read_list(const struct key *k, char *text, struct tr_curve *c)
{
    double *to = k->kind == KEY_LIST_AT ? c->at : c->rate;
    size_t n_text = strlen(text);
    int n = 0;
    if (n_text < 3 || text[0] != '[' || text[n_text - 1] != ']')
        return false;
    text[n_text - 1] = '\0';
    for (char *p = text + 1;;) {
        p += strspn(p, " ");
        size_t len = strcspn(p, ", ");
        char *next = p + len + strspn(p + len, " ");
        bool has_more = *next == ',';
        if (len == 0 || n == TR_CURVE_MAX || (*next && !has_more))
            return false;
        p[len] = '\0';
        if (!read_real(k, p, &to[n++]))
            return false;
        if (!has_more)
            break;
        p = next + 1;
    }
    for (int i = 1; k->kind == KEY_LIST_AT && i < n; i++)
        if (to[i] <= to[i - 1])
            return false;
    if (c->n > 0 && c->n != n)
        return false;
    c->n = n;
    return true;
}

static bool set_key(const struct key *k, char *value, struct tr_machine *m)
{
    char *field = (char *)m + k->at;
    double x = 0;
    if (k->kind == KEY_LIST_AT || k->kind == KEY_LIST_RATE)
        return read_list(k, value, (struct tr_curve *)(void *)field);
    if (k->kind == KEY_BOOL) {
        bool is_true = strcmp(value, "true") == 0;
        memcpy(field, &is_true, sizeof is_true);
        return is_true || strcmp(value, "false") == 0;
    }
    if (!read_real(k, value, &x))
        return false;
    if (k->kind == KEY_INT) {
        int whole = (int)x;
        memcpy(field, &whole, sizeof whole);
        return whole == x;
    }
    if (k->kind == KEY_FACTOR) {
        double set;
        memcpy(&set, field, sizeof set);
        x *= set;
    }
    memcpy(field, &x, sizeof x);
    return true;
}

static enum tr_status fail_value(const struct reader *r, const struct key *k, const char *value)
{
    char fix[120];
    switch (k->kind) {
    case KEY_BOOL:
        return fail_line(r, k->name, value, " is neither true nor false");
    case KEY_LIST_AT:
    case KEY_LIST_RATE:
        (void)tr_format(
            fix, sizeof fix,
            " is not a list of 1 to %d %snumbers from %g to %g, like [1e6, 1e9], as many in _flop as in _gflops",
            TR_CURVE_MAX, k->kind == KEY_LIST_AT ? "ascending " : "", k->lo, k->hi);
        return fail_line(r, k->name, value, fix);
    case KEY_INT:
    case KEY_REAL:
    case KEY_FACTOR:
    default:
        (void)tr_format(fix, sizeof fix, " is not a %s from %.15g to %.15g",
                        k->kind == KEY_INT ? "whole number" : "number", k->lo, k->hi);
        return fail_line(r, k->name, value, fix);
    }
}

static enum tr_status fail_key(const struct reader *r, const char *key)
{
    const char *near = key_near(key);
    char fix[80] = "; some are tflops, memory_gib, memory_gbps, fast_gbps, slow_gbps, price";
    if (near)
        (void)tr_format(fix, sizeof fix, "; did you mean %s", near);
    return fail_line(r, "no key", key, fix);
}

static enum tr_status read_base(const struct reader *r, const char *value, struct tr_machine *m)
{
    char cause[256];
    if (m->domain)
        return fail_line(r, "base", value, " must be the first line");
    if (tr_machine_find(value, m) == TR_OK)
        return TR_OK;
    (void)tr_format(cause, sizeof cause, "%.250s", tr_error_text());
    return tr_fail(TR_USAGE, "%s:%d: base: %s", r->path, r->line, cause);
}

static enum tr_status read_line(struct reader *r, const char *key, char *value, struct tr_machine *m)
{
    const struct key *k = key_find(key);
    char as_written[64];
    if (strcmp(key, "base") == 0)
        return read_base(r, value, m);
    if (!k && strcmp(key, "usual_cluster") == 0)
        return fail_line(r, key, value, " is for chips of share/machines; write base: CHIP@CLUSTER");
    if (!k)
        return fail_key(r, key);
    int *seen = &r->line_of[k - keys];
    (void)tr_format(as_written, sizeof as_written, "%.60s", value); /* set_key splits a list in place */
    if (*seen)
        return tr_fail(TR_USAGE, "%s:%d: %s is in line %d too", r->path, r->line, k->name, *seen);
    *seen = r->line;
    return set_key(k, value, m) ? TR_OK : fail_value(r, k, as_written);
}

static enum tr_status check(const char *path, const struct tr_machine *m)
{
    const struct tr_curve *curves[] = { &m->chip.all.gemm, &m->chip.one.gemm };
    for (size_t i = 0; i < TR_COUNT_OF(curves); i++)
        if (curves[i]->n > 0 && (curves[i]->at[0] <= 0 || curves[i]->rate[0] <= 0))
            return tr_fail(TR_USAGE, "%s: %sgemm_flop and %sgemm_gflops go together", path, i ? "one_" : "",
                           i ? "one_" : "");
    if (m->chip.peak[TR_PRECISION_16] <= 0 || m->chip.memory_bytes <= 0 || m->chip.memory_rate <= 0)
        return tr_fail(TR_USAGE, "%s: no %s; needs base: NAME, or at least tflops, memory_gib and memory_gbps", path,
                       m->chip.peak[TR_PRECISION_16] <= 0 ? "tflops"
                       : m->chip.memory_bytes <= 0        ? "memory_gib"
                                                          : "memory_gbps");
    return TR_OK;
}

/* Reads one line and moves *at past it. A line that is empty or only a comment gives "". */
static enum tr_status next_line(struct reader *r, const char **at, char *line, size_t n_line)
{
    size_t n = strcspn(*at, "\n");
    r->line++;
    if (n >= n_line)
        return tr_fail(TR_USAGE, "%s:%d: a line of more than %zu bytes", r->path, r->line, n_line - 1);
    memcpy(line, *at, n);
    line[n] = '\0';
    *at += n + ((*at)[n] == '\n');
    line[strcspn(line, "#\r")] = '\0';
    for (n = strlen(line); n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t'); n--)
        line[n - 1] = '\0';
    if (strcmp(line, "---") == 0)
        line[0] = '\0';
    return TR_OK;
}

/* The next `key: value`: key is "" at the end of the text. Both point into line. */
static enum tr_status next_pair(struct reader *r, const char **at, char *line, size_t n_line, char **value)
{
    for (line[0] = '\0'; **at && !line[0];)
        TR_PASS(next_line(r, at, line, n_line));
    if (!line[0])
        return TR_OK;
    char *colon = strchr(line, ':');
    if (!colon || line[0] == ' ' || line[0] == '\t' || (colon[1] != ' ' && colon[1] != '\0'))
        return fail_line(r, "line", line, " is not `key: value` from its first column");
    *colon = '\0';
    *value = colon + 1 + strspn(colon + 1, " ");
    return TR_OK;
}

enum tr_status tr_machine_apply(const struct tr_machine_file *file, struct tr_machine_words *words,
                                struct tr_machine *m)
{
    struct reader r = { .path = file->name };
    char line[LINE_MAX_BYTES], *value = NULL;
    *words = (struct tr_machine_words){ 0 };
    for (const char *at = file->text;;) {
        TR_PASS(next_pair(&r, &at, line, sizeof line, &value));
        if (!line[0])
            break;
        if (strcmp(line, "about") == 0)
            TR_PASS(tr_format(words->about, sizeof words->about, "%s", value));
        else if (strcmp(line, "usual_cluster") == 0)
            TR_PASS(tr_format(words->usual_cluster, sizeof words->usual_cluster, "%s", value));
        else
            TR_PASS(read_line(&r, line, value, m));
    }
    return TR_OK;
}

enum tr_status tr_machine_read(const char *path, const char *text, struct tr_machine *out)
{
    struct tr_machine m = { .domain = 0 };
    struct reader r = { .path = path };
    char line[LINE_MAX_BYTES], name[sizeof m.name] = "", *value = NULL;
    const char *at = text + (strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0); /* a byte order mark */
    for (;;) {
        TR_PASS(next_pair(&r, &at, line, sizeof line, &value));
        if (!line[0])
            break;
        if (strcmp(line, "name") == 0) {
            if (tr_format(name, sizeof name, "%s", value) != TR_OK)
                return fail_line(&r, "name", value, " is longer than 63 bytes");
            continue;
        }
        if (m.domain == 0 && strcmp(line, "base") != 0) { /* no base: links and failures of a usual node */
            TR_PASS(tr_machine_find("A100-80GB", &m));
            m.chip = (struct tr_chip){ .n_units = 1, .gemm_share = 1, .stream_share = 1, .price = 0 };
        }
        TR_PASS(read_line(&r, line, value, &m));
    }
    TR_PASS(check(path, &m));
    (void)tr_format(m.name, sizeof m.name, "%.60s", name[0] ? name : path);
    *out = m;
    return TR_OK;
}

enum tr_status tr_machine_open(const char *name_or_path, struct tr_machine *out)
{
    char *text = NULL;
    size_t n = 0;
    if (!tr_file_exists(name_or_path))
        return tr_machine_find(name_or_path, out);
    enum tr_status st = tr_file_read(name_or_path, FILE_MAX, &text, &n);
    if (st == TR_OK && strlen(text) != n)
        st = tr_fail(TR_USAGE, "%s: a zero byte; this is no text", name_or_path);
    if (st == TR_OK)
        st = tr_machine_read(name_or_path, text, out);
    free(text);
    return st;
}

static void write_list(const struct key *k, const struct tr_curve *c, struct tr_str *out)
{
    const double *from = k->kind == KEY_LIST_AT ? c->at : c->rate;
    if (c->n == 0)
        return;
    tr_str_addf(out, "%s: [", k->name);
    for (int i = 0; i < c->n; i++)
        tr_str_addf(out, "%s%.6g", i ? ", " : "", from[i] / k->scale);
    tr_str_addf(out, "]\n");
}

void tr_machine_write(const struct tr_machine *m, struct tr_str *out)
{
    tr_str_addf(out, "name: %s\n", m->name);
    for (size_t i = 0; i < TR_COUNT_OF(keys); i++) {
        const struct key *k = &keys[i];
        const char *field = (const char *)m + k->at;
        double x = 0;
        int whole = 0;
        bool flag = false;
        if (k->kind == KEY_FACTOR) /* it is in the number that it scaled */
            continue;
        if (k->kind == KEY_LIST_AT || k->kind == KEY_LIST_RATE) {
            write_list(k, (const struct tr_curve *)(const void *)field, out);
            continue;
        }
        if (k->kind == KEY_BOOL) {
            memcpy(&flag, field, sizeof flag);
            tr_str_addf(out, "%s: %s\n", k->name, flag ? "true" : "false");
            continue;
        }
        if (k->kind == KEY_INT)
            memcpy(&whole, field, sizeof whole);
        else
            memcpy(&x, field, sizeof x);
        x = k->kind == KEY_INT ? whole : x / k->scale;
        tr_str_addf(out, "%s: %.6g\n", k->name, x);
    }
}
