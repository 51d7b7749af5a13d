/* commit.h - the checkpoint directory protocol: begin, files, manifest, rename, pointer; verify, scan, sweep, retain.
 *
 *   checkpoint-<step>.tmp-<generation>/  ->  files fsynced  ->  directories fsynced  ->  trireme/manifest.json fsynced
 *   ->  rename to checkpoint-<step>/  ->  fsync parent  ->  `latest` (temp, fsync, rename, fsync parent)
 *
 * Invariant: at every instant the newest directory named checkpoint-<step> that verifies is complete; a crash leaves
 * the previous one or the new one. `latest` is a hint for people; scan never trusts it. Times of files decide nothing.
 */
#ifndef TR_CKPT_COMMIT_H
#define TR_CKPT_COMMIT_H

#include "base/base.h"

enum {
    TR_CKPT_VERSION = 1,
    TR_CKPT_RUN_ID_MAX = 64,
    TR_CKPT_MAX_FILES = 65536,
    TR_CKPT_MAX_MANIFEST = 32 << 20,
    TR_CKPT_NAME_MAX = 80
};

/* Every failpoint of the save path, in the order it is reached (tests sweep this list). */
#define TR_CKPT_FAILPOINTS(X)                                                                                          \
    X("ckpt.snapshot")     /* copied, nothing written */                                                               \
    X("ckpt.begin")        /* temp directory made */                                                                   \
    X("ckpt.shard_header") /* shard created, header not yet written */                                                 \
    X("ckpt.shard_write")  /* before each piece of data */                                                             \
    X("ckpt.before_fsync") /* shard written */                                                                         \
    X("ckpt.after_fsync")  /* shard durable */                                                                         \
    X("ckpt.before_manifest")                                                                                          \
    X("ckpt.before_rename") /* manifest durable */                                                                     \
    X("ckpt.after_rename")  /* renamed, parent not yet synced */                                                       \
    X("ckpt.before_pointer")                                                                                           \
    X("ckpt.after_pointer")                                                                                            \
    X("ckpt.before_verify") /* committed, not yet read back */                                                         \
    X("ckpt.prune")         /* an old checkpoint has lost its name, its files are still there */

/* One writer per output directory (C12): flock on output_dir/.trireme.lock. Creates output_dir; proves it is writable.
 * The kernel drops the lock with the process; a second writer is refused with the holder's pid, host and run id. */
struct tr_ckpt_lock;
enum tr_status tr_ckpt_lock(const char *output_dir, const char *run_id, int64_t generation, struct tr_ckpt_lock **out);
/* Writes run id and generation into the lock once they are known (a resumed run keeps its id). */
enum tr_status tr_ckpt_lock_write(struct tr_ckpt_lock *l, const char *run_id, int64_t generation);
void tr_ckpt_unlock(struct tr_ckpt_lock *l);

/* Saving. All ranks make the directory, whoever comes first, and write files into OUTPUT/tr_commit_dir_name(); then one
 * rank begins, registers and finishes. */
void tr_commit_dir_name(int64_t step, int64_t generation, char out[TR_CKPT_NAME_MAX]);
enum tr_status tr_commit_make_dir(const char *output_dir, int64_t step, int64_t generation);
struct tr_commit;
enum tr_status tr_commit_begin(const char *output_dir, const char *run_id, int64_t step, int64_t generation,
                               struct tr_commit **out);
const char *tr_commit_dir(const struct tr_commit *c); /* .../checkpoint-500.tmp-3; trireme/ exists below it */
/* name: "x" or "trireme/x". The file is there and fsynced; bytes and hash are those of memory, told by its writer. */
enum tr_status tr_commit_add(struct tr_commit *c, const char *name, uint64_t bytes, struct tr_hash128 hash);
/* A small file from memory / a copy of an existing file: written, fsynced, registered. */
enum tr_status tr_commit_put(struct tr_commit *c, const char *name, const void *p, size_t n);
enum tr_status tr_commit_copy(struct tr_commit *c, const char *name, const char *from);
/* Error before the rename: the temp directory is still there for tr_commit_close() to remove. Error after it (parent
 * sync, pointer): the checkpoint is in place and stays; the text says so. */
enum tr_status tr_commit_finish(struct tr_commit *c);
void tr_commit_close(struct tr_commit *c); /* not finished = abort: removes the temp directory. NULL is fine */

/* Reading. */
struct tr_ckpt_info {
    char path[TR_PATH_MAX];
    char run_id[TR_CKPT_RUN_ID_MAX];
    int64_t step, generation;
    size_t n_files;
    uint64_t n_bytes;
};
/* Reads every file of a checkpoint and compares it with the manifest; the text names the first bad file. Extra
 * safetensors files and extra files below trireme/ are errors; run_id NULL: any. out may be NULL. */
enum tr_status tr_ckpt_verify(const char *dir, const char *run_id, struct tr_ckpt_info *out);
/* The same, and the hashes of all blocks, with which a load compares what it reads (sums.h); close them. */
struct tr_sums;
enum tr_status tr_ckpt_verify_sums(const char *dir, const char *run_id, struct tr_ckpt_info *out,
                                   struct tr_sums **sums);
/* The same facts from the manifest alone; no file is read. */
enum tr_status tr_ckpt_peek(const char *dir, struct tr_ckpt_info *out);
/* checkpoint-<step>, and output_dir/checkpoint-<step> */
void tr_ckpt_step_name(int64_t step, char out[TR_CKPT_NAME_MAX]);
enum tr_status tr_ckpt_step_path(const char *output_dir, int64_t step, char path[TR_PATH_MAX]);
/* Steps of the checkpoints of an output directory, good or not, newest first; free(*out). */
enum tr_status tr_ckpt_steps(const char *output_dir, int64_t **out, size_t *out_n);
/* TR_USAGE: there are checkpoints, or links of their names, beside which a new run must not begin. */
enum tr_status tr_ckpt_check_new(const char *output_dir);
/* Newest checkpoint by step that verifies. *out_found false and TR_OK: there is none at all, and nothing says that one
 * was here. Some, but all bad: TR_IO; links, or names that a run with checkpoints left: TR_USAGE (never a silent start
 * from scratch). notes (may be NULL) gets one line per checkpoint passed over, and one when
 * `latest` disagrees. */
enum tr_status tr_ckpt_scan(const char *output_dir, const char *run_id, bool *out_found, struct tr_ckpt_info *out,
                            struct tr_str *notes);
/* The same of those of a step below `below`, with the hashes of the one that is found (sums not NULL). */
enum tr_status tr_ckpt_scan_below(const char *output_dir, const char *run_id, int64_t below, bool *out_found,
                                  struct tr_ckpt_info *out, struct tr_str *notes, struct tr_sums **sums);
/* Removes leftovers of killed saves and deletions: our temp directories and pointer temps only. Hold the lock. */
enum tr_status tr_ckpt_sweep(const char *output_dir, size_t *out_removed);
/* What is never removed: the newest `limit` (0 = all), steps that `every` divides (0 = none), and the step that the
 * state of the newest names as the best evaluation. The last two are not counted. */
struct tr_ckpt_keep {
    int64_t limit, every;
    bool best;
};
/* After a save: reads checkpoint-<new_step> back, and only when it is good removes what is older and need not be kept.
 * What somebody reads (a lease) stays until the next time; so does what cannot be removed, with an error that leaves
 * *out_is_good (may be NULL) true. */
enum tr_status tr_ckpt_retain(const char *output_dir, int64_t new_step, int64_t generation,
                              const struct tr_ckpt_keep *keep, bool *out_is_good, size_t *out_removed);
/* A run resumes from checkpoint-<step>: newer checkpoints are renamed to checkpoint-<n>.aside-<generation>, so that no
 * scan takes them for the newest. Hold the lock. */
enum tr_status tr_ckpt_set_aside(const char *output_dir, int64_t step, int64_t generation, size_t *out_n);

/* A reader's lease (C17): while it is held nothing removes the checkpoint. Goes with the process. */
struct tr_ckpt_lease {
    int fd;
};
enum tr_status tr_ckpt_lease(const char *dir, struct tr_ckpt_lease *out);
void tr_ckpt_release(struct tr_ckpt_lease *l);

/* The manifest as a pure function: text -> entries. */
struct tr_ckpt_file {
    const char *name;
    uint64_t bytes;
    struct tr_hash128 hash;
};
struct tr_ckpt_manifest {
    struct cJSON *json;
    const char *run_id;
    int64_t step, generation;
    struct tr_ckpt_file *files; /* sorted by name */
    size_t n_files;
};
enum tr_status tr_ckpt_manifest_parse(const char *text, size_t n, struct tr_ckpt_manifest *out);
void tr_ckpt_manifest_release(struct tr_ckpt_manifest *m);

#endif
