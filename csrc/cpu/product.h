// What attention and linear layers share: the loop of their products, and the exponential function;
// over vector types, see microkernel.h.
#pragma once

#include "cpu/microkernel.h"

namespace flashbertscore {
namespace {

template <class V>
index_t padded(index_t n) {
    return (n + V::lanes - 1) / V::lanes * V::lanes;
}

// exp(x) for x <= 0, within 0.9 units in the last place; exp(-87) below -87, which is nothing
// beside the 1 that every softmax row holds. NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first of 10 bits, so that n times it
// is exact. exp(r) = 1 + r + r^2 q(r), q of degree 4 with the least largest relative error on that
// interval, 2^-28 (Lawson's iteratively reweighted least squares over 4,000 Chebyshev nodes, then
// rounded to float).
template <class V>
typename V::reg exp_of_negative(typename V::reg x) {
    using reg = typename V::reg;
    const auto constant = [](float value) { return V::broadcast(value); };
    x = V::max(constant(-87.0f), x);            // NaN is taken from the second operand
    const reg to_integer = constant(0x1.8p23f); // adding it rounds to an integer
    const reg n = V::add(V::fma(x, constant(0x1.715476p0f), to_integer), constant(-0x1.8p23f));
    const reg r = V::fma(n, constant(0x1.bd0106p-13f), V::fma(n, constant(-0x1.63p-1f), x));
    reg q = constant(0x1.6a23d0p-10f);
    q = V::fma(q, r, constant(0x1.123a20p-7f));
    q = V::fma(q, r, constant(0x1.5558f2p-5f));
    q = V::fma(q, r, constant(0x1.555492p-3f));
    q = V::fma(q, r, constant(0x1.fffffcp-2f));
    q = V::fma(q, r, constant(1.0f));
    q = V::fma(q, r, constant(1.0f));
    return V::times_power_of_2(q, n);
}

// sum[r][n] = sum_k x[r, k] y[k, n], n in vectors: y[k] starts k * y_row elements after y, and its
// vector n another n * y_vector. Calls each_step() once a step, for what is asked for ahead.
template <class M, int R, int N, class Step>
[[gnu::always_inline]] inline void multiply(Rows<typename M::S> x, index_t depth,
                                            const typename M::S* y, index_t y_row, index_t y_vector,
                                            typename M::reg (&sum)[R][N], const Step& each_step) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) { sum[r][n] = M::zero(); }
    }
    RowPointers<R> row(x.data, x.stride);
    for (index_t k = 0; k < depth; k += M::step) {
        each_step();
        decltype(M::read(y)) value[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) { value[n] = M::read(y + n * y_vector); }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const auto repeated = M::repeat(row.template at<typename M::S>(r));
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) { sum[r][n] = M::dot(repeated, value[n], sum[r][n]); }
        }
        row.advance(M::step * static_cast<index_t>(sizeof(typename M::S)));
        y += y_row;
    }
}

} // namespace
} // namespace flashbertscore
