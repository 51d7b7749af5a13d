/* bench_gpu.c - whole optimizer steps on random tokens: tokens/s, and model flops beside the peak: on the CPU the
 * matrix peak measured in the same run, on a GPU the datasheet's. Prints one JSON line; profile=1 adds a table of ops,
 * each timed alone (waiting after every one, so the sum is more than a step).
 *
 *   bench_gpu [CONFIG.json|gpt2] [name=value ...]
 *   vocab 50304 (of gpt2), dropout 0 (percent; published: the config's), rows 4, length 256, micro 1, threads 2, steps
 * 8, pack 0 (tokens of a document; 0 = a row), lora 0 (rank of an adapter on all linears), lora_dropout 0 (percent),
 * dtype float32, grad, state (master and moments) float32, device cpu, recompute 0 (1 ops, 2 blocks), any_order 0 (1:
 * other bits every run), optim8 0 (1: moments of 8 bits), fp8 0, base 0 (1: only vectors learn, 2: and matrices of
 * linears are held as nf4, 3: as fp4), offload 0 (percent of the optimizer's state on the host), offload_param 0
 * (percent of frozen parameters on the host; where all learn, above 0: with their state), offload_grad 0 (1: gradients
 * on the host), stow 0 (1: saved activations on the host), profile 0, graph 1 (cuda: replay steps), curve 0 (1: all
 * losses), hash 0 (1: of the weights after the last step), warm 3 (steps before those that count), machine H200 (cuda:
 * of the forecast), bare 2 (steps without copies of optimizer state, after the others: what copies cost). In the
 * result: used, bytes in use on the GPU; beside, those of no arena; cpu_s, the processor time of a step, of all
 * threads; skipped, updates that float16 left out; exposed_s, of a step with copies less one without them; planned_s
 * and planned_exposed_s, what the plan says of both; on_gpu and pinned, its bytes of the device and of the host.
 */
#include "bench_rig.h"
#include "exec/exec_impl.h" /* kernels are timed one by one */
#include "plan/plan.h"
#include <time.h>

/* ---- the table of ops ---- */

static tr_kernel real[TR_OP_COUNT];
static struct {
    double seconds, flops, bytes;
    int64_t calls;
} spent[TR_OP_COUNT];

/* What a call must read and write at least: its views, each once. */
static double bytes_of(const struct tr_call *c)
{
    double sum = 0;
    for (int i = 0; i < TR_MAX_IN + TR_MAX_OUT; i++) {
        const struct tr_view *v = i < TR_MAX_IN ? &c->in[i] : &c->out[i - TR_MAX_IN];
        bool adds = i >= TR_MAX_IN && c->accumulate[i - TR_MAX_IN];
        sum += v->data ? (adds ? 2.0 : 1.0) * (double)(v->rows * v->cols) * (double)tr_dtype_bytes(v->dtype) : 0;
    }
    bool is_update = c->op == TR_OP_ADAMW || c->op == TR_OP_LION || c->op == TR_OP_SGD; /* state: read and written */
    for (int i = 0; is_update && i < TR_MAX_OUT; i += i ? 1 : 2) /* 1: the copy is only written */
        sum += c->out[i].data ? (double)c->out[i].cols * (double)tr_dtype_bytes(c->out[i].dtype) : 0;
    return sum;
}

static void timed(const struct tr_call *c)
{
    (void)tr_device_sync(c->dev, TR_STREAM_COMPUTE);
    int64_t at = tr_clock_us();
    real[c->op](c);
    (void)tr_device_sync(c->dev, TR_STREAM_COMPUTE);
    spent[c->op].seconds += (double)(tr_clock_us() - at) * 1e-6;
    spent[c->op].flops += tr_op_flops(c);
    spent[c->op].bytes += bytes_of(c);
    spent[c->op].calls++;
}

static enum tr_status profile(struct rig *rig)
{
    struct tr_exec *e = rig->e;
    e->may_record = e->joins_updates = false;
    struct tr_step_result r;
    double sum = 0;
    for (int i = 0; i < TR_OP_COUNT; i++) {
        real[i] = e->kernel[i];
        e->kernel[i] = timed;
    }
    enum tr_status st = rig_step(rig, 0, 1, &r);
    for (int i = 0; i < TR_OP_COUNT; i++) {
        e->kernel[i] = real[i];
        sum += spent[i].seconds;
    }
    for (int i = 0; i < TR_OP_COUNT; i++)
        if (spent[i].calls)
            printf("  %-18s %5" PRId64 " calls %9.3f ms %5.1f %% %8.1f TFLOP/s %7.0f GB/s\n",
                   tr_op_row((enum tr_opcode)i)->name, spent[i].calls, spent[i].seconds * 1e3,
                   100 * spent[i].seconds / sum, spent[i].flops / spent[i].seconds * 1e-12,
                   spent[i].bytes / spent[i].seconds * 1e-9);
    printf("  %-18s             %9.3f ms\n", "all, one by one", sum * 1e3);
    return st;
}

/* Of the weights as computed with, all of them. */
static enum tr_status hash_weights(struct rig *r, char hex[33])
{
    enum tr_status st = TR_OK;
    size_t bytes = r->c->memory.bytes[TR_A_PARAMS];
    char *copy = malloc(bytes);
    if (!copy)
        return tr_fail(TR_NOMEM, "no memory for a copy of the weights");
    tr_device_copy_now(&r->dev, copy, tr_exec_arena(r->e, TR_A_PARAMS), bytes);
    TR_TRY(tr_device_sync(&r->dev, TR_STREAM_COMPUTE));
    tr_hash_hex(tr_hash(copy, bytes), hex);
out:
    free(copy);
    return st;
}

/* ---- what copies of optimizer state cost ---- */

static const struct tr_memory_ops *true_memory;

static void copy_but_offload(struct tr_device *d, enum tr_stream s, void *dst, const void *src, size_t bytes)
{
    if (s != TR_STREAM_IN && s != TR_STREAM_OUT)
        true_memory->copy(d, s, dst, src, bytes);
}

/* Seconds of a step without the copies of optimizer state. Steps that find no update of the step before copy nothing;
 * the updates follow alone. Their copies move nothing the last time, which leaves weights that are of no use. */
static enum tr_status without_copies(struct rig *r, int64_t n, int64_t n_steps, double *out)
{
    enum tr_status st = TR_OK;
    struct tr_memory_ops memory = *r->dev.row->memory;
    const struct tr_device_row *row = r->dev.row;
    struct tr_device_row bare = *row;
    struct tr_step_result result;
    double seconds[256];
    true_memory = row->memory;
    memory.copy = copy_but_offload;
    bare.memory = &memory;
    for (int64_t i = 0; i < n; i++) {
        TR_TRY(tr_exec_drain(r->e));
        int64_t at = tr_clock_us();
        TR_TRY(rig_step(r, n_steps, n_steps + 1, &result));
        seconds[i] = seconds_since(at);
    }
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    r->dev.row = &bare;
    int64_t at = tr_clock_us();
    TR_TRY(tr_exec_drain(r->e));
    TR_TRY(tr_device_sync(&r->dev, TR_STREAM_COMPUTE));
    *out = seconds[n / 2] + seconds_since(at);
out:
    r->dev.row = row;
    return st;
}

static enum tr_status forecast(const struct rig *r, const char *name, struct tr_forecast *out)
{
    struct tr_machine m;
    enum tr_status st = tr_machine_open(name, &m);
    return st == TR_OK ? tr_play_compiled((const struct tr_compiled *const[]){ r->c }, 1, &m, out) : st;
}

int main(int argc, char **argv)
{
    enum tr_status st = TR_OK;
    struct rig r = { 0 };
    double seconds[256], first = 0, loss = 0, cpu = 0;
    char hex[33] = "";
    int64_t start = tr_clock_us(), steps = tr_max64(1, tr_min64(256, arg_number(argc, argv, "steps", "8"))),
            warm = arg_number(argc, argv, "warm", "3"), n_bare = tr_min64(256, arg_number(argc, argv, "bare", "2"));
    struct rig_shape s = arg_shape(argc, argv);
    bool is_cuda = s.opt.has_own_memory, is_curve = arg_number(argc, argv, "curve", "0") != 0;
    struct tr_step_result result = { 0 };
    struct tr_forecast planned = { 0 };
    const char *machine = arg_text(argc, argv, "machine", is_cuda ? "H200" : "");
    TR_TRY(rig_open(&r, &s));
    if (machine[0])
        TR_TRY(forecast(&r, machine, &planned));
    r.e->may_record &= arg_number(argc, argv, "graph", is_cuda ? "1" : "0") != 0; /* never with copies to the host */
    double ready = seconds_since(start), peak = is_cuda ? r.dev.peak_flops : tr_gemm_peak(r.pool, TR_F32);
    fprintf(stderr, "ready after %.3f s, %.2f GiB\n", ready, (double)r.dev.reserved_bytes / 0x1p30);
    for (int64_t i = 0; i < steps + warm; i++) {
        int64_t at = tr_clock_us();
        clock_t cpu_start = clock();
        TR_TRY(rig_step(&r, i, steps + warm, &result));
        loss = result.loss_sum / (double)r.n_tokens;
        first = i == 0 ? seconds_since(start) : first;
        if (i < 4 || is_curve)
            fprintf(stderr, "step %" PRId64 ": %.1f ms, loss %.6f\n", i, seconds_since(at) * 1e3, loss);
        if (i >= warm)
            seconds[i - warm] = seconds_since(at);
        cpu += i >= warm ? (double)(clock() - cpu_start) / CLOCKS_PER_SEC / (double)steps : 0;
        double now = is_cuda ? peak : tr_gemm_peak(r.pool, TR_F32); /* the machine's best in this very run */
        peak = now > peak ? now : peak;
    }
    if (arg_number(argc, argv, "hash", "0"))
        TR_TRY(hash_weights(&r, hex));
    qsort(seconds, (size_t)steps, sizeof *seconds, by_value);
    double median = seconds[steps / 2], flops = tr_flops_per_token(&r.c->place) * (double)r.n_tokens;
    size_t used = tr_device_used(&r.dev);
    if (arg_number(argc, argv, "profile", "0"))
        TR_TRY(profile(&r));
    double bare = median;
    if (n_bare > 0 && r.e->defers)
        TR_TRY(without_copies(&r, n_bare, steps + warm, &bare));
    printf("{\"bench\":\"gpu\",\"model\":\"%s\",\"parameters\":%" PRId64 ",\"rows\":%" PRId64 ",\"length\":%" PRId64
           ",\"micro\":%d,\"device\":\"%s\",\"threads\":%d,\"dtype\":\"%s\",\"grad\":\"%s\",\"state\":\"%s\","
           "\"steps\":%" PRId64 ",\"median_s\":%.5f,\"best_s\":%.5f,\"cpu_s\":%.5f,\"tokens_per_s\":%.1f,"
           "\"gflops\":%.1f,\"peak_gflops\":%.1f,\"of_peak\":%.3f,\"bytes\":%zu,\"reserved\":%zu,\"ready_s\":%.3f,"
           "\"first_step_s\":%.3f,\"grad_norm\":%.17g,\"loss\":%.17g,\"used\":%zu,\"beside\":%lld,"
           "\"skipped\":%" PRId64 ",\"exposed_s\":%.5f,\"planned_s\":%.5f,\"planned_exposed_s\":%.5f,\"on_gpu\":%zu,"
           "\"pinned\":%zu,"
           "\"hash\":\"%s\"}\n",
           r.m->arch->model_type, r.m->n_elements, s.rows, s.length, s.opt.n_micro, s.device, r.c->opt.n_threads,
           tr_dtype_name(s.opt.compute_dtype), tr_dtype_name(s.opt.grad_dtype), tr_dtype_name(s.opt.master_dtype),
           steps, median, seconds[0], cpu, (double)r.n_tokens / median, flops / median * 1e-9, peak * 1e-9,
           flops / median / peak, tr_compiled_bytes(r.c), r.dev.reserved_bytes, ready, first, result.grad_norm, loss,
           used, (long long)used - (long long)tr_compiled_bytes_in(r.c, TR_SPACE_DEVICE), r.scaler.n_skipped,
           median - bare, planned.step_s, planned.exposed_s[TR_TIME_OFFLOAD],
           tr_compiled_bytes_in(r.c, TR_SPACE_DEVICE), r.c->memory.bytes[TR_A_HOST], hex);
out:
    if (st != TR_OK)
        fprintf(stderr, "bench_gpu: %s\n", tr_error_text());
    rig_close(&r);
    return st == TR_OK ? 0 : 1;
}
