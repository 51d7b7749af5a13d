/* hfdir.c - reading the weights of a Hugging Face model directory.
 *
 * Invariant after open: every tensor name is found once, and the index (when there is one) and the shards say the same,
 * both ways. Links are refused because a downloaded directory could point them anywhere; the one exception is the shape
 * the hub cache gives its snapshots, ../../blobs/<hash>. Pickles are recognised by name only, to say what to do.
 */
#include "ckpt/hfdir.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ref {
    uint32_t shard, tensor;
};

struct tr_hf {
    struct tr_st **shards;
    size_t n_shards;
    struct ref *refs; /* shard by shard */
    uint32_t *by_name;
    size_t n;
};

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text), n_tail = strlen(tail);
    return n >= n_tail && strcmp(text + n - n_tail, tail) == 0;
}

static bool is_hub_blob(const char *target)
{
    static const char blobs[] = "../../blobs/";
    const char *hash = target + sizeof blobs - 1;
    return strncmp(target, blobs, sizeof blobs - 1) == 0 && *hash && strspn(hash, "0123456789abcdef") == strlen(hash);
}

static bool is_present(const char *dir, const char *name)
{
    char path[TR_PATH_MAX];
    struct stat info;
    return tr_path_join(path, dir, name) == TR_OK && lstat(path, &info) == 0;
}

/* The path of a file of the directory that may be opened. */
static enum tr_status member_path(const char *dir, const char *name, char path[TR_PATH_MAX])
{
    enum tr_status st = TR_OK;
    struct stat info;
    char target[TR_PATH_MAX], text[160];
    TR_TRY(tr_path_join(path, dir, name));
    if (lstat(path, &info) != 0)
        return tr_fail(TR_USAGE, "%s: %s", path, strerror(errno));
    if (!S_ISLNK(info.st_mode))
        return TR_OK;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return tr_fail(TR_IO, "%s: readlink: %s", path, strerror(errno));
    target[n] = '\0';
    if (!is_hub_blob(target))
        st = tr_fail(TR_USAGE, "%s is a link to %s, outside the model directory; put the file itself there", path,
                     tr_escape(target, text, sizeof text));
out:
    return st;
}

static enum tr_status open_shard(const char *dir, const char *name, struct tr_st **out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    TR_TRY(member_path(dir, name, path));
    TR_TRY(tr_st_open(path, out));
out:
    return st;
}

static const char *name_of(const struct tr_hf *hf, size_t i)
{
    return tr_hf_tensor(hf, i)->name;
}

static int by_name(const void *a, const void *b, void *hf)
{
    return strcmp(name_of(hf, *(const uint32_t *)a), name_of(hf, *(const uint32_t *)b));
}

static enum tr_status number_tensors(struct tr_hf *hf)
{
    size_t n = 0;
    char text[96];
    for (size_t s = 0; s < hf->n_shards; s++)
        n += tr_st_count(hf->shards[s]);
    if (n > TR_ST_MAX_TENSORS)
        return tr_fail(TR_USAGE, "%zu tensors; the limit is %d", n, TR_ST_MAX_TENSORS);
    hf->refs = malloc((n + 1) * sizeof *hf->refs);
    hf->by_name = malloc((n + 1) * sizeof *hf->by_name);
    if (!hf->refs || !hf->by_name)
        return tr_fail(TR_NOMEM, "no memory for %zu tensors", n);
    for (size_t s = 0; s < hf->n_shards; s++) {
        for (size_t t = 0; t < tr_st_count(hf->shards[s]); t++) {
            hf->by_name[hf->n] = (uint32_t)hf->n;
            hf->refs[hf->n++] = (struct ref){ (uint32_t)s, (uint32_t)t };
        }
    }
    qsort_r(hf->by_name, n, sizeof *hf->by_name, by_name, hf);
    for (size_t i = 1; i < n; i++)
        if (strcmp(name_of(hf, hf->by_name[i - 1]), name_of(hf, hf->by_name[i])) == 0)
            return tr_fail(TR_USAGE, "tensor \"%s\" is in %s and in %s",
                           tr_escape(name_of(hf, hf->by_name[i]), text, sizeof text),
                           tr_hf_shard(hf, hf->by_name[i - 1]), tr_hf_shard(hf, hf->by_name[i]));
    return TR_OK;
}

/* Both lists are sorted and without duplicates: walk them side by side. */
static enum tr_status check_map(const struct tr_hf *hf, const struct tr_hf_index *ix)
{
    char text[96], shard[96];
    for (size_t i = 0, m = 0; i < hf->n || m < ix->n_map; i++, m++) {
        size_t at = i < hf->n ? hf->by_name[i] : 0;
        int order = i == hf->n ? 1 : m == ix->n_map ? -1 : strcmp(name_of(hf, at), ix->map[m].name);
        if (order < 0)
            return tr_fail(TR_USAGE, "%s holds tensor \"%s\", which the index does not list", tr_hf_shard(hf, at),
                           tr_escape(name_of(hf, at), text, sizeof text));
        const char *mapped = ix->map[m].shard;
        if (order > 0 || strcmp(ix->shards[hf->refs[at].shard], mapped) != 0)
            return tr_fail(TR_USAGE, "the index maps tensor \"%s\" to %s, which does not hold it",
                           tr_escape(ix->map[m].name, text, sizeof text), tr_escape(mapped, shard, sizeof shard));
    }
    return TR_OK;
}

static enum tr_status open_indexed(struct tr_hf *hf, const char *dir)
{
    enum tr_status st = TR_OK;
    struct tr_hf_index ix = { 0 };
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    TR_TRY(member_path(dir, TR_HF_INDEX_NAME, path));
    TR_TRY(tr_file_read(path, TR_HF_MAX_INDEX, &text, &n));
    TR_TRY(tr_hf_parse_index(text, n, &ix));
    hf->shards = calloc(ix.n_shards, sizeof(struct tr_st *));
    if (!hf->shards)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for %zu shards", ix.n_shards));
    for (size_t s = 0; s < ix.n_shards; s++) {
        TR_TRY(open_shard(dir, ix.shards[s], &hf->shards[s]));
        hf->n_shards++;
    }
    TR_TRY(number_tensors(hf));
    TR_TRY(check_map(hf, &ix));
out:
    tr_hf_index_release(&ix);
    free(text);
    return st;
}

static enum tr_status open_single(struct tr_hf *hf, const char *dir, const char *name)
{
    enum tr_status st = TR_OK;
    hf->shards = calloc(1, sizeof(struct tr_st *));
    if (!hf->shards)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a shard"));
    TR_TRY(open_shard(dir, name, &hf->shards[0]));
    hf->n_shards = 1;
    TR_TRY(number_tensors(hf));
out:
    return st;
}

static enum tr_status refuse_without_weights(const char *dir)
{
    static const char *const pickles[] = { ".bin", ".pt", ".pth", ".ckpt" };
    DIR *d = opendir(dir);
    if (!d)
        return tr_fail(TR_USAGE, "model directory %s: %s", dir, strerror(errno));
    char found[256] = "", text[160];
    for (const struct dirent *e; !found[0] && (e = readdir(d));)
        for (size_t i = 0; i < TR_COUNT_OF(pickles); i++)
            if (ends_with(e->d_name, pickles[i]))
                memcpy(found, e->d_name, strlen(e->d_name) + 1);
    closedir(d);
    if (!found[0])
        return tr_fail(TR_USAGE, "%s has no weights: neither model.safetensors nor " TR_HF_INDEX_NAME, dir);
    return tr_fail(
        TR_USAGE,
        "%s has only pickled weights (%s), which can run code when loaded and are never opened; convert them "
        "once in Python: AutoModelForCausalLM.from_pretrained(dir).save_pretrained(out)",
        dir, tr_escape(found, text, sizeof text));
}

enum tr_status tr_hf_open(const char *dir, struct tr_hf **out)
{
    enum tr_status st = TR_OK;
    struct tr_hf *hf = calloc(1, sizeof *hf);
    if (!hf)
        return tr_fail(TR_NOMEM, "no memory for a model directory");
    if (is_present(dir, "model.safetensors")) /* first, as transformers does */
        TR_TRY(open_single(hf, dir, "model.safetensors"));
    else if (is_present(dir, TR_HF_INDEX_NAME))
        TR_TRY(open_indexed(hf, dir));
    else
        TR_TRY(refuse_without_weights(dir));
    *out = hf;
    return TR_OK;
out:
    tr_hf_close(hf);
    return st;
}

enum tr_status tr_hf_open_file(const char *dir, const char *name, struct tr_hf **out)
{
    struct tr_hf *hf = calloc(1, sizeof *hf);
    if (!hf)
        return tr_fail(TR_NOMEM, "no memory for a model directory");
    enum tr_status st = open_single(hf, dir, name);
    if (st == TR_OK)
        *out = hf;
    else
        tr_hf_close(hf);
    return st;
}

void tr_hf_close(struct tr_hf *hf)
{
    if (!hf)
        return;
    for (size_t s = 0; s < hf->n_shards; s++)
        tr_st_close(hf->shards[s]);
    free(hf->shards);
    free(hf->refs);
    free(hf->by_name);
    free(hf);
}

size_t tr_hf_count(const struct tr_hf *hf)
{
    return hf->n;
}

static const struct ref *ref(const struct tr_hf *hf, size_t i)
{
    TR_BUG_ON(i >= hf->n);
    return &hf->refs[i];
}

const struct tr_st_tensor *tr_hf_tensor(const struct tr_hf *hf, size_t i)
{
    return tr_st_tensor(hf->shards[ref(hf, i)->shard], hf->refs[i].tensor);
}

const char *tr_hf_shard(const struct tr_hf *hf, size_t i)
{
    return tr_st_path(hf->shards[ref(hf, i)->shard]);
}

bool tr_hf_find(const struct tr_hf *hf, const char *name, size_t *out_i)
{
    size_t lo = 0, hi = hf->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strcmp(name, name_of(hf, hf->by_name[mid]));
        if (order == 0) {
            *out_i = hf->by_name[mid];
            return true;
        }
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return false;
}

const struct tr_st *tr_hf_file(const struct tr_hf *hf, size_t i, size_t *out_tensor)
{
    *out_tensor = ref(hf, i)->tensor;
    return hf->shards[ref(hf, i)->shard];
}

enum tr_status tr_hf_read(const struct tr_hf *hf, size_t i, uint64_t first, size_t n, void *dst,
                          enum tr_dtype dst_dtype)
{
    size_t tensor = 0;
    const struct tr_st *f = tr_hf_file(hf, i, &tensor);
    return tr_st_read(f, tensor, first, n, dst, dst_dtype);
}

/* ---- what is there against what is wanted ---- */

enum { REPORT_LINES = 20 };

struct report {
    size_t n_missing, n_extra, n_wrong;
    struct tr_str lines;
};

static void add_shape(struct tr_str *s, int n_dims, const int64_t *dims)
{
    tr_str_addf(s, "[");
    for (int d = 0; d < n_dims; d++)
        tr_str_addf(s, "%s%" PRId64, d ? ", " : "", dims[d]);
    tr_str_addf(s, "]");
}

static bool has_room(const struct report *r)
{
    return r->n_missing + r->n_extra + r->n_wrong <= REPORT_LINES;
}

static void check_wanted(const struct tr_hf *hf, const struct tr_st_entry *want, struct report *r)
{
    size_t i;
    if (!tr_hf_find(hf, want->name, &i)) {
        r->n_missing++;
        if (has_room(r))
            tr_str_addf(&r->lines, "\n  missing: %s", want->name);
        return;
    }
    const struct tr_st_tensor *t = tr_hf_tensor(hf, i);
    bool is_shaped =
        t->n_dims == want->n_dims && memcmp(t->dims, want->dims, (size_t)want->n_dims * sizeof want->dims[0]) == 0;
    bool is_readable = tr_st_can_convert(t->dtype, want->dtype);
    if (is_shaped && is_readable)
        return;
    r->n_wrong++;
    if (!has_room(r))
        return;
    tr_str_addf(&r->lines, "\n  wrong: %s is %s ", want->name, t->dtype_name);
    add_shape(&r->lines, t->n_dims, t->dims);
    tr_str_addf(&r->lines, ", wanted %s ", tr_dtype_safetensors(want->dtype));
    add_shape(&r->lines, want->n_dims, want->dims);
}

static int by_wanted_name(const void *a, const void *b)
{
    return strcmp((*(const struct tr_st_entry *const *)a)->name, (*(const struct tr_st_entry *const *)b)->name);
}

static void check_extra(const struct tr_hf *hf, const struct tr_st_entry *const *sorted, size_t n,
                        tr_hf_ignore_fn *may_ignore, const void *ctx, struct report *r)
{
    char text[160];
    for (size_t i = 0; i < hf->n; i++) {
        const char *name = name_of(hf, i);
        const struct tr_st_entry key = { .name = name }, *at = &key;
        if (bsearch(&at, sorted, n, sizeof(const struct tr_st_entry *), by_wanted_name) || may_ignore(ctx, name))
            continue;
        r->n_extra++;
        if (has_room(r))
            tr_str_addf(&r->lines, "\n  extra: %s", tr_escape(name, text, sizeof text));
    }
}

bool tr_hf_ignorable(const void *ctx, const char *name)
{
    (void)ctx;
    /* Buffers that old transformers versions saved: masks and rotary frequencies, all recomputed. */
    static const char *const tails[] = { ".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias" };
    for (size_t i = 0; i < TR_COUNT_OF(tails); i++)
        if (ends_with(name, tails[i]))
            return true;
    return false;
}

enum tr_status tr_hf_check(const struct tr_hf *hf, const struct tr_st_entry *wanted, size_t n_wanted,
                           tr_hf_ignore_fn *may_ignore, const void *ctx)
{
    enum tr_status st = TR_OK;
    struct report r = { 0 };
    const struct tr_st_entry **sorted = malloc((n_wanted + 1) * sizeof(const struct tr_st_entry *));
    if (!sorted)
        return tr_fail(TR_NOMEM, "no memory for %zu names", n_wanted);
    for (size_t i = 0; i < n_wanted; i++) {
        sorted[i] = &wanted[i];
        check_wanted(hf, &wanted[i], &r);
    }
    qsort(sorted, n_wanted, sizeof(const struct tr_st_entry *), by_wanted_name);
    check_extra(hf, sorted, n_wanted, may_ignore ? may_ignore : tr_hf_ignorable, ctx, &r);
    size_t n = r.n_missing + r.n_extra + r.n_wrong;
    if (n > 0) /* the counts lead, so that a cut text still tells them */
        st = tr_fail(TR_USAGE, "weights do not fit the model: %zu missing, %zu extra, %zu of wrong shape or dtype%s%s",
                     r.n_missing, r.n_extra, r.n_wrong, n > REPORT_LINES ? "; the first 20:" : ":",
                     tr_str_ok(&r.lines) ? r.lines.p : "");
    tr_str_release(&r.lines);
    free(sorted);
    return st;
}
