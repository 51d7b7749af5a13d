/* hfdir.c - reading the weights of a Hugging Face model directory.
 *
 * Tensors of the files (refs) and the weights that a model asks for (items) are two lists: a quantised weight is one
 * item and several refs (hfquant.c). Invariant after open: every name is found once, and the index (when there is one)
 * and the shards say the same, both ways. Links are refused because a downloaded directory could point them anywhere;
 * the one exception is the shape the hub cache gives its snapshots, ../../blobs/<hash>. Pickles are recognised by name
 * only, to say what to do.
 */
#include "ckpt/hf_impl.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    struct stat info;
    char target[TR_PATH_MAX], text[160];
    TR_PASS(tr_path_join(path, dir, name));
    if (lstat(path, &info) != 0)
        return tr_fail(TR_USAGE, "%s: %s", path, strerror(errno));
    if (!S_ISLNK(info.st_mode))
        return TR_OK;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return tr_fail(TR_IO, "%s: readlink: %s", path, strerror(errno));
    target[n] = '\0';
    if (!is_hub_blob(target))
        return tr_fail(TR_USAGE, "%s is a link to %s, outside the model directory; put the file itself there", path,
                       tr_escape(target, text, sizeof text));
    return TR_OK;
}

static enum tr_status open_shard(const struct tr_hf *hf, const char *dir, const char *name, struct tr_st **out)
{
    char path[TR_PATH_MAX];
    const struct tr_sums_file *sums = NULL;
    TR_PASS(member_path(dir, name, path));
    TR_PASS(tr_sums_find(hf->sums, dir, name, &sums));
    return tr_st_open_sums(path, sums, out);
}

/* ---- tensors of the files ---- */

const struct tr_st_tensor *tr_hf_ref_tensor(const struct tr_hf *hf, size_t ref)
{
    TR_BUG_ON(ref >= hf->n_refs);
    return tr_st_tensor(hf->shards[hf->refs[ref].shard], hf->refs[ref].tensor);
}

const char *tr_hf_ref_path(const struct tr_hf *hf, size_t ref)
{
    TR_BUG_ON(ref >= hf->n_refs);
    return tr_st_path(hf->shards[hf->refs[ref].shard]);
}

enum tr_status tr_hf_ref_read(const struct tr_hf *hf, size_t ref, int64_t first, int64_t n, void *dst,
                              enum tr_dtype dtype)
{
    TR_BUG_ON(ref >= hf->n_refs || first < 0 || n < 0);
    return tr_st_read(hf->shards[hf->refs[ref].shard], hf->refs[ref].tensor, (uint64_t)first, (size_t)n, dst, dtype);
}

enum tr_status tr_hf_ref_bytes(const struct tr_hf *hf, size_t ref, uint64_t first, size_t n, void *dst)
{
    TR_BUG_ON(ref >= hf->n_refs);
    return tr_st_read_bytes(hf->shards[hf->refs[ref].shard], hf->refs[ref].tensor, first, n, dst);
}

static const char *ref_name(const struct tr_hf *hf, size_t i)
{
    return tr_hf_ref_tensor(hf, i)->name;
}

static const char *item_name(const struct tr_hf *hf, size_t i)
{
    return hf->items[i].t.name;
}

typedef const char *name_fn(const struct tr_hf *hf, size_t i);

/* Both lists, of refs and of items, are sorted and searched by the names that a function gives. */
static bool find(const struct tr_hf *hf, const uint32_t *sorted, size_t n, name_fn *name_of, const char *name,
                 size_t *out)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strcmp(name, name_of(hf, sorted[mid]));
        if (order == 0) {
            *out = sorted[mid];
            return true;
        }
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return false;
}

static int by_ref_name(const void *a, const void *b, void *hf)
{
    return strcmp(ref_name(hf, *(const uint32_t *)a), ref_name(hf, *(const uint32_t *)b));
}

static int by_item_name(const void *a, const void *b, void *hf)
{
    return strcmp(item_name(hf, *(const uint32_t *)a), item_name(hf, *(const uint32_t *)b));
}

bool tr_hf_ref_find(const struct tr_hf *hf, const char *name, size_t *out_ref)
{
    return find(hf, hf->refs_by_name, hf->n_refs, ref_name, name, out_ref);
}

static enum tr_status number_tensors(struct tr_hf *hf)
{
    size_t n = 0;
    char text[96];
    for (size_t s = 0; s < hf->n_shards; s++)
        n += tr_st_count(hf->shards[s]);
    if (n > TR_ST_MAX_TENSORS)
        return tr_fail(TR_USAGE, "%zu tensors; the limit is %d", n, TR_ST_MAX_TENSORS);
    TR_PASS(TR_ALLOC(hf->refs, n + 1, "%zu tensors", n));
    TR_PASS(TR_ALLOC(hf->refs_by_name, n + 1, "%zu tensors", n));
    for (size_t s = 0; s < hf->n_shards; s++) {
        for (size_t t = 0; t < tr_st_count(hf->shards[s]); t++) {
            hf->refs_by_name[hf->n_refs] = (uint32_t)hf->n_refs;
            hf->refs[hf->n_refs++] = (struct tr_hf_ref){ (uint32_t)s, (uint32_t)t };
        }
    }
    const uint32_t *sorted = hf->refs_by_name;
    qsort_r(hf->refs_by_name, n, sizeof *hf->refs_by_name, by_ref_name, hf);
    for (size_t i = 1; i < n; i++)
        if (strcmp(ref_name(hf, sorted[i - 1]), ref_name(hf, sorted[i])) == 0)
            return tr_fail(TR_USAGE, "tensor \"%s\" is in %s and in %s",
                           tr_escape(ref_name(hf, sorted[i]), text, sizeof text), tr_hf_ref_path(hf, sorted[i - 1]),
                           tr_hf_ref_path(hf, sorted[i]));
    return TR_OK;
}

/* The same for the weights; only planes of a quantised one can make a name twice. */
static enum tr_status number_items(struct tr_hf *hf)
{
    char text[96];
    TR_PASS(TR_ALLOC(hf->by_name, hf->n + 1, "%zu tensors", hf->n));
    for (size_t i = 0; i < hf->n; i++)
        hf->by_name[i] = (uint32_t)i;
    qsort_r(hf->by_name, hf->n, sizeof *hf->by_name, by_item_name, hf);
    for (size_t i = 1; i < hf->n; i++)
        if (strcmp(item_name(hf, hf->by_name[i - 1]), item_name(hf, hf->by_name[i])) == 0)
            return tr_fail(TR_USAGE, "tensor \"%s\" is there twice, quantised and as it is",
                           tr_escape(item_name(hf, hf->by_name[i]), text, sizeof text));
    return TR_OK;
}

/* Both lists are sorted and without duplicates: walk them side by side. */
static enum tr_status check_map(const struct tr_hf *hf, const struct tr_hf_index *ix)
{
    char text[96], shard[96];
    for (size_t i = 0, m = 0; i < hf->n_refs || m < ix->n_map; i++, m++) {
        size_t at = i < hf->n_refs ? hf->refs_by_name[i] : 0;
        int order = i == hf->n_refs ? 1 : m == ix->n_map ? -1 : strcmp(ref_name(hf, at), ix->map[m].name);
        if (order < 0)
            return tr_fail(TR_USAGE, "%s holds tensor \"%s\", which the index does not list", tr_hf_ref_path(hf, at),
                           tr_escape(ref_name(hf, at), text, sizeof text));
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
    TR_TRY(tr_sums_read(hf->sums, dir, TR_HF_INDEX_NAME, TR_HF_MAX_INDEX, &text, &n));
    TR_TRY(tr_hf_parse_index(text, n, &ix));
    hf->shards = calloc(ix.n_shards, sizeof(struct tr_st *));
    if (!hf->shards)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for %zu shards", ix.n_shards));
    for (size_t s = 0; s < ix.n_shards; s++) {
        TR_TRY(open_shard(hf, dir, ix.shards[s], &hf->shards[s]));
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
    hf->shards = calloc(1, sizeof(struct tr_st *));
    if (!hf->shards)
        return tr_fail(TR_NOMEM, "no memory for a shard");
    TR_PASS(open_shard(hf, dir, name, &hf->shards[0]));
    hf->n_shards = 1;
    return number_tensors(hf);
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
    return tr_hf_open_sums(dir, NULL, out);
}

/* name: this file alone, as it is; NULL: the weights of the directory, as its config.json says they are stored. */
static enum tr_status open_any(const char *dir, const char *name, const struct tr_sums *sums, struct tr_hf **out)
{
    enum tr_status st = TR_OK;
    struct tr_hf *hf = NULL;
    TR_TRY(TR_ALLOC(hf, 1, "a model directory"));
    hf->sums = sums;
    if (name || is_present(dir, "model.safetensors")) /* first, as transformers does */
        TR_TRY(open_single(hf, dir, name ? name : "model.safetensors"));
    else if (is_present(dir, TR_HF_INDEX_NAME))
        TR_TRY(open_indexed(hf, dir));
    else
        TR_TRY(refuse_without_weights(dir));
    TR_TRY(tr_hf_interpret(hf, name ? NULL : dir));
    TR_TRY(number_items(hf));
    *out = hf;
    return TR_OK;
out:
    tr_hf_close(hf);
    return st;
}

enum tr_status tr_hf_open_sums(const char *dir, const struct tr_sums *sums, struct tr_hf **out)
{
    return open_any(dir, NULL, sums, out);
}

enum tr_status tr_hf_open_file(const char *dir, const char *name, const struct tr_sums *sums, struct tr_hf **out)
{
    return open_any(dir, name, sums, out);
}

void tr_hf_close(struct tr_hf *hf)
{
    if (!hf)
        return;
    for (size_t s = 0; s < hf->n_shards; s++)
        tr_st_close(hf->shards[s]);
    for (size_t i = 0; hf->items && i < hf->n; i++)
        free(hf->items[i].own_name);
    free(hf->shards);
    free(hf->refs);
    free(hf->refs_by_name);
    free(hf->items);
    free(hf->by_name);
    free(hf);
}

size_t tr_hf_count(const struct tr_hf *hf)
{
    return hf->n;
}

static const struct tr_hf_item *item(const struct tr_hf *hf, size_t i)
{
    TR_BUG_ON(i >= hf->n);
    return &hf->items[i];
}

const struct tr_st_tensor *tr_hf_tensor(const struct tr_hf *hf, size_t i)
{
    return &item(hf, i)->t;
}

const char *tr_hf_shard(const struct tr_hf *hf, size_t i)
{
    return tr_hf_ref_path(hf, (size_t)item(hf, i)->plane[0]);
}

bool tr_hf_find(const struct tr_hf *hf, const char *name, size_t *out_i)
{
    return find(hf, hf->by_name, hf->n, item_name, name, out_i);
}

static enum tr_status check_range(const struct tr_hf_item *it, uint64_t first, size_t n)
{
    if (first <= it->t.n_elems && n <= it->t.n_elems - first)
        return TR_OK;
    return tr_hf_refuse(it, "%zu elements from %" PRIu64 " are outside its %" PRIu64, n, first, it->t.n_elems);
}

enum tr_status tr_hf_read(const struct tr_hf *hf, size_t i, uint64_t first, size_t n, void *dst,
                          enum tr_dtype dst_dtype)
{
    const struct tr_hf_item *it = item(hf, i);
    const struct tr_hf_ref *ref = &hf->refs[it->plane[0]];
    if (!it->scheme)
        return tr_st_read(hf->shards[ref->shard], ref->tensor, first, n, dst, dst_dtype);
    enum tr_status st = check_range(it, first, n);
    if (st != TR_OK || n == 0)
        return st;
    if (dst_dtype == TR_F32)
        return tr_hf_decode(hf, it, (int64_t)first, (int64_t)n, dst);
    if (!tr_st_can_convert(TR_F32, dst_dtype))
        return tr_hf_refuse(it, "it cannot be read as %s", tr_dtype_name(dst_dtype));
    float chunk[2048];
    for (size_t at = 0, n_now; at < n && st == TR_OK; at += n_now) {
        n_now = n - at < TR_COUNT_OF(chunk) ? n - at : TR_COUNT_OF(chunk);
        st = tr_hf_decode(hf, it, (int64_t)(first + at), (int64_t)n_now, chunk);
        if (st == TR_OK)
            tr_convert(chunk, TR_F32, (char *)dst + at * tr_dtype_bytes(dst_dtype), dst_dtype, n_now);
    }
    return st;
}

bool tr_hf_is_transposed(const struct tr_hf *hf, size_t i)
{
    const struct tr_hf_item *it = item(hf, i);
    return it->scheme && (it->scheme->is_transposed || it->is_swapped);
}

const struct tr_storage_format *tr_hf_storage(const struct tr_hf *hf, size_t i)
{
    const struct tr_hf_item *it = item(hf, i);
    return it->scheme && it->scheme->storage ? it->scheme->storage(it) : NULL;
}

enum tr_status tr_hf_read_planes(const struct tr_hf *hf, size_t i, uint64_t first, size_t n, void *const *planes)
{
    const struct tr_hf_item *it = item(hf, i);
    const struct tr_storage_format *f = tr_hf_storage(hf, i);
    TR_BUG_ON(!f || first % (uint64_t)f->grain != 0);
    enum tr_status st = check_range(it, first, n);
    return st == TR_OK && n > 0 ? it->scheme->read_planes(hf, it, (int64_t)first, (int64_t)n, planes) : st;
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
        const char *name = item_name(hf, i);
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
