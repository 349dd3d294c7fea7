#include "cpu/microkernel.h"

#include <immintrin.h>

namespace flashbertscore {
namespace {

struct Float16x {
    using T = float;
    using reg = __m512;
    static constexpr index_t lanes = 16;
    static constexpr int row_tile = 12; // 24 accumulators, 2 of y, 6 to spare; 14 rows spill

    static reg zero() { return _mm512_setzero_ps(); }
    static reg broadcast(float x) { return _mm512_set1_ps(x); }
    static reg load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, reg x) { _mm512_storeu_ps(p, x); }
    static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
    static reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
    static reg max(reg a, reg b) { return _mm512_max_ps(a, b); }
    static float max_of_lanes(reg x) { return _mm512_reduce_max_ps(x); }

    template <DType dtype>
    static reg load_as(const void* row, index_t k) {
        if constexpr (dtype == DType::float32) {
            return load(static_cast<const float*>(row) + k);
        } else {
            const __m256i half = _mm256_loadu_si256(
                reinterpret_cast<const __m256i*>(static_cast<const std::uint16_t*>(row) + k));
            if constexpr (dtype == DType::float16) { return _mm512_cvtph_ps(half); }
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
    }

    struct squares {
        __m512d low, high;
    };
    static squares no_squares() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
    static void add_squares(squares& sum, reg x) {
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
        sum.low = _mm512_fmadd_pd(low, low, sum.low);
        sum.high = _mm512_fmadd_pd(high, high, sum.high);
    }
    static double sum_of_lanes(const squares& sum) {
        return _mm512_reduce_add_pd(_mm512_add_pd(sum.low, sum.high));
    }

    static void transpose(reg (&m)[16]) {
        reg a[16], b[16];
        for (int i = 0; i < 16; i += 2) { // pairs of rows
            a[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
            a[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
        }
        for (int i = 0; i < 16; i += 4) { // 4x4 blocks: b[i+c] holds column c of each 128-bit part
            b[i + 0] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
            b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
            b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
            b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
        }
        for (int c = 0; c < 4; ++c) { // gather the 128-bit parts
            const reg low02 = _mm512_shuffle_f32x4(b[c], b[c + 4], 0x88);
            const reg low13 = _mm512_shuffle_f32x4(b[c], b[c + 4], 0xdd);
            const reg high02 = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0x88);
            const reg high13 = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0xdd);
            m[c] = _mm512_shuffle_f32x4(low02, high02, 0x88);
            m[c + 4] = _mm512_shuffle_f32x4(low13, high13, 0x88);
            m[c + 8] = _mm512_shuffle_f32x4(low02, high02, 0xdd);
            m[c + 12] = _mm512_shuffle_f32x4(low13, high13, 0xdd);
        }
    }
};

struct Double8x {
    using T = double;
    using reg = __m512d;
    static constexpr index_t lanes = 8;
    static constexpr int row_tile = 12;

    static reg zero() { return _mm512_setzero_pd(); }
    static reg broadcast(double x) { return _mm512_set1_pd(x); }
    static reg load(const double* p) { return _mm512_loadu_pd(p); }
    static void store(double* p, reg x) { _mm512_storeu_pd(p, x); }
    static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_pd(a, b, c); }
    static reg add(reg a, reg b) { return _mm512_add_pd(a, b); }
    static reg mul(reg a, reg b) { return _mm512_mul_pd(a, b); }
    static reg max(reg a, reg b) { return _mm512_max_pd(a, b); }
    static double max_of_lanes(reg x) { return _mm512_reduce_max_pd(x); }

    template <DType dtype>
    static reg load_as(const void* row, index_t k) {
        return load(static_cast<const double*>(row) + k);
    }

    using squares = __m512d;
    static squares no_squares() { return _mm512_setzero_pd(); }
    static void add_squares(squares& sum, reg x) { sum = _mm512_fmadd_pd(x, x, sum); }
    static double sum_of_lanes(squares sum) { return _mm512_reduce_add_pd(sum); }

    static void transpose(reg (&m)[8]) {
        reg a[8];
        for (int i = 0; i < 8; i += 2) {
            a[i] = _mm512_unpacklo_pd(m[i], m[i + 1]);     // even columns of two rows
            a[i + 1] = _mm512_unpackhi_pd(m[i], m[i + 1]); // odd columns
        }
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

bool supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

} // namespace

constinit const Isa kAvx512 = {"avx512", "AVX-512 F, DQ, BW, VL: tiles of 12 rows x 2 vectors",
                               supported, kernels<Float16x>(), kernels<Double8x>()};

} // namespace flashbertscore
