// The back end of cuda/ptx.h for the emulation: CUDA's keywords, and every operation of ptx.h.
// Loads and stores that the device would make are made here, in code the sanitizers instrument.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"
#include "half.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace flashbertscore::cuda::ptx {

inline int thread_index() { return emulation::thread_index(); }
inline std::int64_t block_index() { return emulation::block_index(); }
inline std::int64_t grid_size() { return emulation::grid_size(); }
inline char* shared_memory() { return emulation::shared_memory(); }

inline void sync_block() { emulation::sync_block(); }
inline void sync_warp() { emulation::sync_warp(); }

template <class T>
T shuffle_xor(T value, int lane_mask) {
    static_assert(sizeof(T) <= sizeof(emulation::Slot));
    emulation::Slot slot{};
    std::memcpy(&slot, &value, sizeof(T));
    const emulation::Slot* slots = emulation::rendezvous(slot);
    const int lane = emulation::thread_index() % emulation::WARP;
    std::memcpy(&value, &slots[lane ^ lane_mask], sizeof(T));
    return value;
}

inline void copy_async_16(void* target, const void* source, bool valid) {
    emulation::require_aligned(target);
    emulation::require_aligned(source);
    emulation::copy_issue({target, valid ? source : nullptr});
}
inline void copy_async_commit() { emulation::copy_commit(); }
template <int PENDING>
void copy_async_wait() {
    emulation::Copy copy;
    while (emulation::copy_due(PENDING, &copy)) {
        if (copy.source != nullptr) {
            std::memcpy(copy.target, copy.source, emulation::COPY_BYTES);
        } else {
            std::memset(copy.target, 0, emulation::COPY_BYTES);
        }
    }
}

inline void load_matrices(std::uint32_t (&fragment)[4], const void* row) {
    emulation::require_aligned(row);
    emulation::Slot slot{};
    std::memcpy(&slot, row, 16);
    const int lane = emulation::thread_index() % emulation::WARP;
    const emulation::Slot* slots = emulation::rendezvous(slot, emulation::combine_ldmatrix);
    std::memcpy(fragment, &slots[lane], 16);
}

inline void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                     void (*combine)(emulation::Slot*)) {
    std::uint32_t words[16] = {a[0], a[1], a[2], a[3], b0, b1};
    std::memcpy(words + 6, d, 16);
    emulation::Slot slot;
    std::memcpy(&slot, words, sizeof(slot));
    const int lane = emulation::thread_index() % emulation::WARP;
    const emulation::Slot* slots = emulation::rendezvous(slot, combine);
    std::memcpy(words, &slots[lane], sizeof(words));
    std::memcpy(d, words + 6, 16);
}
inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                     std::uint32_t b1) {
    multiply(d, a, b0, b1, emulation::combine_mma_bf16);
}
inline void mma_fp16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                     std::uint32_t b1) {
    multiply(d, a, b0, b1, emulation::combine_mma_fp16);
}

template <class Integer>
void atomic_max(Integer* at, Integer value) {
    std::atomic_ref<Integer> target(*at);
    Integer old = target.load(std::memory_order_relaxed);
    while (old < value && !target.compare_exchange_weak(old, value, std::memory_order_relaxed)) {}
}

// The 8 elements of a chunk of 16 bytes.
struct alignas(16) Chunk {
    std::uint32_t words[4];
};
inline Chunk load_chunk(const void* at) {
    emulation::require_aligned(at);
    Chunk chunk;
    std::memcpy(&chunk, at, sizeof(chunk));
    return chunk;
}
inline void store_chunk(void* at, const Chunk& chunk) {
    emulation::require_aligned(at);
    std::memcpy(at, &chunk, sizeof(chunk));
}

inline float fp16_to_float(std::uint16_t bits) { return emulation::fp16_to_float(bits); }
inline std::uint16_t float_to_fp16(float value) { return emulation::float_to_fp16(value); }
inline float int_as_float(int bits) { return emulation::bits_float(static_cast<unsigned>(bits)); }
inline int float_as_int(float value) { return static_cast<int>(emulation::float_bits(value)); }
inline long long double_as_long(double value) {
    long long bits;
    std::memcpy(&bits, &value, 8);
    return bits;
}
inline double long_as_double(long long bits) {
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
}

} // namespace flashbertscore::cuda::ptx
