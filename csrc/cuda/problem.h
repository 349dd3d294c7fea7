// What one launch works on: plain data, on the host and on the device.
#pragma once

#include "core/gradient.h"

namespace flashbertscore::cuda {

// One pair, with everything that its kernel looks up about it.
struct Task {
    index_t x_element; // elements between the data of a side and the first row of the document
    index_t y_element;
    index_t x_first; // index of that row among all rows (mask, weights, scales)
    index_t y_first;
    index_t keys;  // first of the n + m maxima of the pair (pairs split over blocks)
    index_t pair;  // where the scores go
    index_t x_out; // where the alignment of the pair's tokens goes, if one is wanted
    index_t y_out;
    int n; // rows of the candidate
    int m; // rows of the reference
};

// Part of a pair: one block of rows against a range of blocks of columns.
struct Item {
    int task;
    int row_block;
    int column_begin;
    int column_end;
};

// One side of all pairs.
struct Side {
    const void* data;
    index_t row_stride;       // elements
    index_t document_stride;  // elements, padded layout
    index_t width;            // rows of a document, padded layout
    const std::uint8_t* mask; // [rows] or null
    const void* weights;      // [rows] or null; double if the tokens are, else float
    const void* scales;       // [rows] from the norms kernel, or null: see norms.cuh
    int* shifted;             // not 0: some norm may be beyond the range (numeric.cuh)
};

struct Problem {
    Side x, y;
    int dim;
    index_t count;      // tasks
    const Task* tasks;  // null: task p is document `begin` + p of either side
    index_t begin;      //
    const int* extents; // [count, 2] rows up to the last valid one; null without masks
    const Item* items;  // null: each task is one item; see long_pairs.cuh
    index_t item_count; //
    int row_blocks;     // items of a task without `items`: row blocks x column ranges
    int column_ranges;  //
    int range_blocks;   // column blocks in a range
    void* keys;         // row and column maxima of split pairs, as ordered integers
    void *precision, *recall, *f1;
    AlignmentOut alignment; // null addresses: not wanted. Keys then hold the place of a maximum too
    int* places;            // float64: places of the maxima, in the order of keys; see numeric.cuh
};

} // namespace flashbertscore::cuda
