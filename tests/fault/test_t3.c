/* test_t3.c - T3, crash states: the file calls of three saves are recorded, a crash is put behind every one of them,
 * and what a disk may have forgotten (bytes that were not synced: lost, zeroed, some blocks only, late ones only; names
 * that were not synced: lost, some only) is laid out in a real directory for the real loader. Expected: every directory
 * with the name of a checkpoint is whole, the newest is at least the one whose commit had returned, and `latest` names
 * one that is there. Then every fsync and rename is left out in turn, and the campaign must turn red each time. usage:
 * fault_t3 [STATES [SEED]]; 50000 for a campaign.
 *
 * This program's own open, write, fsync ... stand before libc's: what is recorded is what the shipped code calls. */
#include "fault/save_rig.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>

enum { MAX_OPS = 4096, MAX_NODES = 512, MAX_NAMES = 512, MAX_FDS = 1024, BLOCK = 512 };
enum op_kind { CREATE, MAKE_DIR, WRITE, SYNC, RENAME, EXCHANGE, REMOVE, COMMITTED, BEGUN };

struct op {
    enum op_kind kind;
    int node;                     /* CREATE, MAKE_DIR, WRITE, SYNC: file or directory */
    int dir, to_dir;              /* whose names change */
    char name[128], to_name[128]; /* in dir, in to_dir */
    size_t at, n;                 /* WRITE */
    char *bytes;
    int64_t generation, step; /* COMMITTED, BEGUN */
};

static struct {
    struct op op[MAX_OPS];
    int n;
    bool is_on;
    int node_of_fd[MAX_FDS];
    size_t at_of_fd[MAX_FDS];
    char path[MAX_NODES][256]; /* where a node is now, below the root; "" = root or gone */
    bool is_dir[MAX_NODES], is_gone[MAX_NODES];
    int n_nodes;
    char root[TR_PATH_MAX];
    struct op begun;
    pthread_mutex_t lock;
} rec = { .lock = PTHREAD_MUTEX_INITIALIZER };

static TR_PRINTF(2, 3) void put_path(char out[TR_PATH_MAX], const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(out, TR_PATH_MAX, format, ap);
    va_end(ap);
    MUST(n >= 0 && n < TR_PATH_MAX);
}

/* ---- the recorder ---- */

static const char *below_root(const char *path)
{
    size_t n = strlen(rec.root);
    return rec.is_on && strncmp(path, rec.root, n) == 0 && (path[n] == '/' || !path[n]) ? path + n + (path[n] == '/')
                                                                                        : NULL;
}

static int node_at(const char *rel)
{
    for (int i = 0; i < rec.n_nodes; i++)
        if (!rec.is_gone[i] && strcmp(rec.path[i], rel) == 0)
            return i;
    return -1;
}

/* Directory and last part of a path below the root. */
static int split(const char *rel, char *name)
{
    char dir[TR_PATH_MAX];
    const char *slash = strrchr(rel, '/');
    put_path(dir, "%.*s", slash ? (int)(slash - rel) : 0, rel);
    snprintf(name, 128, "%s", slash ? slash + 1 : rel);
    int d = node_at(dir);
    MUST(d >= 0);
    return d;
}

static struct op *record(enum op_kind kind)
{
    MUST(rec.n < MAX_OPS);
    struct op *o = &rec.op[rec.n++];
    memset(o, 0, sizeof *o);
    o->kind = kind;
    return o;
}

static int new_node(const char *rel, bool is_dir)
{
    MUST(rec.n_nodes < MAX_NODES);
    snprintf(rec.path[rec.n_nodes], sizeof rec.path[0], "%s", rel);
    rec.is_dir[rec.n_nodes] = is_dir;
    return rec.n_nodes++;
}

static void on_create(const char *rel, bool is_dir)
{
    struct op *o = record(is_dir ? MAKE_DIR : CREATE);
    o->dir = split(rel, o->name);
    o->node = new_node(rel, is_dir);
}

static void on_open(const char *path, int fd, bool is_new)
{
    const char *rel = below_root(path);
    if (!rel || fd < 0 || fd >= MAX_FDS)
        return;
    pthread_mutex_lock(&rec.lock);
    if (is_new && node_at(rel) < 0)
        on_create(rel, false);
    rec.node_of_fd[fd] = node_at(rel);
    rec.at_of_fd[fd] = 0;
    pthread_mutex_unlock(&rec.lock);
}

static void on_remove(const char *rel)
{
    int node = node_at(rel);
    struct op *o = record(REMOVE);
    o->dir = split(rel, o->name);
    o->node = node;
    if (node >= 0)
        rec.is_gone[node] = true;
}

/* A directory's new name moves what is below it. */
static void move_paths(const char *from, const char *to)
{
    size_t n = strlen(from);
    for (int i = 0; i < rec.n_nodes; i++)
        if (!rec.is_gone[i] && strncmp(rec.path[i], from, n) == 0 && (!rec.path[i][n] || rec.path[i][n] == '/')) {
            char was[256];
            snprintf(was, sizeof was, "%s", rec.path[i] + n);
            snprintf(rec.path[i], sizeof rec.path[0], "%s%s", to, was);
        }
}

static void on_rename(const char *from, const char *to, bool is_exchange)
{
    const char *a = below_root(from), *b = below_root(to);
    if (!a || !b)
        return;
    pthread_mutex_lock(&rec.lock);
    struct op *o = record(is_exchange ? EXCHANGE : RENAME);
    o->dir = split(a, o->name);
    o->to_dir = split(b, o->to_name);
    int target = node_at(b);
    if (target >= 0 && !is_exchange)
        rec.is_gone[target] = true;
    if (is_exchange)
        move_paths(b, "\001");
    move_paths(a, b);
    if (is_exchange)
        move_paths("\001", a);
    pthread_mutex_unlock(&rec.lock);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    on_open(path, fd, (flags & O_CREAT) != 0);
    return fd;
}

int close(int fd)
{
    if (fd >= 0 && fd < MAX_FDS)
        rec.node_of_fd[fd] = -1;
    return (int)syscall(SYS_close, fd);
}

ssize_t write(int fd, const void *p, size_t n)
{
    ssize_t put = syscall(SYS_write, fd, p, n);
    if (rec.is_on && put > 0 && fd < MAX_FDS && rec.node_of_fd[fd] >= 0) {
        pthread_mutex_lock(&rec.lock);
        struct op *o = record(WRITE);
        o->node = rec.node_of_fd[fd];
        o->at = rec.at_of_fd[fd];
        o->n = (size_t)put;
        o->bytes = malloc((size_t)put);
        MUST(o->bytes);
        memcpy(o->bytes, p, (size_t)put);
        rec.at_of_fd[fd] += (size_t)put;
        pthread_mutex_unlock(&rec.lock);
    }
    return put;
}

int fsync(int fd)
{
    if (rec.is_on && fd < MAX_FDS && rec.node_of_fd[fd] >= 0) {
        pthread_mutex_lock(&rec.lock);
        record(SYNC)->node = rec.node_of_fd[fd];
        if (rec.n > 1 && strcmp(rec.op[rec.n - 2].to_name, "latest") == 0) { /* the last call of a commit */
            struct op *o = record(COMMITTED);
            o->step = rec.begun.step;
            o->generation = rec.begun.generation;
        }
        pthread_mutex_unlock(&rec.lock);
    }
    return 0; /* the disk that matters here is the model's */
}

/* The path of a name in a directory that is open; "" when the directory is not the recorder's. */
static void path_at(int dir_fd, const char *name, char out[TR_PATH_MAX])
{
    int node = dir_fd >= 0 && dir_fd < MAX_FDS ? rec.node_of_fd[dir_fd] : -1;
    if (dir_fd == AT_FDCWD)
        put_path(out, "%s", name);
    else if (node >= 0)
        put_path(out, "%s/%s%s%s", rec.root, rec.path[node], rec.path[node][0] ? "/" : "", name);
    else
        out[0] = 0;
}

int mkdirat(int dir_fd, const char *name, mode_t mode)
{
    char path[TR_PATH_MAX];
    int rc = (int)syscall(SYS_mkdirat, dir_fd, name, mode);
    path_at(dir_fd, name, path);
    const char *rel = rc == 0 ? below_root(path) : NULL;
    if (rel) {
        pthread_mutex_lock(&rec.lock);
        on_create(rel, true);
        pthread_mutex_unlock(&rec.lock);
    }
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    char from_path[TR_PATH_MAX], to_path[TR_PATH_MAX];
    int rc = (int)syscall(SYS_renameat2, a, from, b, to, flags);
    path_at(a, from, from_path);
    path_at(b, to, to_path);
    if (rc == 0)
        on_rename(from_path, to_path, (flags & RENAME_EXCHANGE) != 0);
    return rc;
}

int renameat(int a, const char *from, int b, const char *to)
{
    return renameat2(a, from, b, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int dir_fd, const char *name, int flags)
{
    char path[TR_PATH_MAX];
    int rc = (int)syscall(SYS_unlinkat, dir_fd, name, flags);
    int err = errno;
    if (rc == 0 && rec.is_on) {
        pthread_mutex_lock(&rec.lock);
        path_at(dir_fd, name, path);
        const char *rel = below_root(path);
        if (rel && node_at(rel) >= 0)
            on_remove(rel);
        pthread_mutex_unlock(&rec.lock);
    }
    errno = err;
    return rc;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int openat(int dir_fd, const char *name, int flags, ...)
{
    va_list ap;
    char path[TR_PATH_MAX];
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    int fd = (int)syscall(SYS_openat, dir_fd, name, flags, mode);
    path_at(dir_fd, name, path);
    on_open(path, fd, (flags & O_CREAT) != 0);
    return fd;
}

/* ---- a disk after a crash ---- */

/* What of the bytes, and what of the names, that were not synced is still there. */
enum bytes { BYTES_ALL, BYTES_NONE, BYTES_ZERO, BYTES_SOME, BYTES_LATE, BYTES_KINDS };
enum names { NAMES_ALL, NAMES_NONE, NAMES_FIRST, NAMES_SOME, NAMES_KINDS };

struct entry {
    int dir, node;
    char name[128];
};
static struct {
    struct entry entry[MAX_NAMES];
    int n;
    char *bytes[MAX_NODES];
    size_t size[MAX_NODES];
} disk;

static struct entry *find(int dir, const char *name)
{
    for (int i = 0; i < disk.n; i++)
        if (disk.entry[i].dir == dir && strcmp(disk.entry[i].name, name) == 0)
            return &disk.entry[i];
    return NULL;
}

static void drop(struct entry *e)
{
    if (e)
        *e = disk.entry[--disk.n];
}

static void link_node(int dir, const char *name, int node)
{
    drop(find(dir, name));
    MUST(disk.n < MAX_NAMES);
    struct entry *e = &disk.entry[disk.n++];
    e->dir = dir;
    e->node = node;
    snprintf(e->name, sizeof e->name, "%s", name);
}

static void apply_names(const struct op *o)
{
    struct entry *a = find(o->dir, o->name), *b;
    switch (o->kind) {
    case CREATE:
    case MAKE_DIR:
        link_node(o->dir, o->name, o->node);
        break;
    case REMOVE:
        drop(a);
        break;
    case RENAME:
        if (a) {
            int node = a->node;
            drop(a);
            link_node(o->to_dir, o->to_name, node);
        }
        break;
    case EXCHANGE:
        b = find(o->to_dir, o->to_name);
        if (a && b) {
            int node = a->node;
            a->node = b->node;
            b->node = node;
        }
        break;
    default:
        break;
    }
}

static void apply_bytes(const struct op *o, enum bytes how, uint64_t *seed)
{
    size_t end = o->at + o->n;
    char **p = &disk.bytes[o->node];
    if (how == BYTES_NONE)
        return;
    if (end > disk.size[o->node]) {
        *p = realloc(*p, end);
        MUST(*p);
        memset(*p + disk.size[o->node], 0, end - disk.size[o->node]);
        disk.size[o->node] = end;
    }
    for (size_t at = 0; at < o->n && how != BYTES_ZERO; at += BLOCK) {
        size_t n = o->n - at < BLOCK ? o->n - at : BLOCK;
        if (how == BYTES_ALL || rig_random(seed) % 2)
            memcpy(*p + o->at + at, o->bytes + at, n);
    }
}

static bool is_name_op(const struct op *o)
{
    return o->kind == CREATE || o->kind == MAKE_DIR || o->kind == REMOVE || o->kind == RENAME || o->kind == EXCHANGE;
}

/* Is a change durable at the crash: was its file or directory synced after it? left_out: a call that never was. */
static bool is_synced(int i, int n_ops, int left_out)
{
    const struct op *o = &rec.op[i];
    for (int k = i + 1; k < n_ops; k++)
        if (k != left_out && rec.op[k].kind == SYNC &&
            rec.op[k].node == (o->kind == WRITE                           ? o->node
                               : o->kind == RENAME || o->kind == EXCHANGE ? o->to_dir
                                                                          : o->dir))
            return true;
    return false;
}

static void crash(int n_ops, int left_out, enum bytes bytes, enum names names, uint64_t *seed)
{
    int n_loose = 0, n_seen = 0;
    disk.n = 0;
    for (int i = 0; i < MAX_NODES; i++)
        disk.size[i] = 0;
    for (int i = 0; i < n_ops; i++)
        n_loose += i != left_out && is_name_op(&rec.op[i]) && !is_synced(i, n_ops, left_out);
    int n_first = n_loose ? (int)(rig_random(seed) % (uint64_t)(n_loose + 1)) : 0;
    for (int i = 0; i < n_ops; i++) {
        const struct op *o = &rec.op[i];
        if (i == left_out || (o->kind != WRITE && !is_name_op(o)))
            continue;
        bool safe = is_synced(i, n_ops, left_out);
        if (o->kind == WRITE) {
            enum bytes how = safe ? BYTES_ALL : bytes;
            if (how == BYTES_LATE) /* reordered: the last ones got there, earlier ones did not */
                how = i >= n_ops - 2 ? BYTES_ALL : BYTES_ZERO;
            apply_bytes(o, how, seed);
            continue;
        }
        bool keeps = safe || names == NAMES_ALL || (names == NAMES_FIRST && n_seen < n_first) ||
                     (names == NAMES_SOME && rig_random(seed) % 2);
        n_seen += !safe;
        if (keeps)
            apply_names(o);
    }
}

/* The model's disk as real files below dir. */
static void lay_out(int node, const char *dir)
{
    MUST(mkdir(dir, 0777) == 0);
    for (int i = 0; i < disk.n; i++) {
        const struct entry *e = &disk.entry[i];
        char path[TR_PATH_MAX];
        if (e->dir != node)
            continue;
        put_path(path, "%s/%s", dir, e->name);
        if (rec.is_dir[e->node]) {
            lay_out(e->node, path);
            continue;
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
        MUST(fd >= 0 && tr_write_all(fd, path, disk.bytes[e->node], disk.size[e->node]) == TR_OK);
        close(fd);
    }
}

/* ---- what must hold ---- */

static bool is_bad(const char *out, int64_t committed, int64_t begun, int64_t generation)
{
    struct tr_ckpt_info info;
    bool is_found = false;
    char path[TR_PATH_MAX], *pointer = NULL;
    size_t n = 0;
    for (int64_t step = 1; step <= begun; step++) { /* a name is a promise */
        put_path(path, "%s/checkpoint-%d", out, (int)step);
        if (tr_dir_exists(path) && tr_ckpt_verify(path, "run", NULL) != TR_OK)
            return true;
    }
    if (tr_ckpt_scan(out, "run", &is_found, &info, NULL) != TR_OK || (!is_found && committed > 0))
        return true;
    if (is_found && (info.step < committed || info.step > begun))
        return true;
    if (is_found && info.step == committed && info.generation < generation)
        return true;
    put_path(path, "%s/latest", out);
    if (tr_file_read(path, 64, &pointer, &n) != TR_OK) {
        tr_error_clear();
        return committed > 0;
    }
    pointer[strcspn(pointer, "\n")] = 0;
    put_path(path, "%s/%s", out, pointer);
    int64_t at = -1;
    bool is_torn = strncmp(pointer, "checkpoint-", 11) != 0 || tr_parse_int(pointer + 11, 0, INT64_MAX, &at) != TR_OK ||
                   at < committed || !tr_dir_exists(path) || tr_ckpt_verify(path, "run", NULL) != TR_OK;
    free(pointer);
    return is_torn;
}

static bool try_state(const char *dir, int n_ops, int left_out, enum bytes b, enum names m, uint64_t *seed)
{
    char out[TR_PATH_MAX];
    int64_t committed = 0, begun = 0, generation = 0;
    for (int i = 0; i < n_ops; i++) {
        committed = rec.op[i].kind == COMMITTED ? rec.op[i].step : committed;
        generation = rec.op[i].kind == COMMITTED ? rec.op[i].generation : generation;
        begun = rec.op[i].kind == BEGUN ? rec.op[i].step : begun;
    }
    crash(n_ops, left_out, b, m, seed);
    lay_out(0, dir);
    put_path(out, "%s/out", dir);
    bool bad = is_bad(out, committed, begun, generation);
    MUST(tr_remove_tree(dir) == TR_OK);
    return bad;
}

static int64_t explore(const char *dir, int64_t n, int left_out, bool stops, uint64_t seed, int64_t *n_bad)
{
    int64_t done = 0;
    int first = left_out < 0 ? 1 : left_out + 1, last = left_out < 0 ? rec.n : (int)tr_min64(rec.n, left_out + 70);
    *n_bad = 0;
    for (int round = 0; done < n; round++)
        for (int k = first; k <= last && done < n; k++)
            for (int b = 0; b < BYTES_KINDS && done < n; b++)
                for (int m = 0; m < NAMES_KINDS && done < n; m++) {
                    if (round > 0 && b != BYTES_SOME && m != NAMES_FIRST && m != NAMES_SOME)
                        continue; /* nothing of chance in it: seen in the first round */
                    *n_bad += try_state(dir, k, left_out, (enum bytes)b, (enum names)m, &seed);
                    done++;
                    if (*n_bad && stops)
                        return done;
                }
    return done;
}

static void record_saves(struct save_rig *r)
{
    snprintf(rec.root, sizeof rec.root, "%s", r->dir);
    memset(rec.node_of_fd, -1, sizeof rec.node_of_fd);
    (void)new_node("", true);
    rec.is_on = true;
    for (int64_t step = 1; step <= 4; step++) { /* the third save removes the first; the last replaces the third */
        int64_t of = step == 4 ? 3 : step;
        struct op *o = record(BEGUN);
        o->step = of;
        o->generation = r->generation = step == 4;
        rec.begun = *o;
        MUST(rig_save(r, of, 2) == TR_OK);
    }
    rec.is_on = false;
}

/* Each fsync and each rename left out in turn. */
static int leave_out_each(const char *dir, uint64_t seed, int *n_calls)
{
    int n_green = 0;
    bool is_again = false; /* a step is saved again: its pointer says what it said, and one sync covers for another */
    *n_calls = 0;
    for (int i = 0; i < rec.n; i++) {
        const struct op *o = &rec.op[i];
        is_again = is_again || (o->kind == BEGUN && o->generation > 0);
        if (o->kind != EXCHANGE && (is_again || (o->kind != SYNC && o->kind != RENAME)))
            continue;
        int64_t n_bad = 0;
        (void)explore(dir, 10000, i, true, seed, &n_bad);
        ++*n_calls;
        if (n_bad == 0) {
            printf("T3: without call %d (%s %s %s%s%s) nothing is lost\n", i, o->kind == SYNC ? "fsync" : "rename",
                   o->kind == SYNC ? rec.path[o->node] : o->name, o->to_name, o->kind == SYNC ? " at " : "",
                   o->kind == SYNC && rec.is_dir[o->node] ? "a directory" : "");
            n_green++;
        }
    }
    return n_green;
}

int main(int argc, char **argv)
{
    static struct save_rig r;
    int64_t n = rig_argument(argc, argv, 1, 1500), seed = rig_argument(argc, argv, 2, 1), n_bad = 0;
    int n_calls = 0, n_green = 0;
    char dir[TR_PATH_MAX];
    rig_open(&r);
    put_path(dir, "%s-disk", r.dir);
    record_saves(&r);
    int64_t done = explore(dir, n, -1, false, (uint64_t)seed, &n_bad);
    n_green = leave_out_each(dir, (uint64_t)seed, &n_calls);
    printf("T3 seed %d: %d file calls recorded, %d crash states, %d unrecoverable; %d fsyncs and renames left out in "
           "turn, %d "
           "unnoticed\n",
           (int)seed, rec.n, (int)done, (int)n_bad, n_calls, n_green);
    for (int i = 0; i < rec.n; i++)
        free(rec.op[i].bytes);
    for (int i = 0; i < MAX_NODES; i++)
        free(disk.bytes[i]);
    rig_close(&r);
    return n_bad == 0 && n_green == 0 ? 0 : 1;
}
