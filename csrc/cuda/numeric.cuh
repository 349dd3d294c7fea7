// Element types, and the small functions on numbers that all kernels share.
#pragma once

#include <cmath>

#include "cuda/problem.h"
#include "cuda/ptx.h"
#include "cuda/tiles.h"

namespace flashbertscore::cuda {

// fp32 tokens are split into fp16 parts as unit vectors times this: the low part, 2^-11 of the
// high one, is then a normal fp16 number down to similarities of 2^-30.
constexpr float SPLIT_SCALE = 0x1p15f;
constexpr float SPLIT_UNSCALE = 0x1p-30f;

struct Bfloat16 {
    using Storage = std::uint16_t;
    static constexpr bool split = false;
    static constexpr bool wide = true; // squares and products can leave the range of float
    static __device__ __forceinline__ float to_float(std::uint16_t bits) {
        return ptx::int_as_float(static_cast<int>(static_cast<std::uint32_t>(bits) << 16));
    }
    // Of a float that is a bfloat16, or less than one can be.
    static __device__ __forceinline__ std::uint16_t upper_half(float value) {
        return static_cast<std::uint16_t>(static_cast<std::uint32_t>(ptx::float_as_int(value)) >>
                                          16);
    }
    static __device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                                    std::uint32_t b0, std::uint32_t b1) {
        ptx::mma_bf16(d, a, b0, b1);
    }
};

struct Float16 {
    using Storage = std::uint16_t;
    static constexpr bool split = false;
    static constexpr bool wide = false;
    static __device__ __forceinline__ float to_float(std::uint16_t bits) {
        return ptx::fp16_to_float(bits);
    }
    static __device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                                    std::uint32_t b0, std::uint32_t b1) {
        ptx::mma_fp16(d, a, b0, b1);
    }
};

// Multiplied as two fp16 parts each (tile.cuh).
struct Float32 {
    using Storage = float;
    static constexpr bool split = true;
    static constexpr bool wide = false; // multiplied as unit vectors
    static __device__ __forceinline__ float to_float(float value) { return value; }
    static __device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                                    std::uint32_t b0, std::uint32_t b1) {
        ptx::mma_fp16(d, a, b0, b1);
    }
};

template <class E>
constexpr int CHUNK_ELEMENTS = CHUNK_BYTES / sizeof(typename E::Storage);
template <class E>
constexpr int SLICE_ELEMENTS = SLICE_BYTES / sizeof(typename E::Storage);

// A scale stands for a token everywhere after its norm is known:
// NaN: not a token (a maximum never takes a NaN); +inf: a token with NaN or Inf in it, which
// makes the pair NaN; else what turns the token's products into similarities.
template <class Real>
__device__ __forceinline__ bool is_token(Real scale) {
    return scale == scale;
}
template <class Real>
__device__ __forceinline__ bool is_poison(Real scale) {
    return scale == static_cast<Real>(INFINITY);
}

// From the sum of squares. 0 for a zero vector: similarity 0 with everything.
template <class Real>
__device__ __forceinline__ Real inverse_norm(Real squares, Real numerator) {
    if (!(squares < static_cast<Real>(INFINITY))) return static_cast<Real>(INFINITY);
    return squares == 0 ? Real(0) : numerator / sqrt(squares);
}

// A direction is a direction: tokens of a `wide` type with a norm beyond 2^+-40 are multiplied as
// if they were shorter or longer by 2^88, which is exact. All norms then lie within 2^+-53,
// products of two within 2^+-106. A shift is -1, 0 or 1: the power of 2^88.
constexpr float SHIFT = 0x1p88f;
__device__ __forceinline__ int shift_of_squares(float squares) {
    if (!(squares < 0x1p80f)) return -1; // also overflow; NaN and Inf stay what they are
    return squares < 0x1p-80f ? 1 : 0;   // also underflow; zero stays zero
}
__device__ __forceinline__ float shift_factor(int shift) {
    return shift == 0 ? 1.0f : shift > 0 ? SHIFT : 1.0f / SHIFT;
}
// A scale with the shift of the token that it is for: negative if there is one, far above or
// below 1.
constexpr float SHIFT_MARK = 0x1p60f;
__device__ __forceinline__ float with_shift(float scale, int shift) {
    return shift == 0 ? scale : -scale * (shift > 0 ? SHIFT_MARK : 1.0f / SHIFT_MARK);
}
__device__ __forceinline__ int shift_in(float scale) {
    return scale < 0 ? (scale < -1.0f ? 1 : -1) : 0;
}
__device__ __forceinline__ float without_shift(float scale) {
    return scale < 0 ? -scale * (scale < -1.0f ? 1.0f / SHIFT_MARK : SHIFT_MARK) : scale;
}

// Integers in the order of the numbers, so that integer atomics find the maximum.
__device__ __forceinline__ int key(float value) {
    const int bits = ptx::float_as_int(value);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
__device__ __forceinline__ float unkey(int key) {
    return ptx::int_as_float(key ^ ((key >> 31) & 0x7FFFFFFF));
}
__device__ __forceinline__ long long key(double value) {
    const long long bits = ptx::double_as_long(value);
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFFll);
}
__device__ __forceinline__ double unkey(long long key) {
    return ptx::long_as_double(key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFFll));
}
// A maximum of float with its place: of equal maxima the lowest place is the largest key. A zero
// has no sign here, or two zeros would not be equal.
struct Placed {
    long long bits;
};
__device__ __forceinline__ long long placed_key(float value, int place) {
    return static_cast<long long>(key(value + 0.0f)) << 32 |
           static_cast<long long>(static_cast<std::uint32_t>(~place));
}
__device__ __forceinline__ float unkey(Placed key) {
    return unkey(static_cast<int>(key.bits >> 32));
}
__device__ __forceinline__ int place_of(Placed key) { return ~static_cast<int>(key.bits); }
// A place alone, as an integer whose maximum is the lowest place.
__device__ __forceinline__ int place_key(int place) { return -1 - place; }

// Every byte of a key below that of any similarity, or of any place.
constexpr int LOWEST_KEY_BYTE = 0x80;

__device__ __forceinline__ Task task_of(const Problem& problem, index_t index) {
    Task task;
    if (problem.tasks != nullptr) {
        task = problem.tasks[index];
    } else {
        const index_t document = problem.begin + index;
        task.x_element = document * problem.x.document_stride;
        task.y_element = document * problem.y.document_stride;
        task.x_first = document * problem.x.width;
        task.y_first = document * problem.y.width;
        task.keys = index * (problem.x.width + problem.y.width);
        task.pair = document;
        task.x_out = task.x_first;
        task.y_out = task.y_first;
        task.n = static_cast<int>(problem.x.width);
        task.m = static_cast<int>(problem.y.width);
    }
    if (problem.extents != nullptr) {
        task.n = problem.extents[2 * index];
        task.m = problem.extents[2 * index + 1];
    }
    return task;
}

__device__ __forceinline__ bool is_masked(const Side& side, index_t row) {
    return side.mask != nullptr && side.mask[row] == 0;
}

// Before the norm is known: 1 for a token, NaN for anything else.
__device__ __forceinline__ float token_or_nan(const Side& side, index_t first, int i, int rows) {
    return i >= rows || is_masked(side, first + i) ? NAN : 1.0f;
}

__device__ __forceinline__ int blocks_of(int rows, int tile) {
    return rows <= tile ? 1 : (rows + tile - 1) / tile; // an empty side is one block of no tokens
}

} // namespace flashbertscore::cuda
