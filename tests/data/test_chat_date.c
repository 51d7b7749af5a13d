/* test_chat_date.c - the one date that all conversations of a run are given. */
#include "data/data_test.h"
#include "data/chat_date.h"

static struct tr_chat *open_dated(struct scratch *s, const char *date)
{
    struct tr_chat *c = NULL;
    assert_ok(tr_chat_open(s->dir, NULL, &c));
    assert_ok(tr_data_fix_date(c, date, in_scratch(s, "cache")));
    return c;
}

static struct tr_hash128 hash_of(struct tr_chat *c, const char *date)
{
    struct tr_hash128 hash;
    char got[TR_DATE_MAX];
    tr_chat_get_date(c, got);
    assert_string_equal(got, date);
    assert_ok(tr_chat_hash(c, &hash));
    tr_chat_close(c);
    return hash;
}

/* Tokens of one day are not those of another: the key of the cache knows the day, and a run keeps its own. */
static void a_run_has_one_date(void **state)
{
    struct scratch *s = *state;
    struct tr_chat *c = NULL;
    put_text(s, "tokenizer_config.json", "{}");
    put_text(s, "chat_template.jinja", "{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}");
    struct tr_hash128 first = hash_of(open_dated(s, "2024-02-29"), "2024-02-29");
    assert_false(tr_file_exists(in_scratch(s, "cache/chat_date")));
    assert_false(tr_hash_eq(first, hash_of(open_dated(s, "2024-03-01"), "2024-03-01")));
    tr_chat_close(open_dated(s, NULL)); /* today, from now on */
    assert_true(tr_file_exists(in_scratch(s, "cache/chat_date")));
    put_text(s, "cache/chat_date", "2024-02-29\n"); /* as if the run had begun then */
    assert_true(tr_hash_eq(first, hash_of(open_dated(s, NULL), "2024-02-29")));
    static const char *const wrong[] = { "2023-02-29", "2024-13-01", "24.12.2024", "2024-02-29x", "" };
    assert_ok(tr_chat_open(s->dir, NULL, &c));
    for (size_t i = 0; i < TR_COUNT_OF(wrong); i++)
        assert_refused(tr_data_fix_date(c, wrong[i], s->dir), TR_USAGE, "is not a date");
    tr_chat_close(c);
    put_text(s, "cache/chat_date", "tomorrow");
    assert_ok(tr_chat_open(s->dir, NULL, &c));
    assert_refused(tr_data_fix_date(c, NULL, in_scratch(s, "cache")), TR_USAGE, "cache/chat_date: \"tomorrow\"");
    tr_chat_close(c);
    put_text(s, "chat_template.jinja", "{{ messages[0].content }}"); /* does not ask */
    (void)hash_of(open_dated(s, "2024-02-29"), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_has_one_date, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
