/* main.c - the command table. Exit codes: base/run.h. */
#include "base/show.h"
#include "cli/cli.h"
#include "launch/launch.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

extern char **environ;

typedef enum tr_status command(const struct tr_config *cfg);

static command *const commands[TR_VERB_COUNT] = {
    [TR_VERB_CHAT] = cmd_chat,     [TR_VERB_INIT] = cmd_init,       [TR_VERB_TRAIN] = cmd_train,
    [TR_VERB_PLAN] = cmd_plan,     [TR_VERB_EVAL] = cmd_eval,       [TR_VERB_DATA] = cmd_data,
    [TR_VERB_CKPT] = cmd_ckpt,     [TR_VERB_CONFIG] = cmd_config,   [TR_VERB_GENERATE] = cmd_generate,
    [TR_VERB_CHECK] = cmd_check,   [TR_VERB_BENCH] = cmd_bench,     [TR_VERB_WATCH] = cmd_watch,
    [TR_VERB_CTL] = cmd_ctl,       [TR_VERB_DOCTOR] = cmd_doctor,   [TR_VERB_RUNS] = cmd_runs,
    [TR_VERB_REPLAY] = cmd_replay, [TR_VERB_EXPLAIN] = cmd_explain,
};

static void write_shown(FILE *to, const char *text, size_t n)
{
    char buf[512];
    for (size_t used = 0; n > 0; text += used, n -= used)
        fwrite(buf, 1, tr_show(text, n, buf, sizeof buf, &used), to);
    fflush(to);
}

void cli_print_foreign(const char *text, size_t n)
{
    if (isatty(STDOUT_FILENO) || getenv("TR_LIVE_COLUMNS")) { /* our launcher copies the bytes to a terminal */
        write_shown(stdout, text, n);
        return;
    }
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

void cli_print(const char *text)
{
    cli_print_foreign(text, strlen(text));
}

void cli_printf(const char *fmt, ...)
{
    char text[TR_PATH_MAX + 512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    cli_print(n >= 0 ? text : "");
}

void cli_warn(const char *text)
{
    write_shown(stderr, text, strlen(text));
}

void cli_show_path(const struct tr_config *cfg, const char *path)
{
    if (cfg->json)
        cli_print_path(path);
    else
        cli_printf("%s\n", path);
}

enum tr_status cli_need_output(const struct tr_config *cfg)
{
    return cfg->output ? TR_OK : tr_fail(TR_USAGE, "--output DIR is required: the directory to write to");
}

void cli_print_path(const char *path)
{
    struct tr_str line = { 0 };
    tr_str_member(&line, "{\"path\": ", path);
    tr_str_addf(&line, "}\n");
    cli_print(tr_str_ok(&line) ? line.p : "");
    tr_str_release(&line);
}

static int usage(FILE *to)
{
    fprintf(to, "trireme trains transformer language models: HF directory in, HF directory out.\n\nusage: trireme VERB "
                "[options]\n\n");
    for (int v = 0; v < TR_VERB_COUNT; v++)
        if (commands[v])
            fprintf(to, "  %-9s %s\n", tr_verb_word((enum tr_verb)v), tr_verb_what((enum tr_verb)v));
    fprintf(to, "\n  trireme VERB --help lists the options of a verb.\n\n"
                "  trireme init  --config config.json --seed 1 --out model/\n"
                "  trireme train --model model/ --data train.jsonl --output out/\n"
                "  trireme plan  --model model/ --sequence_length 1024\n"
                "  trireme eval  --model out/ --data valid.jsonl --json\n"
                "\n  trireme launch [flags] VERB [options] starts several ranks of a verb; trireme launch --help.\n");
    return to == stdout ? 0 : 2;
}

static int exit_code(enum tr_status st)
{
    switch (st) {
    case TR_OK:
        return TR_EXIT_DONE;
    case TR_USAGE:
        return TR_EXIT_USAGE;
    case TR_STOPPED:
    case TR_PEER:
    case TR_TIMEOUT:
        return TR_EXIT_RETRY;
    case TR_UNSAVED:
        return TR_EXIT_UNSAVED;
    case TR_ENDED:
    case TR_NUMBERS:
        return TR_EXIT_STOP;
    case TR_NO:
        return TR_EXIT_NO;
    default:
        return TR_EXIT_BUG;
    }
}

static int report(enum tr_status st)
{
    char shown[32 << 10]; /* names and contents of files are in the text: a terminal must not obey them */
    if (st != TR_OK && st != TR_NO)
        fprintf(stderr, "trireme: %s\n", tr_escape_lines(tr_error_text(), shown, sizeof shown));
    return exit_code(st);
}

enum tr_status cli_fail_stdout(void)
{
    return tr_fail(TR_IO, "standard output did not take all that was printed: the disk is full, or a limit is reached");
}

/* Did standard output take all that a verb printed? A reader that has gone has read what it wanted. */
static enum tr_status check_stdout(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    if (fflush(stdout) == 0 && !ferror(stdout))
        return TR_OK;
    if (poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)))
        return TR_OK;
    return cli_fail_stdout();
}

static int run(enum tr_verb verb, int argc, char **argv)
{
    const struct tr_config *cfg = NULL;
    enum tr_status st = tr_config_load(verb, argc, argv, environ, &cfg);
    if (st == TR_OK && cfg->help) {
        struct tr_str text = { 0 };
        tr_config_help(verb, &text);
        cli_print(tr_str_ok(&text) ? text.p : "");
        tr_str_release(&text);
    } else if (st == TR_OK) {
        cli_warn(tr_config_notices(cfg));
        st = commands[verb](cfg);
    }
    if ((st == TR_OK || st == TR_NO) && verb != TR_VERB_TRAIN && check_stdout() != TR_OK) /* a training goes on (I8) */
        st = TR_IO;
    int code = report(st);
    tr_config_close(cfg);
    return code;
}

/* Failpoints may name a rank; the environment says which rank this process is. */
static int world_rank(void)
{
    const char *text = getenv("RANK");
    int64_t rank = 0;
    return text && tr_parse_int(text, 0, INT_MAX, &rank) == TR_OK ? (int)rank : 0;
}

static int launch(int argc, char **argv)
{
    int code = 0;
    enum tr_status st = tr_failpoint_setup(NULL, -1); /* an agent is no rank */
    if (st == TR_OK)
        st = cmd_launch(argc, argv, environ, &code);
    return st != TR_OK ? report(st) : code;
}

/* Signals that this program gives no meaning to do nothing; most of them would end it. SIGXFSZ is among them because a
 * file that may not grow is an error of that write, as a full disk is (I4). SIGUSR1 is not: it is a stop signal, and
 * one that comes before a verb has its handler must end the program, not get lost. A handler that a profiler or a
 * library has installed stays. */
static void ignore_unused_signals(void)
{
    static const int unused[] = { SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGXCPU, SIGXFSZ, SIGSTKFLT };
    struct sigaction ignore = { .sa_handler = SIG_IGN }, old;
    for (int i = 0; i < (int)TR_COUNT_OF(unused) + SIGRTMAX - SIGRTMIN + 1; i++) {
        int sig = i < (int)TR_COUNT_OF(unused) ? unused[i] : SIGRTMIN + i - (int)TR_COUNT_OF(unused);
        if (sigaction(sig, NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL)
            sigaction(sig, &ignore, NULL);
    }
}

/* A standard descriptor that the caller has closed must not become a file of ours: what is printed would go into it. */
static void open_standard_fds(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    enum tr_verb verb;
    open_standard_fds();
    ignore_unused_signals();
    bool asks = argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"));
    if (asks && argc > 2) { /* help VERB is VERB --help */
        static char flag[] = "--help";
        argv[1] = argv[2];
        argv[2] = flag;
        argc = 3;
    } else if (argc < 2 || asks) {
        return usage(argc < 2 ? stderr : stdout);
    }
    if (strcmp(argv[1], "--version") == 0) {
        cli_version();
        return 0;
    }
    if (strcmp(argv[1], "launch") == 0)
        return launch(argc - 2, argv + 2);
    if (!tr_verb_parse(argv[1], &verb) || !commands[verb]) {
        const char *near = cli_verb_hint(argv[1]);
        char esc[80];
        fprintf(stderr, "trireme: no verb \"%s\"%s%s; trireme --help lists them\n", tr_escape(argv[1], esc, sizeof esc),
                near ? "; did you mean " : "", near ? near : "");
        return 2;
    }
    tr_launch_adopt();
    enum tr_status st = tr_failpoint_setup(NULL, world_rank());
    return st != TR_OK ? report(st) : run(verb, argc - 2, argv + 2);
}
