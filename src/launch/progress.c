/* progress.c - how far a run has come, from its files only: ranks may be dead. */
#include "launch/launch_impl.h"
#include "observe/observe.h"
#include <dirent.h>

enum { TAIL_MAX_BYTES = 64 << 10 }; /* of the log: hundreds of lines */

/* The largest N of output/checkpoint-N; -1: none. */
static int64_t newest_checkpoint(const char *output)
{
    static const char prefix[] = TR_NAME_CHECKPOINT;
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

static int64_t last_step(const char *output)
{
    char path[TR_PATH_MAX];
    int64_t step = -1;
    struct tr_events *events = NULL;
    struct tr_event e;
    if (tr_path_join(path, output, TR_NAME_EVENTS) != TR_OK || !tr_file_exists(path) ||
        tr_events_open(path, TAIL_MAX_BYTES, &events) != TR_OK) {
        tr_error_clear(); /* a run without a log has done no step */
        return -1;
    }
    while (tr_events_next(events, &e))
        step = e.kind == TR_EVENT_STEP ? e.step : step;
    tr_events_close(events);
    return step;
}

struct progress tr_progress_of(const char *output)
{
    return output ? (struct progress){ newest_checkpoint(output), last_step(output) } : (struct progress){ -1, -1 };
}
