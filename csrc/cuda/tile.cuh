// One tile of similarities: products of a slice, and what a slice needs before it is multiplied.
#pragma once

#include "cuda/load.cuh"
#include "cuda/norms.cuh"

namespace flashbertscore::cuda {

// Which part of the tile a thread's accumulators hold.
template <class T>
struct Place {
    int thread = ptx::thread_index();
    int lane = thread % 32;
    int group = lane / 4, quad = lane % 4;             // row and column pair in a fragment
    int row = thread / 32 / T::WARPS_N * T::WARP_M;    // first row of the warp in the tile
    int column = thread / 32 % T::WARPS_N * T::WARP_N; // first column
};

template <class T>
using Accumulators = float[T::WARP_M / 16][T::WARP_N / 8][4];

template <int M, int N>
__device__ __forceinline__ void clear(float (&acc)[M][N][4]) {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][j][e] = 0;
}

// Addresses of fragments in a stage. Chunk c of the k-step's rows; ldmatrix wants, for A, the rows
// 0-15 at chunk c from lanes 0-15 and at the next one from lanes 16-31; for two B fragments, rows
// 0-7 at both chunks, then rows 8-15.
template <class T>
struct Fragments {
    int a_base, b_base, a_next, b_next, swizzle;

    __device__ __forceinline__ explicit Fragments(const Place<T>& place)
        : a_base((place.row + place.lane % 16) * SLICE_BYTES),
          b_base((T::TM + place.column + place.lane % 8 + place.lane / 16 * 8) * SLICE_BYTES),
          a_next(place.lane / 16), b_next(place.lane / 8 % 2), swizzle(place.lane % 8) {}

    __device__ __forceinline__ void load_a(std::uint32_t (&a)[4], const char* stage, int i,
                                           int first, int step) const {
        const int chunk = (first + a_next * step) ^ swizzle;
        ptx::load_matrices(a, stage + a_base + i * 16 * SLICE_BYTES + chunk * CHUNK_BYTES);
    }
    // b[0], b[1]: columns 0-7; b[2], b[3]: columns 8-15.
    __device__ __forceinline__ void load_b(std::uint32_t (&b)[4], const char* stage, int j,
                                           int first, int step) const {
        const int chunk = (first + b_next * step) ^ swizzle;
        ptx::load_matrices(b, stage + b_base + j * 8 * SLICE_BYTES + chunk * CHUNK_BYTES);
    }
};

// `part` is a constant once the loop around the call is unrolled.
template <int PARTS, class Loader>
__device__ __forceinline__ void issue_part(Loader& loader, char* stage, int part) {
    static_assert(PARTS == 2 || PARTS == 4);
    if (part == 0) loader.template issue<0, PARTS>(stage);
    if (part == 1) loader.template issue<1, PARTS>(stage);
    if constexpr (PARTS == 4) {
        if (part == 2) loader.template issue<2, PARTS>(stage);
        if (part == 3) loader.template issue<3, PARTS>(stage);
    }
}

// acc += X Y^T over one slice, while `loader` copies the one to come to `next`.
template <class T, class E, class Loader>
__device__ __forceinline__ void multiply_slice(Accumulators<T>& acc, const char* stage,
                                               const Fragments<T>& at, Loader& loader, char* next) {
    constexpr int M = T::WARP_M / 16, N = T::WARP_N / 8;
    if constexpr (!E::split) {
#pragma unroll
        for (int step = 0; step < SLICE_CHUNKS / 2; ++step) {
            std::uint32_t a[M][4], b[4];
#pragma unroll
            for (int i = 0; i < M; ++i) at.load_a(a[i], stage, i, 2 * step, 1);
            issue_part<SLICE_CHUNKS / 2>(loader, next, step);
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                at.load_b(b, stage, j, 2 * step, 1);
#pragma unroll
                for (int i = 0; i < M; ++i) {
                    E::multiply(acc[i][j], a[i], b[0], b[1]);
                    E::multiply(acc[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    } else {
        // Chunks 2u and 2u + 1 hold the high and the low parts of unit u of 8 elements. The product
        // of the low parts, 2^-22 of the whole, is left out. One instruction takes low x high of a
        // unit in its first half of k and high x low in its second, so that exchanging candidate
        // and reference exchanges halves of one sum and no rounding: on sm_90, that is. sm_80 to
        // sm_89 add 8 products at a time, one half after the other, and a last bit of P or R may
        // change, of one pair in a thousand. Rejected: even elements in one half and odd ones in
        // the other, which has the same bits everywhere but spills.
        // The slice is summed apart and added in float: tensor cores cut off what float rounds, a
        // bias that would grow with the number of sums into one accumulator.
        Accumulators<T> part;
        clear(part);
#pragma unroll
        for (int step = 0; step < SLICE_CHUNKS / 4; ++step) {
            std::uint32_t a_high[M][4], a_low[M][4], b_high[4], b_low[4];
#pragma unroll
            for (int i = 0; i < M; ++i) {
                at.load_a(a_high[i], stage, i, 4 * step, 2);
                at.load_a(a_low[i], stage, i, 4 * step + 1, 2);
            }
            issue_part<SLICE_CHUNKS / 4>(loader, next, step);
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                at.load_b(b_high, stage, j, 4 * step, 2);
                at.load_b(b_low, stage, j, 4 * step + 1, 2);
#pragma unroll
                for (int i = 0; i < M; ++i) {
#pragma unroll
                    for (int unit = 0; unit < 2; ++unit) {
                        const std::uint32_t mixed[4] = {a_low[i][2 * unit], a_low[i][2 * unit + 1],
                                                        a_high[i][2 * unit],
                                                        a_high[i][2 * unit + 1]};
                        E::multiply(part[i][j], mixed, b_high[unit], b_low[unit]);
                        E::multiply(part[i][j + 1], mixed, b_high[2 + unit], b_low[2 + unit]);
                    }
                    E::multiply(part[i][j], a_high[i], b_high[0], b_high[1]);
                    E::multiply(part[i][j + 1], a_high[i], b_high[2], b_high[3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < M; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[i][j][e] += part[i][j][e];
    }
    loader.commit();
}

// What happens to a slice when it has arrived, before any thread multiplies it: each thread treats
// the chunks that it (or, for float, its warp) has copied, so no barrier is needed in between.
// Here: nothing.
template <class T, class E, bool SPLIT_PAIRS, bool SPLIT_TOKENS>
struct Arrival {
    __device__ __forceinline__ void tile(const Problem&, const Task&, int, int) {}
    __device__ __forceinline__ void slice(char*, bool, bool) {}
    __device__ __forceinline__ float x_scale(float prefetched) const { return prefetched; }
    __device__ __forceinline__ float y_scale(float prefetched) const { return prefetched; }
};

// 16-bit tokens of whole pairs: adds up the squares of the tokens, which are read only once.
template <class T, class E>
struct Arrival<T, E, false, false> {
    float x[T::X_PASSES] = {}, y[T::Y_PASSES] = {};

    __device__ __forceinline__ void tile(const Problem&, const Task&, int, int) {
#pragma unroll
        for (int pass = 0; pass < T::X_PASSES; ++pass) x[pass] = 0;
#pragma unroll
        for (int pass = 0; pass < T::Y_PASSES; ++pass) y[pass] = 0;
    }
    __device__ __forceinline__ void slice(char* stage, bool want_x, bool want_y) {
        const int thread = ptx::thread_index();
        stage += chunk_offset(thread / SLICE_CHUNKS, thread % SLICE_CHUNKS);
        if (want_x) add(x, stage);
        if (want_y) add(y, stage + T::TM * SLICE_BYTES);
    }
    // Of the row that is this thread's own. `prefetched`: 1 for a token, NaN otherwise.
    __device__ __forceinline__ float x_scale(float prefetched) const { return own(x) * prefetched; }
    __device__ __forceinline__ float y_scale(float prefetched) const { return own(y) * prefetched; }

  private:
    template <int PASSES>
    static __device__ __forceinline__ void add(float (&sums)[PASSES], const char* at) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const ptx::Chunk chunk = ptx::load_chunk(at + pass * T::ROWS_A_PASS * SLICE_BYTES);
#pragma unroll
            for (int w = 0; w < 4; ++w) { // the order of row_squares
                const float low = E::to_float(static_cast<std::uint16_t>(chunk.words[w]));
                const float high = E::to_float(static_cast<std::uint16_t>(chunk.words[w] >> 16));
                sums[pass] = fmaf(low, low, sums[pass]);
                sums[pass] = fmaf(high, high, sums[pass]);
            }
        }
    }
    template <int PASSES>
    static __device__ __forceinline__ float own(const float (&sums)[PASSES]) {
        float mine = 0;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            float sum = sums[pass];
#pragma unroll
            for (int mask = 1; mask < SLICE_CHUNKS; mask *= 2) sum += ptx::shuffle_xor(sum, mask);
            if (ptx::thread_index() % SLICE_CHUNKS == pass) mine = sum;
        }
        return inverse_norm<float>(mine, 1.0f);
    }
};

// Multiplies the rows of a stage by the shifts in their scales: those chunks that this thread has
// copied.
template <class T, class E>
__device__ __forceinline__ void apply_shifts(char* stage, const Problem& problem, const Task& task,
                                             int row_block, int column_block) {
    const int first = ptx::thread_index() / SLICE_CHUNKS;
    stage += chunk_offset(first, ptx::thread_index() % SLICE_CHUNKS);
#pragma unroll 1
    for (int pass = 0; pass < T::X_PASSES + T::Y_PASSES; ++pass) {
        const bool is_x = pass < T::X_PASSES;
        const int row = first + (is_x ? row_block * T::TM : (column_block * T::TN - T::TM)) +
                        pass * T::ROWS_A_PASS; // of the document
        if (row >= (is_x ? task.n : task.m)) continue;
        const float* scales = static_cast<const float*>(is_x ? problem.x.scales : problem.y.scales);
        const int shift = shift_in(scales[(is_x ? task.x_first : task.y_first) + row]);
        if (shift == 0) continue;
        const float factor = shift_factor(shift);
        char* const at = stage + pass * T::ROWS_A_PASS * SLICE_BYTES;
        ptx::Chunk chunk = ptx::load_chunk(at);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const float low = E::to_float(static_cast<std::uint16_t>(chunk.words[w])) * factor;
            const float high =
                E::to_float(static_cast<std::uint16_t>(chunk.words[w] >> 16)) * factor;
            chunk.words[w] = E::upper_half(low) | static_cast<std::uint32_t>(E::upper_half(high))
                                                      << 16;
        }
        ptx::store_chunk(at, chunk);
    }
}

// float tokens: made unit vectors and split into fp16 parts, in place. A thread takes two chunks
// (8 elements) of a row, copied by lanes of its warp, and leaves 8 high parts and 8 low parts.
template <class T, class E, bool SPLIT_PAIRS>
struct Arrival<T, E, SPLIT_PAIRS, true> {
    static constexpr int X_UNITS = T::X_PASSES / 2, Y_UNITS = T::Y_PASSES / 2;
    static_assert(T::X_PASSES % 2 == 0 && T::Y_PASSES % 2 == 0);
    float x[X_UNITS], y[Y_UNITS]; // scales of this thread's rows

    __device__ __forceinline__ static int first_row() {
        const int lane = ptx::thread_index() % 32, warp = ptx::thread_index() / 32;
        return 4 * warp + lane / 4 % 4 + lane / 16 * T::ROWS_A_PASS;
    }
    __device__ __forceinline__ void tile(const Problem& problem, const Task& task, int row_block,
                                         int column_block) {
        get(x, problem.x, task.x_first, row_block * T::TM + first_row(), task.n);
        get(y, problem.y, task.y_first, column_block * T::TN + first_row(), task.m);
    }
    __device__ __forceinline__ void slice(char* stage, bool, bool) {
        ptx::sync_warp();
        split(x, stage, first_row());
        split(y, stage, T::TM + first_row());
    }
    __device__ __forceinline__ float x_scale(float prefetched) const { return prefetched; }
    __device__ __forceinline__ float y_scale(float prefetched) const { return prefetched; }

  private:
    template <int UNITS>
    static __device__ __forceinline__ void get(float (&scales)[UNITS], const Side& side,
                                               index_t first, int row, int rows) {
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const int i = row + 2 * u * T::ROWS_A_PASS;
            scales[u] = i < rows ? static_cast<const float*>(side.scales)[first + i] : 0.0f;
        }
    }
    template <int UNITS>
    static __device__ __forceinline__ void split(const float (&scales)[UNITS], char* stage,
                                                 int row) {
        const int unit = ptx::thread_index() % 4;
#pragma unroll
        for (int u = 0; u < UNITS; ++u, row += 2 * T::ROWS_A_PASS) {
            char* first = stage + chunk_offset(row, 2 * unit);
            char* second = stage + chunk_offset(row, 2 * unit + 1);
            const ptx::Chunk in[2] = {ptx::load_chunk(first), ptx::load_chunk(second)};
            const float before = scales[u] < 0 ? TINY_FACTOR : 1.0f;
            const float scale = scales[u] < 0 ? -scales[u] : scales[u];
            ptx::Chunk high, low;
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                std::uint32_t h = 0, l = 0;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int bits = static_cast<int>(in[w / 2].words[2 * (w % 2) + e]);
                    const float value = ptx::int_as_float(bits) * before * scale;
                    const std::uint16_t top = ptx::float_to_fp16(value);
                    const std::uint16_t rest = ptx::float_to_fp16(value - ptx::fp16_to_float(top));
                    h |= static_cast<std::uint32_t>(top) << 16 * e;
                    l |= static_cast<std::uint32_t>(rest) << 16 * e;
                }
                high.words[w] = h;
                low.words[w] = l;
            }
            ptx::store_chunk(first, high);
            ptx::store_chunk(second, low);
        }
    }
};

} // namespace flashbertscore::cuda
