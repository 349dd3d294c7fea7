// Whole pairs: maxima in shared memory, and the scores from them.
#pragma once

#include "cuda/finish.cuh"

namespace flashbertscore::cuda {

// Maxima of a pair that one block takes whole: a slot per row and warp column, and per column and
// warp row, each written by one warp only.
template <class T>
struct Slots {
    float* rows;    // [WARPS_N, CAPACITY]
    float* columns; // [WARPS_M, CAPACITY]

    __device__ __forceinline__ void row(int i, int warp_column, float best) {
        rows[warp_column * T::CAPACITY + i] = best;
    }
    __device__ __forceinline__ void column(int j, int warp_row, bool first, float best) {
        float* slot = &columns[warp_row * T::CAPACITY + j];
        *slot = first ? best : fmaxf(*slot, best);
    }
    __device__ __forceinline__ float best_row(int i) const {
        float best = rows[i];
#pragma unroll
        for (int w = 1; w < T::WARPS_N; ++w) best = fmaxf(best, rows[w * T::CAPACITY + i]);
        return best;
    }
    __device__ __forceinline__ float best_column(int j) const {
        float best = columns[j];
#pragma unroll
        for (int w = 1; w < T::WARPS_M; ++w) best = fmaxf(best, columns[w * T::CAPACITY + j]);
        return best;
    }
};

// Called by all threads of a block, after a barrier. `partial` as in conclude.
template <class T, class E>
__device__ __forceinline__ void conclude_whole(const Problem& problem, const Task& task,
                                               const float* x_scales, const float* y_scales,
                                               const Slots<T>& slots, Totals* partial) {
    const int thread = ptx::thread_index();
    // rescue.cuh looks again if not; zero and Inf may stand for what is too small or too large.
    bool in_range = true;
    const auto see = [&](float scale) {
        if (is_token(scale)) in_range = in_range && scale > 0x1p-40f && scale < 0x1p40f;
        return scale;
    };
    Totals x = {0, 0, 0}, y = {0, 0, 0};
    if (thread < FINISH_THREADS) {
        x = share<float>(thread, task.n, problem.x.weights, task.x_first,
                         [&](int i, float* scale, float* best) {
                             *scale = see(x_scales[i]);
                             *best = slots.best_row(i) * (E::split ? SPLIT_UNSCALE : *scale);
                         });
        y = share<float>(thread, task.m, problem.y.weights, task.y_first,
                         [&](int i, float* scale, float* best) {
                             *scale = see(y_scales[i]);
                             *best = slots.best_column(i) * (E::split ? SPLIT_UNSCALE : *scale);
                         });
    }
    if constexpr (E::wide) {
        if (!in_range) ptx::atomic_max(problem.x.shifted, 1);
    }
    conclude<float>(problem, task.pair, task.n, task.m, x, y, partial);
}

} // namespace flashbertscore::cuda
