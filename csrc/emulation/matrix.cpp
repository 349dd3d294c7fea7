// The warp-wide matrix instructions, with the fragment layouts of the PTX manual
// ("Matrix Fragments for mma.m16n8k16", "Warp-level matrix load instruction: ldmatrix").
#include <cstring>

#include "block.h"
#include "half.h"

namespace flashbertscore::emulation {
namespace {

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

// Products are exact in double; their sum with C is rounded once, which is at least as accurate
// as the tensor core, and as there independent of the order within one instruction.
template <class ToFloat>
void mma(Slot* slots, ToFloat to_float) {
    double a[16][16], b[8][16]; // a[row][k], b[column][k]
    for (int lane = 0; lane < WARP; ++lane) {
        const int group = lane / 4, quad = lane % 4;
        for (int half = 0; half < 2; ++half) {
            for (int r = 0; r < 4; ++r) { // A: rows group, group + 8; k 2 quad, then 2 quad + 8
                const int row = group + 8 * (r % 2), k = 2 * quad + 8 * (r / 2) + half;
                a[row][k] = to_float(static_cast<std::uint16_t>(word(slots[lane], r) >> 16 * half));
            }
            for (int r = 0; r < 2; ++r) {
                const int k = 2 * quad + 8 * r + half;
                b[group][k] =
                    to_float(static_cast<std::uint16_t>(word(slots[lane], 4 + r) >> 16 * half));
            }
        }
    }
    for (int lane = 0; lane < WARP; ++lane) {
        for (int r = 0; r < 4; ++r) { // C and D: rows group, group + 8; columns 2 quad, 2 quad + 1
            const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
            double sum = 0;
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[column][k];
            sum += as_float(word(slots[lane], 6 + r));
            set_word(slots[lane], 6 + r, as_bits(static_cast<float>(sum)));
        }
    }
}

} // namespace

void combine_mma_bf16(Slot* slots) { mma(slots, bf16_to_float); }
void combine_mma_fp16(Slot* slots) { mma(slots, fp16_to_float); }

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
