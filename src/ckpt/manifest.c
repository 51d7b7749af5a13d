/* manifest.c - trireme/manifest.json: which files a checkpoint has, their sizes and hashes, and whose it is.
 *
 * The text ends in a line of fixed form with the hash of every byte before it; that hash is checked before any of the
 * JSON is looked at, and the line itself byte for byte, so no flipped bit goes unseen. The form of the last line is
 * the same in all versions: a newer manifest is told from a broken one. Damage is TR_IO, a newer version TR_USAGE.
 */
#include "ckpt/commit_impl.h"

#include <stdlib.h>
#include <string.h>

static const char tail_front[] = "  \"checksum\": \"";
static const char tail_back[] = "\"\n}\n";
enum { TAIL_BYTES = sizeof tail_front - 1 + 32 + sizeof tail_back - 1 };

static void add_tail(struct tr_str *s)
{
    char hex[33];
    tr_hash_hex(tr_hash(s->p, s->n), hex);
    tr_str_addf(s, "%s%s%s", tail_front, hex, tail_back);
}

static bool tail_is_right(const char *text, size_t n)
{
    char want[TAIL_BYTES + 1], hex[33];
    if (n < TAIL_BYTES)
        return false;
    tr_hash_hex(tr_hash(text, n - TAIL_BYTES), hex);
    return tr_format(want, sizeof want, "%s%s%s", tail_front, hex, tail_back) == TR_OK &&
           memcmp(text + n - TAIL_BYTES, want, TAIL_BYTES) == 0;
}

bool tr_ckpt_member_is_legal(const char *name)
{
    static const char state[] = TR_CKPT_STATE_DIR "/";
    if (strncmp(name, state, sizeof state - 1) == 0)
        return tr_name_is_plain(name + sizeof state - 1) && strcmp(name, TR_CKPT_MANIFEST) != 0;
    return tr_name_is_plain(name) && strcmp(name, TR_CKPT_STATE_DIR) != 0;
}

enum tr_status tr_ckpt_check_run_id(const char *run_id)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    char text[96];
    size_t n = strlen(run_id);
    if (n == 0 || n >= TR_CKPT_RUN_ID_MAX || strspn(run_id, legal) != n)
        return tr_fail(TR_USAGE, "run id \"%s\": use 1..63 letters, digits, '.', '_' or '-'",
                       tr_escape(run_id, text, sizeof text));
    return TR_OK;
}

enum tr_status tr_ckpt_manifest_build(const struct tr_ckpt_manifest *m, struct tr_str *s)
{
    tr_str_addf(s, "{\n  \"format\": \"trireme-checkpoint\",\n  \"version\": %d,\n  \"run_id\": ", TR_CKPT_VERSION);
    tr_str_json(s, m->run_id);
    tr_str_addf(s, ",\n  \"step\": %" PRId64 ",\n  \"generation\": %" PRId64 ",\n  \"files\": [", m->step,
                m->generation);
    for (size_t i = 0; i < m->n_files; i++) {
        char hex[33];
        tr_hash_hex(m->files[i].hash, hex);
        tr_str_addf(s, "%s\n    {\"name\": ", i ? "," : "");
        tr_str_json(s, m->files[i].name);
        tr_str_addf(s, ", \"bytes\": %" PRIu64 ", \"xxh3_128\": \"%s\"}", m->files[i].bytes, hex);
    }
    tr_str_addf(s, "\n  ],\n");
    TR_PASS(tr_str_check(s, "the manifest of %zu files", m->n_files));
    add_tail(s);
    return tr_str_check(s, "the manifest of %zu files", m->n_files);
}

static bool parse_hex64(const char *hex, uint64_t *out)
{
    uint64_t u = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef", *at = hex[i] ? strchr(digits, hex[i]) : NULL;
        if (!at)
            return false;
        u = u << 4 | (uint64_t)(at - digits);
    }
    *out = u;
    return true;
}

static enum tr_status parse_file(const cJSON *item, struct tr_ckpt_file *f)
{
    int64_t bytes = 0;
    const char *hex = NULL;
    char text[96];
    TR_PASS(tr_json_str(item, "name", true, &f->name));
    TR_PASS(tr_json_int(item, "bytes", true, 0, INT64_C(1) << 53, &bytes));
    TR_PASS(tr_json_str(item, "xxh3_128", true, &hex));
    f->bytes = (uint64_t)bytes;
    if (!tr_ckpt_member_is_legal(f->name))
        return tr_fail(TR_IO, "file name \"%s\" is not allowed", tr_escape(f->name, text, sizeof text));
    if (strlen(hex) != 32 || !parse_hex64(hex, &f->hash.hi) || !parse_hex64(hex + 16, &f->hash.lo))
        return tr_fail(TR_IO, "file \"%s\": bad hash", tr_escape(f->name, text, sizeof text));
    return TR_OK;
}

static enum tr_status parse_files(const cJSON *files, struct tr_ckpt_manifest *m)
{
    if (!cJSON_IsArray(files))
        return tr_fail(TR_IO, "no files array");
    for (const cJSON *e = files->child; e; e = e->next)
        m->n_files++;
    if (m->n_files > TR_CKPT_MAX_FILES)
        return tr_fail(TR_IO, "%zu files; the limit is %d", m->n_files, TR_CKPT_MAX_FILES);
    TR_PASS(TR_ALLOC(m->files, m->n_files + 1, "%zu files", m->n_files));
    size_t i = 0;
    for (const cJSON *e = files->child; e; e = e->next)
        TR_PASS(parse_file(e, &m->files[i++]));
    qsort(m->files, m->n_files, sizeof *m->files, tr_by_text);
    for (i = 1; i < m->n_files; i++)
        if (strcmp(m->files[i - 1].name, m->files[i].name) == 0)
            return tr_fail(TR_IO, "file %s is listed twice", m->files[i].name);
    return TR_OK;
}

static enum tr_status parse(const char *text, size_t n, struct tr_ckpt_manifest *m)
{
    enum tr_status st = TR_OK;
    const char *format = NULL;
    int64_t version = 0;
    TR_TRY(tr_json_parse(text, n, "json", &m->json));
    TR_TRY(tr_json_str(m->json, "format", true, &format));
    TR_TRY(tr_json_int(m->json, "version", true, 1, INT32_MAX, &version));
    if (strcmp(format, "trireme-checkpoint") != 0)
        TR_TRY(tr_fail(TR_IO, "not a trireme checkpoint"));
    if (version > TR_CKPT_VERSION) {
        tr_fail(TR_USAGE, "format version %" PRId64 " is newer than %d, the newest this program reads; update trireme",
                version, TR_CKPT_VERSION);
        return TR_USAGE;
    }
    TR_TRY(tr_json_str(m->json, "run_id", true, &m->run_id));
    TR_TRY(tr_ckpt_check_run_id(m->run_id));
    TR_TRY(tr_json_int(m->json, "step", true, 0, INT64_C(1) << 53, &m->step));
    TR_TRY(tr_json_int(m->json, "generation", true, 0, INT64_C(1) << 53, &m->generation));
    TR_TRY(parse_files(cJSON_GetObjectItemCaseSensitive(m->json, "files"), m));
out:
    return st == TR_USAGE ? TR_IO : st; /* we wrote it: nothing in it is the user's mistake */
}

enum tr_status tr_ckpt_manifest_parse(const char *text, size_t n, struct tr_ckpt_manifest *out)
{
    struct tr_ckpt_manifest m = { 0 };
    if (n > TR_CKPT_MAX_MANIFEST || !tail_is_right(text, n))
        return tr_fail(TR_IO, "manifest.json: checksum does not fit its %zu bytes: damaged or cut", n);
    enum tr_status st = parse(text, n, &m);
    if (st != TR_OK) {
        tr_ckpt_manifest_release(&m);
        return tr_fail_at(st, "manifest.json: ");
    }
    *out = m;
    return TR_OK;
}

void tr_ckpt_manifest_release(struct tr_ckpt_manifest *m)
{
    cJSON_Delete(m->json);
    free(m->files);
    *m = (struct tr_ckpt_manifest){ 0 };
}
