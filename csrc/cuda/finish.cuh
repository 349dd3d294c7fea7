// From maxima to scores: the weighted means, and the rules for everything that is not a number.
#pragma once

#include "cuda/numeric.cuh"

namespace flashbertscore::cuda {

constexpr int FINISH_THREADS = 128; // the sums' order depends on it, so it is one for all kernels

// What a side contributes: sums in double, in an order that depends on the position of a token in
// its document and on nothing else.
struct Totals {
    double weighted, weight;
    int tokens; // negative: the document holds a NaN or Inf
};

// Adds up thread `thread` of 128's share of a side. `token(i, &scale, &best)` gives the scale of
// row i (see numeric.cuh) and its similarity to the best match.
template <class Real, class Token>
__device__ __forceinline__ Totals share(int thread, int rows, const void* weights, index_t first,
                                        Token token) {
    Totals totals = {0, 0, 0};
    bool poison = false;
    for (int i = thread; i < rows; i += FINISH_THREADS) {
        Real scale, best;
        token(i, &scale, &best);
        if (!is_token(scale)) continue;
        poison = poison || is_poison(scale);
        const double w = weights ? static_cast<const Real*>(weights)[first + i] : Real(1);
        totals.weighted += w * static_cast<double>(best);
        totals.weight += w;
        ++totals.tokens;
    }
    if (poison) totals.tokens = -1;
    return totals;
}

__device__ __forceinline__ void merge(Totals& totals, const Totals& other) {
    totals.weighted += other.weighted;
    totals.weight += other.weight;
    const bool poison = totals.tokens < 0 || other.tokens < 0;
    totals.tokens = poison ? -1 : totals.tokens + other.tokens;
}

__device__ __forceinline__ void merge_warp(Totals& totals) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
        Totals other;
        other.weighted = ptx::shuffle_xor(totals.weighted, mask);
        other.weight = ptx::shuffle_xor(totals.weight, mask);
        other.tokens = ptx::shuffle_xor(totals.tokens, mask);
        merge(totals, other);
    }
}

template <class Real>
__device__ __forceinline__ void write_scores(const Problem& problem, index_t pair, const Totals& x,
                                             const Totals& y) {
    double precision, recall, f1;
    if (x.tokens < 0 || y.tokens < 0) {
        precision = recall = f1 = NAN;
    } else if (x.tokens == 0 || y.tokens == 0) {
        precision = recall = f1 = 0;
    } else {
        precision = x.weighted / x.weight; // 0 / 0 is the NaN that the rules ask for
        recall = y.weighted / y.weight;
        const double total = precision + recall;
        f1 = total == 0 || total != total ? 0 : 2 * precision * recall / total;
    }
    static_cast<Real*>(problem.precision)[pair] = static_cast<Real>(precision);
    static_cast<Real*>(problem.recall)[pair] = static_cast<Real>(recall);
    static_cast<Real*>(problem.f1)[pair] = static_cast<Real>(f1);
}

// Called by all threads of a block; the first 128 bring their shares of n and m rows. `partial`
// [2, 4] is in shared memory, free to be written when the call is made.
template <class Real>
__device__ __forceinline__ void conclude(const Problem& problem, index_t pair, int n, int m,
                                         Totals x, Totals y, Totals* partial) {
    const int thread = ptx::thread_index(), warp = thread / 32;
    constexpr int WARPS = FINISH_THREADS / 32;
    if (warp < WARPS) {
        if (warp * 32 < n) merge_warp(x); // else all are zero
        if (warp * 32 < m) merge_warp(y);
        if (thread % 32 == 0) {
            partial[warp] = x;
            partial[WARPS + warp] = y;
        }
    }
    ptx::sync_block();
    if (thread == 0) {
        for (int w = 1; w < WARPS; ++w) {
            merge(x, partial[w]);
            merge(y, partial[WARPS + w]);
        }
        write_scores<Real>(problem, pair, x, y);
    }
}

// The scale of a row as the sums see it; 1 if products are of tokens that were already SCALED.
template <bool SCALED, class Real>
__device__ __forceinline__ Real row_scale(const Side& side, index_t first, int i, int rows) {
    if (i >= rows || is_masked(side, first + i)) return static_cast<Real>(NAN);
    const Real scale = static_cast<const Real*>(side.scales)[first + i];
    if constexpr (SCALED) {
        return is_poison(scale) ? scale : Real(1);
    } else {
        return without_shift(scale);
    }
}

// Scores of pairs whose maxima are in problem.keys, one block a pair. Of tokens that were SCALED
// when they were multiplied, maxima are similarities times 1 / `unscale`.
template <class Real, class Key, bool SCALED>
__global__ void __launch_bounds__(FINISH_THREADS) finish(Problem problem, Real unscale) {
    auto* partial = reinterpret_cast<Totals*>(ptx::shared_memory());
    const int thread = ptx::thread_index();
    for (index_t t = ptx::block_index(); t < problem.count; t += ptx::grid_size()) {
        const Task task = task_of(problem, t);
        const Key* keys = static_cast<const Key*>(problem.keys) + task.keys;
        const auto side = [&](const Side& side, index_t first, int rows, const Key* best_keys) {
            return share<Real>(thread, rows, side.weights, first,
                               [&](int i, Real* scale, Real* best) {
                                   *scale = row_scale<SCALED, Real>(side, first, i, rows);
                                   *best = unkey(best_keys[i]) * (SCALED ? unscale : *scale);
                               });
        };
        const Totals x = side(problem.x, task.x_first, task.n, keys);
        const Totals y = side(problem.y, task.y_first, task.m, keys + task.n);
        conclude<Real>(problem, task.pair, task.n, task.m, x, y, partial);
        ptx::sync_block();
    }
}

} // namespace flashbertscore::cuda
