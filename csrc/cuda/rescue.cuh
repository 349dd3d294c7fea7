// Whole pairs of wide types that turn out to hold tokens beyond the range of norms: once more, with
// shifts (numeric.cuh). Rare, so it is small: fragments come straight from global memory, a warp
// takes 16 x 8 similarities at a time. Sums have the order of the kernel's, hence its bits.
#pragma once

#include "cuda/norms.cuh"

namespace flashbertscore::cuda {

// Rows of one side; `scales` in shared memory, NaN from `rows` on.
template <class E>
struct ShiftedRows {
    const typename E::Storage* data; // of the first row
    index_t stride;
    int rows, dim;
    float* scales;

    // Elements k and k + 1 of a row, shifted, as one register of a fragment.
    __device__ __forceinline__ std::uint32_t two(int row, int k) const {
        if (row >= rows) return 0;
        const float factor = shift_factor(shift_in(scales[row]));
        std::uint32_t word = 0;
        for (int e = 0; e < 2 && k + e < dim; ++e) {
            const float value = E::to_float(data[row * stride + k + e]) * factor;
            word |= static_cast<std::uint32_t>(E::upper_half(value)) << 16 * e;
        }
        return word;
    }
};

// 16 x 8 products: d as mma.sync leaves it (ptx.h).
template <class E>
__device__ __forceinline__ void shifted_products(float (&d)[4], const ShiftedRows<E>& x, int row,
                                                 const ShiftedRows<E>& y, int column) {
    const int group = ptx::thread_index() % 32 / 4, quad = ptx::thread_index() % 4;
    for (float& value : d) value = 0;
#pragma unroll 1
    for (int k = 2 * quad; k - 2 * quad < x.dim; k += 16) {
        const std::uint32_t a[4] = {x.two(row + group, k), x.two(row + group + 8, k),
                                    x.two(row + group, k + 8), x.two(row + group + 8, k + 8)};
        E::multiply(d, a, y.two(column + group, k), y.two(column + group, k + 8));
    }
}

// Writes the scales of all tokens of a side, shifts included. Whether there is any shift: in *any.
template <int THREADS, class E>
__device__ __forceinline__ void shifted_scales(const ShiftedRows<E>& side, int* any) {
    constexpr int ROWS = THREADS / SLICE_CHUNKS;
    const int mine = ptx::thread_index() / SLICE_CHUNKS, chunk = ptx::thread_index() % SLICE_CHUNKS;
    for (int base = 0; base < side.rows; base += ROWS) {
        const int row = base + mine < side.rows ? base + mine : side.rows - 1;
        const float scale = shifted_scale<E>(side.data + row * side.stride, side.dim, chunk, false);
        if (chunk != 0 || base + mine >= side.rows || !is_token(side.scales[row])) continue;
        side.scales[row] = scale;
        if (shift_in(scale) != 0) ptx::atomic_max(any, 1);
    }
}

// Called by all threads of a block between two barriers of which the first has passed; *any is 1.
// Leaves scales, maxima and *any = 0. For zero vectors and NaN alone, all is well as it is.
template <class T, class E, class Slots>
__device__ __forceinline__ void rescue(const Problem& problem, const Task& task, float* x_scales,
                                       float* y_scales, Slots& slots, int* any) {
    using Storage = typename E::Storage;
    const ShiftedRows<E> x = {static_cast<const Storage*>(problem.x.data) + task.x_element,
                              problem.x.row_stride, task.n, problem.dim, x_scales};
    const ShiftedRows<E> y = {static_cast<const Storage*>(problem.y.data) + task.y_element,
                              problem.y.row_stride, task.m, problem.dim, y_scales};
    constexpr int WARPS = T::THREADS / 32;
    const int warp = ptx::thread_index() / 32, lane = ptx::thread_index() % 32;
    const int group = lane / 4, quad = lane % 4;
    ptx::sync_block();
    if (ptx::thread_index() == 0) *any = 0;
    ptx::sync_block();
    shifted_scales<T::THREADS>(x, any);
    shifted_scales<T::THREADS>(y, any);
    ptx::sync_block();
    const bool needed = *any != 0;
    ptx::sync_block();
    if (ptx::thread_index() == 0) *any = 0;
    if (!needed) return;
    float d[4];
    for (int i = 16 * warp; i < task.n; i += 16 * WARPS) {
        float best[2] = {-INFINITY, -INFINITY};
        for (int j = 0; j < task.m; j += 8) {
            shifted_products(d, x, i, y, j);
            for (int e = 0; e < 4; ++e) {
                const float scale = without_shift(y_scales[j + 2 * quad + e % 2]);
                best[e / 2] = fmaxf(best[e / 2], d[e] * scale);
            }
        }
        for (int h = 0; h < 2; ++h) {
            for (int mask = 1; mask < 4; mask *= 2) {
                best[h] = fmaxf(best[h], ptx::shuffle_xor(best[h], mask));
            }
            for (int w = 0; w < T::WARPS_N && quad == 0; ++w) {
                slots.row(i + 8 * h + group, w, best[h]);
            }
        }
    }
    for (int j = 8 * warp; j < task.m; j += 8 * WARPS) {
        float best[2] = {-INFINITY, -INFINITY};
        for (int i = 0; i < task.n; i += 16) {
            shifted_products(d, x, i, y, j);
            for (int e = 0; e < 4; ++e) {
                const float scale = without_shift(x_scales[i + group + e / 2 * 8]);
                best[e % 2] = fmaxf(best[e % 2], d[e] * scale);
            }
        }
        for (int e = 0; e < 2; ++e) {
            for (int mask = 4; mask < 32; mask *= 2) {
                best[e] = fmaxf(best[e], ptx::shuffle_xor(best[e], mask));
            }
            for (int w = 0; w < T::WARPS_M && group == 0; ++w) {
                slots.column(j + 2 * quad + e, w, true, best[e]);
            }
        }
    }
    ptx::sync_block();
    for (int i = ptx::thread_index(); i < T::CAPACITY; i += T::THREADS) {
        x_scales[i] = without_shift(x_scales[i]);
        y_scales[i] = without_shift(y_scales[i]);
    }
    ptx::sync_block();
}

} // namespace flashbertscore::cuda
