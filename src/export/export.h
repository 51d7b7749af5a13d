/* export.h - room header of export: a model in the form that another program loads, proven before it gets its name.
 *
 * The output is a directory: the weights (HF files, or one GGUF file), README.md with the metadata of a hub,
 * .gitattributes, and for Ollama a Modelfile. The weights that were written are read back and run beside those of the
 * training, and the distance of their logits is the result.
 */
#ifndef TR_EXPORT_EXPORT_H
#define TR_EXPORT_EXPORT_H

#include "train/train.h"

struct tr_export_job {
    const char *dir, *out;
    enum tr_export to; /* hf, vllm (the same files), gguf, ollama */
    struct tr_pool *pool;
    const struct tr_config *run;      /* options that run `dir` in float32 */
    const struct tr_merge_rows *rows; /* n 0: nothing is compared */
};
struct tr_export_result {
    uint64_t bytes; /* of the weights */
    struct tr_distance distance;
    struct tr_str notes; /* a line each: what is exact within a bound only; the caller releases both */
    struct tr_str next;  /* lines to type next: how it is run, how it is uploaded */
};
/* Refuses, before anything has the name `out`, what the other program cannot compute, a chat template or an end of
 * texts that do not agree, and weights whose logits are not finite. */
enum tr_status tr_export_model(const struct tr_export_job *job, struct tr_export_result *out);

static inline bool tr_export_is_gguf(enum tr_export to)
{
    return to >= TR_EXPORT_GGUF_F16;
}

#endif
