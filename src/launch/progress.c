/* progress.c - how far a run has come, from its files only: ranks may be dead. */
#include "launch/launch_impl.h"
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>
#include "base/banned.h"

enum { TAIL_MAX_BYTES = 64 << 10 }; /* of the log: hundreds of lines */

/* The largest N of output/checkpoint-N; -1: none. */
static int64_t newest_checkpoint(const char *output)
{
    static const char prefix[] = "checkpoint-";
    int64_t newest = -1, step;
    DIR *d = opendir(output);
    const struct dirent *e;
    while (d && (e = readdir(d)) != NULL)
        if (strncmp(e->d_name, prefix, sizeof prefix - 1) == 0 &&
            tr_parse_int(e->d_name + sizeof prefix - 1, 0, INT64_MAX, &step) == TR_OK)
            newest = tr_max64(newest, step);
    if (d)
        closedir(d);
    return newest;
}

/* The step of the last step event in the text; -1: none. */
static int64_t last_step_in(const char *text)
{
    static const char line[] = "\"event\":\"step\"", key[] = "\"step\":";
    int64_t step = -1, n;
    for (const char *p = text; (p = strstr(p, line)) != NULL; p++) {
        const char *q = strstr(p, key);
        char digits[24] = "";
        size_t len = q ? strspn(q + sizeof key - 1, "0123456789") : 0;
        if (len == 0 || len >= sizeof digits)
            continue;
        memcpy(digits, q + sizeof key - 1, len);
        if (tr_parse_int(digits, 0, INT64_MAX, &n) == TR_OK)
            step = n;
    }
    return step;
}

static int64_t last_step(const char *output)
{
    char path[TR_PATH_MAX], *text = malloc(TAIL_MAX_BYTES + 1);
    int fd = text && tr_path_join(path, output, "events.jsonl") == TR_OK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    ssize_t n = fd >= 0 ? pread(fd, text, TAIL_MAX_BYTES, end > TAIL_MAX_BYTES ? end - TAIL_MAX_BYTES : 0) : 0;
    int64_t step = -1;
    if (n > 0) {
        text[n] = 0;
        step = last_step_in(text);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return step;
}

struct progress tr_progress_of(const char *output)
{
    return output ? (struct progress){ newest_checkpoint(output), last_step(output) } : (struct progress){ -1, -1 };
}
