#include "cpu/avx512.h"
#include "cpu/linear_kernel.h"

namespace flashbertscore {
namespace {

// Pairs of bfloat16, their products summed into 16 floats by one instruction (VDPBF16PS).
struct Bfloat32x : Float16x {
    using S = bfloat16;
    static constexpr index_t step = 2;

    static __m512bh read(const S* p) { return (__m512bh)_mm512_loadu_si512(p); }
    static __m512bh repeat(const S* p) {
        int pair;
        __builtin_memcpy(&pair, p, sizeof pair);
        return (__m512bh)_mm512_set1_epi32(pair);
    }
    static reg dot(__m512bh a, __m512bh b, reg c) { return _mm512_dpbf16_ps(c, a, b); }
    static float product(S a, S b) {
        return bfloat16_to_float(static_cast<std::uint16_t>(a)) *
               bfloat16_to_float(static_cast<std::uint16_t>(b));
    }

    // A pair moves as one float would; no arithmetic looks at it.
    static reg load_group(const S* p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }
    static void store_group(S* p, reg x) { _mm512_storeu_si512(p, _mm512_castps_si512(x)); }
};

constexpr Kernels<float, bfloat16> kBfloat16 = kernels<Bfloat32x>();
constexpr Attention kAttention = attention<Float16x, Bfloat32x>();
constexpr Linear kLinear = linear<Float16x>();

bool supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
}

} // namespace

constinit const Isa kAvx512bf16 = {"avx512bf16", supported,   &kAvx512Float32, &kAvx512Float64,
                                   &kBfloat16,   &kAttention, &kLinear};

} // namespace flashbertscore
