// Vectors of 16 floats, for the files compiled with AVX-512.
#pragma once

#include "cpu/attention_kernel.h"

#include <immintrin.h>

namespace flashbertscore {
namespace {

struct Float16x : Plain<Float16x, float> {
    using T = float;
    using reg = __m512;
    static constexpr index_t lanes = 16;
    static constexpr int row_tile = 12;  // 24 accumulators, 2 of y, 6 to spare; 14 rows spill
    static constexpr int short_rows = 6; // 24 accumulators, 6 of x, 1 of y

    static reg zero() { return _mm512_setzero_ps(); }
    static reg broadcast(float x) { return _mm512_set1_ps(x); }
    static reg load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, reg x) { _mm512_storeu_ps(p, x); }
    static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
    static reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
    static reg max(reg a, reg b) { return _mm512_max_ps(a, b); }
    static float max_of_lanes(reg x) { return _mm512_reduce_max_ps(x); }
    static reg select_greater(reg a, reg b, reg yes, reg no) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes);
    }
    static reg times_power_of_2(reg x, reg n) { return _mm512_scalef_ps(x, n); }

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

    static void sum_of_lanes(const reg (&x)[4], float (&out)[4]) {
        const reg ab = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        const reg cd = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        const reg all = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
        const __m256 half =
            _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
        _mm_storeu_ps(out,
                      _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    }

    static void transpose(reg (&m)[16]) {
        reg a[16], b[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i += 2) { // pairs of rows
            a[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
            a[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i += 4) { // 4x4 blocks: b[i+c] holds column c of each 128-bit part
            b[i + 0] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
            b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
            b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
            b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
        }
#pragma GCC unroll 16
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

} // namespace
} // namespace flashbertscore
