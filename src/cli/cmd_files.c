/* cmd_files.c - trireme config: values and origins of all options, shell completion, man pages. */
#include "cli/cli.h"
#include <stdio.h>

static const char *word(const struct tr_config *cfg, size_t i)
{
    return i < cfg->args.n ? cfg->args.item[i] : NULL;
}

enum tr_status cmd_config(const struct tr_config *cfg)
{
    struct tr_str out = { 0 };
    const char *sub = word(cfg, 0);
    if (sub && strcmp(sub, "completion") == 0)
        tr_config_completion(&out);
    else if (sub && strcmp(sub, "man") == 0 && word(cfg, 1)) {
        enum tr_verb verb;
        if (!tr_verb_parse(word(cfg, 1), &verb))
            return tr_fail(TR_USAGE, "config man: no verb %s", word(cfg, 1));
        tr_config_man(verb, &out);
    } else if (sub && strcmp(sub, "show") != 0)
        return tr_verb_misused(TR_VERB_CONFIG);
    else if (cfg->json)
        tr_config_json(cfg, true, &out);
    else
        tr_config_dump(cfg, &out);
    if (tr_str_ok(&out) && out.p)
        cli_print(out.p);
    tr_str_release(&out);
    return TR_OK;
}
