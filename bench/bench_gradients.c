/* bench_gradients.c - gradients of one step, tensor by tensor, against those of the same step in float32.
 *
 *   bench_gradients [CONFIG.json|gpt2] [name=value ...]    as bench_gpu; against cuda|cpu (the device of float32), most
 * 10
 *
 * Prints |g - g32| / |g32| of the tensors that are furthest off, then one JSON line. Both have the same weights and
 * tokens.
 */
#include "bench_rig.h"
#include <math.h>

struct off {
    double by; /* first: sorted by it */
    const char *name;
};

/* This rank's gradient of a parameter in host memory, without the loss scale. */
static float *gradient(struct rig *r, int param, int64_t *n)
{
    int64_t first = 0;
    const char *at = tr_exec_at(r->e, TR_S_GRAD, param, &first, n);
    enum tr_dtype dtype = r->c->opt.grad_dtype;
    size_t bytes = (size_t)*n * tr_dtype_bytes(dtype);
    char *raw = malloc(bytes + 1);
    float *out = malloc((size_t)*n * sizeof *out + 1);
    if (raw && out) {
        tr_device_copy_now(&r->dev, raw, at, bytes);
        (void)tr_device_sync(&r->dev, TR_STREAM_COMPUTE);
        tr_convert(raw, dtype, out, TR_F32, (size_t)*n);
    }
    for (int64_t i = 0; out && r->scaler.scale > 0 && i < *n; i++)
        out[i] /= (float)r->scaler.scale;
    free(raw);
    return out;
}

static enum tr_status distance(struct rig *a, struct rig *b, int param, double *by)
{
    int64_t n = 0, n_b = 0;
    float *x = gradient(a, param, &n), *y = gradient(b, param, &n_b);
    double off = 0, size = 0;
    TR_BUG_ON(n != n_b);
    for (int64_t i = 0; x && y && i < n; i++) {
        off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        size += (double)y[i] * (double)y[i];
    }
    *by = size > 0 ? sqrt(off / size) : sqrt(off);
    free(x);
    free(y);
    return x && y ? TR_OK : tr_fail(TR_NOMEM, "no memory for a gradient of %" PRId64 " elements", n);
}

int main(int argc, char **argv)
{
    enum tr_status st = TR_OK;
    struct rig a = { 0 }, b = { 0 };
    struct off *off = NULL;
    float values[TR_STEP_COUNT];
    double loss[2] = { 0 };
    struct rig_shape s = arg_shape(argc, argv), full = s;
    int64_t most = arg_number(argc, argv, "most", "10");
    full.device = arg_text(argc, argv, "against", s.device);
    full.opt.column = tr_column_of(full.device);
    full.opt.has_own_memory = !tr_device_row(full.device)->is_host;
    full.opt.fuses = full.opt.column->fuses;
    full.opt.fp8 = false;
    full.opt.compute_dtype = full.opt.grad_dtype = full.opt.master_dtype = full.opt.moment_dtype = TR_F32;
    TR_TRY(rig_open(&a, &s));
    TR_TRY(rig_open(&b, &full));
    rig_values(&a, 0, 1, values);
    TR_TRY(tr_exec_gradients(a.e, a.batch, values, &loss[0]));
    rig_values(&b, 0, 1, values);
    TR_TRY(tr_exec_gradients(b.e, b.batch, values, &loss[1]));
    int n = a.m->n_params;
    off = calloc((size_t)n, sizeof *off);
    if (!off)
        TR_TRY(tr_fail(TR_NOMEM, "out of memory"));
    for (int i = 0; i < n; i++) {
        off[i].name = a.m->param[i].name;
        TR_TRY(distance(&a, &b, i, &off[i].by));
    }
    qsort(off, (size_t)n, sizeof *off, by_value);
    for (int i = n - 1; i >= 0 && i >= n - most; i--)
        printf("  %-60s %.2e\n", off[i].name, off[i].by);
    int n_over = 0;
    for (int i = 0; i < n; i++)
        n_over += !(off[i].by <= 1e-2);
    printf("{\"bench\":\"gradients\",\"model\":\"%s\",\"dtype\":\"%s\",\"fp8\":%d,\"against\":\"%s\",\"tensors\":%d,"
           "\"median\":%.3e,\"worst\":%.3e,\"over_1e-2\":%d,\"loss\":%.6f,\"loss_float32\":%.6f}\n",
           a.m->arch->model_type, tr_dtype_name(s.opt.compute_dtype), s.opt.fp8, full.device, n, off[n / 2].by,
           off[n - 1].by, n_over, loss[0] / (double)a.n_tokens, loss[1] / (double)b.n_tokens);
out:
    if (st != TR_OK)
        fprintf(stderr, "bench_gradients: %s\n", tr_error_text());
    free(off);
    rig_close(&a);
    rig_close(&b);
    return st == TR_OK ? 0 : 1;
}
