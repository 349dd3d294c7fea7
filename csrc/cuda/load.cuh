// Global to shared memory: slices of the rows of one tile after another, ahead of their use.
#pragma once

#include "cuda/numeric.cuh"

namespace flashbertscore::cuda {

// A stage is [TM + TN] rows of 8 chunks of 16 bytes. Chunk c of row r lies at position c ^ (r % 8),
// so that the 8 rows of one ldmatrix phase, at one c, cover all 32 banks.
__device__ __forceinline__ int chunk_offset(int row, int chunk) {
    return row * SLICE_BYTES + ((chunk ^ (row % SLICE_CHUNKS)) * CHUNK_BYTES);
}

// The blocks of rows and columns of one item.
struct Range {
    int row_begin, row_end, column_begin, column_end;
};

// Items of pairs that one block takes whole.
template <class T> struct WholePairs {
    static constexpr bool split = false;
    static __device__ __forceinline__ index_t count(const Problem& problem) {
        return problem.count;
    }
    static __device__ __forceinline__ Task get(const Problem& problem, index_t item, Range* range) {
        const Task task = task_of(problem, item);
        *range = {0, blocks_of(task.n, T::TM), 0, blocks_of(task.m, T::TN)};
        return task;
    }
};

// Items of pairs that many blocks share: a block of rows against a range of blocks of columns.
template <class T> struct PairParts {
    static constexpr bool split = true;
    static __device__ __forceinline__ index_t count(const Problem& problem) {
        return problem.item_count;
    }
    static __device__ __forceinline__ Task get(const Problem& problem, index_t index,
                                               Range* range) {
        Item item;
        if (problem.items != nullptr) {
            item = problem.items[index];
        } else { // columns slowest: blocks that run together read the same columns
            const index_t in_task = static_cast<index_t>(problem.row_blocks) * problem.column_ranges;
            const int part = static_cast<int>(index % in_task);
            item.task = static_cast<int>(index / in_task);
            item.row_block = part % problem.row_blocks;
            item.column_begin = part / problem.row_blocks * problem.range_blocks;
            item.column_end = item.column_begin + problem.range_blocks;
        }
        const Task task = task_of(problem, item.task);
        const int rows = blocks_of(task.n, T::TM), columns = blocks_of(task.m, T::TN);
        range->row_begin = item.row_block;
        range->row_end = item.row_block < rows ? item.row_block + 1 : item.row_block;
        range->column_begin = item.column_begin;
        range->column_end = item.column_end < columns ? item.column_end : columns;
        if (range->column_begin >= range->column_end) range->row_end = range->row_begin;
        return task;
    }
};

// Walks over items, row blocks, column blocks and slices, STAGES - 1 steps ahead of the products:
// the memory never waits for a pair to end. Each thread copies the same chunk of every
// ROWS_A_PASS-th row.
template <class T, class E, bool ALIGNED, class Items> class Loader {
  public:
    __device__ __forceinline__ explicit Loader(const Problem& problem)
        : problem_(problem), item_(ptx::block_index() - ptx::grid_size()),
          row_(ptx::thread_index() / SLICE_CHUNKS), chunk_(ptx::thread_index() % SLICE_CHUNKS),
          target_(chunk_offset(row_, chunk_)) {
        next_item();
    }

    // Starts the copy of the next slice to `stage`; closes its group even when there is none.
    __device__ __forceinline__ void issue(char* stage) {
        if (item_ < Items::count(problem_)) {
            copy<T::X_PASSES>(stage + target_, x_, problem_.x, x_rows_);
            copy<T::Y_PASSES>(stage + T::TM * SLICE_BYTES + target_, y_, problem_.y, y_rows_);
            advance();
        }
        ptx::copy_async_commit();
    }

  private:
    using Storage = typename E::Storage;
    static constexpr int PER_CHUNK = CHUNK_ELEMENTS<E>;

    template <int PASSES>
    __device__ __forceinline__ void copy(char* target, const Storage* source, const Side& side,
                                         int rows) {
        const int k = slice_ * SLICE_ELEMENTS<E> + chunk_ * PER_CHUNK;
        source += k;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            // Rows and elements beyond the end are zeros, and not read.
            const bool inside = pass * T::ROWS_A_PASS < rows && k < problem_.dim;
            char* to = target + pass * T::ROWS_A_PASS * SLICE_BYTES;
            if constexpr (ALIGNED) {
                ptx::copy_async_16(to, inside ? source : side.data, inside);
            } else {
                Storage values[PER_CHUNK];
                for (int e = 0; e < PER_CHUNK; ++e) {
                    values[e] = inside && k + e < problem_.dim ? source[e] : Storage(0);
                }
                ptx::Chunk gathered;
                memcpy(&gathered, values, sizeof(gathered));
                ptx::store_chunk(to, gathered);
            }
            source += T::ROWS_A_PASS * side.row_stride;
        }
    }

    __device__ __forceinline__ void advance() {
        if (++slice_ * SLICE_ELEMENTS<E> < problem_.dim) return;
        slice_ = 0;
        if (++column_ < range_.column_end) {
            y_ += T::TN * problem_.y.row_stride;
            y_rows_ -= T::TN;
            return;
        }
        if (++range_.row_begin < range_.row_end) {
            const int back = (column_ - 1 - range_.column_begin) * T::TN;
            column_ = range_.column_begin;
            y_ -= back * problem_.y.row_stride;
            y_rows_ += back;
            x_ += T::TM * problem_.x.row_stride;
            x_rows_ -= T::TM;
            return;
        }
        next_item();
    }

    __device__ __forceinline__ void next_item() {
        const index_t count = Items::count(problem_);
        for (item_ += ptx::grid_size(); item_ < count; item_ += ptx::grid_size()) {
            const Task task = Items::get(problem_, item_, &range_);
            if (range_.row_begin == range_.row_end) continue;
            column_ = range_.column_begin;
            const index_t x_row = static_cast<index_t>(range_.row_begin) * T::TM + row_;
            const index_t y_row = static_cast<index_t>(column_) * T::TN + row_;
            x_rows_ = task.n - static_cast<int>(x_row);
            y_rows_ = task.m - static_cast<int>(y_row);
            x_ = static_cast<const Storage*>(problem_.x.data) + task.x_element +
                 x_row * problem_.x.row_stride;
            y_ = static_cast<const Storage*>(problem_.y.data) + task.y_element +
                 y_row * problem_.y.row_stride;
            return;
        }
    }

    const Problem& problem_;
    index_t item_;
    const int row_, chunk_, target_;
    const Storage *x_, *y_;   // this thread's row of the tile, k = 0
    int x_rows_, y_rows_;     // rows of the document from there on
    Range range_;             // row_begin: the current block
    int column_, slice_ = 0;
};

} // namespace flashbertscore::cuda
