/* source.h - a source of data of another tool as one item of `data`: a path, or an object with the names of its
 * columns.
 */
#ifndef TR_IMPORT_SOURCE_H
#define TR_IMPORT_SOURCE_H

#include "import/import_impl.h"

struct source {
    cJSON *doc;         /* NULL: out of memory */
    const char *split;  /* "train[:5%]+test", in the words of datasets; NULL: train */
    const char *config; /* the part of a data set with several, a directory of this name; NULL: none is named */
};

void tr_source_open(struct source *s);
/* A member of the source, or of its member `group`. value NULL: null. */
void tr_source_set(struct source *s, const char *group, const char *name, const char *value);
/* The same for a list: the items of the leaf, or its one value. */
void tr_source_list(struct source *s, const char *group, const char *name, const struct leaf *leaf);
/* Adds an item for each part of the split of this path, and says so at the leaf. */
void tr_source_give(const struct source *s, struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                    enum tr_import_verdict verdict, const char *option, const char *path, const char *why);
void tr_source_close(struct source *s);

/* The first part of a split, for a key that says how much of it is used; false: all of it, or no whole percent. */
bool tr_source_part(const char *split, const struct leaf *share, char *out, size_t n_out);
/* Whether a path is a name of the hub and nothing that exists here. */
bool tr_source_is_hub(const char *path);
#define SOURCE_HUB "a hub name: it is found in the local cache of the hub, or downloaded first"

/* The names and prompt texts of a dataset type of axolotl (axolotl_types.c); false: no such type. */
bool tr_axolotl_type(struct source *s, const char *type);

#endif
