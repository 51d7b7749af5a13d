/* adafactor.c - Adafactor on the CPU. Elements are taken line by line: a line is what a call has of one row of the
 * matrix, or a whole vector. Sums are in double, each by one task and in one order, so that the number of threads does
 * not change a bit; where ranks share a row, only the last bits of a double depend on how.
 */
#include "ops/adafactor.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/ref.h"
#include <math.h>

enum { CHUNK = 256, LANES = 8, TASK = 8192 };

struct adafactor {
    const struct tr_call *c;
    int64_t width, first_row, n_lines, lines_a_task;
    double *sums, *rows, *cols; /* sums of the call, or factors */
    double *of_line;            /* scratch */
    float clip, beta2;
    float decay, step; /* apply: shares of p and of the direction that are taken from p */
    void (*line)(const struct adafactor *x, int64_t k);
};

size_t tr_fast_adafactor_scratch(const struct tr_call *c, int n_threads)
{
    (void)n_threads;
    return (size_t)(c->attr.rows + 1) * sizeof(double);
}

static struct adafactor adafactor_of(const struct tr_call *c, void (*line)(const struct adafactor *x, int64_t k))
{
    const struct tr_attr *a = &c->attr;
    const float *s = c->in[1].data;
    int64_t n = c->in[0].cols, width = a->rows > 0 ? a->cols : tr_max64(1, a->at + n);
    int64_t first = a->at / width, last = (a->at + n - 1) / width;
    double *sums = c->out[4].data;
    return (struct adafactor){ .c = c,
                               .width = width,
                               .first_row = first,
                               .n_lines = n > 0 ? last - first + 1 : 0,
                               .lines_a_task = tr_max64(1, TASK / width),
                               .sums = sums,
                               .rows = sums + TR_SUM_ROWS,
                               .cols = sums + TR_SUM_ROWS + a->rows,
                               .of_line = c->scratch,
                               .clip = s[TR_STEP_CLIP],
                               .beta2 = s[TR_STEP_BETA2],
                               .line = line };
}

/* The elements [*begin, *end) of the call that lie in line k, and the column of the first. */
static int64_t line_of(const struct adafactor *x, int64_t k, int64_t *begin, int64_t *end)
{
    int64_t at = x->c->attr.at, row = (x->first_row + k) * x->width;
    *begin = tr_max64(row - at, 0);
    *end = tr_min64(row + x->width - at, x->c->in[0].cols);
    return at + *begin - row;
}

static void run_task(void *ctx, int64_t task, int worker)
{
    const struct adafactor *x = ctx;
    int64_t k = task * x->lines_a_task, end = tr_min64(k + x->lines_a_task, x->n_lines);
    (void)worker;
    for (; k < end; k++)
        x->line(x, k);
}

static void run_lines(struct adafactor *x)
{
    tr_pool_run(x->c->pool, (x->n_lines + x->lines_a_task - 1) / x->lines_a_task, run_task, x);
}

static double add_lines(const struct adafactor *x)
{
    double sum = 0;
    for (int64_t k = 0; k < x->n_lines; k++)
        sum += x->of_line[k];
    return sum;
}

/* At most CHUNK elements of a view as floats; what lies behind them in the buffer is 0. */
static void load(const struct tr_view *v, int64_t i, int64_t n, float to[CHUNK])
{
    tr_convert((const char *)v->data + (size_t)i * tr_dtype_bytes(v->dtype), v->dtype, to, TR_F32, (size_t)n);
    memset(to + n, 0, (size_t)(CHUNK - n) * sizeof *to);
}

static void add_squares(double lane[LANES], const float x[CHUNK])
{
    for (int i = 0; i < CHUNK; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
}

static double add_lanes(const double lane[LANES])
{
    double sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

static float square(const struct adafactor *x, float g)
{
    g *= x->clip;
    return g * g + TR_ADAFACTOR_EPS;
}

static void sum_line(const struct adafactor *x, int64_t k)
{
    int64_t begin, end;
    double of_p[LANES] = { 0 }, of_u[LANES] = { 0 };
    (void)line_of(x, k, &begin, &end);
    for (int64_t i = begin; i < end; i += CHUNK) {
        float p[CHUNK], g[CHUNK];
        int64_t n = tr_min64(CHUNK, end - i);
        load(&x->c->out[0], i, n, p);
        load(&x->c->in[0], i, n, g);
        add_squares(of_p, p);
        for (int64_t j = 0; j < n; j++)
            of_u[j % LANES] += (double)square(x, g[j]);
    }
    x->of_line[k] = add_lanes(of_p);
    if (x->c->attr.rows > 0)
        x->rows[x->first_row + k] = add_lanes(of_u);
}

/* The sums of CHUNK columns, line after line. */
static void sum_columns(void *ctx, int64_t task, int worker)
{
    const struct adafactor *x = ctx;
    int64_t first = task * CHUNK, last = tr_min64(first + CHUNK, x->width);
    (void)worker;
    for (int64_t k = 0; k < x->n_lines; k++) {
        int64_t begin, end, col = line_of(x, k, &begin, &end);
        int64_t from = tr_max64(first, col), to = tr_min64(last, col + end - begin);
        float g[CHUNK];
        if (from >= to)
            continue;
        load(&x->c->in[0], begin + from - col, to - from, g);
        for (int64_t j = from; j < to; j++)
            x->cols[j] += (double)square(x, g[j - from]);
    }
}

void tr_fast_adafactor_sums(const struct tr_call *c)
{
    struct adafactor x = adafactor_of(c, sum_line);
    memset(x.sums, 0, (size_t)c->out[4].cols * sizeof *x.sums);
    run_lines(&x);
    x.sums[TR_SUM_P] = add_lines(&x);
    if (c->attr.rows > 0)
        tr_pool_run(c->pool, (x.width + CHUNK - 1) / CHUNK, sum_columns, &x);
}

/* Adds the mean of n elements to an average, and returns it. */
static double decay(float *average, double beta2, double sum, int64_t n)
{
    *average = (float)(beta2 * (double)*average + (1 - beta2) * (sum / (double)n));
    return (double)*average;
}

void tr_fast_adafactor_factors(const struct tr_call *c)
{
    int64_t rows = c->out[2].cols, cols = c->out[3].cols;
    double *row = (double *)c->out[4].data + TR_SUM_ROWS, *col = row + rows, sum = 0;
    double beta2 = (double)((const float *)c->in[1].data)[TR_STEP_BETA2];
    for (int64_t i = 0; i < rows; i++)
        sum += row[i] = decay((float *)c->out[2].data + i, beta2, row[i], cols);
    for (int64_t i = 0; i < rows; i++)
        row[i] = 1 / sqrt(row[i] / (sum / (double)rows));
    for (int64_t i = 0; i < cols; i++)
        col[i] = 1 / sqrt(decay((float *)c->out[3].data + i, beta2, col[i], rows));
}

/* The update of n elements of line k from element i on, before it is clipped. */
static void find_direction(const struct adafactor *x, int64_t k, int64_t i, int64_t col, int64_t n, float d[CHUNK])
{
    load(&x->c->in[0], i, n, d);
    if (x->c->attr.rows > 0) {
        float row = (float)x->rows[x->first_row + k];
        for (int64_t j = 0; j < n; j++)
            d[j] = d[j] * x->clip * row * (float)x->cols[col + j];
    } else {
        const float *v = (const float *)x->c->out[2].data + i;
        for (int64_t j = 0; j < n; j++)
            d[j] = d[j] * x->clip / sqrtf(v[j]);
    }
}

static void decay_vector(const struct adafactor *x, int64_t i, int64_t n)
{
    float g[CHUNK], *v = (float *)x->c->out[2].data + i;
    load(&x->c->in[0], i, n, g);
    for (int64_t j = 0; j < n; j++)
        v[j] = x->beta2 * v[j] + (1 - x->beta2) * square(x, g[j]);
}

static void norm_line(const struct adafactor *x, int64_t k)
{
    int64_t begin, end, col = line_of(x, k, &begin, &end);
    double lane[LANES] = { 0 };
    for (int64_t i = begin; i < end; i += CHUNK, col += CHUNK) {
        float d[CHUNK];
        int64_t n = tr_min64(CHUNK, end - i);
        if (x->c->attr.rows == 0)
            decay_vector(x, i, n);
        find_direction(x, k, i, col, n, d);
        add_squares(lane, d);
    }
    x->of_line[k] = add_lanes(lane);
}

void tr_fast_adafactor_norm(const struct tr_call *c)
{
    struct adafactor x = adafactor_of(c, norm_line);
    run_lines(&x);
    *(double *)c->out[5].data = add_lines(&x);
}

/* Stores n elements of p; in BF16 rounded with random bits, as adamw does. */
static void put(const struct tr_call *c, int64_t i, int64_t n, float p[CHUNK])
{
    const struct tr_view *v = &c->out[0], *copy = &c->out[1];
    uint64_t step = tr_step_number(c->in[1].data);
    for (int64_t j = 0; v->dtype == TR_BF16 && j < n; j++) {
        uint64_t e = (uint64_t)(c->attr.first + i + j);
        p[j] = tr_f32_of_bf16(tr_bf16_randomly(p[j], tr_philox(c->attr.key, step, e / 4).v[e % 4]));
    }
    tr_convert(p, TR_F32, (char *)v->data + (size_t)i * tr_dtype_bytes(v->dtype), v->dtype, (size_t)n);
    if (copy->data)
        tr_convert(p, TR_F32, (char *)copy->data + (size_t)i * tr_dtype_bytes(copy->dtype), copy->dtype, (size_t)n);
}

static void apply_line(const struct adafactor *x, int64_t k)
{
    int64_t begin, end, col = line_of(x, k, &begin, &end);
    for (int64_t i = begin; i < end; i += CHUNK, col += CHUNK) {
        float d[CHUNK], p[CHUNK];
        int64_t n = tr_min64(CHUNK, end - i);
        find_direction(x, k, i, col, n, d);
        load(&x->c->out[0], i, n, p);
        for (int64_t j = 0; j < n; j++)
            p[j] = p[j] - p[j] * x->decay - d[j] * x->step;
        put(x->c, i, n, p);
    }
}

void tr_fast_adafactor_apply(const struct tr_call *c)
{
    struct adafactor x = adafactor_of(c, apply_line);
    const float *s = c->in[1].data;
    double n = (double)c->attr.n_all, rms_p = sqrt(x.sums[TR_SUM_P] / n), rms_d = sqrt(*(double *)c->out[5].data / n);
    double rate = (double)s[TR_STEP_LR] * (s[TR_STEP_ADJUST] > 0 ? fmax(TR_ADAFACTOR_LEAST, rms_p) : 1);
    x.decay = (float)(rate * (c->attr.decay ? (double)s[TR_STEP_DECAY] : 0)); /* 1 - decay has fewer digits of it */
    x.step = (float)(rate / fmax(1, rms_d / TR_ADAFACTOR_CLIP));
    run_lines(&x);
}
