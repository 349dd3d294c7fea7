// A layer of an encoder of BERT's kind, norms after the sums: attention over the tokens of each
// text, its projection, and two linear layers with an activation between them.
#pragma once

#include "cpu/linear.h"

namespace flashbertscore {

struct Norm {
    const float* weight; // [dim]
    const float* bias;   // [dim]
    float eps;
};

struct EncoderLayer {
    index_t dim, heads, wide; // D, H (a divisor of D), width between `up` and `down`
    PackedWeight query, key, value, projection; // [D, D]
    Norm attention_norm;
    PackedWeight up; // [wide, D]
    Activation activation;
    PackedWeight down; // [D, wide]
    Norm norm;
};

struct EncoderBatch {
    index_t texts, width;   // B, L
    const index_t* lengths; // [B], 0 .. L; padding is on the right and not read
    const float* x;         // [B, L, D] contiguous
    float* out;             // [B, L, D] contiguous, zero at the padding
};

// Uses at most `threads` threads. A text goes through the layer in the caches of one core, with a
// few others; the results of a text depend on its own tokens alone, to the bit: not on the rest of
// the batch, and not on the number of threads.
//
// Throws std::invalid_argument where a length is not in 0 .. L.
void encode(const EncoderLayer& layer, const EncoderBatch& batch, int threads, const Isa& isa);

} // namespace flashbertscore
