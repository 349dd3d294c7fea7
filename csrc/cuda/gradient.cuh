// Kernels of the backward pass. Everything is summed by one thread, or in one order: the same bits
// in every run.
#pragma once

#include "core/gradient.h"
#include "cuda/gradient.h"
#include "cuda/numeric.cuh"

namespace flashbertscore::cuda {

constexpr int GRADIENT_THREADS = 128;
constexpr int GRADIENT_WARPS = GRADIENT_THREADS / 32;

// float64 tokens, with the interface of numeric.cuh's types that the backward pass uses.
struct Float64 {
    using Storage = double;
    static __device__ __forceinline__ double to_float(double value) { return value; }
};

__device__ __forceinline__ void store_as(double value, double* at) { *at = value; }
__device__ __forceinline__ void store_as(float value, float* at) { *at = value; }

// 16-bit storage says nothing of its type, so this one takes E.
template <class E, class Real>
__device__ __forceinline__ void store_element(Real value, typename E::Storage* at) {
    if constexpr (sizeof(typename E::Storage) != 2) {
        store_as(value, at);
    } else if constexpr (E::wide) { // bfloat16: to nearest, ties to even
        const std::uint32_t bits = static_cast<std::uint32_t>(ptx::float_as_int(value));
        const bool nan = value != value;
        *at = nan ? std::uint16_t{0x7FC0}
                  : static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
    } else {
        *at = ptx::float_to_fp16(value);
    }
}

// Where rows of a side lie.
struct RowAddress {
    const void* data;
    index_t row_stride, document_stride, width; // width 0: packed

    __device__ __forceinline__ index_t element(index_t row) const {
        return width == 0 ? row * row_stride
                          : row / width * document_stride + row % width * row_stride;
    }
};

// A pair: first rows of its documents, where its matches begin, and rows of either side.
struct GradientTask {
    index_t first[2], base[2];
    int rows[2];
};

__device__ __forceinline__ double sum_of_warp(double value) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) value += ptx::shuffle_xor(value, mask);
    return value;
}

// A warp a row. Squares of values divided by the largest, in double, leave no range.
template <class E>
__global__ void __launch_bounds__(GRADIENT_THREADS)
    gradient_norms(RowAddress side, index_t rows, int dim, double* inverse) {
    const int lane = ptx::thread_index() % 32;
    for (index_t row = ptx::block_index() * GRADIENT_WARPS + ptx::thread_index() / 32; row < rows;
         row += ptx::grid_size() * GRADIENT_WARPS) {
        const auto* data = static_cast<const typename E::Storage*>(side.data) + side.element(row);
        double largest = 0;
        bool finite = true;
        for (int k = lane; k < dim; k += 32) {
            const double value = fabs(static_cast<double>(E::to_float(data[k])));
            finite = finite && value < static_cast<double>(INFINITY);
            largest = value > largest ? value : largest;
        }
        for (int mask = 1; mask < 32; mask *= 2) {
            const double other = ptx::shuffle_xor(largest, mask);
            largest = other > largest ? other : largest;
            finite = ptx::shuffle_xor(static_cast<int>(finite), mask) != 0 && finite;
        }
        double squares = 0;
        if (finite && largest > 0) {
            for (int k = lane; k < dim; k += 32) {
                const double value = static_cast<double>(E::to_float(data[k])) / largest;
                squares += value * value;
            }
        }
        squares = sum_of_warp(squares);
        if (lane == 0) inverse[row] = squares > 0 ? 1 / largest / sqrt(squares) : 0;
    }
}

// What gradient_coefficients reads and writes of one side.
struct GradientInputs {
    const std::int32_t* index;
    const void *similarity, *similarity_gradient, *mean, *mean_gradient, *weights;
    GradientSide edges;
    index_t all_rows;
};

// A block a pair: the weight of each edge of side S in the loss, and the rows that it joins.
template <class Real, int S>
__global__ void __launch_bounds__(GRADIENT_THREADS)
    gradient_coefficients(GradientInputs own, GradientInputs other, const void* f1_gradient,
                          const GradientTask* tasks, index_t count, index_t width_x,
                          index_t width_y) {
    double* const partial = reinterpret_cast<double*>(ptx::shared_memory()); // [4]
    const int thread = ptx::thread_index();
    for (index_t p = ptx::block_index(); p < count; p += ptx::grid_size()) {
        GradientTask task;
        if (tasks != nullptr) {
            task = tasks[p];
        } else {
            task = {{p * width_x, p * width_y},
                    {p * width_x, p * width_y},
                    {static_cast<int>(width_x), static_cast<int>(width_y)}};
        }
        const index_t base = task.base[S], first = task.first[S];
        const auto* weights = static_cast<const Real*>(own.weights);
        const auto weight = [&](int i) {
            return weights != nullptr ? static_cast<double>(weights[first + i]) : 1.0;
        };
        const auto match = [&](int i) {
            const int index = own.index[base + i];
            return index < task.rows[1 - S] ? index : -1;
        };
        double total = 0;
        for (int i = thread; i < task.rows[S]; i += GRADIENT_THREADS) {
            if (match(i) >= 0) total += weight(i);
        }
        total = sum_of_warp(total);
        ptx::sync_block();
        if (thread % 32 == 0) partial[thread / 32] = total;
        ptx::sync_block();
        total = (partial[0] + partial[1]) + (partial[2] + partial[3]);

        const double mean = static_cast<const Real*>(own.mean)[p];
        const double other_mean = static_cast<const Real*>(other.mean)[p];
        double gradient = 0;
        if (total > 0) {
            gradient = static_cast<const Real*>(own.mean_gradient)[p];
            const double sum = mean + other_mean;
            if (sum != 0 && fabs(sum) < static_cast<double>(INFINITY)) {
                const double part = other_mean / sum;
                const double f1 = static_cast<const Real*>(f1_gradient)[p];
                gradient += f1 * 2 * part * part;
            }
        }
        for (int i = thread; i < task.rows[S]; i += GRADIENT_THREADS) {
            const int index = match(i);
            const index_t e = base + i;
            const bool edge = index >= 0;
            const index_t there = task.first[1 - S] + index;
            own.edges.keys[e] = static_cast<int>(edge ? first + i : own.all_rows);
            other.edges.keys[other.edges.own + e] = static_cast<int>(edge ? there : other.all_rows);
            double q = 0, slope = 0;
            if (edge && gradient != 0) {
                q = gradient * weight(i) / total;
                const double s_i = static_cast<const Real*>(own.similarity)[e];
                slope = gradient * (s_i - mean) / total;
            }
            if (edge && own.similarity_gradient != nullptr) {
                q += static_cast<double>(static_cast<const Real*>(own.similarity_gradient)[e]);
            }
            static_cast<Real*>(own.edges.weight)[e] = static_cast<Real>(q);
            own.edges.slope[e] = slope;
        }
    }
}

// A factor as two, which leave the range of float only together.
template <class Real>
struct Factor {
    Real first, second;
    __device__ __forceinline__ explicit Factor(double value) {
        const double size = fabs(value);
        const double step = size > 0x1p60 ? 0x1p64 : size < 0x1p-60 ? 0x1p-64 : 1.0;
        first = static_cast<Real>(step);
        second = static_cast<Real>(value / step);
    }
    __device__ __forceinline__ Real times(Real value) const { return value * first * second; }
};

struct GradientRows {
    RowAddress own, other;
    GradientSide own_edges, other_edges;
    const void *own_similarity, *other_similarity;
    const index_t *order, *start;
    index_t rows;
    int dim;
    void *tokens, *weights;
};

// A warp a row: 4 x 32 elements at a time, over all edges of the row.
template <class E, class Real>
__global__ void __launch_bounds__(GRADIENT_THREADS) gradient_gather(GradientRows all) {
    using Storage = typename E::Storage;
    constexpr int WIDE = 4;
    const int lane = ptx::thread_index() % 32;
    const index_t own_count = all.own_edges.own, other_count = all.own_edges.other;
    struct Source {
        index_t row;
        double weight, similarity;
    };
    // Edge `o` of this side: the row it leads to, what it weighs, its similarity.
    const auto source = [&](index_t o) {
        const bool own = o < own_count;
        const index_t e = own ? o : o - own_count;
        const void* weight = own ? all.own_edges.weight : all.other_edges.weight;
        const void* similarity = own ? all.own_similarity : all.other_similarity;
        return Source{all.other_edges.keys[own ? other_count + e : e],
                      static_cast<const Real*>(weight)[e], static_cast<const Real*>(similarity)[e]};
    };
    for (index_t row = ptx::block_index() * GRADIENT_WARPS + ptx::thread_index() / 32;
         row < all.rows; row += ptx::grid_size() * GRADIENT_WARPS) {
        const index_t begin = all.start[row], end = all.start[row + 1];
        double along = 0, slope = 0;
        for (index_t at = begin; at < end; ++at) {
            const index_t o = all.order[at];
            const Source edge = source(o);
            along += edge.weight * edge.similarity;
            if (o < own_count) slope += all.own_edges.slope[o];
        }
        if (all.weights != nullptr && lane == 0) {
            static_cast<Real*>(all.weights)[row] = static_cast<Real>(slope);
        }
        if (all.tokens == nullptr) continue;
        const double inverse = all.own_edges.inverse[row];
        const Factor<Real> back(-along * inverse), scale(inverse);
        const auto* own = static_cast<const Storage*>(all.own.data) + all.own.element(row);
        for (int k0 = lane; k0 < all.dim; k0 += WIDE * 32) {
            Real sum[WIDE] = {};
            const auto add = [&](const Storage* from, const Factor<Real>& factor) {
#pragma unroll
                for (int w = 0; w < WIDE; ++w) {
                    if (k0 + 32 * w < all.dim) {
                        sum[w] += factor.times(E::to_float(from[k0 + 32 * w]));
                    }
                }
            };
            for (index_t at = begin; at < end && inverse != 0; ++at) {
                const Source edge = source(all.order[at]);
                const double factor = edge.weight * all.other_edges.inverse[edge.row];
                if (factor == 0) continue;
                add(static_cast<const Storage*>(all.other.data) + all.other.element(edge.row),
                    Factor<Real>(factor));
            }
            if (inverse != 0) add(own, back);
#pragma unroll
            for (int w = 0; w < WIDE; ++w) {
                if (k0 + 32 * w < all.dim) {
                    store_element<E>(inverse != 0 ? scale.times(sum[w]) : Real(0),
                                     static_cast<Storage*>(all.tokens) + row * all.dim + k0 +
                                         32 * w);
                }
            }
        }
    }
}

} // namespace flashbertscore::cuda
