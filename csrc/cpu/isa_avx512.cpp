#include "cpu/avx512.h"
#include "cpu/linear_kernel.h"

namespace flashbertscore {
namespace {

struct Double8x : Plain<Double8x, double> {
    using T = double;
    using reg = __m512d;
    static constexpr index_t lanes = 8;
    static constexpr int row_tile = 12;
    static constexpr int short_rows = 6;

    static reg zero() { return _mm512_setzero_pd(); }
    static reg broadcast(double x) { return _mm512_set1_pd(x); }
    static reg load(const double* p) { return _mm512_loadu_pd(p); }
    static void store(double* p, reg x) { _mm512_storeu_pd(p, x); }
    static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_pd(a, b, c); }
    static reg add(reg a, reg b) { return _mm512_add_pd(a, b); }
    static reg mul(reg a, reg b) { return _mm512_mul_pd(a, b); }
    static reg max(reg a, reg b) { return _mm512_max_pd(a, b); }
    static double max_of_lanes(reg x) { return _mm512_reduce_max_pd(x); }
    static reg select_greater(reg a, reg b, reg yes, reg no) {
        return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_GT_OQ), no, yes);
    }

    template <DType dtype>
    static reg load_as(const void* row, index_t k) {
        return load(static_cast<const double*>(row) + k);
    }

    static void sum_of_lanes(const reg (&x)[4], double (&out)[4]) {
        const reg ab = add(_mm512_unpacklo_pd(x[0], x[1]), _mm512_unpackhi_pd(x[0], x[1]));
        const reg cd = add(_mm512_unpacklo_pd(x[2], x[3]), _mm512_unpackhi_pd(x[2], x[3]));
        const __m256d a = _mm256_add_pd(_mm512_castpd512_pd256(ab), _mm512_extractf64x4_pd(ab, 1));
        const __m256d c = _mm256_add_pd(_mm512_castpd512_pd256(cd), _mm512_extractf64x4_pd(cd, 1));
        _mm256_storeu_pd(out, _mm256_add_pd(_mm256_permute2f128_pd(a, c, 0x20),
                                            _mm256_permute2f128_pd(a, c, 0x31)));
    }

    static void transpose(reg (&m)[8]) {
        reg a[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i += 2) {
            a[i] = _mm512_unpacklo_pd(m[i], m[i + 1]);     // even columns of two rows
            a[i + 1] = _mm512_unpackhi_pd(m[i], m[i + 1]); // odd columns
        }
#pragma GCC unroll 8
        for (int c = 0; c < 2; ++c) {
            const reg low02 = _mm512_shuffle_f64x2(a[c], a[c + 2], 0x88);
            const reg low13 = _mm512_shuffle_f64x2(a[c], a[c + 2], 0xdd);
            const reg high02 = _mm512_shuffle_f64x2(a[c + 4], a[c + 6], 0x88);
            const reg high13 = _mm512_shuffle_f64x2(a[c + 4], a[c + 6], 0xdd);
            m[c] = _mm512_shuffle_f64x2(low02, high02, 0x88);
            m[c + 2] = _mm512_shuffle_f64x2(low13, high13, 0x88);
            m[c + 4] = _mm512_shuffle_f64x2(low02, high02, 0xdd);
            m[c + 6] = _mm512_shuffle_f64x2(low13, high13, 0xdd);
        }
    }
};

constexpr Attention kAttention = attention<Float16x, Float16x>();
constexpr Linear kLinear = linear<Float16x>();

bool supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

} // namespace

constinit const Kernels<float> kAvx512Float32 = kernels<Float16x>();
constinit const Kernels<double> kAvx512Float64 = kernels<Double8x>();

constinit const Isa kAvx512 = {"avx512", supported,   &kAvx512Float32, &kAvx512Float64,
                               nullptr,  &kAttention, &kLinear};

} // namespace flashbertscore
