// A stackful coroutine: one CUDA thread of the emulated block.
//
// Fibers instead of operating-system threads make a block of 256 threads cheap (a switch costs
// nanoseconds), and the order of execution the same in every run. ThreadSanitizer follows them as
// if they were threads: a switch is announced to it as one that orders nothing, so only barriers
// of the emulated program order memory accesses.
#pragma once

#include <cstddef>

namespace flashbertscore::emulation {

class Fiber {
  public:
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;
    ~Fiber();

    // Makes the fiber run `entry(argument)` when it is next switched to. `entry` must not return.
    // Again for a fiber whose entry has ended: to the sanitizer it is the same thread.
    void start(void (*entry)(void*), void* argument);
    // Of a fiber that has ended: what is started next is another thread to the sanitizer.
    void finish();
    // Suspends the fiber `from` (the one that runs) and resumes `to`.
    static void switch_to(Fiber& from, Fiber& to);
    // Makes this object stand for the operating-system thread that calls.
    void adopt_caller();

  private:
    void* stack_pointer_ = nullptr;
    char* stack_ = nullptr; // owned; null for an adopted thread
    const void* stack_bottom_ = nullptr;
    std::size_t stack_size_ = 0;
    void* sanitizer_fiber_ = nullptr;
    void* fake_stack_ = nullptr;
    void (*entry_)(void*) = nullptr;
    void* argument_ = nullptr;

    [[noreturn]] static void trampoline();
    static void arrived();
};

} // namespace flashbertscore::emulation
