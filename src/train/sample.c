/* sample.c - sample_prompts at each evaluation, on the executor of the training (sample.h). The plan of the run has the
 * models, the cache and the batch; the parameters are those of the step. */
#include "train/sample.h"
#include <stdlib.h>

struct tr_sampler {
    struct tr_exec *e;
    const struct tr_prompts *prompts;
    const struct tr_tokenizer *tok;
    struct tr_tokenizer *own_tok;
    struct tr_decoder *d;
    struct tr_texts texts;
    struct tr_str text;
};

enum tr_status tr_sampler_open(struct tr_exec *e, const struct tr_setup *s, const struct tr_tokenizer *tok,
                               struct tr_sampler **out)
{
    enum tr_status st = TR_OK;
    struct tr_sampler *x = calloc(1, sizeof *x);
    if (!x)
        return tr_fail(TR_NOMEM, "samples: out of memory");
    x->e = e;
    x->prompts = &s->prompts;
    if (!tok)
        TR_TRY(tr_tokenizer_open(s->from.text, &x->own_tok));
    x->tok = tok ? tok : x->own_tok;
    TR_TRY(tr_texts_open(x->prompts, &x->texts));
    TR_TRY(tr_decoder_open(e, s, x->tok, &x->d));
    *out = x;
    x = NULL;
out:
    tr_sampler_close(x);
    return st;
}

void tr_sampler_close(struct tr_sampler *s)
{
    if (!s)
        return;
    tr_decoder_close(s->d);
    tr_texts_close(&s->texts);
    tr_tokenizer_close(s->own_tok);
    tr_str_release(&s->text);
    free(s);
}

enum tr_status tr_sampler_run(struct tr_sampler *s)
{
    return tr_decoder_run(s->d, s->prompts, NULL, NULL, &s->texts);
}

enum tr_status tr_sampler_report(struct tr_sampler *s, struct tr_observe *ob, int64_t step)
{
    for (size_t i = 0; tr_mesh_is_first(tr_exec_mesh(s->e)) && i < s->texts.n; i++) {
        tr_str_clear(&s->text);
        TR_PASS(tr_tokenizer_decode_text(s->tok, s->texts.id + (int64_t)i * s->texts.most, (size_t)s->texts.n_ids[i],
                                         true, &s->text));
        const struct tr_event_sample e = { .step = step,
                                           .prompt = s->prompts->item[i].text,
                                           .text = s->text.p ? s->text.p : "",
                                           .index = i,
                                           .n = s->texts.n };
        tr_observe_sample(ob, &e);
    }
    return TR_OK;
}
