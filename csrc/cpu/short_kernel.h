// Pairs so short that packing would cost more than their products, over a vector type V
// (microkernel.h): vectors along dim, whose lanes are summed at the end.
#pragma once

#include "cpu/places.h"
#include "cpu/token_kernels.h"

#include <cstddef>
#include <utility>

namespace flashbertscore {
namespace {

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

} // namespace
} // namespace flashbertscore
