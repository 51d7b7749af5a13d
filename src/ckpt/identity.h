/* identity.h - which base an adapter belongs to: cheap to compute, and decisive. */
#ifndef TR_CKPT_IDENTITY_H
#define TR_CKPT_IDENTITY_H

#include "base/base.h"

/* What a base directory is: hashes of config.json (without the keys that change nothing), of the names, dtypes and
 * shapes of its tensors, and of bytes sampled from every tensor. */
struct tr_base_id {
    struct tr_hash128 config, tensors, samples;
    int64_t n_tensors;
    uint64_t n_bytes;
};
enum tr_status tr_base_id_of(const char *dir, struct tr_base_id *out);
/* Text of trireme/base.json. path: where it is; quant: how the run packed it ("nf4", "fp4:double"), "": it did not;
 * start: what the run took out of it ("pissa", "olora"), so that half of the adapter's file is frozen, NULL: nothing.
 */
enum tr_status tr_base_id_print(const struct tr_base_id *id, const char *path, const char *quant, const char *start,
                                struct tr_str *out);
/* Members "path", "quant" and "start" of adapter_dir/trireme/base.json. TR_USAGE: it does not say. */
enum tr_status tr_base_id_member(const char *adapter_dir, const char *key, char out[TR_PATH_MAX]);
/* All of it in 32 hex digits. */
void tr_base_id_hex(const struct tr_base_id *id, char out[33]);
/* Refuses a base that is not the one in adapter_dir/trireme/base.json, and says what differs. No such file: any base is
 * taken, because other tools do not write one. */
enum tr_status tr_base_id_check(const char *adapter_dir, const char *base_dir);

#endif
