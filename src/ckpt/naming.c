/* naming.c - the names that a directory has for the parameters of a model, and the tensors in it that are none of them.
 *
 * A directory is written with the names that its source has, so whatever reads the source reads the result.
 */
#include "ckpt/load_impl.h"

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* The name of a model of text and images in files of older versions. */
static bool old_name(const struct tr_model *m, const char *name, char out[TR_FILE_NAME_MAX])
{
    const struct tr_wrapper *w = m->arch->wrapper;
    size_t n_base = strlen(m->arch->base_prefix);
    if (w && begins(name, m->arch->base_prefix))
        return tr_format(out, TR_FILE_NAME_MAX, "%s%s", w->old_base, name + n_base) == TR_OK;
    return w && begins(name, "lm_head.") &&
           tr_format(out, TR_FILE_NAME_MAX, "%s%s", w->old_head, name + strlen("lm_head")) == TR_OK;
}

void tr_naming_of(const struct tr_model *m, const struct tr_hf *hf, struct tr_naming *out)
{
    char old[TR_FILE_NAME_MAX];
    const char *name = m->param[0].name;
    size_t at;
    *out = (struct tr_naming){ .m = m };
    if (tr_hf_find(hf, name, &at))
        return;
    out->is_old = old_name(m, name, old) && tr_hf_find(hf, old, &at);
    if (!m->arch->wrapper && begins(name, m->arch->base_prefix) &&
        tr_hf_find(hf, name + strlen(m->arch->base_prefix), &at))
        out->n_strip = strlen(m->arch->base_prefix);
}

const char *tr_naming_file(const struct tr_naming *nm, const char *name, char out[TR_FILE_NAME_MAX])
{
    if (nm->is_old && old_name(nm->m, name, out))
        return out;
    return nm->n_strip && begins(name, nm->m->arch->base_prefix) ? name + nm->n_strip : name;
}

const char *tr_naming_param(const struct tr_naming *nm, int param, char out[TR_FILE_NAME_MAX])
{
    bool is_table = nm->m->was_tied && param == tr_model_head(nm->m);
    return tr_naming_file(nm, nm->m->param[is_table ? 0 : param].name, out);
}

bool tr_naming_carries(const struct tr_naming *nm, const char *name)
{
    const struct tr_wrapper *w = nm->m->arch->wrapper;
    const char *head = w && nm->is_old ? w->old_head : "lm_head";
    return w && !begins(name, nm->is_old ? w->old_base : nm->m->arch->base_prefix) &&
           !(begins(name, head) && name[strlen(head)] == '.');
}

bool tr_weights_find(const struct tr_hf *hf, const struct tr_model *m, int param, size_t *out_at)
{
    struct tr_naming nm;
    char buf[TR_FILE_NAME_MAX];
    tr_naming_of(m, hf, &nm);
    return tr_hf_find(hf, tr_naming_param(&nm, param, buf), out_at);
}
