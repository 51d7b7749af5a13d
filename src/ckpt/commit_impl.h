/* commit_impl.h - what commit.c, manifest.c and scan.c share. */
#ifndef TR_CKPT_COMMIT_IMPL_H
#define TR_CKPT_COMMIT_IMPL_H

#include "ckpt/commit.h"

#define TR_CKPT_STATE_DIR "trireme"
#define TR_CKPT_MANIFEST  "trireme/manifest.json"

/* "x" or "trireme/x" with x plain, and not the manifest itself. */
bool tr_ckpt_member_is_legal(const char *name);
/* Letters, digits, '.', '_', '-'; 1..63 bytes: it is printed, stored and compared. */
enum tr_status tr_ckpt_check_run_id(const char *run_id);
/* "checkpoint-500" -> 500; -1 for anything else, "checkpoint-0500" included. */
int64_t tr_ckpt_step_of_name(const char *name);
/* checkpoint-<n>.tmp-<n>: a save or a removal that was not finished. */
bool tr_ckpt_is_temp_name(const char *name);
/* Real directories named checkpoint-<step> of output_dir, newest first; free p. */
struct tr_ckpt_steps {
    int64_t *p;
    size_t n, n_cap;
    int64_t link_step; /* the newest step whose name is no directory: a link, most likely; -1: none */
    char other[256];   /* a name that says that a checkpoint is or was here: checkpoint-5.old, `latest`; "": none */
};
enum tr_status tr_ckpt_list(const char *output_dir, struct tr_ckpt_steps *out);
enum tr_status tr_ckpt_load_manifest(const char *dir, struct tr_ckpt_manifest *out);
/* Behind a number without leading zeros, behind a text; NULL: it is not there. */
const char *tr_ckpt_skip_number(const char *p);
const char *tr_ckpt_skip_text(const char *p, const char *text);
/* files must be sorted by name. */
enum tr_status tr_ckpt_manifest_build(const struct tr_ckpt_manifest *m, struct tr_str *out);

/* A disk that refuses a part of a save is TR_IO: nobody has named these files. */
static inline enum tr_status tr_ckpt_io(enum tr_status st)
{
    return st == TR_USAGE ? TR_IO : st;
}

/* fence.c */
enum tr_status tr_fence_check(const char *output_dir);              /* TR_PEER: a newer generation was claimed */
void tr_fence_name(char *out, size_t n_out);                        /* this process's job and claim, for a lock */
bool tr_fence_is_older(const char *output_dir, const char *holder); /* of this job, and followed by our claim */

#endif
