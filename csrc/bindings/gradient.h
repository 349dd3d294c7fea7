// Addresses to the structures of core/gradient.h; an address of 0 is null.
#pragma once

#include "core/gradient.h"

#include <array>
#include <cstdint>

namespace flashbertscore::bindings {

// Of core/gradient.h's members, in their order.
using AlignmentAddresses = std::array<std::uintptr_t, 4>;
using GradientAddresses = std::array<std::uintptr_t, 5>;
using OutAddresses = std::array<std::uintptr_t, 4>;

inline void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

inline Alignment alignment_of(const AlignmentAddresses& at) {
    return {static_cast<const std::int32_t*>(address(at[0])), address(at[1]),
            static_cast<const std::int32_t*>(address(at[2])), address(at[3])};
}

inline AlignmentOut alignment_out(const AlignmentAddresses& at) {
    return {static_cast<std::int32_t*>(address(at[0])), address(at[1]),
            static_cast<std::int32_t*>(address(at[2])), address(at[3])};
}

inline ScoreGradient gradient_of(const GradientAddresses& at) {
    return {address(at[0]), address(at[1]), address(at[2]), address(at[3]), address(at[4])};
}

inline GradientOut out_of(const OutAddresses& at) {
    return {address(at[0]), address(at[1]), address(at[2]), address(at[3])};
}

} // namespace flashbertscore::bindings
