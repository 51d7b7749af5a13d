/* cmd_launch.c - launch: its own flags, then another verb. The verb's options are checked here, once and before any
 * rank starts; the ranks are this program again.
 */
#include "ckpt/ckpt.h"
#include "cli/cli.h"
#include "launch/launch.h"
#include <stdio.h>
#include <unistd.h>

static enum tr_status parse_verb(int argc, char **argv, enum tr_verb *verb)
{
    char esc[80];
    if (argc < 1)
        return tr_fail(TR_USAGE, "launch needs a verb: trireme launch --nproc-per-node 2 train ...");
    if (tr_verb_parse(argv[0], verb))
        return TR_OK;
    const char *near = cli_verb_hint(argv[0]);
    return tr_fail(TR_USAGE, "launch: no verb \"%s\"%s%s; trireme --help lists the verbs",
                   tr_escape(argv[0], esc, sizeof esc), near ? "; did you mean " : "", near ? near : "");
}

/* A restart adds --resume_from_checkpoint auto, under the alias that the command line uses if there is one, because two
 * names for one option are refused. */
static const char *resume_flag(const struct tr_config *cfg)
{
    static const char cli[] = "command line ";
    const char *origin = tr_config_origin(cfg, "resume_from_checkpoint");
    return strncmp(origin, cli, sizeof cli - 1) == 0 ? origin + sizeof cli - 1 : "--resume_from_checkpoint";
}

/* {"trireme", words..., flag, "auto", NULL}; without flag only the words. */
static char **rank_argv(int argc, char **argv, const char *flag)
{
    char **v = calloc((size_t)argc + 4, sizeof *v);
    if (!v)
        return NULL;
    v[0] = "trireme";
    memcpy(v + 1, argv, (size_t)argc * sizeof *v);
    if (flag) {
        v[argc + 1] = (char *)(uintptr_t)flag; /* execve's argv is not const, and nobody writes to it */
        v[argc + 2] = "auto";
    }
    return v;
}

/* The rank whose output is shown writes to a pipe that we copy to the terminal, so it may draw a progress line. */
static void pass_terminal_on(void)
{
    char text[16];
    snprintf(text, sizeof text, "%d", tr_term_detect(STDOUT_FILENO).columns);
    if (tr_term_detect(STDOUT_FILENO).is_live)
        setenv("TR_LIVE_COLUMNS", text, 1);
    else
        unsetenv("TR_LIVE_COLUMNS");
}

/* Removes the temporary directories that ranks left when they were killed while saving; there may be no next start that
 * does. */
static void tidy(const char *output)
{
    struct tr_ckpt_lock *lock = NULL;
    if (access(output, F_OK) == 0 && tr_ckpt_lock(output, "launch", 0, &lock) == TR_OK)
        (void)tr_ckpt_sweep(output, NULL);
    tr_ckpt_unlock(lock);
    tr_error_clear();
}

static enum tr_status start(const struct tr_launch_flags *f, const struct tr_config *cfg, int argc, char **argv,
                            char **envp, int *code)
{
    struct tr_launch_end end = { 0 };
    char **first = rank_argv(argc, argv, NULL);
    char **again = rank_argv(argc, argv, cfg->verb == TR_VERB_TRAIN ? resume_flag(cfg) : NULL);
    struct tr_launch l = { .program = "/proc/self/exe",
                           .argv = first,
                           .restart_argv = again,
                           .envp = envp,
                           .n_ranks = f->n_ranks,
                           .n_nodes_min = f->n_nodes_min,
                           .n_nodes_max = f->n_nodes_max,
                           .node_rank = f->node_rank,
                           .rdzv = f->rdzv ? f->rdzv : f->endpoint,
                           .rdzv_id = f->rdzv_id ? f->rdzv_id : "none",
                           .local_addr = f->local_addr,
                           .key_file = f->key_file,
                           .key_fd = f->key_fd,
                           .any_interface = f->any_interface,
                           .metrics_port = f->metrics_port,
                           .join_us = f->join_s * 1000000,
                           .max_restarts = f->max_restarts,
                           .log_rank = f->log_rank,
                           .threads = cfg->threads,
                           .stop_grace_us = cfg->preempt_grace > 0 ? (int64_t)(cfg->preempt_grace * 1e6) + 200000 : 0,
                           .has_mpi = cfg->comm == TR_COMM_MPI,
                           .is_last = true,
                           .output = cfg->verb == TR_VERB_REPLAY ? NULL : cfg->output, /* which it only reads */
                           .log_dir = f->log_dir,
                           .out_fd = STDOUT_FILENO,
                           .err_fd = STDERR_FILENO };
    enum tr_status st = first && again ? tr_launch_run(&l, &end) : tr_fail(TR_NOMEM, "no memory to start ranks");
    *code = end.exit_code;
    if (st == TR_OK && end.exit_code != 0 && cfg->verb == TR_VERB_TRAIN && f->n_nodes_max == 1 && cfg->output)
        tidy(cfg->output); /* ranks of other nodes may still save */
    if (st == TR_OK && end.has_lost_output && end.exit_code == 0 && cfg->verb != TR_VERB_TRAIN)
        st = cli_fail_stdout();
    free(first);
    free(again);
    return st;
}

/* Refuses to start where another run is at work. Its ranks would be refused too, but by then logs and records of this
 * launch would be in that run's directory. */
static enum tr_status check_not_live(const char *output)
{
    char path[TR_PATH_MAX];
    struct tr_ckpt_lock *lock = NULL;
    enum tr_status st = tr_path_join(path, output, TR_NAME_LOCK);
    if (st != TR_OK || !tr_file_exists(path))
        return st;
    st = tr_ckpt_lock(output, "launch", 0, &lock);
    tr_ckpt_unlock(lock);
    return st;
}

enum tr_status cmd_launch(int argc, char **argv, char **envp, int *code)
{
    enum tr_status st = TR_OK;
    struct tr_launch_flags f = { 0 };
    const struct tr_config *cfg = NULL;
    struct tr_str help = { 0 };
    char **env = NULL;
    enum tr_verb verb = TR_VERB_TRAIN;
    TR_TRY(tr_launch_flags_init(argc, argv, envp, &f));
    if (f.help) {
        tr_launch_help(&help);
        cli_print(tr_str_ok(&help) ? help.p : "");
        goto out;
    }
    cli_warn(f.notices.p ? f.notices.p : "");
    argc -= f.n_words;
    argv += f.n_words;
    TR_TRY(parse_verb(argc, argv, &verb));
    /* As rank 0 will read it: the size of the world decides what a mesh may be. */
    struct tr_launch_place first = { 0, f.n_ranks * f.n_nodes_max, 0, f.n_ranks };
    TR_TRY(tr_launch_env(envp, &first, "", 0, 0, false, &env));
    TR_TRY(tr_config_load(verb, argc - 1, argv + 1, env, &cfg));
    if (cfg->help) {
        tr_config_help(verb, &help);
        cli_print(tr_str_ok(&help) ? help.p : "");
        goto out;
    }
    /* With several nodes, the directory may be this job's own: another node may have made it. */
    if (verb == TR_VERB_TRAIN && f.n_nodes_max == 1) {
        TR_TRY(tr_check_output(cfg));
        TR_TRY(check_not_live(cfg->output));
    }
    pass_terminal_on();
    TR_TRY(start(&f, cfg, argc, argv, environ, code));
out:
    tr_str_release(&help);
    tr_config_close(cfg);
    tr_launch_env_free(env);
    tr_launch_flags_release(&f);
    return st;
}
