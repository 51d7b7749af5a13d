/* A node that does not agree with the row of its op stops the program with the names of program, op and slot; a printed
 * program tells values of one name apart. */
#include "base/base.h"
#include "program/program.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 8, D = 6, O = 4, H = 2 };

struct nodes { /* in (N, D), W (O, D), y (N, O); begin (N, 1) */
    struct tr_program *p;
    tr_val in, w, y, begin;
};

static struct nodes open_nodes(void)
{
    struct nodes s = { 0 };
    assert_int_equal(tr_program_open("toy", &s.p), TR_OK);
    s.in = tr_value_add(s.p, TR_V_IN, TR_F32, N, D, "in");
    s.w = tr_value_add(s.p, TR_V_PARAM, TR_F32, O, D, "w");
    s.y = tr_value_add(s.p, TR_V_TEMP, TR_F32, N, O, "y");
    s.begin = tr_value_add(s.p, TR_V_BATCH, TR_I32, N, 1, "begin");
    return s;
}

static struct tr_node *linear(struct nodes *s)
{
    struct tr_node *n = tr_node_add(s->p, TR_OP_LINEAR, TR_FORWARD);
    n->in[0] = s->in;
    n->in[1] = s->w;
    n->out[0] = s->y;
    return n;
}

/* ---- each makes one mistake, or none ---- */

static void good(struct nodes *s)
{
    (void)linear(s);
}

static void good_transposed(struct nodes *s)
{
    s->p->value[s->w] = (struct tr_value){ .kind = TR_V_PARAM, .rows = D, .cols = O, .base = TR_NONE };
    linear(s)->attr.weight_is_in_out = true;
}

static void missing_weight(struct nodes *s)
{
    linear(s)->in[1] = TR_NONE;
}

static void slot_too_many(struct nodes *s)
{
    linear(s)->in[7] = s->in;
}

static void weight_the_wrong_way(struct nodes *s)
{
    linear(s)->attr.weight_is_in_out = true;
}

static void wrong_output(struct nodes *s)
{
    s->p->value[s->y].rows = N / 2;
    (void)linear(s);
}

static void wrong_dtype(struct nodes *s)
{
    struct tr_node *n = tr_node_add(s->p, TR_OP_EMBED, TR_FORWARD);
    s->p->value[s->begin].dtype = TR_I64;
    n->in[0] = s->begin;
    n->in[1] = s->w;
    n->out[0] = tr_value_add(s->p, TR_V_TEMP, TR_F32, N, D, "rows");
}

static void heads_do_not_fit(struct nodes *s)
{
    struct tr_node *n = tr_node_add(s->p, TR_OP_ATTENTION, TR_FORWARD);
    n->in[0] = n->in[1] = n->in[2] = s->in;
    n->in[3] = s->begin;
    n->out[0] = tr_value_like(s->p, s->in, "o");
    n->out[1] = tr_value_add(s->p, TR_V_TEMP, TR_F32, N, H, "lse");
    n->attr = (struct tr_attr){ .n_heads_q = H, .n_heads_kv = H, .head_dim = D / H + 1 };
}

static void overwritten_and_read_again(struct nodes *s)
{
    struct tr_program *p = s->p;
    tr_val logits = tr_value_add(p, TR_V_TEMP, TR_F32, N, O, "logits");
    struct tr_node *n = tr_node_add(p, TR_OP_HEAD_GRAD, TR_BACKWARD_INPUT);
    n->in[0] = s->in;
    n->in[1] = s->w;
    n->in[3] = s->begin;
    n->in[4] = tr_value_add(p, TR_V_STEP, TR_F32, 1, TR_STEP_COUNT, "step");
    n->in[5] = tr_value_add(p, TR_V_TEMP, TR_F32, N, 1, "lse");
    n->in[6] = logits;
    n->out[0] = tr_value_like(p, s->in, "dx");
    n->out[1] = tr_value_add(p, TR_V_GRAD, TR_F32, O, D, "dw");
    n = tr_node_add(p, TR_OP_SCALE, TR_BACKWARD_INPUT);
    n->in[0] = logits;
    n->out[0] = tr_value_like(p, logits, "late");
}

static const struct {
    const char *name;
    void (*build)(struct nodes *s);
    const char *says; /* NULL: passes */
} cases[] = {
    { "good", good, NULL },
    { "good, (in, out)", good_transposed, NULL },
    { "missing weight", missing_weight, "program toy after a test: node 0, op linear, slot W: is empty" },
    { "slot too many", slot_too_many, "op linear, slot (none): the op has no such slot" },
    { "weight the wrong way", weight_the_wrong_way,
      "slot W: value w#1 is float32 (4, 6), the row says (O, I) transposed" },
    { "wrong output", wrong_output, "slot y: value y#2 is float32 (4, 4), the row says (N, O)" },
    { "wrong dtype", wrong_dtype, "op embed, slot index: value begin#3 is int64 (8, 1), the row says (N, 1) I32" },
    { "heads do not fit", heads_do_not_fit,
      "op attention, slot q: value in#0 is float32 (8, 6), the row says (N, Hd)" },
    { "overwritten and read again", overwritten_and_read_again, "op head_grad, slot logits: is overwritten here" },
};

/* Runs the check in a child, which may abort; its stderr comes back. */
static bool survives(size_t i, char *text, size_t n_text)
{
    int pipe_fd[2], status;
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct nodes s = open_nodes();
        (void)dup2(pipe_fd[1], STDERR_FILENO);
        cases[i].build(&s);
        tr_program_check(s.p, "a test");
        _exit(0);
    }
    (void)close(pipe_fd[1]);
    ssize_t n, at = 0;
    while ((n = read(pipe_fd[0], text + at, n_text - 1 - (size_t)at)) > 0)
        at += n;
    text[at] = 0;
    (void)close(pipe_fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void a_bad_node_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        char text[1024];
        bool is_good = survives(i, text, sizeof text);
        if (is_good != (cases[i].says == NULL))
            fail_msg("%s: %s", cases[i].name, is_good ? "passes" : text);
        if (cases[i].says && !strstr(text, cases[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].name, text, cases[i].says);
    }
}

static void printed_values_have_numbers_and_slots_have_names(void **state)
{
    (void)state;
    struct nodes s = open_nodes();
    struct tr_str text = { 0 };
    linear(&s)->in[3] = tr_value_add(s.p, TR_V_PARAM, TR_F32, 1, O, "w");
    tr_program_print(s.p, &text);
    assert_string_equal(text.p, "segment toy: 1 ops, 5 values\n"
                                "  forward  y:y#2 = linear(x:in#0, W:w#1, bias:-, bias_grad:w#4)  float32 (8, 4)\n");
    tr_str_release(&text);
    tr_program_close(s.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_node_is_named),
        cmocka_unit_test(printed_values_have_numbers_and_slots_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
