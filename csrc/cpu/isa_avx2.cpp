#include "cpu/attention_kernel.h"
#include "cpu/linear_kernel.h"

#include <immintrin.h>

namespace flashbertscore {
namespace {

struct Float8x : Plain<Float8x, float> {
    using T = float;
    using reg = __m256;
    static constexpr index_t lanes = 8;
    static constexpr int row_tile = 6;   // 12 accumulators, 2 of y, 1 broadcast of 16 registers
    static constexpr int short_rows = 3; // 12 accumulators, 3 of x, 1 of y

    static reg zero() { return _mm256_setzero_ps(); }
    static reg broadcast(float x) { return _mm256_set1_ps(x); }
    static reg load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, reg x) { _mm256_storeu_ps(p, x); }
    static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
    static reg add(reg a, reg b) { return _mm256_add_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
    static reg max(reg a, reg b) { return _mm256_max_ps(a, b); }
    static reg select_greater(reg a, reg b, reg yes, reg no) {
        return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
    }
    static float max_of_lanes(reg x) {
        __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    }
    static reg times_power_of_2(reg x, reg n) {
        const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
    }

    template <DType dtype>
    static reg load_as(const void* row, index_t k) {
        if constexpr (dtype == DType::float32) {
            return load(static_cast<const float*>(row) + k);
        } else {
            const __m128i half = _mm_loadu_si128(
                reinterpret_cast<const __m128i*>(static_cast<const std::uint16_t*>(row) + k));
            if constexpr (dtype == DType::float16) { return _mm256_cvtph_ps(half); }
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        }
    }

    static void sum_of_lanes(const reg (&x)[4], float (&out)[4]) {
        const reg ab = add(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
        const reg cd = add(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
        const reg all = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
    }

    static void transpose(reg (&m)[8]) {
        reg a[8], b[8];
        for (int i = 0; i < 8; i += 2) { // pairs of rows
            a[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
            a[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) { // 4x4 blocks: b[i+c] holds column c of each 128-bit part
            b[i + 0] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
            b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
            b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
            b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
        }
        for (int c = 0; c < 4; ++c) { // join the 128-bit parts
            m[c] = _mm256_permute2f128_ps(b[c], b[c + 4], 0x20);
            m[c + 4] = _mm256_permute2f128_ps(b[c], b[c + 4], 0x31);
        }
    }
};

struct Double4x : Plain<Double4x, double> {
    using T = double;
    using reg = __m256d;
    static constexpr index_t lanes = 4;
    static constexpr int row_tile = 6;
    static constexpr int short_rows = 3;

    static reg zero() { return _mm256_setzero_pd(); }
    static reg broadcast(double x) { return _mm256_set1_pd(x); }
    static reg load(const double* p) { return _mm256_loadu_pd(p); }
    static void store(double* p, reg x) { _mm256_storeu_pd(p, x); }
    static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_pd(a, b, c); }
    static reg add(reg a, reg b) { return _mm256_add_pd(a, b); }
    static reg mul(reg a, reg b) { return _mm256_mul_pd(a, b); }
    static reg max(reg a, reg b) { return _mm256_max_pd(a, b); }
    static reg select_greater(reg a, reg b, reg yes, reg no) {
        return _mm256_blendv_pd(no, yes, _mm256_cmp_pd(a, b, _CMP_GT_OQ));
    }
    static double max_of_lanes(reg x) {
        const __m128d half = _mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
        return _mm_cvtsd_f64(_mm_max_sd(half, _mm_unpackhi_pd(half, half)));
    }

    template <DType dtype>
    static reg load_as(const void* row, index_t k) {
        return load(static_cast<const double*>(row) + k);
    }

    static void sum_of_lanes(const reg (&x)[4], double (&out)[4]) {
        const reg ab = add(_mm256_unpacklo_pd(x[0], x[1]), _mm256_unpackhi_pd(x[0], x[1]));
        const reg cd = add(_mm256_unpacklo_pd(x[2], x[3]), _mm256_unpackhi_pd(x[2], x[3]));
        _mm256_storeu_pd(
            out, add(_mm256_permute2f128_pd(ab, cd, 0x20), _mm256_permute2f128_pd(ab, cd, 0x31)));
    }

    static void transpose(reg (&m)[4]) {
        const reg even01 = _mm256_unpacklo_pd(m[0], m[1]);
        const reg odd01 = _mm256_unpackhi_pd(m[0], m[1]);
        const reg even23 = _mm256_unpacklo_pd(m[2], m[3]);
        const reg odd23 = _mm256_unpackhi_pd(m[2], m[3]);
        m[0] = _mm256_permute2f128_pd(even01, even23, 0x20);
        m[1] = _mm256_permute2f128_pd(odd01, odd23, 0x20);
        m[2] = _mm256_permute2f128_pd(even01, even23, 0x31);
        m[3] = _mm256_permute2f128_pd(odd01, odd23, 0x31);
    }
};

bool supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

constexpr Kernels<float> kFloat32 = kernels<Float8x>();
constexpr Kernels<double> kFloat64 = kernels<Double4x>();
constexpr Attention kAttention = attention<Float8x, Float8x>();
constexpr Linear kLinear = linear<Float8x>();

} // namespace

constinit const Isa kAvx2 = {"avx2",  supported,   &kFloat32, &kFloat64,
                             nullptr, &kAttention, &kLinear};

} // namespace flashbertscore
