/* verb_hint.c - what somebody means who calls a verb that is not here: the word of another tool, or a slip of the keys.
 */
#include "cli/cli.h"

static const struct {
    const char *said, *meant;
} words[] = {
    { "merge", "ckpt merge" },
    { "merge-lora", "ckpt merge" },
    { "export", "ckpt export" },
    { "convert", "ckpt export" },
    { "quantize", "ckpt export" },
    { "verify", "ckpt verify" },
    { "finetune", "train" },
    { "fine-tune", "train" },
    { "pretrain", "train" },
    { "run", "train" },
    { "sft", "train" },
    { "lora", "train --finetuning_type lora" },
    { "qlora", "train --finetuning_type lora --load_in_4bit" },
    { "dpo", "train --task dpo" },
    { "kto", "train --task kto" },
    { "orpo", "train --task orpo" },
    { "resume", "train --resume_from_checkpoint auto" },
    { "evaluate", "eval" },
    { "predict", "generate" },
    { "inference", "generate" },
    { "infer", "generate" },
    { "preprocess", "data check" },
    { "tokenize", "data check" },
    { "env", "doctor" },
    { "dashboard", "watch OUTPUT --http" },
    { "list", "runs" },
    { "ls", "runs" },
    { "stop", "ctl OUTPUT stop" },
    { "save", "ctl OUTPUT save" },
    { "estimate", "plan" },
};

const char *cli_verb_hint(const char *word)
{
    const char *verbs[TR_VERB_COUNT + 1];
    for (size_t i = 0; i < TR_COUNT_OF(words); i++)
        if (strcmp(words[i].said, word) == 0)
            return words[i].meant;
    for (int v = 0; v < TR_VERB_COUNT; v++)
        verbs[v] = tr_verb_word((enum tr_verb)v);
    verbs[TR_VERB_COUNT] = "launch"; /* of main.c: it starts the others */
    return tr_nearest(word, verbs, TR_COUNT_OF(verbs));
}
