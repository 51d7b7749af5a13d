/* heat.c - gradient norms by layer and step. A row is a layer (the first part of a name that is a number), or the rest
 * of the name for what belongs to no layer; its norm is that of all its parameters together. Memory is bounded by rows
 * and columns, whatever the file holds. */
#include "watch/watch_impl.h"

#include <math.h>
#include <stdlib.h>

void tr_heat_release(struct heat *h)
{
    tr_tail_close(h->tail);
    free(h->name);
    free(h->step);
    free(h->norm);
    *h = (struct heat){ 0 };
}

/* "model.layers.3.mlp.up_proj.weight" is "layer 3", "model.embed_tokens.weight" is "embed_tokens". */
static void row_name(const char *param, char out[HEAT_NAME])
{
    const char *last = param, *before = NULL; /* the last two parts in front of "weight" or "bias" */
    for (const char *p = param; *p;) {
        size_t n = strcspn(p, ".");
        if (n > 0 && strspn(p, "0123456789") == n) {
            (void)snprintf(out, HEAT_NAME, "layer %.*s", (int)tr_min64((int64_t)n, 9), p);
            return;
        }
        before = last;
        last = p;
        p += n + (p[n] == '.');
    }
    bool has_end = strcmp(last, "weight") == 0 || strcmp(last, "bias") == 0;
    const char *name = has_end && before ? before : last;
    (void)snprintf(out, HEAT_NAME, "%.*s", (int)tr_min64((int64_t)strcspn(name, "."), HEAT_NAME - 1), name);
}

static int row_of(struct heat *h, const char *param)
{
    char name[HEAT_NAME];
    int r = 0;
    row_name(param, name);
    while (r < h->n_rows && strcmp(h->name[r], name) != 0)
        r++;
    if (r == HEAT_ROWS)
        return -1;
    if (r == h->n_rows) {
        memcpy(h->name[r], name, sizeof name);
        for (int c = 0; c < h->n_columns; c++)
            h->norm[r][c] = (float)NAN;
        h->n_rows++;
    }
    return r;
}

static void halve(struct heat *h)
{
    for (int c = 0; c < h->n_columns / 2; c++) {
        h->step[c] = h->step[2 * c];
        for (int r = 0; r < h->n_rows; r++)
            h->norm[r][c] = h->norm[r][2 * c];
    }
    h->n_columns /= 2;
    h->stride *= 2;
}

static void add_column(struct heat *h, int64_t step, const cJSON *norms)
{
    double square[HEAT_ROWS] = { 0 };
    bool is_there[HEAT_ROWS] = { 0 };
    const cJSON *x;
    if (h->n_columns == HEAT_COLUMNS)
        halve(h);
    cJSON_ArrayForEach(x, norms)
    {
        int r = x->string ? row_of(h, x->string) : -1;
        if (r < 0)
            continue;
        is_there[r] = true;
        square[r] += cJSON_IsNumber(x) ? x->valuedouble * x->valuedouble : (double)NAN;
    }
    for (int r = 0; r < h->n_rows; r++)
        h->norm[r][h->n_columns] = is_there[r] ? (float)sqrt(square[r]) : (float)NAN;
    h->step[h->n_columns++] = step;
}

static bool add_line(struct heat *h, const char *line, size_t n)
{
    int64_t step = 0;
    cJSON *j = NULL;
    bool is_kept = false;
    if (h->n_seen++ % h->stride != 0)
        return false;
    if (tr_json_parse(line, n, TR_NAME_GRAD_NORMS, &j) == TR_OK &&
        tr_json_int(j, "step", true, 0, INT64_MAX, &step) == TR_OK) {
        add_column(h, step, cJSON_GetObjectItemCaseSensitive(j, "norms"));
        is_kept = true;
    }
    tr_error_clear();
    cJSON_Delete(j);
    return is_kept;
}

static bool open_heat(struct heat *h, const char *dir)
{
    char path[TR_PATH_MAX];
    if (tr_path_join(path, dir, TR_NAME_GRAD_NORMS) != TR_OK || !tr_file_exists(path) ||
        tr_tail_open(path, HEAT_LINE_BYTES, 0, &h->tail) != TR_OK) {
        tr_error_clear();
        return false;
    }
    tr_tail_follow(h->tail);
    h->stride = 1;
    h->name = calloc(HEAT_ROWS, sizeof *h->name);
    h->step = calloc(HEAT_COLUMNS, sizeof *h->step);
    h->norm = calloc(HEAT_ROWS, sizeof *h->norm);
    if (h->name && h->step && h->norm)
        return true;
    tr_heat_release(h);
    return false;
}

bool tr_heat_refresh(struct heat *h, const char *dir)
{
    bool has_changed = false;
    enum tr_tail_line found;
    char *line;
    size_t n;
    if (h->tail && tr_tail_was_replaced(h->tail)) {
        tr_heat_release(h);
        has_changed = true;
    }
    if (!h->tail && !open_heat(h, dir))
        return has_changed;
    while ((found = tr_tail_next(h->tail, &line, &n)) != TR_TAIL_NONE)
        has_changed |= found == TR_TAIL_LINE && add_line(h, line, n);
    return has_changed;
}

void tr_heat_json(const struct heat *h, struct tr_str *out)
{
    tr_str_addf(out, "{\"step\":[");
    for (int c = 0; c < h->n_columns; c++)
        tr_str_addf(out, "%s%" PRId64, c ? "," : "", h->step[c]);
    tr_str_addf(out, "],\"rows\":[");
    for (int r = 0; r < h->n_rows; r++) {
        tr_str_addf(out, "%s{\"name\":", r ? "," : "");
        tr_str_json(out, h->name[r]);
        tr_str_addf(out, ",\"norm\":[");
        for (int c = 0; c < h->n_columns; c++)
            if (isfinite(h->norm[r][c]))
                tr_str_addf(out, "%s%.4g", c ? "," : "", (double)h->norm[r][c]);
            else
                tr_str_addf(out, "%snull", c ? "," : "");
        tr_str_addf(out, "]}");
    }
    tr_str_addf(out, "]}");
}
