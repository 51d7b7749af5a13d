/* jinja.h - the Jinja of chat templates: compile once, render many times, bounded in every direction.
 *
 * Renders what jinja2's ImmutableSandboxedEnvironment renders as transformers sets it up (trim_blocks, lstrip_blocks,
 * loop controls, its tojson, {% generation %}). What is not known is refused by name and line, never approximated.
 * A template has no I/O; its size, tree, depth, steps, memory and output are capped.
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
    size_t n_items;     /* an array's first n_items only; SIZE_MAX: all */
};

/* `what` names the template in messages ("chatml:3: unknown filter ..."). */
enum tr_status tr_jinja_open(const char *text, size_t n, const char *what, struct tr_jinja **out);
void tr_jinja_close(struct tr_jinja *t);
bool tr_jinja_has_generation(const struct tr_jinja *t); /* holds a {% generation %} block */

/* Appends the rendering to out. now_s: seconds since 1970 (UTC) of strftime_now. spans (may be NULL): the
 * {% generation %} blocks, in bytes of what was appended. Several threads may render one template. */
enum tr_status tr_jinja_render(const struct tr_jinja *t, const struct tr_jinja_var *vars, size_t n_vars, int64_t now_s,
                               struct tr_str *out, struct tr_jinja_spans *spans);

#endif
