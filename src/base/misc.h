/* misc.h - hashing, clock, processes, failpoints: small things that every room uses. */
#ifndef TR_BASE_MISC_H
#define TR_BASE_MISC_H

#include "base/status.h"

/* n zeroed elements (one where n is 0), which the caller frees; TR_NOMEM says "no memory for " and the text, which
 * names the thing: TR_ALLOC(t->rows, n, "%zu rows", n). `array` is an lvalue of pointer type, written only on success.
 */
#define TR_ALLOC(array, n, ...) tr_alloc(&(array), sizeof *(array), (n), __VA_ARGS__)
enum tr_status tr_alloc(void *array, size_t size, size_t n, const char *fmt, ...) TR_PRINTF(4, 5);

/* Room for n elements in an array that begins as NULL with *n_cap 0; grows by doubling, so adding one at a time is
 * cheap. TR_ROOM: TR_NOMEM as above; TR_GROW: false. Then the array is as it was. */
#define TR_ROOM(array, n, n_cap, ...) tr_room(&(array), sizeof *(array), (n), (n_cap), __VA_ARGS__)
enum tr_status tr_room(void *array, size_t size, size_t n, size_t *n_cap, const char *fmt, ...) TR_PRINTF(5, 6);
#define TR_GROW(array, n, n_cap) tr_grow(&(array), sizeof *(array), (n), (n_cap))
bool tr_grow(void *array, size_t size, size_t n, size_t *n_cap);

/* Blocks of memory that are released together. tr_keep: a copy of n bytes, or n zeroes where bytes is NULL; NULL: no
 * memory. */
struct tr_owned;
void *tr_keep(struct tr_owned **kept, const void *bytes, size_t n);
void tr_owned_release(struct tr_owned **kept);

/* Orders for qsort and bsearch: of elements that are, or begin with, a pointer to text; of doubles, lowest first. */
int tr_by_text(const void *a, const void *b);
int tr_by_double(const void *a, const void *b);
/* The first of n rows of `size` bytes that is, or begins with, a pointer to this text; NULL: there is none. */
const void *tr_row_find(const void *rows, size_t n, size_t size, const char *text);
#define TR_ROW(table, text) tr_row_find((table), TR_COUNT_OF(table), sizeof *(table), (text))

/* XXH3-128, streaming. Hex is 32 digits. */
struct tr_hash128 {
    uint64_t lo, hi;
};
struct tr_hasher;
enum tr_status tr_hasher_open(struct tr_hasher **out);
void tr_hasher_add(struct tr_hasher *h, const void *p, size_t n);
struct tr_hash128 tr_hasher_get(const struct tr_hasher *h);
void tr_hasher_clear(struct tr_hasher *h);
void tr_hasher_close(struct tr_hasher *h);
struct tr_hash128 tr_hash(const void *p, size_t n);
void tr_hash_hex(struct tr_hash128 h, char out[33]);
bool tr_hash_eq(struct tr_hash128 a, struct tr_hash128 b);

/* SHA-256, and HMAC under a key over parts as if they were one text. */
enum { TR_SHA256_BYTES = 32 };
struct tr_bytes {
    const void *p;
    size_t n;
};
void tr_sha256(const void *p, size_t n, unsigned char out[TR_SHA256_BYTES]);
void tr_hmac_sha256(const void *key, size_t n_key, const struct tr_bytes *parts, size_t n_parts,
                    unsigned char out[TR_SHA256_BYTES]);
bool tr_same_bytes(const void *a, const void *b, size_t n); /* in a time that does not depend on where they differ */

int64_t tr_clock_us(void);  /* monotonic: the only clock that decides anything */
double tr_clock_wall(void); /* seconds since 1970: for people only */

/* 'R', 'S', 'D', 'T' (stopped by a signal), 'Z' ... of a process of this host; '?': there is none. */
char tr_process_state(int pid);

/* CPU time of all threads of a process so far: time they ran, and time they were ready to run but had no core. */
struct tr_cores_us {
    int64_t ran, queued;
};
struct tr_cores_us tr_process_cores(int pid);

/* A shared library that is looked for at run time. Every name is found, or nothing is open and why says what is
 * missing. The library stays open for good: its threads and handlers may outlive a caller. */
struct tr_symbol {
    const char *name;
    void *function; /* the address of a pointer to a function */
};
bool tr_library_find(const char *file, const struct tr_symbol *symbols, size_t n, char *why, size_t n_why);
/* The handle of the first of these libraries of NVIDIA that there is: where the loader looks, in the toolkit, or where
 * pip has put them for PyTorch. NULL ends the list; NULL: none of them is here. It stays open for good. */
void *tr_library_nvidia(const char *const *names);

/* TR_FAIL=point:action[:n[:rank[:generation]]][,...]; action = kill | stop | delay<ms> | error | spin | tell; n-th hit,
 * default 1; rank -1 = the launcher; "*:tell" writes the name of each point that is passed to stderr. Returns TR_OK, or
 * TR_IO when armed with "error" (text names the point). Costs one load when nothing is armed. */
enum tr_status tr_failpoint(const char *point);
enum tr_status tr_failpoint_setup(const char *spec, int rank); /* spec NULL: read TR_FAIL */

#endif
