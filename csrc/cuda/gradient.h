// The backward pass on a device, in two steps with a sort between them: see cpu/backward.cpp for
// the formulas. Host-only; reads no device memory, allocates none, waits for nothing.
#pragma once

#include <cstddef>

#include "core/gradient.h"
#include "cuda/runtime.h"

namespace flashbertscore::cuda {

// Of one side, on the device. Edges of a side are those of its own tokens, then those of the other
// side's tokens: `own` and `other` of them.
struct GradientSide {
    int* keys;       // [own + other] row of each edge; the number of rows: no edge
    void* weight;    // [own] Real: d loss / d similarity of each own token
    double* slope;   // [own] d loss / d weight of each own token
    double* inverse; // [rows] inverse norms; 0: zero vector, or not finite
    index_t own, other;
};

// Bytes of scratch that gradient_edges needs.
std::size_t gradient_workspace(const TokenBatch& candidate, const TokenBatch& reference,
                               const PairList& pairs);

// Writes what GradientSide points at, for both sides.
void gradient_edges(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                    const void* precision, const void* recall, const Alignment& alignment,
                    const ScoreGradient& gradient, const GradientSide (&sides)[2], void* workspace,
                    const Device& device, Stream stream);

// Gradients of one side. `order`: its edges sorted by key, equals in their order; `start` [rows +
// 1]: where the edges of a row begin in it. `tokens`, `weights`: as in GradientOut, null if not
// wanted.
void gradient_rows(const TokenBatch& own, const TokenBatch& other, const GradientSide& own_edges,
                   const GradientSide& other_edges, const void* own_similarity,
                   const void* other_similarity, const index_t* order, const index_t* start,
                   void* tokens, void* weights, const Device& device, Stream stream);

} // namespace flashbertscore::cuda
