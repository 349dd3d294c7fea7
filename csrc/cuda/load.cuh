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
template <class T>
struct WholePairs {
    static constexpr bool split = false;
    static constexpr bool shifted = false;
    static __device__ __forceinline__ index_t count(const Problem& problem) {
        return problem.count;
    }
    static __device__ __forceinline__ Task get(const Problem& problem, index_t item, Range* range) {
        const Task task = task_of(problem, item);
        *range = {0, blocks_of(task.n, T::TM), 0, blocks_of(task.m, T::TN)};
        return task;
    }
};

// Items of pairs that many blocks share: a block of rows against a range of blocks of columns. If
// they were cut for larger tiles, ROWS x COLUMNS of T make one of those. `shifted`: for tokens
// whose scales may hold shifts (numeric.cuh).
template <class T, bool SHIFTED = false, int ROWS = 1, int COLUMNS = 1>
struct PairParts {
    static constexpr bool split = true;
    static constexpr bool shifted = SHIFTED;
    static __device__ __forceinline__ index_t count(const Problem& problem) {
        return problem.item_count;
    }
    static __device__ __forceinline__ Task get(const Problem& problem, index_t index,
                                               Range* range) {
        Item item;
        if (problem.items != nullptr) {
            item = problem.items[index];
        } else { // columns slowest: blocks that run together read the same columns
            const index_t in_task =
                static_cast<index_t>(problem.row_blocks) * problem.column_ranges;
            const int part = static_cast<int>(index % in_task);
            item.task = static_cast<int>(index / in_task);
            item.row_block = part % problem.row_blocks;
            item.column_begin = part / problem.row_blocks * problem.range_blocks;
            item.column_end = item.column_begin + problem.range_blocks;
        }
        const Task task = task_of(problem, item.task);
        const int rows = blocks_of(task.n, T::TM), columns = blocks_of(task.m, T::TN);
        range->row_begin = item.row_block * ROWS;
        range->row_end = range->row_begin < rows ? range->row_begin + ROWS : range->row_begin;
        if (ROWS > 1 && range->row_begin < rows && range->row_end > rows) range->row_end = rows;
        range->column_begin = item.column_begin * COLUMNS;
        range->column_end = item.column_end * COLUMNS;
        if (range->column_end > columns) range->column_end = columns;
        if (range->column_begin >= range->column_end) range->row_end = range->row_begin;
        return task;
    }
};

// Walks over items, row blocks, column blocks and slices, STAGES - 1 steps ahead of the products:
// the memory never waits for a pair to end. Each thread copies the same chunk of every
// ROWS_A_PASS-th row.
template <class T, class E, bool ALIGNED, class Items>
class Loader {
  public:
    __device__ __forceinline__ explicit Loader(const Problem& problem)
        : problem_(problem), item_(ptx::block_index() - ptx::grid_size()),
          slices_((problem.dim + SLICE_ELEMENTS<E> - 1) / SLICE_ELEMENTS<E>),
          row_(ptx::thread_index() / SLICE_CHUNKS), x_step_(T::ROWS_A_PASS * problem.x.row_stride),
          y_step_(T::ROWS_A_PASS * problem.y.row_stride) {
        const int chunk = ptx::thread_index() % SLICE_CHUNKS;
        k_first_ = chunk * PER_CHUNK;
        target_ = chunk_offset(row_, chunk);
        next_item();
    }

    // Starts part PART of PARTS of the copy of the next slice to `stage`: spread between products,
    // the instructions cost no time of their own.
    template <int PART, int PARTS>
    __device__ __forceinline__ void issue(char* stage) {
        char* const to = stage + target_;
        copy<T::X_PASSES * PART / PARTS, T::X_PASSES*(PART + 1) / PARTS>(to, x_, x_step_, x_rows_);
        copy<T::Y_PASSES * PART / PARTS, T::Y_PASSES*(PART + 1) / PARTS>(to + T::TM * SLICE_BYTES,
                                                                         y_, y_step_, y_rows_);
    }
    // After the last part: closes the group of copies, turns to the next slice.
    __device__ __forceinline__ void commit() {
        ptx::copy_async_commit();
        k_ += SLICE_ELEMENTS<E>;
        x_ += SLICE_ELEMENTS<E>;
        y_ += SLICE_ELEMENTS<E>;
        if (--left_ == 0) next_tile();
    }

  private:
    using Storage = typename E::Storage;
    static constexpr int PER_CHUNK = CHUNK_ELEMENTS<E>;

    template <int BEGIN, int END>
    __device__ __forceinline__ void copy(char* to, const Storage* from, index_t step, int rows) {
#pragma unroll
        for (int pass = BEGIN; pass < END; ++pass) {
            // Rows and elements beyond the end are zeros, and not read.
            const bool inside = pass * T::ROWS_A_PASS < rows && k_ < problem_.dim;
            char* const target = to + pass * T::ROWS_A_PASS * SLICE_BYTES;
            const Storage* const source = from + pass * step;
            if constexpr (ALIGNED) {
                ptx::copy_async_16(target, source, inside);
            } else {
                Storage values[PER_CHUNK];
                for (int e = 0; e < PER_CHUNK; ++e) {
                    values[e] = inside && k_ + e < problem_.dim ? source[e] : Storage(0);
                }
                ptx::Chunk gathered;
                memcpy(&gathered, values, sizeof(gathered));
                ptx::store_chunk(target, gathered);
            }
        }
    }

    __device__ __forceinline__ void next_tile() {
        const int back = slices_ * SLICE_ELEMENTS<E>;
        left_ = slices_;
        k_ = k_first_;
        x_ -= back;
        y_ -= back;
        if (++column_ < range_.column_end) {
            y_ += T::TN * problem_.y.row_stride;
            y_rows_ -= T::TN;
            return;
        }
        if (++range_.row_begin < range_.row_end) {
            const int columns = (column_ - 1 - range_.column_begin) * T::TN;
            column_ = range_.column_begin;
            y_ -= columns * problem_.y.row_stride;
            y_rows_ += columns;
            x_ += T::TM * problem_.x.row_stride;
            x_rows_ -= T::TM;
            return;
        }
        next_item();
    }

    __device__ __forceinline__ void next_item() {
        const index_t count = Items::count(problem_);
        left_ = slices_;
        k_ = k_first_;
        x_rows_ = y_rows_ = 0; // when there is none: zeros to the end
        column_ = 0;
        range_ = {0, 1 << 30, 0, 1 << 30};
        for (item_ += ptx::grid_size(); item_ < count; item_ += ptx::grid_size()) {
            const Task task = Items::get(problem_, item_, &range_);
            if (range_.row_begin == range_.row_end) continue;
            column_ = range_.column_begin;
            const index_t x_row = static_cast<index_t>(range_.row_begin) * T::TM + row_;
            const index_t y_row = static_cast<index_t>(column_) * T::TN + row_;
            x_rows_ = task.n - static_cast<int>(x_row);
            y_rows_ = task.m - static_cast<int>(y_row);
            x_ = static_cast<const Storage*>(problem_.x.data) + task.x_element +
                 x_row * problem_.x.row_stride + k_;
            y_ = static_cast<const Storage*>(problem_.y.data) + task.y_element +
                 y_row * problem_.y.row_stride + k_;
            return;
        }
    }

    const Problem& problem_;
    index_t item_;
    const int slices_;
    const int row_;                 // of the tile, in the first pass
    const index_t x_step_, y_step_; // elements between two passes
    int k_first_, target_;
    const Storage *x_ = nullptr, *y_ = nullptr; // this thread's chunk of the first pass
    int x_rows_, y_rows_;                       // rows of the document from its row on
    Range range_;                               // row_begin: the current block
    int column_, k_, left_;                     // left_: slices of the tile
};

} // namespace flashbertscore::cuda
