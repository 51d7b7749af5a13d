/* fuzz_template.c - hostile templates over hostile conversations: the input is a template, a NUL, and JSON messages.
 * Rendering ends, stays in its limits, gives the same text twice, and spans lie inside of it. */
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char fixed[] =
    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"\xc3\xa9 <x>\",\"n\":1.5},"
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}],\"tool_calls\":null}]";

static void check(const struct tr_jinja *t, const cJSON *messages)
{
    struct tr_str text[2] = { { 0 }, { 0 } };
    struct tr_jinja_spans spans = { 0 };
    struct tr_jinja_var vars[] = { { "messages", messages, SIZE_MAX }, { "tools", NULL, SIZE_MAX } };
    enum tr_status st = tr_jinja_render(t, vars, 2, 1700000000, &text[0], &spans);
    if (st != TR_OK && st != TR_USAGE && st != TR_NOMEM)
        abort();
    for (size_t i = 0; st == TR_OK && i < spans.n; i++)
        if (spans.p[i].begin > spans.p[i].end || spans.p[i].end > text[0].n)
            abort();
    if (st == TR_OK && text[0].n < 4096) {
        if (tr_jinja_render(t, vars, 2, 1700000000, &text[1], NULL) != TR_OK || text[0].n != text[1].n ||
            memcmp(text[0].p, text[1].p, text[0].n) != 0)
            abort();
    }
    tr_str_release(&text[0]);
    tr_str_release(&text[1]);
    tr_jinja_spans_release(&spans);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const char *text = (const char *)bytes, *cut = n ? memchr(text, 0, n) : NULL;
    size_t n_template = cut ? (size_t)(cut - text) : n;
    struct tr_jinja *t = NULL;
    cJSON *messages = NULL;
    if (tr_jinja_open(n ? text : "", n_template, "fuzz", &t) != TR_OK)
        return 0;
    if (!cut || tr_chat_parse(cut + 1, n - n_template - 1, "messages", &messages) != TR_OK)
        if (tr_chat_parse(fixed, sizeof fixed - 1, "messages", &messages) != TR_OK)
            abort();
    check(t, messages);
    cJSON_Delete(messages);
    tr_jinja_close(t);
    return 0;
}
