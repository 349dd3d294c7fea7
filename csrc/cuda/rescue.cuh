// Whole pairs of wide types that turn out to hold tokens beyond the range of norms: once more, with
// shifts (numeric.cuh). Rare, so it is small: fragments come straight from global memory, a warp
// takes 16 x 8 similarities at a time. Sums have the order of match.cuh, hence its bits.
//
// In the usual case this kernel has nothing to do and ends at once. A chunk with a zero vector or a
// NaN is read once more.
//
// Rejected: shifts in the main loop of match.cuh, the pair again right after it was done, and all
// pairs of a block after its last one: each made ptxas spill registers of the main loop, on one
// architecture or the other.
#pragma once

#include "cuda/load.cuh"
#include "cuda/norms.cuh"
#include "cuda/slots.cuh"

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
        const typename E::Storage* const at = data + row * stride + k;
        for (int e = 0; e < 2 && k + e < dim; ++e) {
            const float value = E::to_float(at[e]) * factor;
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
#pragma unroll 1
    for (int base = 0; base < side.rows; base += ROWS) {
        const int row = base + mine < side.rows ? base + mine : side.rows - 1;
        const float scale = shifted_scale<E>(side.data + row * side.stride, side.dim, chunk, false);
        if (chunk != 0 || base + mine >= side.rows || !is_token(side.scales[row])) continue;
        side.scales[row] = scale;
        if (shift_in(scale) != 0) ptx::atomic_max(any, 1);
    }
}

// One pair. Returns whether its scores are to be written anew; *any is 0 before and after.
template <class T, class E>
__device__ __forceinline__ bool rescue_pair(const Problem& problem, const Task& task,
                                            float* x_scales, float* y_scales, Slots<T>& slots,
                                            int* any) {
    using Storage = typename E::Storage;
    const ShiftedRows<E> x = {static_cast<const Storage*>(problem.x.data) + task.x_element,
                              problem.x.row_stride, task.n, problem.dim, x_scales};
    const ShiftedRows<E> y = {static_cast<const Storage*>(problem.y.data) + task.y_element,
                              problem.y.row_stride, task.m, problem.dim, y_scales};
    constexpr int WARPS = T::THREADS / 32;
    const int thread = ptx::thread_index(), warp = thread / 32, lane = thread % 32;
    const int group = lane / 4, quad = lane % 4;
    for (int i = thread; i < T::CAPACITY; i += T::THREADS) {
        x_scales[i] = token_or_nan(problem.x, task.x_first, i, task.n);
        y_scales[i] = token_or_nan(problem.y, task.y_first, i, task.m);
    }
    ptx::sync_block();
    shifted_scales<T::THREADS>(x, any);
    shifted_scales<T::THREADS>(y, any);
    ptx::sync_block();
    const bool needed = *any != 0;
    ptx::sync_block();
    if (thread == 0) *any = 0;
    if (!needed) return false;
    float d[4];
#pragma unroll 1
    for (int i = 16 * warp; i < task.n; i += 16 * WARPS) {
        float best[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
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
#pragma unroll 1
    for (int j = 8 * warp; j < task.m; j += 8 * WARPS) {
        float best[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
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
    for (int i = thread; i < T::CAPACITY; i += T::THREADS) {
        x_scales[i] = without_shift(x_scales[i]);
        y_scales[i] = without_shift(y_scales[i]);
    }
    ptx::sync_block();
    return true;
}

// Whole pairs, once more if they need it.
template <class T, class E>
__global__ void __launch_bounds__(T::THREADS) rescue(const __grid_constant__ Problem problem) {
    if (*problem.x.shifted == 0) return;
    float* const x_scales = reinterpret_cast<float*>(ptx::shared_memory());
    float* const y_scales = x_scales + T::CAPACITY;
    Slots<T> slots{y_scales + T::CAPACITY, y_scales + (1 + T::WARPS_N) * T::CAPACITY};
    auto* const partial = reinterpret_cast<Totals*>(x_scales + T::SHORT_FLOATS);
    int* const any = reinterpret_cast<int*>(partial + 2 * FINISH_THREADS / 32);
    if (ptx::thread_index() == 0) *any = 0;
    for (index_t item = ptx::block_index(); item < problem.count; item += ptx::grid_size()) {
        const Task task = task_of(problem, item);
        ptx::sync_block();
        if (!rescue_pair<T, E>(problem, task, x_scales, y_scales, slots, any)) continue;
        conclude_whole<T, E>(problem, task, x_scales, y_scales, slots, partial);
    }
}

} // namespace flashbertscore::cuda
