// What is asked for while products run: hints to the processor, which change no result.
#pragma once

#include "cpu/prepare.h"
#include "cpu/tiles.h"

#include <algorithm>

namespace flashbertscore {

// Part i of `parts`.
inline Memory part(const Memory& memory, index_t i, index_t parts) {
    const index_t from = memory.bytes * i / parts;
    return {memory.data + from, memory.bytes * (i + 1) / parts - from};
}

// `count` tokens of document d from token `first` on, or as many as may wait in a cache; nothing if
// there are gaps between them, which are not worth asking for.
template <class T, class S>
Memory memory_of(const Documents<T, S>& side, index_t d, index_t first, index_t count) {
    const index_t dim = side.batch().dim;
    if (count <= 0 || !side.in_place(d) || side.batch().row_stride != dim) { return {}; }
    const Rows<S> rows = side.rows(d, first, count, nullptr);
    const index_t bytes = count * dim * static_cast<index_t>(sizeof(S));
    return {reinterpret_cast<const char*>(rows.data), std::min(bytes, kAheadBytes)};
}

// All rows of document d, whose tokens need not be located, or as many as may wait in a cache.
inline Memory memory_of(const TokenBatch& batch, index_t d) {
    if (batch.row_stride != batch.dim) { return {}; }
    const index_t bytes = element_bytes(batch.dtype);
    return {static_cast<const char*>(batch.data) + batch.element(d, 0) * bytes,
            std::min(batch.length(d) * batch.dim * bytes, kAheadBytes)};
}

} // namespace flashbertscore
