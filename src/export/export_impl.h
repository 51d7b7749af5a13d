/* export_impl.h - private to export: what the files of a directory are made of. */
#ifndef TR_EXPORT_EXPORT_IMPL_H
#define TR_EXPORT_EXPORT_IMPL_H

#include "export/export.h"
#include "export/vocab.h"
#include "export/weights.h"

struct tr_exporting {
    const struct tr_export_job *job;
    struct tr_export_result *result;
    struct tr_model *model;
    struct tr_export_text text;
    char file[64]; /* the name of the GGUF file */
};

/* card.c: small files of the directory. */
enum tr_status tr_export_card(const struct tr_exporting *x, struct tr_str *out);      /* README.md */
enum tr_status tr_export_modelfile(const struct tr_exporting *x, struct tr_str *out); /* of Ollama */
void tr_export_next(const struct tr_exporting *x, struct tr_str *out);
extern const char tr_export_attributes[];                 /* .gitattributes */
const char *tr_export_name(const struct tr_exporting *x); /* the last part of the output's path */

#endif
