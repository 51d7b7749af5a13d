/* fuzz_import.c - any bytes as a file of another trainer: lists of keys or an error text, never a crash, a leak or a
 * long wait. The first byte chooses the tool. */
#include <sys/mman.h>
#include <unistd.h>

#include "config/config.h"
#include "import/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { TOOLS = 7 };
    int fd = n > 0 ? memfd_create("foreign.yaml", MFD_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    char path[64], tool[16];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    (void)snprintf(tool, sizeof tool, "%s", tr_import_tools[data[0] % TOOLS]);
    const struct tr_config *cfg = NULL;
    char *argv[] = { "import", path, "--from", tool };
    struct tr_str out = { 0 };
    if (tr_write_all(fd, "foreign.yaml", data + 1, n - 1) == TR_OK) {
        enum tr_status st = tr_config_load(TR_VERB_CONFIG, 4, argv, NULL, &cfg);
        TR_BUG_ON(st != TR_OK && st != TR_USAGE);
        TR_BUG_ON(st == TR_USAGE && tr_error_text()[0] == '\0');
        if (st == TR_OK) {
            tr_config_import_json(cfg, &out);
            tr_import_report(tr_config_import(cfg), &out);
            tr_import_yaml(tr_config_import(cfg), &out);
        }
    }
    tr_str_release(&out);
    tr_config_close(cfg);
    close(fd);
    return 0;
}
