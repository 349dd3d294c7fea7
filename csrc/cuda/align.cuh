// From maxima with their places to an alignment.
#pragma once

#include "cuda/finish.cuh"

namespace flashbertscore::cuda {

constexpr int ALIGN_THREADS = 128;

// Index and similarity of every token of pairs whose maxima are in problem.keys, one block a pair.
// `unscale` as in finish. Rows beyond a document's last token have no key.
template <class Real, class Key, bool SCALED>
__global__ void __launch_bounds__(ALIGN_THREADS) align(Problem problem, Real unscale) {
    auto* flags = reinterpret_cast<int*>(ptx::shared_memory()); // tokens of x, of y; not finite
    const int thread = ptx::thread_index();
    for (index_t t = ptx::block_index(); t < problem.count; t += ptx::grid_size()) {
        const Task task = task_of(problem, t);
        ptx::sync_block();
        if (thread < 3) flags[thread] = 0;
        ptx::sync_block();
        const auto look = [&](const Side& side, index_t first, int rows, int* some) {
            for (int i = thread; i < rows; i += ALIGN_THREADS) {
                const Real scale = row_scale<SCALED, Real>(side, first, i, rows);
                if (!is_token(scale)) continue;
                ptx::atomic_max(some, 1);
                if (is_poison(scale)) ptx::atomic_max(flags + 2, 1);
            }
        };
        look(problem.x, task.x_first, task.n, flags);
        look(problem.y, task.y_first, task.m, flags + 1);
        ptx::sync_block();
        const bool finite = flags[2] == 0, matched = finite && flags[0] != 0 && flags[1] != 0;
        const auto write = [&](const Side& side, index_t first, int rows, index_t all, index_t keys,
                               std::int32_t* index, void* similarity) {
            for (int i = thread; i < all; i += ALIGN_THREADS) {
                const Real scale = row_scale<SCALED, Real>(side, first, i, rows);
                const bool token = is_token(scale);
                Real value = token && !finite ? static_cast<Real>(NAN) : Real(0);
                int place = -1;
                if (token && matched) {
                    const Key best = static_cast<const Key*>(problem.keys)[keys + i];
                    value = unkey(best) * (SCALED ? unscale : scale);
                    if constexpr (sizeof(Real) == 8) {
                        place = -1 - problem.places[keys + i];
                    } else {
                        place = place_of(best);
                    }
                }
                index[i] = place;
                static_cast<Real*>(similarity)[i] = value;
            }
        };
        const AlignmentOut& out = problem.alignment;
        // Padded documents have all their rows, packed ones (of width 0) no others than the task.
        const index_t n = problem.x.width != 0 ? problem.x.width : task.n;
        const index_t m = problem.y.width != 0 ? problem.y.width : task.m;
        write(problem.x, task.x_first, task.n, n, task.keys, out.candidate_index + task.x_out,
              static_cast<Real*>(out.candidate_similarity) + task.x_out);
        write(problem.y, task.y_first, task.m, m, task.keys + task.n,
              out.reference_index + task.y_out,
              static_cast<Real*>(out.reference_similarity) + task.y_out);
    }
}

} // namespace flashbertscore::cuda
