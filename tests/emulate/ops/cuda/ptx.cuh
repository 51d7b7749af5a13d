/* ptx.cuh - the instructions of src/ops/cuda/ptx.cuh, done by a CPU: what the PTX manual says of fragments. Row g and
 * pair l of lane 4 g + l. */
#ifndef TR_OPS_CUDA_PTX_CUH
#define TR_OPS_CUDA_PTX_CUH

#include "ops/cuda/cuda.cuh"

static inline uint32_t shared_at(const void *p)
{
    return __cvta_generic_to_shared(p);
}
static inline void copy16(uint32_t to, const void *from, bool is_in)
{
    emulate_copy(to, from, 16, is_in);
}
static inline void copy4(uint32_t to, const void *from, bool is_in)
{
    emulate_copy(to, from, 4, is_in);
}
static inline float power_of_2(float x)
{
    return exp2f(x);
}
static inline void copies_end()
{
    emulate_copies_end();
}

/* Lane 8 x + i brings the address of row i of matrix x; all get two elements of every matrix, or of it turned. */
struct emulated_load {
    uint32_t *r, at;
};
template <bool IS_TURNED> static void emulate_load(void *const lanes[32])
{
    for (int t = 0; t < 32; t++)
        for (int x = 0; x < 4; x++) {
            uint16_t two[2];
            for (int e = 0; e < 2; e++) {
                int row = IS_TURNED ? t % 4 * 2 + e : t / 4, col = IS_TURNED ? t / 4 : t % 4 * 2 + e;
                const emulated_load *from = (const emulated_load *)lanes[8 * x + row];
                memcpy(&two[e], emulate_shared(from->at, 16) + 2 * col, 2);
            }
            ((const emulated_load *)lanes[t])->r[x] = two[0] | (uint32_t)two[1] << 16;
        }
}
static inline void load4x(uint32_t r[4], uint32_t at)
{
    emulated_load m = { r, at };
    emulate_warp(&m, emulate_load<false>);
}
static inline void load4x_turned(uint32_t r[4], uint32_t at)
{
    emulated_load m = { r, at };
    emulate_warp(&m, emulate_load<true>);
}

template <typename T> static inline float emulated_half(uint32_t two, int which)
{
    T x;
    x.bits = (uint16_t)(two >> 16 * which);
    return to_f32(x);
}
struct emulated_mma {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};
template <typename T> static void emulate_mma(void *const lanes[32])
{
    float a[16][16], b[16][8];
    for (int t = 0; t < 32; t++) {
        const emulated_mma *m = (const emulated_mma *)lanes[t];
        int g = t / 4, l = t % 4;
        for (int e = 0; e < 2; e++) {
            for (int x = 0; x < 4; x++)
                a[g + x % 2 * 8][2 * l + x / 2 * 8 + e] = emulated_half<T>(m->a[x], e);
            for (int x = 0; x < 2; x++)
                b[2 * l + x * 8 + e][g] = emulated_half<T>(m->b[x], e);
        }
    }
    for (int t = 0; t < 32; t++)
        for (int x = 0; x < 4; x++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += a[t / 4 + x / 2 * 8][k] * b[k][t % 4 * 2 + x % 2];
            ((const emulated_mma *)lanes[t])->c[x] += sum;
        }
}
template <typename T> static inline void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    emulated_mma m = { c, a, { b0, b1 } };
    emulate_warp(&m, emulate_mma<T>);
}

template <typename T> static inline uint32_t two_of(float lo, float hi)
{
    return from_f32<T>(lo).bits | (uint32_t)from_f32<T>(hi).bits << 16;
}
static inline float exp2_of(float x)
{
    return exp2f(x);
}
static inline void named_barrier(int barrier, int n_threads)
{
    emulate_barrier(barrier, n_threads, false);
}

/* ---- products of a warpgroup: operands in shared memory are found by what their descriptor says ---- */

static inline uint64_t group_rows(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
static inline uint64_t group_columns(uint32_t at, uint32_t panel)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
static inline void group_sees_copies()
{
}
static inline void group_begin()
{
}
static inline void group_commit()
{
}
template <int N> static inline void group_wait()
{
}

/* Element (x, k) of an operand; x: row of a left factor or column of a right one, k: along the summed dimension. */
template <typename T> static float emulated_element(uint64_t of, bool is_turned, int x, int k)
{
    uint32_t leading = (uint32_t)(of >> 16 & 0x3fff) << 4, stride = (uint32_t)(of >> 32 & 0x3fff) << 4;
    uint32_t at = (uint32_t)(of & 0x3fff) << 4;
    at += is_turned ? (uint32_t)(x / 64) * leading + (uint32_t)(k / 8) * stride + (uint32_t)(k % 8 * 128 + x % 64 * 2)
                    : (uint32_t)(x / 8) * stride + (uint32_t)(x % 8 * 128 + k * 2);
    at ^= at >> 3 & 0x70; /* pieces of 16 bytes change places within 1024 bytes */
    T y;
    memcpy(&y.bits, emulate_shared(at, 2), 2);
    return to_f32(y);
}
struct emulated_group {
    float (*c)[4];
    const uint32_t *a; /* NULL: in shared memory */
    uint64_t a_at, b_at;
    int n;
    bool adds, is_turned;
};
/* One warp's rows. */
template <typename T> static void emulate_group(void *const lanes[32])
{
    const emulated_group *one = (const emulated_group *)lanes[0];
    int warp = (int)threadIdx.x / 32 % 4;
    for (int row = 0; row < 16; row++)
        for (int col = 0; col < one->n; col++) {
            float sum = 0;
            for (int k = 0; k < 16; k++) {
                const emulated_group *from = (const emulated_group *)lanes[row % 8 * 4 + k % 8 / 2];
                float a = from->a ? emulated_half<T>(from->a[row / 8 + k / 8 * 2], k % 2)
                                  : emulated_element<T>(one->a_at, false, warp * 16 + row, k);
                sum += a * emulated_element<T>(one->b_at, one->is_turned, col, k);
            }
            const emulated_group *to = (const emulated_group *)lanes[row % 8 * 4 + col % 8 / 2];
            float *c = &to->c[col / 8][row / 8 * 2 + col % 2];
            *c = (to->adds ? *c : 0.0f) + sum;
        }
}
template <typename T, bool IS_TURNED, int NT>
static inline void group_mma(float (&c)[NT][4], const uint32_t (&a)[4], uint64_t b, bool adds)
{
    emulated_group m = { c, a, 0, b, NT * 8, adds, IS_TURNED };
    emulate_warp(&m, emulate_group<T>);
}
template <typename T, int NT> static inline void group_mma(float (&c)[NT][4], uint64_t a, uint64_t b, bool adds)
{
    emulated_group m = { c, NULL, a, b, NT * 8, adds, false };
    emulate_warp(&m, emulate_group<T>);
}

#endif
