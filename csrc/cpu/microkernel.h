// The kernels of an instruction set, written once over a vector type V and compiled by each thin
// isa_*.cpp with its own flags. Nothing here may instantiate a function template of the standard
// library: the linker keeps one copy of those, and it could be the one with the wider instructions.
//
// V offers: T, reg, lanes, row_tile, short_rows, zero, broadcast, load, store, load_as<DType>, fma,
// add, mul, max, max_of_lanes, sum_of_lanes, transpose.
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
    using reg = typename V::reg;
    constexpr index_t step = 4 * V::lanes;
    reg sum[4];
#pragma GCC unroll 4
    for (index_t i = 0; i < 4; ++i) { sum[i] = V::zero(); }
    index_t k = 0;
    for (; k + step <= dim; k += step) {
#pragma GCC unroll 4
        for (index_t i = 0; i < 4; ++i) {
            const reg x = V::template load_as<dtype>(row, k + i * V::lanes);
            sum[i] = V::fma(x, x, sum[i]);
        }
    }
    for (; k + V::lanes <= dim; k += V::lanes) {
        const reg x = V::template load_as<dtype>(row, k);
        sum[0] = V::fma(x, x, sum[0]);
    }
    typename V::T parts[V::lanes];
    V::store(parts, V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
    double total = 0.0;
    for (index_t i = 0; i < V::lanes; ++i) { total += static_cast<double>(parts[i]); }
    for (; k < dim; ++k) {
        const double x = element<typename V::T>(row, dtype, k);
        total += x * x;
    }
    return total;
}

template <class V, DType dtype>
void convert_as(const void* row, index_t dim, typename V::T* out) {
    index_t k = 0;
    for (; k + V::lanes <= dim; k += V::lanes) {
        V::store(out + k, V::template load_as<dtype>(row, k));
    }
    for (; k < dim; ++k) { out[k] = element<typename V::T>(row, dtype, k); }
}

template <class V>
void pack(Rows<typename V::T> rows, index_t count, index_t dim, typename V::T* panel) {
    using T = typename V::T;
    constexpr index_t C = kVectors * V::lanes;
    const T* source[C];
    for (index_t c = 0; c < C; ++c) { source[c] = rows[c < count ? c : count - 1]; }
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
void match_rows(Rows<typename V::T> x, const typename V::T* x_scale, const typename V::T* panels,
                const typename V::T* y_scale, index_t panel_count, index_t dim,
                typename V::T* row_max, typename V::T* column_max) {
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
                    const reg value = V::broadcast(x.data[r * x.stride + k]);
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
            const index_t at = p * C + v * V::lanes;
            const reg scale = V::load(y_scale + at);
            reg column = V::load(column_max + at);
            for (int r = 0; r < R; ++r) {
                best[r] = V::max(best[r], V::mul(total[r][v], scale));
                column = V::max(column, V::mul(total[r][v], V::broadcast(x_scale[r])));
            }
            V::store(column_max + at, column);
        }
    }
    for (int r = 0; r < R; ++r) { row_max[r] = V::max_of_lanes(best[r]); }
}

template <class V, std::size_t... R>
void match(Rows<typename V::T> x, const typename V::T* x_scale, index_t count,
           const typename V::T* panels, const typename V::T* y_scale, index_t panel_count,
           index_t dim, typename V::T* row_max, typename V::T* column_max,
           std::index_sequence<R...>) {
    using T = typename V::T;
    using Function = void (*)(Rows<T>, const T*, const T*, const T*, index_t, index_t, T*, T*);
    static constexpr Function by_rows[] = {match_rows<V, static_cast<int>(R) + 1>...};
    by_rows[count - 1](x, x_scale, panels, y_scale, panel_count, dim, row_max, column_max);
}

// R rows of x against four of y, vectors along dim: [R, 4] sums of lanes at the end.
template <class V, int R>
void dots(Rows<typename V::T> x, const typename V::T* const (&y)[4], index_t dim,
          typename V::T (&dot)[R][4]) {
    using reg = typename V::reg;
    reg sum[R][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) { sum[r][j] = V::zero(); }
    }
    index_t k = 0;
    for (; k + V::lanes <= dim; k += V::lanes) {
        reg value[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) { value[r] = V::load(x.data + r * x.stride + k); }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const reg other = V::load(y[j] + k);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) { sum[r][j] = V::fma(value[r], other, sum[r][j]); }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) { V::sum_of_lanes(sum[r], dot[r]); }
    for (; k < dim; ++k) {
        for (int r = 0; r < R; ++r) {
            for (int j = 0; j < 4; ++j) { dot[r][j] += x.data[r * x.stride + k] * y[j][k]; }
        }
    }
}

template <class V, int R>
void match_short_rows(Rows<typename V::T> x, const typename V::T* x_scale, Rows<typename V::T> y,
                      const typename V::T* y_scale, index_t M, index_t dim, typename V::T* row_max,
                      typename V::T* column_max) {
    using T = typename V::T;
    for (index_t j = 0; j < M; j += 4) {
        const T* columns[4]; // the last one repeated where there are fewer
        T scale[4];
        for (index_t c = 0; c < 4; ++c) {
            const index_t column = j + c < M ? j + c : M - 1;
            columns[c] = y[column];
            scale[c] = y_scale[column];
        }
        T dot[R][4];
        dots<V, R>(x, columns, dim, dot);
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < 4; ++c) {
                const T value = dot[r][c] * scale[c];
                row_max[r] = value > row_max[r] ? value : row_max[r];
            }
        }
        for (int c = 0; c < 4 && j + c < M; ++c) {
            for (int r = 0; r < R; ++r) {
                const T value = dot[r][c] * x_scale[r];
                column_max[j + c] = value > column_max[j + c] ? value : column_max[j + c];
            }
        }
    }
}

template <class V, std::size_t... R>
void match_short(Rows<typename V::T> x, const typename V::T* x_scale, index_t N,
                 Rows<typename V::T> y, const typename V::T* y_scale, index_t M, index_t dim,
                 typename V::T* row_max, typename V::T* column_max, std::index_sequence<R...>) {
    using T = typename V::T;
    using Function = void (*)(Rows<T>, const T*, Rows<T>, const T*, index_t, index_t, T*, T*);
    static constexpr Function by_rows[] = {match_short_rows<V, static_cast<int>(R) + 1>...};
    constexpr index_t most = static_cast<index_t>(sizeof...(R));
    for (index_t i = 0; i < N; i += most) {
        const index_t count = N - i < most ? N - i : most;
        by_rows[count - 1]({x[i], x.stride}, x_scale + i, y, y_scale, M, dim, row_max + i,
                           column_max);
    }
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
    table.convert = [](const void* row, [[maybe_unused]] DType dtype, index_t dim, T* out) {
        if constexpr (sizeof(T) == 8) {
            convert_as<V, DType::float64>(row, dim, out);
        } else {
            switch (dtype) {
            case DType::bfloat16: return convert_as<V, DType::bfloat16>(row, dim, out);
            case DType::float16: return convert_as<V, DType::float16>(row, dim, out);
            default: return convert_as<V, DType::float32>(row, dim, out);
            }
        }
    };
    table.pack = pack<V>;
    table.match = [](Rows<T> x, const T* x_scale, index_t count, const T* panels, const T* y_scale,
                     index_t panel_count, index_t dim, T* row_max, T* column_max) {
        match<V>(x, x_scale, count, panels, y_scale, panel_count, dim, row_max, column_max,
                 std::make_index_sequence<V::row_tile>());
    };
    table.match_short = [](Rows<T> x, const T* x_scale, index_t N, Rows<T> y, const T* y_scale,
                           index_t M, index_t dim, T* row_max, T* column_max) {
        match_short<V>(x, x_scale, N, y, y_scale, M, dim, row_max, column_max,
                       std::make_index_sequence<V::short_rows>());
    };
    return table;
}

} // namespace
} // namespace flashbertscore
