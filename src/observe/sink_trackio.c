/* sink_trackio.c - rows in trackio's SQLite file, $TRACKIO_DIR/PROJECT.db, which `trackio show` reads.
 *
 * The file belongs to all runs of a project and may be open in other programs: every batch of events is one
 * transaction, and a lock of another writer is waited for. SQLite is opened at run time, because trackio's file is the
 * only use of it. Metrics are JSON with 17 digits: exact. Rejected: writing pages of the format by hand.
 */
#include "observe/track_impl.h"

enum { SQL_OK = 0, SQL_ROW = 100, SQL_DONE = 101, SQL_OPEN = 0x2 | 0x4 | 0x8000 /* read, write, create; one thread */ };
enum { WAIT_MS = 5000 };

static struct {
    int (*open)(const char *path, void **db, int flags, const char *vfs);
    int (*close)(void *db);
    int (*exec)(void *db, const char *sql, void *callback, void *ctx, char **error);
    int (*prepare)(void *db, const char *sql, int n, void **statement, const char **tail);
    int (*finalize)(void *statement);
    int (*step)(void *statement);
    int (*reset)(void *statement);
    int (*bind_text)(void *statement, int i, const char *text, int n, void *destructor);
    int (*bind_int)(void *statement, int i, int64_t x);
    int64_t (*column_int)(void *statement, int i);
    const char *(*message)(void *db);
    int (*busy)(void *db, int ms);
} sql;

enum { INSERT_METRICS, INSERT_SYSTEM, INSERT_ALERT, N_STATEMENTS };
static const char *const statements[N_STATEMENTS] = {
    "INSERT INTO metrics(run_id, timestamp, run_name, step, metrics) VALUES(?, ?, ?, ?, ?)",
    /* a replay of the log may meet a sample again */
    ("INSERT INTO system_metrics(run_id, timestamp, run_name, metrics) SELECT ?1, ?2, ?3, ?5 WHERE NOT EXISTS "
     "(SELECT 1 FROM system_metrics WHERE run_id = ?1 AND timestamp = ?2)"),
    "INSERT INTO alerts(run_id, timestamp, run_name, step, text, title, level) VALUES(?, ?, ?, ?, ?, ?, ?)",
};
static const char schema[] =
    "CREATE TABLE IF NOT EXISTS metrics(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT "
    "NULL, run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL);"
    "CREATE TABLE IF NOT EXISTS configs(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT "
    "NULL, config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));"
    "CREATE TABLE IF NOT EXISTS system_metrics(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp "
    "TEXT NOT NULL, run_name TEXT NOT NULL, metrics TEXT NOT NULL);"
    "CREATE TABLE IF NOT EXISTS alerts(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT "
    "NULL, run_name TEXT NOT NULL, title TEXT NOT NULL, text TEXT, level TEXT NOT NULL DEFAULT 'warn', step INTEGER, "
    "alert_id TEXT);"
    "CREATE INDEX IF NOT EXISTS idx_metrics_run_step ON metrics(run_id, step);"
    "CREATE INDEX IF NOT EXISTS idx_system_metrics_run_timestamp ON system_metrics(run_id, timestamp);";

/* Rows are in the order of the log. What stands behind the first number of a step goes with it, also a checkpoint of an
 * earlier step that was reported late: the replay of the log brings it again. */
static const char drop_alerts[] =
    "DELETE FROM alerts WHERE run_id = ?1 AND (?2 <= 0 OR timestamp >= (SELECT MIN(timestamp) FROM metrics WHERE "
    "run_id = ?1 AND step >= ?2))";
static const char drop_metrics[] =
    "DELETE FROM metrics WHERE run_id = ?1 AND id >= (SELECT MIN(id) FROM metrics WHERE run_id = ?1 AND step >= ?2)";

struct trackio {
    void *db, *statement[N_STATEMENTS];
    bool is_open; /* a transaction */
    const char *id, *name;
    char path[TR_PATH_MAX];
    struct tr_str json;
};

static enum tr_status check_trackio(void)
{
    char why[256];
    const struct tr_symbol symbols[] = {
        { "sqlite3_open_v2", &sql.open },        { "sqlite3_close_v2", &sql.close },
        { "sqlite3_exec", &sql.exec },           { "sqlite3_prepare_v2", &sql.prepare },
        { "sqlite3_finalize", &sql.finalize },   { "sqlite3_step", &sql.step },
        { "sqlite3_reset", &sql.reset },         { "sqlite3_bind_text", &sql.bind_text },
        { "sqlite3_bind_int64", &sql.bind_int }, { "sqlite3_column_int64", &sql.column_int },
        { "sqlite3_errmsg", &sql.message },      { "sqlite3_busy_timeout", &sql.busy },
    };
    if (tr_library_find("libsqlite3.so.0", symbols, TR_COUNT_OF(symbols), why, sizeof why))
        return TR_OK;
    return tr_fail(TR_USAGE, "report_to trackio needs SQLite: %s; install libsqlite3-0 (Debian, Ubuntu) or sqlite",
                   why);
}

static enum tr_status fail_at(const struct trackio *t)
{
    return tr_fail(TR_IO, "%s: %s", t->path, t->db ? sql.message(t->db) : "cannot be opened");
}

static enum tr_status run_sql(const struct trackio *t, const char *text)
{
    return sql.exec(t->db, text, NULL, NULL, NULL) == SQL_OK ? TR_OK : fail_at(t);
}

static enum tr_status begin(struct trackio *t)
{
    enum tr_status st = t->is_open ? TR_OK : run_sql(t, "BEGIN IMMEDIATE");
    t->is_open = st == TR_OK;
    return st;
}

static enum tr_status flush(void *sink)
{
    struct trackio *t = sink;
    if (!t->is_open)
        return TR_OK;
    t->is_open = false;
    return run_sql(t, "COMMIT");
}

static enum tr_status close_trackio(void *sink, bool is_over)
{
    struct trackio *t = sink;
    enum tr_status st = is_over ? flush(t) : TR_OK;
    for (int i = 0; i < N_STATEMENTS; i++)
        if (t->statement[i])
            (void)sql.finalize(t->statement[i]);
    if (t->db)
        (void)sql.close(t->db);
    tr_str_release(&t->json);
    free(t);
    return st;
}

/* $TRACKIO_DIR, $HF_HOME/trackio or ~/.cache/huggingface/trackio, as trackio itself looks for it. */
static enum tr_status path_of(char dir[TR_PATH_MAX], char path[TR_PATH_MAX])
{
    const char *own = getenv("TRACKIO_DIR"), *hf = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME"), *project = getenv("TRACKIO_PROJECT");
    char name[128];
    size_t n = 0;
    if (own && *own)
        TR_PASS(tr_format(dir, TR_PATH_MAX, "%s", own));
    else if (hf && *hf)
        TR_PASS(tr_format(dir, TR_PATH_MAX, "%s/trackio", hf));
    else if (cache && *cache)
        TR_PASS(tr_format(dir, TR_PATH_MAX, "%s/huggingface/trackio", cache));
    else if (home && *home)
        TR_PASS(tr_format(dir, TR_PATH_MAX, "%s/.cache/huggingface/trackio", home));
    else
        return tr_fail(TR_USAGE, "no HOME to keep its file in; set TRACKIO_DIR to a directory");
    project = project && *project ? project : "huggingface";
    for (const char *p = project; *p && n + 1 < sizeof name; p++) /* characters that trackio keeps in a file name */
        if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' || *p == '_')
            name[n++] = *p;
    name[n] = 0;
    return tr_format(path, TR_PATH_MAX, "%s/%s.db", dir, n ? name : "default");
}

static enum tr_status prepare(const struct trackio *t, const char *text, void **out)
{
    return sql.prepare(t->db, text, -1, out, NULL) == SQL_OK ? TR_OK : fail_at(t);
}

/* One statement with the run's id and a number; *result: its first column. */
static enum tr_status ask(const struct trackio *t, const char *text, int64_t x, int64_t *result)
{
    void *s = NULL;
    TR_PASS(prepare(t, text, &s));
    (void)sql.bind_text(s, 1, t->id, -1, NULL);
    (void)sql.bind_int(s, 2, x);
    int code = sql.step(s);
    if (code == SQL_ROW && result)
        *result = sql.column_int(s, 0);
    (void)sql.finalize(s);
    return code == SQL_ROW || code == SQL_DONE ? TR_OK : fail_at(t);
}

static enum tr_status put_config(const struct trackio *t, const struct tr_track_run *run)
{
    char when[40];
    void *s = NULL;
    TR_PASS(prepare(t,
                    "INSERT INTO configs(run_id, run_name, config, created_at) VALUES(?, ?, ?, ?) ON "
                    "CONFLICT(run_id) DO UPDATE SET config = excluded.config",
                    &s));
    tr_iso_time(run->start_time, when);
    (void)sql.bind_text(s, 1, t->id, -1, NULL);
    (void)sql.bind_text(s, 2, t->name, -1, NULL);
    (void)sql.bind_text(s, 3, run->config ? run->config : "{}", -1, NULL);
    (void)sql.bind_text(s, 4, when, -1, NULL);
    int code = sql.step(s);
    (void)sql.finalize(s);
    return code == SQL_DONE ? TR_OK : fail_at(t);
}

static enum tr_status open_trackio(const struct tr_track_run *run, void **sink, int64_t *from, struct tr_str *place)
{
    enum tr_status st = TR_OK;
    char dir[TR_PATH_MAX], parent[TR_PATH_MAX];
    const char *name;
    int64_t last = 0;
    struct trackio *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "no memory");
    t->id = run->id;
    t->name = run->name;
    TR_TRY(path_of(dir, t->path));
    TR_TRY(tr_mkdirs(dir));
    TR_TRY(tr_path_split(t->path, parent, &name));
    TR_TRY(tr_out_check(parent, name)); /* the directory is the user's own and may be a link, the file is not */
    if (sql.open(t->path, &t->db, SQL_OPEN, NULL) != SQL_OK)
        TR_TRY(fail_at(t));
    (void)sql.busy(t->db, WAIT_MS);
    (void)sql.exec(t->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
    TR_TRY(begin(t));
    TR_TRY(run_sql(t, schema));
    TR_TRY(ask(t, "SELECT COALESCE(MAX(step), 0) FROM metrics WHERE run_id = ?1 AND ?2 = 0", 0, &last));
    *from = tr_min64(last, run->first_step);
    TR_TRY(ask(t, drop_alerts, *from, NULL));
    TR_TRY(ask(t, drop_metrics, *from, NULL));
    for (int i = 0; i < N_STATEMENTS; i++)
        TR_TRY(prepare(t, statements[i], &t->statement[i]));
    TR_TRY(put_config(t, run));
    TR_TRY(flush(t));
    tr_str_addf(place, "%s", t->path);
    *sink = t;
out:
    if (st != TR_OK)
        (void)close_trackio(t, false);
    return st;
}

static void make_json(struct trackio *t, const struct tr_track_event *e)
{
    const char *comma = "";
    tr_str_clear(&t->json);
    tr_str_addf(&t->json, "{");
    for (size_t i = 0; i < e->n_metrics; i++, comma = ",") {
        const char *name = e->metric[i].name;
        tr_str_addf(&t->json, "%s", comma);
        tr_str_json(&t->json, strncmp(name, "system/", 7) == 0 ? name + 7 : name);
        tr_str_addf(&t->json, ":");
        tr_str_number(&t->json, e->metric[i].value);
    }
    if (e->histogram) {
        tr_str_addf(&t->json, "%s\"%s\":{\"_type\":\"trackio.histogram\",\"bins\":[", comma, e->histogram_name);
        for (int i = 0; i <= TR_HISTOGRAM_BINS; i++)
            tr_str_addf(&t->json, "%s%.17g", i ? "," : "", e->histogram->edge[i]);
        tr_str_addf(&t->json, "],\"values\":[");
        for (int i = 0; i < TR_HISTOGRAM_BINS; i++)
            tr_str_addf(&t->json, "%s%.0f", i ? "," : "", e->histogram->count[i]);
        tr_str_addf(&t->json, "]}");
    }
    tr_str_addf(&t->json, "}");
}

static enum tr_status insert(struct trackio *t, int which, const struct tr_track_event *e, const char *text)
{
    enum tr_status st = begin(t);
    void *s = t->statement[which];
    char when[40];
    if (st != TR_OK)
        return st;
    tr_iso_time(e->time, when);
    (void)sql.bind_text(s, 1, t->id, -1, NULL);
    (void)sql.bind_text(s, 2, when, -1, NULL);
    (void)sql.bind_text(s, 3, t->name, -1, NULL);
    (void)sql.bind_int(s, 4, e->step);
    (void)sql.bind_text(s, 5, text, -1, NULL);
    if (which == INSERT_ALERT) {
        (void)sql.bind_text(s, 6, e->kind, -1, NULL);
        (void)sql.bind_text(s, 7, strcmp(e->kind, "fault") == 0 ? "warn" : "info", -1, NULL);
    }
    int code = sql.step(s);
    if (code != SQL_DONE)
        st = fail_at(t);
    (void)sql.reset(s);
    return st;
}

static enum tr_status write_event(void *sink, const struct tr_track_event *e)
{
    struct trackio *t = sink;
    enum tr_status st = TR_OK;
    if (e->n_metrics) {
        make_json(t, e);
        TR_PASS(tr_str_check(&t->json, "%s", t->path));
        st = insert(t, strcmp(e->kind, "system") == 0 ? INSERT_SYSTEM : INSERT_METRICS, e, t->json.p);
    }
    if (st == TR_OK && e->is_text)
        st = insert(t, INSERT_ALERT, e, e->event->text);
    return st;
}

const struct tr_sink_row tr_sink_trackio = {
    .name = "trackio",
    .note = "trackio show reads %s",
    .check = check_trackio,
    .open = open_trackio,
    .event = write_event,
    .flush = flush,
    .close = close_trackio,
};
