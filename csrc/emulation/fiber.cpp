#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(FLASHBERTSCORE_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace flashbertscore::emulation {
namespace {

constexpr std::size_t STACK_BYTES = 128 * 1024;

thread_local Fiber* running = nullptr; // the fiber that was entered by it

} // namespace

#if defined(__x86_64__)
// Saves the registers that a call preserves, exchanges stacks, restores. ucontext would do, but
// calls the kernel twice per switch.
extern "C" void flashbertscore_switch_stack(void** save, void* load);
asm(R"(
.text
.globl flashbertscore_switch_stack
.hidden flashbertscore_switch_stack
.type flashbertscore_switch_stack, @function
flashbertscore_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size flashbertscore_switch_stack, . - flashbertscore_switch_stack
)");
#endif

Fiber::~Fiber() {
    finish();
    if (stack_ != nullptr) munmap(stack_, STACK_BYTES);
#if !defined(__x86_64__)
    delete static_cast<ucontext_t*>(stack_pointer_);
#endif
}

void Fiber::adopt_caller() {
#if defined(FLASHBERTSCORE_TSAN)
    sanitizer_fiber_ = __tsan_get_current_fiber();
#endif
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    void* bottom = nullptr;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &bottom, &stack_size_);
        pthread_attr_destroy(&attributes);
    }
    stack_bottom_ = bottom;
#endif
#if !defined(__x86_64__)
    if (stack_pointer_ == nullptr) stack_pointer_ = new ucontext_t;
#endif
}

void Fiber::start(void (*entry)(void*), void* argument) {
    if (stack_ == nullptr) {
        void* memory = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        stack_ = static_cast<char*>(memory);
        stack_bottom_ = stack_;
        stack_size_ = STACK_BYTES;
    }
    entry_ = entry;
    argument_ = argument;
#if defined(FLASHBERTSCORE_TSAN)
    if (sanitizer_fiber_ == nullptr) sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
    auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + STACK_BYTES);
    top -= 2; // keeps the stack 16-byte aligned as after a call
    *--top = 0;
    *--top = reinterpret_cast<std::uintptr_t>(&Fiber::trampoline);
    for (int i = 0; i < 6; ++i) *--top = 0;
    stack_pointer_ = top;
#else
    if (stack_pointer_ == nullptr) stack_pointer_ = new ucontext_t;
    auto* context = static_cast<ucontext_t*>(stack_pointer_);
    getcontext(context);
    context->uc_stack.ss_sp = stack_;
    context->uc_stack.ss_size = STACK_BYTES;
    context->uc_link = nullptr;
    makecontext(context, reinterpret_cast<void (*)()>(&Fiber::trampoline), 0);
#endif
}

void Fiber::finish() {
#if defined(FLASHBERTSCORE_TSAN)
    if (stack_ == nullptr || sanitizer_fiber_ == nullptr) return;
    __tsan_destroy_fiber(sanitizer_fiber_);
    sanitizer_fiber_ = nullptr;
    // The next fiber is not ordered after this one, so it must not share its memory.
    munmap(stack_, STACK_BYTES);
    stack_ = nullptr;
#endif
}

// First thing after a switch, on the new stack.
void Fiber::arrived() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(running->fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::trampoline() {
    arrived();
    running->entry_(running->argument_);
    std::abort(); // entry must not return
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
    running = &to;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_bottom_, to.stack_size_);
#endif
#if defined(FLASHBERTSCORE_TSAN)
    __tsan_switch_to_fiber(to.sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
    flashbertscore_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#else
    swapcontext(static_cast<ucontext_t*>(from.stack_pointer_),
                static_cast<ucontext_t*>(to.stack_pointer_));
#endif
    arrived();
}

} // namespace flashbertscore::emulation
