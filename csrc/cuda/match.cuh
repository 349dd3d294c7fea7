// The kernel: products of a tile, then its row and column maxima, tile after tile.
//
//     for each item (a pair, or a part of one)             blocks of the grid, persistent
//       for each block of rows                             row maxima stay in registers
//         for each block of columns
//           for each slice of k                            global -> shared, STAGES - 1 ahead
//             arrival (norms, or the split of floats)      shared, by the thread that copied
//             16 x 8 x 16 products                         shared -> registers, tensor cores
//           column maxima                                  registers -> shared or global
//         row maxima                                       registers -> shared or global
//       weighted means                                     whole pairs: shared -> scores
#pragma once

#include "cuda/slots.cuh"
#include "cuda/tile.cuh"

namespace flashbertscore::cuda {

// The row of the tile whose scale this thread provides; every row has exactly one.
template <class T, int PASSES>
__device__ __forceinline__ int own_row() {
    const int chunk = ptx::thread_index() % SLICE_CHUNKS;
    return chunk < PASSES ? ptx::thread_index() / SLICE_CHUNKS + chunk * T::ROWS_A_PASS : -1;
}

// Maxima of a tile with their places, into 64-bit keys. A NaN, which is no token, is never larger.
template <class T, int M, int N>
__device__ __forceinline__ void place_maxima(const Problem& problem, const Task& task,
                                             const Place<T>& place, const float (&acc)[M][N][4],
                                             const float* x_scales, const float* y_scales,
                                             int row_block, int column_block) {
    long long* const keys = static_cast<long long*>(problem.keys) + task.keys;
    const int first_row = row_block * T::TM + place.row + place.group;
    const int first_column = column_block * T::TN;
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float best = -INFINITY;
            int row = first_row;
#pragma unroll
            for (int i = 0; i < M; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float scale = x_scales[place.row + 16 * i + 8 * h + place.group];
                    const float value = acc[i][j][2 * h + e] * scale;
                    if (value > best) {
                        best = value;
                        row = first_row + 16 * i + 8 * h;
                    }
                }
            }
            long long found = placed_key(best, row);
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) {
                const long long other = ptx::shuffle_xor(found, mask);
                found = other > found ? other : found;
            }
            const int column = first_column + place.column + 8 * j + 2 * place.quad + e;
            if (place.group == 0 && column < task.m) {
                ptx::atomic_max(keys + task.n + column, found);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float best = -INFINITY;
            int column = first_column;
#pragma unroll
            for (int j = 0; j < N; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int here = place.column + 8 * j + 2 * place.quad + e;
                    const float value = acc[i][j][2 * h + e] * y_scales[here];
                    if (value > best) {
                        best = value;
                        column = first_column + here;
                    }
                }
            }
            long long found = placed_key(best, column);
#pragma unroll
            for (int mask = 1; mask < 4; mask *= 2) {
                const long long other = ptx::shuffle_xor(found, mask);
                found = other > found ? other : found;
            }
            const int row = first_row + 16 * i + 8 * h;
            if (place.quad == 0 && row < task.n) ptx::atomic_max(keys + row, found);
        }
    }
}

// PLACES: also where the maxima are, of parts alone. Row maxima then go to global memory after
// every tile: with a place each they would not fit the registers of a sweep.
template <class T, class E, bool ALIGNED, class Items, bool PLACES = false>
__global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    match(const __grid_constant__ Problem problem) {
    constexpr bool WHOLE = !Items::split;
    static_assert(!(WHOLE && PLACES));
    constexpr bool NORMS_HERE = WHOLE && !E::split;
    constexpr int M = T::WARP_M / 16, N = T::WARP_N / 8;
    char* const stages = ptx::shared_memory();
    float* const x_scales = reinterpret_cast<float*>(stages + T::STAGES * T::STAGE_BYTES);
    float* const y_scales = x_scales + (WHOLE ? T::CAPACITY : T::TM);
    Slots<T> slots{y_scales + T::CAPACITY, y_scales + (1 + T::WARPS_N) * T::CAPACITY}; // if WHOLE
    auto* const partial = reinterpret_cast<Totals*>(x_scales + T::SHORT_FLOATS);       // if WHOLE
    if constexpr (!WHOLE && E::wide) { // parts run twice: one of the two has nothing to do
        if ((*problem.x.shifted != 0) != Items::shifted) return;
    }

    const Place<T> place;
    const Fragments<T> fragments(place);
    const int own_x = own_row<T, T::X_PASSES>(), own_y = own_row<T, T::Y_PASSES>();
    Loader<T, E, ALIGNED, Items> loader(problem);
#pragma unroll 1
    for (int s = 0; s < T::STAGES - 1; ++s) {
        loader.template issue<0, 1>(stages + s * T::STAGE_BYTES);
        loader.commit();
    }
    int stage = 0;

    for (index_t item = ptx::block_index(); item < Items::count(problem);
         item += ptx::grid_size()) {
        Range range;
        const Task task = Items::get(problem, item, &range);
        for (int rb = range.row_begin; rb < range.row_end; ++rb) {
            float row_best[M][2];
#pragma unroll
            for (int i = 0; i < M; ++i) row_best[i][0] = row_best[i][1] = -INFINITY;

            for (int cb = range.column_begin; cb < range.column_end; ++cb) {
                const bool new_x = cb == range.column_begin;        // rows not seen before
                const bool new_y = !WHOLE || rb == range.row_begin; // columns not in y_scales
                const auto fetch = [&](const Side& side, index_t first, int i, int rows) {
                    if constexpr (NORMS_HERE) return token_or_nan(side, first, i, rows);
                    return row_scale<E::split, float>(side, first, i, rows);
                };
                float x_scale = 0, y_scale = 0; // on their way while the products run
                if (new_x && own_x >= 0) {
                    x_scale = fetch(problem.x, task.x_first, rb * T::TM + own_x, task.n);
                }
                if (new_y && own_y >= 0) {
                    y_scale = fetch(problem.y, task.y_first, cb * T::TN + own_y, task.m);
                }

                Accumulators<T> acc; // [TM, TN] over the block
                clear(acc);
                Arrival<T, E, Items::split, E::split> arrival;
                arrival.tile(problem, task, rb, cb);
                for (int k = 0; k < problem.dim; k += SLICE_ELEMENTS<E>) {
                    char* const current = stages + stage * T::STAGE_BYTES;
                    ptx::copy_async_wait<T::STAGES - 2>();
                    if constexpr (Items::shifted) {
                        apply_shifts<T, E>(current, problem, task, rb, cb);
                    }
                    arrival.slice(current, new_x, new_y);
                    ptx::sync_block(); // the slice is whole, and the stage before it is free
                    const int free_stage = stage == 0 ? T::STAGES - 1 : stage - 1;
                    multiply_slice<T, E>(acc, current, fragments, loader,
                                         stages + free_stage * T::STAGE_BYTES);
                    stage = stage + 1 == T::STAGES ? 0 : stage + 1;
                }

                const int x_base = WHOLE ? rb * T::TM : 0, y_base = WHOLE ? cb * T::TN : 0;
                if (new_x) {
                    x_scale = arrival.x_scale(x_scale);
                    if (own_x >= 0) x_scales[x_base + own_x] = x_scale;
                }
                if (new_y) {
                    y_scale = arrival.y_scale(y_scale);
                    if (own_y >= 0) y_scales[y_base + own_y] = y_scale;
                }
                ptx::sync_block();

                if constexpr (PLACES) {
                    place_maxima<T>(problem, task, place, acc, x_scales, y_scales, rb, cb);
                } else {
                    float xs[M][2];
#pragma unroll
                    for (int i = 0; i < M; ++i)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            xs[i][h] = x_scales[x_base + place.row + 16 * i + 8 * h + place.group];
#pragma unroll
                    for (int j = 0; j < N; ++j) {
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const int column = place.column + 8 * j + 2 * place.quad + e;
                            const float ys = y_scales[y_base + column];
                            float best = -INFINITY;
#pragma unroll
                            for (int i = 0; i < M; ++i) {
#pragma unroll
                                for (int h = 0; h < 2; ++h) {
                                    // fmaxf drops the NaN of what is not a token.
                                    const float dot = acc[i][j][2 * h + e];
                                    row_best[i][h] = fmaxf(row_best[i][h], dot * ys);
                                    best = fmaxf(best, dot * xs[i][h]);
                                }
                            }
#pragma unroll
                            for (int mask = 4; mask < 32; mask *= 2) {
                                best = fmaxf(best, ptx::shuffle_xor(best, mask));
                            }
                            if (place.group == 0) {
                                if constexpr (WHOLE) {
                                    slots.column(y_base + column, place.row / T::WARP_M,
                                                 rb == range.row_begin, best);
                                } else if (cb * T::TN + column < task.m) {
                                    ptx::atomic_max(static_cast<int*>(problem.keys) + task.keys +
                                                        task.n + cb * T::TN + column,
                                                    key(best));
                                }
                            }
                        }
                    }
                }
            }

            if constexpr (!PLACES) {
#pragma unroll
                for (int i = 0; i < M; ++i) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float best = row_best[i][h];
#pragma unroll
                        for (int mask = 1; mask < 4; mask *= 2) {
                            best = fmaxf(best, ptx::shuffle_xor(best, mask));
                        }
                        const int row = rb * T::TM + place.row + 16 * i + 8 * h + place.group;
                        if (place.quad == 0) {
                            if constexpr (WHOLE) {
                                slots.row(row, place.column / T::WARP_N, best);
                            } else if (row < task.n) {
                                ptx::atomic_max(static_cast<int*>(problem.keys) + task.keys + row,
                                                key(best));
                            }
                        }
                    }
                }
            }
        }
        if constexpr (WHOLE) {
            ptx::sync_block();
            conclude_whole<T, E>(problem, task, x_scales, y_scales, slots, partial);
            // What is read here is written again only after a barrier of the next pair's slices.
        }
    }
}

} // namespace flashbertscore::cuda
