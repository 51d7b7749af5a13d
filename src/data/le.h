/* le.h - little-endian integers in files, on any host. Compilers turn these functions into plain loads and stores. */
#ifndef TR_DATA_LE_H
#define TR_DATA_LE_H

#include "base/compiler.h"

static inline uint16_t tr_get_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t tr_get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t tr_get_u64(const unsigned char *p)
{
    return (uint64_t)tr_get_u32(p) | (uint64_t)tr_get_u32(p + 4) << 32;
}

static inline void tr_put_u16(unsigned char *p, uint16_t v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}

static inline void tr_put_u32(unsigned char *p, uint32_t v)
{
    tr_put_u16(p, (uint16_t)v);
    tr_put_u16(p + 2, (uint16_t)(v >> 16));
}

static inline void tr_put_u64(unsigned char *p, uint64_t v)
{
    tr_put_u32(p, (uint32_t)v);
    tr_put_u32(p + 4, (uint32_t)(v >> 32));
}

#endif
