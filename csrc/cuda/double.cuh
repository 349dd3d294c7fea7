// float64 tokens: right and plain, for gradient checks and small problems. No tensor cores.
#pragma once

#include "cuda/finish.cuh"
#include "cuda/load.cuh"

namespace flashbertscore::cuda {

// Tile sizes as load.cuh's items want them: 16 x 16 threads, 2 x 2 similarities each.
struct DoubleTiles {
    static constexpr int TM = 32, TN = 32, THREADS = 256, SLICE = 16, PITCH = SLICE + 1;
    static constexpr int BYTES = (TM + TN) * PITCH * 8;
};

__global__ void __launch_bounds__(256)
    double_norms(Side side, int dim, index_t rows, bool padded, double* scales) {
    const int lane = ptx::thread_index() % 32;
    const index_t step = ptx::grid_size() * (256 / 32);
    for (index_t row = ptx::block_index() * (256 / 32) + ptx::thread_index() / 32; row < rows;
         row += step) {
        const index_t element =
            padded ? row / side.width * side.document_stride + row % side.width * side.row_stride
                   : row * side.row_stride;
        const double* data = static_cast<const double*>(side.data) + element;
        // Squares would over- and underflow where the norm does not.
        double largest = 0;
        bool finite = true;
        for (int k = lane; k < dim; k += 32) {
            const double value = fabs(data[k]);
            finite = finite && value < static_cast<double>(INFINITY);
            largest = value > largest ? value : largest;
        }
        for (int mask = 1; mask < 32; mask *= 2) {
            const double other = ptx::shuffle_xor(largest, mask);
            largest = other > largest ? other : largest;
            finite = ptx::shuffle_xor(static_cast<int>(finite), mask) != 0 && finite;
        }
        double squares = 0;
        for (int k = lane; k < dim && largest > 0; k += 32) {
            const double value = data[k] / largest;
            squares += value * value;
        }
        for (int mask = 1; mask < 32; mask *= 2) squares += ptx::shuffle_xor(squares, mask);
        if (lane == 0) {
            scales[row] = !finite        ? static_cast<double>(INFINITY)
                          : largest == 0 ? 0
                                         : 1 / largest / sqrt(squares);
        }
    }
}

// Maxima of unit vectors' products into 64-bit keys. PLACES: the places where those maxima are, in
// a second pass over the products.
template <bool PLACES>
__global__ void __launch_bounds__(256) double_match(const __grid_constant__ Problem problem) {
    using T = DoubleTiles;
    double* const xs = reinterpret_cast<double*>(ptx::shared_memory());
    double* const ys = xs + T::TM * T::PITCH;
    const int thread = ptx::thread_index(), row = thread / 16, column = thread % 16;
    for (index_t item = ptx::block_index(); item < PairParts<T>::count(problem);
         item += ptx::grid_size()) {
        Range range;
        const Task task = PairParts<T>::get(problem, item, &range);
        if (range.row_begin == range.row_end) continue;
        long long* const keys = static_cast<long long*>(problem.keys) + task.keys;
        const int i0 = range.row_begin * T::TM;
        for (int j0 = range.column_begin * T::TN; j0 < range.column_end * T::TN; j0 += T::TN) {
            const auto load = [&](double* to, const Side& side, index_t first, index_t start,
                                  int base, int rows, int k0) {
                const auto* scales = static_cast<const double*>(side.scales);
                for (int at = thread; at < T::TM * T::SLICE; at += T::THREADS) {
                    const int r = at / T::SLICE, k = k0 + at % T::SLICE, i = base + r;
                    const bool inside = i < rows && k < problem.dim;
                    const auto* data = static_cast<const double*>(side.data);
                    to[r * T::PITCH + at % T::SLICE] =
                        inside ? data[start + i * side.row_stride + k] * scales[first + i] : 0;
                }
            };
            double dots[2][2] = {};
            for (int k0 = 0; k0 < problem.dim; k0 += T::SLICE) {
                load(xs, problem.x, task.x_first, task.x_element, i0, task.n, k0);
                load(ys, problem.y, task.y_first, task.y_element, j0, task.m, k0);
                ptx::sync_block();
                for (int k = 0; k < T::SLICE; ++k)
                    for (int a = 0; a < 2; ++a)
                        for (int b = 0; b < 2; ++b)
                            dots[a][b] = fma(xs[(row + 16 * a) * T::PITCH + k],
                                             ys[(column + 16 * b) * T::PITCH + k], dots[a][b]);
                ptx::sync_block();
            }
            for (int a = 0; a < 2; ++a) {
                for (int b = 0; b < 2; ++b) {
                    const int i = i0 + row + 16 * a, j = j0 + column + 16 * b;
                    if (i >= task.n || j >= task.m || dots[a][b] != dots[a][b]) continue;
                    const long long found = key(dots[a][b] + 0.0); // a zero without a sign
                    const bool row = !is_masked(problem.y, task.y_first + j);
                    const bool column = !is_masked(problem.x, task.x_first + i);
                    if constexpr (PLACES) {
                        int* const places = problem.places + task.keys;
                        if (row && keys[i] == found) ptx::atomic_max(places + i, place_key(j));
                        if (column && keys[task.n + j] == found) {
                            ptx::atomic_max(places + task.n + j, place_key(i));
                        }
                    } else {
                        if (row) ptx::atomic_max(keys + i, found);
                        if (column) ptx::atomic_max(keys + task.n + j, found);
                    }
                }
            }
        }
    }
}

} // namespace flashbertscore::cuda
