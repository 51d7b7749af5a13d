/* machine_impl.h - private to plan: the files of share/machines as the build embeds them, and the parser they share
 * with the files of users.
 */
#ifndef TR_PLAN_MACHINE_IMPL_H
#define TR_PLAN_MACHINE_IMPL_H

#include "plan/machine.h"

/* One file of share/machines; name: of the file, without .yaml. tools/embed-machines.cmake writes the arrays. */
struct tr_machine_file {
    const char *name, *text;
};
extern const struct tr_machine_file tr_chip_files[], tr_cluster_files[], tr_usual_file;
extern const size_t tr_n_chip_files, tr_n_cluster_files;

/* The words of such a file; "": not stated. */
struct tr_machine_words {
    char about[96], usual_cluster[40];
};
/* Sets in *m what the file states and leaves the rest. TR_USAGE names file and line. */
enum tr_status tr_machine_apply(const struct tr_machine_file *file, struct tr_machine_words *words,
                                struct tr_machine *m);

#endif
