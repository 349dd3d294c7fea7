// The rows of each document up to its last token.
#pragma once

#include "cuda/numeric.cuh"

namespace flashbertscore::cuda {

constexpr int TRIM_THREADS = 128;

// extents[2p], [2p + 1]: rows of task p up to its last token, so that padding is not even read.
__global__ void __launch_bounds__(TRIM_THREADS) trim(Problem problem, int* extents) {
    constexpr int WARPS = TRIM_THREADS / 32;
    const int lane = ptx::thread_index() % 32;
    for (index_t i = ptx::block_index() * WARPS + ptx::thread_index() / 32; i < 2 * problem.count;
         i += ptx::grid_size() * WARPS) {
        const Task task = task_of(problem, i / 2);
        const Side& side = i % 2 ? problem.y : problem.x;
        const index_t first = i % 2 ? task.y_first : task.x_first;
        const int rows = i % 2 ? task.m : task.n;
        int extent = rows;
        if (side.mask != nullptr) {
            extent = 0;
            for (int base = (rows - 1) / 32 * 32; base >= 0 && extent == 0; base -= 32) {
                const int row = base + lane;
                extent = row < rows && side.mask[first + row] != 0 ? row + 1 : 0;
                for (int mask = 1; mask < 32; mask *= 2) {
                    const int other = ptx::shuffle_xor(extent, mask);
                    extent = other > extent ? other : extent;
                }
            }
        }
        if (lane == 0) extents[i] = extent;
    }
}

} // namespace flashbertscore::cuda
