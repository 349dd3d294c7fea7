// The warp-wide matrix instructions, with the fragment layouts of the PTX manual
// ("Matrix Fragments for mma.m16n8k16", "Warp-level matrix load instruction: ldmatrix").
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"
#include "half.h"

namespace flashbertscore::emulation {
namespace {

constexpr int MMA_K = 16;

std::uint32_t word(const Slot& slot, int i) {
    return static_cast<std::uint32_t>(slot.words[i / 2] >> (32 * (i % 2)));
}

void set_word(Slot& slot, int i, std::uint32_t value) {
    const int shift = 32 * (i % 2);
    slot.words[i / 2] &= ~(std::uint64_t{0xFFFFFFFF} << shift);
    slot.words[i / 2] |= std::uint64_t{value} << shift;
}

float as_float(std::uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

std::uint32_t as_bits(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

struct Element {
    double value;
    int exponent; // of the first bit that the format has for it
};

Element element(float value, int lowest) {
    const int field = static_cast<int>(as_bits(value) >> 23 & 0xFF);
    return {value, std::max(field - 127, lowest)};
}

double power_of_two(int exponent) {
    const std::uint64_t bits = static_cast<std::uint64_t>(1023 + exponent) << 52;
    double value;
    __builtin_memcpy(&value, &bits, 8);
    return value;
}

float cut_to_float(double value) {
    const float nearest = static_cast<float>(value);
    if (!(std::fabs(static_cast<double>(nearest)) > std::fabs(value))) return nearest;
    return std::isinf(nearest) ? nearest : std::nextafter(nearest, 0.0f);
}

float fused_sum(const Element* a, const Element* b, float c) {
    const Element start = element(c, -126);
    double products[MMA_K], plain = c;
    int largest = c == 0 ? INT_MIN : start.exponent;
    for (int k = 0; k < tensor_core.products; ++k) {
        products[k] = a[k].value * b[k].value; // exact
        plain += products[k];
        if (products[k] != 0) largest = std::max(largest, a[k].exponent + b[k].exponent);
    }
    if (!std::isfinite(plain)) return static_cast<float>(plain);
    if (largest == INT_MIN) return 0;
    const int last = largest - 23 - tensor_core.extra_bits;
    const double up = power_of_two(-last);
    auto sum = static_cast<std::int64_t>(c * up);
    for (int k = 0; k < tensor_core.products; ++k) {
        sum += static_cast<std::int64_t>(products[k] * up);
    }
    return cut_to_float(static_cast<double>(sum) * power_of_two(last));
}

template <class ToFloat>
void mma(Slot* slots, ToFloat to_float, int lowest) {
    Element a[16][MMA_K], b[8][MMA_K]; // a[row][k], b[column][k]
    for (int lane = 0; lane < WARP; ++lane) {
        const int group = lane / 4, quad = lane % 4;
        for (int half = 0; half < 2; ++half) {
            const auto part = [&](int i) {
                const auto bits = static_cast<std::uint16_t>(word(slots[lane], i) >> 16 * half);
                return element(to_float(bits), lowest);
            };
            for (int r = 0; r < 4; ++r) { // A: rows group, group + 8; k 2 quad, then 2 quad + 8
                a[group + 8 * (r % 2)][2 * quad + 8 * (r / 2) + half] = part(r);
            }
            for (int r = 0; r < 2; ++r) b[group][2 * quad + 8 * r + half] = part(4 + r);
        }
    }
    for (int lane = 0; lane < WARP; ++lane) {
        for (int r = 0; r < 4; ++r) { // C and D: rows group, group + 8; columns 2 quad, 2 quad + 1
            const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
            float sum = as_float(word(slots[lane], 6 + r));
            for (int k = 0; k < MMA_K; k += tensor_core.products) {
                sum = fused_sum(a[row] + k, b[column] + k, sum);
            }
            set_word(slots[lane], 6 + r, as_bits(sum));
        }
    }
}

} // namespace

TensorCore tensor_core = SM_90;

void combine_mma_bf16(Slot* slots) { mma(slots, bf16_to_float, -126); }
void combine_mma_fp16(Slot* slots) { mma(slots, fp16_to_float, -14); }

void combine_ldmatrix(Slot* slots) {
    Slot rows[WARP];
    for (int lane = 0; lane < WARP; ++lane) rows[lane] = slots[lane];
    for (int lane = 0; lane < WARP; ++lane) {
        for (int matrix = 0; matrix < 4; ++matrix) {
            // Lane l receives elements 2 (l % 4), + 1 of row l / 4 of each matrix.
            set_word(slots[lane], matrix, word(rows[8 * matrix + lane / 4], lane % 4));
        }
    }
}

} // namespace flashbertscore::emulation
