/* shapes.c - the table of record shapes: what a record of each holds, what it needs, and what turns it into tokens.
 *
 * A new shape is a name in shape.h, a row here, an encode function, and a word of --data_format.
 */
#include "data/encode.h"

#define X(name, text) text,
static const char *const shape_names[] = { TR_SHAPE_LIST(X) };
static const char *const packing_names[] = { TR_PACK_LIST(X) };
#undef X
_Static_assert(TR_COUNT_OF(shape_names) == TR_SHAPE_COUNT && TR_COUNT_OF(packing_names) == TR_PACK_COUNT, "one each");

const char *tr_shape_name(enum tr_shape shape)
{
    return shape_names[shape];
}

const char *tr_packing_name(enum tr_packing packing)
{
    return packing_names[packing];
}

static const struct tr_shape_row rows[TR_SHAPE_COUNT] = {
    [TR_SHAPE_TEXT] = { .keys = { "text" }, .is_text = true, .encode = tr_encode_text },
    [TR_SHAPE_COMPLETION] = { .keys = { "prompt", "completion" }, .encode = tr_encode_completion },
    [TR_SHAPE_ALPACA] = { .keys = { "instruction", "output" }, .chat = TR_CHAT_IF_THERE, .encode = tr_encode_alpaca },
    [TR_SHAPE_MESSAGES] = { .keys = { "messages" }, .chat = TR_CHAT_REQUIRED, .encode = tr_encode_messages },
    [TR_SHAPE_SHAREGPT] = { .keys = { "conversations" }, .chat = TR_CHAT_REQUIRED, .encode = tr_encode_sharegpt },
    [TR_SHAPE_TOKENS] = { .keys = { "input_ids" }, .is_ids = true, .encode = tr_encode_tokens },
    [TR_SHAPE_CHAT_COMPLETION] = { .keys = { "prompt", "completion" },
                                   .are_lists = true,
                                   .chat = TR_CHAT_REQUIRED,
                                   .encode = tr_encode_chat_completion },
    [TR_SHAPE_INPUT_OUTPUT] = { .keys = { "segments" }, .are_lists = true, .encode = tr_encode_segments },
    [TR_SHAPE_PREFERENCE] = { .keys = { "chosen", "rejected" },
                              .or_keys = { { "chosen_response", "rejected_response" },
                                           { "chosen_messages", "rejected_messages" } },
                              .is_pair = true,
                              .chat = TR_CHAT_IF_THERE,
                              .encode = tr_encode_pair },
    /* not among those that are detected: other records have a "label" too, so the task asks for it */
    [TR_SHAPE_LABELLED] = { .keys = { "label" },
                            .or_keys = { { "kto_tag" } },
                            .is_labelled = true,
                            .chat = TR_CHAT_IF_THERE,
                            .encode = tr_encode_labelled },
};

/* Records often hold a rendered "text" beside the members from which it was made, so text comes last; lists come before
 * the texts of the same names. */
static const enum tr_shape detected[] = {
    TR_SHAPE_PREFERENCE,      TR_SHAPE_MESSAGES,   TR_SHAPE_SHAREGPT, TR_SHAPE_TOKENS, TR_SHAPE_INPUT_OUTPUT,
    TR_SHAPE_CHAT_COMPLETION, TR_SHAPE_COMPLETION, TR_SHAPE_ALPACA,   TR_SHAPE_TEXT,
};
_Static_assert(TR_COUNT_OF(detected) == TR_SHAPE_COUNT - 2, "all but auto and labelled");

const struct tr_shape_row *tr_shape_row(enum tr_shape shape)
{
    TR_BUG_ON(shape <= TR_SHAPE_AUTO || shape >= TR_SHAPE_COUNT);
    return &rows[shape];
}

bool tr_rules_use_chat(const struct tr_record_rules *r)
{
    enum tr_shape_chat chat = tr_shape_row(r->shape)->chat;
    bool has_format = r->map && r->map->prompt_format;
    return chat == TR_CHAT_REQUIRED || (chat == TR_CHAT_IF_THERE && r->chat && !has_format);
}

static bool has_keys(const cJSON *record, const char *const keys[2], bool are_lists)
{
    for (size_t i = 0; i < 2 && keys[i]; i++) {
        const cJSON *member = cJSON_GetObjectItemCaseSensitive(record, keys[i]);
        if (!member || (are_lists && !cJSON_IsArray(member)))
            return false;
    }
    return keys[0] != NULL;
}

static bool holds(const cJSON *record, const struct tr_shape_row *row)
{
    bool is_held = has_keys(record, row->keys, row->are_lists);
    for (size_t i = 0; i < TR_COUNT_OF(row->or_keys); i++)
        is_held = is_held || has_keys(record, row->or_keys[i], row->are_lists);
    return is_held;
}

static enum tr_status refuse(const cJSON *record)
{
    char keys[160] = "", shown[48];
    size_t n = 0;
    for (const cJSON *m = record->child; m && n < sizeof keys - sizeof shown - 8; m = m->next)
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%s", n ? ", " : "",
                              tr_escape(m->string, shown, sizeof shown));
    return tr_fail(
        TR_USAGE,
        "the members (%s) are not those of a known record: text, prompt + completion, instruction + output, "
        "messages, conversations, segments, input_ids, or chosen + rejected; name the members with columns, or "
        "that of a text with text_key",
        keys);
}

static bool is_named(const struct tr_shape_row *row, const struct tr_source_map *map)
{
    for (size_t i = 0; i < TR_COUNT_OF(row->keys) && row->keys[i]; i++)
        if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(map->columns, row->keys[i])))
            return true;
    return false;
}

enum tr_status tr_shape_find(const cJSON *record, const struct tr_source_map *map, bool wants_pairs, enum tr_shape *out)
{
    for (int any = !(map && map->columns); any < 2; any++)
        for (size_t i = 0; i < TR_COUNT_OF(detected); i++)
            if (holds(record, &rows[detected[i]]) &&
                (any || is_named(&rows[detected[i]], map) || (wants_pairs && rows[detected[i]].is_pair))) {
                *out = detected[i];
                return TR_OK;
            }
    return refuse(record);
}
