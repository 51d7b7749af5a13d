/* signals.c - what a training does when a signal comes. Handlers only set words and call what may be called there. */
#include "train/signals.h"
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_FRAMES = 64 };

static volatile sig_atomic_t stop_signal;
static char stack_dir[TR_PATH_MAX], stack_path[TR_PATH_MAX];

static void on_stop(int sig)
{
    stop_signal = sig;
}

void tr_stop_on_signals(void)
{
    struct sigaction sa = { .sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND };
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigaction(SIGPIPE, &ignore, NULL); /* a closed terminal never stops a training */
}

bool tr_stop_wanted(void)
{
    return stop_signal != 0;
}

/* Where this thread is. The launcher asks before it ends a rank that hangs; anybody else may ask with kill -USR2. */
static void on_stack(int sig)
{
    void *frames[N_FRAMES];
    (void)sig;
    (void)mkdir(stack_dir, 0755);
    int fd = open(stack_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return;
    backtrace_symbols_fd(frames, backtrace(frames, N_FRAMES), fd);
    close(fd);
}

void tr_stack_on_signal(const char *output, int rank)
{
    void *frame[1];
    char name[40];
    (void)snprintf(name, sizeof name, "errors/rank-%04d.stack", rank);
    if (tr_path_join(stack_path, output, name) != TR_OK || tr_path_join(stack_dir, output, "errors") != TR_OK) {
        tr_error_clear();
        return;
    }
    (void)backtrace(frame, 1); /* loads what it needs now, not in the handler */
    struct sigaction sa = { .sa_handler = on_stack, .sa_flags = SA_RESTART };
    sigaction(SIGUSR2, &sa, NULL);
}
