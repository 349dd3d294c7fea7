// The few calls of the CUDA runtime, with the same two back ends as ptx.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>

#include "cuda/problem.h"

#if defined(FLASHBERTSCORE_EMULATED)
#include "emulation/block.h"
#else
#include <cuda_runtime.h>

#include <atomic>
#endif

namespace flashbertscore::cuda {

struct Device {
    int multiprocessors;
    int shared_bytes; // that a block can ask for
};

#if defined(FLASHBERTSCORE_EMULATED)

using Stream = void*;

// Few multiprocessors, so that persistent loops go round, and as much memory as sm_90.
inline Device current_device() { return {3, 227 * 1024}; }

template <auto KERNEL, class... Arguments>
void launch(const Device& device, index_t blocks, int threads, std::size_t shared_bytes, Stream,
            Arguments... arguments) {
    if (blocks == 0) return;
    emulation::launch(std::min<index_t>(blocks, device.multiprocessors), threads, shared_bytes,
                      [&] { KERNEL(arguments...); });
}

inline void copy_to_device(void* to, const void* from, std::size_t bytes, Stream) {
    if (bytes != 0) std::memcpy(to, from, bytes);
}
inline void fill(void* at, int byte, std::size_t bytes, Stream) {
    if (bytes != 0) std::memset(at, byte, bytes);
}
inline bool is_capturing(Stream) { return false; }
template <auto KERNEL>
std::string why_unusable() {
    return {};
}

#else

using Stream = cudaStream_t;

inline void check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    cudaGetLastError(); // forgets it: the next call must not be blamed
    throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

inline int current_device_index() {
    int index = 0;
    check(cudaGetDevice(&index), "no current device");
    return index;
}

inline Device current_device() {
    const int index = current_device_index();
    Device device{};
    check(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, index),
          "multiprocessor count");
    check(cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                 index),
          "shared memory of a block");
    return device;
}

#if defined(__CUDACC__) // not for the bindings

// Blocks of a kernel that fit on a multiprocessor at once; asked once per kernel and device.
template <auto KERNEL>
int resident_blocks(int threads, std::size_t shared_bytes) {
    constexpr int DEVICES = 64;
    static std::atomic<int> known[DEVICES];
    const int index = current_device_index();
    int blocks = index < DEVICES ? known[index].load(std::memory_order_relaxed) : 0;
    if (blocks == 0) {
        check(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared_bytes)),
              "shared memory of a kernel");
        check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, KERNEL, threads, shared_bytes),
              "occupancy of a kernel");
        if (blocks < 1) throw std::runtime_error("CUDA: a kernel does not fit this device");
        if (index < DEVICES) known[index].store(blocks, std::memory_order_relaxed);
    }
    return blocks;
}

// What keeps a kernel of this build from running on the current device: an old driver, or a device
// that none of the targets is for. Empty if nothing does.
template <auto KERNEL>
std::string why_unusable() {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, KERNEL);
    if (status == cudaSuccess) return {};
    cudaGetLastError();
    return cudaGetErrorString(status);
}

// Starts a kernel that loops over `blocks` pieces of work, with as many blocks as fit at once.
template <auto KERNEL, class... Arguments>
void launch(const Device& device, index_t blocks, int threads, std::size_t shared_bytes,
            Stream stream, Arguments... arguments) {
    if (blocks == 0) return;
    const index_t most = static_cast<index_t>(device.multiprocessors) *
                         resident_blocks<KERNEL>(threads, shared_bytes);
    KERNEL<<<static_cast<unsigned>(std::min(blocks, most)), threads, shared_bytes, stream>>>(
        arguments...);
    check(cudaGetLastError(), "launch of a kernel");
}

#endif

// `from` is pageable: it has been read when the call returns.
inline void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copy to the device");
}
inline void fill(void* at, int byte, std::size_t bytes, Stream stream) {
    if (bytes != 0) check(cudaMemsetAsync(at, byte, bytes, stream), "fill");
}

// Whether what is started on the stream is recorded into a graph instead of run.
inline bool is_capturing(Stream stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream, &status), "state of the stream");
    return status != cudaStreamCaptureStatusNone;
}

#endif

} // namespace flashbertscore::cuda
