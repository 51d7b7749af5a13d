/* fuzz_shard.c - any bytes as a token shard: refused, or readable in full without a fault.
 *
 * The first input byte says whether both checksums are made right first, so that the fuzzer gets past them.
 */
#include "data/data.h"
#include "data/le.h"
#include "data/shard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void put_hash(unsigned char *p, struct tr_hash128 h)
{
    tr_put_u64(p, h.lo);
    tr_put_u64(p + 8, h.hi);
}

static void read_all(struct tr_shard *s)
{
    const struct tr_shard_info *i = tr_shard_get_info(s);
    int fd = -1;
    int32_t id, target;
    uint32_t weight;
    int64_t n_targets;
    uint64_t doc;
    if (tr_shard_begin(s, &fd) != TR_OK)
        abort();
    for (uint64_t t = 0; t < i->n_tokens; t++) {
        target = 0;
        if (tr_shard_read(s, fd, t, 1, &id) != TR_OK || tr_shard_mask(s, fd, t, 1, &target, &n_targets) != TR_OK ||
            tr_shard_weights(s, fd, t, 1, &weight) != TR_OK || tr_shard_find_doc(s, fd, t, &doc) != TR_OK)
            abort();
        if (id < 0 || (uint64_t)id >= i->vocab_size || doc >= i->n_docs)
            abort();
    }
    tr_shard_end(s, fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[64];
    struct tr_shard *s = NULL;
    if (n < 1 || n > 4096)
        return 0;
    bool repair = bytes[0] & 1;
    unsigned char *copy = malloc(n);
    if (!copy)
        return 0;
    memcpy(copy, bytes + 1, --n);
    if (repair && n >= TR_SHARD_HEADER_BYTES) {
        put_hash(copy + 96, tr_hash(copy + TR_SHARD_HEADER_BYTES, n - TR_SHARD_HEADER_BYTES));
        put_hash(copy + 112, tr_hash(copy, 112));
    }
    int fd = memfd_create("shard", MFD_CLOEXEC);
    if (fd >= 0 && tr_write_all(fd, "memfd", copy, n) == TR_OK &&
        tr_format(path, sizeof path, "/proc/self/fd/%d", fd) == TR_OK && tr_shard_open(path, INT32_MAX, &s) == TR_OK)
        read_all(s);
    tr_shard_close(s);
    if (fd >= 0)
        close(fd);
    free(copy);
    return 0;
}
