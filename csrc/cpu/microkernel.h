// The kernels of an instruction set, written once over a vector type V and compiled by each thin
// isa_*.cpp with its own flags. Nothing here may instantiate a function template of the standard
// library: the linker keeps one copy of those, and it could be the one with the wider instructions.
//
// V offers, for registers of T: T, reg, lanes, row_tile, short_rows, zero, broadcast, load, store,
// load_as<DType>, fma, add, mul, max, max_of_lanes, sum_of_lanes, transpose, select_greater; and
// for what is multiplied: S, step, many, read, repeat, dot, product. In a plain type (Plain) S is
// T.
//
//   one tile           x [R, dim] rows, L1        panel [dim, C] K-major, L2
//                      broadcast x[r, k]     *    C / lanes vectors of panel[k, :]
//                      R * C/lanes accumulators in registers over all of dim
//   epilogue           row maxima: one running vector a row, over the panels of a sweep
//                      column maxima: max with column_max in memory
#pragma once

#include "core/numeric.h"
#include "cpu/addresses.h"
#include "cpu/isa.h"

#include <cstddef>
#include <utility>

namespace flashbertscore {
namespace {

// A dot product is summed in chains of this many products and the chains are added: at D = 768 this
// halves the rounding error of one long chain and costs one addition in 256.
constexpr index_t kChain = 256;

constexpr index_t kVectors = 2; // vectors of columns in a panel

// Multiplying T itself: one element of dim a step.
template <class V, class Element>
struct Plain {
    using S = Element;
    static constexpr index_t step = 1;
    static auto read(const S* p) { return V::load(p); } // lanes * step elements
    static auto load_group(const S* p) { return V::load(p); }
    template <class R>
    static void store_group(S* p, R x) {
        V::store(p, x);
    }
    static auto repeat(const S* p) { return V::broadcast(*p); } // `step` elements in every lane
    template <class R>
    static R dot(R a, R b, R c) {
        return V::fma(a, b, c);
    }
    static Element product(S a, S b) { return a * b; }
};

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
    double some[4] = {};
#pragma GCC unroll 16
    for (index_t i = 0; i < V::lanes; ++i) { some[i % 4] += static_cast<double>(parts[i]); }
    double total = (some[0] + some[1]) + (some[2] + some[3]);
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
void pack(Rows<typename V::S> rows, index_t count, index_t dim, typename V::S* panel) {
    constexpr index_t C = kVectors * V::lanes;
    constexpr index_t width = V::lanes * V::step; // elements of a row in a register
    const typename V::S* source[C];
    for (index_t c = 0; c < C; ++c) { source[c] = rows[c < count ? c : count - 1]; }
    index_t k = 0;
    for (; k + width <= dim; k += width) {
        for (index_t half = 0; half < kVectors; ++half) {
            typename V::reg square[V::lanes]; // [lanes, lanes] groups of `step` elements
#pragma GCC unroll 16
            for (index_t c = 0; c < V::lanes; ++c) {
                square[c] = V::load_group(source[half * V::lanes + c] + k);
            }
            V::transpose(square);
#pragma GCC unroll 16
            for (index_t i = 0; i < V::lanes; ++i) {
                V::store_group(panel + (k + i * V::step) * C + half * width, square[i]);
            }
        }
    }
    for (; k < dim; k += V::step) {
        for (index_t c = 0; c < C; ++c) {
            for (index_t s = 0; s < V::step; ++s) {
                panel[k * C + c * V::step + s] = source[c][k + s];
            }
        }
    }
}

// A place as the bits of a T, and in every lane of a vector.
template <class V>
typename V::reg broadcast_place(index_t place) {
    const Place<typename V::T> bits = static_cast<Place<typename V::T>>(place);
    typename V::T value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return V::broadcast(value);
}

// The lowest of the places, each plus its lane, whose value is `most`.
template <class T, index_t lanes>
Place<T> lowest_place(const T (&value)[lanes], const Place<T> (&place)[lanes], T most) {
    constexpr Place<T> none = static_cast<Place<T>>(~(Place<T>{1} << (8 * sizeof(T) - 1)));
    Place<T> lowest = none;
    for (index_t lane = 0; lane < lanes; ++lane) {
        const Place<T> here =
            value[lane] == most ? place[lane] + static_cast<Place<T>>(lane) : none;
        lowest = here < lowest ? here : lowest;
    }
    return lowest;
}

// PLACES: keep where maxima are.
template <class V, int R, bool PLACES>
void match_rows(Rows<typename V::S> x, const typename V::T* x_scale, const typename V::S* panels,
                const typename V::T* y_scale, index_t panel_count, index_t dim,
                typename V::T* row_max, typename V::T* column_max, Ahead ahead,
                [[maybe_unused]] const Places<typename V::T>& places) {
    using reg = typename V::reg;
    constexpr index_t C = kVectors * V::lanes;
    Pacer pacer(ahead, x.data, panel_count * (dim / V::step));
    reg best[R]; // [R, lanes] running row maxima
    for (int r = 0; r < R; ++r) { best[r] = V::broadcast(row_max[r]); }
    [[maybe_unused]] reg from[R];   // [R, lanes] first column of the vector that `best` is of
    [[maybe_unused]] reg number[R]; // of the rows
    if constexpr (PLACES) {
        for (int r = 0; r < R; ++r) {
            from[r] = V::zero();
            number[r] = broadcast_place<V>(places.first_row + r);
        }
    }
    for (index_t p = 0; p < panel_count; ++p) {
        const typename V::S* panel = panels + p * dim * C; // [dim / step, C, step]
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
            RowPointers<R> row(x.data + start, x.stride);
            for (index_t k = start; k < stop; k += V::step) {
                pacer.step();
                decltype(V::read(panel)) y[kVectors];
#pragma GCC unroll 2
                for (index_t v = 0; v < kVectors; ++v) {
                    y[v] = V::read(panel + k * C + v * V::lanes * V::step);
                }
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const auto value = V::repeat(row.template at<typename V::S>(r));
#pragma GCC unroll 2
                    for (index_t v = 0; v < kVectors; ++v) {
                        sum[r][v] = V::dot(value, y[v], sum[r][v]);
                    }
                }
                row.advance(V::step * static_cast<index_t>(sizeof(typename V::S)));
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
            if constexpr (PLACES) {
                const reg here = broadcast_place<V>(places.first_column + at);
                auto* const column_place = reinterpret_cast<typename V::T*>(places.column + at);
                reg row = V::load(column_place);
                for (int r = 0; r < R; ++r) {
                    const reg in_row = V::mul(total[r][v], scale);
                    from[r] = V::select_greater(in_row, best[r], here, from[r]);
                    best[r] = V::max(best[r], in_row);
                    const reg in_column = V::mul(total[r][v], V::broadcast(x_scale[r]));
                    row = V::select_greater(in_column, column, number[r], row);
                    column = V::max(column, in_column);
                }
                V::store(column_place, row);
            } else {
                for (int r = 0; r < R; ++r) {
                    best[r] = V::max(best[r], V::mul(total[r][v], scale));
                    column = V::max(column, V::mul(total[r][v], V::broadcast(x_scale[r])));
                }
            }
            V::store(column_max + at, column);
        }
    }
    for (int r = 0; r < R; ++r) {
        const typename V::T most = V::max_of_lanes(best[r]);
        if constexpr (PLACES) {
            if (most > row_max[r]) { // else it was in columns before these
                typename V::T value[V::lanes];
                Place<typename V::T> place[V::lanes];
                V::store(value, best[r]);
                V::store(reinterpret_cast<typename V::T*>(place), from[r]);
                places.row[r] = lowest_place(value, place, most);
            }
        }
        row_max[r] = most;
    }
}

template <class V, bool PLACES, std::size_t... R>
void match(Rows<typename V::S> x, const typename V::T* x_scale, index_t count,
           const typename V::S* panels, const typename V::T* y_scale, index_t panel_count,
           index_t dim, typename V::T* row_max, typename V::T* column_max, Ahead ahead,
           const Places<typename V::T>& places, std::index_sequence<R...>) {
    using T = typename V::T;
    using S = typename V::S;
    using Function = void (*)(Rows<S>, const T*, const S*, const T*, index_t, index_t, T*, T*,
                              Ahead, const Places<T>&);
    static constexpr Function by_rows[] = {match_rows<V, static_cast<int>(R) + 1, PLACES>...};
    by_rows[count - 1](x, x_scale, panels, y_scale, panel_count, dim, row_max, column_max, ahead,
                       places);
}

template <class T>
using Quad [[gnu::vector_size(4 * sizeof(T))]] = T;

// R rows of x against four of y, vectors along dim: [R, 4] sums of lanes at the end. A function of
// its own: inlined, its caller's values take the registers of the sums.
template <class V, int R>
[[gnu::noinline]] void dots(Rows<typename V::S> x, const typename V::S* const (&y)[4], index_t dim,
                            typename V::T (&dot)[R][4], Pacer& pacer) {
    using reg = typename V::reg;
    reg sum[R][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) { sum[r][j] = V::zero(); }
    }
    index_t k = 0;
    for (; k + V::lanes * V::step <= dim; k += V::lanes * V::step) {
        pacer.step();
        decltype(V::read(x.data)) value[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) { value[r] = V::read(x.data + r * x.stride + k); }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const auto other = V::read(y[j] + k);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) { sum[r][j] = V::dot(value[r], other, sum[r][j]); }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) { V::sum_of_lanes(sum[r], dot[r]); }
    for (; k < dim; ++k) {
        for (int r = 0; r < R; ++r) {
            for (int j = 0; j < 4; ++j) {
                dot[r][j] += V::product(x.data[r * x.stride + k], y[j][k]);
            }
        }
    }
}

template <class V, int R, bool PLACES>
void match_short_rows(Rows<typename V::S> x, const typename V::T* x_scale, Rows<typename V::S> y,
                      const typename V::T* y_scale, index_t M, index_t dim, typename V::T* row_max,
                      typename V::T* column_max, Pacer& pacer,
                      [[maybe_unused]] const Places<typename V::T>& places) {
    using T = typename V::T;
    using Four = Quad<T>;
    using FourPlaces [[maybe_unused]] = Quad<Place<T>>;
    Four best[R];                          // [R, 4] running row maxima
    [[maybe_unused]] FourPlaces from[R]{}; // [R, 4] first of the four columns that `best` is of
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) { best[r] = Four{} + row_max[r]; }
    for (index_t j = 0; j < M; j += 4) {
        const typename V::S* columns[4]; // the last one repeated where there are fewer
        Four scale;
        for (index_t c = 0; c < 4; ++c) {
            const index_t column = j + c < M ? j + c : M - 1;
            columns[c] = y[column];
            scale[c] = y_scale[column];
        }
        T dot[R][4];
        dots<V, R>(x, columns, dim, dot, pacer);
        Four most;                         // of the columns
        [[maybe_unused]] FourPlaces row{}; // and its row
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            Four value;
            __builtin_memcpy(&value, dot[r], sizeof value);
            const Four in_row = value * scale;
            const Four in_column = value * x_scale[r];
            if constexpr (PLACES) {
                const FourPlaces here = FourPlaces{} + static_cast<Place<T>>(j);
                from[r] = in_row > best[r] ? here : from[r];
            }
            best[r] = in_row > best[r] ? in_row : best[r];
            if (r == 0) { most = in_column; }
            if constexpr (PLACES) {
                row = in_column > most ? FourPlaces{} + static_cast<Place<T>>(r) : row;
            }
            most = in_column > most ? in_column : most;
        }
        for (int c = 0; c < 4 && j + c < M; ++c) {
            if constexpr (PLACES) {
                Place<T>& place = places.column[j + c];
                const Place<T> here = static_cast<Place<T>>(places.first_row) + row[c];
                place = most[c] > column_max[j + c] ? here : place;
            }
            column_max[j + c] = most[c] > column_max[j + c] ? most[c] : column_max[j + c];
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < 4; ++c) {
            row_max[r] = best[r][c] > row_max[r] ? best[r][c] : row_max[r];
        }
        if constexpr (PLACES) { // all columns were here
            T value[4];
            Place<T> place[4];
            __builtin_memcpy(value, &best[r], sizeof value);
            __builtin_memcpy(place, &from[r], sizeof place);
            places.row[r] = lowest_place(value, place, row_max[r]);
        }
    }
}

template <class V, bool PLACES, std::size_t... R>
void match_short(Rows<typename V::S> x, const typename V::T* x_scale, index_t N,
                 Rows<typename V::S> y, const typename V::T* y_scale, index_t M, index_t dim,
                 typename V::T* row_max, typename V::T* column_max, Ahead ahead,
                 Places<typename V::T> places, std::index_sequence<R...>) {
    using T = typename V::T;
    using S = typename V::S;
    using Function = void (*)(Rows<S>, const T*, Rows<S>, const T*, index_t, index_t, T*, T*,
                              Pacer&, const Places<T>&);
    static constexpr Function by_rows[] = {match_short_rows<V, static_cast<int>(R) + 1, PLACES>...};
    constexpr index_t most = static_cast<index_t>(sizeof...(R));
    const index_t blocks = (N + most - 1) / most;
    Pacer pacer(ahead, x.data, blocks * ((M + 3) / 4) * (dim / (V::lanes * V::step)));
    for (index_t block = 0; block < blocks; ++block) { // of equal size, or one apart
        const index_t i = N * block / blocks;
        const index_t count = N * (block + 1) / blocks - i;
        Places<T> own = places;
        if constexpr (PLACES) {
            own.first_row = i;
            own.row += i;
        }
        by_rows[count - 1]({x[i], x.stride}, x_scale + i, y, y_scale, M, dim, row_max + i,
                           column_max, pacer, own);
    }
}

// Reading tokens: the same for every S.
template <class V>
double sum_of_squares(const void* row, [[maybe_unused]] DType dtype, index_t dim) {
    if constexpr (sizeof(typename V::T) == 8) {
        return sum_of_squares_as<V, DType::float64>(row, dim);
    } else {
        switch (dtype) {
        case DType::bfloat16: return sum_of_squares_as<V, DType::bfloat16>(row, dim);
        case DType::float16: return sum_of_squares_as<V, DType::float16>(row, dim);
        default: return sum_of_squares_as<V, DType::float32>(row, dim);
        }
    }
}

template <class V>
void convert(const void* row, [[maybe_unused]] DType dtype, index_t dim, typename V::T* out) {
    if constexpr (sizeof(typename V::T) == 8) {
        convert_as<V, DType::float64>(row, dim, out);
    } else {
        switch (dtype) {
        case DType::bfloat16: return convert_as<V, DType::bfloat16>(row, dim, out);
        case DType::float16: return convert_as<V, DType::float16>(row, dim, out);
        default: return convert_as<V, DType::float32>(row, dim, out);
        }
    }
}

// A row of bfloat16 is multiplied as it is.
template <class V>
void convert(const void* row, DType, index_t dim, bfloat16* out) {
    const bfloat16* from = static_cast<const bfloat16*>(row);
    for (index_t k = 0; k < dim; ++k) { out[k] = from[k]; }
}

// The table row of a vector type. A constant: an initializer that ran at load time would be
// compiled with instructions the processor may lack.
template <class V>
constexpr Kernels<typename V::T, typename V::S> kernels() {
    using T = typename V::T;
    using S = typename V::S;
    Kernels<T, S> table{};
    table.rows = V::row_tile;
    table.columns = kVectors * V::lanes;
    table.step = V::step;
    table.sum_of_squares = sum_of_squares<V>;
    table.convert = convert<V>;
    table.pack = pack<V>;
    table.match = [](Rows<S> x, const T* x_scale, index_t count, const S* panels, const T* y_scale,
                     index_t panel_count, index_t dim, T* row_max, T* column_max, Ahead ahead) {
        match<V, false>(x, x_scale, count, panels, y_scale, panel_count, dim, row_max, column_max,
                        ahead, {}, std::make_index_sequence<V::row_tile>());
    };
    table.match_short = [](Rows<S> x, const T* x_scale, index_t N, Rows<S> y, const T* y_scale,
                           index_t M, index_t dim, T* row_max, T* column_max, Ahead ahead) {
        match_short<V, false>(x, x_scale, N, y, y_scale, M, dim, row_max, column_max, ahead, {},
                              std::make_index_sequence<V::short_rows>());
    };
    table.match_places = [](Rows<S> x, const T* x_scale, index_t count, const S* panels,
                            const T* y_scale, index_t panel_count, index_t dim, T* row_max,
                            T* column_max, Ahead ahead, Places<T> places) {
        match<V, true>(x, x_scale, count, panels, y_scale, panel_count, dim, row_max, column_max,
                       ahead, places, std::make_index_sequence<V::row_tile>());
    };
    table.match_short_places = [](Rows<S> x, const T* x_scale, index_t N, Rows<S> y,
                                  const T* y_scale, index_t M, index_t dim, T* row_max,
                                  T* column_max, Ahead ahead, Places<T> places) {
        match_short<V, true>(x, x_scale, N, y, y_scale, M, dim, row_max, column_max, ahead, places,
                             std::make_index_sequence<V::short_rows>());
    };
    return table;
}

} // namespace
} // namespace flashbertscore
