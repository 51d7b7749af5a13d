/* cmd_files.c - ckpt and config: the verbs that look at files and settings. */
#include "cli/cli.h"
#include <stdio.h>

static const char *word(const struct tr_config *cfg, size_t i)
{
    return i < cfg->args.n ? cfg->args.item[i] : NULL;
}

static enum tr_status ckpt_verify(const char *dir)
{
    struct tr_ckpt_info info;
    char human[32];
    enum tr_status st = tr_ckpt_verify(dir, NULL, &info);
    if (st == TR_OK)
        printf("%s: step %" PRId64 ", %zu files, %s, all hashes match\n", dir, info.step, info.n_files,
               tr_human_bytes(info.n_bytes, human, sizeof human));
    return st;
}

static enum tr_status ckpt_newest(const char *dir)
{
    struct tr_ckpt_info info;
    struct tr_str notes = { 0 };
    bool found = false;
    enum tr_status st = tr_ckpt_scan(dir, NULL, &found, &info, &notes);
    if (notes.n)
        cli_print(notes.p);
    if (st == TR_OK && found)
        printf("%s\n", info.path);
    else if (st == TR_OK)
        st = tr_fail(TR_USAGE, "%s: no checkpoints", dir);
    tr_str_release(&notes);
    return st;
}

enum tr_status cmd_ckpt(const struct tr_config *cfg)
{
    const char *sub = word(cfg, 0), *dir = word(cfg, 1);
    if (sub && dir && strcmp(sub, "verify") == 0)
        return ckpt_verify(dir);
    if (sub && dir && strcmp(sub, "newest") == 0)
        return ckpt_newest(dir);
    return tr_fail(TR_USAGE, "usage: trireme ckpt verify CHECKPOINT | trireme ckpt newest OUTPUT");
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
    } else if (cfg->json)
        tr_config_json(cfg, true, &out);
    else
        tr_config_dump(cfg, &out);
    if (tr_str_ok(&out) && out.p)
        cli_print(out.p);
    tr_str_release(&out);
    return TR_OK;
}
