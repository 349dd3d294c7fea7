// Linear layers and layer norm of the encoder, written once over vector types; see microkernel.h
// for what these are and for the rules that a file under an instruction set's flags keeps.
#pragma once

#include "cpu/product.h"

namespace flashbertscore {
namespace {

// x (1 + erf(x / sqrt 2)) / 2, within 2e-7 of it, relative to |x|; as torch's, NaN at -inf.
//
// The normal distribution's tail beyond a = |x| is exp(p(a)): its logarithm is smooth where the
// tail itself spans nine orders of magnitude. p has degree 10 and the least largest error on 0 .. 6
// (Lawson's algorithm as in `exp_of_negative`, weighted by what an error of p does to the result).
// From 6 on, where the tail is 1e-9, it is 0.
template <class V>
typename V::reg gelu(typename V::reg x) {
    using reg = typename V::reg;
    const auto constant = [](float value) { return V::broadcast(value); };
    const reg one = constant(1.0f), most = constant(6.0f);
    const reg a = V::max(x, V::mul(x, constant(-1.0f)));
    reg p = constant(-0x1.7db314p-27f);
    p = V::fma(p, a, constant(0x1.872d42p-22f));
    p = V::fma(p, a, constant(-0x1.55ac96p-18f));
    p = V::fma(p, a, constant(0x1.4083f2p-15f));
    p = V::fma(p, a, constant(-0x1.2b1354p-13f));
    p = V::fma(p, a, constant(-0x1.bd7106p-14f));
    p = V::fma(p, a, constant(0x1.43fc22p-8f));
    p = V::fma(p, a, constant(-0x1.2a7808p-5f));
    p = V::fma(p, a, constant(-0x1.45eb6cp-2f));
    p = V::fma(p, a, constant(-0x1.9884bcp-1f));
    p = V::fma(p, a, constant(-0x1.62e42ep-1f));
    const reg tail = V::select_greater(most, a, exp_of_negative<V>(p), V::zero());
    const reg below = V::add(one, V::mul(tail, constant(-1.0f)));
    return V::mul(x, V::select_greater(x, V::zero(), below, tail));
}

// Sums become results, two vectors a row.
template <class V, int R>
void finish(const typename V::reg (&sum)[R][kVectors], Rows<float> begin, Activation activation,
            Rows<float> residual, float* out, index_t out_stride) {
    using reg = typename V::reg;
    const auto each = [&](const auto& f) {
        for (index_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (index_t v = 0; v < kVectors; ++v) {
                float* at = out + r * out_stride + v * V::lanes;
                V::store(at, f(V::load(at), r, v * V::lanes));
            }
        }
    };
#pragma GCC unroll 16
    for (index_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (index_t v = 0; v < kVectors; ++v) {
            reg value = sum[r][v];
            if (begin.data) { value = V::add(value, V::load(begin[r] + v * V::lanes)); }
            V::store(out + r * out_stride + v * V::lanes, value);
        }
    }
    if (activation == Activation::gelu) {
        each([](reg x, index_t, index_t) { return gelu<V>(x); });
    } else if (activation == Activation::relu) {
        each([](reg x, index_t, index_t) { return V::max(V::zero(), x); }); // NaN stays
    }
    if (residual.data) {
        each([&](reg x, index_t r, index_t c) { return V::add(x, V::load(residual[r] + c)); });
    }
}

template <class V, int R>
void linear_rows(const LinearTile& tile) {
    constexpr index_t C = kVectors * V::lanes;
    typename V::reg sum[R][kVectors];
    Pacer pacer(tile.ahead, tile.x.data, tile.depth);
    multiply<V, R, kVectors>(tile.x, tile.depth, tile.panel, C, V::lanes, sum,
                             [&] { pacer.step(); });
    if (tile.columns == C) {
        finish<V, R>(sum, tile.begin, tile.activation, tile.residual, tile.out, tile.out_stride);
        return;
    }
    // The last panel has columns that are not there: they are finished beside the result.
    float begin[R * C] = {}, residual[R * C] = {}, out[R * C];
    for (index_t r = 0; r < R; ++r) {
        for (index_t c = 0; c < tile.columns; ++c) {
            if (tile.begin.data) { begin[r * C + c] = tile.begin[r][c]; }
            if (tile.residual.data) { residual[r * C + c] = tile.residual[r][c]; }
        }
    }
    finish<V, R>(sum, {begin, C}, tile.activation, {tile.residual.data ? residual : nullptr, C},
                 out, C);
    for (index_t r = 0; r < R; ++r) {
        for (index_t c = 0; c < tile.columns; ++c) {
            tile.out[r * tile.out_stride + c] = out[r * C + c];
        }
    }
}

template <class V, std::size_t... R>
void linear_tile(const LinearTile& tile, std::index_sequence<R...>) {
    using Function = void (*)(const LinearTile&);
    static constexpr Function by_rows[] = {linear_rows<V, static_cast<int>(R) + 1>...};
    by_rows[tile.count - 1](tile);
}

// sum_k f(k, x[k]) by vectors and the rest alone: f takes a vector or, with lanes of 1, a float.
template <class V, class Vectors, class Floats>
float total(index_t dim, const Vectors& vectors, const Floats& floats) {
    typename V::reg sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    index_t k = 0;
    for (index_t i = 0; k + V::lanes <= dim; k += V::lanes, i = (i + 1) % 4) {
        sum[i] = V::add(sum[i], vectors(k));
    }
    float four[4];
    V::sum_of_lanes(sum, four);
    float all = (four[0] + four[1]) + (four[2] + four[3]);
    for (; k < dim; ++k) { all += floats(k); }
    return all;
}

template <class V>
void normalize(const float* x, index_t dim, const float* weight, const float* bias, float eps,
               float* out) {
    using reg = typename V::reg;
    const float count = static_cast<float>(dim);
    const float mean =
        total<V>(
            dim, [&](index_t k) { return V::load(x + k); }, [&](index_t k) { return x[k]; }) /
        count;
    const reg minus_mean = V::broadcast(-mean);
    const float variance = total<V>(
                               dim,
                               [&](index_t k) {
                                   const reg distance = V::add(V::load(x + k), minus_mean);
                                   return V::mul(distance, distance);
                               },
                               [&](index_t k) { return (x[k] - mean) * (x[k] - mean); }) /
                           count;
    const float inverse = 1.0f / __builtin_sqrtf(variance + eps);
    const reg scale = V::broadcast(inverse);
    index_t k = 0;
    for (; k + V::lanes <= dim; k += V::lanes) {
        const reg unit = V::mul(V::add(V::load(x + k), minus_mean), scale);
        V::store(out + k, V::fma(unit, V::load(weight + k), V::load(bias + k)));
    }
    for (; k < dim; ++k) { out[k] = (x[k] - mean) * inverse * weight[k] + bias[k]; }
}

template <class V>
constexpr Linear linear() {
    return {V::row_tile, kVectors * V::lanes,
            [](const LinearTile& tile) {
                linear_tile<V>(tile, std::make_index_sequence<V::row_tile>());
            },
            normalize<V>};
}

} // namespace
} // namespace flashbertscore
