/* out.h - the one way by which files are made, replaced, renamed and removed.
 *
 * Every call takes a directory and a name beneath it. The directory is the part that a person has chosen: it may be a
 * link, or lead through links. The name is ours: one plain name or several with '/' between them, of which none is
 * followed when it is a link, whoever made it. A link in the way is TR_USAGE and named; a file that a name replaces or
 * removes may be a link, which then goes, while what it leads to stays. tools/lint refuses calls that make files
 * elsewhere. */
#ifndef TR_BASE_OUT_H
#define TR_BASE_OUT_H

#include "base/file.h"
#include "base/status.h"

/* A name in a directory whose own name is ours too (OUTPUT/.cache): dir is the directory above it, which a person has
 * chosen, and name has both parts, so that a link that takes the place of ours at any time is not followed. */
struct tr_out_at {
    char dir[TR_PATH_MAX], name[TR_PATH_MAX];
};
enum tr_status tr_out_beneath(const char *own_dir, const char *name, struct tr_out_at *out);

enum tr_out {
    TR_OUT_NEW,    /* to write; the name must be free */
    TR_OUT_SECRET, /* the same, readable by this user only */
    TR_OUT_APPEND, /* to read and append; made when absent */
    TR_OUT_SHARE   /* to read and write in place (locks); made when absent */
};
/* A regular file without a second name (hard link), because through it another file would change. */
enum tr_status tr_out_open(const char *dir, const char *name, enum tr_out how, int *fd);
/* A new file in place of an old one, its directory included; -1: it cannot be made. For signal handlers. */
int tr_out_signal_open(const char *dir, const char *name);

/* All directories of name; existing ones are fine. A caller whose directory must outlive a power cut syncs `dir`. */
enum tr_status tr_out_mkdir(const char *dir, const char *name);
/* TR_USAGE: name, or a part of it, is a link. Absent is fine. A run looks before it writes anything. */
enum tr_status tr_out_check(const char *dir, const char *name);
enum tr_status tr_out_remove(const char *dir, const char *name); /* a file or a tree; absent is fine */

/* 0, or the errno of the call. */
enum tr_out_move { TR_OUT_RENAME, TR_OUT_EXCHANGE, TR_OUT_LINK };
int tr_out_move(const char *dir, const char *from, const char *to, enum tr_out_move how);
int tr_out_unlink(const char *dir, const char *name); /* a file or a link */

/* name.tmp-<pid> -> write -> fsync -> rename -> fsync directory. The name holds the old or the new content, never a
 * mix. One writer a name and process at a time. Failpoints: file.before_fsync, file.after_fsync, file.after_rename. */
enum tr_status tr_out_write(const char *dir, const char *name, const void *buf, size_t n);
/* The same without waiting for the disk. After a power cut the file may be absent, old, empty or torn: for files that
 * carry a checksum and are made again where they are bad. */
enum tr_status tr_out_write_lazily(const char *dir, const char *name, const void *buf, size_t n);

/* Of paths that a person has named as a whole. */
enum tr_status tr_file_write_atomic(const char *path, const void *buf, size_t n);
enum tr_status tr_mkdirs(const char *path);
enum tr_status tr_out_mkdirs(const char *path);  /* the same, but the last part is ours and no link */
enum tr_status tr_remove_tree(const char *path); /* absent is fine */
enum tr_status tr_fsync_dir(const char *path);

#endif
