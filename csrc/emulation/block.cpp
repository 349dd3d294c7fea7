// Compiled without ThreadSanitizer's instrumentation even in its build: the state below is the
// hardware's, not the program's. Accesses of the program itself are in device.h, instrumented.
#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fiber.h"

#if defined(FLASHBERTSCORE_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif

namespace flashbertscore::emulation {
namespace {

void release_order(void* at) {
#if defined(FLASHBERTSCORE_TSAN)
    __tsan_release(at);
#else
    (void)at;
#endif
}

void acquire_order(void* at) {
#if defined(FLASHBERTSCORE_TSAN)
    __tsan_acquire(at);
#else
    (void)at;
#endif
}

// Allocations and intercepted library calls of the emulator must not look like the program's.
struct [[maybe_unused]] Quiet {
#if defined(FLASHBERTSCORE_TSAN)
    Quiet() {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Quiet() {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#endif
};

struct Barrier {
    int arrived = 0;
    unsigned phase = 0;
    char order[2]; // what ThreadSanitizer hangs the order on, one per parity of the phase
};

using Combine = void (*)(Slot*);

void synchronize(Slot*) {} // stands for sync_warp among the operations of a warp

struct Warp {
    Barrier barrier;
    Combine operation = nullptr; // that the lanes which have arrived came for
    Slot slots[2][WARP]; // by parity: a fast lane may fill the next ones before all have read
};

struct Thread {
    Fiber fiber;
    int index = 0;
    bool done = false;
    Thread* next = nullptr;  // ring of the threads that are not done
    std::deque<Copy> copies; // issued, oldest first
    std::deque<int> groups;  // copies in each committed group, oldest first
    int open = 0;            // copies issued since the last commit
};

struct Grid {
    const std::function<void()>* kernel = nullptr;
    std::int64_t blocks = 0;
    int threads = 0;
    std::int64_t block = 0;
    char* shared = nullptr;
    Barrier barrier;
    std::vector<Warp> warps;
    Thread* current = nullptr;
    Thread* last = nullptr; // before `current` in the ring
    int alive = 0;
    long idle = 0; // resumptions in a row that found nothing to do
    bool deadlock = false;
    const char* complaint = nullptr; // the first one
    Fiber host;
    char begin = 0, order = 0; // of all blocks; end of all blocks
};

thread_local Grid* grid = nullptr;
// Threads serve one launch after another, which comes after it; under ThreadSanitizer, for which
// it is dear to make them, not one block after another, which does not: the first blocks of a
// launch have theirs, the others make new ones.
#if defined(FLASHBERTSCORE_TSAN)
constexpr std::int64_t KEPT_BLOCKS = 4;
#else
constexpr std::int64_t KEPT_BLOCKS = 0;
#endif
thread_local std::vector<std::unique_ptr<Thread>> pools[KEPT_BLOCKS + 1];

// Lets the next thread of the ring run.
void yield() {
    Thread* mine = grid->current;
    if (++grid->idle > 4L * grid->alive + 64) {
        grid->deadlock = true;
        Fiber::switch_to(mine->fiber, grid->host);
    }
    if (mine->next == mine) return;
    grid->last = mine;
    grid->current = mine->next;
    Fiber::switch_to(mine->fiber, mine->next->fiber);
}

// Returns true for the last of `expected` threads to come, before the others go on.
template <class Then>
void arrive(Barrier& barrier, int expected, bool ordering, Then then) {
    const unsigned phase = barrier.phase;
    if (ordering) release_order(&barrier.order[phase & 1]);
    if (++barrier.arrived == expected) {
        then();
        barrier.arrived = 0;
        ++barrier.phase;
        grid->idle = 0;
    } else {
        while (barrier.phase == phase) yield();
        grid->idle = 0;
    }
    if (ordering) acquire_order(&barrier.order[phase & 1]);
}

void complain(const char* what) {
    if (grid->complaint == nullptr) grid->complaint = what;
}

// The lanes of a warp meet at one and the same operation.
void arrive(Warp& warp, Combine operation, bool ordering) {
    if (warp.barrier.arrived == 0) warp.operation = operation;
    if (warp.operation != operation) complain("lanes of a warp meet at different operations");
    Slot* slots = warp.slots[warp.barrier.phase & 1];
    arrive(warp.barrier, WARP, ordering, [&] {
        if (operation != nullptr) operation(slots);
    });
}

void thread_entry(void* argument) {
    auto* thread = static_cast<Thread*>(argument);
    acquire_order(&grid->begin);
    (*grid->kernel)();
    release_order(&grid->order);
    thread->done = true;
    grid->idle = 0;
    --grid->alive;
    // A block's barrier no longer waits for threads that have returned.
    if (grid->barrier.arrived > 0 && grid->barrier.arrived == grid->alive) {
        grid->barrier.arrived = 0;
        ++grid->barrier.phase;
    }
    if (grid->alive == 0) {
        Fiber::switch_to(thread->fiber, grid->host);
    } else {
        Thread* next = thread->next;
        grid->last->next = next;
        grid->current = next;
        Fiber::switch_to(thread->fiber, next->fiber);
    }
    std::abort();
}

void run_block() {
    auto& pool = pools[std::min(grid->block, KEPT_BLOCKS)];
    while (static_cast<int>(pool.size()) < grid->threads) {
        pool.push_back(std::make_unique<Thread>());
    }
    grid->barrier = Barrier{};
    for (Warp& warp : grid->warps) warp.barrier = Barrier{};
    grid->alive = grid->threads;
    grid->idle = 0;
    for (int i = 0; i < grid->threads; ++i) {
        Thread& thread = *pool[i];
        thread.index = i;
        thread.done = false;
        thread.copies.clear();
        thread.groups.clear();
        thread.open = 0;
        thread.next = pool[(i + 1) % grid->threads].get();
        thread.fiber.start(thread_entry, &thread);
    }
    grid->last = pool[grid->threads - 1].get();
    grid->current = pool[0].get();
    Fiber::switch_to(grid->host, grid->current->fiber);
    for (int i = 0; i < grid->threads && grid->block >= KEPT_BLOCKS; ++i) pool[i]->fiber.finish();
}

} // namespace

void launch(std::int64_t blocks, int threads, std::size_t shared_bytes,
            const std::function<void()>& kernel) {
    if (threads % WARP != 0) throw std::runtime_error("emulation: block of partial warps");
    if (grid != nullptr) throw std::runtime_error("emulation: launch inside a kernel");
    Quiet quiet;
    Grid state;
    state.kernel = &kernel;
    state.blocks = blocks;
    state.threads = threads;
    state.warps.resize(threads / WARP);
    state.host.adopt_caller();
    release_order(&state.begin);
    grid = &state;
    // All blocks keep their shared memory to the end, so that none is ordered after another by
    // the allocator.
    std::vector<std::unique_ptr<char[]>> memory;
    for (std::int64_t b = 0; b < blocks && !state.deadlock; ++b) {
        memory.emplace_back(new char[shared_bytes + 1]);
        state.shared = memory.back().get();
        std::memset(state.shared, 0xFF, shared_bytes);
        state.block = b;
        run_block();
    }
    acquire_order(&state.order);
    grid = nullptr;
    if (state.deadlock) {
        throw std::runtime_error("emulation: deadlock, some threads of a block never come to a "
                                 "barrier or a warp operation that others wait at");
    }
    if (state.complaint != nullptr) {
        throw std::runtime_error(std::string("emulation: ") + state.complaint);
    }
}

int thread_index() { return grid->current->index; }
std::int64_t block_index() { return grid->block; }
std::int64_t grid_size() { return grid->blocks; }
char* shared_memory() { return grid->shared; }

void sync_block() {
    arrive(grid->barrier, grid->alive, true, [] {});
}

void sync_warp() { arrive(grid->warps[grid->current->index / WARP], synchronize, true); }

void require_aligned(const void* at) {
    if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0) {
        complain("an instruction for 16 bytes takes an address that is no multiple of them");
    }
}

const Slot* rendezvous(const Slot& mine, Combine combine) {
    const int lane = grid->current->index % WARP;
    Warp& warp = grid->warps[grid->current->index / WARP];
    Slot* slots = warp.slots[warp.barrier.phase & 1];
    slots[lane] = mine;
    arrive(warp, combine, false);
    return slots;
}

void copy_issue(const Copy& copy) {
    Quiet quiet;
    grid->current->copies.push_back(copy);
    ++grid->current->open;
}

void copy_commit() {
    Quiet quiet;
    grid->current->groups.push_back(grid->current->open);
    grid->current->open = 0;
}

bool copy_due(int pending, Copy* copy) {
    Quiet quiet;
    Thread& thread = *grid->current;
    while (static_cast<int>(thread.groups.size()) > pending) {
        if (thread.groups.front() > 0) {
            --thread.groups.front();
            *copy = thread.copies.front();
            thread.copies.pop_front();
            return true;
        }
        thread.groups.pop_front();
    }
    return false;
}

} // namespace flashbertscore::emulation
