// Self-attention of one head, written once over vector types; see microkernel.h for what these are
// and for the rules that a file under an instruction set's flags keeps.
//
// V: vector of float. M: what multiplies queries and keys: V itself, or bfloat16 in pairs.
//
//   keys    packed once a head, K-major panels of one vector of keys     [L / lanes][dim, lanes]
//   values  copied once a head: float, rows padded with zeros             [L, dim']
//   strip of R queries:
//     scores = Q K^T     broadcast q[r, k] * panel[k, :], sums in registers over all of dim
//     softmax            row by row in the strip                          [R, L'], L1
//     out = P V          broadcast p[r, j] * values[j, :], sums in registers over all of L
//
// A row of scores is kept whole, so there is one pass of softmax and nothing is rescaled: at 512
// tokens a strip of 12 rows is 24 KiB. Both products are the same loop, `multiply` of product.h.
#pragma once

#include "cpu/product.h"

#include <type_traits>

namespace flashbertscore {
namespace {

// panels[p][k, c, s] = keys[min(p * lanes + c, length - 1), k * step + s].
template <class M>
void pack_keys(Rows<typename M::S> keys, index_t length, index_t dim, typename M::S* panel) {
    constexpr index_t width = M::lanes * M::step; // elements of a register
    for (index_t j = 0; j < length; j += M::lanes, panel += dim * M::lanes) {
        const typename M::S* source[M::lanes];
        for (index_t c = 0; c < M::lanes; ++c) {
            source[c] = keys[j + c < length ? j + c : length - 1];
        }
        index_t k = 0;
        for (; k + width <= dim; k += width) {
            typename M::reg square[M::lanes]; // [lanes, lanes] groups of `step` elements
#pragma GCC unroll 16
            for (index_t c = 0; c < M::lanes; ++c) { square[c] = M::load_group(source[c] + k); }
            M::transpose(square);
#pragma GCC unroll 16
            for (index_t i = 0; i < M::lanes; ++i) {
                M::store_group(panel + (k + i * M::step) * M::lanes, square[i]);
            }
        }
        for (; k < dim; k += M::step) {
            for (index_t c = 0; c < M::lanes; ++c) {
                for (index_t s = 0; s < M::step; ++s) {
                    panel[k * M::lanes + c * M::step + s] = source[c][k + s];
                }
            }
        }
    }
}

// A head whose keys and values are packed.
template <class M>
struct Packed {
    Rows<typename M::S> queries; // [L, dim]
    const typename M::S* panels; // [L / lanes][dim / step, lanes, step]
    const float* values;         // [L, value_dim]
    index_t length, dim;         // L, d
    index_t value_dim;           // d, rounded up to whole vectors
    index_t pitch;               // floats between two rows of scores
    float scale;
    float* scores; // [R, pitch]
    float* result; // [R, value_dim]
};

// The scores of R queries from token i on, scaled.
template <class V, class M, int R, int N>
void score(const Packed<M>& head, index_t i, index_t panel) {
    typename V::reg sum[R][N];
    const index_t panel_size = head.dim * M::lanes;
    multiply<M, R, N>({head.queries[i], head.queries.stride}, head.dim,
                      head.panels + panel * panel_size, M::lanes * M::step, panel_size, sum, [] {});
    const typename V::reg scale = V::broadcast(head.scale);
    float* to = head.scores + panel * V::lanes;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
            V::store(to + r * head.pitch + n * V::lanes, V::mul(sum[r][n], scale));
        }
    }
}

alignas(64) constexpr float kOnesThenZeros[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Scores become exponentials of their distance to the row's largest; returns their sums by lanes.
template <class V>
typename V::reg exponentials(float* row, index_t length) {
    using reg = typename V::reg;
    const index_t end = padded<V>(length);
    reg most = V::load(row);
    for (index_t j = V::lanes; j < end; j += V::lanes) { most = V::max(most, V::load(row + j)); }
    const reg offset = V::broadcast(-V::max_of_lanes(most));
    reg sum = V::zero();
    index_t j = 0;
    for (; j + V::lanes <= length; j += V::lanes) {
        const reg value = exp_of_negative<V>(V::add(V::load(row + j), offset));
        V::store(row + j, value);
        sum = V::add(sum, value);
    }
    if (j < end) { // columns beyond the last key repeat it and count for nothing
        const reg value = exp_of_negative<V>(V::add(V::load(row + j), offset));
        V::store(row + j, value);
        sum = V::fma(value, V::load(kOnesThenZeros + 16 - (length - j)), sum);
    }
    return sum;
}

template <class V, int R, int N>
void weigh(const float* scores, index_t pitch, index_t length, const float* values,
           index_t value_dim, const float* inverse, float* result) {
    typename V::reg sum[R][N];
    multiply<V, R, N>({scores, pitch}, length, values, value_dim, V::lanes, sum, [] {});
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
            V::store(result + r * value_dim + n * V::lanes,
                     V::mul(sum[r][n], V::broadcast(inverse[r])));
        }
    }
}

template <class V, class M, int R>
void strip(const Packed<M>& head, index_t i) {
    const index_t panels = padded<V>(head.length) / V::lanes;
    index_t p = 0;
    for (; p + 2 <= panels; p += 2) { score<V, M, R, 2>(head, i, p); }
    if (p < panels) { score<V, M, R, 1>(head, i, p); }
    float inverse[(R + 3) / 4 * 4];
    for (int r = 0; r < R; r += 4) {
        typename V::reg sums[4];
        for (int c = 0; c < 4; ++c) {
            sums[c] = r + c < R ? exponentials<V>(head.scores + (r + c) * head.pitch, head.length)
                                : V::zero();
        }
        float four[4];
        V::sum_of_lanes(sums, four);
        for (int c = 0; c < 4; ++c) { inverse[r + c] = 1.0f / four[c]; }
    }
    index_t c = 0;
    for (; c + 2 * V::lanes <= head.value_dim; c += 2 * V::lanes) {
        weigh<V, R, 2>(head.scores, head.pitch, head.length, head.values + c, head.value_dim,
                       inverse, head.result + c);
    }
    if (c < head.value_dim) {
        weigh<V, R, 1>(head.scores, head.pitch, head.length, head.values + c, head.value_dim,
                       inverse, head.result + c);
    }
}

// Where a head's scratch memory is what, in floats; every part starts on a cache line.
template <class V>
struct Layout {
    index_t value_dim, pitch, panels, values, scores, result, rows, total;

    Layout(index_t length, index_t dim)
        : value_dim(padded<V>(dim)),
          // One vector more than needed: rows a multiple of 4 KiB apart would share a cache set.
          pitch(padded<V>(length) + V::lanes), panels(0), values(line(padded<V>(length) * dim)),
          scores(values + line(length * value_dim)), result(scores + line(V::row_tile * pitch)),
          rows(result + line(V::row_tile * value_dim)), total(rows + line(length * dim)) {}

    static index_t line(index_t floats) { return (floats + 15) / 16 * 16; }
};

// Rows of a head as M multiplies them: in place, or converted to scratch[length, dim].
template <class M>
Rows<typename M::S> rows_of(const void* data, index_t stride, const Head& head, float* scratch) {
    using S = typename M::S;
    if ((head.dtype == DType::float32) == std::is_same_v<S, float>) {
        return {static_cast<const S*>(data), stride};
    }
    if constexpr (std::is_same_v<S, float>) {
        for (index_t i = 0; i < head.length; ++i) {
            const std::uint16_t* row = static_cast<const std::uint16_t*>(data) + i * stride;
            convert_as<M, DType::bfloat16>(row, head.dim, scratch + i * head.dim);
        }
    }
    return {reinterpret_cast<const S*>(scratch), head.dim};
}

template <class V>
void copy_values(const Head& head, index_t value_dim, float* values) {
    for (index_t j = 0; j < head.length; ++j, values += value_dim) {
        if (head.dtype == DType::float32) {
            convert_as<V, DType::float32>(static_cast<const float*>(head.v) + j * head.v_stride,
                                          head.dim, values);
        } else {
            convert_as<V, DType::bfloat16>(
                static_cast<const std::uint16_t*>(head.v) + j * head.v_stride, head.dim, values);
        }
        for (index_t k = head.dim; k < value_dim; ++k) { values[k] = 0.0f; }
    }
}

template <class V>
void write(const float* result, index_t value_dim, index_t i, index_t count, const Head& head) {
    for (index_t r = 0; r < count; ++r, result += value_dim) {
        const index_t at = (i + r) * head.out_stride;
        if (head.dtype == DType::float32) {
            convert_as<V, DType::float32>(result, head.dim, static_cast<float*>(head.out) + at);
        } else {
            std::uint16_t* out = static_cast<std::uint16_t*>(head.out) + at;
            for (index_t k = 0; k < head.dim; ++k) { out[k] = float_to_bfloat16(result[k]); }
        }
    }
}

template <class V, class M, std::size_t... R>
void attend_as(const Head& head, float* scratch, std::index_sequence<R...>) {
    using Function = void (*)(const Packed<M>&, index_t);
    static constexpr Function by_rows[] = {strip<V, M, static_cast<int>(R) + 1>...};
    constexpr index_t most = static_cast<index_t>(sizeof...(R));
    const Layout<V> layout(head.length, head.dim);
    typename M::S* panels = reinterpret_cast<typename M::S*>(scratch + layout.panels);
    pack_keys<M>(rows_of<M>(head.k, head.k_stride, head, scratch + layout.rows), head.length,
                 head.dim, panels);
    copy_values<V>(head, layout.value_dim, scratch + layout.values);
    const Packed<M> packed = {rows_of<M>(head.q, head.q_stride, head, scratch + layout.rows),
                              panels,
                              scratch + layout.values,
                              head.length,
                              head.dim,
                              layout.value_dim,
                              layout.pitch,
                              head.scale,
                              scratch + layout.scores,
                              scratch + layout.result};
    const index_t blocks = (head.length + most - 1) / most;
    for (index_t block = 0; block < blocks; ++block) { // of equal size, or one apart
        const index_t i = head.length * block / blocks;
        const index_t count = head.length * (block + 1) / blocks - i;
        by_rows[count - 1](packed, i);
        write<V>(packed.result, layout.value_dim, i, count, head);
    }
}

template <class V, class M>
constexpr Attention attention() {
    return {[](index_t length, index_t dim) {
                return Layout<V>(length, dim).total * static_cast<index_t>(sizeof(float));
            },
            [](const Head& head, void* scratch) {
                constexpr auto rows = std::make_index_sequence<V::row_tile>();
                if (!std::is_same_v<V, M> && head.dtype == DType::bfloat16 &&
                    head.dim % M::step == 0) {
                    attend_as<V, M>(head, static_cast<float*>(scratch), rows);
                } else {
                    attend_as<V, V>(head, static_cast<float*>(scratch), rows);
                }
            }};
}

} // namespace
} // namespace flashbertscore
