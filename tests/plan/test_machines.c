/* The files of share/machines: every chip stands in every cluster, every number has a source and a date, and numbers
 * are those that forecasts were fitted with, to the last bit. */
#include "build/build.h"
#include "plan/machine_impl.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void every_chip_is_a_machine_in_every_cluster(void **state)
{
    const char *chip, *cluster;
    (void)state;
    for (size_t i = 0; (chip = tr_chip_name(i)) != NULL; i++)
        for (size_t k = 0; (cluster = tr_cluster_name(k)) != NULL; k++) {
            struct tr_machine m;
            struct tr_str text = { 0 };
            if (tr_machine_join(chip, cluster, &m) != TR_OK)
                fail_msg("%s@%s: %s", chip, cluster, tr_error_text());
            tr_machine_write(&m, &text); /* every number is inside the range of its key */
            if (tr_machine_read(m.name, text.p, &m) != TR_OK)
                fail_msg("%s", tr_error_text());
            tr_str_release(&text);
        }
    assert_null(tr_chip_name(tr_n_chip_files));
    assert_null(tr_cluster_name(tr_n_cluster_files));
}

static void the_name_of_a_family_is_its_first_chip(void **state)
{
    static const char *const pairs[][2] = { { "H100", "H100-80GB@ndr" },
                                            { "a100", "A100-40GB@hdr" },
                                            { "V100", "V100-16GB@dgx1" },
                                            { "B300@dgx", "B300-288GB@dgx-b300" } };
    struct tr_machine m;
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(pairs); i++) {
        assert_int_equal(tr_machine_find(pairs[i][0], &m), TR_OK);
        assert_string_equal(m.name, pairs[i][1]);
    }
}

/* "key: 1.5  # where the number is from; 2026-11-15" */
static void check_line(const char *file, const char *line, size_t n)
{
    char text[512], year[5] = "";
    assert_true(n < sizeof text);
    memcpy(text, line, n);
    text[n] = '\0';
    const char *value = strstr(text, ": "), *source = strstr(text, "  # "), *date = strrchr(text, ';');
    if (text[0] == '#' || !value || strncmp(text, "about", 5) == 0 || strncmp(text, "usual_cluster", 13) == 0)
        return;
    if (!source || !date || date < source + 8 || strlen(date) != strlen("; 2026-11-15"))
        fail_msg("%s: \"%s\" does not end in \"  # SOURCE; YYYY-MM-DD\"", file, text);
    memcpy(year, date + 2, 4);
    if (strspn(year, "0123456789") != 4 || date[6] != '-' || date[9] != '-')
        fail_msg("%s: \"%s\" is not a date", file, date + 2);
}

static void check_file(const struct tr_machine_file *f)
{
    for (const char *at = f->text; *at;) {
        size_t n = strcspn(at, "\n");
        check_line(f->name, at, n);
        at += n + (at[n] == '\n');
    }
}

static void every_number_has_a_source_and_a_date(void **state)
{
    (void)state;
    check_file(&tr_usual_file);
    for (size_t i = 0; i < tr_n_chip_files; i++)
        check_file(&tr_chip_files[i]);
    for (size_t i = 0; i < tr_n_cluster_files; i++)
        check_file(&tr_cluster_files[i]);
}

/* Doubles that a decimal in the unit of the file does not always give: the fits were made with these. */
static void numbers_are_those_of_the_fits_to_the_last_bit(void **state)
{
    struct tr_machine m;
    (void)state;
    assert_int_equal(tr_machine_find("A100-80GB@selene", &m), TR_OK);
    assert_true(m.chip.memory_rate == 2.039 * 1e12 && m.chip.memory_bytes == 80.0 * 1024 * 1024 * 1024);
    assert_true(m.slow.ramp_s == 200e-6 && m.slow.latency_s == 15 * 1e-6 && m.slow.rate == 25e9);
    assert_true(m.fast.rate == 300e9 && m.fast.ramp_s == 180 * 1e-6 && m.chip.launch_s == 3e-6);
    assert_int_equal(tr_machine_find("RTX4090", &m), TR_OK);
    assert_true(m.fast.latency_s == 25e-6 && m.fast.ramp_s == 150e-6 && m.host_rate == 22e9);
    assert_int_equal(tr_machine_find("H100-96GB-500W@grandteton", &m), TR_OK);
    assert_true(m.chip.gemm_share == 0.80 * 0.75 && m.mttf_hours == 50e3 && m.disk_rate == 2e9);
}

static void a_file_of_a_user_may_limit_the_power(void **state)
{
    struct tr_machine a, b;
    (void)state;
    assert_int_equal(tr_machine_find("H100", &a), TR_OK);
    assert_int_equal(tr_machine_read("file", "base: H100\npower_share: 0.5\n", &b), TR_OK);
    assert_true(b.chip.gemm_share == 0.5 * a.chip.gemm_share);
    assert_int_equal(tr_machine_read("file", "base: H100\nusual_cluster: ndr\n", &b), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "file:2: usual_cluster \"ndr\" is for chips of share/machines"));
}

static size_t gpu_bytes;
static size_t total_of_gpu(void)
{
    return gpu_bytes;
}

/* memory_budget 0 is what the machine has: of a device with memory of its own that memory, else the rank's share of the
 * host's. Unknown is no budget. */
static void a_budget_of_0_is_what_the_machine_has(void **state)
{
    (void)state;
    const struct tr_memory_ops memory = { .total = total_of_gpu };
    const struct tr_device_row gpu = { .name = "gpu", .memory = &memory };
    const uint64_t gib = UINT64_C(1) << 30;
    gpu_bytes = 80 * gib;
    uint64_t have = 80 * gib - TR_GPU_BESIDE_BYTES, budget = tr_setup_budget(&gpu, 8 * gib, 4);
    assert_true(budget <= have / 10 * 9 && budget > have / 10 * 9 / 64 * 62);
    gpu_bytes = 0;
    assert_int_equal(tr_setup_budget(&gpu, 8 * gib, 4), 0);
    budget = tr_setup_budget(tr_device_row("cpu"), 8 * gib, 4);
    assert_true(budget <= 2 * gib / 10 * 9 && budget > 2 * gib / 10 * 9 / 64 * 62);
    assert_int_equal(tr_setup_budget(tr_device_row("cpu"), UINT64_MAX, 4), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chip_is_a_machine_in_every_cluster),
        cmocka_unit_test(the_name_of_a_family_is_its_first_chip),
        cmocka_unit_test(every_number_has_a_source_and_a_date),
        cmocka_unit_test(numbers_are_those_of_the_fits_to_the_last_bit),
        cmocka_unit_test(a_file_of_a_user_may_limit_the_power),
        cmocka_unit_test(a_budget_of_0_is_what_the_machine_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
