// Every instruction that C++ has no word for, behind a small named function.
//
// Two back ends: this file on a device, ../emulation/device.h on a CPU (FLASHBERTSCORE_EMULATED).
// The kernels use nothing else of CUDA than these functions and the keywords.
#pragma once

#if defined(FLASHBERTSCORE_EMULATED)
#include "../emulation/device.h"
#else

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace flashbertscore::cuda::ptx {

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ std::int64_t block_index() { return blockIdx.x; }
__device__ __forceinline__ std::int64_t grid_size() { return gridDim.x; }
__device__ __forceinline__ char* shared_memory() {
    extern __shared__ __align__(128) char dynamic_shared_memory[];
    return dynamic_shared_memory;
}

__device__ __forceinline__ void sync_block() { __syncthreads(); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }

template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int lane_mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, value, lane_mask);
}

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// cp.async: 16 bytes from global to shared memory, there after a later copy_async_wait of the same
// thread. Zeros, and no access to `source`, if not `valid`.
__device__ __forceinline__ void copy_async_16(void* target, const void* source, bool valid) {
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_address(target)),
        "l"(__cvta_generic_to_global(source)), "r"(valid ? 16 : 0)
        : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Returns when at most PENDING committed groups of this thread are outstanding.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

// ldmatrix.x4: four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8 and
// receives elements 2 (l % 4), + 1 of row l / 4 of each.
__device__ __forceinline__ void load_matrices(std::uint32_t (&fragment)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// mma.sync.m16n8k16: D += A B with float accumulators. With g = lane / 4 and t = lane % 4:
// A: rows g, g + 8, g, g + 8 at k = 2t, 2t, 2t + 8, 2t + 8 (two elements each);
// B: column g at k = 2t, 2t + 8; D: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_fp16(float (&d)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void atomic_max(int* at, int value) { atomicMax(at, value); }
__device__ __forceinline__ void atomic_max(long long* at, long long value) { atomicMax(at, value); }

// The elements of 16 bytes.
struct alignas(16) Chunk {
    std::uint32_t words[4];
};
__device__ __forceinline__ Chunk load_chunk(const void* at) {
    const uint4 value = *static_cast<const uint4*>(at);
    return {{value.x, value.y, value.z, value.w}};
}
__device__ __forceinline__ void store_chunk(void* at, const Chunk& chunk) {
    *static_cast<uint4*>(at) =
        make_uint4(chunk.words[0], chunk.words[1], chunk.words[2], chunk.words[3]);
}

__device__ __forceinline__ float fp16_to_float(std::uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}
__device__ __forceinline__ std::uint16_t float_to_fp16(float value) {
    return __half_as_ushort(__float2half_rn(value));
}
__device__ __forceinline__ float int_as_float(int bits) { return __int_as_float(bits); }
__device__ __forceinline__ int float_as_int(float value) { return __float_as_int(value); }
__device__ __forceinline__ long long double_as_long(double value) {
    return __double_as_longlong(value);
}
__device__ __forceinline__ double long_as_double(long long bits) {
    return __longlong_as_double(bits);
}

} // namespace flashbertscore::cuda::ptx

#endif
