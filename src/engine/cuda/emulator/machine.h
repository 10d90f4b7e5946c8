// The machine that runs the kernels: one block at a time, each of its threads a fiber, with barriers for the
// block, operations of whole warps, shared memory and asynchronous copies.
//
// It is stricter than a GPU. In every block, shared memory begins as NaN; the destination of a copy is NaN
// until the copy is waited for; it is an error if lanes of a warp meet in different operations, or if threads
// leave while others wait for them. A thread runs until it has to wait, so without a barrier the launch
// chooses the order: results that depend on it are races.
//
// This is what kernels see of it. machine.cpp has the rest, and is compiled once for all of them.
#pragma once

#include <cstdint>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace emulator {

constexpr unsigned warp_size = 32;

enum class Order : uint32_t { ascending, descending, shuffled };

// Ends the launch. Thrown through the kernel's frames to the fiber's first one.
struct Failure {};

// A thread's place in its block.
struct Place {
    uint3 index{};
    unsigned number = 0;

    unsigned lane() const { return number % warp_size; }
};

// An operation of all lanes. It receives, for each lane, a pointer to what that lane brought, which stays
// alive until it returns.
using Operation = void (*)(void* const* lanes);

struct Machine {
    // The thread that runs; null outside of any.
    Place* current = nullptr;
    dim3 grid, block;
    uint3 block_index{};
    unsigned char* dynamic_shared = nullptr;
    char message[512] = "";

    // Runs `body(argument)` for every thread of every block. Returns false if it failed; `message` says why.
    bool run(dim3 grid, unsigned threads, unsigned dynamic_bytes, Order order, uint64_t seed, void (*body)(void*),
             void* argument);

    [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char* format, ...);

    // Waits for all threads of the block.
    void barrier();

    // Waits for all lanes of the warp; the last one runs the operation.
    void collective(const char* name, Operation operation, void* mine);

    // An asynchronous copy of the thread; of nothing, zeros arrive.
    void start_copy(void* shared, const void* global, unsigned bytes);

    // The copies since the last call are a group.
    void commit_copies();

    // Waits until at most so many groups are on their way.
    void wait_for_copies(unsigned pending);
};

extern __attribute__((visibility("hidden"))) Machine machine;

}  // namespace emulator
