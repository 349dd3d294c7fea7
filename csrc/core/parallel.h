// The one seam for threads. Threads live for one call: nothing survives into a fork, nothing
// competes with torch's own pool, and ThreadSanitizer sees every start and join.
#pragma once

#include "core/interrupt.h"
#include "core/views.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace flashbertscore {

// Calls body(worker) for worker = 0 .. threads-1, worker 0 on the calling thread, and rethrows the
// first exception. Bodies take their work from a shared counter, so that a thread which cannot be
// started (the process is at its limit) costs time and loses nothing.
template <class Body>
void run_workers(int threads, const Body& body) {
    if (threads <= 1) {
        body(0);
        return;
    }
    std::exception_ptr failure;
    std::mutex failure_mutex;
    Interrupt* const interrupt = Interrupt::current();
    const auto guarded = [&](int worker) {
        Interrupt::current() = interrupt;
        try {
            body(worker);
        } catch (...) {
            const std::lock_guard<std::mutex> lock(failure_mutex);
            if (!failure) { failure = std::current_exception(); }
        }
    };
    std::vector<std::thread> started;
    started.reserve(static_cast<std::size_t>(threads - 1));
    for (int worker = 1; worker < threads; ++worker) {
        try {
            started.emplace_back(guarded, worker);
        } catch (const std::system_error&) { break; }
    }
    guarded(0);
    for (std::thread& thread : started) { thread.join(); }
    if (failure) { std::rethrow_exception(failure); }
}

// Hands out [begin, end) ranges of `count` items, `chunk` at a time, to whoever asks first.
class WorkQueue {
  public:
    WorkQueue(index_t count, index_t chunk) : count_(count), chunk_(std::max<index_t>(chunk, 1)) {}

    bool take(index_t& begin, index_t& end) {
        begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
        if (begin >= count_) { return false; }
        end = std::min(begin + chunk_, count_);
        return true;
    }

  private:
    index_t count_;
    index_t chunk_;
    std::atomic<index_t> next_{0};
};

} // namespace flashbertscore
