// Bidirectional self-attention over padded batches, for inference on the CPU:
// softmax(scale Q K^T) V of every head of every text, over the tokens that the text has.
#pragma once

#include "core/views.h"
#include "cpu/isa.h"

namespace flashbertscore {

// Queries, keys or values: element (text, head, token, k) lies at data[text * text_stride +
// head * head_stride + token * token_stride + k].
struct HeadView {
    const void* data;
    index_t text_stride;
    index_t head_stride;
    index_t token_stride;
};

struct AttentionBatch {
    DType dtype;            // float32 or bfloat16, of operands and result
    index_t texts;          // B
    index_t heads;          // H
    index_t width;          // L, tokens of a text with its padding
    index_t dim;            // d, of a head
    float scale;            // of the products of queries and keys
    const index_t* lengths; // [B] tokens of each text, 0 .. L; padding is on the right
    HeadView q, k, v;
    void* out; // [B, L, H * d] contiguous; zero where a text has no token
};

// Throws std::invalid_argument where a length is not in 0 .. width.
void check_lengths(const index_t* lengths, index_t texts, index_t width);

// Uses at most `threads` threads. The result of a text depends on its own tokens alone: not on the
// rest of its batch, not on its padding, which is never read, and not on the number of threads.
//
// Throws std::invalid_argument where a length is not in 0 .. L.
void attend(const AttentionBatch& batch, int threads, const Isa& isa);

} // namespace flashbertscore
