/* unzip.c - see unzip.h. Memory: the window of the format, which is 32 KiB for gzip and at most 128 MiB for zstd (its
 * default limit). It does not depend on the size of the output. */
#include "table/unzip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

struct tr_unzip {
    enum tr_zip kind;
    z_stream gzip;
    ZSTD_DStream *zstd;
    bool is_inside; /* a member or frame has begun and not ended */
    uint64_t n_in, n_out;
};

enum tr_zip tr_zip_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot && strcmp(dot, ".gz") == 0)
        return TR_ZIP_GZIP;
    return dot && strcmp(dot, ".zst") == 0 ? TR_ZIP_ZSTD : TR_ZIP_NONE;
}

enum tr_status tr_unzip_open(enum tr_zip kind, struct tr_unzip **out)
{
    struct tr_unzip *z = calloc(1, sizeof *z);
    bool is_ok = z != NULL;
    if (is_ok && kind == TR_ZIP_GZIP)
        is_ok = inflateInit2(&z->gzip, 15 + 16) == Z_OK; /* 16: accepts a gzip header only */
    else if (is_ok)
        is_ok = (z->zstd = ZSTD_createDStream()) != NULL;
    if (!is_ok) {
        free(z);
        return tr_fail(TR_NOMEM, "no memory to decompress");
    }
    z->kind = kind;
    *out = z;
    return TR_OK;
}

void tr_unzip_close(struct tr_unzip *z)
{
    if (!z)
        return;
    if (z->kind == TR_ZIP_GZIP)
        inflateEnd(&z->gzip);
    ZSTD_freeDStream(z->zstd);
    free(z);
}

/* The damage is at or before the byte that the decoder stopped at. */
static enum tr_status fail_at(const struct tr_unzip *z, size_t n_in, size_t n_out, const char *format, const char *why)
{
    return tr_fail(TR_USAGE,
                   "byte %" PRIu64 ": the file is not %s, or is damaged, after %" PRIu64
                   " bytes of text: %s; copy or make it again",
                   z->n_in + n_in, format, z->n_out + n_out, why);
}

static enum tr_status run_gzip(struct tr_unzip *z, const void *in, size_t *n_in, void *out, size_t *n_out)
{
    z_stream *g = &z->gzip;
    uInt n_give = *n_in < 1 << 30 ? (uInt)*n_in : 1 << 30, n_room = *n_out < 1 << 30 ? (uInt)*n_out : 1 << 30;
    g->next_in = (Bytef *)(uintptr_t)in; /* zlib takes a pointer to mutable bytes and only reads them */
    g->avail_in = n_give;
    g->next_out = out;
    g->avail_out = n_room;
    int rc = inflate(g, Z_NO_FLUSH);
    *n_in = n_give - g->avail_in;
    *n_out = n_room - g->avail_out;
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return rc == Z_MEM_ERROR ? tr_fail(TR_NOMEM, "no memory to decompress")
                                 : fail_at(z, *n_in, *n_out, "gzip", g->msg ? g->msg : "bad data");
    if (rc == Z_STREAM_END)
        inflateReset(g);
    z->is_inside = rc != Z_STREAM_END && (z->is_inside || *n_in > 0);
    return TR_OK;
}

static enum tr_status run_zstd(struct tr_unzip *z, const void *in, size_t *n_in, void *out, size_t *n_out)
{
    ZSTD_inBuffer i = { in, *n_in, 0 };
    ZSTD_outBuffer o = { out, *n_out, 0 };
    size_t rc = ZSTD_decompressStream(z->zstd, &o, &i);
    *n_in = i.pos;
    *n_out = o.pos;
    if (ZSTD_isError(rc))
        return fail_at(z, i.pos, o.pos, "zstd", ZSTD_getErrorName(rc));
    if (*n_in > 0 || *n_out > 0)
        z->is_inside = rc != 0;
    return TR_OK;
}

enum tr_status tr_unzip_run(struct tr_unzip *z, const void *in, size_t *n_in, void *out, size_t *n_out)
{
    TR_PASS(z->kind == TR_ZIP_GZIP ? run_gzip(z, in, n_in, out, n_out) : run_zstd(z, in, n_in, out, n_out));
    z->n_in += *n_in;
    z->n_out += *n_out;
    if (z->n_out > TR_ZIP_FREE && z->n_out / TR_ZIP_RATIO > z->n_in)
        return tr_fail(TR_USAGE,
                       "%" PRIu64 " compressed bytes became %" PRIu64
                       ", more than %d times as many, which text never does; if it is text, decompress the file first",
                       z->n_in, z->n_out, TR_ZIP_RATIO);
    return TR_OK;
}

enum tr_status tr_unzip_end(const struct tr_unzip *z)
{
    return z->is_inside ? tr_fail(TR_USAGE,
                                  "byte %" PRIu64 ": the file ends inside a compressed block, after %" PRIu64
                                  " bytes of text: it was truncated",
                                  z->n_in, z->n_out)
                        : TR_OK;
}
