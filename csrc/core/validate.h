// Checks of values that only the host can read before a kernel starts. Every message names the
// argument, what was expected and what came.
#pragma once

#include "core/views.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace flashbertscore {

inline void validate_offsets(const TokenBatch& batch, index_t rows, const std::string& side) {
    const auto fail = [&](const std::string& expected, index_t at) {
        throw std::invalid_argument(side + "_offsets: expected " + expected + ", got offsets[" +
                                    std::to_string(at) +
                                    "] = " + std::to_string(batch.offsets[at]));
    };
    if (batch.offsets[0] != 0) { fail("offsets[0] = 0", 0); }
    for (index_t d = 1; d <= batch.documents; ++d) {
        if (batch.offsets[d] < batch.offsets[d - 1]) { fail("values that never decrease", d); }
        if (batch.offsets[d] > rows) {
            fail("values up to the " + std::to_string(rows) + " rows of " + side, d);
        }
    }
    if (batch.offsets[batch.documents] != rows) {
        fail("the last value to be the " + std::to_string(rows) + " rows of " + side,
             batch.documents);
    }
}

template <class T>
void validate_weights(const TokenBatch& batch, const std::string& side) {
    const T* weights = static_cast<const T*>(batch.weights);
    const index_t rows = batch.rows();
    for (index_t i = 0; i < rows; ++i) {
        if (!(weights[i] >= T(0)) || std::isinf(weights[i])) {
            throw std::invalid_argument(side + "_weights: expected finite values >= 0, got " +
                                        std::to_string(weights[i]) + " at token " +
                                        std::to_string(i));
        }
    }
}

inline void validate_pairs(const PairList& pairs, index_t candidates, index_t references) {
    const auto check = [](index_t p, int column, index_t value, index_t limit, const char* side) {
        if (value < 0 || value >= limit) {
            throw std::invalid_argument("pairs[" + std::to_string(p) + ", " +
                                        std::to_string(column) + "]: expected a " + side +
                                        " index in [0, " + std::to_string(limit) + "), got " +
                                        std::to_string(value));
        }
    };
    for (index_t p = 0; p < pairs.count; ++p) {
        check(p, 0, pairs.candidate(p), candidates, "candidate");
        check(p, 1, pairs.reference(p), references, "reference");
    }
}

// `rows`: rows that the buffers of candidate and reference hold.
inline void validate(const TokenBatch& candidate, index_t candidate_rows,
                     const TokenBatch& reference, index_t reference_rows, const PairList& pairs) {
    if (candidate.offsets) { validate_offsets(candidate, candidate_rows, "candidate"); }
    if (reference.offsets) { validate_offsets(reference, reference_rows, "reference"); }
    const bool wide = candidate.dtype == DType::float64;
    const auto weights = [&](const TokenBatch& batch, const char* side) {
        if (!batch.weights) { return; }
        wide ? validate_weights<double>(batch, side) : validate_weights<float>(batch, side);
    };
    weights(candidate, "candidate");
    weights(reference, "reference");
    validate_pairs(pairs, candidate.documents, reference.documents);
}

} // namespace flashbertscore
