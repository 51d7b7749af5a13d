/* hash.c - XXH3-128 of libxxhash: detects damage, not malice. The hex form is the one of `xxhsum -H2`. */
#include "base/misc.h"
#include <xxhash.h>
#include "base/banned.h"

struct tr_hasher {
    XXH3_state_t *state;
};

enum tr_status tr_hasher_open(struct tr_hasher **out)
{
    struct tr_hasher *h = malloc(sizeof *h);
    XXH3_state_t *state = XXH3_createState();
    if (!h || !state) {
        free(h);
        XXH3_freeState(state);
        return tr_fail(TR_NOMEM, "no memory for a hash state");
    }
    h->state = state;
    tr_hasher_clear(h);
    *out = h;
    return TR_OK;
}

void tr_hasher_close(struct tr_hasher *h)
{
    if (!h)
        return;
    XXH3_freeState(h->state);
    free(h);
}

void tr_hasher_clear(struct tr_hasher *h)
{
    XXH3_128bits_reset(h->state);
}

void tr_hasher_add(struct tr_hasher *h, const void *p, size_t n)
{
    if (n)
        XXH3_128bits_update(h->state, p, n);
}

static struct tr_hash128 of_xxh(XXH128_hash_t x)
{
    return (struct tr_hash128){ .lo = x.low64, .hi = x.high64 };
}

struct tr_hash128 tr_hasher_get(const struct tr_hasher *h)
{
    return of_xxh(XXH3_128bits_digest(h->state));
}

struct tr_hash128 tr_hash(const void *p, size_t n)
{
    return of_xxh(XXH3_128bits(n ? p : "", n));
}

void tr_hash_hex(struct tr_hash128 h, char out[33])
{
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, h.hi, h.lo);
}

bool tr_hash_eq(struct tr_hash128 a, struct tr_hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}
