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

template <class V>
constexpr DType multiplied_as = sizeof(typename V::S) == 8   ? DType::float64
                                : sizeof(typename V::S) == 4 ? DType::float32
                                                             : DType::bfloat16;

// Sums of squares of four rows. A row is summed in one chain a lane, in the order of dim, then over
// lanes as V::sum_of_lanes does, then what is left of dim: here and in `dots`, so that a norm has
// the same bits wherever a token is read first.
template <class V, DType dtype>
void squares_of(const void* const (&rows)[4], index_t dim, typename V::T (&out)[4]) {
    using T = typename V::T;
    using S = typename V::S;
    constexpr bool as_is = dtype == multiplied_as<V>;
    constexpr index_t width = V::lanes * (as_is ? V::step : 1);
    const index_t whole = dim / width * width;
    typename V::reg sum[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) { sum[r] = V::zero(); }
    for (index_t k = 0; k < whole; k += width) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            if constexpr (as_is) {
                const auto x = V::read(static_cast<const S*>(rows[r]) + k);
                sum[r] = V::dot(x, x, sum[r]);
            } else {
                const auto x = V::template load_as<dtype>(rows[r], k);
                sum[r] = V::fma(x, x, sum[r]);
            }
        }
    }
    V::sum_of_lanes(sum, out);
    for (index_t k = whole; k < dim; ++k) {
        for (int r = 0; r < 4; ++r) {
            const T x = element<T>(rows[r], dtype, k);
            out[r] += x * x;
        }
    }
}

template <class V, DType dtype>
void squares_as(const void* const* rows, index_t count, index_t dim, typename V::T* out) {
    for (index_t i = 0; i < count; i += 4) {
        const void* four[4]; // the last one repeated where there are fewer
        for (index_t r = 0; r < 4; ++r) { four[r] = rows[i + r < count ? i + r : count - 1]; }
        typename V::T sums[4];
        squares_of<V, dtype>(four, dim, sums);
        for (index_t r = 0; r < 4 && i + r < count; ++r) { out[i + r] = sums[r]; }
    }
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
void squares(const void* const* rows, index_t count, [[maybe_unused]] DType dtype, index_t dim,
             typename V::T* out) {
    if constexpr (sizeof(typename V::T) == 8) {
        squares_as<V, DType::float64>(rows, count, dim, out);
    } else {
        switch (dtype) {
        case DType::bfloat16: return squares_as<V, DType::bfloat16>(rows, count, dim, out);
        case DType::float16: return squares_as<V, DType::float16>(rows, count, dim, out);
        default: return squares_as<V, DType::float32>(rows, count, dim, out);
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
