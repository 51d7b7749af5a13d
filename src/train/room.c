/* room.c - memory of a run against what its hosts have, before anything is written.
 *
 * A rank asks for itself first, because that needs no other rank and a run that is far too large should end at once.
 * Once the ranks have met, those of each host are summed up: pipeline stages differ, so no rank can know the sum alone.
 * The numbers are read once; what other programs take later is theirs to answer for (I1 names an OOM kill).
 */
#include "base/host.h"
#include "train/room.h"
#include "plan/plan.h"
#include <stdio.h>
#include <stdlib.h>

/* What a process takes beside its arenas: code, stacks, a tokenizer, messages. Measured: 9 MiB of a tiny run. */
enum { STACK_BYTES = 8 << 20, THREADS = 4 };  /* of a thread; besides those that compute: loader, saver, messages */
enum { BESIDE_BYTES = 16 << 20, FILES = 64 }; /* and open files, beside one for each other rank */

static enum tr_status refuse(const struct tr_setup *s, const struct tr_room *room, const char *advice, const char *text)
{
    struct tr_str why = { 0 };
    tr_str_addf(&why, "does not fit: %s", text);
    if (s && s->model)
        tr_remedies_text(s, room, &why);
    else if (advice[0])
        tr_str_addf(&why, "; %s", advice);
    enum tr_status st = tr_fail(TR_USAGE, "%s", tr_str_ok(&why) ? why.p : text);
    tr_str_release(&why);
    return st;
}

enum tr_status tr_room_check(const struct tr_compiled *c, const struct tr_setup *s, const char *advice)
{
    struct tr_host h;
    struct tr_room room = { .device_bytes = UINT64_MAX };
    uint64_t need = tr_host_bytes(c) + BESIDE_BYTES;
    char text[768], a[32], b[32];
    TR_PASS(tr_host_files(FILES + (s ? (uint64_t)s->env.size : 0)));
    tr_host_read("", &h);
    uint64_t stacks = ((uint64_t)c->opt.n_threads + THREADS) * STACK_BYTES; /* addresses, hardly memory */
    uint64_t addresses = h.address_bytes > stacks ? h.address_bytes - stacks : 0;
    bool is_address = h.address_name && addresses < h.available_bytes;
    uint64_t have = is_address ? addresses : h.available_bytes;
    if (need <= have)
        return TR_OK;
    (void)tr_format(text, sizeof text, "a rank needs %s of host memory and %s leaves %s%s",
                    tr_human_bytes(need, a, sizeof a), is_address ? h.address_name : h.limit,
                    tr_human_bytes(have, b, sizeof b), is_address ? " (raise it)" : "");
    room.host_bytes = have > BESIDE_BYTES ? have - BESIDE_BYTES : 0;
    return refuse(s, &room, advice, text);
}

enum tr_status tr_room_refused(const struct tr_setup *s)
{
    char cause[1024];
    const struct tr_compiled *c = s->compiled;
    uint64_t device = tr_compiled_bytes_in(c, TR_SPACE_DEVICE);
    struct tr_room room = { tr_host_bytes(c), device / 4 * 3 };
    if (!c->opt.has_own_memory)
        room.host_bytes = room.host_bytes / 4 * 3;
    (void)snprintf(cause, sizeof cause, "%s", tr_error_text());
    return refuse(s, &room, "", cause);
}

enum { HOST, NEED, HAVE, FIELDS };

enum tr_status tr_room_check_hosts(struct tr_mesh *mesh, const struct tr_setup *s)
{
    enum tr_status st = TR_OK;
    struct tr_host h;
    struct tr_room room = { .device_bytes = UINT64_MAX };
    char text[768], a[32], b[32];
    int n = mesh->world, me = mesh->rank;
    int64_t(*all)[FIELDS] = calloc((size_t)n, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "start: out of memory");
    tr_host_read("", &h);
    all[me][HOST] = (int64_t)(tr_host_id() >> 1);
    all[me][NEED] = (int64_t)(tr_host_bytes(s->compiled) + BESIDE_BYTES);
    all[me][HAVE] = (int64_t)(h.available_bytes >> 1 < INT64_MAX >> 1 ? h.available_bytes : INT64_MAX);
    struct tr_coll g = { .kind = TR_ALL_GATHER,
                         .dtype = TR_I64,
                         .in = all[me],
                         .out = all,
                         .count = (size_t)n * FIELDS,
                         .site = "memory of all hosts" };
    TR_TRY(tr_comm_run(mesh->all, &g));
    for (int first = 0; first < n; first++) {
        int64_t need = 0, have = INT64_MAX;
        int n_here = 0;
        bool is_counted = false;
        for (int r = 0; r < n; r++) {
            if (all[r][HOST] != all[first][HOST])
                continue;
            is_counted = is_counted || r < first;
            need += all[r][NEED];
            have = tr_min64(have, all[r][HAVE]);
            n_here++;
        }
        if (is_counted || need <= have)
            continue;
        bool is_here = all[me][HOST] == all[first][HOST];
        (void)tr_format(text, sizeof text,
                        "the %d ranks of the host of rank %d need %s of its memory together, and %s are available",
                        n_here, first, tr_human_bytes((uint64_t)need, a, sizeof a),
                        tr_human_bytes((uint64_t)have, b, sizeof b));
        if (is_here)
            (void)tr_format(text + strlen(text), sizeof text - strlen(text), " (limit: %s)", h.limit);
        int64_t each = have / n_here;
        room.host_bytes = (uint64_t)(each > BESIDE_BYTES ? each - BESIDE_BYTES : 0);
        TR_TRY(refuse(s, &room, "", text));
    }
out:
    free(all);
    return st;
}
