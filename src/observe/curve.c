/* curve.c - the loss curve in characters: braille dots where the locale has them, stars elsewhere.
 *
 * Invariant: every line is at most `columns` wide. Neighbouring points are joined by vertical strokes, so that a spike
 * between two flat parts is seen. History keeps sums and counts: merged bins are true means, whatever the run's length.
 */
#include "observe/observe_impl.h"

#include <math.h>

void tr_history_add(struct history *h, int64_t step, double loss)
{
    if (h->bin_steps == 0) {
        h->first_step = step;
        h->bin_steps = 1;
    }
    if (step < h->first_step)
        return;
    while ((step - h->first_step) / h->bin_steps >= N_BINS) {
        for (size_t i = 0; i < N_BINS / 2; i++) {
            h->sum[i] = h->sum[2 * i] + h->sum[2 * i + 1];
            h->count[i] = h->count[2 * i] + h->count[2 * i + 1];
        }
        memset(h->sum + N_BINS / 2, 0, sizeof h->sum / 2);
        memset(h->count + N_BINS / 2, 0, sizeof h->count / 2);
        h->bin_steps *= 2;
    }
    h->last_step = tr_max64(h->last_step, step);
    if (!isfinite(loss))
        return;
    size_t bin = (size_t)((step - h->first_step) / h->bin_steps);
    h->sum[bin] += loss;
    h->count[bin]++;
}

size_t tr_history_get(const struct history *h, double out[N_BINS])
{
    if (h->bin_steps == 0)
        return 0;
    size_t n = (size_t)((h->last_step - h->first_step) / h->bin_steps) + 1;
    for (size_t i = 0; i < n; i++)
        out[i] = h->count[i] > 0 ? h->sum[i] / (double)h->count[i] : (double)NAN;
    return n;
}

enum { COLUMNS_MAX = 500, ROWS_MAX = 64, MARGIN = 11 }; /* margin: "%9.4g |" */

struct plot {
    size_t n_columns, n_rows;                   /* character cells */
    size_t n_dots_x, n_dots_y;                  /* dots of one cell */
    unsigned char cells[ROWS_MAX][COLUMNS_MAX]; /* a bit per dot, in braille order */
};

static void set_dot(struct plot *p, size_t x, size_t y)
{
    static const unsigned char bits[4][2] = { { 0x01, 0x08 }, { 0x02, 0x10 }, { 0x04, 0x20 }, { 0x40, 0x80 } };
    unsigned char *cell = &p->cells[y / p->n_dots_y][x / p->n_dots_x];
    *cell = (unsigned char)(*cell | bits[y % p->n_dots_y][x % p->n_dots_x]);
}

/* Mean of the finite values that fall on dot column x of n_x; NaN when there are none. */
static double value_at(const double *y, size_t n, size_t x, size_t n_x)
{
    size_t from = x * n / n_x, to = (x + 1) * n / n_x;
    double sum = 0;
    int count = 0;
    if (to <= from)
        to = from + 1;
    for (size_t i = from; i < to && i < n; i++)
        if (isfinite(y[i])) {
            sum += y[i];
            count++;
        }
    return count > 0 ? sum / count : (double)NAN;
}

static void fill(struct plot *p, const double *y, size_t n, double lo, double hi)
{
    size_t n_x = p->n_columns * p->n_dots_x, n_y = p->n_rows * p->n_dots_y;
    size_t last = SIZE_MAX;
    for (size_t x = 0; x < n_x; x++) {
        double v = value_at(y, n, x, n_x);
        if (!isfinite(v)) {
            last = SIZE_MAX;
            continue;
        }
        double share = hi > lo ? (hi - v) / (hi - lo) : 0.5;
        size_t row = (size_t)lround(fmin(fmax(share, 0), 1) * (double)(n_y - 1));
        size_t from = last == SIZE_MAX ? row : last < row ? last + 1 : last > row ? last - 1 : row;
        for (size_t k = from < row ? from : row; k <= (from < row ? row : from); k++)
            set_dot(p, x, k);
        last = row;
    }
}

static double label_of(const struct plot *p, double lo, double hi, size_t row)
{
    return p->n_rows > 1 ? hi - (hi - lo) * (double)row / (double)(p->n_rows - 1) : hi;
}

/* Digits with which the three labels differ and have no power of ten; 4 where the margin has no room for so many. */
static int label_digits(const struct plot *p, double lo, double hi)
{
    for (int digits = 4; digits <= 7; digits++) {
        char text[3][32];
        size_t row[] = { 0, p->n_rows / 2, p->n_rows - 1 };
        bool fits = true;
        for (int i = 0; i < 3; i++) {
            (void)snprintf(text[i], sizeof text[i], "%.*g", digits, label_of(p, lo, hi, row[i]));
            fits &= strlen(text[i]) < MARGIN - 1 && strstr(text[i], "e+") == NULL;
            fits &= i == 0 || row[i] == row[i - 1] || hi <= lo || strcmp(text[i], text[i - 1]) != 0;
        }
        if (fits)
            return digits;
    }
    return 4;
}

static void print_cells(const struct plot *p, double lo, double hi, bool unicode, struct tr_str *out)
{
    int digits = label_digits(p, lo, hi);
    for (size_t r = 0; r < p->n_rows; r++) {
        bool is_labelled = r == 0 || r + 1 == p->n_rows || r == p->n_rows / 2;
        if (is_labelled)
            tr_str_addf(out, "%9.*g %s", digits, label_of(p, lo, hi, r), unicode ? "\u2524" : "|");
        else
            tr_str_addf(out, "%9s %s", "", unicode ? "\u2502" : "|");
        size_t n_used = p->n_columns; /* no blanks at the end of a line */
        while (n_used > 0 && p->cells[r][n_used - 1] == 0)
            n_used--;
        for (size_t c = 0; c < n_used; c++) {
            unsigned bits = p->cells[r][c];
            char utf8[4] = { (char)0xe2, (char)(0xa0 | bits >> 6), (char)(0x80 | (bits & 0x3f)),
                             '\0' }; /* U+2800 + bits */
            tr_str_addf(out, "%s", bits == 0 ? " " : unicode ? utf8 : "*");
        }
        tr_str_addf(out, "\n");
    }
}

void tr_curve_draw(const double *y, size_t n, int64_t x_first, int64_t x_last, int columns, int rows, bool unicode,
                   struct tr_str *out)
{
    double lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (isfinite(y[i])) {
            lo = fmin(lo, y[i]);
            hi = fmax(hi, y[i]);
        }
    if (!(lo <= hi) || columns <= MARGIN + 2 || rows < 2)
        return;
    struct plot *p = calloc(1, sizeof *p);
    if (p == NULL)
        return;
    p->n_columns = (size_t)tr_min64(columns - MARGIN, COLUMNS_MAX);
    p->n_rows = (size_t)tr_min64(rows, ROWS_MAX);
    p->n_dots_x = unicode ? 2 : 1;
    p->n_dots_y = unicode ? 4 : 1;
    fill(p, y, n, lo, hi);
    print_cells(p, lo, hi, unicode, out);
    char left[32], right[32];
    snprintf(left, sizeof left, "step %" PRId64, x_first);
    snprintf(right, sizeof right, "%" PRId64, x_last);
    int n_gap = (int)p->n_columns - (int)strlen(left);
    tr_str_addf(out, "%*s%s%*s\n", MARGIN, "", left, n_gap > 0 ? n_gap : 0, right);
    free(p);
}
