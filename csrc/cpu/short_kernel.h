// Pairs so short that packing would cost more than their products, over a vector type V
// (microkernel.h). Norms are summed on the way, from the same loads.
#pragma once

#include "cpu/places.h"
#include "cpu/token_kernels.h"

#include <cstddef>
#include <utility>

namespace flashbertscore {
namespace {

template <class T>
using Quad [[gnu::vector_size(4 * sizeof(T))]] = T;

// Of R rows of x and four of y.
template <class T, int R>
struct Dots {
    static constexpr int rounded = (R + 3) / 4 * 4; // lanes of four registers are summed at once
    T dot[R][4];
    T x_squares[rounded]; // sums of squares, if they are asked for; beyond R nothing
    T y_squares[4];
};

// Vectors along dim, whose lanes are summed at the end. X, Y: sums of squares too. A function of
// its own: inlined, its caller's values take the registers of the sums.
template <class V, int R, bool X, bool Y>
[[gnu::noinline]] void dots(Rows<typename V::S> x, const typename V::S* const (&y)[4], index_t dim,
                            Dots<typename V::T, R>& out, Pacer& pacer) {
    using reg = typename V::reg;
    constexpr int rounded = Dots<typename V::T, R>::rounded;
    reg sum[R][4];
    [[maybe_unused]] reg x_squares[rounded], y_squares[4];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) { sum[r][j] = V::zero(); }
    }
#pragma GCC unroll 8
    for (int r = 0; X && r < rounded; ++r) { x_squares[r] = V::zero(); }
#pragma GCC unroll 4
    for (int j = 0; Y && j < 4; ++j) { y_squares[j] = V::zero(); }
    index_t k = 0;
    for (; k + V::lanes * V::step <= dim; k += V::lanes * V::step) {
        pacer.step();
        decltype(V::read(x.data)) value[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            value[r] = V::read(x.data + r * x.stride + k);
            if constexpr (X) { x_squares[r] = V::dot(value[r], value[r], x_squares[r]); }
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const auto other = V::read(y[j] + k);
            if constexpr (Y) { y_squares[j] = V::dot(other, other, y_squares[j]); }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) { sum[r][j] = V::dot(value[r], other, sum[r][j]); }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) { V::sum_of_lanes(sum[r], out.dot[r]); }
    for (int r = 0; X && r < rounded; r += 4) {
        typename V::T four[4];
        V::sum_of_lanes({x_squares[r], x_squares[r + 1], x_squares[r + 2], x_squares[r + 3]}, four);
        __builtin_memcpy(out.x_squares + r, four, sizeof four);
    }
    if constexpr (Y) { V::sum_of_lanes(y_squares, out.y_squares); }
    for (; k < dim; ++k) {
        for (int r = 0; r < R; ++r) {
            const typename V::S value = x.data[r * x.stride + k];
            for (int j = 0; j < 4; ++j) { out.dot[r][j] += V::product(value, y[j][k]); }
            if constexpr (X) { out.x_squares[r] += V::product(value, value); }
        }
        for (int j = 0; Y && j < 4; ++j) { out.y_squares[j] += V::product(y[j][k], y[j][k]); }
    }
}

template <class V, int R>
void dots(Rows<typename V::S> x, const typename V::S* const (&y)[4], index_t dim, bool x_fresh,
          bool y_fresh, Dots<typename V::T, R>& out, Pacer& pacer) {
    if (x_fresh && y_fresh) {
        dots<V, R, true, true>(x, y, dim, out, pacer);
    } else if (x_fresh) {
        dots<V, R, true, false>(x, y, dim, out, pacer);
    } else if (y_fresh) {
        dots<V, R, false, true>(x, y, dim, out, pacer);
    } else {
        dots<V, R, false, false>(x, y, dim, out, pacer);
    }
}

// Scales of `count` tokens; false: one is not ordinary.
template <class T>
bool scales(const T* squares, index_t count, T* scale) {
    bool all = true;
    for (index_t i = 0; i < count; ++i) {
        all &= ordinary(squares[i]);
        scale[i] = inverse_norm(squares[i]);
    }
    return all;
}

// R rows of x against all of y. Of fresh tokens the scales are written; false: one is not ordinary.
template <class V, int R, bool PLACES>
bool match_short_rows(const Side<typename V::T, typename V::S>& x,
                      const Side<typename V::T, typename V::S>& y, index_t dim, bool x_fresh,
                      bool y_fresh, Pacer& pacer,
                      [[maybe_unused]] const Places<typename V::T>& places) {
    using T = typename V::T;
    using Four = Quad<T>;
    using FourPlaces [[maybe_unused]] = Quad<Place<T>>;
    const index_t M = y.count;
    bool all = true;
    Four best[R];                          // [R, 4] running row maxima
    [[maybe_unused]] FourPlaces from[R]{}; // [R, 4] first of the four columns that `best` is of
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) { best[r] = Four{} + x.best[r]; }
    for (index_t j = 0; j < M; j += 4) {
        const typename V::S* columns[4]; // the last one repeated where there are fewer
        for (index_t c = 0; c < 4; ++c) { columns[c] = y.tokens[j + c < M ? j + c : M - 1]; }
        Dots<T, R> found;
        dots<V, R>(x.tokens, columns, dim, x_fresh && j == 0, y_fresh, found, pacer);
        if (x_fresh && j == 0) { all &= scales(found.x_squares, R, x.scale); }
        if (y_fresh) { all &= scales(found.y_squares, M - j < 4 ? M - j : 4, y.scale + j); }
        Four scale;
        for (index_t c = 0; c < 4; ++c) { scale[c] = y.scale[j + c < M ? j + c : M - 1]; }
        Four most;                         // of the columns
        [[maybe_unused]] FourPlaces row{}; // and its row
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            Four value;
            __builtin_memcpy(&value, found.dot[r], sizeof value);
            const Four in_row = value * scale;
            const Four in_column = value * x.scale[r];
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
            T& column = y.best[j + c];
            if constexpr (PLACES) {
                Place<T>& place = places.column[j + c];
                const Place<T> here = static_cast<Place<T>>(places.first_row) + row[c];
                place = most[c] > column ? here : place;
            }
            column = most[c] > column ? most[c] : column;
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < 4; ++c) { x.best[r] = best[r][c] > x.best[r] ? best[r][c] : x.best[r]; }
        if constexpr (PLACES) { // all columns were here
            T value[4];
            Place<T> place[4];
            __builtin_memcpy(value, &best[r], sizeof value);
            __builtin_memcpy(place, &from[r], sizeof place);
            places.row[r] = lowest_place(value, place, x.best[r]);
        }
    }
    return all;
}

template <class V, bool PLACES, std::size_t... R>
bool match_short(const Side<typename V::T, typename V::S>& x,
                 const Side<typename V::T, typename V::S>& y, index_t dim, bool fresh, Ahead ahead,
                 Places<typename V::T> places, std::index_sequence<R...>) {
    using T = typename V::T;
    using S = typename V::S;
    using Function = bool (*)(const Side<T, S>&, const Side<T, S>&, index_t, bool, bool, Pacer&,
                              const Places<T>&);
    static constexpr Function by_rows[] = {match_short_rows<V, static_cast<int>(R) + 1, PLACES>...};
    constexpr index_t most = static_cast<index_t>(sizeof...(R));
    const index_t N = x.count;
    const index_t blocks = (N + most - 1) / most;
    Pacer pacer(ahead, x.tokens.data, blocks * ((y.count + 3) / 4) * (dim / (V::lanes * V::step)));
    bool all = true;
    for (index_t block = 0; all && block < blocks; ++block) { // of equal size, or one apart
        const index_t i = N * block / blocks;
        const index_t count = N * (block + 1) / blocks - i;
        const Side<T, S> rows = {{x.tokens[i], x.tokens.stride}, count, x.scale + i, x.best + i};
        Places<T> own = places;
        if constexpr (PLACES) {
            own.first_row = i;
            own.row += i;
        }
        all = by_rows[count - 1](rows, y, dim, fresh, fresh && block == 0, pacer, own);
    }
    return all;
}

} // namespace
} // namespace flashbertscore
