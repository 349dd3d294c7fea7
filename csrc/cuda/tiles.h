// Tile sizes, host-only.
//
// A block computes TM x TN similarities at a time and keeps them in registers; its warps split
// that WARPS_M x WARPS_N. Slices of 128 bytes of every row of the tile pass through a ring of
// STAGES buffers in shared memory: 64 elements of 16 bits, or 32 of float.
//
// The scores have the same bits for every choice below: each similarity is accumulated in the
// order of k alone, maxima have no order, and sums are taken in one fixed order (finish.cuh).
//
// Rejected:
// * 256 x 128 instead of 128 x 256: twice the row maxima in registers across a sweep.
// * 64 x 32 a warp for the 16-bit types: 1.5x the shared memory reads per product, and those
//   would take as long as the products (24 KB a k-step of 128 x 128 at 128 bytes a cycle).
// * 4 stages for 128 x 256: 192 KB fits the 227 KB of sm_90 but not the 163 KB of sm_80, and 2 of
//   3 stages in flight are 96 KB, four times what the memory's latency asks for.
// * 64 x 32 a warp for float: 16 registers more for fragments than 32 x 64, which spilled.
// * 3 blocks of 64 x 64 for float: spilled.
// * 128 x 128 for 129 to 256 tokens: reads each side twice, 128 x 256 only one of them.
#pragma once

namespace flashbertscore::cuda {

constexpr int SLICE_BYTES = 128; // of a row, per stage
constexpr int CHUNK_BYTES = 16;  // copied at once
constexpr int SLICE_CHUNKS = SLICE_BYTES / CHUNK_BYTES;

template <int TM_, int TN_, int WARPS_M_, int WARPS_N_, int STAGES_, int CAPACITY_, int BLOCKS_>
struct Tiles {
    static constexpr int TM = TM_, TN = TN_;
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
    static constexpr int WARP_M = TM / WARPS_M, WARP_N = TN / WARPS_N;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int STAGES = STAGES_;
    static constexpr int CAPACITY = CAPACITY_; // most tokens of a side that one block can take
    static constexpr int BLOCKS = BLOCKS_;     // blocks on a multiprocessor that registers allow

    static constexpr int STAGE_BYTES = (TM + TN) * SLICE_BYTES;
    static constexpr int ROWS_A_PASS = THREADS / SLICE_CHUNKS; // rows that all threads copy at once
    static constexpr int X_PASSES = TM / ROWS_A_PASS, Y_PASSES = TN / ROWS_A_PASS;

    // Floats: scales of both sides, a maximum per row and warp column, per column and warp row.
    static constexpr int SHORT_FLOATS = (2 + WARPS_M + WARPS_N) * CAPACITY;
    static constexpr int LONG_FLOATS = TM + TN;
    static constexpr int REDUCTION_BYTES = 256; // partial sums of 4 warps, and a flag
    static constexpr int short_bytes() {
        return STAGES * STAGE_BYTES + 4 * SHORT_FLOATS + REDUCTION_BYTES;
    }
    static constexpr int long_bytes() { return STAGES * STAGE_BYTES + 4 * LONG_FLOATS; }

    static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0);
    static_assert(X_PASSES <= SLICE_CHUNKS && Y_PASSES <= SLICE_CHUNKS);
    static_assert(CAPACITY % TM == 0 && CAPACITY % TN == 0);
    static_assert(THREADS >= 128);
};

// 16-bit elements.      TM   TN  warps  stages capacity blocks
using HalfTiny = Tiles<32, 32, 2, 2, 4, 32, 6>;
using HalfSmall = Tiles<64, 64, 2, 2, 4, 64, 3>;
using HalfMedium = Tiles<128, 128, 2, 2, 3, 128, 2>;
using HalfLarge = Tiles<128, 256, 2, 4, 3, 512, 1>;
// float: two sets of accumulators, so half the tile of a warp.
using FloatTiny = Tiles<32, 32, 2, 2, 4, 32, 5>;
using FloatSmall = Tiles<64, 64, 2, 2, 4, 64, 2>;
using FloatLarge = Tiles<128, 128, 4, 2, 3, 512, 1>;
// Rows that cp.async cannot copy (alignment, dimension), and devices with little shared memory.
using AnyShape = Tiles<64, 64, 2, 2, 3, 512, 2>;

} // namespace flashbertscore::cuda
