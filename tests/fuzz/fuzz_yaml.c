/* fuzz_yaml.c - any bytes as a run file: a configuration or an error text, never a crash, a leak or a long wait. */
#include <sys/mman.h>
#include <unistd.h>

#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int fd = memfd_create("run.yaml", MFD_CLOEXEC);
    if (fd < 0)
        return 0;
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const struct tr_config *cfg = NULL;
    char *argv[] = { "show", "--config", path };
    if (tr_write_all(fd, "run.yaml", data, n) == TR_OK) {
        enum tr_status st = tr_config_load(TR_VERB_CONFIG, 3, argv, NULL, &cfg);
        TR_BUG_ON(st != TR_OK && st != TR_USAGE);
        TR_BUG_ON(st == TR_USAGE && tr_error_text()[0] == '\0');
    }
    tr_config_close(cfg);
    close(fd);
    return 0;
}
