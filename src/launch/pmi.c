/* pmi.c - a small PMI-1 service, through which MPICH ranks find each other: a table of keys and a barrier. With several
 * nodes each agent serves its own ranks, and agents exchange at each barrier what was put (agent_run.c).
 *
 * Each rank inherits one end of a socket pair (PMI_FD) and sends lines "cmd=put kvsname=K key=A value=B". No other
 * process can reach the service. It never waits for a rank, and the size of a line, a key, a value and the table is
 * limited before it is read. A rank that breaks the rules loses its connection, and its MPI reports that.
 */
#include "launch/launch_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048, KEY_MAX_BYTES = 64, VALUE_MAX_BYTES = 1024, ENTRIES_PER_RANK = 256, READS = 16 };

struct pmi_entry {
    char key[KEY_MAX_BYTES + 1], value[VALUE_MAX_BYTES + 1];
    bool is_foreign; /* put by a rank on another node */
};

struct pmi_client {
    int fd; /* our end; -1: closed */
    char line[LINE_MAX_BYTES];
    size_t n_line;
    bool is_in_barrier;
};

struct pmi {
    int n_ranks, n_in_barrier; /* ranks of this node */
    int n_world;
    uint16_t sizes[TR_LAUNCH_NODES_MAX];
    int n_nodes;
    bool is_waiting;
    size_t n_shared; /* entries that the other nodes have */
    char name[64];
    struct pmi_client *clients;
    struct pmi_entry *entries;
    size_t n_entries, max_entries;
};

void tr_pmi_close(struct pmi *p)
{
    if (!p)
        return;
    tr_pmi_clear(p);
    free(p->clients);
    free(p->entries);
    free(p);
}

enum tr_status tr_pmi_open(int n_ranks, const char *job, struct pmi **out)
{
    struct pmi *p = calloc(1, sizeof *p);
    size_t n = (size_t)n_ranks;
    if (p) {
        *p = (struct pmi){ .n_ranks = n_ranks, .n_world = n_ranks, .n_nodes = 1, .max_entries = n * ENTRIES_PER_RANK };
        p->clients = calloc(n, sizeof *p->clients);
        snprintf(p->name, sizeof p->name, "trireme-%.32s", job);
    }
    if (!p || !p->clients) {
        tr_pmi_close(p);
        return tr_fail(TR_NOMEM, "no memory for the PMI service of %d ranks", n_ranks);
    }
    for (size_t i = 0; i < n; i++)
        p->clients[i].fd = -1;
    *out = p;
    return TR_OK;
}

static void hang_up(struct pmi_client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->n_line = 0;
}

void tr_pmi_clear(struct pmi *p)
{
    for (int i = 0; p->clients && i < p->n_ranks; i++) {
        hang_up(&p->clients[i]);
        p->clients[i].is_in_barrier = false;
    }
    p->n_entries = p->n_shared = 0;
    p->n_in_barrier = 0;
    p->is_waiting = false;
}

void tr_pmi_begin(struct pmi *p, int first_rank, const uint16_t *sizes, int n_nodes)
{
    (void)first_rank;
    p->n_nodes = n_nodes;
    p->n_world = 0;
    memcpy(p->sizes, sizes, sizeof p->sizes);
    for (int i = 0; i < n_nodes; i++)
        p->n_world += sizes[i];
    p->max_entries = (size_t)p->n_world * ENTRIES_PER_RANK;
}

int tr_pmi_connect(struct pmi *p, int rank)
{
    int ends[2];
    hang_up(&p->clients[rank]);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    p->clients[rank].fd = ends[0];
    return ends[1];
}

int tr_pmi_fd(const struct pmi *p, int rank)
{
    return p ? p->clients[rank].fd : -1;
}

/* A reply is shorter than the buffer of a socket: when one does not fit, the rank does not read. */
static void reply(struct pmi_client *c, const char *fmt, ...) TR_PRINTF(2, 3);
static void reply(struct pmi_client *c, const char *fmt, ...)
{
    char text[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->fd >= 0 && (n < 0 || (size_t)n >= sizeof text || send(c->fd, text, (size_t)n, MSG_NOSIGNAL) != n))
        hang_up(c);
}

/* Copies the value of `name=` from a line of words; a value ends at a blank. false: it is missing, or too long. */
static bool field(const char *line, const char *name, char *out, size_t n_out)
{
    size_t n_name = strlen(name);
    for (const char *p = line; *p;) {
        p += strspn(p, " ");
        size_t n = strcspn(p, " ");
        if (n > n_name && strncmp(p, name, n_name) == 0 && p[n_name] == '=') {
            size_t n_value = n - n_name - 1;
            if (n_value >= n_out)
                return false;
            memcpy(out, p + n_name + 1, n_value);
            out[n_value] = 0;
            return true;
        }
        p += n;
    }
    return false;
}

static struct pmi_entry *find(struct pmi *p, const char *key)
{
    for (size_t i = 0; i < p->n_entries; i++)
        if (strcmp(p->entries[i].key, key) == 0)
            return &p->entries[i];
    return NULL;
}

/* NULL, or the reason why not. */
static const char *keep(struct pmi *p, const struct pmi_entry *e)
{
    if (find(p, e->key))
        return "duplicate_key";
    if (p->n_entries == p->max_entries)
        return "table_is_full";
    if ((p->n_entries & (p->n_entries - 1)) == 0) { /* at a power of two: double the room */
        size_t room = p->n_entries ? 2 * p->n_entries : 1;
        struct pmi_entry *more = realloc(p->entries, room * sizeof *more);
        if (!more)
            return "no_memory";
        p->entries = more;
    }
    p->entries[p->n_entries++] = *e;
    return NULL;
}

static const char *add(struct pmi *p, const char *line)
{
    struct pmi_entry e = { 0 };
    if (!field(line, "key", e.key, sizeof e.key) || !field(line, "value", e.value, sizeof e.value))
        return "bad_key_or_value";
    return keep(p, &e);
}

bool tr_pmi_is_waiting(const struct pmi *p)
{
    return p->is_waiting;
}

void tr_pmi_take_new(struct pmi *p, struct tr_str *out)
{
    for (size_t i = p->n_shared; i < p->n_entries; i++)
        if (!p->entries[i].is_foreign)
            tr_str_addf(out, "key=%s value=%s\n", p->entries[i].key, p->entries[i].value);
    p->n_shared = p->n_entries;
    p->is_waiting = false;
}

void tr_pmi_merge(struct pmi *p, const char *text, size_t n)
{
    char line[LINE_MAX_BYTES];
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        struct pmi_entry e = { .is_foreign = true };
        if (len < sizeof line) {
            memcpy(line, text + at, len);
            line[len] = 0;
            if (field(line, "key", e.key, sizeof e.key) && field(line, "value", e.value, sizeof e.value))
                (void)keep(p, &e); /* what is known already came back to where it was put */
        }
        at += len + 1;
    }
}

static void put(struct pmi *p, struct pmi_client *c, const char *line)
{
    const char *why_not = add(p, line);
    reply(c, "cmd=put_result rc=%d msg=%s\n", why_not ? -1 : 0, why_not ? why_not : "success");
}

/* Which ranks share a node: (first node, how many, ranks on each), once for each run of nodes of one size. */
static void reply_mapping(const struct pmi *p, struct pmi_client *c)
{
    char text[VALUE_MAX_BYTES];
    size_t n = (size_t)snprintf(text, sizeof text, "(vector");
    for (int i = 0, end; i < p->n_nodes && n < sizeof text; i = end) {
        int size = p->n_nodes == 1 ? p->n_ranks : p->sizes[i];
        for (end = i + 1; end < p->n_nodes && p->sizes[end] == p->sizes[i];)
            end++;
        n += (size_t)snprintf(text + n, sizeof text - n, ",(%d,%d,%d)", i, end - i, size);
    }
    reply(c, "cmd=get_result rc=0 msg=success value=%s)\n", text);
}

static void get(struct pmi *p, struct pmi_client *c, const char *line)
{
    char key[KEY_MAX_BYTES + 1] = "";
    bool is_key = field(line, "key", key, sizeof key);
    const struct pmi_entry *e = is_key ? find(p, key) : NULL;
    if (e)
        reply(c, "cmd=get_result rc=0 msg=success value=%s\n", e->value);
    else if (is_key && strcmp(key, "PMI_process_mapping") == 0)
        reply_mapping(p, c);
    else
        reply(c, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
}

static void barrier(struct pmi *p, struct pmi_client *c)
{
    p->n_in_barrier += !c->is_in_barrier;
    c->is_in_barrier = true;
    if (p->n_in_barrier < p->n_ranks)
        return;
    if (p->n_nodes > 1)
        p->is_waiting = true;
    else
        tr_pmi_release(p);
}

void tr_pmi_release(struct pmi *p)
{
    p->n_in_barrier = 0;
    for (int i = 0; i < p->n_ranks; i++) {
        p->clients[i].is_in_barrier = false;
        reply(&p->clients[i], "cmd=barrier_out rc=0\n");
    }
}

static void obey(struct pmi *p, struct pmi_client *c, const char *line)
{
    char cmd[32], kvs[sizeof p->name];
    if (!field(line, "cmd", cmd, sizeof cmd)) {
        hang_up(c);
        return;
    }
    bool is_ours = field(line, "kvsname", kvs, sizeof kvs) && strcmp(kvs, p->name) == 0;
    if (strcmp(cmd, "init") == 0)
        reply(c, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    else if (strcmp(cmd, "get_maxes") == 0)
        reply(c, "cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d\n", (int)sizeof p->name, KEY_MAX_BYTES,
              VALUE_MAX_BYTES);
    else if (strcmp(cmd, "get_appnum") == 0)
        reply(c, "cmd=appnum appnum=0\n");
    else if (strcmp(cmd, "get_my_kvsname") == 0)
        reply(c, "cmd=my_kvsname kvsname=%s\n", p->name);
    else if (strcmp(cmd, "get_universe_size") == 0)
        reply(c, "cmd=universe_size size=%d\n", p->n_world);
    else if (strcmp(cmd, "put") == 0 && is_ours)
        put(p, c, line);
    else if (strcmp(cmd, "get") == 0 && is_ours)
        get(p, c, line);
    else if (strcmp(cmd, "barrier_in") == 0)
        barrier(p, c);
    else if (strcmp(cmd, "finalize") == 0)
        reply(c, "cmd=finalize_ack\n");
    else /* abort, spawn, other versions, the table of another job: not supported */
        hang_up(c);
}

/* Handles the whole lines that have arrived. */
static void take_lines(struct pmi *p, struct pmi_client *c)
{
    char line[LINE_MAX_BYTES];
    const char *end;
    while (c->fd >= 0 && (end = memchr(c->line, '\n', c->n_line)) != NULL) {
        size_t n = (size_t)(end - c->line);
        memcpy(line, c->line, n);
        line[n] = 0;
        c->n_line -= n + 1;
        memmove(c->line, end + 1, c->n_line);
        if (strlen(line) == n)
            obey(p, c, line);
        else /* there is a zero byte in the line */
            hang_up(c);
    }
}

void tr_pmi_serve(struct pmi *p, int rank)
{
    struct pmi_client *c = &p->clients[rank];
    for (int i = 0; i < READS && c->fd >= 0; i++) {
        ssize_t n = read(c->fd, c->line + c->n_line, sizeof c->line - 1 - c->n_line);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            hang_up(c);
            return;
        }
        c->n_line += (size_t)n;
        take_lines(p, c);
        if (c->n_line == sizeof c->line - 1) /* the line is too long */
            hang_up(c);
    }
}
