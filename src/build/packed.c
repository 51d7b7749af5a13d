/* packed.c - which weights a run holds packed. A directory that has codes is taken as it is: what its writer left wide
 * stays wide. Of a directory without codes, load_in_4bit and
 * base_dtype pack what bitsandbytes would. */
#include "build/build.h"
#include <stdlib.h>

/* The format that holds the codes of a file; TR_NOT_PACKED: it has none, or none that a device decodes. */
static enum tr_packed packed_in_file(const struct tr_hf *hf, const struct tr_model *m, int param)
{
    size_t at = 0;
    if (!tr_weights_find(hf, m, param, &at))
        return TR_NOT_PACKED;
    for (int p = TR_NOT_PACKED + 1; p < TR_PACKED_COUNT; p++)
        if (tr_hf_storage(hf, at) == tr_packed_format((enum tr_packed)p))
            return (enum tr_packed)p;
    return TR_NOT_PACKED;
}

static int fill_from_files(const char *dir, const struct tr_model *m, const bool *may_pack, uint8_t *packed_of)
{
    struct tr_hf *hf = NULL;
    int n = 0;
    if (!tr_dir_exists(dir) || tr_hf_open(dir, &hf) != TR_OK) {
        tr_error_clear(); /* a caller that needs the weights reports it */
        return 0;
    }
    for (int i = 0; i < m->n_params; i++)
        if (may_pack[i] && (packed_of[i] = (uint8_t)packed_in_file(hf, m, i)) != TR_NOT_PACKED)
            n++;
    tr_hf_close(hf);
    return n;
}

enum tr_status tr_setup_packed(const struct tr_config *cfg, const char *dir, const struct tr_model *m,
                               const bool *is_frozen, uint8_t **out)
{
    size_t n_params = (size_t)m->n_params;
    uint8_t *packed_of = calloc(n_params, sizeof *packed_of);
    bool *may_pack = calloc(n_params, sizeof *may_pack);
    enum tr_status st = packed_of && may_pack ? TR_OK : tr_fail(TR_NOMEM, "setup: out of memory");
    int n = 0;
    for (int i = 0; st == TR_OK && i < m->n_params; i++)
        may_pack[i] = (!is_frozen || is_frozen[i]) && !m->param[i].in_adapter && tr_param_may_pack(m, i);
    if (st == TR_OK)
        n = fill_from_files(dir, m, may_pack, packed_of);
    for (int i = 0; st == TR_OK && n == 0 && i < m->n_params; i++)
        packed_of[i] = may_pack[i] ? (uint8_t)tr_config_packed(cfg) : TR_NOT_PACKED;
    for (int i = 0; st == TR_OK && i < m->n_params; i++)
        n += packed_of[i] != TR_NOT_PACKED;
    if (st == TR_OK && n == 0 && tr_config_packed(cfg))
        st = tr_fail(TR_USAGE, "%s: %s has no matrix (out, in) in a layer that does not learn; drop it",
                     cfg->load_in_4bit ? "load_in_4bit" : "base_dtype fp8", m->arch->model_type);
    if (st == TR_OK && n > 0) {
        *out = packed_of;
        packed_of = NULL;
    }
    free(packed_of);
    free(may_pack);
    return st;
}
