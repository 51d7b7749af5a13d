/* check.h - private to cli: the parts of `trireme check`. Each runs on all ranks together and leaves a note. */
#ifndef TR_CLI_CHECK_H
#define TR_CLI_CHECK_H

#include "cli/cli.h"

struct check_note { /* of this rank, on one part */
    int64_t n, n_bad;
    double worst;   /* microseconds of the slowest small message */
    double value;   /* GB/s of the slowest large one */
    char text[192]; /* the first thing that was wrong; else anything worth saying */
};

struct check {
    const struct tr_config *cfg;
    struct tr_mesh *mesh;
    struct check_note note;
    struct tr_str out; /* the report so far; the same on every rank */
    int n_parts, n_bad;
    char first_bad[192];
};

enum tr_status check_links(struct check *k);
enum tr_status check_collectives(struct check *k, struct tr_comm *c);
enum tr_status check_files(struct check *k);
/* Which kernel columns are here and which calls they refuse, of every op and dtype. */
void check_columns_print(bool as_json, struct tr_str *out);

/* Notes a test; the first bad one keeps its text. */
void check_note(struct check *k, bool is_ok, const char *fmt, ...) TR_PRINTF(3, 4);

#endif
