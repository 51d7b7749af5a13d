/* checkpoint.h - a toy checkpoint for the tests: one shard, two state files, commit, retention. */
#ifndef TR_TESTS_CKPT_CHECKPOINT_H
#define TR_TESTS_CKPT_CHECKPOINT_H

#include "ckpt/tmpdir.h"
#include "ckpt/commit.h"
#include "ckpt/safetensors.h"

enum { TOY_ELEMS = 3000 };

/* Weights are a function of the step, so that two checkpoints never hold the same bytes. */
static inline enum tr_status toy_files(struct tr_commit *c, int64_t step)
{
    enum tr_status st = TR_OK;
    struct tr_st_writer *w = NULL;
    struct tr_pump *pump = NULL;
    uint64_t n_bytes;
    struct tr_hash128 hash;
    char state[64];
    float x[TOY_ELEMS];
    for (int i = 0; i < TOY_ELEMS; i++)
        x[i] = (float)(step * 10000 + i);
    TR_TRY(tr_st_writer_prepare(&(struct tr_st_entry){ "w", TR_F32, 1, { TOY_ELEMS } }, 1, NULL, 0, &w));
    TR_TRY(tr_pump_open(NULL, &pump));
    TR_TRY(tr_st_writer_begin(w, pump, tr_commit_dir(c), "model.safetensors"));
    for (int i = 0; i < TOY_ELEMS; i += 1000)
        TR_TRY(tr_st_writer_add(w, x + i, TR_F32, 1000));
    TR_TRY(tr_st_writer_finish(w, &n_bytes, &hash));
    TR_TRY(tr_commit_add(c, "model.safetensors", n_bytes, hash));
    TR_TRY(tr_format(state, sizeof state, "{\"step\": %" PRId64 ", \"best\": {\"step\": 1}}\n", step));
    TR_TRY(tr_commit_put(c, "trireme/state.json", state, strlen(state)));
    TR_TRY(tr_commit_put(c, "config.json", "{}\n", 3));
out:
    tr_st_writer_close(w);
    tr_pump_close(pump);
    return st;
}

static inline enum tr_status toy_save(const char *dir, const char *run, int64_t step, int64_t generation, int64_t limit)
{
    enum tr_status st = TR_OK;
    struct tr_commit *c = NULL;
    const struct tr_ckpt_keep keep = { limit, 0, false };
    TR_TRY(tr_failpoint("ckpt.snapshot")); /* the saver's */
    TR_TRY(tr_commit_begin(dir, run, step, generation, &c));
    TR_TRY(toy_files(c, step));
    TR_TRY(tr_commit_finish(c));
    TR_TRY(tr_failpoint("ckpt.before_verify")); /* the saver's */
    TR_TRY(tr_ckpt_retain(dir, step, generation, &keep, NULL, NULL));
out:
    tr_commit_close(c);
    return st;
}

/* Step of the newest good checkpoint, -1 for none; its weights are really read. */
static inline int64_t toy_newest(const char *dir)
{
    bool is_found;
    struct tr_ckpt_info info;
    struct tr_st *st;
    float x;
    assert_ok(tr_ckpt_scan(dir, NULL, &is_found, &info, NULL));
    if (!is_found)
        return -1;
    assert_ok(tr_st_open(in_dir(info.path, "model.safetensors"), &st));
    assert_ok(tr_st_read(st, 0, 7, 1, &x, TR_F32));
    assert_true(x == (float)(info.step * 10000 + 7));
    tr_st_close(st);
    return info.step;
}

#endif
