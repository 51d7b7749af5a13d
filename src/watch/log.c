/* log.c - the ends of a run's logs. A request names a file by its number in the list, which is made of the names in two
 * folders, logs first; links and what is no regular file are left out. */
#include "watch/watch_impl.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOGS_MAX = 256, TAIL_BYTES = 32 << 10, NAME_BYTES = 300 };
static const char *const folders[] = { TR_NAME_LOGS, TR_NAME_ERRORS };

struct log_names {
    char (*name)[NAME_BYTES];
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void list(const char *dir, const char *folder, struct log_names *to)
{
    char path[TR_PATH_MAX];
    size_t first = to->n;
    DIR *d = tr_path_join(path, dir, folder) == TR_OK ? opendir(path) : NULL;
    const struct dirent *e;
    while (d && to->n < LOGS_MAX && (e = readdir(d)) != NULL)
        if (e->d_name[0] != '.' && e->d_type == DT_REG)
            (void)snprintf(to->name[to->n++], NAME_BYTES, "%s/%s", folder, e->d_name);
    if (d)
        closedir(d);
    qsort(to->name + first, to->n - first, NAME_BYTES, by_name);
}

/* The last bytes of a file, from the beginning of a line; "": it cannot be read. */
static size_t read_tail(const char *dir, const char *name, char *buf, size_t cap)
{
    char path[TR_PATH_MAX];
    struct stat info;
    ssize_t n = 0;
    int fd = tr_path_join(path, dir, name) == TR_OK ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        n = pread(fd, buf, cap, info.st_size > (off_t)cap ? info.st_size - (off_t)cap : 0);
    if (fd >= 0)
        close(fd);
    size_t n_read = n > 0 ? (size_t)n : 0;
    char *line = n_read == cap ? memchr(buf, '\n', n_read) : NULL;
    if (line) {
        n_read -= (size_t)(line + 1 - buf);
        memmove(buf, line + 1, n_read);
    }
    for (size_t i = 0; i < n_read; i++)
        buf[i] = buf[i] ? buf[i] : ' ';
    buf[n_read] = '\0';
    return n_read;
}

/* The names of all logs in order; false: no memory. The caller frees to->name. */
static bool list_all(const struct tr_watch_run *w, struct log_names *to)
{
    *to = (struct log_names){ calloc(LOGS_MAX, NAME_BYTES), 0 };
    if (!to->name)
        return false;
    for (size_t i = 0; i < TR_COUNT_OF(folders); i++)
        list(w->dir, folders[i], to);
    return true;
}

void tr_log_json(const struct tr_watch_run *w, int64_t which, struct tr_str *out)
{
    struct log_names all;
    char *text = calloc(1, TAIL_BYTES + 1);
    bool is_listed = list_all(w, &all);
    tr_str_addf(out, "{\"files\":[");
    for (size_t i = 0; i < all.n; i++) {
        tr_str_addf(out, "%s", i ? "," : "");
        tr_str_json(out, all.name[i]);
    }
    if (is_listed && text && which < (int64_t)all.n)
        (void)read_tail(w->dir, all.name[which], text, TAIL_BYTES);
    tr_str_addf(out, "],\"which\":%" PRId64 ",\"text\":", which);
    tr_str_json(out, text ? text : "");
    tr_str_addf(out, "}");
    free(all.name);
    free(text);
}

size_t tr_log_tail(const struct tr_watch_run *w, int rank, char *buf, size_t cap)
{
    char name[64];
    (void)snprintf(name, sizeof name, TR_NAME_LOGS "/" TR_NAME_OF_RANK ".log", rank);
    return read_tail(w->dir, name, buf, cap - 1);
}
