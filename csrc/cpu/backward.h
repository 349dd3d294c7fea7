// The CPU entry of the backward pass.
#pragma once

#include "core/gradient.h"
#include "cpu/isa.h"

namespace flashbertscore {

// Gradients of precision, recall, F1 and the similarities of the alignment, given that alignment
// and the scores of the forward pass. O(tokens of the pairs x dim) work; no bit of the result
// depends on the number of threads. Throws std::invalid_argument for an index that is no row of its
// document.
void match_backward(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                    const void* precision, const void* recall, const Alignment& alignment,
                    const ScoreGradient& gradient, const GradientOut& out, int threads,
                    const Isa& isa);

} // namespace flashbertscore
