/* seal.c - see seal.h. The content of a seal is the 32 hex digits of the value and those of their hash. A seal that a
 * power cut tore is no seal, so none is waited for. */
#include "data/seal.h"
#include "data/cache.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_HEX = 32 };

/* Beneath cache_dir. */
static enum tr_status seal_name(const struct stat *f, const char *what, char out[64])
{
    char text[256], hex[N_HEX + 1];
    TR_PASS(tr_format(text, sizeof text, "%ju %ju %jd %jd.%09ld %jd.%09ld %s", (uintmax_t)f->st_dev,
                      (uintmax_t)f->st_ino, (intmax_t)f->st_size, (intmax_t)f->st_mtim.tv_sec, f->st_mtim.tv_nsec,
                      (intmax_t)f->st_ctim.tv_sec, f->st_ctim.tv_nsec, what));
    tr_hash_hex(tr_hash(text, strlen(text)), hex);
    return tr_format(out, 64, "seals/%s", hex);
}

/* The value and its hash as text. A seal is valid only when its content is exactly this text. */
static void format_seal(struct tr_hash128 value, char text[2 * N_HEX + 1])
{
    tr_hash_hex(value, text);
    tr_hash_hex(tr_hash(text, N_HEX), text + N_HEX);
}

static bool parse_seal(const char *text, size_t n, struct tr_hash128 *out)
{
    char half[17], again[2 * N_HEX + 1];
    struct tr_hash128 value;
    if (n != 2 * N_HEX)
        return false;
    memcpy(half, text, 16);
    half[16] = 0;
    value.hi = strtoull(half, NULL, 16);
    memcpy(half, text + 16, 16);
    value.lo = strtoull(half, NULL, 16);
    format_seal(value, again);
    if (memcmp(again, text, n) != 0)
        return false;
    *out = value;
    return true;
}

bool tr_seal_find(const struct tr_seals *s, const struct stat *file, const char *what, struct tr_hash128 *out)
{
    char path[TR_PATH_MAX], name[64], *text = NULL;
    size_t n = 0;
    if (!s->cache_dir || s->is_ignored || seal_name(file, what, name) != TR_OK ||
        tr_path_join(path, s->cache_dir, name) != TR_OK || tr_file_read(path, 2 * N_HEX, &text, &n) != TR_OK) {
        tr_error_clear();
        return false;
    }
    bool is_found = parse_seal(text, n, out);
    free(text);
    return is_found;
}

void tr_seal_save(const struct tr_seals *s, const struct stat *file, int min_age_s, const char *what,
                  struct tr_hash128 value)
{
    char name[64], text[2 * N_HEX + 1];
    struct timespec now;
    struct tr_out_at seals, at;
    if (!s->cache_dir || clock_gettime(CLOCK_REALTIME, &now) != 0 ||
        (min_age_s > 0 && file->st_ctim.tv_sec > now.tv_sec - min_age_s))
        return;
    format_seal(value, text);
    if (seal_name(file, what, name) != TR_OK || tr_out_mkdirs(s->cache_dir) != TR_OK ||
        tr_out_beneath(s->cache_dir, "seals", &seals) != TR_OK || tr_out_mkdir(seals.dir, seals.name) != TR_OK ||
        tr_out_beneath(s->cache_dir, name, &at) != TR_OK ||
        tr_out_write_lazily(at.dir, at.name, text, 2 * N_HEX) != TR_OK)
        tr_error_clear();
}
