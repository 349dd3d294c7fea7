// What the sweep asks for while products run: hints to the processor, which change no result.
#pragma once

#include "core/numeric.h"
#include "cpu/isa.h"
#include "cpu/tiles.h"

#include <algorithm>

namespace flashbertscore {

// Part i of `parts` of what is read next.
inline Ahead part(const Ahead& ahead, index_t i, index_t parts) {
    Ahead result;
    for (int side = 0; side < 2; ++side) {
        const index_t from = ahead.bytes[side] * i / parts;
        result.data[side] = ahead.data[side] + from;
        result.bytes[side] = ahead.bytes[side] * (i + 1) / parts - from;
    }
    return result;
}

// The memory of the documents of pair p, or of as much as may wait in a cache.
inline Ahead next_reads(const TokenBatch& candidate, const TokenBatch& reference,
                        const PairList& pairs, index_t p) {
    Ahead result;
    const TokenBatch* batches[2] = {&candidate, &reference};
    const index_t documents[2] = {pairs.candidate(p), pairs.reference(p)};
    for (int side = 0; side < 2; ++side) {
        const TokenBatch& batch = *batches[side];
        if (batch.row_stride != batch.dim) { continue; } // gaps are not worth asking for
        const index_t bytes = element_bytes(batch.dtype);
        result.data[side] =
            static_cast<const char*>(batch.data) + batch.element(documents[side], 0) * bytes;
        result.bytes[side] =
            std::min(batch.length(documents[side]) * batch.dim * bytes, kAheadBytes);
    }
    return result;
}

} // namespace flashbertscore
