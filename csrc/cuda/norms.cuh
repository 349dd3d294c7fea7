// One scale per token row.
#pragma once

#include "cuda/numeric.cuh"

namespace flashbertscore::cuda {

constexpr int NORMS_THREADS = 256;

// Sum of squares, times `factor` squared, in the order that short_pairs takes it from shared
// memory: lane c of 8 holds the elements of chunk c of every slice. So both kernels give the same
// bits.
template <class E, class Real>
__device__ __forceinline__ Real row_squares(const typename E::Storage* row, int dim, int chunk,
                                            bool aligned, Real factor = 1) {
    constexpr int PER_CHUNK = CHUNK_ELEMENTS<E>;
    Real squares = 0;
    for (int k = chunk * PER_CHUNK; k < dim; k += SLICE_ELEMENTS<E>) {
        typename E::Storage values[PER_CHUNK];
        if (aligned) {
            const ptx::Chunk loaded = ptx::load_chunk(row + k);
            memcpy(values, &loaded, sizeof(loaded));
        } else {
            for (int e = 0; e < PER_CHUNK; ++e) {
                values[e] = k + e < dim ? row[k + e] : typename E::Storage(0);
            }
        }
#pragma unroll
        for (int e = 0; e < PER_CHUNK; ++e) {
            const Real value = E::to_float(values[e]) * factor;
            squares = fma(value, value, squares);
        }
    }
    for (int mask = 1; mask < SLICE_CHUNKS; mask *= 2) squares += ptx::shuffle_xor(squares, mask);
    return squares;
}

// scales[row] for `rows` rows: the inverse norm; for split (float) tokens SPLIT_SCALE over the
// norm, negative if the token must first be multiplied by TINY_FACTOR for that to be a float.
constexpr float TINY_NORM = 0x1p-100f;
constexpr float TINY_FACTOR = 0x1p100f;
// For wide types the scale holds the token's shift, and `shifted` becomes 1 if there is any.

// Of a wide type; called by whole warps.
template <class E>
__device__ __forceinline__ float shifted_scale(const typename E::Storage* row, int dim, int chunk,
                                               bool aligned) {
    float squares = row_squares<E, float>(row, dim, chunk, aligned);
    int shift = shift_of_squares(squares);
    int any = shift != 0;
    for (int mask = 1; mask < 32; mask *= 2) any |= ptx::shuffle_xor(any, mask);
    if (any != 0) {
        squares = row_squares<E, float>(row, dim, chunk, aligned, shift_factor(shift));
        if (squares == 0 || !(squares < INFINITY)) shift = 0;
    }
    return with_shift(inverse_norm<float>(squares, 1.0f), shift);
}

template <class E>
__global__ void __launch_bounds__(NORMS_THREADS)
    norms(Side side, int dim, index_t rows, bool padded, bool aligned, float* scales,
          int* shifted) {
    const int chunk = ptx::thread_index() % SLICE_CHUNKS;
    constexpr int ROWS = NORMS_THREADS / SLICE_CHUNKS;
    for (index_t base = ptx::block_index() * ROWS; base < rows; base += ptx::grid_size() * ROWS) {
        const index_t mine = base + ptx::thread_index() / SLICE_CHUNKS;
        const index_t row = mine < rows ? mine : rows - 1; // all lanes take part in the shuffles
        const index_t element =
            padded ? row / side.width * side.document_stride + row % side.width * side.row_stride
                   : row * side.row_stride;
        const auto* data = static_cast<const typename E::Storage*>(side.data) + element;
        float scale;
        if constexpr (E::split) {
            const double squares = row_squares<E, double>(data, dim, chunk, aligned);
            const bool tiny = squares < double(TINY_NORM) * double(TINY_NORM);
            const double numerator = tiny ? double(SPLIT_SCALE) / TINY_FACTOR : SPLIT_SCALE;
            scale = static_cast<float>(inverse_norm<double>(squares, numerator));
            if (tiny) scale = -scale;
        } else if constexpr (E::wide) {
            scale = shifted_scale<E>(data, dim, chunk, aligned);
            if (shift_in(scale) != 0 && chunk == 0) ptx::atomic_max(shifted, 1);
        } else {
            scale = inverse_norm<float>(row_squares<E, float>(data, dim, chunk, aligned), 1.0f);
        }
        if (chunk == 0 && mine < rows) scales[mine] = scale;
    }
}

} // namespace flashbertscore::cuda
