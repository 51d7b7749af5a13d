/* lines.h - encodes the records of a file, each a line of JSON, with several threads and passes the records on in
 * order.
 *
 * Lines are collected into a batch of bounded size, divided into tasks by their bytes alone, encoded, and passed on one
 * by one. The result does not depend on the number of threads, and memory does not depend on the size of the file.
 */
#ifndef TR_DATA_LINES_H
#define TR_DATA_LINES_H

#include "data/record.h"
#include <stdatomic.h>

struct tr_lines {
    struct tr_str text; /* all lines of the batch */
    struct tr_line_row {
        size_t at, n;
        int64_t number;
        size_t n_ids;
        char *why; /* the reason for which the line is skipped; NULL: it is not */
    } * rows;
    size_t n_rows, n_rows_cap;
    struct tr_line_task {
        size_t first, end; /* rows */
        struct tr_doc doc;
        enum tr_status failed;
        char why[512];
    } * tasks;
    size_t n_tasks, n_tasks_cap;
    const struct tr_record_rules *rules;
    const char *path;      /* of the file, for messages */
    struct tr_work work;   /* of the file */
    _Atomic size_t n_made; /* ids of the batch */
};

void tr_lines_release(struct tr_lines *l); /* safe on zeroes */
/* why: the reason for which the line is skipped, or NULL. */
enum tr_status tr_lines_add(struct tr_lines *l, const char *line, size_t n, int64_t number, const char *why);
bool tr_lines_is_full(const struct tr_lines *l);

/* Receives one record: its ids, mask (NULL: all are targets) and weights (NULL: all are 1), or n_ids = 0 and the reason
 * for which it is skipped. */
typedef enum tr_status tr_give_fn(void *ctx, int64_t number, const int32_t *ids, const uint8_t *mask,
                                  const uint32_t *weight, size_t n_ids, const char *why);
/* Encodes the batch, passes its records to `give` and empties it. */
enum tr_status tr_lines_encode(struct tr_lines *l, const struct tr_record_rules *rules, struct tr_pool *pool,
                               tr_give_fn *give, void *ctx);

#endif
