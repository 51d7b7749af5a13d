/* version.c - trireme --version: release, commit, kernel columns, the stamp of modules, and the libraries that this
 * process has loaded. */
#include "cli/cli.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include "ops/ops.h"
#include <pcre2.h>
#include <stdio.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

void cli_version(void)
{
    char pcre[64] = "?", xxhash[32];
    unsigned x = XXH_versionNumber();
    (void)pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    (void)snprintf(xxhash, sizeof xxhash, "%u.%u.%u", x / 10000, x / 100 % 100, x % 100);
    const struct {
        const char *name, *version;
    } libraries[] = { { "cJSON", cJSON_Version() },
                      { "libyaml", yaml_get_version_string() },
                      { "pcre2", pcre },
                      { "utf8proc", utf8proc_version() },
                      { "xxhash", xxhash },
                      { "zlib", zlibVersion() },
                      { "zstd", ZSTD_versionString() } };
    printf("trireme %s\ncommit %s\ncolumns", TR_VERSION, TR_COMMIT);
    for (size_t i = 0; tr_column_at(i); i++)
        if (tr_column_at(i)->kernel)
            printf(" %s", tr_column_at(i)->name);
    printf("\nmodules %s", tr_module_stamp()); /* what a module must be made from */
    printf("\nlibraries");
    for (size_t i = 0; i < TR_COUNT_OF(libraries); i++)
        printf("%s %s %s", i ? "," : "", libraries[i].name, libraries[i].version);
    printf("\n");
}
