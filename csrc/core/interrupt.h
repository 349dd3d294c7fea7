// A call that takes hours can be given up by who made it: in Python, with Ctrl-C.
//
// The bindings put an Interrupt on their stack. Kernels call check_interrupt() between pieces of
// work of some milliseconds, on any thread that run_workers started; on the thread that made the
// call that asks, now and then, whether to go on. Where nobody put one, nothing is asked.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

namespace flashbertscore {

// What ends the call, on every one of its threads.
class Interrupted : public std::exception {
  public:
    const char* what() const noexcept override { return "given up by the caller"; }
};

class Interrupt {
  public:
    // asked: whether the caller gives up; called only on the thread that makes this.
    explicit Interrupt(bool (*asked)()) : asked_(asked) { current() = this; }
    ~Interrupt() { current() = outer_; }
    Interrupt(const Interrupt&) = delete;
    Interrupt& operator=(const Interrupt&) = delete;

    // That of the call which this thread works for; null: none.
    static Interrupt*& current() {
        static thread_local Interrupt* of_thread = nullptr;
        return of_thread;
    }

    void check() {
        if (!given_up_.load(std::memory_order_relaxed) && std::this_thread::get_id() == owner_) {
            const Clock::time_point now = Clock::now();
            if (now - last_ < kBetween) { return; }
            last_ = now;
            if (asked_()) { given_up_.store(true, std::memory_order_relaxed); }
        }
        if (given_up_.load(std::memory_order_relaxed)) { throw Interrupted(); }
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kBetween{50};

    bool (*asked_)();
    Interrupt* outer_ = current();
    std::thread::id owner_ = std::this_thread::get_id();
    Clock::time_point last_ = Clock::now();
    std::atomic<bool> given_up_{false};
};

inline void check_interrupt() {
    if (Interrupt* const interrupt = Interrupt::current()) { interrupt->check(); }
}

} // namespace flashbertscore
