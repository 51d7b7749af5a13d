/* signals.c - what a training does when a signal arrives. Handlers only set variables and call async-signal-safe
 * functions. */
#include "train/signals.h"
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { N_FRAMES = 64 };

enum { LAST_WORDS_US = 300 * 1000 };

static volatile sig_atomic_t stop_signal, is_at_once, n_ctrl_c;
static const char *nothing_to_save = "stopped by a signal before the first step; nothing to save";
static int64_t grace_us, deadline_us; /* 0: none; the handler writes deadline_us, once */
static timer_t deadline;
static bool has_timer;
static char stack_output[TR_PATH_MAX], stack_name[48];

static void write_error(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* standard error is closed */
}

/* Before the first step there is nothing to save. Later, steps since the last checkpoint are lost. The next start
 * removes a save in flight, and earlier saves are complete. */
static TR_NORETURN void end_at_once(const char *why)
{
    write_error("trireme: ");
    write_error(is_at_once ? nothing_to_save : why);
    write_error("\n");
    _exit(is_at_once ? TR_EXIT_RETRY : TR_EXIT_UNSAVED);
}

static void set_deadline(int64_t us)
{
    struct itimerspec at = { .it_value = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 } };
    if (us == 0 || deadline_us || !has_timer)
        return;
    deadline_us = tr_clock_us() + us;
    timer_settime(deadline, 0, &at, NULL);
}

/* A stop request is idempotent: the scheduler, the launcher and a person may all send one, and only the first counts.
 * What ends the process at once is the deadline, which our timer alone reports, and the second Ctrl-C at a terminal,
 * which the kernel sends (kill has another code). SIGINT comes from a person and sets no deadline. */
static void on_stop(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (sig == SIGALRM) {
        if (info->si_code == SI_TIMER)
            end_at_once("preempt_grace is over; ended at once without a save, continue with --resume");
        return;
    }
    n_ctrl_c += sig == SIGINT && info->si_code == SI_KERNEL;
    if (n_ctrl_c > 1)
        end_at_once("Ctrl-C twice; ended at once without a save, continue with --resume");
    stop_signal = stop_signal ? stop_signal : sig;
    set_deadline(is_at_once ? LAST_WORDS_US : sig == SIGINT ? 0 : grace_us);
}

void tr_stop_on_signals(double grace_s)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGALRM };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
    has_timer = has_timer || timer_create(CLOCK_MONOTONIC, &event, &deadline) == 0;
    grace_us = (int64_t)(grace_s * 1e6);
    struct sigaction sa = { .sa_sigaction = on_stop, .sa_flags = SA_SIGINFO };
    for (size_t i = 0; i < TR_COUNT_OF(signals); i++)
        sigaction(signals[i], &sa, NULL);
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigaction(SIGPIPE, &ignore, NULL); /* a closed terminal must not stop a training */
}

void tr_stop_at_once(bool is_on)
{
    if (!is_on && stop_signal) /* its deadline is a moment away, and a step that begins now would be lost */
        end_at_once("");
    is_at_once = is_on;
}

void tr_stop_soon_on_signals(void)
{
    nothing_to_save = "stopped by a signal";
    tr_stop_at_once(true);
    tr_stop_on_signals(0);
}

void tr_stop_is_settled(void)
{
    struct itimerspec never = { 0 };
    if (has_timer)
        timer_settime(deadline, 0, &never, NULL);
}

bool tr_stop_wanted(void)
{
    return stop_signal != 0;
}

int64_t tr_stop_left_us(void)
{
    return stop_signal && deadline_us ? deadline_us - tr_clock_us() : INT64_MAX;
}

/* Writes the stack of this thread. The launcher sends the signal before it ends a rank that hangs; a user may send it
 * with kill -USR2. */
static void on_stack(int sig)
{
    void *frames[N_FRAMES];
    (void)sig;
    int fd = tr_out_signal_open(stack_output, stack_name);
    if (fd < 0)
        return;
    backtrace_symbols_fd(frames, backtrace(frames, N_FRAMES), fd);
    close(fd);
}

void tr_stack_on_signal(const char *output, int rank)
{
    void *frame[1];
    (void)snprintf(stack_name, sizeof stack_name, TR_NAME_ERRORS "/" TR_NAME_OF_RANK ".stack", rank);
    if (tr_format(stack_output, sizeof stack_output, "%s", output) != TR_OK) {
        tr_error_clear();
        return;
    }
    (void)backtrace(frame, 1); /* loads its library now, not in the handler */
    struct sigaction sa = { .sa_handler = on_stack, .sa_flags = SA_RESTART };
    sigaction(SIGUSR2, &sa, NULL);
}
