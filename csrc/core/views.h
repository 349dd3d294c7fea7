// What the kernels see: pointers, sizes and strides, and nothing that owns memory.
#pragma once

#include <cstdint>

namespace flashbertscore {

using index_t = std::int64_t;

enum class DType : int { float32 = 0, float64 = 1, bfloat16 = 2, float16 = 3 };

// Token embeddings of many documents in one buffer, rows of `dim` contiguous elements.
//
// Packed layout (`offsets` not null): document d owns rows offsets[d] .. offsets[d+1]-1.
// Padded layout (`offsets` null): document d owns rows 0 .. width-1 of its own plane,
// which starts `document_stride` elements after the plane of document d-1.
//
// `mask` and `weights` are contiguous over (document, position): index mask[first(d) + i].
struct TokenBatch {
    const void* data;         // [rows, dim], element type `dtype`
    DType dtype;              // element type of `data`
    index_t documents;        // number of documents
    index_t dim;              // embedding width D, >= 1
    index_t row_stride;       // elements between two rows of a document
    index_t document_stride;  // padded layout: elements between two documents
    index_t width;            // padded layout: rows per document
    const index_t* offsets;   // packed layout: [documents + 1], non-decreasing, from 0
    const std::uint8_t* mask; // 0 where a row is not a token; null: every row is one
    const void* weights;      // double if dtype is float64, else float; null: all 1

    // Index of the first row of document d among all rows (for mask, weights, norms).
    index_t first(index_t d) const { return offsets ? offsets[d] : d * width; }
    // Rows of document d, masked ones included.
    index_t length(index_t d) const { return offsets ? offsets[d + 1] - offsets[d] : width; }
    // Elements between `data` and row i of document d.
    index_t element(index_t d, index_t i) const {
        return offsets ? (offsets[d] + i) * row_stride : d * document_stride + i * row_stride;
    }
    // Rows over all documents.
    index_t rows() const { return offsets ? offsets[documents] : documents * width; }
};

// Which candidate meets which reference.
struct PairList {
    const index_t* pairs; // [count, 2] (candidate, reference); null: pair p is (p, p)
    index_t count;

    index_t candidate(index_t p) const { return pairs ? pairs[2 * p] : p; }
    index_t reference(index_t p) const { return pairs ? pairs[2 * p + 1] : p; }
};

// Results, one per pair; double if the tokens are float64, else float.
struct ScoreOut {
    void* precision; // [count]
    void* recall;    // [count]
    void* f1;        // [count]
};

} // namespace flashbertscore
