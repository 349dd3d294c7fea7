// Where the inner loops read: the rows of a tile, and what is to be read next. Included by files
// with an instruction set's flags, so all of it stays in their unnamed namespace.
#pragma once

#include "cpu/isa.h"

namespace flashbertscore {
namespace {

// Asks for memory ahead at an even pace, one line of each run of bytes a step: a burst would fill
// the queue that loads wait in as well. Without branches, since most calls have what to ask for.
class Pacer {
  public:
    Pacer(const Ahead& ahead, const void* anything, index_t steps) {
        const Memory runs[2] = {ahead.candidate, ahead.reference};
        for (int side = 0; side < 2; ++side) {
            const bool some = runs[side].bytes > 0 && steps > 0;
            at_[side] = some ? runs[side].data : static_cast<const char*>(anything);
            pace_[side] = some ? (runs[side].bytes << kFraction) / steps : 0;
        }
    }
    // Called once for each of the steps.
    void step() {
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) {
            __builtin_prefetch(at_[side] + (offset_[side] >> kFraction), 0, 3);
            offset_[side] += pace_[side];
        }
    }

  private:
    static constexpr int kFraction = 8;
    const char* at_[2];
    index_t pace_[2]; // bytes a step, times 2^kFraction, like offset_
    index_t offset_[2] = {0, 0};
};

// Addresses of R rows from one base for four of them: base, base + s, base + 2 s, base + 3 s are
// one addressing mode each. A pointer a row does not fit the registers, and its reloads cost loads.
template <int R>
class RowPointers {
  public:
    template <class S>
    RowPointers(const S* data, index_t stride)
        : stride_(stride * static_cast<index_t>(sizeof(S))), stride3_(3 * stride_) {
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) {
            base_[g] = reinterpret_cast<const char*>(data) + 4 * g * stride_;
        }
    }
    template <class S>
    const S* at(int r) const {
        const char* base = base_[r / 4];
        const index_t offset = r % 4 == 3 ? stride3_ : r % 4 * stride_;
        return reinterpret_cast<const S*>(base + offset);
    }
    void advance(index_t bytes) {
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) {
            base_[g] += bytes;
            asm("" : "+r"(base_[g])); // or the compiler makes a pointer a row of it again
        }
    }

  private:
    static constexpr int kGroups = (R + 3) / 4;
    index_t stride_, stride3_; // bytes
    const char* base_[kGroups];
};

} // namespace
} // namespace flashbertscore
