/* vocab.h - the tokenizer, the chat template and the ends of texts, as an export has them. */
#ifndef TR_EXPORT_VOCAB_H
#define TR_EXPORT_VOCAB_H

#include "export/gguf.h"
#include "model/model.h"
#include "text/text.h"

/* What the directory of a model says about its texts; all of it was checked to agree. */
struct tr_export_text {
    struct tr_tokenizer *tok; /* NULL: the directory has none */
    struct tr_chat *chat;     /* NULL: it has no template */
    struct tr_ids stops;      /* at which generation ends */
    struct tr_chat_end end;   /* of a turn; n_ids 0: unknown */
};
/* TR_USAGE: an end of texts that a runtime would miss. */
enum tr_status tr_export_text_open(const char *dir, const struct tr_model *m, struct tr_export_text *out);
void tr_export_text_close(struct tr_export_text *t);

/* The keys tokenizer.*. TR_USAGE: llama.cpp has no such tokenizer. */
enum tr_status tr_gguf_vocab_keys(const struct tr_export_text *t, const struct tr_model *m, struct tr_gguf *g,
                                  struct tr_str *notes);

#endif
