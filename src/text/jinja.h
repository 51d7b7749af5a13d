/* jinja.h - the subset of Jinja that chat templates use. A template is compiled once and rendered many times.
 *
 * The output equals that of jinja2's ImmutableSandboxedEnvironment as transformers sets it up (trim_blocks,
 * lstrip_blocks, loop controls, its tojson, {% generation %}). A feature that is not supported is refused with its name
 * and line, never approximated. A template cannot do I/O. Its size, tree, depth, steps, memory and output have limits.
 */
#ifndef TR_TEXT_JINJA_H
#define TR_TEXT_JINJA_H

#include "base/base.h"

struct tr_jinja;

struct tr_jinja_span { /* bytes [begin, end) of a text */
    size_t begin, end;
};
struct tr_jinja_spans { /* {0} is empty */
    struct tr_jinja_span *p;
    size_t n, n_cap;
};
void tr_jinja_spans_release(struct tr_jinja_spans *s);
enum tr_status tr_jinja_spans_add(struct tr_jinja_spans *s, size_t begin, size_t end);

struct tr_jinja_var {
    const char *name;
    const cJSON *value; /* NULL: none */
    size_t n_items;     /* only the first n_items of an array; SIZE_MAX: all */
};

/* `what` is the name of the template in messages ("chatml:3: unknown filter ..."). */
enum tr_status tr_jinja_open(const char *text, size_t n, const char *what, struct tr_jinja **out);
void tr_jinja_close(struct tr_jinja *t);
bool tr_jinja_has_generation(const struct tr_jinja *t); /* holds a {% generation %} block */

/* Appends the rendering to out. now_s is the time that strftime_now reads, in seconds since 1970 (UTC). spans may be
 * NULL; else it receives the {% generation %} blocks as byte ranges of the appended text. Several threads may render
 * one template at the same time. */
enum tr_status tr_jinja_render(const struct tr_jinja *t, const struct tr_jinja_var *vars, size_t n_vars, int64_t now_s,
                               struct tr_str *out, struct tr_jinja_spans *spans);

#endif
