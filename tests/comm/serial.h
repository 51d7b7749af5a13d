/* serial.h - what a collective must give, computed by one rank that can make every rank's input itself. */
#ifndef TR_TESTS_COMM_SERIAL_H
#define TR_TESTS_COMM_SERIAL_H

#include "comm/ranks.h"

/* Element i of what rank r puts in: magnitudes differ by 2^20, so that another order of summation shows. */
static inline double element(uint64_t seed, int r, size_t i)
{
    struct tr_philox x = tr_philox(seed, (uint64_t)r, i);
    return ((double)x.v[0] - 2147483648.0) / (double)(1u << (x.v[1] % 21 + 10));
}

static inline void put_element(enum tr_dtype dtype, void *p, size_t i, double x)
{
    switch (dtype) {
    case TR_F64:
        ((double *)p)[i] = x;
        break;
    case TR_I64:
        ((int64_t *)p)[i] = (int64_t)(x * 1e6);
        break;
    case TR_BF16:
        ((uint16_t *)p)[i] = tr_bf16_of_f32((float)x);
        break;
    case TR_F16:
        ((uint16_t *)p)[i] = tr_f16_of_f32((float)(x * 0x1p-8)); /* else most are infinite */
        break;
    default:
        ((float *)p)[i] = (float)x;
        break;
    }
}

static inline void fill(enum tr_dtype dtype, uint64_t seed, int rank, size_t first, size_t n, void *out)
{
    for (size_t i = 0; i < n; i++)
        put_element(dtype, out, i, element(seed, rank, first + i));
}

/* The definition of a reduction: element by element, ranks in order, one rounding for 16-bit types. */
static inline void serial_reduce(enum tr_dtype dtype, enum tr_reduce_op op, uint64_t seed, int size, size_t first,
                                 size_t n, void *out)
{
    for (size_t i = 0; i < n; i++) {
        double d = 0, dx;
        float f = 0, fx;
        int64_t l = 0, lx;
        for (int r = 0; r < size; r++) {
            char x[8] = { 0 };
            fill(dtype, seed, r, first + i, 1, x);
            memcpy(&dx, x, 8);
            memcpy(&lx, x, 8);
            memcpy(&fx, x, 4);
            if (dtype == TR_BF16 || dtype == TR_F16)
                tr_convert(x, dtype, &fx, TR_F32, 1);
            bool is_max = op == TR_MAX;
            d = r == 0 ? dx : is_max ? (d > dx ? d : dx) : d + dx;
            f = r == 0 ? fx : is_max ? (f > fx ? f : fx) : f + fx;
            l = r == 0 ? lx : is_max ? (l > lx ? l : lx) : (int64_t)((uint64_t)l + (uint64_t)lx);
        }
        if (op == TR_AVG) {
            d /= size;
            f /= (float)size;
            l /= size;
        }
        if (dtype == TR_F64)
            ((double *)out)[i] = d;
        else if (dtype == TR_I64)
            ((int64_t *)out)[i] = l;
        else
            tr_convert(&f, TR_F32, (char *)out + i * tr_dtype_bytes(dtype), dtype, 1);
    }
}

/* What `rank` must find in out (all of it that the kind writes); returns its elements. */
static inline size_t serial(const struct tr_coll *c, uint64_t seed, int rank, int size, void *out)
{
    size_t elem = tr_dtype_bytes(c->dtype), first, n, mine, n_mine;
    tr_shard(c->count, size, rank, &mine, &n_mine);
    switch (c->kind) {
    case TR_ALL_REDUCE:
        serial_reduce(c->dtype, c->op, seed, size, 0, c->count, out);
        return c->count;
    case TR_REDUCE_SCATTER:
        serial_reduce(c->dtype, c->op, seed, size, mine, n_mine, out);
        return n_mine;
    case TR_BROADCAST:
        fill(c->dtype, seed, c->root, 0, c->count, out);
        return c->count;
    default: /* gather: rank r's own elements; all to all: rank r's piece for us */
        for (int r = 0; r < size; r++) {
            tr_shard(c->count, size, r, &first, &n);
            fill(c->dtype, seed, r, c->kind == TR_ALL_GATHER ? first : mine, n, (char *)out + first * elem);
        }
        return c->count;
    }
}

#endif
