// bfloat16 and IEEE half on a CPU without hardware for them.
#pragma once

#include <cstdint>

namespace flashbertscore::emulation {

inline std::uint32_t float_bits(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

inline float bits_float(std::uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

inline float bf16_to_float(std::uint16_t half) { return bits_float(std::uint32_t{half} << 16); }

inline float fp16_to_float(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7FFFu;
    if (magnitude >= 0x7C00u) return bits_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    // Placing the bits as a float divides by 2^112; subnormals come out right as well.
    return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));
}

// Rounds to nearest, ties to even.
inline std::uint16_t float_to_fp16(float value) {
    const std::uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u); // >= 65520
    if (magnitude < 0x38800000u) { // subnormal: let the float adder round at 2^-24
        const float rounded = bits_float(magnitude) + 0x1p-1f;
        return static_cast<std::uint16_t>(sign | (float_bits(rounded) - float_bits(0x1p-1f)));
    }
    const std::uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<std::uint16_t>(sign | (rebased + 0xFFFu + (rebased >> 13 & 1u)) >> 13);
}

} // namespace flashbertscore::emulation
