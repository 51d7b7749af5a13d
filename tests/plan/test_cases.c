/* Published results as a file: read strictly, predicted row by row, and what cannot be predicted says why. */
#include "plan/plan.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define HEADER                                                                                                         \
    "id,source,model,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpu,gpus,tp,pp,vpp,cp,dp,ep,micro_batch,global_batch," \
    "recompute,precision,zero_stage,metric,value,verified\n"

static void write_file(char path[32], const char *text)
{
    FILE *f;
    strncpy(path, "/tmp/tr-cases-XXXXXX", 32);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    f = fdopen(fd, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static enum tr_status read_text(const char *text, struct tr_cases *out)
{
    char path[32];
    write_file(path, text);
    enum tr_status st = tr_cases_read(path, out);
    unlink(path);
    return st;
}

/* Narayanan 2021, table 1: the largest and one without a pipeline; Korthikanti 2022, table 5. */
static void published_steps_are_met(void **state)
{
    struct tr_cases c;
    (void)state;
    assert_int_equal(
        read_text(
            HEADER
            "a,Narayanan 2021 (SC21) Table 1,GPT,128,25600,160,160,102400,51200,2048,A100-80GB@selene,3072,8,64,1,1,6,"
            "1,1,3072,full,fp16,0,step_time_s,102.37,yes\n"
            "b,Narayanan 2021 (SC21) Table 1,GPT,36,4096,32,32,16384,51200,2048,A100-80GB@selene,128,4,1,1,1,32,1,16,"
            "512,full,fp16,0,hw_tflops_per_gpu,142,yes\n"
            "c,\"Korthikanti 2022 Table 5, \"\"selective\"\"\",GPT,96,12288,96,96,49152,51200,2048,A100-80GB@selene,64,"
            "8,8,3,1,1,1,1,64,selective+sp,fp16,0,step_time_s,13.75,yes\r\n",
            &c),
        TR_OK);
    assert_int_equal(c.n, 3);
    assert_string_equal(c.row[2].field[TR_CASE_source], "Korthikanti 2022 Table 5, \"selective\"");
    for (size_t i = 0; i < c.n; i++) {
        tr_case_resolve(&c.row[i]);
        tr_case_predict(&c.row[i]);
        assert_string_equal(c.row[i].reason, "");
        if (tr_case_error(&c.row[i]) > 8) /* the promise for Korthikanti's table; SC21's mean is 5 */
            fail_msg("%s: %.4g beside %.4g", c.row[i].field[TR_CASE_id], c.row[i].predicted, c.row[i].published);
    }
    tr_cases_release(&c);
}

static void what_cannot_be_predicted_says_why(void **state)
{
    static const struct {
        const char *row, *says;
    } rows[] = {
        { "a,s,m,2,64,4,4,256,100,128,Z100,1,1,1,1,1,1,1,1,1,,bf16,0,step_time_s,1,yes\n", "no chip" },
        { "a,s,m,2,64,4,4,256,100,128,A100,2,1,1,1,1,1,1,1,1,,bf16,0,step_time_s,1,yes\n", "is not 2 gpus" },
        { "a,s,m,2,64,4,4,256,100,128,A100,1,1,1,1,1,1,1,1,1,,bf16,0,colour,1,yes\n", "colour" },
        { "a,s,m,,64,4,4,256,100,128,A100,1,1,1,1,1,1,1,1,1,,bf16,0,step_time_s,1,yes\n", "layers is not stated" },
        { "a,s,m,2,64,4,4,moe0x1top9,100,128,A100,1,1,1,1,1,1,1,1,1,,bf16,0,step_time_s,1,yes\n", "moeN" },
        { "a,s,m,99999999,64,4,4,256,100,128,A100,1,1,1,1,1,1,1,1,1,,bf16,0,step_time_s,1,yes\n", "layers" },
    };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_cases c;
        struct tr_str text = { 0 };
        tr_str_addf(&text, "%s%s", HEADER, rows[i].row);
        assert_int_equal(read_text(text.p, &c), TR_OK);
        tr_case_resolve(&c.row[0]);
        tr_case_predict(&c.row[0]);
        if (!strstr(c.row[0].reason, rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", c.row[0].reason, rows[i].says);
        tr_cases_release(&c);
        tr_str_release(&text);
    }
}

static void a_bad_file_is_refused_with_its_line(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "", "column" },
        { "id,id\n", "there twice" },
        { "id,colour\n", "not known" },
        { "id,source\n", "is missing" },
        { HEADER "a,b\n", ":2: too few fields" },
        { HEADER "a,s,m,2,64,4,4,256,100,128,A100,1,1,1,1,1,1,1,1,1,,bf16,0,step_time_s,x,yes\n", "not a number" },
        { HEADER "a,s,m,2,64,4,4,256,100,128,A100,1,1,1,1,1,1,1,1,1,,bf16,0,step_time_s,1,yes,no\n", "too many" },
        { HEADER "\"a,s\n", "not closed" },
        { HEADER "a\"b,s\n", "quote inside" },
    };
    struct tr_cases c;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        assert_int_equal(read_text(rows[i].text, &c), TR_USAGE);
        if (!strstr(tr_error_text(), rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_steps_are_met),
        cmocka_unit_test(what_cannot_be_predicted_says_why),
        cmocka_unit_test(a_bad_file_is_refused_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
