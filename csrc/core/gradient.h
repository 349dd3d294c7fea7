// What the backward pass sees beside the views of core/views.h. Addresses, and nothing that owns
// memory. "Real" is double if the tokens are float64, else float.
#pragma once

#include "core/views.h"

namespace flashbertscore {

// The best match of every token of every pair, pair after pair: pair p has the rows of its
// document, masked ones included, from the sum of those of the pairs before it on.
struct Alignment {
    const std::int32_t* candidate_index; // position in the reference document; -1: no match
    const void* candidate_similarity;    // Real
    const std::int32_t* reference_index; // position in the candidate document; -1: no match
    const void* reference_similarity;    // Real
};

// An alignment to be written: the same addresses, and where each pair's entries begin. Null
// addresses: not wanted.
struct AlignmentOut {
    std::int32_t* candidate_index = nullptr;
    void* candidate_similarity = nullptr;
    std::int32_t* reference_index = nullptr;
    void* reference_similarity = nullptr;
    const index_t* candidate_base = nullptr; // [count]
    const index_t* reference_base = nullptr;

    explicit operator bool() const { return candidate_index || reference_index; }
};

// Gradients of a loss with respect to what the forward pass returns, Real.
struct ScoreGradient {
    const void* precision;            // [count]
    const void* recall;               // [count]
    const void* f1;                   // [count]
    const void* candidate_similarity; // as in Alignment; null: none
    const void* reference_similarity;
};

// Gradients with respect to the inputs; null where not wanted.
struct GradientOut {
    void* candidate;         // [rows, dim] contiguous, dtype of the tokens
    void* reference;         // likewise
    void* candidate_weights; // [rows], Real
    void* reference_weights;
};

} // namespace flashbertscore
