/* test_st_hostile.c - safetensors files of strangers: F1-F22, F24 and F26 of the fault catalogue, one row a case. */
#include "ckpt/tmpdir.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include "ckpt/safetensors.h"

/* Length word + header + data_bytes zeroes. */
static size_t make_file(const char *path, const char *json, size_t n, size_t data_bytes)
{
    size_t n_all = 8 + n + data_bytes;
    char *all = calloc(1, n_all);
    for (int i = 0; i < 8; i++)
        all[i] = (char)(unsigned char)((uint64_t)n >> (8 * i));
    memcpy(all + 8, json, n);
    put_file(path, all, n_all);
    free(all);
    return n_all;
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE                      T("F32", "[2]", "[0,8]")

static const struct refused {
    const char *id, *json;
    size_t data_bytes;
    const char *text;
} refused[] = {
    { "F5 not utf-8", "{\"a\xff\":" ONE "}", 8, "utf-8" },
    { "F5 overlong utf-8", "{\"a\xc0\x80\":" ONE "}", 8, "utf-8" },
    { "F5 overlong utf-8, three bytes", "{\"a\xe0\x80\x80\":" ONE "}", 8, "utf-8" },
    { "F5 overlong utf-8, four bytes", "{\"a\xf0\x80\x80\x80\":" ONE "}", 8, "utf-8" },
    { "F5 beyond U+10FFFF", "{\"a\xf4\x90\x80\x80\":" ONE "}", 8, "utf-8" },
    { "F5 encoded surrogate", "{\"a\xed\xa0\x80\":" ONE "}", 8, "utf-8" },
    { "F5 cut utf-8", "{\"a\xe2\x82\":" ONE "}", 8, "utf-8" },
    { "F6 not an object", "[]", 0, "begin with '{'" },
    { "F6 blank first", " {}", 0, "begin with '{'" },
    { "F6 byte order mark", "\xef\xbb\xbf{}", 0, "begin with '{'" },
    { "F7 trailing text", "{\"a\":" ONE "}x", 8, "behind the closing brace" },
    { "F7 second document", "{} {}", 0, "behind the closing brace" },
    { "F8 NUL escape in a name", "{\"a\\u0000b\":" ONE "}", 8, "NUL" },
    { "F8 control byte in a name", "{\"a\nb\":" ONE "}", 8, "control byte" },
    { "F9 duplicate tensor", "{\"a\":" ONE ",\"a\":" T("F32", "[1]", "[8,12]") "}", 12, "given twice" },
    { "F9 duplicate by escape", "{\"a\":" ONE ",\"\\u0061\":" T("F32", "[1]", "[8,12]") "}", 12, "given twice" },
    { "F9 duplicate metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "given twice" },
    { "F9 duplicate metadata key", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "given twice" },
    { "F10 duplicate inner key", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
      "given twice" },
    { "F11 no dtype", "{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "missing" },
    { "F11 no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "missing" },
    { "F11 no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 1, "missing" },
    { "F11 empty tensor", "{\"a\":{}}", 0, "expected '\"'" },
    { "F12 extra key", "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":1}}", 1, "unknown key" },
    { "F12 metadata value is no string", "{\"__metadata__\":{\"a\":1}}", 0, "expected '\"'" },
    { "F13 begin > end", "{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "outside" },
    { "F14 overlap", "{\"a\":" ONE ",\"b\":" T("F32", "[1]", "[4,8]") "}", 8, "overlapping" },
    { "F14 same range", "{\"a\":" ONE ",\"b\":" ONE "}", 8, "overlapping" },
    { "F15 hole", "{\"a\":" ONE ",\"b\":" T("F32", "[1]", "[12,16]") "}", 16, "hole" },
    { "F15 hole in front", "{\"a\":" T("F32", "[1]", "[4,8]") "}", 8, "hole" },
    { "F16 data behind the last", "{\"a\":" ONE "}", 9, "end at data byte 8" },
    { "F16 data but no tensor", "{}", 1, "end at data byte 0" },
    { "F16 end behind the file", "{\"a\":" ONE "}", 7, "outside" },
    { "F17 negative offset", "{\"a\":" T("U8", "[1]", "[-1,0]") "}", 1, "plain digits" },
    { "F17 fractional offset", "{\"a\":" T("U8", "[1]", "[0,1.0]") "}", 1, "plain digits" },
    { "F17 huge offset", "{\"a\":" T("U8", "[1]", "[0,1e30]") "}", 1, "plain digits" },
    { "F17 offset 2^64", "{\"a\":" T("U8", "[1]", "[0,18446744073709551616]") "}", 1, "too large" },
    { "F17 offset is a string", "{\"a\":" T("U8", "[1]", "[0,\"1\"]") "}", 1, "plain digits" },
    { "F17 leading zero", "{\"a\":" T("U8", "[1]", "[00,1]") "}", 1, "plain digits" },
    { "F17 one offset", "{\"a\":" T("U8", "[1]", "[0]") "}", 1, "expected ','" },
    { "F17 three offsets", "{\"a\":" T("U8", "[1]", "[0,1,1]") "}", 1, "expected ']'" },
    { "F18 shape overflow", "{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflows" },
    { "F18 bytes overflow", "{\"a\":" T("F64", "[4611686018427387904]", "[0,0]") "}", 0, "overflows" },
    { "F18 dim 2^63", "{\"a\":" T("U8", "[9223372036854775808]", "[0,0]") "}", 0, "too large" },
    { "F19 negative dim", "{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "plain digits" },
    { "F19 zero dim with bytes", "{\"a\":" T("U8", "[0]", "[0,1]") "}", 1, "do not fill" },
    { "F20 nine dims", "{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "more than 8" },
    { "F21 size is not shape x dtype", "{\"a\":" T("F32", "[3]", "[0,8]") "}", 8, "do not fill" },
    { "F21 sub-byte misaligned", "{\"a\":" T("F4", "[3]", "[0,2]") "}", 2, "do not fill" },
    { "F21 sub-byte rounded down", "{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "do not fill" },
    { "F21 unknown dtype", "{\"a\":" T("Q4\\u001b", "[1]", "[0,1]") "}", 1, "unknown dtype \"Q4\\x1b\"" },
    { "F22 name with ..", "{\"../a\":" ONE "}", 8, "\"..\"" },
    { "F22 escaped control byte in a name", "{\"a\\u001b\":" ONE "}", 8, "control byte" },
    { "F26 lone surrogate", "{\"\\ud800\":" ONE "}", 8, "surrogate" },
    { "F26 swapped surrogates", "{\"\\udc00\\ud800\":" ONE "}", 8, "surrogate" },
    { "F26 bad escape", "{\"\\x\":" ONE "}", 8, "escape" },
    { "F26 trailing comma", "{\"a\":" ONE ",}", 8, "expected '\"'" },
    { "F26 shape trailing comma", "{\"a\":" T("U8", "[1,]", "[0,1]") "}", 1, "plain digits" },
    { "F26 nested shape", "{\"a\":" T("U8", "[[1]]", "[0,1]") "}", 1, "plain digits" },
    { "F26 null tensor", "{\"a\":null}", 0, "expected '{'" },
    { "F26 comment", "{/**/}", 0, "expected '\"'" },
};

static void hostile_headers_are_refused_with_the_cause(void **state)
{
    const char *path = in_dir(*state, "x");
    for (size_t i = 0; i < TR_COUNT_OF(refused); i++) {
        struct tr_st *st = NULL;
        make_file(path, refused[i].json, strlen(refused[i].json), refused[i].data_bytes);
        enum tr_status got = tr_st_open(path, &st);
        if (got != TR_USAGE || !strstr(tr_error_text(), refused[i].text) || st)
            fail_msg("%s: status %d, \"%s\"", refused[i].id, (int)got, tr_error_text());
    }
}

static const struct accepted {
    const char *json;
    size_t data_bytes, n_tensors;
} accepted[] = {
    { "{}", 0, 0 },
    { "{}   ", 0, 0 },
    { "{\"a\":" ONE "}", 8, 1 },
    { "{\"\":" ONE "}", 8, 1 },
    { "{ \"a\" : { \"shape\" : [ 2 ] , \"dtype\" : \"F32\" , \"data_offsets\" : [ 0 , 8 ] } }\n", 8, 1 },
    { "{\"a\":" T("F32", "[]", "[0,4]") "}", 4, 1 },
    { "{\"e\":" T("F32", "[0,5]", "[0,0]") ",\"a\":" ONE ",\"f\":" T("F32", "[0]", "[8,8]") "}", 8, 3 },
    { "{\"b\":" T("F32", "[1]", "[8,12]") ",\"a\":" ONE "}", 12, 2 },
    { "{\"a\":" T("F8_E4M3", "[3]", "[0,3]") "}", 3, 1 },
    { "{\"a\":" T("F4", "[4]", "[0,2]") "}", 2, 1 },
    { "{\"\\u00e9\\ud83d\\ude00\":" ONE "}", 8, 1 },
    { "{\"__metadata__\":{\"k\":\"line\\nline\"},\"a\":" ONE "}", 8, 1 },
    { "{\"a\":" ONE ",\"__metadata__\":{}}", 8, 1 },
};

static void legal_headers_are_accepted(void **state)
{
    const char *path = in_dir(*state, "x");
    for (size_t i = 0; i < TR_COUNT_OF(accepted); i++) {
        struct tr_st *st = NULL;
        make_file(path, accepted[i].json, strlen(accepted[i].json), accepted[i].data_bytes);
        assert_ok(tr_st_open(path, &st));
        assert_int_equal(tr_st_count(st), accepted[i].n_tensors);
        tr_st_close(st);
    }
}

static void names_are_unescaped_and_found(void **state)
{
    static const char json[] = "{\"\\u00e9\\ud83d\\ude00\\/\\\"\":" ONE ",\"__metadata__\":{\"k\":\"a\\nb\"}}";
    const char *path = in_dir(*state, "x");
    struct tr_st *st = NULL;
    size_t at = 9;
    make_file(path, json, sizeof json - 1, 8);
    assert_ok(tr_st_open(path, &st));
    assert_true(tr_st_find(st, "\xc3\xa9\xf0\x9f\x98\x80/\"", &at));
    assert_int_equal(at, 0);
    assert_false(tr_st_find(st, "\xc3\xa9", &at));
    assert_string_equal(tr_st_metadata(st, "k"), "a\nb");
    assert_null(tr_st_metadata(st, "format"));
    tr_st_close(st);
}

static void bad_header_lengths_are_refused(void **state)
{
    static const struct {
        uint64_t length;
        size_t n_file;
        const char *text;
    } rows[] = {
        { 0, 0, "too few" },              /* F1 empty file */
        { 2, 7, "too few" },              /* F1 */
        { 0, 8, "not in 1.." },           /* F2 */
        { 0, 64, "not in 1.." },          /* F2 */
        { 3, 10, "only 2 bytes" },        /* F3 */
        { 57, 64, "only 56 bytes" },      /* F3 by one */
        { 100000001, 64, "not in 1.." },  /* F4 */
        { UINT64_MAX, 64, "not in 1.." }, /* F4 */
        { UINT64_MAX - 7, 64, "not in 1.." },
        { UINT64_C(1) << 63, 64, "not in 1.." },
    };
    const char *path = in_dir(*state, "x");
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        unsigned char bytes[64] = { 0 };
        struct tr_st *st;
        for (int b = 0; b < 8; b++)
            bytes[b] = (unsigned char)(rows[i].length >> (8 * b));
        put_file(path, bytes, rows[i].n_file);
        assert_fails_with(tr_st_open(path, &st), TR_USAGE, rows[i].text);
    }
    put_file(path, "version https://git-lfs.github.com/spec/v1\n", 43);
    struct tr_st *st;
    assert_fails_with(tr_st_open(path, &st), TR_USAGE, "git lfs pull");
}

static void a_header_cut_at_any_byte_is_refused(void **state)
{
    static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"},\"\\u00e9\":" T(
        "F32", "[2,1]", "[0,8]") ",\"b\":" T("BF16", "[3]", "[8,14]") "}";
    for (size_t n = 0; n < sizeof json - 1; n++) {
        char *copy = malloc(n ? n : 1); /* exact, so that a sanitizer sees one byte too many */
        struct tr_st_header h;
        memcpy(copy, json, n);
        assert_int_equal(tr_st_parse_header(copy, n, 14, &h), TR_USAGE);
        free(copy);
    }
    const char *path = in_dir(*state, "x");
    size_t n_all = make_file(path, json, sizeof json - 1, 14);
    for (size_t n = n_all; n-- > 0;) {
        struct tr_st *st;
        assert_int_equal(truncate(path, (off_t)n), 0);
        assert_int_equal(tr_st_open(path, &st), TR_USAGE);
    }
}

/* F20, F22: a long list of dims, a long name, too many tensors. */
static void oversized_parts_are_refused(void **state)
{
    (void)state;
    struct tr_st_header h;
    struct tr_str s = { 0 };
    tr_str_addf(&s, "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[");
    for (int i = 0; i < 10000; i++)
        tr_str_addf(&s, "1,");
    tr_str_addf(&s, "1]}}");
    assert_fails_with(tr_st_parse_header(s.p, s.n, 1, &h), TR_USAGE, "more than 8 dims");

    tr_str_clear(&s);
    tr_str_addf(&s, "{\"");
    for (int i = 0; i <= TR_ST_MAX_NAME; i++)
        tr_str_addf(&s, "x");
    tr_str_addf(&s, "\":" ONE "}");
    assert_fails_with(tr_st_parse_header(s.p, s.n, 8, &h), TR_USAGE, "longer than 1 KiB");

    tr_str_clear(&s);
    tr_str_addf(&s, "{");
    for (int i = 0; i <= TR_ST_MAX_TENSORS; i++)
        tr_str_addf(&s, "%s\"%x\":" T("U8", "[0]", "[0,0]"), i ? "," : "", (unsigned)i);
    tr_str_addf(&s, "}");
    assert_fails_with(tr_st_parse_header(s.p, s.n, 0, &h), TR_USAGE, "more than 1000000 tensors");
    tr_str_release(&s);
}

/* The densest legal header: shortest entries, names as short as they can be and stay different. */
static void memory_stays_below_four_times_the_header(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)state;
    skip(); /* sanitizers reserve address space of their own */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    (void)state;
    skip();
#endif
#endif
    const char *path = in_dir(*state, "x");
    struct tr_str s = { 0 };
    tr_str_addf(&s, "{");
    for (unsigned i = 0; i < 200000; i++)
        tr_str_addf(&s, "%s\"%x\":" T("U8", "[]", "[%u,%u]"), i ? "," : "", i, i, i + 1);
    tr_str_addf(&s, "}");
    make_file(path, s.p, s.n, 200000);
    size_t n_header = s.n;
    tr_str_release(&s);

    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        unsigned long n_pages = 0;
        FILE *f = fopen("/proc/self/statm", "r");
        if (!f || fscanf(f, "%lu", &n_pages) != 1)
            _exit(2);
        fclose(f);
        rlim_t limit = n_pages * 4096ul + 4 * n_header;
        struct tr_st *st = NULL;
        size_t at;
        if (setrlimit(RLIMIT_AS, &(struct rlimit){ limit, limit }) != 0)
            _exit(2);
        _exit(tr_st_open(path, &st) == TR_OK && tr_st_find(st, "ffff", &at) && at == 0xffff ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* F24: no SIGBUS and no stale bytes, an error with the place. */
static void a_file_truncated_after_open_gives_an_error(void **state)
{
    const char *path = in_dir(*state, "x");
    struct tr_st *st;
    float dst[2];
    size_t n = make_file(path, "{\"a\":" ONE "}", strlen("{\"a\":" ONE "}"), 8);
    assert_ok(tr_st_open(path, &st));
    assert_int_equal(truncate(path, (off_t)(n - 1)), 0);
    assert_fails_with(tr_st_read(st, 0, 0, 2, dst, TR_F32), TR_IO, "ends at byte");
    tr_st_close(st);
}

static void unreadable_dtypes_and_ranges_are_refused_when_wanted(void **state)
{
    static const char json[] = "{\"f8\":" T("F8_E8M0", "[2]", "[0,2]") ",\"i\":" T("I32", "[2]", "[2,10]") "}";
    const char *path = in_dir(*state, "x");
    struct tr_st *st;
    float dst[4];
    int32_t ints[2] = { 7, 7 };
    make_file(path, json, sizeof json - 1, 10);
    assert_ok(tr_st_open(path, &st));
    assert_int_equal(tr_st_tensor(st, 0)->dtype, TR_DTYPE_COUNT);
    assert_string_equal(tr_st_tensor(st, 0)->dtype_name, "F8_E8M0");
    assert_fails_with(tr_st_read(st, 0, 0, 2, dst, TR_F32), TR_USAGE, "F8_E8M0 cannot be read as float32");
    assert_fails_with(tr_st_read(st, 1, 0, 2, dst, TR_F32), TR_USAGE, "I32 cannot be read as float32");
    assert_ok(tr_st_read(st, 1, 0, 2, ints, TR_I32));
    assert_int_equal(ints[1], 0);
    assert_fails_with(tr_st_read(st, 1, 1, 2, ints, TR_I32), TR_USAGE, "outside");
    assert_fails_with(tr_st_read(st, 1, UINT64_MAX, 2, ints, TR_I32), TR_USAGE, "outside");
    tr_st_close(st);
}

static void only_regular_files_are_opened(void **state)
{
    struct tr_st *st;
    assert_int_not_equal(tr_st_open(*state, &st), TR_OK);
    assert_int_equal(mkfifo(in_dir(*state, "fifo"), 0600), 0);
    assert_int_not_equal(tr_st_open(in_dir(*state, "fifo"), &st), TR_OK);
    assert_int_not_equal(tr_st_open(in_dir(*state, "absent"), &st), TR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        dir_test(hostile_headers_are_refused_with_the_cause),
        dir_test(legal_headers_are_accepted),
        dir_test(names_are_unescaped_and_found),
        dir_test(bad_header_lengths_are_refused),
        dir_test(a_header_cut_at_any_byte_is_refused),
        cmocka_unit_test(oversized_parts_are_refused),
        dir_test(memory_stays_below_four_times_the_header),
        dir_test(a_file_truncated_after_open_gives_an_error),
        dir_test(unreadable_dtypes_and_ranges_are_refused_when_wanted),
        dir_test(only_regular_files_are_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
