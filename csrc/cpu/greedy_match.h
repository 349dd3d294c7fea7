// The CPU entry: BERTScore's greedy matching of token embeddings.
#pragma once

#include "core/gradient.h"
#include "cpu/isa.h"

namespace flashbertscore {

// Writes precision, recall and F1 of every pair. Arguments are as core/validate.h accepts them.
// Uses at most `threads` threads; no result depends on how many. `alignment`: the best match of
// every token as well, if it has addresses; its bases are found here. No score changes with it.
void greedy_match(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                  const ScoreOut& out, int threads, const Isa& isa,
                  const AlignmentOut& alignment = {});

} // namespace flashbertscore
