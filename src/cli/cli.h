/* cli.h - private to cli: one function per verb. Each parses nothing (config did), calls the library and prints. */
#ifndef TR_CLI_CLI_H
#define TR_CLI_CLI_H

#include "train/train.h"

enum tr_status cmd_init(const struct tr_config *cfg);
enum tr_status cmd_train(const struct tr_config *cfg);
enum tr_status cmd_plan(const struct tr_config *cfg);
enum tr_status cmd_plan_search(const struct tr_config *cfg); /* plan --search */
enum tr_status cmd_plan_scale(const struct tr_config *cfg);  /* plan --scale */
enum tr_status cmd_plan_table(const struct tr_config *cfg);  /* plan --table */
struct tr_machine;
struct tr_search_query;
enum tr_status plan_query_open(const struct tr_config *cfg, struct tr_machine *machine, struct tr_model **model,
                               struct tr_search_query *out); /* the query that plan --search and --scale start from */
enum tr_status cmd_eval(const struct tr_config *cfg);
enum tr_status cmd_generate(const struct tr_config *cfg);
enum tr_status cmd_chat(const struct tr_config *cfg);
enum tr_status cmd_data(const struct tr_config *cfg);
enum tr_status cmd_ckpt(const struct tr_config *cfg);
enum tr_status cmd_check(const struct tr_config *cfg);
enum tr_status cmd_bench(const struct tr_config *cfg);
enum tr_status cmd_watch(const struct tr_config *cfg);
enum tr_status cmd_ctl(const struct tr_config *cfg);
enum tr_status cmd_doctor(const struct tr_config *cfg);
enum tr_status cmd_runs(const struct tr_config *cfg);
enum tr_status cmd_replay(const struct tr_config *cfg);
enum tr_status cmd_explain(const struct tr_config *cfg);
enum tr_status runs_diff(const struct tr_config *cfg, const char *a, const char *b); /* of cmd_runs */
enum tr_status bench_machine(const struct tr_config *cfg);                           /* of cmd_bench */
struct tr_watch_run;
/* On the whole terminal, until a key or a signal ends it. */
enum tr_status watch_screen(struct tr_watch_run *const *runs, size_t n_runs);
enum tr_status cmd_config(const struct tr_config *cfg);
enum tr_status cli_bench_disk(const struct tr_config *cfg);
enum tr_status cli_bench_data(const struct tr_config *cfg);
/* Writes `bytes` bytes as a checkpoint is written, 8 MiB at a time, and syncs; read_s not NULL: reads them back. The
 * file has no name, so nothing stays. */
enum tr_status cli_disk_rate(const char *dir, int64_t bytes, double *write_s, double *read_s);

/* What may be meant by a word that is no verb; NULL: nothing is like it. */
const char *cli_verb_hint(const char *word);
void cli_version(void);
/* launch has flags of its own and then another verb; *code is the exit code of a job that ran. */
enum tr_status cmd_launch(int argc, char **argv, char **envp, int *code);

/* Writes all of it to stdout. A closed pipe is not an error. */
/* Whatever is printed goes through these: to a terminal without bytes that a terminal obeys, to a file as it is. */
enum tr_status cli_fail_stdout(void); /* a full disk did not take what a verb has printed */
void cli_print(const char *text);
void cli_print_foreign(const char *text, size_t n); /* it may hold NUL */
void cli_printf(const char *fmt, ...) TR_PRINTF(1, 2);
void cli_warn(const char *text);                                   /* to stderr, always without such bytes */
void cli_print_path(const char *path);                             /* {"path": "..."} */
void cli_show_path(const struct tr_config *cfg, const char *path); /* that, or the path alone, as --json says */
enum tr_status cli_need_output(const struct tr_config *cfg);

/* cmd_adapter.c: verbs of ckpt on the directories of adapters */
enum tr_status ckpt_list_adapters(const struct tr_config *cfg, const char *dir);
enum tr_status ckpt_export_adapter(const struct tr_config *cfg, const char *dir);
enum tr_status ckpt_merge(const struct tr_config *cfg, const char *dir, const char *other);

/* cmd_export.c */
enum tr_status ckpt_export_model(const struct tr_config *cfg, const char *dir);
/* The options of a run of the directory in float32, and the rows on which two runs are compared (free rows.id). */
enum tr_status ckpt_open_run(const struct tr_config *cfg, const char *dir, const struct tr_config **out);
enum tr_status ckpt_read_rows(const struct tr_config *cfg, const struct tr_config *run, const struct tr_model *m,
                              struct tr_merge_rows *out);

#endif
