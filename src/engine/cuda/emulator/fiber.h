// A thread of execution with its own stack that runs until it yields; each CUDA thread is one.
//
// A context is entered for the first time through ucontext, and later by _longjmp, which unlike swapcontext
// makes no system call.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>

namespace emulator {

class Fiber {
  public:
    // Prepares to call `body(argument)`, which must neither return nor throw.
    void create(void (*body)(void*), void* argument) {
        // not cleared, because pages that no kernel touches cost nothing
        if (!stack) stack.reset(new char[stack_bytes]);
        this->body = body;
        this->argument = argument;
        ucontext_t context;
        getcontext(&context);
        context.uc_stack.ss_sp = stack.get();
        context.uc_stack.ss_size = stack_bytes;
        context.uc_link = nullptr;
        makecontext(&context, begin, 0);
        starting = this;
        if (_setjmp(owner) == 0) setcontext(&context);
    }

    // Runs it until it yields. Must be called from outside any fiber.
    void resume() {
        if (_setjmp(owner) == 0) _longjmp(here, 1);
        asm volatile("" ::: "memory");
    }

    // Returns to the caller of resume. Must be called from inside.
    void give_way() {
        if (_setjmp(here) == 0) _longjmp(owner, 1);
        asm volatile("" ::: "memory");
    }

  private:
    static constexpr size_t stack_bytes = 128 << 10;
    static inline Fiber* starting = nullptr;

    static void begin() {
        Fiber* self = starting;
        self->give_way();
        self->body(self->argument);
    }

    std::unique_ptr<char[]> stack;
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
    jmp_buf here, owner;
};

}  // namespace emulator
