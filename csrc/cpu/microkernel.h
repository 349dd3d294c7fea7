// The kernels of an instruction set, written once over a vector type V and compiled by each thin
// isa_*.cpp with its own flags. Nothing here may instantiate a function template of the standard
// library: the linker keeps one copy of those, and it could be the one with the wider instructions.
//
// V offers: T, reg, lanes, row_tile, zero, broadcast, load, store, load_as<DType>, fma, add, mul,
// max, max_of_lanes, add_squares, sum_of_lanes, transpose.
//
//   one tile           x [R, dim] rows, L1        panel [dim, C] K-major, L2
//                      broadcast x[r, k]     *    C / lanes vectors of panel[k, :]
//                      R * C/lanes accumulators in registers over all of dim
//   epilogue           row maxima: one running vector a row, over the panels of a sweep
//                      column maxima: max with column_max in memory
#pragma once

#include "core/numeric.h"
#include "cpu/isa.h"

#include <cstddef>
#include <utility>

namespace flashbertscore {
namespace {

// A dot product is summed in chains of this many products and the chains are added: at D = 768 this
// halves the rounding error of one long chain and costs one addition in 256.
constexpr index_t kChain = 256;

constexpr index_t kVectors = 2; // vectors of columns in a panel

template <class V, DType dtype>
double sum_of_squares_as(const void* row, index_t dim) {
    typename V::squares sum = V::no_squares();
    index_t k = 0;
    for (; k + V::lanes <= dim; k += V::lanes) {
        V::add_squares(sum, V::template load_as<dtype>(row, k));
    }
    double total = V::sum_of_lanes(sum);
    for (; k < dim; ++k) {
        const double x = element<typename V::T>(row, dtype, k);
        total += x * x;
    }
    return total;
}

template <class V, DType dtype>
void scale_as(const void* row, index_t dim, typename V::T factor, typename V::T* out) {
    const typename V::reg factors = V::broadcast(factor);
    index_t k = 0;
    for (; k + V::lanes <= dim; k += V::lanes) {
        V::store(out + k, V::mul(V::template load_as<dtype>(row, k), factors));
    }
    for (; k < dim; ++k) { out[k] = element<typename V::T>(row, dtype, k) * factor; }
}

template <class V>
void pack(const typename V::T* rows, index_t count, index_t dim, typename V::T* panel) {
    using T = typename V::T;
    constexpr index_t C = kVectors * V::lanes;
    const T* source[C];
    for (index_t c = 0; c < C; ++c) { source[c] = rows + (c < count ? c : count - 1) * dim; }
    index_t k = 0;
    for (; k + V::lanes <= dim; k += V::lanes) {
        for (index_t half = 0; half < kVectors; ++half) {
            typename V::reg square[V::lanes]; // [lanes, lanes]
            for (index_t c = 0; c < V::lanes; ++c) {
                square[c] = V::load(source[half * V::lanes + c] + k);
            }
            V::transpose(square);
            for (index_t i = 0; i < V::lanes; ++i) {
                V::store(panel + (k + i) * C + half * V::lanes, square[i]);
            }
        }
    }
    for (; k < dim; ++k) {
        for (index_t c = 0; c < C; ++c) { panel[k * C + c] = source[c][k]; }
    }
}

template <class V, int R>
void match_rows(const typename V::T* x, const typename V::T* panels, index_t panel_count,
                index_t dim, typename V::T* row_max, typename V::T* column_max) {
    using reg = typename V::reg;
    constexpr index_t C = kVectors * V::lanes;
    reg best[R]; // [R, lanes] running row maxima
    for (int r = 0; r < R; ++r) { best[r] = V::broadcast(row_max[r]); }
    for (index_t p = 0; p < panel_count; ++p) {
        const typename V::T* panel = panels + p * dim * C; // [dim, C]
        reg total[R][kVectors];                            // [R, C]
        for (int r = 0; r < R; ++r) {
            for (index_t v = 0; v < kVectors; ++v) { total[r][v] = V::zero(); }
        }
        for (index_t start = 0; start < dim; start += kChain) {
            const index_t stop = start + kChain < dim ? start + kChain : dim;
            reg sum[R][kVectors]; // [R, C]
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
                for (index_t v = 0; v < kVectors; ++v) { sum[r][v] = V::zero(); }
            }
            for (index_t k = start; k < stop; ++k) {
                reg y[kVectors];
#pragma GCC unroll 2
                for (index_t v = 0; v < kVectors; ++v) {
                    y[v] = V::load(panel + k * C + v * V::lanes);
                }
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const reg value = V::broadcast(x[r * dim + k]);
#pragma GCC unroll 2
                    for (index_t v = 0; v < kVectors; ++v) {
                        sum[r][v] = V::fma(value, y[v], sum[r][v]);
                    }
                }
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
                for (index_t v = 0; v < kVectors; ++v) {
                    total[r][v] = V::add(total[r][v], sum[r][v]);
                }
            }
        }
        for (index_t v = 0; v < kVectors; ++v) {
            reg column = V::load(column_max + p * C + v * V::lanes);
            for (int r = 0; r < R; ++r) {
                best[r] = V::max(best[r], total[r][v]);
                column = V::max(column, total[r][v]);
            }
            V::store(column_max + p * C + v * V::lanes, column);
        }
    }
    for (int r = 0; r < R; ++r) { row_max[r] = V::max_of_lanes(best[r]); }
}

template <class V, std::size_t... R>
void match(const typename V::T* x, index_t count, const typename V::T* panels, index_t panel_count,
           index_t dim, typename V::T* row_max, typename V::T* column_max,
           std::index_sequence<R...>) {
    using Function = void (*)(const typename V::T*, const typename V::T*, index_t, index_t,
                              typename V::T*, typename V::T*);
    static constexpr Function by_rows[] = {match_rows<V, static_cast<int>(R) + 1>...};
    by_rows[count - 1](x, panels, panel_count, dim, row_max, column_max);
}

// The table row of a vector type; half types are computed in float. A constant: an initializer that
// ran at load time would be compiled with instructions the processor may lack.
template <class V>
constexpr Kernels<typename V::T> kernels() {
    using T = typename V::T;
    Kernels<T> table{};
    table.rows = V::row_tile;
    table.columns = kVectors * V::lanes;
    table.sum_of_squares = []([[maybe_unused]] const void* row, [[maybe_unused]] DType dtype,
                              index_t dim) {
        if constexpr (sizeof(T) == 8) {
            return sum_of_squares_as<V, DType::float64>(row, dim);
        } else {
            switch (dtype) {
            case DType::bfloat16: return sum_of_squares_as<V, DType::bfloat16>(row, dim);
            case DType::float16: return sum_of_squares_as<V, DType::float16>(row, dim);
            default: return sum_of_squares_as<V, DType::float32>(row, dim);
            }
        }
    };
    table.scale = [](const void* row, [[maybe_unused]] DType dtype, index_t dim, T factor, T* out) {
        if constexpr (sizeof(T) == 8) {
            return scale_as<V, DType::float64>(row, dim, factor, out);
        } else {
            switch (dtype) {
            case DType::bfloat16: return scale_as<V, DType::bfloat16>(row, dim, factor, out);
            case DType::float16: return scale_as<V, DType::float16>(row, dim, factor, out);
            default: return scale_as<V, DType::float32>(row, dim, factor, out);
            }
        }
    };
    table.pack = pack<V>;
    table.match = [](const T* x, index_t count, const T* panels, index_t panel_count, index_t dim,
                     T* row_max, T* column_max) {
        match<V>(x, count, panels, panel_count, dim, row_max, column_max,
                 std::make_index_sequence<V::row_tile>());
    };
    return table;
}

} // namespace
} // namespace flashbertscore
