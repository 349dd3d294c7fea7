// All pairs of two packed sets of documents.
#pragma once

#include "core/views.h"
#include "cpu/isa.h"

namespace flashbertscore {

// Scores of candidate c and reference r at element c * R + r. Both sides in the packed layout,
// without masks; offsets and weights must be valid (core/validate.h).
//
// Pairs with c > r + diagonal are not asked for, and may be written or not; diagonal = C asks for
// all. A score depends on its two documents alone, to the bit.
void match_grid(const TokenBatch& candidate, const TokenBatch& reference, index_t diagonal,
                const ScoreOut& out, int threads, const Isa& isa);

} // namespace flashbertscore
