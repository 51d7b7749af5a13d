/* control.c - the ledger, the key and the request file (control.h).
 *
 * A request counts when the file is a regular one, belongs to the user of the run (or to root), can be written by no
 * other user, and carries the HMAC of its fields under the key of this start. The key is in memory
 * here: a file that takes its place convinces no trainer. Rejected: a socket (a port, or a path that network file
 * systems do not carry) and signals (no values, no answer, one host).
 */
#include "train/control.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_KEY     TR_NAME_PHASES "/control-key"
#define NAME_REQUEST TR_NAME_PHASES "/request"
enum { KEY_BYTES = 32, REQUEST_MAX = 4096, SCHEMA = 1 };

/* What can be set while a run goes on: options whose value is read anew at every step. */
static const struct {
    const char *name;
    size_t at;
    double lo, hi;
} keys[] = {
    { "learning_rate", offsetof(struct tr_config, learning_rate), 0, 1e6 },
};

static const char *const actions[TR_CONTROL_ACTIONS] = {
    [TR_CONTROL_NONE] = "none",     [TR_CONTROL_SAVE] = "save",     [TR_CONTROL_STOP] = "stop",
    [TR_CONTROL_PAUSE] = "pause",   [TR_CONTROL_RESUME] = "resume", [TR_CONTROL_EVAL] = "eval",
    [TR_CONTROL_SAMPLE] = "sample", [TR_CONTROL_SET] = "set",
};

const char *tr_control_word(enum tr_control_action a)
{
    return actions[a];
}

enum tr_status tr_control_parse(const char *word, enum tr_control_action *out)
{
    for (int a = TR_CONTROL_NONE + 1; a < TR_CONTROL_ACTIONS; a++)
        if (strcmp(word, actions[a]) == 0) {
            *out = (enum tr_control_action)a;
            return TR_OK;
        }
    return tr_fail(TR_USAGE, "ctl %s: no such request; there are save, stop, pause, resume, eval, sample, set", word);
}

const char *tr_control_key_name(int key)
{
    return keys[key].name;
}

/* "learning_rate", "1e-4" */
static enum tr_status parse_value(const char *name, const char *text, int *key, double *value)
{
    for (int i = 0; i < (int)TR_COUNT_OF(keys); i++) {
        if (strcmp(name, keys[i].name) != 0)
            continue;
        enum tr_status st = tr_parse_real(text, value);
        if (st == TR_OK && !(*value >= keys[i].lo && *value <= keys[i].hi))
            st = tr_fail(TR_USAGE, "%s is outside %g to %g", text, keys[i].lo, keys[i].hi);
        *key = i;
        return st == TR_OK ? TR_OK : tr_fail_at(st, "set %s: ", name);
    }
    return tr_fail(TR_USAGE, "set %s: it cannot change while a run goes on; learning_rate can", name);
}

/* ---- the ledger ---- */

void tr_ledger_write(const struct tr_ledger *l, struct tr_str *out)
{
    tr_str_addf(out, "[");
    for (int i = 0; i < l->n; i++)
        tr_str_addf(out, "%s{\"step\": %" PRId64 ", \"key\": \"%s\", \"value\": %.17g}", i ? ", " : "",
                    l->entry[i].step, keys[l->entry[i].key].name, l->entry[i].value);
    tr_str_addf(out, "]");
}

enum tr_status tr_ledger_read(const cJSON *j, const char *what, struct tr_ledger *l)
{
    enum tr_status st = TR_OK;
    const cJSON *x;
    *l = (struct tr_ledger){ 0 };
    cJSON_ArrayForEach(x, j)
    {
        struct tr_ledger_entry e = { 0 };
        const char *name = NULL;
        char text[40];
        TR_TRY(tr_json_int(x, "step", true, 0, INT64_C(1) << 52, &e.step));
        TR_TRY(tr_json_str(x, "key", true, &name));
        TR_TRY(tr_json_real(x, "value", true, &e.value));
        TR_TRY(tr_format(text, sizeof text, "%.17g", e.value));
        TR_TRY(parse_value(name, text, &e.key, &e.value));
        if (l->n == TR_LEDGER_MAX)
            TR_TRY(tr_fail(TR_USAGE, "more than %d values were set", TR_LEDGER_MAX));
        tr_ledger_put(l, &e);
    }
out:
    return st == TR_OK ? TR_OK : tr_fail_at(st, "%s: ", what);
}

void tr_ledger_put(struct tr_ledger *l, const struct tr_ledger_entry *e)
{
    int at = 0;
    while (at < l->n && l->entry[at].step <= e->step) {
        if (l->entry[at].step == e->step && l->entry[at].key == e->key) {
            l->entry[at].value = e->value;
            return;
        }
        at++;
    }
    if (l->n == TR_LEDGER_MAX)
        return;
    memmove(&l->entry[at + 1], &l->entry[at], (size_t)(l->n - at) * sizeof *e);
    l->entry[at] = *e;
    l->n++;
}

void tr_ledger_merge(struct tr_ledger *l, const struct tr_ledger *more)
{
    for (int i = 0; i < more->n; i++)
        tr_ledger_put(l, &more->entry[i]);
}

void tr_ledger_apply(const struct tr_ledger *l, int64_t step, struct tr_config *cfg)
{
    for (int i = 0; i < l->n && l->entry[i].step <= step; i++)
        memcpy((char *)cfg + keys[l->entry[i].key].at, &l->entry[i].value, sizeof l->entry[i].value);
}

enum tr_status tr_ledger_load(const char *output, struct tr_ledger *l)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    cJSON *j = NULL;
    *l = (struct tr_ledger){ 0 };
    TR_TRY(tr_path_join(path, output, TR_NAME_CONTROL));
    if (!tr_file_exists(path))
        return TR_OK;
    TR_TRY(tr_json_load(path, 1 << 20, &j));
    TR_TRY(tr_ledger_read(cJSON_GetObjectItemCaseSensitive(j, "overrides"), path, l));
out:
    cJSON_Delete(j);
    return st;
}

enum tr_status tr_ledger_save(const char *output, const struct tr_ledger *l)
{
    struct tr_str text = { 0 };
    tr_str_addf(&text, "{\"schema\": %d, \"overrides\": ", SCHEMA);
    tr_ledger_write(l, &text);
    tr_str_addf(&text, "}\n");
    enum tr_status st = tr_str_ok(&text) ? tr_out_write(output, TR_NAME_CONTROL, text.p, text.n)
                                         : tr_fail(TR_NOMEM, "no memory for " TR_NAME_CONTROL);
    tr_str_release(&text);
    return st;
}

/* ---- signatures ---- */

static void hex_of(const unsigned char *p, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", p[i]);
}

/* Over the fields with their ends: no two requests have the same bytes. */
static void sign(const unsigned char key[KEY_BYTES], const char *id, const char *action, const char *name,
                 const char *value, char out[2 * TR_SHA256_BYTES + 1])
{
    unsigned char mac[TR_SHA256_BYTES];
    const struct tr_bytes parts[] = { { "trireme control", sizeof "trireme control" },
                                      { id, strlen(id) + 1 },
                                      { action, strlen(action) + 1 },
                                      { name, strlen(name) + 1 },
                                      { value, strlen(value) + 1 } };
    tr_hmac_sha256(key, KEY_BYTES, parts, TR_COUNT_OF(parts), mac);
    hex_of(mac, sizeof mac, out);
}

/* ---- the run's side ---- */

struct tr_control {
    unsigned char key[KEY_BYTES];
    char output[TR_PATH_MAX], path[TR_PATH_MAX];
    dev_t refused_dev; /* what could not be removed is refused once, not at every step */
    ino_t refused_ino;
};

enum tr_status tr_control_open(const char *output, struct tr_control **out)
{
    enum tr_status st = TR_OK;
    int fd = -1;
    struct tr_control *c = calloc(1, sizeof *c);
    if (!c)
        return tr_fail(TR_NOMEM, "no memory for requests");
    if (getentropy(c->key, sizeof c->key) != 0)
        TR_TRY(tr_fail(TR_IO, "no random numbers for the key of requests: %s", strerror(errno)));
    TR_TRY(tr_format(c->output, sizeof c->output, "%s", output));
    TR_TRY(tr_path_join(c->path, output, NAME_REQUEST));
    TR_TRY(tr_out_mkdir(output, TR_NAME_PHASES));
    TR_TRY(tr_out_remove(output, NAME_REQUEST));
    TR_TRY(tr_out_remove(output, NAME_KEY));
    TR_TRY(tr_out_open(output, NAME_KEY, TR_OUT_SECRET, &fd));
    TR_TRY(tr_write_all(fd, NAME_KEY, c->key, sizeof c->key));
    *out = c;
out:
    if (fd >= 0)
        close(fd);
    if (st != TR_OK)
        free(c);
    return st;
}

void tr_control_close(struct tr_control *c)
{
    if (!c)
        return;
    (void)tr_out_unlink(c->output, NAME_KEY);
    free(c);
}

/* The bytes of the request, or why it is refused. */
static enum tr_status read_file(const struct tr_control *c, char text[REQUEST_MAX + 1], size_t *n)
{
    struct stat s;
    enum tr_status st = TR_OK;
    int fd = open(c->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP ? tr_fail(TR_USAGE, "it is a link") : tr_fail(TR_IO, "%s", strerror(errno));
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        TR_TRY(tr_fail(TR_USAGE, "it is no regular file"));
    if (s.st_uid != geteuid() && s.st_uid != 0)
        TR_TRY(tr_fail(TR_USAGE, "it belongs to user %u, the run to user %u", (unsigned)s.st_uid, (unsigned)geteuid()));
    if (s.st_mode & (S_IWGRP | S_IWOTH))
        TR_TRY(tr_fail(TR_USAGE, "its mode %04o lets other users write it", (unsigned)(s.st_mode & 07777)));
    if (s.st_size > REQUEST_MAX)
        TR_TRY(tr_fail(TR_USAGE, "it has %lld bytes, at most %d", (long long)s.st_size, REQUEST_MAX));
    TR_TRY(tr_pread_all(fd, "request", text, (size_t)s.st_size, 0));
    *n = (size_t)s.st_size;
    text[*n] = 0;
out:
    close(fd);
    return st;
}

static enum tr_status read_request(const struct tr_control *c, struct tr_control_request *out)
{
    enum tr_status st = TR_OK;
    char text[REQUEST_MAX + 1], mac[2 * TR_SHA256_BYTES + 1];
    size_t n = 0;
    cJSON *j = NULL;
    const char *id = "", *action = "", *key = "", *value = "", *signature = "";
    enum tr_control_action parsed = TR_CONTROL_NONE;
    TR_TRY(read_file(c, text, &n));
    TR_TRY(tr_json_parse(text, n, "request", &j));
    TR_TRY(tr_json_str(j, "id", true, &id));
    TR_TRY(tr_json_str(j, "action", true, &action));
    TR_TRY(tr_json_str(j, "key", false, &key));
    TR_TRY(tr_json_str(j, "value", false, &value));
    TR_TRY(tr_json_str(j, "signature", true, &signature));
    sign(c->key, id, action, key, value, mac);
    if (strlen(signature) != sizeof mac - 1 || !tr_same_bytes(signature, mac, sizeof mac - 1))
        TR_TRY(tr_fail(TR_USAGE, "its signature is not that of this start of the run"));
    (void)snprintf(out->id, sizeof out->id, "%.32s", id);
    TR_TRY(tr_control_parse(action, &parsed));
    if (parsed == TR_CONTROL_SET)
        TR_TRY(parse_value(key, value, &out->key, &out->value));
    out->action = parsed;
out:
    cJSON_Delete(j);
    return st;
}

bool tr_control_poll(struct tr_control *c, struct tr_control_request *out)
{
    struct stat s;
    if (!c || lstat(c->path, &s) != 0 || (s.st_ino == c->refused_ino && s.st_dev == c->refused_dev))
        return false;
    *out = (struct tr_control_request){ .action = TR_CONTROL_NONE };
    if (read_request(c, out) != TR_OK)
        (void)snprintf(out->why, sizeof out->why, "%s", tr_error_text());
    tr_error_clear();
    if (tr_out_unlink(c->output, NAME_REQUEST) != 0 && lstat(c->path, &s) == 0) {
        c->refused_dev = s.st_dev;
        c->refused_ino = s.st_ino;
    }
    return true;
}

/* ---- the user's side ---- */

static enum tr_status read_key(const char *output, unsigned char key[KEY_BYTES])
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    struct stat s;
    int fd = -1;
    TR_TRY(tr_path_join(path, output, NAME_KEY));
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        TR_TRY(
            tr_fail(TR_USAGE, "%s: no run takes requests there: it has ended, or it has not begun its steps", output));
    if (fd < 0 && errno == EACCES)
        TR_TRY(
            tr_fail(TR_USAGE, "%s: this run belongs to another user, and only that user may send it requests", output));
    if (fd < 0)
        TR_TRY(tr_fail(TR_IO, "%s: %s", path, strerror(errno)));
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size != KEY_BYTES)
        TR_TRY(tr_fail(TR_USAGE, "%s is no key of a run: a key is a file of %d bytes that the run makes", path,
                       (int)KEY_BYTES));
    if (s.st_uid != geteuid() && geteuid() != 0)
        TR_TRY(tr_fail(TR_USAGE, "%s belongs to user %u; only that user may send requests", path, (unsigned)s.st_uid));
    TR_TRY(tr_pread_all(fd, path, key, KEY_BYTES, 0));
out:
    if (fd >= 0)
        close(fd);
    return st;
}

/* Puts the file in place as a whole; a request that is still there is waited for. */
static enum tr_status put_request(const char *output, const struct tr_str *text, double wait_s)
{
    enum tr_status st = TR_OK;
    char temp[64], path[TR_PATH_MAX];
    struct stat s;
    int fd = -1, err = 0;
    int64_t end_us = tr_clock_us() + (int64_t)(wait_s * 1e6);
    TR_TRY(tr_path_join(path, output, NAME_REQUEST));
    TR_TRY(tr_format(temp, sizeof temp, NAME_REQUEST ".%d", (int)getpid()));
    (void)tr_out_unlink(output, temp);
    TR_TRY(tr_out_open(output, temp, TR_OUT_SECRET, &fd));
    TR_TRY(tr_write_all(fd, temp, text->p, text->n));
    /* a link fails where the name is taken; a rename would take the place of another request */
    while ((err = tr_out_move(output, temp, NAME_REQUEST, TR_OUT_LINK)) == EEXIST && tr_clock_us() < end_us)
        usleep(20 * 1000);
    if (err == EEXIST && lstat(path, &s) == 0 && !S_ISREG(s.st_mode))
        TR_TRY(tr_fail(TR_USAGE, "%s stands where requests go, and is no file: remove it", path));
    if (err == EEXIST)
        TR_TRY(tr_fail(TR_TIMEOUT, "%s: another request has been waiting for %g s; does the run still make steps?",
                       output, wait_s));
    if (err)
        TR_TRY(tr_fail(TR_IO, "%s/" NAME_REQUEST ": %s", output, strerror(err)));
out:
    if (fd >= 0)
        close(fd);
    if (fd >= 0)
        (void)tr_out_unlink(output, temp);
    return st;
}

enum tr_status tr_control_send(const char *output, const char *action, const char *key, const char *value,
                               double wait_s, char id[33])
{
    enum tr_status st = TR_OK;
    unsigned char secret[KEY_BYTES], nonce[16];
    char mac[2 * TR_SHA256_BYTES + 1];
    enum tr_control_action parsed = TR_CONTROL_NONE;
    int row = 0;
    double x = 0;
    struct tr_str text = { 0 };
    TR_TRY(tr_control_parse(action, &parsed));
    if (parsed == TR_CONTROL_SET)
        TR_TRY(parse_value(key, value, &row, &x));
    TR_TRY(read_key(output, secret));
    if (getentropy(nonce, sizeof nonce) != 0)
        TR_TRY(tr_fail(TR_IO, "no random numbers: %s", strerror(errno)));
    hex_of(nonce, sizeof nonce, id);
    sign(secret, id, action, key, value, mac);
    tr_str_addf(&text, "{\"id\": \"%s\", \"action\": \"%s\", \"key\": ", id, action);
    tr_str_json(&text, key);
    tr_str_member(&text, ", \"value\": ", value);
    tr_str_addf(&text, ", \"signature\": \"%s\"}\n", mac);
    TR_TRY(tr_str_check(&text, "the request"));
    TR_TRY(put_request(output, &text, wait_s));
out:
    tr_str_release(&text);
    return st;
}
