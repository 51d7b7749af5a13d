/* cmd_files.c - trireme config: values and origins of all options, files of other trainers, shell completion, man
 * pages. */
#include "cli/cli.h"
#include "import/import.h"

static const char *word(const struct tr_config *cfg, size_t i)
{
    return i < cfg->args.n ? cfg->args.item[i] : NULL;
}

/* The run file on stdout, so that it can be redirected; what became of each key on stderr. */
static enum tr_status print_import(const struct tr_config *cfg)
{
    const struct tr_import *im = tr_config_import(cfg);
    bool is_done = tr_import_is_done(im);
    struct tr_str text = { 0 }, report = { 0 };
    enum tr_status st = TR_OK;
    tr_import_report(im, &report);
    if (cfg->json)
        tr_config_import_json(cfg, &text);
    else if (is_done)
        tr_import_yaml(im, &text);
    if (cfg->json)
        tr_str_addf(&text, "\n");
    if (!tr_str_ok(&text) || !tr_str_ok(&report))
        st = tr_fail(TR_NOMEM, "no memory to print what was imported");
    else if (!is_done)
        st = tr_fail(TR_USAGE,
                     "config import: keys of the lists cannot and unknown are in the way; --skip KEY leaves one "
                     "out");
    if (!cfg->quiet && !cfg->json && report.p != NULL && st != TR_NOMEM)
        cli_warn(report.p);
    if (text.p != NULL && st != TR_NOMEM)
        cli_print(text.p);
    tr_str_release(&text);
    tr_str_release(&report);
    return st;
}

enum tr_status cmd_config(const struct tr_config *cfg)
{
    struct tr_str out = { 0 };
    const char *sub = word(cfg, 0);
    if (sub && strcmp(sub, "import") == 0)
        return print_import(cfg);
    if (sub && strcmp(sub, "completion") == 0) {
        TR_PASS(tr_config_completion(word(cfg, 1) ? word(cfg, 1) : "bash", &out));
    } else if (sub && strcmp(sub, "man") == 0 && !word(cfg, 1)) {
        tr_config_man_all(&out);
    } else if (sub && strcmp(sub, "man") == 0) {
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
