/* adapt_impl.h - private to the rewrite of a model: what is decided of a segment (adapt.c), and its nodes (emit.c). */
#ifndef TR_ADAPTER_ADAPT_IMPL_H
#define TR_ADAPTER_ADAPT_IMPL_H

#include "adapter/adapter.h"

enum { SITES_MAX = 16 };

/* A node whose module is a target. */
struct site {
    int node;     /* of the program */
    bool is_head; /* the linear of the loss, or of the logits */
    const struct tr_adapter_target *target;
    tr_val a, b, bias, magnitude;  /* new parameters; the last two, of B and of DoRA, may be TR_NONE */
    tr_val start_a, start_b;       /* A and B as they began, where the base is changed by them; else TR_NONE */
    tr_val rows, rows_minus, pick; /* tokens: rows that learn, minus those of the base, and which they are */
};

/* A program that was made, and from what. */
struct adapted_form {
    int from, program, n_sites;
    struct {
        int node;
        int64_t r;
        double scale;
    } of[SITES_MAX];
};

struct adapting {
    struct tr_model *m;
    const struct tr_adapter *a;
    bool is_training;
    const struct tr_adapter_module **module; /* of the model, by name */
    size_t n_modules;
    struct site site[SITES_MAX]; /* of the segment at hand */
    int n_sites;
    struct adapted_form *form;
    int n_forms;
};

/* Appends the nodes of a site to p, in place of its node of `from`. */
void tr_adapt_emit(const struct adapting *x, struct tr_program *p, const struct tr_program *from, const struct site *s);

#endif
