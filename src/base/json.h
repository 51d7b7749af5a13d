/* json.h - cJSON with our limits in front: strict grammar, depth <= 64, valid UTF-8, no duplicate keys, bounded size.
 *
 * A text is checked by our own linear scan before cJSON sees it, so cJSON only ever builds trees of legal documents.
 */
#ifndef TR_BASE_JSON_H
#define TR_BASE_JSON_H

#include "base/status.h"
#include <cjson/cJSON.h>

enum {
    TR_JSON_MAX_DEPTH = 64,
    /* A tree takes at most TR_JSON_FACTOR times its text and TR_JSON_FREE bytes; a text that needs more is refused
     * before any of it is taken. Merges of a tokenizer take 22 times their text, lists of one-digit numbers 40 times.
     */
    TR_JSON_FACTOR = 24,
    TR_JSON_FREE = 16 << 20,
};

/* TR_USAGE names line:column. `what` (a file name) leads the message. Caller frees with cJSON_Delete. */
enum tr_status tr_json_parse(const char *text, size_t n, const char *what, cJSON **out);
/* Reads at most max_bytes; refuses a larger file before reading it. */
enum tr_status tr_json_load(const char *path, size_t max_bytes, cJSON **out);

/* Typed members. `required`: absent is TR_USAGE. Absent and not required: *out stays as it is (its default).
 * JSON null counts as absent. Numbers: finite; integers exact (|x| <= 2^53) and inside [lo, hi]. */
enum tr_status tr_json_int(const cJSON *obj, const char *key, bool required, int64_t lo, int64_t hi, int64_t *out);
enum tr_status tr_json_real(const cJSON *obj, const char *key, bool required, double *out);
enum tr_status tr_json_bool(const cJSON *obj, const char *key, bool required, bool *out);
/* The string lives as long as obj. */
enum tr_status tr_json_str(const cJSON *obj, const char *key, bool required, const char **out);

/* A JSON line builder on a growing buffer is str.h's tr_str_json(). */
#endif
