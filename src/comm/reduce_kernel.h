/* reduce_kernel.h - the reduction loops, for the instruction set of the including file: NAME(x) names its functions.
 *
 * Work goes in blocks of BLOCK elements that stay in L1: the block of every input is added in rank order into an
 * accumulator, which is then written to every output. Inner loops have a constant trip count (RUN), so they vectorise
 * at -O2; lanes never mix, hence the bits are the same at any width. The tail runs the same statements one by one.
 */

/* acc[i] = FOLDED(acc[i], x[i]); ACC is the type in which sums are held. */
#define FOLD(name, ACC, ELEM, FOLDED)                                                                                  \
    static void NAME(name)(ACC *restrict acc, const ELEM *restrict x, size_t n)                                        \
    {                                                                                                                  \
        size_t i = 0;                                                                                                  \
        for (; i + RUN <= n; i += RUN)                                                                                 \
            for (size_t j = 0; j < RUN; j++)                                                                           \
                acc[i + j] = FOLDED(acc[i + j], x[i + j]);                                                             \
        for (; i < n; i++)                                                                                             \
            acc[i] = FOLDED(acc[i], x[i]);                                                                             \
    }

#define SECOND(a, x)      (x)
#define SUM(a, x)         ((a) + (x))
#define MAX(a, x)         ((a) > (x) || (a) != (a) ? (a) : (x))
#define WRAP_SUM(a, x)    ((int64_t)((uint64_t)(a) + (uint64_t)(x)))
#define BF16_SECOND(a, x) tr_f32_of_bf16(x)
#define BF16_SUM(a, x)    ((a) + tr_f32_of_bf16(x))
#define BF16_MAX(a, x)    MAX(a, tr_f32_of_bf16(x))
#define F16_SECOND(a, x)  tr_f32_of_f16(x)
#define F16_SUM(a, x)     ((a) + tr_f32_of_f16(x))
#define F16_MAX(a, x)     MAX(a, tr_f32_of_f16(x))

FOLD(f32_set, float, float, SECOND)
FOLD(f32_sum, float, float, SUM)
FOLD(f32_max, float, float, MAX)
FOLD(f64_set, double, double, SECOND)
FOLD(f64_sum, double, double, SUM)
FOLD(f64_max, double, double, MAX)
FOLD(i64_set, int64_t, int64_t, SECOND)
FOLD(i64_sum, int64_t, int64_t, WRAP_SUM)
FOLD(i64_max, int64_t, int64_t, MAX)
FOLD(bf16_set, float, uint16_t, BF16_SECOND)
FOLD(bf16_sum, float, uint16_t, BF16_SUM)
FOLD(bf16_max, float, uint16_t, BF16_MAX)
FOLD(f16_set, float, uint16_t, F16_SECOND)
FOLD(f16_sum, float, uint16_t, F16_SUM)
FOLD(f16_max, float, uint16_t, F16_MAX)

/* Reduces the block of all inputs at element `at` into acc; AVG divides the sum. */
#define REDUCE(type, ACC, ELEM)                                                                                        \
    static void NAME(reduce_##type)(enum tr_reduce_op op, const void *const *in, int n_in, size_t at, ACC *acc,        \
                                    size_t n)                                                                          \
    {                                                                                                                  \
        NAME(type##_set)(acc, (const ELEM *)in[0] + at, n);                                                            \
        for (int p = 1; p < n_in; p++) {                                                                               \
            if (op == TR_MAX)                                                                                          \
                NAME(type##_max)(acc, (const ELEM *)in[p] + at, n);                                                    \
            else                                                                                                       \
                NAME(type##_sum)(acc, (const ELEM *)in[p] + at, n);                                                    \
        }                                                                                                              \
        for (size_t i = 0; op == TR_AVG && i < n; i++)                                                                 \
            acc[i] /= (ACC)n_in;                                                                                       \
    }

REDUCE(f32, float, float)
REDUCE(f64, double, double)
REDUCE(i64, int64_t, int64_t)
REDUCE(bf16, float, uint16_t)
REDUCE(f16, float, uint16_t)

static void NAME(round_bf16)(const float *restrict acc, uint16_t *restrict out)
{
    for (size_t i = 0; i < BLOCK; i++) { /* as tr_bf16_of_f32, without its branch */
        uint32_t u;
        memcpy(&u, &acc[i], sizeof u);
        uint32_t quiet = (u >> 16) | 0x40u, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        out[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

static void NAME(reduce)(enum tr_dtype dtype, enum tr_reduce_op op, const void *const *in, int n_in, void *const *out,
                         int n_out, size_t count)
{
    union {
        float f32[BLOCK];
        double f64[BLOCK];
        int64_t i64[BLOCK];
        _Alignas(64) char bytes[BLOCK * 8];
    } acc;
    _Alignas(64) uint16_t rounded[BLOCK];
    size_t elem_bytes = tr_dtype_bytes(dtype);
    const void *result = dtype == TR_BF16 || dtype == TR_F16 ? (const void *)rounded : (const void *)acc.bytes;
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        switch (dtype) {
        case TR_F64:
            NAME(reduce_f64)(op, in, n_in, at, acc.f64, n);
            break;
        case TR_I64:
            NAME(reduce_i64)(op, in, n_in, at, acc.i64, n);
            break;
        case TR_BF16:
            NAME(reduce_bf16)(op, in, n_in, at, acc.f32, n);
            memset(acc.f32 + n, 0, (BLOCK - n) * sizeof acc.f32[0]);
            NAME(round_bf16)(acc.f32, rounded);
            break;
        case TR_F16:
            NAME(reduce_f16)(op, in, n_in, at, acc.f32, n);
            tr_convert(acc.f32, TR_F32, rounded, TR_F16, n);
            break;
        default:
            NAME(reduce_f32)(op, in, n_in, at, acc.f32, n);
            break;
        }
        for (int j = 0; j < n_out; j++)
            memcpy((char *)out[j] + at * elem_bytes, result, n * elem_bytes);
    }
}

#undef FOLD
#undef REDUCE
#undef SECOND
#undef SUM
#undef MAX
#undef WRAP_SUM
#undef BF16_SECOND
#undef BF16_SUM
#undef BF16_MAX
#undef F16_SECOND
#undef F16_SUM
#undef F16_MAX
