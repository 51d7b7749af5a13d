/* fuzz_manifest.c - the manifest as it is, and again with a right checksum line so that the parser behind it is
 * reached. */
#include <stdlib.h>
#include <string.h>
#include "ckpt/commit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void parse(const char *text, size_t n)
{
    struct tr_ckpt_manifest m;
    if (tr_ckpt_manifest_parse(text, n, &m) != TR_OK)
        return;
    for (size_t i = 0; i < m.n_files; i++)
        TR_BUG_ON(strstr(m.files[i].name, "../") || m.files[i].name[0] == '/');
    tr_ckpt_manifest_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tr_str s = { 0 };
    char hex[33];
    parse((const char *)data, n);
    tr_hash_hex(tr_hash(data, n), hex);
    tr_str_add(&s, (const char *)data, n);
    tr_str_addf(&s, "  \"checksum\": \"%s\"\n}\n", hex);
    if (tr_str_ok(&s))
        parse(s.p, s.n);
    tr_str_release(&s);
    return 0;
}
