/* known.h - part of the room header: models without a directory. A name is a well-known model, whose published
 * config.json is in share/models, or a number of parameters (7B, 350M), for which a shape like Llama's is derived. */
#ifndef TR_MODEL_KNOWN_H
#define TR_MODEL_KNOWN_H

#include "base/json.h"
#include "base/str.h"

/* A file of share/models: an object of name -> { source, date, parameters, config }. tools/embed-models.cmake writes
 * the table. */
struct tr_known_file {
    const char *name, *text;
    size_t n;
};
extern const struct tr_known_file tr_known_files[];
extern const size_t tr_n_known_files;

/* The text of the config.json that a name stands for (free it). The name is one of share/models or the hub's name of
 * it, in any case and with or without -instruct, -chat or -it; or a count. TR_USAGE: neither, with the nearest. */
enum tr_status tr_known_config(const char *name, char **out);
/* "llama-3.1-8b: published shape of meta-llama/Llama-3.1-8B (2026-11-18)", "7B: derived shape ...", without a line end.
 */
enum tr_status tr_known_about(const char *name, struct tr_str *out);
/* Every name with its parameters and source. */
enum tr_status tr_known_list(bool as_json, struct tr_str *out);
/* {"name", "source", "date", "config"}; nothing where the name is a path. */
enum tr_status tr_known_json(const char *name, struct tr_str *out);

#endif
