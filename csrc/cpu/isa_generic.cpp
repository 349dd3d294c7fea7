// Vectors of 16 bytes in the compiler's own notation: SSE2 on any x86-64, NEON on aarch64.
#include "cpu/attention_kernel.h"
#include "cpu/linear_kernel.h"

namespace flashbertscore {
namespace {

template <class Element>
struct Vector16 : Plain<Vector16<Element>, Element> {
    using T = Element;
    typedef T reg __attribute__((vector_size(16)));
    static constexpr index_t lanes = 16 / sizeof(T);
    static constexpr int row_tile = 6;
    static constexpr int short_rows = 3;

    static reg zero() { return reg{}; }
    static reg broadcast(T x) { return x - reg{}; }
    static reg load(const T* p) {
        reg x;
        __builtin_memcpy(&x, p, sizeof x);
        return x;
    }
    static void store(T* p, reg x) { __builtin_memcpy(p, &x, sizeof x); }
    static reg fma(reg a, reg b, reg c) {
#ifdef __FP_FAST_FMA // one rounding where the processor has it, without a call of the library
        reg x;
        for (index_t i = 0; i < lanes; ++i) {
            if constexpr (sizeof(T) == 4) {
                x[i] = __builtin_fmaf(a[i], b[i], c[i]);
            } else {
                x[i] = __builtin_fma(a[i], b[i], c[i]);
            }
        }
        return x;
#else
        return a * b + c;
#endif
    }
    static reg add(reg a, reg b) { return a + b; }
    static reg mul(reg a, reg b) { return a * b; }
    static reg max(reg a, reg b) { return a > b ? a : b; }
    static reg select_greater(reg a, reg b, reg yes, reg no) { return a > b ? yes : no; }
    static T max_of_lanes(reg x) {
        T best = x[0];
        for (index_t i = 1; i < lanes; ++i) { best = x[i] > best ? x[i] : best; }
        return best;
    }

    static reg times_power_of_2(reg x, reg n)
        requires(sizeof(T) == 4)
    {
        typedef std::int32_t integers __attribute__((vector_size(16)));
        integers bits;
        __builtin_memcpy(&bits, &x, sizeof bits);
        bits += __builtin_convertvector(n, integers) << 23;
        __builtin_memcpy(&x, &bits, sizeof bits);
        return x;
    }

    template <DType dtype>
    static reg load_as(const void* row, index_t k) {
        reg x;
        for (index_t i = 0; i < lanes; ++i) { x[i] = element<T>(row, dtype, k + i); }
        return x;
    }

    static void sum_of_lanes(const reg (&x)[4], T (&out)[4]) {
        for (index_t j = 0; j < 4; ++j) {
            out[j] = x[j][0];
            for (index_t i = 1; i < lanes; ++i) { out[j] += x[j][i]; }
        }
    }

    static void transpose(reg (&m)[lanes]) {
        for (index_t i = 0; i < lanes; ++i) {
            for (index_t j = i + 1; j < lanes; ++j) {
                const T upper = m[i][j];
                m[i][j] = m[j][i];
                m[j][i] = upper;
            }
        }
    }
};

constexpr Kernels<float> kFloat32 = kernels<Vector16<float>>();
constexpr Kernels<double> kFloat64 = kernels<Vector16<double>>();
constexpr Attention kAttention = attention<Vector16<float>, Vector16<float>>();
constexpr Linear kLinear = linear<Vector16<float>>();

} // namespace

constinit const Isa kGeneric = {"generic", [] { return true; }, &kFloat32, &kFloat64,
                                nullptr,   &kAttention,         &kLinear};

} // namespace flashbertscore
