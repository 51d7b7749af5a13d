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

#endif
