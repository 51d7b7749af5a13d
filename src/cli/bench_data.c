/* bench_data.c - bench data: the loader alone, without a model that waits for it. How fast batches can come, and how
 * long the data takes to open: the first time it is tokenised, later its tokens are in the cache. */
#include "cli/cli.h"
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 3, WAIT_US = 60 * 1000 * 1000 };

struct data_bench {
    struct tr_setup *s;
    struct tr_tokenizer *tok;
    struct tr_data *d;
    struct tr_loader *loader;
    void *mem;
    double open_s, seconds;
    int64_t n_steps;
};

static enum tr_status open_data(const struct tr_config *cfg, struct data_bench *b)
{
    char cache[TR_PATH_MAX];
    int64_t start = tr_clock_us();
    TR_PASS(tr_setup_open(cfg, TR_USE_PROOF, &b->s));
    TR_PASS(tr_reader_cache(cfg, cache));
    TR_PASS(tr_open_data(cfg, b->s, &cfg->data, true, cache, &b->tok, &b->d));
    b->open_s = (double)(tr_clock_us() - start) * 1e-6;
    return TR_OK;
}

/* Steps until the time is over. The first ones are not counted: the loader has made them while nobody looked. */
static enum tr_status measure(const struct tr_config *cfg, struct data_bench *b)
{
    int64_t rows = cfg->per_device_train_batch_size, start = 0;
    struct tr_loader_shape shape = {
        .row_tokens = b->s->sequence_length, .batch_rows = rows, .n_rows = rows, .micro_rows = rows, .depth = DEPTH
    };
    size_t bytes = tr_loader_bytes(&shape);
    struct tr_step_batch *batch = NULL;
    if (bytes == 0 || !(b->mem = aligned_alloc(64, tr_round_up(bytes, 64))))
        return tr_fail(TR_USAGE, "no memory for batches of %" PRId64 " rows of %" PRId64 " tokens", rows,
                       shape.row_tokens);
    TR_PASS(tr_loader_open(b->d, &shape, 0, UINT64_C(1) << 40, UINT64_MAX / 2, b->mem, bytes, &b->loader));
    for (int64_t k = 0; b->seconds < cfg->seconds; k++) {
        TR_PASS(tr_loader_next(b->loader, &batch, WAIT_US));
        if (k == DEPTH)
            start = tr_clock_us();
        b->n_steps = k - DEPTH;
        b->seconds = k > DEPTH ? (double)(tr_clock_us() - start) * 1e-6 : 0;
    }
    return TR_OK;
}

static void report(const struct tr_config *cfg, const struct data_bench *b)
{
    double rows = (double)(b->n_steps * cfg->per_device_train_batch_size), length = (double)b->s->sequence_length;
    struct tr_data_info info;
    tr_data_get_info(b->d, &info);
    if (cfg->json)
        printf("{\"open_s\": %.4f, \"tokens\": %" PRIu64 ", \"rows\": %" PRIu64
               ", \"rows_per_s\": %.1f, \"tokens_per_s\": %.1f, \"steps\": %" PRId64 ", \"seconds\": %.4f}\n",
               b->open_s, info.n_tokens, info.n_rows, rows / b->seconds, rows * length / b->seconds, b->n_steps,
               b->seconds);
    else
        printf("opened in %.3f s: %" PRIu64 " tokens, %" PRIu64 " rows of %.0f\nthe loader gives %.0f rows/s, %.3g "
               "tokens/s, in batches of %" PRId64 " rows, from one thread\n",
               b->open_s, info.n_tokens, info.n_rows, length, rows / b->seconds, rows * length / b->seconds,
               cfg->per_device_train_batch_size);
}

enum tr_status cli_bench_data(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct data_bench b = { 0 };
    if (!cfg->model || cfg->data.n == 0)
        return tr_fail(TR_USAGE, "bench data needs --model DIR, for its tokenizer, and --data PATH");
    TR_TRY(open_data(cfg, &b));
    TR_TRY(measure(cfg, &b));
    report(cfg, &b);
out:
    tr_loader_close(b.loader);
    free(b.mem);
    tr_data_close(b.d);
    tr_tokenizer_close(b.tok);
    tr_setup_close(b.s);
    return st;
}
