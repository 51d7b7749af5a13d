/* test_table.c - records of every format against what pyarrow, csv and json read (tests/table/make_golden.py), damaged
 * files, and slices. */
#include "token/token_test.h"

#include "table/table.h"

#include <dirent.h>

#define GOLDEN TR_SOURCE_DIR "/tests/table/golden"

/* ---- the recorded files ---- */

/* Calls test for every data file of the recording. */
static int for_each_file(void (*test)(const char *path, const char *name, enum tr_table_kind kind))
{
    DIR *dir = opendir(GOLDEN);
    const struct dirent *e;
    enum tr_table_kind kind;
    char path[TR_PATH_MAX];
    int n = 0;
    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) {
        assert_ok(tr_path_join(path, GOLDEN, e->d_name));
        if (tr_table_kind_of(path, &kind)) {
            test(path, e->d_name, kind);
            n++;
        }
    }
    closedir(dir);
    return n;
}

static cJSON *parse(const char *text, size_t n)
{
    cJSON *x = NULL;
    assert_ok(tr_json_parse(text, n, "row", &x));
    return x;
}

/* Compares rows [first, ...) of the file with the lines of the recording. */
static void compare(const char *path, const char *name, enum tr_table_kind kind, uint64_t first)
{
    char rows[TR_PATH_MAX], *text;
    size_t n;
    int64_t number = (int64_t)first;
    struct tr_table *t;
    struct tr_row row;
    assert_ok(tr_format(rows, sizeof rows, "%s/%.*s.rows", GOLDEN, (int)strcspn(name, "-."), name));
    assert_ok(tr_file_read(rows, 1 << 20, &text, &n));
    const char *line = text;
    for (uint64_t i = 0; i < first && *line; i++)
        line = strchr(line, '\n') + 1;
    assert_ok(tr_table_open(path, kind, &t));
    assert_ok(tr_table_skip(t, first));
    for (;; line = strchr(line, '\n') + 1) {
        assert_ok(tr_table_next(t, &row));
        if (!row.text || !*line)
            break;
        cJSON *ours = parse(row.text, row.n), *theirs = parse(line, strcspn(line, "\n"));
        assert_null(row.why);
        assert_int_equal(row.number, ++number);
        if (!cJSON_Compare(ours, theirs, true))
            fail_msg("%s row %" PRId64 ": %.*s, expected %.*s", name, number, (int)row.n, row.text,
                     (int)strcspn(line, "\n"), line);
        cJSON_Delete(ours);
        cJSON_Delete(theirs);
    }
    if (row.text || *line)
        fail_msg("%s has %s rows than its recording", name, row.text ? "more" : "fewer");
    struct tr_hash128 read, again;
    assert_ok(tr_table_hash(t, &read));
    assert_ok(tr_textfile_hash(path, &again));
    assert_true(tr_hash_eq(read, again));
    tr_table_close(t);
    free(text);
}

static void compare_some(const char *path, const char *name, enum tr_table_kind kind)
{
    uint64_t n;
    assert_ok(tr_table_count(path, kind, &n));
    static const uint64_t firsts[] = { 0, 1, 8, 9, 13, 1000 };
    for (size_t i = 0; i < TR_COUNT_OF(firsts); i++)
        compare(path, name, kind, firsts[i]);
    compare(path, name, kind, n);
    compare(path, name, kind, n ? n - 1 : 0);
}

static void files_are_read_as_the_libraries_that_wrote_them_read_them(void **state)
{
    (void)state;
    assert_int_equal(for_each_file(compare_some), 31);
}

/* ---- damage ---- */

/* Whatever the bytes are, reading ends, with records or with one refusal. */
static void read_to_the_end(const char *path, enum tr_table_kind kind)
{
    struct tr_table *t;
    struct tr_row row = { .text = "" };
    enum tr_status st = tr_table_open(path, kind, &t);
    if (st == TR_OK) {
        while (st == TR_OK && row.text)
            st = tr_table_next(t, &row);
        tr_table_close(t);
    }
    assert_true(st == TR_OK || st == TR_USAGE);
    if (st != TR_OK) {
        assert_non_null(strstr(tr_error_text(), path));
        assert_null(strchr(tr_error_text(), '\n'));
    }
    tr_error_clear();
}

static struct scratch *here;

static uint64_t draw(const char *name, uint64_t *at, uint64_t n)
{
    return tr_philox(tr_rng_key(1, name, 0), 0, ++*at).v[0] % n;
}

static void damage(const char *path, const char *name, enum tr_table_kind kind)
{
    enum { CASES = 60 };
    char *bytes;
    size_t n;
    assert_ok(tr_file_read(path, 1 << 20, &bytes, &n));
    uint64_t at = 0;
    for (int i = 0; i < CASES && n > 0; i++) {
        char *copy = malloc(n);
        size_t n_copy = n, n_tail = n < 600 ? n : 600;
        memcpy(copy, bytes, n);
        if (i % 3 == 0)
            n_copy = (size_t)draw(name, &at, n);
        for (uint64_t k = i % 3 ? 1 + draw(name, &at, 4) : 0; k > 0; k--) /* footers are at the end */
            copy[i % 3 == 1 ? draw(name, &at, n) : n - 1 - draw(name, &at, n_tail)] = (char)draw(name, &at, 256);
        read_to_the_end(put_file(here, "bad", copy, n_copy), kind);
        free(copy);
    }
    free(bytes);
}

static void damaged_files_are_refused_in_one_line(void **state)
{
    here = *state;
    assert_int_equal(for_each_file(damage), 31);
}

/* ---- text formats ---- */

static void rows_of_another_length_are_named_and_the_next_is_read(void **state)
{
    struct scratch *s = *state;
    struct tr_table *t;
    struct tr_row row;
    const char *path = put_text(s, "a.csv", "a,b\r\n1,2\n\n3\n\"x\n\"\"y\",\"\"z\n");
    assert_ok(tr_table_open(path, TR_TABLE_CSV, &t));
    assert_ok(tr_table_next(t, &row));
    assert_string_equal(row.text, "{\"a\":\"1\",\"b\":\"2\"}");
    assert_ok(tr_table_next(t, &row));
    assert_string_equal(row.why, "the row has 1 fields, and the header has 2");
    assert_int_equal(row.number, 2);
    assert_ok(tr_table_next(t, &row));
    assert_string_equal(row.text, "{\"a\":\"x\\n\\\"y\",\"b\":\"z\"}");
    assert_ok(tr_table_next(t, &row));
    assert_null(row.text);
    tr_table_close(t);
}

static void files_that_are_not_what_their_name_says_are_refused(void **state)
{
    struct scratch *s = *state;
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        { "a.csv", "a,a\n1,2\n", "the column \"a\" is there twice" },
        { "b.csv", "a,b\n1,\"2\n", "row 1: the file ends inside a quoted field" },
        { "a.json", "hello", "begins with neither [ nor {" },
        { "b.json", "[{\"a\": 1} {\"a\": 2}]", "row 2: there is no comma" },
        { "c.json", "[{\"a\": 1}, 2]", "row 2: this element of the array is not an object" },
        { "d.json", "[{\"a\": 1}, {\"a\"", "row 2: the file ends inside this record" },
        { "e.json", "[{\"a\": 1}] x", "row 2: something follows the end of the array" },
        { "f.json", "[{\"a\": 1}", "row 2: the file ends inside the array" },
        { "a.parquet", "PAR1 and then something else", "does not end with PAR1" },
        { "b.parquet", "", "shorter than 12 bytes" },
        { "c.parquet", "PAR1 a footer of 4 GiB \xff\xff\xff\xffPAR1", "its footer is longer than the file" },
        { "a.arrow", "ARROW1  and then something else", "does not end with ARROW1" },
        { "b.arrow", "\xff\xff\xff\xff\xff\xff\xff\x7f........", "a message is longer than the file" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        enum tr_table_kind kind = TR_TABLE_KINDS;
        uint64_t n;
        const char *path = put_text(s, cases[i].name, cases[i].text);
        assert_true(tr_table_kind_of(path, &kind));
        assert_refused(tr_table_count(path, kind, &n), TR_USAGE, cases[i].says);
    }
}

/* ---- slices ---- */

static void slices_are_those_of_datasets(void **state)
{
    (void)state;
    static const struct {
        const char *text, *split;
        uint64_t n, first, end;
    } cases[] = {
        { "train", "train", 7, 0, 7 },
        { "train[:5%]", "train", 1000, 0, 50 },
        { "train[5%:]", "train", 1000, 50, 1000 },
        { "train[:1%]", "train", 50, 0, 0 }, /* 0.5: to the even one */
        { "train[:3%]", "train", 50, 0, 2 }, /* 1.5 */
        { "train[-10%:]", "train", 999, 899, 999 },
        { "test[100:200]", "test", 150, 100, 150 },
        { "test[1_0:2_0]", "test", 150, 10, 20 },
        { "test[-20:]", "test", 150, 130, 150 },
        { "test[-200:-1]", "test", 150, 0, 149 },
        { "test[:-10%]", "test", 150, 0, 135 },
        { "test[50:50%]", "test", 200, 100, 100 }, /* one boundary in percent makes both so */
        { "test[20:10]", "test", 200, 20, 20 },
        { "[:5%]", "", 100, 0, 5 },
        { "validation_matched[:]", "validation_matched", 3, 0, 3 },
    };
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++) {
        struct tr_table_split s;
        uint64_t first, end;
        assert_ok(tr_table_split_parse(cases[i].text, &s));
        tr_table_split_of(&s, cases[i].n, &first, &end);
        assert_string_equal(s.name, cases[i].split);
        if (first != cases[i].first || end != cases[i].end)
            fail_msg("%s of %" PRIu64 ": [%" PRIu64 ", %" PRIu64 ")", cases[i].text, cases[i].n, first, end);
    }
    static const char *const bad[] = { "",          "train[5%]",          "train[:5",   "train[:101%]",
                                       "train[a:]", "train[:5%]x",        "train+test", "train[-:]",
                                       "a/b",       "train[:5%](closest)" };
    for (size_t i = 0; i < TR_COUNT_OF(bad); i++)
        assert_refused(tr_table_split_parse(bad[i], &(struct tr_table_split){ 0 }), TR_USAGE,
                       "is not a name with a slice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_read_as_the_libraries_that_wrote_them_read_them),
        cmocka_unit_test_setup_teardown(damaged_files_are_refused_in_one_line, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(rows_of_another_length_are_named_and_the_next_is_read, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(files_that_are_not_what_their_name_says_are_refused, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test(slices_are_those_of_datasets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
