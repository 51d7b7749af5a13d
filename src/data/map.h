/* map.h - how the records of one source are read where they do not have the usual names: which column holds what, what
 * messages and roles are called, and how a prompt is written.
 *
 * A map is a JSON object with the members of `members` in map.c. It renames: what comes out has the usual names, so no
 * shape knows that there are maps, except that alpaca records may have prompt formats of their own.
 */
#ifndef TR_DATA_MAP_H
#define TR_DATA_MAP_H

#include "base/base.h"
#include "data/shape.h"

struct tr_source_map {
    cJSON *doc;
    char *text; /* doc in one line: equal texts are equal maps */
    enum tr_shape shape;
    const cJSON *columns;     /* {ours: theirs}; theirs null: the column is not read */
    const cJSON *message;     /* the same for the members of a message */
    const cJSON *roles;       /* {ours: theirs, or a list of theirs}; null: its turns are left out */
    const cJSON *train_roles; /* a list: turns of these roles have a loss; NULL: those of the assistant */
    const char *system;       /* for records without a system prompt; NULL: none */
    /* of alpaca records: texts with {column} in them; NULL: not given */
    const char *prompt_format, *no_input_format, *system_format, *output_format;
};

/* TR_USAGE: not an object, or a member that is unknown or has another type. */
enum tr_status tr_map_open(const char *json, struct tr_source_map **out);
void tr_map_close(struct tr_source_map *m); /* NULL: nothing */

/* Gives the members of the record and of its messages their usual names. TR_USAGE: the record must be skipped. */
enum tr_status tr_map_apply(const struct tr_source_map *m, cJSON *record);
/* Whether the map says which messages have a loss; then *out is 1 or 0 for a message, and its mark is removed. */
enum tr_status tr_map_loss(const struct tr_source_map *m, cJSON *message, int8_t *out);
/* Appends the format with the members of the record in the place of their names; {{ and }} are braces. */
enum tr_status tr_map_format(const char *format, const cJSON *record, struct tr_str *out);

#endif
