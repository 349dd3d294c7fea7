// The kernels of an instruction set, written once over a vector type V and compiled by each thin
// isa_*.cpp with its own flags. Nothing here may instantiate a function template of the standard
// library: the linker keeps one copy of those, and it could be the one with the wider instructions.
//
// V offers, for registers of T: T, reg, lanes, row_tile, short_rows, zero, broadcast, load, store,
// load_as<DType>, fma, add, mul, max, max_of_lanes, sum_of_lanes, transpose, select_greater; and
// for what is multiplied: S, step, read, load_group, store_group, repeat, dot, product. In a plain
// type (Plain) S is T.
//
//   one tile           x [R, dim] rows, L1        panel [dim, C] K-major, L2
//                      broadcast x[r, k]     *    C / lanes vectors of panel[k, :]
//                      R * C/lanes accumulators in registers over all of dim
//   epilogue           row maxima: one running vector a row, over the panels of a sweep
//                      column maxima: max with column_max in memory
#pragma once

#include "cpu/short_kernel.h"

namespace flashbertscore {
namespace {

// A dot product is summed in chains of this many products and the chains are added: at D = 768 this
// halves the rounding error of one long chain and costs one addition in 256.
constexpr index_t kChain = 256;

// total[r][v] = sum_k x[r, k] panel[k, v], in chains.
template <class V, int R>
[[gnu::always_inline]] inline void
multiply_panel(Rows<typename V::S> x, const typename V::S* panel, index_t dim,
               typename V::reg (&total)[R][kVectors], Pacer& pacer) {
    using reg = typename V::reg;
    constexpr index_t C = kVectors * V::lanes;
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
            for (index_t v = 0; v < kVectors; ++v) { total[r][v] = V::add(total[r][v], sum[r][v]); }
        }
    }
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
        multiply_panel<V, R>(x, panel, dim, total, pacer);
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

// products[r, c] = <x_r, y_c> for R rows and all columns of the panels.
template <class V, int R>
void multiply_rows(Rows<typename V::S> x, const typename V::S* panels, index_t panel_count,
                   index_t dim, typename V::T* products, Ahead ahead) {
    constexpr index_t C = kVectors * V::lanes;
    Pacer pacer(ahead, x.data, panel_count * (dim / V::step));
    for (index_t p = 0; p < panel_count; ++p) {
        typename V::reg total[R][kVectors]; // [R, C]
        multiply_panel<V, R>(x, panels + p * dim * C, dim, total, pacer);
        for (int r = 0; r < R; ++r) {
            for (index_t v = 0; v < kVectors; ++v) {
                V::store(products + (r * panel_count + p) * C + v * V::lanes, total[r][v]);
            }
        }
    }
}

template <class V, std::size_t... R>
void multiply(Rows<typename V::S> x, index_t count, const typename V::S* panels,
              index_t panel_count, index_t dim, typename V::T* products, Ahead ahead,
              std::index_sequence<R...>) {
    using T = typename V::T;
    using S = typename V::S;
    using Function = void (*)(Rows<S>, const S*, index_t, index_t, T*, Ahead);
    static constexpr Function by_rows[] = {multiply_rows<V, static_cast<int>(R) + 1>...};
    by_rows[count - 1](x, panels, panel_count, dim, products, ahead);
}

// The largest of value[i] * scale[i], count >= 1 of them.
template <class V>
typename V::T largest(const typename V::T* value, const typename V::T* scale, index_t count) {
    if (count < V::lanes) {
        typename V::T most = value[0] * scale[0];
        for (index_t i = 1; i < count; ++i) {
            const typename V::T here = value[i] * scale[i];
            most = here > most ? here : most;
        }
        return most;
    }
    const index_t last = count - V::lanes; // may overlap the vector before
    typename V::reg most = V::mul(V::load(value + last), V::load(scale + last));
    for (index_t i = 0; i < last; i += V::lanes) {
        most = V::max(most, V::mul(V::load(value + i), V::load(scale + i)));
    }
    return V::max_of_lanes(most);
}

template <class V>
void maxima(const typename V::T* products, index_t pitch, const typename V::T* x_scale,
            index_t count, const typename V::T* y_scale, const index_t* first, index_t documents,
            typename V::T* row_max, index_t row_pitch, typename V::T* column_max) {
    for (index_t at = 0; at < pitch; at += V::lanes) {
        typename V::reg column = V::load(column_max + at);
        for (index_t r = 0; r < count; ++r) {
            column = V::max(column,
                            V::mul(V::load(products + r * pitch + at), V::broadcast(x_scale[r])));
        }
        V::store(column_max + at, column);
    }
    for (index_t d = 0; d < documents; ++d) {
        const index_t begin = first[d], columns = first[d + 1] - begin;
        for (index_t r = 0; columns > 0 && r < count; ++r) {
            row_max[d * row_pitch + r] =
                largest<V>(products + r * pitch + begin, y_scale + begin, columns);
        }
    }
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
    table.squares = squares<V>;
    table.convert = convert<V>;
    table.pack = pack<V>;
    table.match = [](Rows<S> x, const T* x_scale, index_t count, const S* panels, const T* y_scale,
                     index_t panel_count, index_t dim, T* row_max, T* column_max, Ahead ahead) {
        match<V, false>(x, x_scale, count, panels, y_scale, panel_count, dim, row_max, column_max,
                        ahead, {}, std::make_index_sequence<V::row_tile>());
    };
    table.match_short = [](const Side<T, S>& x, const Side<T, S>& y, index_t dim, bool fresh,
                           Ahead ahead) {
        return match_short<V, false>(x, y, dim, fresh, ahead, {},
                                     std::make_index_sequence<V::short_rows>());
    };
    table.multiply = [](Rows<S> x, index_t count, const S* panels, index_t panel_count, index_t dim,
                        T* products, Ahead ahead) {
        multiply<V>(x, count, panels, panel_count, dim, products, ahead,
                    std::make_index_sequence<V::row_tile>());
    };
    table.maxima = maxima<V>;
    table.match_places = [](Rows<S> x, const T* x_scale, index_t count, const S* panels,
                            const T* y_scale, index_t panel_count, index_t dim, T* row_max,
                            T* column_max, Ahead ahead, Places<T> places) {
        match<V, true>(x, x_scale, count, panels, y_scale, panel_count, dim, row_max, column_max,
                       ahead, places, std::make_index_sequence<V::row_tile>());
    };
    table.match_short_places = [](const Side<T, S>& x, const Side<T, S>& y, index_t dim, bool fresh,
                                  Ahead ahead, Places<T> places) {
        return match_short<V, true>(x, y, dim, fresh, ahead, places,
                                    std::make_index_sequence<V::short_rows>());
    };
    return table;
}

} // namespace
} // namespace flashbertscore
