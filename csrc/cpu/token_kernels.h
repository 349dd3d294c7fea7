// Reading tokens, over a vector type V (microkernel.h): their norms, their values as what is
// multiplied, and panels of them.
#pragma once

#include "core/numeric.h"
#include "cpu/isa.h"

namespace flashbertscore {
namespace {

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

// The same for every S.
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

} // namespace
} // namespace flashbertscore
