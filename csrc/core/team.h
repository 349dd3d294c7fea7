// Threads that the process has already: the OpenMP team that torch computes with.
//
// Between two of torch's operations that team waits in a loop, on every core that it was given. A
// thread started next to it gets a core only when the scheduler takes one away, which is later than
// a kernel of a millisecond ends; so a kernel that stands between torch's operations has to use the
// team itself. It is found at run time (GOMP_parallel, the entry point of GCC's OpenMP that LLVM's
// and Intel's runtimes offer too): nothing is linked, and a process without it loses nothing.
#pragma once

#include "core/parallel.h"

#include <exception>
#include <mutex>

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace flashbertscore {

using TeamStart = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

inline TeamStart team() {
#if defined(__linux__)
    static const TeamStart start =
        reinterpret_cast<TeamStart>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    return start;
#else
    return nullptr;
#endif
}

// Calls body() once on each thread of a team of up to `threads`, this one included, and rethrows
// the first exception. Bodies take their work from a shared queue: a team may turn out smaller.
// Only where there is a team(). A size other than torch's own makes it start threads anew.
template <class Body>
void run_in_team(int threads, const Body& body) {
    struct Call {
        const Body& body;
        std::exception_ptr failure{};
        std::mutex mutex{};
    } call{body};
    const auto guarded = [](void* data) {
        Call& call = *static_cast<Call*>(data);
        try {
            call.body();
        } catch (...) {
            const std::lock_guard<std::mutex> lock(call.mutex);
            if (!call.failure) { call.failure = std::current_exception(); }
        }
    };
    team()(guarded, &call, static_cast<unsigned>(threads), 0);
    if (call.failure) { std::rethrow_exception(call.failure); }
}

// Calls body(begin, end) until all of `count` items are done, `chunk` at a time, on `threads`
// threads: of the team where there is one.
template <class Body>
void share(int threads, index_t count, index_t chunk, const Body& body) {
    if (threads == 1) {
        body(index_t{0}, count);
        return;
    }
    WorkQueue queue(count, chunk);
    const auto work = [&] {
        index_t begin, end;
        while (queue.take(begin, end)) { body(begin, end); }
    };
    if (team() != nullptr) {
        run_in_team(threads, work);
    } else {
        run_workers(threads, [&](int) { work(); });
    }
}

} // namespace flashbertscore
