// Which kernel takes which pair, and in what pieces. Host-only, pure; none of it changes a bit of
// any score (tiles.h says why).
//
// Rejected:
// * Pairs of more than 512 tokens by one block: the maxima would take more shared memory than the
//   tiles leave, and a long pair alone would use one multiprocessor of the device.
// * Parts for 129 to 512 tokens always: three kernels and a scratch of maxima instead of one
//   kernel, and both sides are read once more for the norms.
#pragma once

#include <algorithm>

#include "core/views.h"
#include "cuda/tiles.h"

namespace flashbertscore::cuda {

enum class Shape : int { tiny, small, medium, large, placed, any };

struct Choice {
    Shape shape;
    bool parts; // many blocks share the pair; else one block takes it whole

    friend bool operator==(const Choice&, const Choice&) = default;
};

struct TileSize {
    int tm, tn;
};

constexpr index_t WHOLE_LIMIT = 512; // tokens of the longer side; CAPACITY of the largest tiles
// Below this many whole pairs a multiprocessor, pairs of more than 128 tokens are split.
constexpr index_t WHOLE_PAIRS_A_MULTIPROCESSOR = 1;
constexpr int ITEMS_A_MULTIPROCESSOR = 4; // parts of pairs, so that the last round is short

// `aligned`: cp.async can copy rows. `shared_bytes`: what a block of the device can have.
inline Choice choose(DType dtype, index_t n, index_t m, index_t pairs, bool aligned,
                     int multiprocessors, int shared_bytes) {
    const index_t longest = std::max(n, m);
    if (dtype == DType::float64) return {Shape::any, true};
    const bool few = pairs < WHOLE_PAIRS_A_MULTIPROCESSOR * multiprocessors;
    const bool parts = longest > WHOLE_LIMIT || (few && longest > 128);
    if (!aligned) return {Shape::any, parts};
    const bool is_float = dtype == DType::float32;
    if (!parts && longest <= 32) return {Shape::tiny, false};
    if (!parts && longest <= 64) return {Shape::small, false};
    if (!parts && longest <= 128 && !is_float && HalfMedium::short_bytes() <= shared_bytes) {
        return {Shape::medium, false};
    }
    const int large = is_float ? FloatLarge::short_bytes() : HalfLarge::short_bytes();
    return {large <= shared_bytes ? Shape::large : Shape::any, parts};
}

// For an alignment every pair is cut into parts, whose maxima in global memory have room for their
// places; short ones into small tiles, of which less is empty. Of 128 x 256 with places ptxas
// spilled registers, so 16-bit types take the tiles of float.
inline Choice choose_aligned(DType dtype, index_t n, index_t m, bool aligned, int shared_bytes) {
    if (dtype == DType::float64 || !aligned || std::max(n, m) <= AnyShape::TM) {
        return {Shape::any, true};
    }
    return {FloatLarge::long_bytes() <= shared_bytes ? Shape::placed : Shape::any, true};
}

// Tiles that parts are made of.
inline TileSize part_tile(DType dtype, Shape shape) {
    if (dtype == DType::float64) return {32, 32};
    if (shape == Shape::any) return {AnyShape::TM, AnyShape::TN};
    if (dtype == DType::float32 || shape == Shape::placed) return {FloatLarge::TM, FloatLarge::TN};
    return {HalfLarge::TM, HalfLarge::TN};
}

inline int tile_count(index_t rows, int tile) {
    return static_cast<int>(std::max<index_t>(1, (rows + tile - 1) / tile));
}

// Column blocks in one part, given all blocks of rows that run together: the longest sweep that
// still gives every multiprocessor ITEMS_A_MULTIPROCESSOR parts.
inline int range_blocks(index_t all_row_blocks, int column_blocks, int multiprocessors) {
    const index_t wanted = static_cast<index_t>(ITEMS_A_MULTIPROCESSOR) * multiprocessors;
    const index_t ranges =
        std::clamp<index_t>((wanted + all_row_blocks - 1) / all_row_blocks, 1, column_blocks);
    return static_cast<int>((column_blocks + ranges - 1) / ranges);
}

// Most parts that range_blocks cuts `all_row_blocks` into.
inline index_t most_items(index_t all_row_blocks, int multiprocessors) {
    return all_row_blocks + static_cast<index_t>(ITEMS_A_MULTIPROCESSOR) * multiprocessors;
}

} // namespace flashbertscore::cuda
