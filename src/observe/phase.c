/* phase.c - a rank's page as a file: OUTPUT/.trireme/phase-NNNN, written by the rank, read by any process.
 *
 * Every start of a rank makes a new file under the same name, so that a reader of the old file keeps its data. Its
 * space is reserved before it is mapped: a disk that fills up must not turn a store into SIGBUS.
 */
#include "observe/phase.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_TRIES = 20 };

enum { NAME_MAX_BYTES = 48 };

static void name_of(int rank, char out[NAME_MAX_BYTES])
{
    snprintf(out, NAME_MAX_BYTES, TR_NAME_PHASES "/" TR_NAME_OF_PHASE, rank);
}

enum tr_status tr_phase_open(const char *output, int rank, int world, int64_t generation)
{
    enum tr_status st = TR_OK;
    char name[NAME_MAX_BYTES];
    struct tr_phase_page *p = MAP_FAILED;
    int fd = -1;
    name_of(rank, name);
    TR_TRY(tr_out_mkdir(output, TR_NAME_PHASES));
    TR_TRY(tr_out_remove(output, name));
    TR_TRY(tr_out_open(output, name, TR_OUT_SHARE, &fd));
    int failed = posix_fallocate(fd, 0, (off_t)sizeof *p);
    if (!failed)
        p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        TR_TRY(tr_fail(TR_IO, "%s/%s: %s", output, name, strerror(failed ? failed : errno)));
    *p = (struct tr_phase_page){ .version = TR_PHASE_VERSION,
                                 .rank = rank,
                                 .world = world,
                                 .pid = (int32_t)getpid(),
                                 .generation = generation,
                                 .opened = tr_clock_wall(),
                                 .place = TR_PLACE_NONE,
                                 .since_us = tr_clock_us(),
                                 .begin_us = tr_clock_us() };
    if (gethostname(p->host, sizeof p->host - 1) != 0)
        p->host[0] = 0;
    p->magic = TR_PHASE_MAGIC;
    tr_phase_use(p);
out:
    if (fd >= 0)
        close(fd);
    return st;
}

void tr_phase_close(bool is_well)
{
    struct tr_phase_page *p = tr_phase_mine();
    if (!p)
        return;
    if (is_well)
        tr_phase_enter(TR_PHASE_END, TR_PLACE_NONE, 0);
    p->is_ended = 1;
    tr_phase_use(NULL);
    munmap(p, sizeof *p);
}

bool tr_phase_read(const char *output, int rank, struct tr_phase_page *out)
{
    char path[TR_PATH_MAX], name[NAME_MAX_BYTES];
    bool is_read = false;
    name_of(rank, name);
    int fd =
        tr_path_join(path, output, name) == TR_OK ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (fd < 0)
        return false;
    for (int i = 0; i < N_TRIES;
         i++) { /* a rank that died inside a change leaves `seq` odd; its page is shown all the same */
        is_read = pread(fd, out, sizeof *out, 0) == (ssize_t)sizeof *out && out->magic == TR_PHASE_MAGIC &&
                  out->version == TR_PHASE_VERSION;
        if (!is_read || out->seq % 2 == 0)
            break;
    }
    close(fd);
    out->host[sizeof out->host - 1] = out->site[sizeof out->site - 1] = 0;
    return is_read;
}

const char *tr_phase_text(int kind, int place, char *buf, size_t n_buf)
{
    char where[32] = "";
    if (place >= 0)
        snprintf(where, sizeof where, " of layer %d", place);
    else if (place != TR_PLACE_NONE)
        snprintf(where, sizeof where, " of %s",
                 place == TR_PLACE_EMBED  ? "embed"
                 : place == TR_PLACE_HEAD ? "head"
                                          : "shared");
    snprintf(buf, n_buf, "%s%s", tr_phase_name(kind), where);
    return buf;
}

int64_t tr_phase_bound(const struct tr_phase_page *p)
{
    bool is_disk = p->kind == TR_PHASE_START || p->kind == TR_PHASE_DATA || p->kind == TR_PHASE_SAVE;
    int64_t p99 = tr_phase_p99(p, p->kind);
    if (p99 == 0)
        return TR_HANG_UNKNOWN_US;
    return tr_max64(is_disk ? TR_HANG_DISK_US : TR_HANG_MIN_US, 3 * p99);
}

void tr_phase_json(const struct tr_phase_page *p, struct tr_str *out)
{
    uint64_t n = p->n_marks < TR_PHASE_RING ? p->n_marks : TR_PHASE_RING;
    char text[64];
    tr_str_addf(out, "{\"rank\": %d, \"pid\": %d, \"host\": ", p->rank, p->pid);
    tr_str_json(out, p->host);
    tr_str_addf(out,
                ", \"generation\": %" PRId64 ", \"step\": %" PRId64
                ", \"phase\": \"%s\", \"action\": \"%s\", \"micro\": %d, "
                "\"is_waiting\": %s, \"collectives\": %" PRIu64 ", \"site\": ",
                p->generation, p->step, tr_phase_name(p->kind), tr_phase_text(p->kind, p->place, text, sizeof text),
                p->micro, p->is_waiting ? "true" : "false", p->n_collectives);
    tr_str_json(out, p->site);
    tr_str_addf(out, ", \"actions\": [");
    for (uint64_t i = p->n_marks - n; i < p->n_marks; i++) {
        const struct tr_phase_mark *m = &p->ring[i % TR_PHASE_RING];
        tr_str_addf(out, "%s[%.6f, %" PRId64 ", \"%s\", %d]", i > p->n_marks - n ? ", " : "",
                    (double)(m->at_us - p->since_us) * 1e-6, m->step,
                    tr_phase_text(m->kind, m->place, text, sizeof text), m->micro);
    }
    tr_str_addf(out, "]}");
}
