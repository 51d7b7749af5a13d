/* stopped.c - is a process of this host stopped by a signal, and for how long has a waiter seen it so? */
#include "comm/comm_impl.h"
#include <fcntl.h>
#include <unistd.h>

/* 'R', 'S', 'D', 'T' ... of a process, or '?'. */
static char state_of(int pid)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return '?';
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *p = strrchr(text, ')'); /* the name before it may hold anything */
    return p && p[1] == ' ' && p[2] ? p[2] : '?';
}

bool tr_is_stopped(int pid)
{
    return state_of(pid) == 'T'; /* not 't': a debugger's stop is nobody's failure */
}

bool tr_stopped_too_long(struct tr_stopped *s, int pid, int64_t now_us)
{
    int64_t passed_us = s->last_us ? tr_min64(now_us - s->last_us, TR_STOPPED_STEP_US) : 0;
    bool is_same = s->pid == pid;
    s->last_us = now_us;
    s->pid = pid;
    if (!is_same || !tr_is_stopped(pid))
        s->us = 0;
    else
        s->us += passed_us;
    return s->us >= TR_STOPPED_US;
}
