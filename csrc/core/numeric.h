// Element types, and conversion of one element to the type that is computed in.
//
// Everything here is static: files with different instruction-set flags include it, and the linker
// must not merge their copies into the one with the widest instructions.
#pragma once

#include "core/views.h"

#include <cstdint>
#include <cstring>

namespace flashbertscore {

static constexpr index_t element_bytes(DType dtype) {
    switch (dtype) {
    case DType::float64: return 8;
    case DType::float32: return 4;
    case DType::bfloat16:
    case DType::float16: return 2;
    }
    return 0;
}

static inline float bits_to_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bfloat16_to_float(std::uint16_t bits) {
    return bits_to_float(static_cast<std::uint32_t>(bits) << 16);
}

// Rounded to nearest, ties to even; a NaN stays one.
static inline std::uint16_t float_to_bfloat16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>(value == value ? rounded : (bits >> 16) | 0x40u);
}

// IEEE 754 binary16 to binary32, exact. Subnormals are scaled up by a power of two in float.
static inline float float16_to_float(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 31) { return bits_to_float(sign | 0x7f800000u | (fraction << 13)); }
    return bits_to_float(sign | ((exponent + 112) << 23) | (fraction << 13));
}

static inline std::uint32_t float_to_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Rounded to nearest, ties to even, to binary16. Below its normal numbers the adder of float
// rounds, at 2^-24.
static inline std::uint16_t float_to_float16(float value) {
    const std::uint32_t bits = float_to_bits(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) { return static_cast<std::uint16_t>(sign | 0x7e00u); }
    if (magnitude >= 0x477ff000u) { return static_cast<std::uint16_t>(sign | 0x7c00u); }
    if (magnitude < 0x38800000u) {
        const float rounded = bits_to_float(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (float_to_bits(rounded) - 0x3f000000u));
    }
    const std::uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
}

// Element k of a row, as the type computed in (float, or double for float64 rows).
template <class T>
static inline T element(const void* row, DType dtype, index_t k) {
    switch (dtype) {
    case DType::float64: return static_cast<T>(static_cast<const double*>(row)[k]);
    case DType::float32: return static_cast<T>(static_cast<const float*>(row)[k]);
    case DType::bfloat16:
        return static_cast<T>(bfloat16_to_float(static_cast<const std::uint16_t*>(row)[k]));
    case DType::float16:
        return static_cast<T>(float16_to_float(static_cast<const std::uint16_t*>(row)[k]));
    }
    return T(0);
}

// Whether a token with this sum of squares is multiplied as it is: beyond these bounds, and for NaN
// and Inf, products of two tokens could leave the range of T.
template <class T>
static inline bool ordinary(T squares) {
    constexpr T small = sizeof(T) == 4 ? T(0x1p-80) : T(0x1p-600);
    return squares > small && squares < T(1) / small;
}

// The factor that makes a unit vector of an ordinary token.
template <class T>
static inline T inverse_norm(T squares) {
    return static_cast<T>(1.0 / __builtin_sqrt(static_cast<double>(squares)));
}

} // namespace flashbertscore
