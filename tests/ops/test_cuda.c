/* test_cuda.c - the CUDA column against the reference, on the one case table; then attention as training calls it.
 *
 * Skipped where there is no GPU. Inputs, outputs and the bytes around them are copied to the device as they are, so a
 * kernel that reads padding or writes outside its views shows it here too.
 */
#include "ops/attention_cases.h"
#include "ops/cuda/scratch.h"
#include <fnmatch.h>
#include <stdio.h>

static struct tr_device dev;
static const struct tr_column *column;

struct on_device {
    void *base[N_VIEWS];
    struct tr_call c;
    size_t scratch_bytes;
};

/* The call with every buffer copied to the device. */
static void to_device(struct built *b, struct on_device *d)
{
    *d = (struct on_device){ .c = b->c };
    for (int i = 0; i < N_VIEWS; i++) {
        if (!b->base[i])
            continue;
        assert_int_equal(tr_device_reserve(&dev, TR_SPACE_DEVICE, b->n_bytes[i], "case", &d->base[i]), TR_OK);
        tr_device_copy_now(&dev, d->base[i], b->base[i], b->n_bytes[i]);
        struct tr_view *v = i < TR_MAX_IN ? &d->c.in[i] : &d->c.out[i - TR_MAX_IN];
        v->data = (char *)d->base[i] + ((unsigned char *)view_of(b, i)->data - b->base[i]);
    }
    d->scratch_bytes = tr_round_up(column->scratch(&b->c, 1), 256) + 256;
    assert_int_equal(tr_device_reserve(&dev, TR_SPACE_DEVICE, d->scratch_bytes, "scratch", &d->c.scratch), TR_OK);
    d->c.dev = &dev;
}

static void from_device(struct on_device *d, struct built *b)
{
    for (int i = TR_MAX_IN; i < N_VIEWS; i++)
        if (b->base[i])
            tr_device_copy_now(&dev, b->base[i], d->base[i], b->n_bytes[i]);
    if (tr_device_sync(&dev, TR_STREAM_COMPUTE) != TR_OK)
        fail_msg("%s: %s", b->label, tr_error_text());
}

static void release_device(struct on_device *d, struct built *b)
{
    for (int i = 0; i < N_VIEWS; i++)
        if (d->base[i])
            tr_device_release(&dev, TR_SPACE_DEVICE, d->base[i], b->n_bytes[i]);
    tr_device_release(&dev, TR_SPACE_DEVICE, d->c.scratch, d->scratch_bytes);
}

static void check_parity(struct built *cuda, struct built *ref)
{
    struct on_device d;
    to_device(cuda, &d);
    column->kernel(cuda->c.op)(&d.c);
    from_device(&d, cuda);
    tr_op_cpu_ref(ref->c.op)(&ref->c);
    for (int k = 0; k < tr_op_n_out(ref->c.op); k++) {
        if (!ref->c.out[k].data)
            continue;
        compare_view(cuda, ref, k);
        check_padding(cuda, k);
    }
    release_device(&d, cuda);
}

static void check_twice(struct built *one, struct built *two)
{
    struct on_device a, b;
    to_device(one, &a);
    to_device(two, &b);
    column->kernel(one->c.op)(&a.c);
    column->kernel(two->c.op)(&b.c);
    from_device(&a, one);
    from_device(&b, two);
    for (int k = 0; k < TR_MAX_OUT; k++)
        if (one->base[TR_MAX_IN + k] &&
            memcmp(one->base[TR_MAX_IN + k], two->base[TR_MAX_IN + k], one->n_bytes[TR_MAX_IN + k]) != 0)
            fail_msg("%s: out[%d] differs between two runs", one->label, k);
    release_device(&a, one);
    release_device(&b, two);
}

/* One test an op: each names its own first failure. */
static void matches_reference_and_itself(void **state)
{
    enum tr_opcode op = *(const enum tr_opcode *)*state;
    each_call(op, check_parity);
    each_call(op, check_twice);
}

/* ---- attention as training calls it ---- */

/* Runs the call twice: the same bits. */
static void run_twice(struct on_device *d, struct built *b)
{
    unsigned char *first[TR_MAX_OUT];
    column->kernel(d->c.op)(&d->c);
    from_device(d, b);
    for (int k = 0; k < TR_MAX_OUT; k++) {
        size_t bytes = b->base[TR_MAX_IN + k] ? b->n_bytes[TR_MAX_IN + k] : 0;
        first[k] = malloc(bytes + 1);
        assert_non_null(first[k]);
        if (bytes)
            memcpy(first[k], b->base[TR_MAX_IN + k], bytes);
    }
    column->kernel(d->c.op)(&d->c);
    from_device(d, b);
    for (int k = 0; k < TR_MAX_OUT; k++) {
        if (b->base[TR_MAX_IN + k] && memcmp(first[k], b->base[TR_MAX_IN + k], b->n_bytes[TR_MAX_IN + k]) != 0)
            fail_msg("%s: out[%d] differs between two runs", b->label, k);
        free(first[k]);
    }
}

static void check_attention(const struct op_case *row, const struct mode *m)
{
    static const char *const names[] = { "dq", "dk", "dv" };
    struct built f, f_ref, b, b_ref;
    struct on_device df, db;
    build(&f, row, TR_OP_ATTENTION, m);
    build(&f_ref, row, TR_OP_ATTENTION, m);
    to_device(&f, &df);
    df.c.n_documents = documents_of(row);
    run_twice(&df, &f);
    tr_op_cpu_ref(TR_OP_ATTENTION)(&f_ref.c);
    assert_near(&f, &f.c.out[0], &f_ref.c.out[0], "o");
    const struct op_grad *g = grads;
    while (g->backward != TR_OP_ATTENTION_BWD)
        g++;
    build_backward(&b_ref, &f_ref, g, m);
    build_backward(&b, &f, g, m); /* o and lse of this column: their layout is its own */
    to_device(&b, &db);
    db.c.n_documents = documents_of(row);
    run_twice(&db, &b);
    tr_op_cpu_ref(TR_OP_ATTENTION_BWD)(&b_ref.c);
    for (int k = 0; k < 3; k++)
        assert_near(&b, &b.c.out[k], &b_ref.c.out[k], names[k]);
    release_device(&df, &f);
    release_device(&db, &b);
    release(&f);
    release(&f_ref);
    release(&b);
    release(&b_ref);
}

static void attention_of_training_matches_reference(void **state)
{
    static const struct mode f16 = { "f16", TR_F16, TR_F32, TR_F32, TR_F32, .accumulate = true };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(attentions); i++) {
        check_attention(&attentions[i], &modes[2]); /* bf16 */
        check_attention(&attentions[i], &f16);
    }
}

/* ---- the backward of attention in chunks ---- */

enum { QUERY, KEY, VALUE, D_OUT, OUT, D_QUERY, D_KEY, D_VALUE, N_BIG };

struct big {
    struct tr_attr attr;
    int64_t n_rows, document; /* tokens of a document; rows begin new ones */
    uint16_t *x[N_BIG];       /* on the device */
    float *lse;
    int32_t *begin, *begin_of_row;
};

static bool is_of_keys(int what)
{
    return what == KEY || what == VALUE || what == D_KEY || what == D_VALUE;
}

static struct tr_view big_view(const struct big *b, int what, int64_t row, int64_t n_rows, int64_t head, int64_t n)
{
    int64_t s = b->attr.seq_len, d = b->attr.head_dim, group = b->attr.n_heads_q / b->attr.n_heads_kv;
    int64_t ld = d * (is_of_keys(what) ? b->attr.n_heads_kv : b->attr.n_heads_q),
            each = is_of_keys(what) ? d : d * group;
    return (struct tr_view){ b->x[what] + row * s * ld + head * each, TR_BF16, n_rows * s, n * each, ld };
}

/* Rows and heads of keys from these on: forward, or backward. lse is (row, head, token). */
static void run_big(const struct big *b, bool is_bwd, int64_t row, int64_t n_rows, int64_t head, int64_t n_heads)
{
    static const int ins[2][5] = { { QUERY, KEY, VALUE }, { D_OUT, QUERY, KEY, VALUE, OUT } };
    int64_t s = b->attr.seq_len, group = b->attr.n_heads_q / b->attr.n_heads_kv;
    bool is_part = n_rows < b->n_rows;
    int n_in = is_bwd ? 5 : 3;
    struct tr_call c = { .op = is_bwd ? TR_OP_ATTENTION_BWD : TR_OP_ATTENTION, .attr = b->attr, .dev = &dev };
    c.attr.n_heads_q = (int32_t)(n_heads * group);
    c.attr.n_heads_kv = (int32_t)n_heads;
    c.n_documents = n_rows * ((s + b->document - 1) / b->document);
    for (int i = 0; i < n_in; i++)
        c.in[i] = big_view(b, ins[is_bwd][i], row, n_rows, head, n_heads);
    struct tr_view lse = { b->lse + (row * b->attr.n_heads_q + head * group) * s, TR_F32, n_rows * s, n_heads * group,
                           n_heads * group };
    struct tr_view begin = { is_part ? b->begin_of_row : b->begin, TR_I32, n_rows * s, 1, 1 };
    c.in[n_in++] = is_bwd ? lse : begin;
    if (is_bwd)
        c.in[n_in] = begin;
    for (int i = 0; i < (is_bwd ? 3 : 1); i++)
        c.out[i] = big_view(b, is_bwd ? D_QUERY + i : OUT, row, n_rows, head, n_heads);
    if (!is_bwd)
        c.out[1] = lse;
    size_t bytes = column->scratch(&c, 1);
    assert_int_equal(tr_device_reserve(&dev, TR_SPACE_DEVICE, bytes, "scratch", &c.scratch), TR_OK);
    column->kernel(c.op)(&c);
    if (tr_device_sync(&dev, TR_STREAM_COMPUTE) != TR_OK)
        fail_msg("%s", tr_error_text());
    tr_device_release(&dev, TR_SPACE_DEVICE, c.scratch, bytes);
}

static void *reserve_big(size_t bytes, const void *from)
{
    void *p = NULL;
    assert_int_equal(tr_device_reserve(&dev, TR_SPACE_DEVICE, bytes, "big", &p), TR_OK);
    if (from)
        tr_device_copy_now(&dev, p, from, bytes);
    return p;
}

/* The gradients of one call, which the column runs in chunks, and of a call for each chunk. */
static void check_chunks(struct big *b, struct tr_cuda_chunk want)
{
    int64_t s = b->attr.seq_len, n = b->n_rows * s, wide = (int64_t)b->attr.n_heads_q * b->attr.head_dim;
    size_t bytes = (size_t)(n * wide) * sizeof(uint16_t), n_begin = (size_t)n * sizeof(int32_t);
    uint16_t *host = malloc(bytes), *one[3];
    int32_t *begin = malloc(n_begin);
    assert_true(host && begin);
    struct tr_call probe = { .op = TR_OP_ATTENTION_BWD, .attr = b->attr, .in = { [1] = { .rows = n } } };
    struct tr_cuda_chunk chunk = tr_cuda_attention_chunk(&probe);
    assert_int_equal(chunk.rows, want.rows);
    assert_int_equal(chunk.heads_kv, want.heads_kv);
    for (int64_t i = 0; i < n; i++)
        begin[i] = (int32_t)(i / s * s + i % s / b->document * b->document);
    b->begin = reserve_big(n_begin, begin);
    b->begin_of_row = reserve_big(n_begin, begin); /* of row 0, and of any row by itself */
    b->lse = reserve_big((size_t)(n * b->attr.n_heads_q) * sizeof(float), NULL);
    for (int t = 0; t < N_BIG; t++) {
        uint64_t key = tr_rng_key(7, "chunks", (uint64_t)t);
        for (int64_t i = 0; t <= D_OUT && i < n * wide; i++)
            host[i] = tr_bf16_of_f32((float)(int32_t)tr_philox(key, 0, (uint64_t)i).v[0] * 0x1p-31f);
        b->x[t] = reserve_big(bytes, host);
    }
    run_big(b, false, 0, b->n_rows, 0, b->attr.n_heads_kv);
    run_big(b, true, 0, b->n_rows, 0, b->attr.n_heads_kv);
    for (int k = 0; k < 3; k++) {
        one[k] = malloc(bytes);
        assert_non_null(one[k]);
        tr_device_copy_now(&dev, one[k], b->x[D_QUERY + k], bytes);
        memset(host, 0xff, bytes);
        tr_device_copy_now(&dev, b->x[D_QUERY + k], host, bytes);
    }
    for (int64_t row = 0; row < b->n_rows; row++)
        for (int64_t head = 0; head < b->attr.n_heads_kv; head += want.heads_kv)
            run_big(b, true, row, 1, head, want.heads_kv);
    for (int k = 0; k < 3; k++) {
        size_t used = k == 0 ? bytes : bytes / (size_t)(b->attr.n_heads_q / b->attr.n_heads_kv);
        tr_device_copy_now(&dev, host, b->x[D_QUERY + k], bytes);
        assert_memory_equal(host, one[k], used);
        free(one[k]);
    }
    for (int t = 0; t < N_BIG; t++)
        tr_device_release(&dev, TR_SPACE_DEVICE, b->x[t], bytes);
    tr_device_release(&dev, TR_SPACE_DEVICE, b->lse, (size_t)(n * b->attr.n_heads_q) * sizeof(float));
    tr_device_release(&dev, TR_SPACE_DEVICE, b->begin, n_begin);
    tr_device_release(&dev, TR_SPACE_DEVICE, b->begin_of_row, n_begin);
    free(host);
    free(begin);
}

static void chunks_of_attention_have_the_bits_of_single_calls(void **state)
{
    struct big rows = { .n_rows = 4, .attr = { HEADS(32, 8, 64), .scale = 0.125f, .seq_len = 2048 } },
               heads = { .n_rows = 1, .attr = { HEADS(16, 4, 64), .scale = 0.125f, .seq_len = 8192 } };
    (void)state;
    for (int i = 0; i < 2; i++) { /* whole rows; several documents in a row */
        rows.document = i ? 700 : 2048;
        heads.document = i ? 700 : 8192;
        check_chunks(&rows, (struct tr_cuda_chunk){ 2, 8 });
        check_chunks(&heads, (struct tr_cuda_chunk){ 1, 2 });
    }
}

/* ---- several updates in one launch ---- */

static void joined_updates_have_the_bits_of_single_ones(void **state)
{
    enum { N = 5 };
    static const struct op_case sizes[N] = { { .d = 1024, .attr = { .decay = true, .key = 9 } },
                                             { .d = 520, .attr = { .key = 8, .first = 8 } },
                                             { .d = 8, .attr = { .decay = true, .key = 7, .first = 4 } },
                                             { .d = 1031, .attr = { .key = 6 } }, /* no whole vectors: alone */
                                             { .d = 40000, .attr = { .key = 5, .first = 1LL << 33 } } };
    static const enum tr_opcode ops[] = { TR_OP_ADAMW, TR_OP_LION, TR_OP_SGD, TR_OP_ADAMW8, TR_OP_LION8 };
    (void)state;
    for (size_t x = 0; x < TR_COUNT_OF(ops) * TR_COUNT_OF(modes); x++) {
        enum tr_opcode op = ops[x / TR_COUNT_OF(modes)];
        struct mode m = modes[x % TR_COUNT_OF(modes)];
        struct built one[N], all[N];
        struct on_device d_one[N], d_all[N];
        struct tr_call calls[N];
        struct op_case row[N];
        m.is_padded = false; /* as in training: whole vectors */
        for (int i = 0; i < N; i++) {
            row[i] = sizes[i];
            row[i].op = op, row[i].label = "joined", row[i].n = 1;
            build(&one[i], &row[i], op, &m);
            build(&all[i], &row[i], op, &m);
            to_device(&one[i], &d_one[i]);
            to_device(&all[i], &d_all[i]);
            column->kernel(op)(&d_one[i].c);
            calls[i] = d_all[i].c;
        }
        column->update(calls, N);
        for (int i = 0; i < N; i++) {
            from_device(&d_one[i], &one[i]);
            from_device(&d_all[i], &all[i]);
            for (int k = TR_MAX_IN; k < N_VIEWS; k++)
                if (one[i].base[k])
                    assert_memory_equal(one[i].base[k], all[i].base[k], one[i].n_bytes[k]);
            release_device(&d_one[i], &one[i]);
            release_device(&d_all[i], &all[i]);
            release(&one[i]);
            release(&all[i]);
        }
    }
}

static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (fnmatch(argv[i], name, 0) == 0)
            return true;
    return argc == 1;
}

/* No argument: all of it. Else the tests and ops that one of these patterns names (under a sanitizer all of it takes
 * long). */
int main(int argc, char **argv)
{
    static enum tr_opcode ops[TR_OP_COUNT];
    const struct CMUnitTest whole[] = { cmocka_unit_test(attention_of_training_matches_reference),
                                        cmocka_unit_test(chunks_of_attention_have_the_bits_of_single_calls),
                                        cmocka_unit_test(joined_updates_have_the_bits_of_single_ones) };
    struct CMUnitTest tests[TR_OP_COUNT + TR_COUNT_OF(whole)];
    size_t n = 0;
    for (size_t i = 0; i < TR_COUNT_OF(whole); i++)
        if (is_wanted(whole[i].name, argc, argv))
            tests[n++] = whole[i];
    for (int i = 0; i < TR_OP_COUNT; i++) {
        ops[i] = (enum tr_opcode)i;
        if (is_wanted(tr_op_row(ops[i])->name, argc, argv))
            tests[n++] = (struct CMUnitTest){ .name = tr_op_row(ops[i])->name,
                                              .test_func = matches_reference_and_itself,
                                              .initial_state = &ops[i] };
    }
    if (!tr_device_is_present(tr_device_row("cuda"))) {
        printf("no CUDA build or no GPU here: skipped\n");
        return 77;
    }
    column = tr_column_of("cuda");
    if (tr_device_open("cuda", &dev) != TR_OK || column->open(&dev, false) != TR_OK) {
        printf("%s\n", tr_error_text());
        return 1;
    }
    products_round = true;
    int failed = _cmocka_run_group_tests("ops on cuda", tests, n, NULL, NULL);
    column->close(&dev);
    tr_device_close(&dev);
    return failed;
}
