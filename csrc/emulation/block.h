// A CUDA grid on one CPU thread: blocks one after another, the threads of a block as fibers.
//
// What the emulation checks that hardware leaves to chance:
// * shared memory is NaN (bytes 0xFF) when a block starts, and ends exactly where it was asked to;
// * a cp.async copies nothing before the wait_group that its thread issues for it;
// * warp operations meet in a rendezvous of all 32 lanes; a lane that never comes is a deadlock,
//   reported, as is a barrier that some threads never reach, or a lane that comes to another one;
// * addresses that instructions for 16 bytes take are multiples of 16;
// * under ThreadSanitizer only __syncthreads, __syncwarp and atomics order memory: neither the
//   order of execution nor shuffles, ldmatrix or mma.sync do, and two blocks are never ordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace flashbertscore::emulation {

constexpr int WARP = 32;

// What one lane brings to, and takes from, a warp operation.
struct alignas(16) Slot {
    std::uint64_t words[8];
};

// Runs `kernel` for every thread of a grid. Throws std::runtime_error for a deadlock, and for
// whatever the threads did that a device answers with an error or with anything at all.
void launch(std::int64_t grid, int block_threads, std::size_t shared_bytes,
            const std::function<void()>& kernel);

// Of the running thread.
int thread_index();
std::int64_t block_index();
std::int64_t grid_size();
char* shared_memory();

// Of an instruction for 16 bytes: the device traps at an address that is no multiple of them.
void require_aligned(const void* at);

void sync_block();
void sync_warp();

// Waits for the 32 lanes of the warp, then returns their slots in lane order; before that, the
// last lane to come applies `combine` to them.
const Slot* rendezvous(const Slot& mine, void (*combine)(Slot*) = nullptr);

// The cp.async of the running thread that were issued and not yet carried out.
struct Copy {
    void* target;
    const void* source; // null: zeros
};
constexpr int COPY_BYTES = 16;
void copy_issue(const Copy& copy);
void copy_commit();
// The next copy of a group that must be complete when only `pending` newer groups may be
// outstanding; false when there is none left.
bool copy_due(int pending, Copy* copy);

// How tensor cores add, as far as it was measured (Fasi, Higham, Mikaitis, Pranesh: Numerical
// behavior of NVIDIA tensor cores, 2021, and later work of Mikaitis on newer ones): `products` and
// the accumulator at once, each cut off `extra_bits` below the last bit that a float has beside the
// largest of them; then the sum is cut off to a float. No device is known to be coarser than sm_80.
struct TensorCore {
    int products, extra_bits;
};
constexpr TensorCore SM_80 = {8, 1}, SM_90 = {16, 2};
extern TensorCore tensor_core; // that is emulated: SM_90 unless a test sets it

// mma.sync.m16n8k16 over slots that hold A (4 words of 32 bits), B (2) and C (4); leaves D in C.
void combine_mma_bf16(Slot* slots);
void combine_mma_fp16(Slot* slots);
// ldmatrix.x4 over slots that hold one row of 16 bytes a lane; leaves 4 words of 32 bits.
void combine_ldmatrix(Slot* slots);

} // namespace flashbertscore::emulation
