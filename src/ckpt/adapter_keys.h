/* adapter_keys.h - names of an adapter's files and tensors, as PEFT writes them. */
#ifndef TR_CKPT_ADAPTER_KEYS_H
#define TR_CKPT_ADAPTER_KEYS_H

#include "ckpt/hfdir.h"
#include "model/model.h"

#define TR_ADAPTER_WEIGHTS "adapter_model.safetensors"
#define TR_ADAPTER_PREFIX  "base_model.model."
enum { TR_ADAPTER_KEY_MAX = TR_NAME_MAX + 32 };

/* Is it a tensor that only an adapter has (lora_A and its kin)? The base's directory holds every other one. */
bool tr_adapter_owns(const char *name);
/* Is it a part of an adapter that does not learn and has no tensor of its own in the file? Of trained tokens: the rows
 * of the base, and which they are. A and B of PiSSA and OLoRA as they began, which the base is without: in a file they
 * are the second half of A and (negative) of B, so that the file is an ordinary adapter of the base as it is on the
 * disk: [A; A0], [B, -B0]. start_of: that of the A or B `param`; -1: it has none. */
bool tr_adapter_is_fixed(const char *name);
bool tr_adapter_learns(const struct tr_model *m, int param); /* of an adapted model */
int tr_adapter_start_of(const struct tr_model *m, int param);
bool tr_adapter_joins_columns(const char *name); /* is it a B, whose halves lie side by side? */
/* Is the parameter in the file that is saved? Of a model without an adapter all are. Of an adapted one those of the
 * adapter are, and, as with PEFT, the matrix under an adapted embedding or head and the tables of a grown vocabulary.
 */
bool tr_adapter_saves(const struct tr_model *m, int param);
/* The key of a parameter in adapter_model.safetensors. A parameter of the base goes by the plain name, or, where its
 * module has an adapter, by <module>.base_layer. */
enum tr_status tr_adapter_key(const struct tr_model *m, int param, char *out, size_t n);
/* A tied matrix that is trained whole is there twice: PEFT's ensure_weight_tying wraps embedding and head, and saves
 * both. The second key; false: there is none. */
bool tr_adapter_second_key(const struct tr_model *m, int param, char *out, size_t n);
/* A parameter in the file of an adapter, and in the directory of its base. */
bool tr_adapter_find(const struct tr_hf *hf, const struct tr_model *m, int param, size_t *out_at);
bool tr_weights_find(const struct tr_hf *hf, const struct tr_model *m, int param, size_t *out_at);

/* naming.c: how a directory names the parameters of a model. */
enum { TR_FILE_NAME_MAX = TR_NAME_MAX + 32 };
struct tr_naming {
    const struct tr_model *m;
    size_t n_strip; /* bytes of base prefix that it leaves out */
    bool is_old;    /* a model of text and images as older versions wrote it */
};
void tr_naming_of(const struct tr_model *m, const struct tr_hf *hf, struct tr_naming *out);
/* The name in the directory, in `out` or where it was. */
const char *tr_naming_file(const struct tr_naming *nm, const char *name, char out[TR_FILE_NAME_MAX]);
/* That of a parameter: of a head that was tied, the embedding's, which it begins as. */
const char *tr_naming_param(const struct tr_naming *nm, int param, char out[TR_FILE_NAME_MAX]);
/* Is it a tensor of a part that is not trained here, and is carried over? */
bool tr_naming_carries(const struct tr_naming *nm, const char *name);

#endif
