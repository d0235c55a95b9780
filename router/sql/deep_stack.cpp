#include "sql/deep_stack.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define INTERLOCK_FIBER_SANITIZER
#endif
#endif
#ifdef INTERLOCK_FIBER_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace interlock::sql {

namespace {

struct DeepStack {
    DeepStack() {
        guard = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        memory = mmap(nullptr, deep_stack_bytes + guard, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
            std::perror("interlock: no memory for the parser's stack");
            std::abort();
        }
    }
    ~DeepStack() { munmap(memory, deep_stack_bytes + guard); }
    DeepStack(const DeepStack &) = delete;
    DeepStack &operator=(const DeepStack &) = delete;

    [[nodiscard]] char *bottom() const { return static_cast<char *>(memory) + guard; }

    void *memory = nullptr;
    std::size_t guard = 0;
    bool running = false;
#ifndef __x86_64__
    ucontext_t caller{};
    ucontext_t fiber{};
#endif
    void (*work)(void *) = nullptr;
    void *argument = nullptr;
    const void *caller_bottom = nullptr;
    std::size_t caller_size = 0;
};

DeepStack &this_thread() {
    thread_local DeepStack stack;
    return stack;
}

void entry() {
    DeepStack &stack = this_thread();
#ifdef INTERLOCK_FIBER_SANITIZER
    __sanitizer_finish_switch_fiber(nullptr, &stack.caller_bottom, &stack.caller_size);
#endif
    stack.work(stack.argument);
#ifdef INTERLOCK_FIBER_SANITIZER
    __sanitizer_start_switch_fiber(nullptr, stack.caller_bottom, stack.caller_size);
#endif
}

// Calls entry() with the stack pointer at the top of the other stack. On x86-64 by hand: the calls
// of ucontext ask the kernel about signal masks, and AddressSanitizer warns of them.
void call_entry(DeepStack &stack) {
#ifdef __x86_64__
    char *top = stack.bottom() + deep_stack_bytes;
    asm volatile("movq %%rsp, %%rbx\n\t"
                 "movq %[top], %%rsp\n\t"
                 "callq *%[entry]\n\t"
                 "movq %%rbx, %%rsp"
                 :
                 : [top] "r"(top), [entry] "r"(&entry)
                 : "rbx", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0",
                   "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                   "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
#else
    getcontext(&stack.fiber);
    stack.fiber.uc_stack.ss_sp = stack.bottom();
    stack.fiber.uc_stack.ss_size = deep_stack_bytes;
    stack.fiber.uc_link = &stack.caller;
    makecontext(&stack.fiber, entry, 0);
    swapcontext(&stack.caller, &stack.fiber);
#endif
}

}  // namespace

void on_deep_stack(void (*work)(void *), void *argument, bool give_back) {
    DeepStack &stack = this_thread();
    if (stack.running) {
        work(argument);
        return;
    }
    stack.running = true;
    stack.work = work;
    stack.argument = argument;
#ifdef INTERLOCK_FIBER_SANITIZER
    void *fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack.bottom(), deep_stack_bytes);
#endif
    call_entry(stack);
#ifdef INTERLOCK_FIBER_SANITIZER
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    stack.running = false;
    if (give_back) madvise(stack.bottom(), deep_stack_bytes, MADV_DONTNEED);
}

}  // namespace interlock::sql
