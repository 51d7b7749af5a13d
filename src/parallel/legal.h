/* legal.h - part of the room header: which meshes a model can be cut into. */
#ifndef TR_PARALLEL_LEGAL_H
#define TR_PARALLEL_LEGAL_H

#include "mesh/mesh.h"
#include "model/model.h"

struct tr_legal_ask {
    const struct tr_model *model; /* of one micro-batch */
    int size[TR_AXES];
    bool sp;
    enum tr_cp_mode cp_mode;
    int pp_chunks, n_micro;
};
/* A rule about one axis; an axis of size 1 keeps every rule. text: what must hold of `value`, as a sentence. */
struct tr_legal_rule {
    enum tr_axis axis;
    const char *text;
    int64_t (*value)(const struct tr_legal_ask *a);
    bool (*holds)(const struct tr_legal_ask *a, int64_t size, int64_t value);
};
extern const struct tr_legal_rule tr_legal_rules[];
extern const size_t tr_n_legal_rules;
/* TR_USAGE with a line for every broken rule: the value, and the nearest legal sizes. */
enum tr_status tr_legal_check(const struct tr_legal_ask *a);
bool tr_legal_holds(const struct tr_legal_ask *a); /* the same in a word, for who asks often */
/* The rules; with `a`, what each says of it. */
void tr_legal_print(const struct tr_legal_ask *a, struct tr_str *out);

#endif
